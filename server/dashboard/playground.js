// The view in which a person asks: pick a user, ask in two ways, see where the work went.
import { element, explained, getJSON, postJSON, short, svg } from "./api.js";

const user = document.getElementById("user");
const howMany = document.getElementById("how-many");
const sources = ["computed", "device", "host", "disk", "peer", "prototype"];
const texts = new Map(); // of items, by id
let candidates = [];

const deadline = 30000; // milliseconds; a person waits, and a cold model may be slow

async function textOf(id) {
  if (!texts.has(id)) {
    const item = await getJSON("/v1/items/" + encodeURIComponent(id)).catch(() => ({}));
    texts.set(id, item.text || Object.values(item.attributes || {}).flat().join(", ") || "");
  }
  return texts.get(id);
}

async function suggest() {
  const { ids } = await getJSON("/v1/users?limit=50&prefix=" + encodeURIComponent(user.value.trim()));
  document.getElementById("users").replaceChildren(...ids.map((id) => element("option", { value: id })));
  return ids;
}

async function showHistory() {
  const list = document.querySelector("#history ol"), summary = document.querySelector("#history summary");
  const known = await getJSON("/v1/users/" + encodeURIComponent(user.value.trim())).catch(() => null);
  if (!known) {
    summary.textContent = "No such user";
    list.replaceChildren();
    return;
  }
  const past = known.history?.length ? known.history : (known.events || []).map((e) => e.item);
  summary.textContent = `History: ${past.length} items${past.length > 30 ? ", the last 30" : ""}`;
  const last = past.slice(-30);
  list.setAttribute("start", past.length - last.length + 1);
  const lines = await Promise.all(last.map(textOf));
  list.replaceChildren(...last.map((id, i) => element("li", {}, lines[i] || id)));
  if (known.text && !past.length) list.replaceChildren(element("li", {}, known.text));
}

// draw has the server pick candidates.
async function draw() {
  const n = Math.min(1000, Math.max(1, Number(howMany.value) || 50));
  const { ids } = await getJSON("/v1/items?random&limit=" + n);
  candidates = ids;
}

// strip draws a prompt, each token coloured by where its KV came from.
function strip(parts) {
  const total = parts.reduce((n, p) => n + p.tokens, 0);
  const out = svg("svg", { class: "strip", viewBox: `0 0 ${total} 10`, preserveAspectRatio: "none", role: "img" });
  const edge = total / 700;
  let at = 0;
  const said = {};
  for (const p of parts) {
    const source = p.source || "host";
    for (const [name, from, n] of [[source, 0, p.cached], ["computed", p.cached, p.tokens - p.cached]]) {
      if (n <= 0) continue;
      said[name] = (said[name] || 0) + n;
      const box = svg("rect", { class: "s" + sources.indexOf(name), x: at + from, y: 0, width: n, height: 10 });
      box.append(svg("title", {}, `${p.kind}${p.id ? " " + p.id : ""}: ${n} tokens, ${name}`));
      out.append(box);
    }
    at += p.tokens;
    if (p.tokens > 3 * edge) out.append(svg("rect", { class: "edge", x: at - edge / 2, y: 0, width: edge, height: 10 }));
  }
  out.setAttribute("aria-label", "Prompt tokens: " + Object.entries(said).map(([k, v]) => `${v} ${k}`).join(", "));
  return out;
}

// partsOf tells the parts of a generation's prompt, of which what is cached comes first.
function partsOf(usage) {
  let left = usage.cached_tokens;
  const source = sources.find((s) => usage.by_source[s] > 0) || "host";
  return [["user", usage.user_tokens], ["instruction", usage.instruction_tokens]].filter(([, n]) => n > 0).map(([kind, tokens]) => {
    const cached = Math.min(left, tokens);
    left -= cached;
    return { kind, tokens, cached, source };
  });
}

