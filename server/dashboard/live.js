// The view of what the server does: what it remembers (/v1/history), and /metrics, read every two seconds.
import { denied, explained, getJSON, getText, lacking } from "./api.js";
import { Chart, choose, together } from "./chart.js";
import { by, means, parse, quantile, rates, sum } from "./metrics.js";

const EVERY = 2000;
const slo = Number(document.body.dataset.slo);
const asking = (l) => l.op === "rank" || l.op === "recommend" || l.op === "score" || l.op === "rerank";

const TESTED = 1000; // predictions that one value of their chart needs
const ASK = "No requests lately. Send one from the Playground.";

const charts = {
  requests: new Chart({ title: "Requests per second", names: ["rank", "recommend"], explain: "Answered requests by operation", empty: ASK }),
  latency: new Chart({ title: "Latency", unit: " ms", names: ["P50", "P99"], limit: slo, explain: "Of rankings and recommendations; the dashed line is the deadline of requests that name none", empty: ASK }),
  tokens: new Chart({ title: "Prompt tokens per second", stacked: true, names: ["computed", "device", "host", "disk", "peer", "prototype"], explain: "By where their KV came from", empty: ASK }),
  prefix: new Chart({ title: "Prefix choices per second", stacked: true, names: ["user", "item", "blend", "none"], empty: "No rankings lately. Send one from the Playground." }),
  batch: new Chart({ title: "Tokens computed per batch", names: ["mean"], explain: "Of the batches that jobs were part of", empty: ASK }),
  queue: new Chart({ title: "Time in the queue", unit: " ms", names: ["P50", "P99"], explain: "Time that a job waits for its batch", empty: ASK }),
  refused: new Chart({ title: "Not answered, per second", stacked: true, names: ["shed", "expired", "bad request", "failed"], empty: "All requests were answered." }),
  memory: new Chart({ title: "Memory of the caches", unit: "B", stacked: true, names: ["user", "item", "preamble", "prefix", "embedding", "free"], empty: "No model is loaded." }),
  boundary: new Chart({ title: "Share of the pool for embeddings (α)", names: ["host", "device"], explain: "Where embedding tables and KV share one pool; the mean of the models" }),
  shared: new Chart({ title: "Hits in shared pools", unit: " %", names: ["rows, host", "KV, host", "rows, device", "KV, device"], explain: "Of rows that were looked up, and of requests that look for KV; the mean of the models", empty: ASK }),
  refill: new Chart({ title: "Rows fetched ahead of requests", unit: "B", names: ["per second"], explain: "Into caches of embedding rows, after a start, a move of the boundary or a change of what is popular", empty: "Nothing had to be fetched." }),
  rows: new Chart({ title: "Rows of item tables per second", stacked: true, names: ["on the device", "fetched", "fetched ahead"], explain: "Rows that batches needed, and rows that were fetched while requests waited", empty: ASK }),
  evictions: new Chart({ title: "Evictions per second", stacked: true, names: ["user", "item", "prefix"], empty: "Nothing had to leave the caches." }),
  predictions: new Chart({ title: "Wrong predictions of the next use", unit: " %", names: ["wrong"], note: "The cache predicts when an entry is used again. Wrong: off by more than a factor of two.", explain: `Of the last ${TESTED.toLocaleString("en")} or more predictions whose entry was used again`, empty: `Shown after ${TESTED.toLocaleString("en")} predictions whose entry was used again.` }),
};

let before = null;
const readers = []; // other views of the metrics

// eachReading calls a function with two readings, the seconds between them and the time.
export function eachReading(reader) {
  readers.push(reader);
}

function outcome(code) {
  if (code === "429") return "shed";
  if (code === "504" || code === "499") return "expired";
  if (code >= "500") return "failed";
  return "bad request";
}

