// The dashboard: asks the REST interface once a second and shows what it says. It changes nothing.

import { badge, make, show, sparkline, table } from "./elements.js";
import * as figures from "./figures.js";
import { Plan, counted } from "./plan.js";

const LOOK_MS = 1000;
const POINTS = 120;
const ENDED = new Set(["finished", "stopped", "cancelled", "failed"]);
const rates = new figures.Rates(POINTS);
const byId = (id) => document.getElementById(id);

let plan = null;
let planOf = "";
let tab = "checkpoints";

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10_000) });
  if (!answer.ok) throw new Error((await answer.json()).what ?? answer.statusText);
  return answer.json();
}

// ------------------------------------------------------------ all jobs

function rowsRead(job) {
  const sources = job.vertices.flatMap((vertex) => vertex.operators).filter((operator) => !operator.rows_in);
  return sources.reduce((sum, operator) => sum + operator.rows_out, 0);
}

function stateBytes(job) {
  return job.vertices.flatMap((vertex) => vertex.operators).reduce((sum, each) => sum + each.state_bytes, 0);
}

function lowestWatermark(job) {
  const known = job.vertices.map((vertex) => vertex.watermark_us).filter((each) => each != null);
  return known.length ? Math.min(...known) : null;
}

function count(job, nowUs) {
  rates.update(job.id, rowsRead(job), nowUs);
  for (const vertex of job.vertices) {
    for (const operator of vertex.operators) {
      rates.update(`${job.id}/${vertex.id}/${operator.uid}`, counted(operator), nowUs);
    }
  }
}

function ageUs(job, nowUs) {
  return (job.ended_us ?? nowUs) - job.submitted_us;
}

function listOfJobs(jobs, nowUs) {
  const names = ["job", "state", "parallelism", "read", "checkpoints", "restarts", "age"];
  const lines = jobs.map((job) => [
    make("a", { href: `#${encodeURIComponent(job.id)}` }, job.name, make("small", {}, job.id)),
    badge(job.state),
    job.parallelism,
    `${figures.rows(rowsRead(job))} rows, ${ENDED.has(job.state) ? "-" : figures.rate(rates.now(job.id))}`,
    `${job.checkpoints_completed} done${job.checkpoints_failed ? `, ${job.checkpoints_failed} failed` : ""}`,
    job.restarts,
    figures.duration(ageUs(job, nowUs)),
  ]);
  return table(names, lines, "No job has been submitted yet: penstock run program.py --jobmanager URL");
}

// ------------------------------------------------------------ one job

const tabs = {
  checkpoints: {
    path: (id) => `jobs/${id}/checkpoints`,
    show: (found) =>
      table(
        ["id", "kind", "status", "started", "took", "size", "uploaded", "subtasks", ""],
        [...found].reverse().map((each) => [
          each.id,
          each.kind + (each.unaligned ? ", unaligned" : ""),
          badge(each.status),
          figures.moment(each.triggered_us),
          figures.duration(each.duration_us),
          figures.size(each.size),
          figures.size(each.uploaded),
          `${each.acknowledged} of ${each.subtasks}`,
          each.reason || (each.retained ? "kept" : ""),
        ]),
        "No checkpoint yet.",
      ),
  },
  savepoints: {
    path: (id) => `jobs/${id}/savepoints`,
    show: (found) =>
      table(
        ["savepoint", "status", "asked for", "took", "size", ""],
        [...found].reverse().map((each) => [
          make("code", {}, each.uri),
          badge(each.status),
          figures.moment(each.requested_us),
          figures.duration(each.duration_us),
          figures.size(each.size),
          each.reason,
        ]),
        "None was asked for: penstock savepoint JOB takes one.",
      ),
  },
  rescales: {
    path: (id) => `jobs/${id}/rescales`,
    show: (found) =>
      table(
        ["parallelism", "how", "status", "started", "took", "groups moved", "bytes moved", "pause p50 / p99 / max", ""],
        [...found].reverse().map((each) => [
          `${each.parallelism_before} → ${each.parallelism_after}`,
          each.kind,
          badge(each.status),
          figures.moment(each.started_us),
          each.ended_us == null ? "-" : figures.duration(each.ended_us - each.started_us),
          each.groups_moved ?? "-",
          each.bytes_moved == null ? "-" : figures.size(each.bytes_moved),
          [each.pause_us_p50, each.pause_us_p99, each.pause_us_max].map(figures.duration).join(" / "),
          each.reason,
        ]),
        "Its size was never changed: penstock rescale JOB --parallelism N does.",
      ),
  },
  failures: {
    path: null,
    show: (_, job) =>
      table(
        ["when", "attempt", "code", "reason", "place"],
        [...job.failures]
          .reverse()
          .map((each) => [
            figures.moment(each.time_us),
            each.attempt,
            each.code,
            make("pre", {}, each.reason),
            each.place,
          ]),
        "None.",
      ),
  },
  processes: {
    path: null,
    show: (_, job, cluster) =>
      table(
        ["process", "pid", "host", "memory", "subtasks"],
        cluster.processes
          .filter((each) => each.role !== "slot" || each.job === job.id)
          .map((each) => [
            `${each.role} ${each.id}`,
            each.pid,
            each.host,
            each.rss_bytes ? figures.size(each.rss_bytes) : "-",
            each.subtasks.join(", "),
          ]),
        "None.",
      ),
  },
  counters: {
    path: null,
    show: (_, job) =>
      table(
        ["operator", "name", "kind", "value"],
        job.vertices
          .flatMap((vertex) => vertex.operators)
          .flatMap((operator) =>
            operator.user.map((each) => [operator.uid, each.name, each.kind, String(Number(each.value.toPrecision(6)))]),
          ),
        "Its functions keep no figures of their own.",
      ),
  },
};

