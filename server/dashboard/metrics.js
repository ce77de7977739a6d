// Reads Prometheus' text format, and what two readings say about the time between them.

// parse returns {name: [{labels, value}]}.
export function parse(text) {
  const out = {};
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const m = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!m) continue;
    const labels = {};
    for (const [, k, v] of (m[2] || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[k] = v;
    (out[m[1]] ||= []).push({ labels, value: Number(m[3].replace("Inf", "Infinity")) });
  }
  return out;
}

// sum adds up a metric's values whose labels pass.
export function sum(metrics, name, pass = () => true) {
  let total = 0;
  for (const s of metrics[name] || []) if (pass(s.labels)) total += s.value;
  return total;
}

// by adds up a metric's values by one label.
export function by(metrics, name, label, pass = () => true) {
  const out = {};
  for (const s of metrics[name] || []) {
    if (pass(s.labels)) out[s.labels[label]] = (out[s.labels[label]] || 0) + s.value;
  }
  return out;
}

// means returns the means of a metric's values by what a function makes of their labels.
export function means(metrics, name, key) {
  const all = {};
  for (const s of metrics[name] || []) (all[key(s.labels)] ||= []).push(s.value);
  for (const [k, v] of Object.entries(all)) all[k] = v.reduce((a, b) => a + b) / v.length;
  return all;
}

// rates divides what was counted between two readings by the seconds between them. A counter that went
// back belongs to a server that was started again.
export function rates(now, before, seconds) {
  const out = {};
  for (const [k, v] of Object.entries(now)) out[k] = Math.max(0, v - (before[k] || 0)) / seconds;
  return out;
}

// quantile estimates a quantile of what a histogram counted between two readings; NaN: nothing.
export function quantile(q, now, before, name, pass = () => true) {
  const counts = (m) => by(m, name + "_bucket", "le", pass);
  const a = counts(now), b = counts(before);
  const bounds = Object.keys(a).map((le) => [le === "+Inf" ? Infinity : Number(le), a[le] - (b[le] || 0)]);
  bounds.sort((x, y) => x[0] - y[0]);
  const total = bounds.length ? bounds[bounds.length - 1][1] : 0;
  if (!(total > 0)) return NaN;
  let low = 0, under = 0;
  for (const [bound, count] of bounds) {
    if (count >= q * total) {
      if (bound === Infinity) return low;
      return low + (bound - low) * (q * total - under) / Math.max(count - under, 1e-9);
    }
    low = bound;
    under = count;
  }
  return low;
}
