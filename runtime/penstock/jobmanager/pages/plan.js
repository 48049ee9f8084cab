// The job graph, live: a box per chain in columns from left to right, arrows behind, figures that change inside.

import { draw, make, sparkline } from "./elements.js";
import * as figures from "./figures.js";

const COLUMN_GAP = 150;
const ROW_GAP = 28;

/** What rows an operator that shows them has: those that come in, or, of a source, those that go out. */
export function counted(operator) {
  return operator.rows_in || operator.rows_out;
}

export class Plan {
  constructor(view) {
    this.view = view;
    this.cells = new Map();
    this.boxes = new Map(view.vertices.map((vertex) => [vertex.id, this.#box(vertex)]));
    this.arrows = draw("svg", { class: "arrows", "aria-hidden": "true" });
    this.element = make("div", { class: "plan" }, this.arrows, ...this.boxes.values());
  }

  #box(vertex) {
    const busy = make("i", { class: "busy" });
    const held = make("i", { class: "held" });
    const load = make("span", { class: "load" });
    const time = make("span", { class: "time" });
    const spark = make("span");
    const lines = vertex.lines.map((line) => {
      const count = make("span", { class: "count" });
      if (line.uid) this.cells.set(`${vertex.id}/${line.uid}`, count);
      const text = make("span", { class: line.is_detail ? "detail" : "operator", title: line.text }, line.text);
      return make("div", { class: "line", style: `padding-left: ${line.depth}em` }, text, count);
    });
    this.cells.set(vertex.id, { busy, held, load, time, spark });
    return make(
      "article",
      { class: "vertex", "data-vertex": vertex.id },
      make("h3", {}, vertex.id, make("span", { class: "size" }, `×${vertex.parallelism}`), spark),
      make("div", { class: "bar", title: "busy, and held back by those who take its rows" }, busy, held),
      make("div", { class: "line" }, load, time),
      ...lines,
    );
  }

  /** Once it is in the document: where the boxes stand follows from how large their text is. */
  place() {
    let x = 0;
    let bottom = 0;
    for (let column = 0; ; column++) {
      const members = this.view.vertices.filter((vertex) => vertex.column === column);
      if (!members.length) break;
      const boxes = members.map((vertex) => this.boxes.get(vertex.id));
      const width = Math.max(...boxes.map((box) => box.offsetWidth));
      let y = 0;
      for (const box of boxes) {
        box.style.left = `${x}px`;
        box.style.top = `${y}px`;
        box.style.width = `${width}px`;
        y += box.offsetHeight + ROW_GAP;
      }
      bottom = Math.max(bottom, y);
      x += width + COLUMN_GAP;
    }
    const width = Math.max(x - COLUMN_GAP, 0);
    const height = bottom - ROW_GAP + (this.view.edges.some((edge) => edge.is_feedback) ? ROW_GAP : 0);
    Object.assign(this.element.style, { width: `${width + 2}px`, height: `${height + 4}px` });
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) {
      this.arrows.setAttribute(name, value);
    }
    this.arrows.replaceChildren(...this.#arrows());
  }

  #arrows() {
    const head = draw("path", { d: "M0 0 L8 4 L0 8 z" });
    const size = { id: "head", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" };
    const drawn = [draw("defs", {}, draw("marker", size, head))];
    for (const vertex of this.view.vertices) {
      const inward = this.view.edges.filter((edge) => edge.target === vertex.id);
      inward.forEach((edge, n) => drawn.push(...this.#arrow(edge, (n + 1) / (inward.length + 1))));
    }
    return drawn;
  }

  #arrow(edge, share) {
    const [from, to] = [this.boxes.get(edge.source), this.boxes.get(edge.target)];
    if (edge.is_feedback) {
      const [x1, x2] = [from.offsetLeft + from.offsetWidth / 2, to.offsetLeft + to.offsetWidth / 2];
      const [y1, y2] = [from.offsetTop + from.offsetHeight, to.offsetTop + to.offsetHeight];
      const low = Math.max(y1, y2) + ROW_GAP - 6;
      const d = `M${x1} ${y1} C${x1} ${low} ${x2} ${low} ${x2} ${y2}`;
      return [draw("path", { class: "back", d }), draw("text", { x: x2 + 14, y: y2 + 16 }, edge.label)];
    }
    const [x1, y1] = [from.offsetLeft + from.offsetWidth, from.offsetTop + from.offsetHeight / 2];
    const [x2, y2] = [to.offsetLeft, to.offsetTop + to.offsetHeight * share];
    const bend = (x2 - x1) / 2;
    return [
      draw("path", { d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }),
      draw("text", { x: x2 - 10, y: y2 - 6, "text-anchor": "end" }, edge.label),
    ];
  }

  update(job, rates, nowUs) {
    for (const vertex of job.vertices) {
      const cells = this.cells.get(vertex.id);
      if (!cells) continue; // another plan: it is on its way
      cells.busy.style.width = `${(vertex.busy * 100).toFixed(0)}%`;
      cells.held.style.width = `${(Math.min(vertex.backpressured, 1 - Math.min(vertex.busy, 1)) * 100).toFixed(0)}%`;
      cells.load.textContent = vertex.ended ? "ended" : load(vertex);
      cells.time.textContent = `watermark ${figures.watermark(vertex.watermark_us, nowUs)}`;
      this.boxes.get(vertex.id).classList.toggle("pressed", vertex.backpressured > 0.5);
      cells.spark.replaceChildren(sparkline(rates.history(`${job.id}/${vertex.id}/${vertex.operators[0].uid}`), 60, 16));
      for (const operator of vertex.operators) {
        const cell = this.cells.get(`${vertex.id}/${operator.uid}`);
        if (cell) cell.textContent = counts(operator, rates.now(`${job.id}/${vertex.id}/${operator.uid}`));
      }
    }
  }
}

function load(vertex) {
  const percent = (share) => `${(share * 100).toFixed(0)} %`;
  const waits = vertex.held ? `, ${vertex.held} waiting for slower splits` : "";
  return `busy ${percent(vertex.busy)}, held back ${percent(vertex.backpressured)}${waits}`;
}

function counts(operator, perSecond) {
  const some = [`${figures.rows(counted(operator))} rows`, figures.rate(perSecond)];
  if (operator.state_bytes) some.push(`${figures.size(operator.state_bytes)} of state`);
  if (operator.late_rows) some.push(`${figures.rows(operator.late_rows)} late`);
  if (operator.bad_rows) some.push(`${figures.rows(operator.bad_rows)} bad`);
  return some.join(" · ");
}