function tiles(job, nowUs) {
  const last = job.last_checkpoint;
  const tile = (name, value, more) => make("div", { class: "tile" }, make("span", {}, name), make("b", {}, value), more);
  return [
    tile("rows read", ENDED.has(job.state) ? figures.rows(rowsRead(job)) : figures.rate(rates.now(job.id)), sparkline(rates.history(job.id))),
    tile("event time", figures.watermark(lowestWatermark(job), nowUs)),
    tile(
      "last checkpoint",
      last ? figures.duration(last.duration_us) : "none yet",
      last ? make("small", {}, `${figures.size(last.size)}, ${figures.duration(nowUs - last.triggered_us)} ago`) : null,
    ),
    tile("state", figures.size(stateBytes(job))),
    tile("restarts", job.restarts),
  ];
}

function title(job, nowUs) {
  const facts = [
    `parallelism ${job.parallelism}`,
    `attempt ${job.attempt}`,
    `${figures.duration(ageUs(job, nowUs))}${ENDED.has(job.state) ? ", ended" : ""}`,
  ];
  const rescale = job.rescale;
  if (rescale) facts.push(`being rescaled ${rescale.parallelism_before} → ${rescale.parallelism_after}: ${rescale.reason || "under way"}`);
  return [
    make("h2", {}, job.name, badge(job.state), make("small", {}, job.id)),
    make("p", { class: "facts" }, facts.join(" · ")),
    ...(job.reason ? [make("p", { class: `note ${job.state}` }, job.reason)] : []),
    ...job.warnings.map((each) => make("p", { class: "note" }, each)),
  ];
}

function frame() {
  const part = (name) => make("div", { id: name, class: name });
  const buttons = Object.keys(tabs).map((name) => {
    const button = make("button", { type: "button", role: "tab", "data-tab": name }, name);
    button.addEventListener("click", () => {
      tab = name;
      look();
    });
    return button;
  });
  const bar = make("nav", { role: "tablist", class: "tabs" }, ...buttons);
  byId("job").replaceChildren(part("title"), part("tiles"), part("graph"), bar, part("details"));
}

async function showJob(job, cluster, nowUs) {
  const id = encodeURIComponent(job.id);
  const version = `${job.id}/${job.parallelism}/${job.vertices.map((each) => `${each.id}×${each.parallelism}`).join()}`;
  if (planOf !== version) {
    const view = await ask(`jobs/${id}/plan`);
    plan = new Plan(view);
    planOf = version;
    frame();
    byId("graph").replaceChildren(plan.element);
    byId("job").hidden = false;
    plan.place();
  }
  show(byId("title"), JSON.stringify([title(job, nowUs).map((each) => each.textContent)]), () => title(job, nowUs));
  byId("tiles").replaceChildren(...tiles(job, nowUs));
  plan.update(job, rates, nowUs);
  for (const button of document.querySelectorAll("[data-tab]")) {
    button.setAttribute("aria-selected", String(button.dataset.tab === tab));
  }
  const { path, show: content } = tabs[tab];
  const found = path ? await ask(path(id)) : null;
  show(byId("details"), tab + JSON.stringify([found, path ? null : job, path ? null : cluster.processes]), () => content(found, job, cluster));
}

function showNoJob() {
  planOf = "";
  byId("job").hidden = true;
}

// ------------------------------------------------------------ again and again

function showLink(problem) {
  byId("link").textContent = problem ?? "";
  document.body.classList.toggle("stale", problem != null);
}

async function look() {
  try {
    const cluster = await ask("cluster");
    const nowUs = Date.now() * 1000;
    cluster.jobs.forEach((job) => count(job, nowUs));
    const jobs = [...cluster.jobs].reverse();
    const managers = cluster.processes.filter((each) => each.role === "taskmanager").length;
    byId("cluster").textContent =
      `${cluster.slots_total - cluster.slots_free} of ${cluster.slots_total} slots in use, ` +
      `${managers} ${managers === 1 ? "TaskManager" : "TaskManagers"}`;
    byId("jobs").replaceChildren(listOfJobs(jobs, nowUs));
    const wanted = decodeURIComponent(location.hash.slice(1));
    const job = jobs.find((each) => each.id === wanted) ?? (jobs.length === 1 ? jobs[0] : null);
    document.title = job ? `${job.name}: ${job.state}` : "Penstock";
    if (job) await showJob(job, cluster, nowUs);
    else showNoJob();
    showLink(null);
  } catch (problem) {
    showLink(`no answer from the JobManager: ${problem.message}; what is shown is old`);
  }
}

async function lookForEver() {
  await look();
  setTimeout(lookForEver, LOOK_MS);
}

addEventListener("hashchange", look);
lookForEver();