async function results(answer, isRank) {
  const rows = answer.results.slice(0, 20);
  const names = await Promise.all(rows.map((r) => textOf(r.id)));
  const best = rows.length ? rows[0].score : 1;
  return element("table", {},
    element("thead", {}, element("tr", {}, element("th", {}, ""), element("th", {}, "Item"), element("th", { class: "number" }, isRank ? "Score" : "Log-probability"))),
    element("tbody", {}, ...rows.map((r, i) => {
      const value = isRank ? r.score / Math.max(best, 1e-12) : Math.exp(r.score - best);
      return element("tr", {}, element("td", {}, String(i + 1)), element("td", { title: r.id }, names[i] || r.id),
        element("td", { class: "number" }, element("meter", { min: 0, max: 1, value, "aria-hidden": "true" }), " " + (isRank ? r.score.toPrecision(3) : r.score.toFixed(2))));
    })));
}

async function ask(form, box) {
  const isRank = form.op.value === "rank";
  const request = { user: { id: user.value.trim() }, model: form.model.value, deadline_ms: deadline };
  box.replaceChildren(element("p", { class: "note" }, "asking…"));
  try {
    let answer;
    if (isRank) {
      if (!candidates.length) await draw();
      answer = await postJSON("/v1/rank", { ...request, candidates: candidates.map((id) => ({ id })), top_k: 20, prefix: form.prefix.value, explain: true });
    } else {
      answer = await postJSON("/v1/recommend", { ...request, n: 20, beam_width: Number(form.beam.value) || 128, exclude_seen: true });
    }
    const u = answer.usage, t = answer.timing_ms;
    const what = isRank ? `prefix ${answer.prefix}, ${candidates.length} candidates` : `${answer.results.length} items${answer.short ? " (fewer exist)" : ""}, catalog version ${answer.catalog_version}`;
    box.replaceChildren(
      element("p", {}, element("b", {}, `${t.total.toFixed(1)} ms`), ` (queue ${t.queue.toFixed(1)}, fetch ${t.fetch.toFixed(1)}, compute ${t.compute.toFixed(1)}) · ${what}`),
      strip(answer.parts || partsOf(u)),
      element("p", { class: "note" }, `${short(u.prompt_tokens)} prompt tokens: ${short(u.computed_tokens)} computed, ${short(u.cached_tokens)} reused${u.beam_tokens ? `, and ${short(u.beam_tokens)} for beams` : ""}`),
      element("div", { class: "scroll" }, await results(answer, isRank)));
  } catch (problem) {
    explained(problem);
    box.replaceChildren(element("p", { class: "problem", role: "alert" }, problem.message));
  }
}

function openSide(side, models) {
  side.append(document.getElementById("side").content.cloneNode(true));
  side.querySelector("h2").textContent = "Way " + side.dataset.side;
  const form = side.querySelector("form");
  form.model.append(...models.map((m) => element("option", {}, m.id)));
  const fit = () => {
    side.querySelector(".of-rank").hidden = form.op.value !== "rank";
    side.querySelector(".of-recommend").hidden = form.op.value !== "recommend";
  };
  form.op.addEventListener("change", fit);
  if (side.dataset.side === "B") form.prefix.value = "none";
  fit();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form, side.querySelector(".answer"));
  });
}

let opened = false;

export async function openPlayground() {
  if (opened) return;
  const { data } = await getJSON("/v1/models");
  opened = true;
  for (const side of document.querySelectorAll(".side")) openSide(side, data);
  document.querySelector(".legend").replaceChildren(...sources.map((s, i) => element("span", { class: "s" + i }, s)));
  user.addEventListener("input", () => suggest().catch(() => {}));
  user.addEventListener("change", () => showHistory());
  document.getElementById("draw").addEventListener("click", () => draw().catch(() => {}));
  howMany.addEventListener("change", () => draw().catch(() => {}));
  const ids = await suggest();
  if (!user.value && ids.length) user.value = ids[0];
  await Promise.all([showHistory(), draw()]);
}
