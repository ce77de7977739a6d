// The view of the catalog and the models: sizes, versions, checkpoints and their reloads, what models generate from it, what is asked for most.
import { counted, element, explained, getJSON, getText, lacking, scrolls, short, whole } from "./api.js";
import { parse, sum } from "./metrics.js";

function table(caption, heads, rows, wide = "", empty = "None yet.") {
  return element("div", { class: "card " + wide }, element("h2", {}, caption),
    rows.length ? scrolls(caption, element("table", {},
      element("thead", {}, element("tr", {}, ...heads.map((h) => element("th", { class: h[1] || "" }, h[0])))),
      element("tbody", {}, ...rows.map((r) => element("tr", {}, ...r.map((c, i) => element("td", { class: heads[i][1] || "" }, String(c))))))))
      : element("p", { class: "note" }, empty));
}

const number = "number";

function age(seconds) {
  if (seconds < 90) return Math.round(seconds) + " s";
  if (seconds < 5400) return Math.round(seconds / 60) + " min";
  if (seconds < 129600) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " days";
}

function entries(metrics) {
  const rows = [];
  for (const { labels, value } of metrics.grebe_kv_entries || []) {
    const bytes = sum(metrics, "grebe_kv_bytes", (l) => l.kind === labels.kind && l.tier === labels.tier);
    if (value > 0) rows.push([labels.kind, labels.tier, whole(value), short(bytes, "B")]);
  }
  return rows.sort();
}

// reload says what a model's reload is at, or how the last one ended.
function reload(r) {
  if (!r) return "never reloaded";
  const took = " after " + age(r.seconds);
  if (r.state === "done") return "reloaded, " + counted(r.warmed_items || 0, "item") + " warmed," + took;
  if (r.state === "failed" || r.state === "rolled_back") return r.state.replace("_", " ") + took + ": " + r.error;
  return r.state + ", " + Math.round(100 * r.progress) + " %";
}

const over = (r) => !r || ["done", "failed", "rolled_back"].includes(r.state);

export async function openCatalog() {
  const body = document.getElementById("catalog-body");
  try {
    const models = await getJSON("/v1/models").then((m) => m.data).catch(() => []);
    const c = await getJSON("/v1/catalog");
    let denied = null;
    const hot = await getJSON("/v1/hot").catch((problem) => { denied = problem; });
    const metrics = await getText("/metrics").then(parse).catch(() => ({}));
    const cards = [
      table("Models", [["model"], ["architecture"], ["checkpoint"], ["loaded for", number], ["reload"]],
        models.map((m) => [m.id, m.architecture, m.version || "", age(Date.now() / 1000 - m.created), reload(m.reload)]), "wide"),
      table("Catalog", [["what"], ["value", number]], [["items", whole(c.items)], ["users", whole(c.users)], ["version", c.version],
        ["memory", short(c.memory_bytes, "B")], ["kept on disk", c.durable ? "yes" : "no"]]),
      table("What models generate from", [["model"], ["version"], ["items", number], ["left out", number], ["age", number], ["follows the catalog"]],
        (c.models || []).map((m) => [m.model, m.version, whole(m.items), whole(m.skipped), age(m.age_seconds), m.pinned ? "no, pinned" : "yes"]), "",
        "No model generates items. Give items codes with grebe codes, and a model codes in its configuration."),
      table("Versions that can be activated", [["version"], ["items", number], ["age", number], ["used by"]],
        (c.versions || []).map((v) => [v.version, whole(v.items), age(v.age_seconds), (v.models || []).join(", ")])),
      table("Cached keys and values, by place", [["kind"], ["place"], ["entries", number], ["size", number]], entries(metrics), "",
        "Nothing is cached yet. Send a request, or run grebe index."),
    ];
    if (hot) {
      cards.push(table("Items asked for most", [["item"], ["requests", number]], hot.items.map((i) => [i.text || i.id, whole(i.count)])));
      cards.push(table(hot.user_ids === "shown" ? "Users asked for most" : "Users asked for most (ids hidden)", [["user"], ["requests", number]], hot.users.map((u) => [u.id, whole(u.count)])));
    }
    if (denied) {
      cards.push(element("p", { class: "note wide" }, lacking(denied, "What is asked for most, and what is cached,", "admin")));
    }
    body.className = "grid";
    body.replaceChildren(...cards);
    if (!models.every((m) => over(m.reload))) setTimeout(() => body.closest("[hidden]") || openCatalog(), 2000);
  } catch (problem) {
    explained(problem);
    body.replaceChildren(element("p", { class: "problem", role: "alert" }, lacking(problem, "The catalog's numbers", "catalog")));
  }
}

// find lists items and users that match what a person typed.
async function find(text) {
  const at = document.getElementById("found");
  if (!text) return at.replaceChildren();
  try {
    const [items, users] = await Promise.all([
      getJSON("/v1/items?limit=20&q=" + encodeURIComponent(text)), getJSON("/v1/users?limit=20&prefix=" + encodeURIComponent(text)),
    ]);
    const more = (found) => (found.more ? ", the first 20" : "");
    at.replaceChildren(element("div", { class: "grid" },
      table("Items" + more(items), [["id"], ["text"]], (items.items || []).map((i) => [i.id, i.text || ""]), "", "No item has all these words."),
      table("Users" + more(users), [["id"]], users.ids.map((id) => [id]), "", "No user's id begins so.")));
  } catch (problem) {
    explained(problem);
    at.replaceChildren(element("p", { class: "problem", role: "alert" }, lacking(problem, "Items and users", "catalog")));
  }
}

document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  find(document.getElementById("find-text").value.trim());
});
