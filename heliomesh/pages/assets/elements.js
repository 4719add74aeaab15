// ---- Elements and texts ----

const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const UNKNOWN = "–";
const fixed = (value, digits) => (value === null || value === undefined ? UNKNOWN : value.toFixed(digits));
const percent = (value, digits = 1) => (value === null || value === undefined ? UNKNOWN : (100 * value).toFixed(digits));

function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return UNKNOWN;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function bytesText(value) {
  if (typeof value !== "number") return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${Number(value.toPrecision(3))} ${units[unit]}`;
}

const runLabel = (run) => `${page.schemes[run.scheme].label}, seed ${run.seed}`;
/** A name that may go to the next line behind an underscore, for narrow screens. */
const breakable = (name) => name.split(/(?<=_)/).flatMap((part, number) => (number ? [html("wbr"), part] : [part]));
const several = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// ---- Colours ----

const DASHES = ["", "7 4", "2 3", "11 3 2 3", "5 2 1 2 1 2"]; // tell schemes of one planner apart
const schemeColour = (index) => `var(--scheme-${index})`;
const dashOf = (index) => DASHES[page.schemes[index].dash % DASHES.length];
const inks = {}; // colours for canvases, which know no CSS variables

function useTheme(theme) {
  const root = document.documentElement;
  root.dataset.theme = theme;
  page.schemes.forEach((scheme, index) => root.style.setProperty(`--scheme-${index}`, scheme.colour[theme]));
  const style = getComputedStyle(root);
  for (const name of ["card", "text", "muted", "line", "faint", "accent", "sun", "battery", "arrives", "drops", "link"]) {
    inks[name] = style.getPropertyValue(`--${name}`).trim();
  }
  inks.schemes = page.schemes.map((scheme) => scheme.colour[theme]);
  byId("theme").textContent = theme === "dark" ? "Light colours" : "Dark colours";
}

function startTheme(redraw) {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const apply = () => { useTheme(chosen ?? (system.matches ? "dark" : "light")); redraw(); };
  system.addEventListener("change", apply);
  byId("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    apply();
    links.changed();
  });
  links.keep("theme", () => chosen, (theme) => { if (["light", "dark"].includes(theme)) { chosen = theme; apply(); } });
  apply();
}

function lineSwatch(index) {
  const line = svg("path", { d: "M1 6H27", "stroke-width": 3, "stroke-dasharray": dashOf(index) });
  line.style.stroke = schemeColour(index);
  return svg("svg", { width: 28, height: 12, class: "swatch", "aria-hidden": "true" }, line);
}
