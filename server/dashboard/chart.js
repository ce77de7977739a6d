// Small charts over a time axis: lines, or areas on top of each other.
import { element, short, svg } from "./api.js";

const W = 400, H = 136, LEFT = 46, TOP = 12, BOTTOM = 20;
const LEAST = 60_000; // milliseconds that the width stands for at least
const RECENT = 300_000; // milliseconds whose readings are all kept
const KEPT = 600; // readings
const FAR = 10; // a limit that is so many times the values would make them a flat line: it is in the key alone
let wanted = RECENT; // milliseconds that are shown; 0: all
let waiting = false;
const all = new Set();

// together draws the charts once, after many readings.
export function together(readings) {
  waiting = true;
  try {
    readings();
  } finally {
    waiting = false;
    for (const chart of all) chart.draw();
  }
}

// choose sets how many milliseconds all charts show; 0: since the first reading.
export function choose(milliseconds) {
  wanted = milliseconds;
  for (const chart of all) chart.draw();
}

// niceTop returns a round number at or above v.
function niceTop(v) {
  if (!(v > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(v));
  for (const m of [1, 1.5, 2, 3, 5, 7.5, 10]) if (m * p >= v) return m * p;
  return 10 * p;
}

// ago writes how long before the last reading something was.
function ago(ms) {
  const s = Math.round(ms / 1000);
  if (s < 120) return `−${s} s`;
  if (s < 7200) return `−${Math.round(s / 60)} min`;
  return s < 172800 ? `−${Math.round(s / 3600)} h` : `−${Math.round(s / 86400)} days`;
}

export class Chart {
  // options: title, unit, stacked, names (fixed series), limit (a dashed line), note (a line under the title), explain (a tooltip), calm (red is
  // not the first colour), empty (what to do while there is nothing to show).
  constructor(options) {
    this.options = options;
    this.names = [...(options.names || [])];
    this.points = []; // {time, values: {name: number}}
    this.output = element("output");
    this.svg = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img" });
    this.key = element("ul", { class: "key" });
    this.empty = element("p", { class: "note empty", hidden: "" }, options.empty || "Nothing yet.");
    this.figure = element("figure", { title: options.explain || "" },
      element("figcaption", {}, options.title, this.output),
      ...(options.note ? [element("p", { class: "note" }, options.note)] : []), this.svg, this.empty, this.key);
    all.add(this);
    this.draw();
  }

  // visible returns the points in the time that is shown.
  visible() {
    const end = this.points[this.points.length - 1]?.time ?? 0;
    return wanted ? this.points.filter((p) => p.time >= end - wanted) : this.points;
  }

  add(time, values) {
    for (const name of Object.keys(values)) if (!this.names.includes(name)) this.names.push(name);
    this.points.push({ time, values });
    if (this.points.length > KEPT) this.points = this.points.filter((p, i) => i % 2 === 0 || p.time > time - RECENT);
    this.draw();
  }

  top(points) {
    let most = 0;
    for (const p of points) {
      const v = this.names.map((n) => p.values[n]).filter(Number.isFinite);
      const high = this.options.stacked ? v.reduce((a, b) => a + b, 0) : Math.max(0, ...v);
      most = Math.max(most, high);
    }
    const { limit } = this.options;
    return niceTop(limit && (!most || most > limit / FAR) ? Math.max(limit, most) : most);
  }

  draw() {
    if (waiting) return;
    const { unit = "", stacked, limit, calm } = this.options;
    const points = this.visible(), top = this.top(points);
    const first = points[0]?.time ?? 0, end = points[points.length - 1]?.time ?? 0;
    const span = Math.max(LEAST, end - first);
    const x = (i) => W - (W - LEFT) * (end - points[i].time) / span;
    const y = (v) => TOP + (H - TOP - BOTTOM) * (1 - v / top);
    const colour = (s) => "s" + (stacked && !calm ? s : s + 1) % 8; // lines leave the first one to the limit
    const parts = [0, 0.5, 1].flatMap((f) => [
      svg("line", { class: "rule", x1: LEFT, x2: W, y1: y(f * top), y2: y(f * top) }),
      svg("text", { class: "axis", x: LEFT - 4, y: y(f * top) + 3, "text-anchor": "end" }, short(f * top, unit)),
    ]);
    for (const [f, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
      const at = LEFT + f * (W - LEFT);
      parts.push(svg("line", { class: "rule", x1: at, x2: at, y1: H - BOTTOM, y2: H - BOTTOM + 4 }),
        svg("text", { class: "axis", x: at, y: H - 5, "text-anchor": anchor }, f === 1 ? "now" : ago((1 - f) * span)));
    }
    const under = points.map(() => 0);
    this.names.forEach((name, s) => {
      const at = points.map((p) => p.values[name]);
      let d = "";
      if (stacked) {
        const low = [...under];
        at.forEach((v, i) => { under[i] += Number.isFinite(v) ? v : 0; });
        if (at.length > 1) {
          d = at.map((_, i) => (i ? "L" : "M") + x(i).toFixed(1) + " " + y(under[i]).toFixed(1)).join("");
          for (let i = at.length - 1; i >= 0; i--) d += "L" + x(i).toFixed(1) + " " + y(low[i]).toFixed(1);
          d += "Z";
        }
      } else {
        let pen = "M", dots = ""; // readings by themselves
        at.forEach((v, i) => {
          if (!Number.isFinite(v)) { pen = "M"; return; }
          const here = x(i).toFixed(1) + " " + y(v).toFixed(1);
          if (pen === "M" && !Number.isFinite(at[i + 1])) dots += "M" + here + "h0";
          else d += pen + here;
          pen = "L";
        });
        if (dots) parts.push(svg("path", { class: `line dot ${colour(s)}`, d: dots }));
      }
      if (d) parts.push(svg("path", { class: `${stacked ? "area" : "line"} ${colour(s)}`, d }));
    });
    if (limit && limit <= top) parts.push(svg("path", { class: "limit", d: `M${LEFT} ${y(limit)}H${W}` }));
    this.svg.replaceChildren(...parts);
    const last = points.length ? points[points.length - 1].values : {};
    // A line whose only reading is a dot says the dot's value, also when later readings have none.
    const say = (n) => {
      const read = points.map((p) => p.values[n]).filter(Number.isFinite);
      if (!stacked && read.length === 1) return `one reading of ${n}: ${short(read[0], unit)}`;
      return `${n} ${short(last[n] ?? (stacked ? 0 : NaN), unit)}`;
    };
    // A series that never had a value is something that this server does not do: it is not in the key.
    const had = (n) => points.some((p) => p.values[n] > 0 || !stacked && Number.isFinite(p.values[n]));
    const shown = this.names.map((n, s) => [n, s]).filter(([n]) => had(n));
    this.empty.hidden = shown.length > 0;
    const said = shown.map(([n]) => say(n));
    this.svg.setAttribute("aria-label", `${this.options.title}, the last ${ago(span).slice(1)}: ${said.join(", ") || "nothing yet"}`);
    this.key.replaceChildren(...shown.map(([n, s]) => element("li", { class: colour(s) }, say(n))));
    if (limit && shown.length) this.key.append(element("li", { class: "s0" }, `limit ${short(limit, unit)}`));
    const sizes = this.names.map((n) => last[n]).filter(Number.isFinite);
    this.output.value = stacked && sizes.length ? short(sizes.reduce((a, b) => a + b, 0), unit) : "";
  }
}
