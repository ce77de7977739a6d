// Small charts of the last minutes: lines, or areas on top of each other.
import { element, short, svg } from "./api.js";

const W = 400, H = 136, LEFT = 38, TOP = 12, BOTTOM = 8;
const LEAST = 30; // readings that the width stands for at least
export const KEPT = 150; // readings

// niceTop returns a round number at or above v.
function niceTop(v) {
  if (!(v > 0)) return 1;
  const p = 10 ** Math.floor(Math.log10(v));
  for (const m of [1, 1.5, 2, 3, 5, 7.5, 10]) if (m * p >= v) return m * p;
  return 10 * p;
}

export class Chart {
  // options: title, unit, stacked, names (fixed series), limit (a dashed line), explain, calm (red is not the first colour).
  constructor(options) {
    this.options = options;
    this.names = [...(options.names || [])];
    this.points = []; // {time, values: {name: number}}
    this.output = element("output");
    this.svg = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img" });
    this.key = element("ul", { class: "key" });
    this.figure = element("figure", { title: options.explain || "" },
      element("figcaption", {}, options.title, this.output), this.svg, this.key);
    this.draw();
  }

  add(time, values) {
    for (const name of Object.keys(values)) if (!this.names.includes(name)) this.names.push(name);
    this.points.push({ time, values });
    if (this.points.length > KEPT) this.points.shift();
    this.draw();
  }

  top() {
    let most = this.options.limit || 0;
    for (const p of this.points) {
      const v = this.names.map((n) => p.values[n]).filter(Number.isFinite);
      const high = this.options.stacked ? v.reduce((a, b) => a + b, 0) : Math.max(0, ...v);
      most = Math.max(most, high);
    }
    return niceTop(most);
  }

  draw() {
    const { unit = "", stacked, limit, calm } = this.options;
    const top = this.top();
    const slots = Math.max(LEAST, this.points.length);
    const x = (i) => LEFT + (W - LEFT) * (slots - this.points.length + i) / (slots - 1);
    const y = (v) => TOP + (H - TOP - BOTTOM) * (1 - v / top);
    const colour = (s) => "s" + (stacked && !calm ? s : s + 1) % 8; // lines leave the first one to the limit
    const parts = [0, 0.5, 1].flatMap((f) => [
      svg("line", { class: "rule", x1: LEFT, x2: W, y1: y(f * top), y2: y(f * top) }),
      svg("text", { class: "axis", x: LEFT - 4, y: y(f * top) + 3, "text-anchor": "end" }, short(f * top)),
    ]);
    const under = this.points.map(() => 0);
    this.names.forEach((name, s) => {
      const at = this.points.map((p) => p.values[name]);
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
        let pen = "M";
        at.forEach((v, i) => {
          if (!Number.isFinite(v)) { pen = "M"; return; }
          d += pen + x(i).toFixed(1) + " " + y(v).toFixed(1);
          pen = "L";
        });
      }
      if (d) parts.push(svg("path", { class: `${stacked ? "area" : "line"} ${colour(s)}`, d }));
    });
    if (limit) parts.push(svg("path", { class: "limit", d: `M${LEFT} ${y(limit)}H${W}` }));
    this.svg.replaceChildren(...parts);
    const last = this.points.length ? this.points[this.points.length - 1].values : {};
    const say = (n) => `${n} ${short(last[n] ?? (stacked ? 0 : NaN), unit)}`;
    const said = this.names.map(say);
    this.svg.setAttribute("aria-label", `${this.options.title}: ${said.join(", ") || "nothing yet"}`);
    this.key.replaceChildren(...this.names.map((n, s) => element("li", { class: colour(s) }, say(n))));
    if (limit) this.key.append(element("li", { class: "s0" }, `limit ${short(limit, unit)}`));
    const all = this.names.map((n) => last[n]).filter(Number.isFinite);
    this.output.value = stacked && all.length ? short(all.reduce((a, b) => a + b, 0), unit) : "";
  }
}
