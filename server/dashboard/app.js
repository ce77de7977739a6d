// The frame: tabs, the server's state, and which view is open.
import { explained, getJSON } from "./api.js";
import { openCatalog } from "./catalog.js";
import { startFleet, showFleet } from "./fleet.js";
import { startLive } from "./live.js";
import { openPlayground } from "./playground.js";
import { startStory } from "./story.js";

const tabs = [...document.querySelectorAll('[role="tab"]')];
const opens = { playground: openPlayground, catalog: openCatalog, fleet: showFleet };

function show(tab, focus = true) {
  for (const t of tabs) {
    const on = t === tab;
    t.setAttribute("aria-selected", on);
    t.tabIndex = on ? 0 : -1;
    document.getElementById(t.getAttribute("aria-controls")).hidden = !on;
  }
  const view = tab.getAttribute("aria-controls");
  if (focus) tab.focus();
  history.replaceState(null, "", "#" + view);
  opens[view]?.().catch(explained);
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) show(tabs[(i + step + tabs.length) % tabs.length]);
    if (event.key === "Home") show(tabs[0]);
    if (event.key === "End") show(tabs[tabs.length - 1]);
  });
});

async function state() {
  const box = document.getElementById("state");
  let said = "ready", bad = false;
  try {
    await getJSON("/v2/health/ready");
  } catch (problem) {
    said = problem.message;
    bad = true;
  }
  if (box.textContent !== said) box.textContent = said;
  box.toggleAttribute("data-bad", bad);
  setTimeout(state, 3000);
}

const current = () => tabs.find((t) => t.getAttribute("aria-selected") === "true");
document.addEventListener("key", () => show(current(), false));
setInterval(() => { if (current().id === "tab-catalog" && !document.hidden) openCatalog(); }, 5000);
startLive();
if (document.getElementById("fleet")) startFleet(); // else the server belongs to no cluster
state();
startStory().catch(explained);
show(tabs.find((t) => "#" + t.getAttribute("aria-controls") === location.hash) || tabs[0], false);
