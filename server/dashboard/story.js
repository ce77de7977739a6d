// A story in three clicks: rank, ask again and see what is reused, change the user and see the answer change.
import { element, explained, getJSON, patiently, postJSON, Problem, putJSON, scrolls, whole } from "./api.js";
import { legend, strip, textOf } from "./playground.js";

const OFFERS = 8;
const story = document.getElementById("story");
const at = (name) => document.getElementById("story-" + name);
const steps = ["rank", "again", "change", "over"];

let offers = []; // ids of the candidates
let original = null; // the user before the story changed them
let answers = [];

// ready lets people click one step and no other; none: the story is busy.
function ready(step) {
  for (const s of steps) at(s).disabled = s !== step && !(s === "over" && step && answers.length > 0);
  for (const s of ["model", "user"]) at(s).disabled = answers.length > 0;
}

async function ask() {
  const answer = await patiently(() => postJSON("/v1/rank", {
    model: at("model").value, user: { id: at("user").value }, candidates: offers.map((id) => ({ id })),
    prefix: "user", explain: true, deadline_ms: 60000, // the same order each time: scores can be compared
  }));
  answers.push(answer);
  return answer;
}

const placeOf = (answer, id) => answer.results.findIndex((r) => r.id === id) + 1;

// show writes what an answer says, beside the one before it.
async function show(says) {
  const answer = answers.at(-1), old = answers.length > 1 ? answers.at(-2) : null;
  const names = await Promise.all(answer.results.map((r) => textOf(r.id)));
  const heads = ["Place", ...(old ? ["Before"] : []), "Offer"].map((h) => element("th", {}, h));
  const rows = answer.results.map((r, i) => {
    const before = old ? placeOf(old, r.id) : 0;
    return element("tr", before > i + 1 ? { class: "up" } : {}, element("td", {}, String(i + 1)),
      ...(old ? [element("td", {}, String(before) + (before > i + 1 ? " ▲" : before < i + 1 ? " ▼" : ""))] : []),
      element("td", { title: r.id }, names[i] || r.id), element("td", { class: "number" }, r.score.toPrecision(3)));
  });
  const u = answer.usage;
  at("says").replaceChildren(
    element("p", {}, says),
    element("p", {}, element("b", {}, `${answer.timing_ms.total.toFixed(1)} ms`),
      ` · ${whole(u.computed_tokens)} tokens computed, ${whole(u.cached_tokens)} reused`),
    strip(answer.parts),
    element("p", { class: "legend" }, ...legend()),
    scrolls("Ranking of the offers", element("table", {},
      element("thead", {}, element("tr", {}, ...heads, element("th", { class: "number" }, "Score"))), element("tbody", {}, ...rows))));
}

// bought returns a user who has bought an item now, in each of the forms in which models read a user.
function bought(user, id, text) {
  const out = structuredClone(user);
  const day = new Date().toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });
  if (out.text) out.text = `${out.text.trimEnd()}\n\n${day}\n- ${text} 5/5 Love it!\n`;
  if (out.history) out.history.push(id);
  const last = out.events?.at(-1);
  if (last) out.events.push({ item: id, time: Number(last.time) + 86400, action: 5 });
  return out;
}

const play = {
  async rank() {
    await ask();
    await show(`The model read ${at("user").value}'s history and ${offers.length} offers in one prompt. The strip is this prompt, coloured by where its tokens came from.`);
    return "again";
  },
  async again() {
    const [first] = answers, { usage, timing_ms: time } = await ask();
    await show(`The same question again: ${whole(usage.cached_tokens)} of ${whole(usage.prompt_tokens)} tokens were reused, so it took ` +
      `${time.total.toFixed(1)} ms instead of ${first.timing_ms.total.toFixed(1)}. The scores are the same.`);
    const last = answers.at(-1).results.at(-1).id;
    at("change").textContent = `3. ${at("user").value} buys “${await textOf(last) || last}”`;
    return "change";
  },
  async change() {
    const name = at("user").value, id = answers.at(-1).results.at(-1).id, before = answers.at(-1).results.length;
    original ||= await getJSON("/v1/users/" + encodeURIComponent(name));
    await patiently(async () => putJSON("/v1/users/" + encodeURIComponent(name), bought(original, id, await textOf(id))));
    const answer = await ask();
    const place = placeOf(answer, id);
    await show(`${name} bought the last offer. ${place < before ? `It moved from place ${before} to ${place}` : "Its score changed"}: ` +
      `the model read the new line. What ${name} did before was reused.`);
    return "over";
  },
  async over() {
    if (original) await patiently(() => putJSON("/v1/users/" + encodeURIComponent(original.id), original));
    original = null;
    answers = [];
    at("change").textContent = "3. Change the user";
    at("says").replaceChildren();
    return "rank";
  },
};

async function click(step) {
  ready(null);
  try {
    ready(await play[step]());
  } catch (problem) {
    explained(problem);
    at("says").replaceChildren(element("p", { class: "problem", role: "alert" }, problem.message));
    ready(step);
  }
}

// startStory opens the story, if this server has one.
export async function startStory() {
  if (!story) return;
  for (const s of steps) at(s).addEventListener("click", () => click(s));
  const [{ data }, users, items] = await patiently(() => Promise.all([
    getJSON("/v1/models"), getJSON("/v1/users?limit=50"), getJSON(`/v1/items?random&limit=${OFFERS}`)]));
  if (!data.length || !users.ids.length || !items.ids.length) throw new Problem(0, "story", "the story needs a model, a user and items");
  offers = items.ids;
  at("model").append(...data.map((m) => element("option", {}, m.id)));
  at("user").append(...users.ids.map((id) => element("option", {}, id)));
  ready("rank");
  story.hidden = false;
}
