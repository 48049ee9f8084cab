// Elements of the page. Text goes in as text: nothing that a user wrote is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    // The policy of the page takes styles from here, not from attributes.
    if (name === "style") element.style.cssText = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

/** Put content into an element when it is not what is there: selections and scroll positions stay. */
export function show(element, key, content) {
  if (element.shown === key) return;
  element.shown = key;
  element.replaceChildren(...[content()].flat());
}

export function table(names, lines, otherwise) {
  if (!lines.length) return make("p", { class: "none" }, otherwise);
  const head = make("tr", {}, ...names.map((name) => make("th", {}, name)));
  const body = lines.map((cells) =>
    make("tr", {}, ...cells.map((cell) => make("td", {}, ...[cell].flat()))),
  );
  return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

export function badge(state) {
  return make("span", { class: `badge ${state}` }, state);
}

export function sparkline(values, width = 120, height = 28) {
  const top = Math.max(...values, 1);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map((value, n) => `${(n * step).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
  return draw(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    draw("polyline", { points: points.join(" ") }),
  );
}