function show(now, old, seconds, time) {
  const change = (name, label, pass) => rates(by(now, name, label, pass), by(old, name, label, pass), seconds);
  charts.requests.add(time, change("grebe_requests_total", "op", (l) => asking(l) && l.code === "200"));
  charts.latency.add(time, {
    P50: 1000 * quantile(0.5, now, old, "grebe_request_seconds", asking),
    P99: 1000 * quantile(0.99, now, old, "grebe_request_seconds", asking),
  });
  charts.tokens.add(time, change("grebe_tokens_total", "source"));
  charts.prefix.add(time, change("grebe_prefix_choice_total", "prefix"));
  const jobs = sum(now, "grebe_batch_tokens_count") - sum(old, "grebe_batch_tokens_count");
  charts.batch.add(time, { mean: (sum(now, "grebe_batch_tokens_sum") - sum(old, "grebe_batch_tokens_sum")) / jobs });
  charts.queue.add(time, {
    P50: 1000 * quantile(0.5, now, old, "grebe_queue_seconds"),
    P99: 1000 * quantile(0.99, now, old, "grebe_queue_seconds"),
  });
  const refused = {};
  for (const [code, n] of Object.entries(change("grebe_requests_total", "code", (l) => asking(l) && l.code !== "200"))) {
    refused[outcome(code)] = (refused[outcome(code)] || 0) + n;
  }
  charts.refused.add(time, refused);
  const memory = by(now, "grebe_kv_bytes", "kind", (l) => l.tier !== "disk");
  memory.embedding = sum(now, "grebe_embed_device_bytes");
  memory.free = Math.max(0, sum(now, "grebe_pool_bytes") - sum(now, "grebe_pool_used_bytes"));
  charts.memory.add(time, memory);
  if (now.grebe_pool_boundary) charts.boundary.add(time, means(now, "grebe_pool_boundary", (l) => l.memory));
  const hits = means(now, "grebe_pool_hit_ratio", (l) => `${l.side === "kv" ? "KV" : l.side}, ${l.memory}`);
  charts.shared.add(time, Object.fromEntries(Object.entries(hits).map(([k, v]) => [k, 100 * v])));
  const grown = (name) => (sum(now, name) - sum(old, name)) / seconds;
  charts.refill.add(time, { "per second": Math.max(0, grown("grebe_embed_refill_bytes_total")) });
  charts.rows.add(time, {
    "on the device": grown("grebe_embed_device_hits_total"),
    fetched: grown("grebe_embed_device_misses_total"),
    "fetched ahead": grown("grebe_embed_device_prefetched_total"),
  });
  charts.evictions.add(time, change("grebe_evictions_total", "kind"));
  charts.predictions.add(time, { wrong: wrongShare(now, old) });
}

const tested = { all: 0, wrong: 0, share: NaN }; // since the last value, and that value

// wrongShare returns how many percent of the last predictions were wrong, or NaN before there are enough of them.
function wrongShare(now, old) {
  const grown = (name) => Math.max(0, sum(now, name) - sum(old, name)); // a restart of the server starts at 0
  tested.all += grown("grebe_predictions_total");
  tested.wrong += grown("grebe_prediction_errors_total");
  if (tested.all >= TESTED) Object.assign(tested, { all: 0, wrong: 0, share: 100 * tested.wrong / tested.all });
  return tested.share;
}

// indexing shows the progress of each model that computes items ahead of requests.
function indexing(metrics) {
  const says = { computing: "computing", waiting: "waiting for idle time", done: "done", full: "their share of the cache is full", failed: "failed, will retry" };
  const lines = (metrics.grebe_index_state || []).filter((s) => s.value === 1 && says[s.labels.state]).map(({ labels }) => {
    const of = by(metrics, "grebe_index_items", "part", (l) => l.model === labels.model);
    return `${labels.model} ${of.done.toLocaleString()} of ${(of.done + of.left).toLocaleString()} (${says[labels.state]})`;
  });
  const at = document.getElementById("indexing");
  at.hidden = lines.length === 0;
  at.textContent = `Items computed ahead of requests: ${lines.join("; ")}`;
}

// metricsText reads the metrics, and says on the page why there are none.
async function metricsText() {
  const at = document.getElementById("live-problem");
  try {
    const text = await getText("/metrics");
    at.hidden = true;
    document.getElementById("charts").hidden = false;
    return text;
  } catch (problem) {
    at.textContent = problem.status === 0 ? `The charts stand still: ${problem.message}` : lacking(problem, "The charts", "admin");
    at.hidden = false;
    if (denied(problem)) document.getElementById("charts").hidden = true; // empty charts would say that nothing happened
    throw problem;
  }
}

// next shows what happened between the last reading and this one.
function next(metrics, time) {
  if (before) for (const reader of [show, ...readers]) reader(metrics, before.metrics, (time - before.time) / 1000, time);
  before = { metrics, time };
}

// recall shows what happened before the page was opened, once.
async function recall() {
  if (before) return;
  const { now, readings } = await getJSON("/v1/history");
  const end = performance.now();
  together(() => readings.forEach((r) => next(parse(r.metrics), end - (now - r.time))));
  if (!before) return;
  const since = document.getElementById("since");
  since.textContent = new Date(Date.now() - (now - readings[0].time)).toLocaleString();
  document.getElementById("span-form").hidden = false;
}

async function read() {
  const text = await metricsText();
  await recall();
  const time = performance.now(), metrics = parse(text);
  next(metrics, time);
  indexing(metrics);
  charts.rows.figure.hidden = !metrics.grebe_embed_device_bytes;
  charts.boundary.figure.hidden = charts.shared.figure.hidden = !metrics.grebe_pool_boundary;
  charts.refill.figure.hidden = !metrics.grebe_embed_refill_bytes_total;
  charts.predictions.figure.hidden = !metrics.grebe_predictions_total;
}

export function startLive() {
  document.getElementById("charts").append(...Object.values(charts).map((c) => c.figure));
  document.getElementById("span").addEventListener("change", (event) => choose(Number(event.target.value)));
  const step = async () => {
    if (!document.hidden) await read().catch(explained); // the header says what is wrong
    setTimeout(step, EVERY);
  };
  step();
}
