// Returns what is wrong with the page for people who use a keyboard, a screen reader or weak eyes. The browser's own
// tree of names is checked beside this, in accessible_test.go.
(() => {
  const wrong = [];
  const seen = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && e.getClientRects().length > 0;
  const all = [...document.querySelectorAll("body *")].filter(seen);
  const say = (e) => `<${e.tagName.toLowerCase()}${e.id ? " id=" + e.id : ""} class="${e.getAttribute("class") || ""}"> ` +
    (e.textContent || "").trim().slice(0, 40);

  // Contrast: 4.5, or 3 for large text.
  const parsed = (text) => {
    const n = (text.match(/[\d.]+/g) || []).map(Number);
    const scale = text.startsWith("color(srgb") ? 255 : 1;
    return [n[0] * scale, n[1] * scale, n[2] * scale, n[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const behind = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(parsed(getComputedStyle(at).backgroundColor));
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    return layers.reverse().reduce((below, l) => over(l, below), dark ? [0, 0, 0] : [255, 255, 255]);
  };
  const luminance = (c) => {
    const [r, g, b] = c.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const e of all) {
    const own = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
    if (!own || e.closest(":disabled") || e.tagName === "OPTION") continue;
    const drawing = e.closest("svg"), style = getComputedStyle(e);
    const below = behind(drawing?.parentElement || e), ink = over(parsed(drawing ? style.fill : style.color), below);
    const [a, b] = [luminance(ink), luminance(below)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && Number(style.fontWeight) >= 700;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) wrong.push(`contrast ${ratio.toFixed(2)}: ${say(e)}`);
  }

  // Headings and landmarks.
  const headings = all.filter((e) => /^H[1-6]$/.test(e.tagName));
  if (headings.filter((e) => e.tagName === "H1").length !== 1) wrong.push("want exactly one h1");
  let level = 0;
  for (const e of headings) {
    const n = Number(e.tagName[1]);
    if (n > level + 1) wrong.push(`heading of level ${n} after one of level ${level}: ${say(e)}`);
    level = n;
  }
  if (document.querySelectorAll("main").length !== 1) wrong.push("want exactly one main");
  if (!document.documentElement.lang || !document.title) wrong.push("the page has no language or no title");

  // References.
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) wrong.push(`id ${id} is there twice`);
  for (const name of ["for", "aria-labelledby", "aria-controls", "aria-describedby", "list"]) {
    for (const e of document.querySelectorAll(`[${name}]`)) {
      for (const id of e.getAttribute(name).split(/\s+/)) {
        if (!ids.includes(id)) wrong.push(`${name} names ${id}, which is not there: ${say(e)}`);
      }
    }
  }

  // Keyboard, touch and width.
  const reached = "a[href], button, input, select, textarea, summary, [tabindex]";
  for (const e of all) {
    const style = getComputedStyle(e);
    const scrolls = /auto|scroll/.test(style.overflowX) && e.scrollWidth > e.clientWidth + 1 ||
      /auto|scroll/.test(style.overflowY) && e.scrollHeight > e.clientHeight + 1;
    if (scrolls && !e.matches(reached) && !e.querySelector(reached)) wrong.push(`cannot be scrolled by keyboard: ${say(e)}`);
    if (e.tabIndex > 0) wrong.push(`tabindex ${e.tabIndex}: ${say(e)}`);
    if (e.matches("button, input:not([type=checkbox]), select, textarea, summary, [role=tab]")) {
      const r = e.getBoundingClientRect();
      if (r.width < 24 || r.height < 24) {
        wrong.push(`${r.width.toFixed(0)} × ${r.height.toFixed(0)} pixels are too small to touch: ${say(e)}`);
      }
    }
    if (e.tagName === "TH" && !e.textContent.trim()) wrong.push(`a head of a table is empty: ${say(e.closest("table"))}`);
    if (e.tagName === "TABLE" && !e.querySelector("th")) wrong.push(`a table has no head: ${say(e)}`);
  }
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    wrong.push(`the page is wider than the window: ${root.scrollWidth} of ${root.clientWidth} pixels`);
  }
  return wrong;
})();
