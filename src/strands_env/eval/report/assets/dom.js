// Elements, made without any HTML text: whatever a sample holds stays text.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) { if (key.startsWith("--")) element.style.setProperty(key, text); else element.style[key] = text; }
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const number = (value, digits = 3) => (isNumber(value) ? value.toFixed(digits) : "–");
const whole = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : "–");
const short = (value) => (isNumber(value) ? String(Math.round(value * 1000) / 1000) : "–");
const words = (name) => String(name).replaceAll("_", " ");

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// The same in a column: `2m 43s`, `1h 05m`.
function clock(seconds) {
  if (!isNumber(seconds) || seconds < 60) return duration(seconds);
  const whole = Math.round(seconds), two = (value) => String(value).padStart(2, "0");
  return whole < 3600 ? `${Math.floor(whole / 60)}m ${two(whole % 60)}s` : `${Math.floor(whole / 3600)}h ${two(Math.floor(whole / 60) % 60)}m`;
}

// Saves text as a file; nothing is sent anywhere.
function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type })), link = h("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const quantity = (count, one, many) => `${whole(count)} ${count === 1 ? one : many || `${one}s`}`;

function themeSwitch() {
  const root = document.documentElement, wish = matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = wish.matches ? "dark" : "light";
  wish.addEventListener("change", () => { root.dataset.theme = wish.matches ? "dark" : "light"; });
  return () => { root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark"; };
}

function helpView(keys) {
  const view = h("div", { class: "panel help", role: "dialog", "aria-label": "Keys", hidden: true, "data-testid": "help" }, h("h2", null, "Keys"),
    h("dl", null, keys.map(([key, text]) => [h("dt", null, h("kbd", null, key)), h("dd", { style: { margin: 0 } }, text)])), h("p", null, h("button", { onclick: () => { view.hidden = true; } }, "Close")));
  return view;
}

const tile = (name, value, note, testid) => h("div", { class: "panel tile", "data-testid": testid }, h("div", { class: "name" }, name), h("div", { class: "value" }, value), h("div", { class: "note" }, note));
const chart = (title, body, legend) => h("section", { class: "panel" }, h("h2", null, title), body, legend && h("div", { class: "legend" }, legend));
const swatch = (color, text) => h("span", null, h("span", { class: "swatch", style: { background: color } }), text);
const lineColor = (i) => `var(--line${(i % 6) + 1})`;

// Title, facts, buttons and content of a page. Returns what its keys need.
function pageView({ title, facts, notice, content, overlays, keys }) {
  const toggleTheme = themeSwitch(), help = helpView(keys);
  const toggleHelp = () => { help.hidden = !help.hidden; if (!help.hidden) help.querySelector("button").focus(); };
  const root = document.getElementById("root");
  root.replaceChildren(h("div", { class: "page" },
    h("div", { class: "top" }, h("div", null, h("h1", null, title), h("div", { class: "soft facts-line", "data-testid": "header" }, facts.filter(Boolean).map((fact) => h("span", null, fact)))),
      h("button", { onclick: toggleTheme, title: "Light or dark (t)", "aria-label": "Light or dark" }, "◐"), h("button", { onclick: toggleHelp, title: "Keys (?)", "aria-label": "Keys" }, "?")),
    notice ? h("p", { class: "notice" }, notice) : null, content), ...(overlays || []), help);
  root.removeAttribute("aria-busy");
  return { help, toggleTheme, toggleHelp };
}

const day = (stamp) => (stamp ? `${String(stamp).replace("T", " ").slice(0, 16)} UTC` : null);

function runFacts(header) {
  const sampling = Object.entries(header.sampling || {}).map(([name, value]) => `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  return [header.model && `model ${header.model}`, sampling, day(header.started), header.rescored && `scored again by ${header.rescored}`];
}

function begin(start) {
  start().catch((error) => {
    document.getElementById("root").replaceChildren(h("p", { class: "notice" }, `This cannot be shown: ${error.message}`));
  });
}
