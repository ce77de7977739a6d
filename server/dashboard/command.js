// Writes a request of the playground as a command that a person can run elsewhere.
import { element, hasKey } from "./api.js";

// curl writes a request for a POSIX shell.
export function curl(path, request) {
  const quoted = "'" + JSON.stringify(request).replaceAll("'", `'\\''`) + "'";
  const auth = hasKey() ? ` -H "Authorization: Bearer $GREBE_API_KEY"` : "";
  return `curl -sS ${location.origin}${path}${auth} -d ${quoted}`;
}

// literal writes a JSON value as Python does.
function literal(v) {
  if (v === null) return "None";
  if (typeof v === "boolean") return v ? "True" : "False";
  if (Array.isArray(v)) return "[" + v.map(literal).join(", ") + "]";
  if (typeof v === "object") return "{" + Object.entries(v).map(([k, x]) => JSON.stringify(k) + ": " + literal(x)).join(", ") + "}";
  return JSON.stringify(v);
}

// python writes a request for the client in clients/python.
export function python(path, request) {
  const { user, candidates, ...fields } = request;
  const given = [literal(user.id ?? user)];
  if (candidates) given.push(literal(candidates.map((c) => (Object.keys(c).length === 1 && c.id) || c)));
  for (const [k, v] of Object.entries(fields)) given.push(`${k}=${literal(v)}`);
  const key = hasKey() ? `, key=os.environ["GREBE_API_KEY"]` : "";
  return `import grebe${key ? ", os" : ""}\n\nclient = grebe.Client(${JSON.stringify(location.origin)}${key})\n` +
    `print(client.${path.split("/").pop()}(${given.join(", ")}))`;
}

// commands shows a request as commands, each with a button that copies it.
export function commands(path, request) {
  const out = element("details", { class: "commands" }, element("summary", {}, "Copy as curl or Python"));
  for (const [name, text] of [["curl", curl(path, request)], ["Python", python(path, request)]]) {
    const button = element("button", { type: "button" }, "Copy " + name);
    const told = element("span", { role: "status" });
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        told.textContent = " copied";
      } catch { // pages without TLS may not write to the clipboard
        told.textContent = " select the text below and copy it";
      }
    });
    out.append(element("p", {}, button, told), element("pre", { tabindex: "0", role: "region", "aria-label": name, "data-as": name }, text));
  }
  return out;
}
