// The view in which a person asks: pick a user, ask in two ways, see where the work went.
import { counted, element, explained, getJSON, lacking, postJSON, Problem, scrolls, short, svg } from "./api.js";
import { commands } from "./command.js";

const user = document.getElementById("user");
const userText = document.getElementById("user-text");
const ownCandidates = document.getElementById("own-candidates");
const howMany = document.getElementById("how-many");
const sources = ["computed", "device", "host", "disk", "peer", "prototype"];
const texts = new Map(); // of items, by id
let candidates = [];

const deadline = 30000; // milliseconds; a person waits, and a cold model may be slow

export async function textOf(id) {
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
    summary.textContent = "No such user: choose another id, or describe one below";
    list.replaceChildren();
    return;
  }
  const past = known.history?.length ? known.history : (known.events || []).map((e) => e.item);
  summary.textContent = `History: ${counted(past.length, "item")}${past.length > 30 ? ", the last 30" : ""}`;
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

// legend returns what the colours of a strip mean.
export function legend() {
  return sources.map((s, i) => element("span", { class: "s" + i }, s));
}

// strip draws a prompt, each token coloured by where its KV came from.
export function strip(parts) {
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

async function results(answer, isRank, request) {
  const rows = answer.results;
  const own = (index) => request.candidates?.[index]?.text ?? "";
  const names = await Promise.all(rows.map((r) => (r.id ? textOf(r.id) : "")));
  const best = rows.length ? rows[0].score : 1;
  return element("table", {},
    element("thead", {}, element("tr", {}, element("th", {}, "Place"), element("th", {}, "Item"), element("th", { class: "number" }, isRank ? "Score" : "Log-probability"))),
    element("tbody", {}, ...rows.map((r, i) => {
      const value = isRank ? r.score / Math.max(best, 1e-12) : Math.exp(r.score - best);
      return element("tr", {}, element("td", {}, String(i + 1)), element("td", { title: r.id }, names[i] || r.id || own(r.index)),
        element("td", { class: "number" }, element("meter", { min: 0, max: 1, value, "aria-hidden": "true" }), " " + (isRank ? r.score.toPrecision(3) : r.score.toFixed(2))));
    })));
}

// typed returns the candidates that a person typed: ids, and words in quotes, one per line.
function typed() {
  const lines = ownCandidates.value.split("\n").map((l) => l.trim()).filter(Boolean);
  return lines.map((l) => (/^".*"$/.test(l) ? { text: l.slice(1, -1) } : { id: l }));
}

const listed = (text) => text.split(",").map((s) => s.trim()).filter(Boolean);

// filterOf reads attribute=value, attribute=value: values of one attribute are alternatives.
function filterOf(text) {
  const out = {};
  for (const part of listed(text)) {
    const at = part.indexOf("=");
    if (at < 1 || at === part.length - 1) throw new Problem(0, "filter", `the filter ${part} is not attribute=value`);
    (out[part.slice(0, at).trim()] ||= []).push(part.slice(at + 1).trim());
  }
  return out;
}

// requestOf returns the request that a form describes, and where to send it.
async function requestOf(form) {
  const words = userText.value.trim();
  const common = { user: words ? { text: words } : { id: user.value.trim() }, model: form.model.value, deadline_ms: deadline };
  if (form.op.value === "rank") {
    let asked = typed();
    if (!asked.length) {
      if (!candidates.length) await draw();
      asked = candidates.map((id) => ({ id }));
    }
    return ["/v1/rank", { ...common, candidates: asked, top_k: Number(form.top.value) || 20, prefix: form.prefix.value, explain: true }];
  }
  const request = { ...common, n: Number(form.n.value) || 20, beam_width: Number(form.beam.value) || 128, exclude_seen: form.seen.checked, explain: true };
  const filter = filterOf(form.filter.value), exclude = listed(form.exclude.value);
  if (Object.keys(filter).length) request.filter = filter;
  if (exclude.length) request.exclude = exclude;
  return ["/v1/recommend", request];
}

async function ask(form, box) {
  const isRank = form.op.value === "rank";
  box.replaceChildren(element("p", { class: "note" }, "asking…"));
  try {
    const [path, request] = await requestOf(form);
    const answer = await postJSON(path, request);
    const u = answer.usage, t = answer.timing_ms;
    const what = isRank ? `prefix ${answer.prefix}, ${counted(request.candidates.length, "candidate")}` : `${counted(answer.results.length, "item")}${answer.short ? " (fewer than asked for)" : ""}, catalog version ${answer.catalog_version}`;
    box.replaceChildren(
      element("p", {}, element("b", {}, `${t.total.toFixed(1)} ms`), ` (queue ${t.queue.toFixed(1)}, fetch ${t.fetch.toFixed(1)}, compute ${t.compute.toFixed(1)}) · ${what}`),
      strip(answer.parts || []),
      element("p", { class: "note" }, `${short(u.prompt_tokens)} prompt tokens: ${short(u.computed_tokens)} computed, ${short(u.cached_tokens)} reused${u.beam_tokens ? `, and ${short(u.beam_tokens)} for beams` : ""}`),
      scrolls(`Results of way ${box.parentElement.dataset.side}`, await results(answer, isRank, request)),
      commands(path, request));
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
    for (const kind of ["rank", "recommend"]) {
      for (const part of side.querySelectorAll(".of-" + kind)) part.hidden = form.op.value !== kind;
    }
  };
  form.op.addEventListener("change", fit);
  if (side.dataset.side === "B") form.prefix.value = "none";
  fit();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form, side.querySelector(".answer"));
  });
}

// say explains why there is nothing to choose. Who knows ids can still ask.
function say(problem) {
  explained(problem);
  const box = document.getElementById("playground-problem");
  box.textContent = lacking(problem, "Lists of users and items", "catalog") + ". Type ids of your own below.";
  box.hidden = false;
  document.getElementById("own").open = true;
}

// fill offers a user and candidates.
async function fill() {
  try {
    const ids = await suggest();
    if (!ids.length) document.getElementById("own").open = true; // nobody to choose
    if (!user.value && ids.length) user.value = ids[0];
    await Promise.all([showHistory(), draw()]);
    document.getElementById("playground-problem").hidden = true;
  } catch (problem) {
    say(problem);
  }
}

let opened = false;

export async function openPlayground() {
  const box = document.getElementById("playground-problem");
  if (opened) return box.hidden ? undefined : fill(); // the reader may have another key now
  const { data } = await getJSON("/v1/models").catch((problem) => {
    box.textContent = lacking(problem, "Models", "serve");
    box.hidden = false;
    throw problem;
  });
  opened = true;
  box.hidden = true;
  for (const side of document.querySelectorAll(".side")) openSide(side, data);
  document.querySelector("#playground .legend").replaceChildren(...legend());
  user.addEventListener("input", () => suggest().catch(() => {}));
  user.addEventListener("change", () => showHistory());
  document.getElementById("draw").addEventListener("click", () => draw().catch(say));
  howMany.addEventListener("change", () => draw().catch(say));
  await fill();
}
