// The view of the cluster as this server sees it: /v1/cluster, read every second, so that a node's death is seen as it happens.
import { counted, denied, element, explained, getJSON, lacking, short, whole } from "./api.js";
import { Chart } from "./chart.js";
import { eachReading } from "./live.js";
import { by, rates } from "./metrics.js";

const EVERY = 1000;
const REMEMBER = 10 * 60 * 1000; // a node that is gone stays on the page for so long, in milliseconds

const says = {
  ACTIVE: "Its record is in the coordinator.",
  LEASE_LOST: "Its record is missing from the coordinator, and it answers probes. It gets requests.",
  SUSPECT: "Its record is missing, and it does not answer probes. It gets no requests.",
  GONE: "It did not answer for some seconds, and is no longer part of the cluster.",
};

const charts = {
  routed: new Chart({ title: "Requests sent to nodes, per second", stacked: true, calm: true, explain: "By the process that serves this page" }),
  backlog: new Chart({ title: "Backlog", unit: " ms", explain: "Predicted time until a node's queue is empty, of its busiest model" }),
  reasons: new Chart({ title: "Where requests are answered, per second", stacked: true, calm: true, explain: "Here, on another node (there), on a second one because the first failed (again), or here because no node is known (alone)" }),
};

const at = (id) => document.getElementById("fleet-" + id);
const shown = () => !document.getElementById("fleet").hidden;
const cards = new Map(); // by node
const colours = new Map(); // by node, as in the charts
let last = null; // the cluster, and when it was read
let drawn = {}; // what the lists show, to leave them alone while nothing changes

