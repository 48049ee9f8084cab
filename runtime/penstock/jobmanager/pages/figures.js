// Figures as people read them, and rates from counters; the same words as `penstock run` prints.

const ENDLESS_US = 2 ** 62;
const DAY_US = 86_400_000_000;

export function rows(count) {
  for (const [limit, divisor, unit] of [[1e4, 1, ""], [1e6, 1e3, "K"], [1e9, 1e6, "M"]]) {
    if (count < limit) return unit ? `${short(count / divisor)}${unit}` : count.toFixed(0);
  }
  return `${short(count / 1e9)}G`;
}

export function rate(perSecond) {
  return perSecond === undefined ? "-" : `${rows(perSecond)}/s`;
}

export function size(bytes) {
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (bytes < 1000) return `${short(bytes)} ${unit}`;
    bytes /= 1000;
  }
  return `${short(bytes)} TB`;
}

export function duration(micros) {
  if (micros == null) return "-";
  if (micros < 1e6) return `${(micros / 1e3).toFixed(0)} ms`;
  const seconds = micros / 1e6;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  const two = (number) => String(number).padStart(2, "0");
  if (minutes < 60) return `${minutes} min ${two(Math.round(seconds) % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

export function watermark(micros, nowUs) {
  if (micros == null) return "-";
  if (micros >= ENDLESS_US) return "end";
  const lag = nowUs - micros;
  return lag > 2 * DAY_US ? `${Math.floor(lag / DAY_US)} days ago` : `${duration(Math.max(0, lag))} behind`;
}

export function moment(micros) {
  return micros == null ? "-" : new Date(micros / 1000).toLocaleString();
}

function short(value) {
  return value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** Rows per second of each counter, and what they were: one point per look. */
export class Rates {
  #marks = new Map();
  #histories = new Map();

  constructor(points) {
    this.points = points;
  }

  update(key, count, nowUs) {
    const mark = this.#marks.get(key);
    this.#marks.set(key, { nowUs, count });
    // A counter that went back has started again.
    if (!mark || count < mark.count || nowUs <= mark.nowUs) return;
    const history = this.#histories.get(key) ?? [];
    history.push(((count - mark.count) * 1e6) / (nowUs - mark.nowUs));
    this.#histories.set(key, history.slice(-this.points));
  }

  /** Over the last looks: reports of slots come about once a second, so a single one jumps. */
  now(key) {
    const last = (this.#histories.get(key) ?? []).slice(-3);
    return last.length ? last.reduce((sum, each) => sum + each, 0) / last.length : undefined;
  }

  history(key) {
    return this.#histories.get(key) ?? [];
  }
}
