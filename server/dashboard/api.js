// Talks to the server's own API, with the key that the reader gave, if any. The key is kept for this
// tab alone.

let key = sessionStorage.getItem("grebe-key") || "";
const form = document.getElementById("key-form");

form.addEventListener("submit", (event) => {
  event.preventDefault();
  key = document.getElementById("key").value.trim();
  sessionStorage.setItem("grebe-key", key);
  form.hidden = true;
  document.dispatchEvent(new Event("key"));
});

// hasKey reports whether requests carry a key.
export function hasKey() {
  return key !== "";
}

// Problem is an error that the server explained.
export class Problem extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// explained reports errors on the console that the server did not explain: they are mistakes of this page.
export function explained(problem) {
  if (!(problem instanceof Problem)) reportError(problem);
}

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = "Bearer " + key;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw new Problem(0, "unreachable", "the server does not answer");
  }
  if (response.ok) return response;
  if (denied(response)) form.hidden = false;
  const body = await response.json().catch(() => ({}));
  const told = body.error || {};
  throw new Problem(response.status, told.code || "", told.message || "the server says " + response.status);
}

export async function getText(path) {
  return (await call(path)).text();
}

export async function getJSON(path) {
  return (await call(path)).json();
}

async function sendJSON(method, path, body) {
  return (await call(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();
}

export const postJSON = (path, body) => sendJSON("POST", path, body);
export const putJSON = (path, body) => sendJSON("PUT", path, body);

const PATIENCE = 60_000; // milliseconds

// patiently calls again while the server is busy, loads a model, or does not answer, for up to a minute.
export async function patiently(call) {
  for (const end = performance.now() + PATIENCE; ;) {
    try {
      return await call();
    } catch (problem) {
      if (!(problem instanceof Problem) || ![0, 429, 503, 504].includes(problem.status) || performance.now() > end) throw problem;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

// denied reports whether the reader's key, or that there is none, is the problem.
export const denied = (problem) => problem.status === 401 || problem.status === 403;

// lacking says which role a reader's key lacks to see something; other problems speak for themselves.
export function lacking(problem, what, role) {
  return denied(problem) ? `${what} need a key with the role ${role}: ${problem.message}` : problem.message;
}

// element makes an element: element("td", {class: "number"}, "3").
export function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// scrolls puts something wide into a box that scrolls, also by keyboard.
export function scrolls(label, ...children) {
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const e = document.createElementNS(SVG, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

// short writes a number as people read it: 1.2k, 34M.
export function short(n, unit = "") {
  if (!Number.isFinite(n)) return "–";
  if (unit === " ms" && Math.abs(n) >= 1000) [n, unit] = [n / 1000, " s"];
  const a = Math.abs(n);
  for (const [size, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (a >= size) return (n / size).toPrecision(3) + (unit === "B" ? " " : "") + name + unit;
  }
  return (a >= 100 || Number.isInteger(n) ? n.toFixed(0) : n.toPrecision(2)) + (unit === "B" ? " " : "") + unit;
}

// whole writes out a number of things, such as 9,540.
export function whole(n) {
  return Number(n || 0).toLocaleString("en-US");
}

// counted writes a number of things, such as "1 item" or "2 items".
export function counted(n, one) {
  return `${whole(n)} ${one}${n === 1 ? "" : "s"}`;
}