// say sets a text that differs, so that a selection survives.
function say(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

// whenChanged fills an element anew if its content changed.
function whenChanged(id, content, make) {
  const now = JSON.stringify(content);
  if (drawn[id] === now) return;
  drawn[id] = now;
  at(id).replaceChildren(...make());
}

const fields = [
  ["backlog", "backlog", "Predicted time until its queue is empty, of its busiest model"],
  ["rate", "requests/s", "That this page's process sends it"],
  ["failed", "failed", "Requests that this page's process sent it in vain"],
  ["entries", "KV entries", "That this page's process knows of"],
  ["age", "last heard", "Time since the last proof that these entries are there"],
  ["error", "slower by", "Actual minus predicted time of its answers, smoothed"],
];

function card(id) {
  if (cards.has(id)) return cards.get(id);
  colours.set(id, "s" + (colours.size + 1) % 8);
  for (const c of [charts.routed, charts.backlog]) c.names.push(id); // the same colour there
  const c = { name: element("b", { class: colours.get(id) }, id), state: element("span", { class: "state" }), where: element("a"), more: element("span"), values: {} };
  const list = element("dl");
  for (const [key, name, title] of fields) {
    c.values[key] = element("dd");
    list.append(element("div", { title }, element("dt", {}, name), c.values[key]));
  }
  c.list = list;
  c.box = element("article", { class: "node" }, element("h2", {}, c.name, c.state), element("p", { class: "note" }, c.where, c.more), list);
  cards.set(id, c);
  return c;
}

const milliseconds = (v) => (v === null ? "–" : short(Math.round(v * 10) / 10, " ms"));
const most = (models, key) => (models.length ? Math.max(...models.map((m) => m[key])) : null);

// describe brings a node's card up to date.
function describe(c, node, self, perSecond) {
  const models = node.models || [], own = node.id === self, gone = node.state === "GONE";
  const marks = [node.state, ...(node.drained ? ["drained"] : []), ...(node.ejected ? ["ejected"] : []), ...(node.refused ? ["refused"] : [])];
  c.box.dataset.state = gone || node.refused || node.state === "SUSPECT" ? "bad" : node.state !== "ACTIVE" || node.drained || node.ejected ? "odd" : "good";
  say(c.state, marks.join(" · "));
  c.state.title = says[node.state] + (node.drained ? " Drained: it gets no new requests." : "") + (node.ejected ? " Slower than predicted: it gets probes alone." : "") + (node.refused ? " Refused: " + node.refused + "." : "");
  c.list.hidden = c.where.hidden = gone;
  if (gone) {
    say(c.more, "left at " + clock(node.at) + "; it comes back when it is started again");
    return;
  }
  say(c.where, node.api || "");
  if (node.api) c.where.href = location.protocol + "//" + node.api + "/#fleet";
  say(c.more, [own && "this page", (node.roles || []).join(", "), node.zone, node.numerics].filter(Boolean).map((t) => " · " + t).join(""));
  const known = models.length > 0 && models.every((m) => m.known);
  const values = {
    backlog: milliseconds(most(models, "backlog_ms")),
    rate: perSecond === undefined ? "–" : short(Math.round(perSecond * 10) / 10),
    failed: whole(node.failed),
    entries: models.length && (known || own) ? whole(models.reduce((a, m) => a + (m.shares_with ? 0 : m.entries), 0)) : models.length ? "unknown" : "–",
    age: models.length && models.every((m) => m.age_ms >= 0) ? milliseconds(most(models, "age_ms")) + " ago" : "–",
    error: milliseconds(most(models, "error_ms")),
  };
  for (const [key] of fields) say(c.values[key], values[key]);
  c.box.title = models.map((m) => `${m.name} ${m.version}: backlog ${milliseconds(m.backlog_ms)}, ${whole(m.entries)} entries`).join("\n");
}

// departed returns nodes that left not long ago.
function departed(cluster) {
  const out = new Map(), present = new Set(cluster.nodes.map((n) => n.id));
  for (const c of cluster.changes) {
    if (present.has(c.node) || out.has(c.node)) continue; // the newest change comes first
    if (c.to === "GONE" && Date.now() - Date.parse(c.at) < REMEMBER) out.set(c.node, { id: c.node, state: "GONE", at: c.at });
    present.add(c.node);
  }
  return [...out.values()];
}

function showNodes(cluster, perSecond) {
  const all = [...cluster.nodes, ...departed(cluster)].sort((a, b) => (a.id < b.id ? -1 : 1));
  const boxes = all.map((n) => {
    const c = card(n.id);
    describe(c, n, cluster.self, perSecond[n.id]);
    return c.box;
  });
  const box = at("nodes");
  if (boxes.length !== box.children.length || boxes.some((b, i) => box.children[i] !== b)) box.replaceChildren(...boxes);
}

const clock = (time) => new Date(time).toLocaleTimeString("en-GB") + "." + time.replace(/^[^.]*\.?|Z$/g, "").slice(0, 3).padEnd(3, "0");

function showChanges(cluster) {
  whenChanged("changes", cluster.changes, () => cluster.changes.slice(0, 20).map((c) => element("li", {},
    element("time", { datetime: c.at }, clock(c.at)), element("b", { class: colours.get(c.node) || "" }, c.node),
    element("span", { "data-to": c.to }, c.from ? `${c.from} → ${c.to}` : `joined, ${c.to}`))));
}

// showTransfers shows who sent blocks to whom: a row sent, a column received.
function showTransfers(cluster) {
  const moved = cluster.transfers;
  whenChanged("transfers", [moved, cluster.nodes.map((n) => n.id)], () => {
    if (!moved.some((t) => t.blocks || t.late)) return [element("p", { class: "note" }, "none yet")];
    const names = [...new Set([...cluster.nodes.map((n) => n.id), ...moved.flatMap((t) => [t.from, t.to])])].sort();
    const top = Math.max(...moved.map((t) => t.bytes));
    const cell = (from, to) => {
      const t = moved.find((t) => t.from === from && t.to === to);
      if (!t || !(t.blocks || t.late)) return element("td", { class: "number note" }, from === to ? "" : "·");
      return element("td", { class: "number", "data-much": Math.ceil(4 * t.bytes / Math.max(top, 1)),
        title: `${whole(t.blocks)} blocks` + (t.rate_mb_s ? ` at ${short(t.rate_mb_s)} MB/s, round trip ${milliseconds(t.trip_ms)}` : "") +
          (t.late ? `, ${whole(t.late)} too late and computed` : "") },
      short(t.bytes, "B"), ...(t.late ? [element("small", {}, ` ${whole(t.late)} late`)] : []));
    };
    return [element("table", { class: "matrix" },
      element("thead", {}, element("tr", {}, element("th", {}, "from \\ to"), ...names.map((n) => element("th", { class: "number" }, n)))),
      element("tbody", {}, ...names.map((from) => element("tr", {}, element("th", {}, from), ...names.map((to) => cell(from, to)))))),
    element("p", { class: "note" }, `What ${cluster.self} fetched and sent. The other nodes' pages have the rest.`)];
  });
}

function showPlacement(cluster) {
  const p = cluster.placement;
  whenChanged("placement", p || null, () => {
    if (!p) return [element("p", { class: "note" }, "no map is published: every node may hold every item")];
    const top = Math.max(1, ...p.nodes.map((n) => n.items)), sized = p.nodes.some((n) => n.bytes);
    const kept = p.nodes.some((n) => n.gone) ? "; a node that is gone keeps its share for some 30 s" : "";
    return [element("p", { class: "note" }, `${p.kind}, epoch ${p.epoch}${p.hot ? `, ${whole(p.hot)} hot items on all nodes` : ""}${p.moved_bytes ? `, ${short(p.moved_bytes, "B")} to be filled` : ""}${kept}`),
      element("table", {}, element("thead", {}, element("tr", {}, element("th", {}, "node"), element("th", {}, "items"), ...(sized ? [element("th", { class: "number" }, "size")] : []))),
        element("tbody", {}, ...p.nodes.map((n) => element("tr", {}, element("td", {}, n.gone ? n.id + " (gone)" : n.id),
          element("td", {}, element("meter", { max: top, value: n.items, "aria-hidden": "true" }), whole(n.items)), ...(sized ? [element("td", { class: "number" }, n.bytes ? short(n.bytes, "B") : "")] : [])))))];
  });
}

function showSummary(cluster) {
  const active = cluster.nodes.filter((n) => n.state === "ACTIVE").length;
  say(at("summary"), `Cluster ${cluster.name}: ${active} of ${counted(cluster.nodes.length, "node")} active · coordinator ${cluster.coordinator} · routing ${cluster.routing}`);
  const away = cluster.coordinator !== "up";
  at("problem").hidden = !away;
  if (away) say(at("problem"), "The coordinator does not answer. Requests are served; no node joins or leaves until it is back.");
}

async function read() {
  const got = await getJSON("/v1/cluster");
  at("charts").hidden = false;
  const cluster = { ...got, nodes: got.nodes || [], changes: got.changes || [], transfers: got.transfers || [] };
  const time = performance.now();
  const routed = Object.fromEntries(cluster.nodes.map((n) => [n.id, n.routed]));
  for (const n of cluster.nodes) card(n.id);
  const perSecond = last ? rates(routed, last.routed, (time - last.time) / 1000) : {};
  if (last) charts.routed.add(time, perSecond);
  charts.backlog.add(time, Object.fromEntries(cluster.nodes.map((n) => [n.id, most(n.models || [], "backlog_ms") ?? NaN])));
  last = { cluster, routed, perSecond, time };
}

// showFleet draws what was read last.
export async function showFleet() {
  if (!last) return;
  const { cluster, perSecond } = last;
  showSummary(cluster);
  showNodes(cluster, perSecond);
  showChanges(cluster);
  showTransfers(cluster);
  showPlacement(cluster);
}

export function startFleet() {
  at("charts").prepend(charts.routed.figure, charts.backlog.figure);
  at("changes").parentElement.after(charts.reasons.figure);
  charts.reasons.figure.hidden = true;
  eachReading((now, old, seconds, time) => {
    charts.reasons.figure.hidden = !now.grebe_route_total;
    charts.reasons.add(time, rates(by(now, "grebe_route_total", "reason"), by(old, "grebe_route_total", "reason"), seconds));
  });
  const step = async () => {
    if (!document.hidden) {
      try {
        await read();
        if (shown()) await showFleet();
      } catch (problem) {
        explained(problem);
        at("problem").hidden = false;
        if (denied(problem)) at("charts").hidden = true;
        say(at("problem"), denied(problem) ? lacking(problem, "The nodes", "admin")
          : `${problem.message}. What is below is old. The other nodes have this page too: follow their addresses.`);
      }
    }
    setTimeout(step, EVERY);
  };
  step();
}
