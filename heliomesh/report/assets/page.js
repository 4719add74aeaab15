"use strict";

// The data are in the page; nothing is fetched. Texts reach the document as text nodes only, never as HTML.
const page = JSON.parse(document.getElementById("data").textContent);
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

// ---- Arrays: base64 of typed arrays, value = raw · scale ----

const KINDS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, bits: Uint8Array };
const decoded = new Map();

function decode(ref) {
  const key = `${ref.kind} ${ref.blob}`;
  if (!decoded.has(key)) {
    const text = atob(page.blobs[ref.blob]);
    const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
    decoded.set(key, new KINDS[ref.kind](bytes.buffer));
  }
  return { raw: decoded.get(key), scale: ref.scale, shape: ref.shape };
}

const numbers = (ref) => Array.from(decode(ref).raw, (raw) => raw * ref.scale);

/** Column of a (row, column) array. */
function column(ref, index) {
  const { raw, scale, shape } = decode(ref);
  return Array.from({ length: shape[0] }, (_, row) => raw[row * shape[1] + index] * scale);
}

const networks = page.scenarios.map(({ network }) => {
  const flat = numbers(network.position_metre);
  return {
    devices: network.devices,
    points: Array.from({ length: network.devices }, (_, device) => [flat[2 * device], flat[2 * device + 1]]),
    receiver: decode(network.receiver).raw,
    sender: decode(network.sender).raw,
  };
});

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
  });
  apply();
}

function lineSwatch(index) {
  const line = svg("path", { d: "M1 6H27", "stroke-width": 3, "stroke-dasharray": dashOf(index) });
  line.style.stroke = schemeColour(index);
  return svg("svg", { width: 28, height: 12, class: "swatch", "aria-hidden": "true" }, line);
}

// ---- Tables ----

/** A table whose first column is a row's heading; a column is {head, unit, cell, best}. */
function table(columns, rows, heading) {
  const head = columns.map(({ head: text, unit }) =>
    html("th", { scope: "col" }, text, ...(unit ? [html("span", { class: "unit" }, unit)] : [])));
  const body = rows.map((row, number) => html("tr", {},
    html("th", { scope: "row" }, ...heading(row)),
    ...columns.slice(1).map((one) => cell(one, row, number))));
  return html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...body));
}

function cell(one, row, number) {
  const content = one.cell(row);
  const marked = one.best === number ? "best" : one.kind ?? null;
  return html("td", { class: marked }, content);
}

function spread(fact, factor, digits) {
  if (!fact) return UNKNOWN;
  const half = fact.half === null ? "" : ` ± ${(factor * fact.half).toFixed(digits)}`;
  return (factor * fact.mean).toFixed(digits) + half;
}

function headlineColumns() {
  const one = (name, factor, digits) => (row) => spread(row[name], factor, digits);
  const range = (row) => (row.accuracy_min ? `${percent(row.accuracy_min.low)} – ${percent(row.accuracy_max.high)}` : UNKNOWN);
  return [
    { head: "scheme" },
    { head: "accuracy", unit: "mean device, %", cell: one("accuracy_mean", 100, 2), name: "accuracy_mean", sign: 1 },
    { head: "least – most", unit: "device, %", cell: range },
    { head: "accuracy", unit: "average model, %", cell: one("average_accuracy", 100, 2), name: "average_accuracy", sign: 1 },
    { head: "update loss", unit: "per slot", cell: one("cost", 1, 3), name: "cost", sign: -1 },
    { head: "lower bound", unit: "grid, per slot", cell: (row) => fixed(row.bound?.mean, 3) },
    { head: "above bound", unit: "%", cell: one("gap", 100, 1) },
    { head: "training", unit: "% of device-slots", cell: one("participation", 100, 1) },
    { head: "arrived", unit: "% of packets", cell: one("delivery", 100, 1) },
    { head: "spent", unit: "J", cell: one("spent_joule", 1, 0) },
    { head: "harvested", unit: "J", cell: one("harvested_joule", 1, 0) },
    { head: "overflow", unit: "J", cell: one("overflow_joule", 1, 1) },
  ];
}

/** Which row is best in a column; none where scenarios differ or rows tie with nobody. */
function bestRow(name, sign, schemes) {
  if (page.scenarios.length > 1 || schemes.length < 2) return null;
  const values = schemes.map((scheme) => (scheme.finished ? scheme.headline[name]?.mean : undefined));
  const known = values.filter((value) => value !== undefined);
  return known.length < 2 ? null : values.indexOf(sign * Math.max(...known.map((value) => sign * value)));
}

function showResults() {
  const columns = headlineColumns();
  for (const one of columns) if (one.name) one.best = bestRow(one.name, one.sign, page.schemes);
  const headed = columns.map((one) => ({ ...one, cell: one.cell && ((scheme) => one.cell(scheme.headline)) }));
  byId("results-table").append(table(headed, page.schemes, (scheme) => {
    const runs = scheme.runs.length > 1 ? [html("span", { class: "muted small" }, ` ${scheme.runs.length} seeds`)] : [];
    return [lineSwatch(page.schemes.indexOf(scheme)), scheme.label, ...runs];
  }));
  byId("results-note").textContent = resultsNote();
  showEachRun();
}

function resultsNote() {
  const sentences = ["Update loss counts the devices' updates lost per slot: lower is better."];
  if (page.schemes.some((scheme) => scheme.runs.length > 1)) sentences.push("± is the 95 % interval over seeds.");
  if (page.schemes.some((scheme) => scheme.headline.bound)) {
    sentences.push("The bound holds for every policy on the planning grid; continuous batteries may do better.");
  }
  const early = page.schemes.filter((scheme) => !scheme.finished).map((scheme) => page.runs[scheme.runs[0]]);
  for (const run of early) sentences.push(`Accuracy of ${runLabel(run)} is that after slot ${run.done} of ${run.slots}.`);
  return sentences.join(" ");
}

function showEachRun() {
  if (page.schemes.every((scheme) => scheme.runs.length < 2)) { byId("each-run").hidden = true; return; }
  const last = (run, name) => numbers(run.curves[name]).at(-1) ?? null;
  const ledger = (name) => (run) => fixed(run.trace?.ledger[name], 1);
  const columns = [
    { head: "run" },
    { head: "scheme", kind: "text", cell: (run) => page.schemes[run.scheme].label },
    { head: "seed", cell: (run) => String(run.seed) },
    { head: "accuracy", unit: "mean device, %", cell: (run) => percent(last(run, "accuracy_mean"), 2) },
    { head: "least – most", unit: "device, %",
      cell: (run) => `${percent(last(run, "accuracy_min"))} – ${percent(last(run, "accuracy_max"))}` },
    { head: "accuracy", unit: "average model, %", cell: (run) => percent(last(run, "average_accuracy"), 2) },
    { head: "update loss", unit: "per slot", cell: (run) => fixed(run.trace?.cost, 3) },
    { head: "spent", unit: "J", cell: ledger("spent") },
    { head: "harvested", unit: "J", cell: ledger("harvested") },
    { head: "overflow", unit: "J", cell: ledger("overflow") },
  ];
  byId("each-run-table").append(table(columns, page.runs, (run) => [run.name]));
}

function showLedger() {
  const runs = page.runs.filter((run) => run.trace);
  if (!runs.length) return byId("ledger").append(html("p", { class: "empty" }, "No run has a trace."));
  const of = (name) => (run) => fixed(run.trace.ledger[name], 1);
  const columns = [
    { head: "run" },
    { head: "initial", unit: "J", cell: of("initial") },
    { head: "harvested", unit: "J", cell: of("harvested") },
    { head: "spent", unit: "J", cell: of("spent") },
    { head: "overflow", unit: "J", cell: of("overflow") },
    { head: "stored", unit: "J", cell: of("stored") },
    { head: "imbalance", unit: "J, rounding only", cell: (run) => run.trace.ledger.imbalance.toExponential(1) },
    { head: "where it went", unit: "spent, overflow, stored", cell: (run) => stack(run.trace.ledger) },
  ];
  return byId("ledger").append(table(columns, runs, (run) => [lineSwatch(run.scheme), runLabel(run)]));
}

function stack(ledger) {
  const parts = [["spent", "arrives"], ["overflow", "drops"], ["stored", "battery"]];
  const total = parts.reduce((sum, [name]) => sum + ledger[name], 0) || 1;
  const bars = parts.map(([name, ink]) =>
    html("span", { style: { width: `${100 * ledger[name] / total}%`, background: `var(--${ink})` } }));
  const text = parts.map(([name]) => `${name} ${percent(ledger[name] / total)} %`).join(", ");
  return html("div", { class: "stack", role: "img", "aria-label": text, title: text }, ...bars);
}

function showOverhead() {
  const runs = page.runs.filter((run) => Object.keys(run.plan).length);
  if (!runs.length) return byId("overhead-table").append(html("p", { class: "empty" }, "No run has the facts of its plan."));
  const of = (name, text) => (run) => text(run.plan[name] ?? null);
  const columns = [
    { head: "run" },
    { head: "planning", unit: "s", cell: of("seconds", (value) => fixed(value, 2)) },
    { head: "rounds", cell: of("rounds", short) },
    { head: "converged", cell: of("converged", (value) => (value === null ? UNKNOWN : value ? "yes" : "no")) },
    { head: "expected cost", unit: "grid", cell: of("expected cost (grid)", short) },
    { head: "table entries", cell: of("overhead: table entries", short) },
    { head: "offline", unit: "on the air", cell: of("overhead: offline bytes", bytesText) },
    { head: "offline", unit: "J", cell: of("overhead: offline joule", short) },
    { head: "online", unit: "per slot", cell: of("overhead: online bytes per slot", bytesText) },
    { head: "online", unit: "J per slot", cell: of("overhead: online joule per slot", short) },
  ];
  return byId("overhead-table").append(table(columns, runs, (run) => [lineSwatch(run.scheme), runLabel(run)]));
}

function showOrigin() {
  for (const scenario of page.scenarios) {
    const names = scenario.runs.map((index) => page.runs[index].name).join(", ");
    byId("scenarios").append(html("details", {},
      html("summary", {}, `Scenario ${scenario.name}, ${several(scenario.runs.length, "run")}`),
      html("p", { class: "small muted" }, `sha256 ${scenario.hash}; runs: ${names}`),
      html("pre", { tabindex: 0, "aria-label": `Scenario ${scenario.name} as TOML` }, scenario.toml)));
  }
  const of = (name) => (run) => String(run.provenance[name] ?? UNKNOWN);
  const versions = (run) =>
    Object.entries(run.provenance.versions ?? {}).map(([name, value]) => `${name} ${value}`).join(", ") || UNKNOWN;
  const seconds = (run) => fixed(run.provenance.duration_second, 1);
  const columns = [
    { head: "run" },
    { head: "scheme", kind: "text", cell: (run) => page.schemes[run.scheme].label },
    { head: "seed", unit: "training", cell: (run) => String(run.seed) },
    { head: "seed", unit: "simulation", cell: of("simulation_seed") },
    { head: "trained in", unit: "s", cell: seconds },
    { head: "on", kind: "text", cell: of("device") },
    { head: "strategy", kind: "text", cell: of("strategy") },
    { head: "precision", kind: "text", cell: of("precision") },
    { head: "scenario", unit: "sha256", kind: "text", cell: (run) => page.scenarios[run.scenario].hash.slice(0, 12) },
    { head: "trace", unit: "sha256", kind: "text", cell: (run) => of("trace")(run).slice(0, 12) },
    { head: "dataset", unit: "name, sha256", kind: "text", cell: (run) => of("dataset")(run).slice(0, 24) },
    { head: "versions", kind: "text", cell: versions },
  ];
  byId("provenance").append(table(columns, page.runs, (run) => [run.name]));
}

function showMissing() {
  const items = page.runs.flatMap((run) => run.missing.map((sentence) => html("li", {}, `${run.name}: ${sentence}`)));
  byId("missing").hidden = !items.length;
  byId("missing-list").append(...items);
}

// ---- Curves: what is drawn ----

/** A series is {x, y, low, high}; low and high may be absent. */
const byEvaluation = (name, low, high) => (run) => {
  const { curves } = run;
  const own = { x: numbers(curves.slot), y: numbers(curves[name]) };
  return low ? { ...own, low: numbers(curves[low]), high: numbers(curves[high]) } : own;
};
const bySlot = (name, offset) => (run) =>
  run.trace ? { x: numbers(run.trace.slot).map((slot) => slot + offset), y: numbers(run.trace[name]) } : { x: [], y: [] };

const CHARTS = [
  { title: "Accuracy", unit: "%", options: [
    ["mean device", byEvaluation("accuracy_mean", "accuracy_min", "accuracy_max"), { factor: 100 }],
    ["average model", byEvaluation("average_accuracy"), { factor: 100 }],
  ] },
  { title: "Update loss", unit: "devices' updates lost per slot", options: [
    ["mean so far", bySlot("cost_so_far", 1), {}],
    [`mean of the last ${page.window} slots`, bySlot("cost_recent", 1), {}],
  ] },
  { title: "Energy", unit: "J", options: [
    ["battery, mean device", bySlot("mean_battery", 0), {}],
    ["spent so far", bySlot("spent_so_far", 1), {}],
    ["harvested so far", bySlot("harvested_so_far", 1), {}],
    ["overflow so far", bySlot("overflow_so_far", 1), {}],
  ] },
  { title: "Consensus and loss", unit: "", options: [
    ["consensus distance", byEvaluation("consensus_distance"), { log: true }],
    ["training loss", byEvaluation("train_loss"), {}],
    ["test loss, mean device", byEvaluation("loss_mean"), {}],
  ] },
];

function schemeSeries(index, read, factor) {
  const scheme = page.schemes[index];
  const all = scheme.runs.map((run) => withoutGaps(read(page.runs[run]), factor));
  return all.length === 1 ? all[0] : averaged(all, scheme.t);
}

/** Scaled, and without what is no number (a training loss where nobody trained). */
function withoutGaps(series, factor = 1) {
  const kept = series.y.map((_, index) => index).filter((index) => Number.isFinite(series.y[index]));
  const take = (values, by) => values && kept.map((index) => by * values[index]);
  return { x: take(series.x, 1), y: take(series.y, factor), low: take(series.low, factor), high: take(series.high, factor) };
}

/** Mean and 95 % band over seeds, where all of them have a value. */
function averaged(all, t) {
  const found = new Map();
  for (const { x, y } of all) x.forEach((slot, index) => found.set(slot, [...(found.get(slot) ?? []), y[index]]));
  const result = { x: [], y: [], low: [], high: [] };
  for (const [slot, values] of [...found].sort((a, b) => a[0] - b[0])) {
    if (values.length < all.length) continue;
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1);
    const half = t * Math.sqrt(variance / values.length);
    result.x.push(slot); result.y.push(mean); result.low.push(mean - half); result.high.push(mean + half);
  }
  return result;
}

// ---- Curves: how they are drawn ----

const MARGIN = { left: 54, right: 12, top: 8, bottom: 34 };
const WHOLE = { low: 0, high: Math.max(...page.runs.map((run) => run.slots)) };
const view = { ...WHOLE, hidden: new Set() };

function niceTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return ticks.map((tick) => Number(tick.toPrecision(10)));
}

function logTicks(low, high) {
  const ticks = [];
  const factors = high / low > 1000 ? [1] : [1, 2, 5];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade += 1) {
    for (const factor of factors) {
      const tick = Number((factor * 10 ** decade).toPrecision(3));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}

const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

class Chart {
  constructor(settings, host) {
    Object.assign(this, { settings, option: 0, readAt: null, dragFrom: null, series: [] });
    this.picture = svg("svg", { tabindex: 0, role: "img" });
    const names = settings.options.map(([name], index) => html("option", { value: index }, name));
    const select = html("select", { "aria-label": `${settings.title}: what is shown` }, ...names);
    select.addEventListener("change", () => { this.option = Number(select.value); this.read(); this.draw(); });
    const unit = settings.unit ? html("span", { class: "muted small" }, ` ${settings.unit}`) : "";
    const head = html("div", { class: "chart-head" }, html("h3", {}, settings.title, unit), select);
    this.empty = html("p", { class: "empty", hidden: true }, "No run shown here has this curve.");
    host.append(html("div", { class: "chart" }, head, this.picture, this.empty));
    this.listen();
    this.read();
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  read() {
    const [, reader, { factor }] = this.settings.options[this.option];
    this.series = page.schemes.map((_, index) => schemeSeries(index, reader, factor));
  }

  get shown() {
    return this.series.map((series, index) => ({ ...series, index }))
      .filter(({ x, index }) => x.length && !view.hidden.has(index));
  }

  draw() {
    const shown = this.shown;
    this.empty.hidden = shown.length > 0;
    this.picture.style.display = shown.length ? "" : "none";
    const { width, height } = this.picture.getBoundingClientRect();
    if (!shown.length || !width) return;
    Object.assign(this, { width, height });
    this.log = Boolean(this.settings.options[this.option][2].log) && shown.every(({ y }) => y.every((value) => value > 0));
    this.setScales(shown);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("aria-label", this.description(shown));
    this.marks = svg("g");
    this.cursor = svg("path", { class: "cursor" });
    this.picture.replaceChildren(...this.frame(), ...shown.flatMap((series) => this.curve(series)), this.cursor, this.marks);
    this.showCursor();
  }

  description(shown) {
    const last = shown.map(({ y, index }) => `${page.schemes[index].label} ${short(y.at(-1))}`);
    return `${this.settings.title}, ${this.settings.options[this.option][0]}, over slots. Last values: ${last.join("; ")}. `
      + "Arrow keys read values, plus and minus zoom.";
  }

  setScales(shown) {
    const within = (x) => x >= view.low && x <= view.high;
    const bound = (pick, least) => {
      const values = shown.flatMap((one) => pick(one).filter((_, index) => within(one.x[index])));
      return values.reduce((best, value) => (least ? Math.min(best, value) : Math.max(best, value)), least ? Infinity : -Infinity);
    };
    let low = bound(({ low: values, y }) => (this.log ? y : values ?? y), true);
    let high = bound(({ high: values, y }) => (this.log ? y : values ?? y), false);
    if (!Number.isFinite(low)) [low, high] = this.log ? [1, 10] : [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    this.range = this.log ? [low / 1.2, high * 1.2] : [low < 0 ? low - room : Math.max(0, low - room), high + room];
  }

  x(slot) {
    return MARGIN.left + ((slot - view.low) / (view.high - view.low)) * (this.width - MARGIN.left - MARGIN.right);
  }

  y(value) {
    const scale = this.log ? (one) => Math.log10(Math.max(one, this.range[0])) : (one) => one;
    const [low, high] = this.range.map(scale);
    return MARGIN.top + (1 - (scale(value) - low) / (high - low)) * (this.height - MARGIN.top - MARGIN.bottom);
  }

  slotAt(x) {
    const share = (x - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right);
    return view.low + Math.min(Math.max(share, 0), 1) * (view.high - view.low);
  }

  frame() {
    const bottom = this.height - MARGIN.bottom;
    const right = this.width - MARGIN.right;
    const parts = [];
    for (const tick of this.log ? logTicks(...this.range) : niceTicks(...this.range, 5)) {
      const y = this.y(tick);
      parts.push(svg("path", { class: "grid", d: `M${MARGIN.left} ${y}H${right}` }));
      parts.push(svg("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of niceTicks(view.low, view.high, this.width < 360 ? 4 : 8)) {
      parts.push(svg("text", { x: this.x(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick)));
    }
    parts.push(svg("path", { class: "axis", d: `M${MARGIN.left} ${MARGIN.top}V${bottom}H${right}` }));
    parts.push(svg("text", { x: (MARGIN.left + right) / 2, y: bottom + 31, "text-anchor": "middle" }, "slot"));
    return parts;
  }

  /** A line and its band, cut to the view with one point beyond it on either side. */
  curve({ x, y, low, high, index }) {
    const first = Math.max(0, x.findIndex((slot) => slot >= view.low) - 1);
    const beyond = x.findIndex((slot) => slot > view.high);
    const kept = x.slice(first, beyond < 0 ? x.length : beyond + 1).map((_, offset) => first + offset);
    const clip = svg("svg", { x: MARGIN.left, y: MARGIN.top, width: this.width - MARGIN.left - MARGIN.right,
      height: this.height - MARGIN.top - MARGIN.bottom, viewBox: `${MARGIN.left} ${MARGIN.top} ${this.width - MARGIN.left - MARGIN.right} ${this.height - MARGIN.top - MARGIN.bottom}` });
    const points = (values) => kept.map((one) => [this.x(x[one]), this.y(values[one])]);
    if (low) {
      const band = svg("path", { class: "band", d: `${path([...points(high), ...points(low).reverse()])}Z` });
      band.style.fill = schemeColour(index);
      clip.append(band);
    }
    const line = svg("path", { class: "curve", d: path(points(y)), "stroke-dasharray": dashOf(index), "data-scheme": index });
    line.style.stroke = schemeColour(index);
    clip.append(line);
    if (kept.length === 1) clip.append(this.dot(points(y)[0], index)); // a line of one point would be invisible
    return [clip];
  }

  dot([x, y], index) {
    const mark = svg("circle", { cx: x, cy: y, r: 4 });
    mark.style.fill = schemeColour(index);
    return mark;
  }

  showCursor() {
    const slot = player.slotNow();
    const inside = this.cursor && slot >= view.low && slot <= view.high;
    if (this.cursor) this.cursor.setAttribute("d", inside ? `M${this.x(slot)} ${MARGIN.top}V${this.height - MARGIN.bottom}` : "");
  }

  listen() {
    const { picture } = this;
    const place = (event) => event.clientX - picture.getBoundingClientRect().left;
    picture.addEventListener("pointermove", (event) => this.moved(place(event), event));
    picture.addEventListener("pointerleave", () => { if (this.dragFrom === null) this.forget(); });
    picture.addEventListener("pointerdown", (event) => {
      this.dragFrom = place(event);
      picture.setPointerCapture(event.pointerId);
    });
    picture.addEventListener("pointerup", (event) => this.dropped(place(event)));
    picture.addEventListener("pointercancel", () => { this.dragFrom = null; this.forget(); });
    picture.addEventListener("dblclick", () => zoomTo(WHOLE.low, WHOLE.high));
    picture.addEventListener("blur", () => this.forget());
    picture.addEventListener("keydown", (event) => this.pressed(event));
    // An unasked-for wheel scrolls the page; it zooms a chart that was clicked before, or with Ctrl.
    picture.addEventListener("wheel", (event) => {
      if (document.activeElement !== picture && !event.ctrlKey) return;
      event.preventDefault();
      zoomBy(event.deltaY < 0 ? 0.8 : 1.25, this.slotAt(place(event)));
    }, { passive: false });
  }

  moved(x, event) {
    this.readOut(this.slotAt(x), event.clientX, event.clientY);
    if (this.dragFrom === null) return;
    const [left, right] = [this.dragFrom, x].sort((a, b) => a - b);
    this.marks.append(svg("rect", { class: "drag", x: left, y: MARGIN.top, width: right - left,
      height: this.height - MARGIN.top - MARGIN.bottom }));
  }

  dropped(x) {
    const [low, high] = [this.dragFrom ?? x, x].map((one) => this.slotAt(one)).sort((a, b) => a - b);
    const far = Math.abs(x - (this.dragFrom ?? x)) > 8;
    this.dragFrom = null;
    if (far) zoomTo(low, high);
  }

  pressed(event) {
    const slots = [...new Set(this.shown.flatMap(({ x }) => x))].filter((x) => x >= view.low && x <= view.high).sort((a, b) => a - b);
    const now = this.readAt === null ? -1 : slots.indexOf(this.readAt);
    const move = { ArrowLeft: now < 0 ? slots.length - 1 : now - 1, ArrowRight: now + 1 }[event.key];
    if (move !== undefined) {
      const box = this.picture.getBoundingClientRect();
      const slot = slots[Math.min(Math.max(move, 0), slots.length - 1)];
      if (slot !== undefined) this.readOut(slot, box.left + this.x(slot), box.top + 20);
    } else if (event.key === "+" || event.key === "=") zoomBy(0.8, this.readAt ?? (view.low + view.high) / 2);
    else if (event.key === "-") zoomBy(1.25, this.readAt ?? (view.low + view.high) / 2);
    else if (event.key === "Escape" || event.key === "0") zoomTo(WHOLE.low, WHOLE.high);
    else return;
    event.preventDefault();
    event.stopPropagation(); // or the player would move too
  }

  /** Show every scheme's value at the measured slot nearest to this one. */
  readOut(slot, clientX, clientY) {
    const nearest = (x) => x.reduce((best, one, index) => (Math.abs(one - slot) < Math.abs(x[best] - slot) ? index : best), 0);
    const rows = this.shown.map((series) => ({ ...series, at: nearest(series.x) }));
    if (!rows.length) return;
    const all = rows.map(({ x, at }) => x[at]);
    this.readAt = all.reduce((best, one) => (Math.abs(one - slot) < Math.abs(best - slot) ? one : best));
    const there = rows.filter(({ x, at }) => x[at] === this.readAt);
    const line = svg("path", { class: "axis", d: `M${this.x(this.readAt)} ${MARGIN.top}V${this.height - MARGIN.bottom}` });
    this.marks.replaceChildren(line, ...there.map(({ x, y, at, index }) => this.dot([this.x(x[at]), this.y(y[at])], index)));
    showTip(clientX, clientY, `slot ${this.readAt}`, there.map(({ y, low, high, at, index }) => {
      const band = low ? ` (${short(low[at])} to ${short(high[at])})` : "";
      return [index, page.schemes[index].label, short(y[at]) + band];
    }));
  }

  forget() {
    this.readAt = null;
    this.marks?.replaceChildren();
    byId("tip").hidden = true;
  }
}

function showTip(x, y, title, rows) {
  const tip = byId("tip");
  const lines = rows.map(([scheme, name, value]) => html("div", {},
    html("span", {}, ...(scheme === null ? [] : [lineSwatch(scheme)]), name), html("span", {}, value)));
  tip.replaceChildren(html("b", {}, title), ...lines);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 16 + box.width > window.innerWidth ? x - 16 - box.width : x + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.min(Math.max(4, y - box.height / 2), window.innerHeight - box.height - 4)}px`;
}

const charts = [];

function zoomTo(low, high) {
  const least = 2; // slots: closer there is nothing to see
  if (high - low < least) [low, high] = [(low + high - least) / 2, (low + high + least) / 2];
  view.low = Math.max(WHOLE.low, low);
  view.high = Math.min(WHOLE.high, high);
  byId("reset-zoom").disabled = view.low === WHOLE.low && view.high === WHOLE.high;
  charts.forEach((chart) => { chart.forget(); chart.draw(); });
}

const zoomBy = (factor, centre) => zoomTo(centre - (centre - view.low) * factor, centre + (view.high - centre) * factor);

function showCharts() {
  byId("legend").append(...page.schemes.map((scheme, index) => html("button", {
    type: "button", "aria-pressed": "true", onclick: (event) => toggleScheme(index, event.currentTarget),
  }, lineSwatch(index), scheme.label)));
  for (const settings of CHARTS) charts.push(new Chart(settings, byId("charts")));
  byId("reset-zoom").addEventListener("click", () => zoomTo(WHOLE.low, WHOLE.high));
  const bands = page.schemes.some((scheme) => scheme.runs.length > 1)
    ? "Bands: 95 % interval over seeds; for a single run, its least and most accurate device."
    : "Band: least and most accurate device.";
  byId("curves-note").textContent = `${bands} Drag to zoom, or use the wheel on a chart that was clicked (or with Ctrl); `
    + "double click resets.";
}

function toggleScheme(index, button) {
  if (!view.hidden.delete(index)) view.hidden.add(index);
  button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
  charts.forEach((chart) => chart.draw());
}

// ---- Player: time ----

const SPEEDS = [1, 2, 5, 10, 20, 50]; // slots per second
const SNAPSHOT = 0.6; // of a slot: packets are in flight, some are lost already
const TRAINED = 128;
const traced = page.runs.map((_, index) => index).filter((index) => page.runs[index].trace);

const player = {
  time: 0, // in frames; a frame is a slot, or every n-th one
  playing: false,
  speed: 5,
  frames: Math.max(0, ...traced.map((index) => page.runs[index].trace.slot.shape[0])),
  scenes: [],
  last: null, // time stamp of the last animation frame
  shownFrame: -1,

  get frame() { return Math.min(Math.floor(this.time), this.frames - 1); },
  slotNow() { return this.frames ? this.frame * page.every + 1 : 0; },

  seek(time) {
    this.time = Math.min(Math.max(time, 0), this.frames - 1e-3);
    this.show();
  },

  step(by) { this.pause(); this.seek(this.frame + by); },

  play() {
    if (!this.frames) return;
    if (this.frame === this.frames - 1) this.time = 0;
    this.playing = true;
    this.last = null;
    byId("play").textContent = "Pause";
    requestAnimationFrame((now) => this.tick(now));
  },

  pause() {
    this.playing = false;
    byId("play").textContent = "Play";
  },

  toggle() { if (this.playing) this.pause(); else this.play(); },

  tick(now) {
    if (!this.playing) return;
    const seconds = this.last === null ? 0 : Math.min(now - this.last, 250) / 1000; // a sleeping tab does not leap
    this.last = now;
    this.seek(this.time + seconds * this.speed / page.every);
    if (this.time >= this.frames - 2e-3) this.pause();
    else requestAnimationFrame((next) => this.tick(next));
  },

  /** How far a slot has come; whole slots only for those who prefer calm. */
  get phase() {
    const part = this.time - Math.floor(this.time);
    return calm.matches || (!this.playing && part === 0) ? SNAPSHOT : part;
  },

  show() {
    const changed = this.frame !== this.shownFrame;
    if (changed || !calm.matches) this.scenes.forEach((scene) => scene.draw());
    if (!changed) return;
    this.shownFrame = this.frame;
    byId("scrub").value = this.frame;
    byId("slot").textContent = `slot ${this.slotNow()} of ${WHOLE.high}`;
    byId("scrub").setAttribute("aria-valuetext", byId("slot").textContent);
    this.scenes.forEach((scene) => scene.tell());
    charts.forEach((chart) => chart.showCursor());
    deviceView.showCursor();
  },
};

// ---- Player: the network on its positions ----

const lerp = (from, to, share) => from + (to - from) * share;
const clamped = (value) => Math.min(Math.max(value, 0), 1);

function sharpCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/** The part of a circle that lies below its level, as a chord's segment: needs no clipping. */
function addSegment(pen, x, y, radius, level) {
  const half = Math.acos(1 - 2 * clamped(level));
  pen.moveTo(x + radius * Math.cos(Math.PI / 2 - half), y + radius * Math.sin(Math.PI / 2 - half));
  pen.arc(x, y, radius, Math.PI / 2 - half, Math.PI / 2 + half);
  pen.closePath();
}

function addCircle(pen, x, y, radius) {
  pen.moveTo(x + radius, y);
  pen.arc(x, y, radius, 0, 2 * Math.PI);
}

function addCross(pen, x, y, size) {
  pen.moveTo(x - size, y - size); pen.lineTo(x + size, y + size);
  pen.moveTo(x - size, y + size); pen.lineTo(x + size, y - size);
}

function paint(pen, how, ink, width, add) {
  pen.beginPath();
  add();
  pen[how === "fill" ? "fillStyle" : "strokeStyle"] = ink;
  pen.lineWidth = width;
  pen[how]();
}

/** Many marks of a kind are one path: a hundred devices take a dozen calls. */
class Scene {
  constructor(host, index) {
    this.canvas = html("canvas", { class: "scene", role: "img", tabindex: 0 });
    this.strip = html("canvas", { class: "strip", role: "img" });
    this.facts = html("dl", { class: "facts" });
    const options = traced.map((run) => html("option", { value: run }, runLabel(page.runs[run])));
    this.select = html("select", { "aria-label": "Run shown by this player" }, ...options);
    this.swatch = html("span");
    this.card = html("div", { class: "player" },
      html("div", { class: "bar" }, this.swatch, this.select), this.canvas, this.strip, this.facts);
    host.append(this.card);
    this.select.addEventListener("change", () => this.setRun(Number(this.select.value)));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("pointermove", (event) => this.hovered(event));
    this.canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
    new ResizeObserver(() => { if (this.card.clientWidth !== this.cardWidth) this.layout(); }).observe(this.card);
    this.setRun(index);
  }

  setRun(index) {
    this.index = index;
    this.select.value = index;
    this.run = page.runs[index];
    this.network = networks[this.run.scenario];
    const { trace } = this.run;
    for (const name of ["battery", "spent", "harvested", "update_loss", "action", "delivered"]) this[name] = decode(trace[name]);
    this.powers = trace.powers_watt;
    this.frames = trace.slot.shape[0];
    this.meanHarvest = this.meanByFrame(this.harvested);
    this.swatch.replaceChildren(lineSwatch(this.run.scheme));
    this.layout();
  }

  meanByFrame({ raw, scale }) {
    const { devices } = this.network;
    return Array.from({ length: this.frames }, (_, frame) => {
      let sum = 0;
      for (let device = 0; device < devices; device += 1) sum += raw[frame * devices + device];
      return sum * scale / devices;
    });
  }

  get frame() { return Math.min(player.frame, this.frames - 1); }
  at(array, device, frame = this.frame) { return array.raw[frame * this.network.devices + device] * array.scale; }
  power(device, frame = this.frame) { return this.powers[this.action.raw[frame * this.network.devices + device] % TRAINED]; }
  trains(device, frame = this.frame) { return this.action.raw[frame * this.network.devices + device] >= TRAINED; }

  delivers(edge, frame = this.frame) {
    const bit = frame * this.network.sender.length + edge;
    return Boolean(this.delivered.raw[bit >> 3] & (1 << (bit & 7)));
  }

  layout() {
    this.cardWidth = this.card.clientWidth;
    const width = this.canvas.clientWidth;
    if (!width) return;
    const { points } = this.network;
    const bounds = [0, 1].map((axis) => points.reduce(([low, high], point) =>
      [Math.min(low, point[axis]), Math.max(high, point[axis])], [Infinity, -Infinity]));
    const [across, down] = bounds.map(([low, high]) => Math.max(high - low, 1e-9));
    const pad = 34;
    this.width = width;
    this.height = Math.round(Math.min(Math.max((width - 2 * pad) * down / across + 2 * pad, 180), 420));
    this.canvas.style.height = `${this.height}px`;
    this.pen = sharpCanvas(this.canvas, width, this.height);
    const scale = Math.min((width - 2 * pad) / across, (this.height - 2 * pad) / down);
    const middle = bounds.map(([low, high]) => (low + high) / 2);
    this.places = points.map(([x, y]) => [width / 2 + (x - middle[0]) * scale, this.height / 2 + (y - middle[1]) * scale]);
    this.radius = Math.min(Math.max(0.3 * this.closestPair(), 4), 19);
    this.links = this.linkPath();
    this.ends = this.packetEnds();
    this.stripPen = sharpCanvas(this.strip, width, 96);
    this.strip.style.height = "96px";
    this.draw();
    this.tell();
  }

  closestPair() {
    let least = Math.min(this.width, this.height) / 2;
    this.places.forEach(([x, y], one) => {
      for (let other = 0; other < one; other += 1) {
        least = Math.min(least, Math.hypot(x - this.places[other][0], y - this.places[other][1]));
      }
    });
    return least;
  }

  linkPath() {
    const lines = new Path2D();
    const { sender, receiver } = this.network;
    sender.forEach((from, edge) => {
      if (from > receiver[edge]) return; // both directions are one line
      lines.moveTo(...this.places[from]);
      lines.lineTo(...this.places[receiver[edge]]);
    });
    return lines;
  }

  /** Where each edge's packets start and end: rim to rim, a little to the side so that directions keep apart. */
  packetEnds() {
    const { sender, receiver } = this.network;
    return Array.from(sender, (from, edge) => {
      const [[x0, y0], [x1, y1]] = [this.places[from], this.places[receiver[edge]]];
      const length = Math.hypot(x1 - x0, y1 - y0) || 1;
      const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
      const side = Math.min(4, this.radius / 3);
      const gap = Math.min(this.radius + 6, 0.4 * length);
      return [x0 + ux * gap - uy * side, y0 + uy * gap + ux * side, x1 - ux * gap - uy * side, y1 - uy * gap + ux * side];
    });
  }

  draw() {
    if (!this.pen) return;
    const { pen } = this;
    pen.clearRect(0, 0, this.width, this.height);
    pen.strokeStyle = inks.link;
    pen.lineWidth = 1;
    pen.stroke(this.links);
    this.drawSun();
    this.drawPackets();
    this.drawWaves();
    this.drawDevices();
    this.drawStrip();
  }

  drawSun() {
    const top = this.harvested.scale * 255;
    const share = top ? clamped(this.meanHarvest[this.frame] / top) : 0;
    const { pen } = this;
    pen.globalAlpha = 0.2 + 0.8 * share;
    drawSunMark(pen, this.width - 24, 24, 5 + 5 * share);
    pen.globalAlpha = 1;
  }

  drawPackets() {
    const flight = clamped((player.phase - 0.05) / 0.7);
    const fade = 1 - clamped((player.phase - 0.8) / 0.2);
    const lines = { arrives: new Path2D(), drops: new Path2D() };
    const heads = { arrives: new Path2D(), drops: new Path2D() };
    this.network.sender.forEach((from, edge) => {
      if (!(this.power(from) > 0)) return;
      const fate = this.delivers(edge) ? "arrives" : "drops";
      const share = fate === "arrives" ? flight : Math.min(flight, 0.55);
      const [x0, y0, x1, y1] = this.ends[edge];
      const [x, y] = [lerp(x0, x1, share), lerp(y0, y1, share)];
      lines[fate].moveTo(x0, y0);
      lines[fate].lineTo(x, y);
      if (fate === "arrives") addCircle(heads.arrives, x, y, Math.min(4, this.radius / 2.5));
      else addCross(heads.drops, x, y, Math.min(4, this.radius / 2.5));
    });
    this.strokePackets(lines, heads, fade);
  }

  strokePackets(lines, heads, fade) {
    const { pen } = this;
    pen.globalAlpha = fade;
    pen.lineWidth = this.radius > 8 ? 2 : 1.3;
    pen.strokeStyle = inks.arrives;
    pen.stroke(lines.arrives);
    pen.fillStyle = inks.arrives;
    pen.fill(heads.arrives);
    pen.strokeStyle = inks.drops;
    pen.setLineDash([3, 3]);
    pen.stroke(lines.drops);
    pen.setLineDash([]);
    pen.stroke(heads.drops);
    pen.globalAlpha = 1;
  }

  /** A ring around every sender that spreads with the slot, the wider the more power. */
  drawWaves() {
    const { pen, radius } = this;
    const most = this.powers.at(-1) || 1;
    const grown = clamped(player.phase / 0.7);
    pen.globalAlpha = 0.75 * (1 - 0.7 * grown * clamped((player.phase - 0.6) / 0.4));
    paint(pen, "stroke", inks.muted, 1.5, () => this.places.forEach(([x, y], device) => {
      const share = this.power(device) / most;
      if (share > 0) addCircle(pen, x, y, radius + 7 + radius * (0.15 + 0.85 * share) * grown);
    }));
    pen.globalAlpha = 1;
  }

  level(device) {
    const before = this.at(this.battery, device);
    const after = this.at(this.battery, device, this.frame + 1);
    const spent = Math.max(0, before - this.at(this.spent, device));
    const { phase } = player;
    const now = phase < 0.5 ? lerp(before, spent, 2 * phase) : lerp(spent, after, 2 * phase - 1);
    return now / this.run.trace.capacity_joule[device];
  }

  drawDevices() {
    const { pen, radius, places } = this;
    const each = (test, add) => () => places.forEach((place, device) => { if (test(device)) add(place, device); });
    const circle = (grow) => ([x, y]) => addCircle(pen, x, y, radius + grow);
    const all = () => true;
    const sunny = this.harvested.scale * 255 || 1;
    paint(pen, "fill", inks.card, 1, each(all, circle(5)));
    paint(pen, "fill", inks.battery, 1, each(all, ([x, y], device) => addSegment(pen, x, y, radius, this.level(device))));
    paint(pen, "stroke", inks.muted, 1, each((device) => !this.trains(device), circle(0)));
    paint(pen, "stroke", inks.text, 3, each((device) => this.trains(device), circle(0)));
    paint(pen, "stroke", inks.sun, radius > 8 ? 3 : 2, each(all, ([x, y], device) => {
      const sweep = 2 * Math.PI * this.at(this.harvested, device) / sunny;
      pen.moveTo(x, y - radius - 4);
      pen.arc(x, y, radius + 4, -Math.PI / 2, -Math.PI / 2 + sweep);
    }));
    if (selected.device < places.length) {
      paint(pen, "stroke", inks.accent, 2, () => circle(8)(places[selected.device]));
    }
    this.drawNumbers();
  }

  drawNumbers() {
    const { pen, radius } = this;
    if (radius < 8) return; // too small to read
    pen.font = `600 ${Math.round(Math.min(radius * 0.8, 13))}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillStyle = inks.text;
    this.places.forEach(([x, y], device) => pen.fillText(String(device), x, y + 1));
  }

  /** The sun's curve and the accuracy so far, with what is still to come in pale. */
  drawStrip() {
    const pen = this.stripPen;
    const curves = { slots: numbersOnce(this.run.curves.slot), accuracy: numbersOnce(this.run.curves.accuracy_mean) };
    const x = (slot) => 4 + (this.width - 8) * slot / this.run.slots;
    const now = Math.min((player.frame + player.phase) * page.every, this.run.slots);
    pen.clearRect(0, 0, this.width, 96);
    for (const [alpha, from, to] of [[0.25, 0, this.width], [1, 0, x(now)]]) {
      pen.save();
      pen.beginPath(); pen.rect(from, 0, to - from, 96); pen.clip();
      pen.globalAlpha = alpha;
      this.stripSun(pen, x);
      this.stripAccuracy(pen, x, curves);
      pen.restore();
    }
    paint(pen, "stroke", inks.text, 1, () => { pen.moveTo(x(now), 12); pen.lineTo(x(now), 96); });
    this.stripTexts(pen);
  }

  stripSun(pen, x) {
    const most = Math.max(...this.meanHarvest) || 1;
    paint(pen, "fill", inks.sun, 1, () => {
      pen.moveTo(x(0), 46);
      this.meanHarvest.forEach((joule, frame) => {
        pen.lineTo(x(frame * page.every), 46 - 30 * joule / most);
        pen.lineTo(x((frame + 1) * page.every), 46 - 30 * joule / most);
      });
      pen.lineTo(x(this.run.slots), 46);
    });
  }

  stripAccuracy(pen, x, { slots, accuracy }) {
    paint(pen, "stroke", inks.schemes[this.run.scheme], 2, () => slots.forEach((slot, index) => {
      pen[index ? "lineTo" : "moveTo"](x(slot), 94 - 30 * accuracy[index]);
    }));
  }

  stripTexts(pen) {
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    pen.fillStyle = inks.muted;
    pen.fillText("sun: harvest of the mean device", 4, 10);
    pen.fillText(this.run.done ? "accuracy of the mean device, 0 to 100 %" : "no accuracy known yet", 4, 60);
  }

  accuracyNow() {
    const slots = numbersOnce(this.run.curves.slot);
    const index = slots.findLastIndex((slot) => slot <= player.slotNow());
    return index < 0 ? null : numbersOnce(this.run.curves.accuracy_mean)[index];
  }

  /** The slot in numbers, also for those who cannot see it. */
  tell() {
    const { devices, sender } = this.network;
    const all = Array.from({ length: devices }, (_, device) => device);
    const sum = (value) => all.reduce((total, device) => total + value(device), 0);
    const sent = Array.from(sender.keys()).filter((edge) => this.power(sender[edge]) > 0);
    const facts = [
      ["accuracy", `${percent(this.accuracyNow())} %`],
      ["battery", `${fixed(sum((device) => this.at(this.battery, device)) / devices, 2)} J`],
      ["training", `${all.filter((device) => this.trains(device)).length} of ${devices}`],
      ["arrived", `${sent.filter((edge) => this.delivers(edge)).length} of ${several(sent.length, "packet")}`],
      ["update loss", fixed(sum((device) => this.at(this.update_loss, device)), 2)],
    ];
    this.facts.replaceChildren(...facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
    const text = facts.map(([name, value]) => `${name} ${value}`).join(", ");
    this.canvas.setAttribute("aria-label", `Network of ${runLabel(this.run)}, slot ${player.slotNow()}: ${text}`);
    this.strip.setAttribute("aria-label", `Harvest and accuracy of ${runLabel(this.run)} over slots`);
  }

  deviceAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return this.places.findIndex(([px, py]) => Math.hypot(px - x, py - y) <= Math.max(this.radius + 5, 10));
  }

  clicked(event) {
    const device = this.deviceAt(event);
    if (device >= 0) select(this.index, device);
  }

  hovered(event) {
    const device = this.deviceAt(event);
    if (device < 0) { byId("tip").hidden = true; return; }
    showTip(event.clientX, event.clientY, `device ${device}`, [
      [null, "battery", `${fixed(this.at(this.battery, device), 2)} J`],
      [null, "action", actionText(this.trains(device), this.power(device))],
      [null, "harvest", `${fixed(this.at(this.harvested, device), 2)} J`],
      [null, "update loss", fixed(this.at(this.update_loss, device), 2)],
    ]);
  }
}

const actionText = (trains, power) => {
  if (!trains) return power > 0 ? `sends at ${short(power)} W` : "idle";
  return power > 0 ? `trains, sends at ${short(power)} W` : "trains only";
};

const once = new Map();

/** Numbers of a short array that is asked for in every animation frame. */
function numbersOnce(ref) {
  if (!once.has(ref)) once.set(ref, numbers(ref));
  return once.get(ref);
}

function drawSunMark(pen, x, y, radius) {
  paint(pen, "fill", inks.sun, 1, () => addCircle(pen, x, y, radius));
  paint(pen, "stroke", inks.sun, 1.5, () => {
    for (let ray = 0; ray < 8; ray += 1) {
      const [cos, sin] = [Math.cos(ray * Math.PI / 4), Math.sin(ray * Math.PI / 4)];
      pen.moveTo(x + cos * (radius + 2.5), y + sin * (radius + 2.5));
      pen.lineTo(x + cos * (radius + 5.5), y + sin * (radius + 5.5));
    }
  });
}

/** The key beneath the players, drawn with the same marks. */
const KEY = {
  battery: (pen) => {
    paint(pen, "fill", inks.battery, 1, () => addSegment(pen, 13, 13, 9, 0.6));
    paint(pen, "stroke", inks.muted, 1, () => addCircle(pen, 13, 13, 9));
  },
  trains: (pen) => paint(pen, "stroke", inks.text, 3, () => addCircle(pen, 13, 13, 9)),
  sends: (pen) => {
    paint(pen, "stroke", inks.muted, 1, () => addCircle(pen, 13, 13, 5));
    paint(pen, "stroke", inks.muted, 1.5, () => addCircle(pen, 13, 13, 11));
  },
  arrives: (pen) => {
    paint(pen, "stroke", inks.arrives, 2, () => { pen.moveTo(3, 13); pen.lineTo(36, 13); });
    paint(pen, "fill", inks.arrives, 1, () => addCircle(pen, 37, 13, 4));
  },
  drops: (pen) => {
    pen.setLineDash([3, 3]);
    paint(pen, "stroke", inks.drops, 2, () => { pen.moveTo(3, 13); pen.lineTo(26, 13); });
    pen.setLineDash([]);
    paint(pen, "stroke", inks.drops, 2, () => addCross(pen, 30, 13, 4));
  },
  sun: (pen) => paint(pen, "stroke", inks.sun, 3, () => pen.arc(13, 13, 9, -Math.PI / 2, Math.PI / 3)),
};

function drawKey() {
  for (const canvas of document.querySelectorAll("canvas[data-key]")) {
    const [width, height] = [canvas.dataset.key === "arrives" || canvas.dataset.key === "drops" ? 44 : 26, 26];
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    KEY[canvas.dataset.key](sharpCanvas(canvas, width, height));
  }
}

function showPlayers() {
  if (!traced.length) {
    byId("transport").hidden = true;
    byId("players").append(html("p", { class: "empty" }, "No run has a trace, so there is nothing to play."));
    return;
  }
  byId("speed").append(...SPEEDS.map((speed) =>
    html("option", { value: speed, selected: speed === player.speed }, `${speed} slots/s`)));
  byId("scrub").max = player.frames - 1;
  player.scenes.push(new Scene(byId("players"), traced[0]));
  const other = traced.find((index) => page.runs[index].scheme !== page.runs[traced[0]].scheme) ?? traced[1];
  byId("two").hidden = other === undefined;
  if (other !== undefined && window.matchMedia("(min-width: 1000px)").matches) showSecond(other);
  byId("two").addEventListener("click", () => (player.scenes.length > 1 ? hideSecond() : showSecond(other)));
  listenToTransport();
  player.seek(0);
}

function showSecond(index) {
  player.scenes.push(new Scene(byId("players"), index));
  byId("two").setAttribute("aria-pressed", "true");
  byId("two").textContent = "One player";
}

function hideSecond() {
  player.scenes.pop().card.remove();
  byId("two").setAttribute("aria-pressed", "false");
  byId("two").textContent = "Two players";
}

function listenToTransport() {
  byId("play").addEventListener("click", () => player.toggle());
  byId("back").addEventListener("click", () => player.step(-1));
  byId("forward").addEventListener("click", () => player.step(1));
  byId("speed").addEventListener("change", (event) => { player.speed = Number(event.target.value); });
  byId("scrub").addEventListener("input", (event) => { player.pause(); player.seek(Number(event.target.value)); });
  document.addEventListener("keydown", pressed);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const where = event.target.closest("input, select, button, summary, a, pre, .scroll");
  const leave = { " ": where && !where.matches("input") }[event.key] ?? where?.matches("input, select, pre, .scroll");
  if (leave) return; // the focused element has its own use for the key
  const by = event.shiftKey ? 10 : 1;
  const act = {
    " ": () => player.toggle(),
    ArrowLeft: () => player.step(-by),
    ArrowRight: () => player.step(by),
    Home: () => player.step(-Infinity),
    End: () => player.step(Infinity),
  }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

// ---- One device ----

const selected = { run: traced[0] ?? 0, device: 0 };

function select(run, device) {
  Object.assign(selected, { run, device });
  deviceView.show();
  player.scenes.forEach((scene) => scene.draw());
}

const deviceView = {
  width: 0,
  cursor: null,

  start() {
    byId("device-run").append(...page.runs.map((run, index) => html("option", { value: index }, runLabel(run))));
    byId("device-run").addEventListener("change", (event) => select(Number(event.target.value), selected.device));
    byId("device-number").addEventListener("change", (event) => select(selected.run, Number(event.target.value)));
    new ResizeObserver(() => { if (byId("device-view").clientWidth !== this.width) this.show(); }).observe(byId("device-view"));
    this.show();
  },

  show() {
    const run = page.runs[selected.run];
    const { devices } = networks[run.scenario];
    selected.device = Math.min(selected.device, devices - 1);
    byId("device-run").value = selected.run;
    byId("device-number").replaceChildren(...Array.from({ length: devices }, (_, device) =>
      html("option", { value: device, selected: device === selected.device }, String(device))));
    this.width = byId("device-view").clientWidth;
    const history = html("div", { class: "wide" });
    const accuracy = html("div", {});
    const labels = html("div", {});
    byId("device-view").replaceChildren(history, accuracy, labels);
    byId("device-facts").textContent = deviceFacts(run, selected.device);
    drawHistory(history, run, selected.device);
    drawDeviceAccuracy(accuracy, run, selected.device);
    drawLabels(labels, run, selected.device);
    this.showCursor();
  },

  showCursor() {
    if (!this.cursor) return;
    const { line, x, bottom } = this.cursor;
    line.setAttribute("d", `M${x(Math.min(player.slotNow() - 0.5, page.runs[selected.run].slots))} 0V${bottom}`);
  },
};

function deviceFacts(run, device) {
  const { trace } = run;
  if (!trace) return "Nothing is known of its slots.";
  const codes = column(trace.action, device);
  const trained = codes.filter((code) => code >= TRAINED).length / codes.length;
  const loss = column(trace.update_loss, device);
  const [sent, arrived] = packetsOf(run, device, codes);
  return [
    `battery of ${short(trace.capacity_joule[device])} J`,
    `trains in ${percent(trained, 0)} % of slots`,
    sent ? `${percent(arrived / sent, 0)} % of its ${sent} packets arrive` : "sends nothing",
    `mean update loss ${fixed(loss.reduce((sum, value) => sum + value, 0) / loss.length, 2)}`,
  ].join("; ");
}

/** Packets sent to neighbours, and how many arrived. */
function packetsOf(run, device, codes) {
  const { sender } = networks[run.scenario];
  const { raw } = decode(run.trace.delivered);
  const own = Array.from(sender.keys()).filter((edge) => sender[edge] === device);
  let [sent, arrived] = [0, 0];
  codes.forEach((code, frame) => {
    if (!(run.trace.powers_watt[code % TRAINED] > 0)) return;
    for (const edge of own) {
      const bit = frame * sender.length + edge;
      sent += 1;
      arrived += (raw[bit >> 3] >> (bit & 7)) & 1;
    }
  });
  return [sent, arrived];
}

/** Battery, harvest and actions above one another on one axis of slots. */
function drawHistory(host, run, device) {
  deviceView.cursor = null;
  host.append(html("h3", {}, "Battery, harvest and actions"));
  if (!run.trace) { host.append(html("p", { class: "empty" }, "This run has no trace.")); return; }
  const width = Math.max(host.clientWidth, 200);
  const x = (slot) => 46 + (width - 54) * slot / run.slots;
  const bottom = 306;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${bottom + 36}`, height: bottom + 36, role: "img",
    "aria-label": `Battery, harvest and actions of device ${device} over slots` });
  const line = svg("path", { class: "cursor" });
  picture.append(
    ...lane({ run, x, top: 18, bottom: 140, width, title: "battery [J]", most: run.trace.capacity_joule[device] },
      column(run.trace.battery, device), "battery"),
    ...lane({ run, x, top: 164, bottom: 216, width, title: "harvest [J]", most: run.trace.harvested.scale * 255 },
      column(run.trace.harvested, device), "sun"),
    ...actionLane({ run, x, top: 240, bottom, width }, column(run.trace.action, device)),
    ...niceTicks(0, run.slots, width < 400 ? 4 : 8).map((slot) =>
      svg("text", { x: x(slot), y: bottom + 16, "text-anchor": "middle" }, short(slot))),
    svg("text", { x: (46 + width) / 2, y: bottom + 31, "text-anchor": "middle" }, "slot"),
    line);
  deviceView.cursor = { line, x, bottom };
  host.append(picture);
}

function laneFrame({ x, top, bottom, run, title, most }) {
  return [
    svg("path", { class: "grid", d: `M${x(0)} ${top}H${x(run.slots)}M${x(0)} ${bottom}H${x(run.slots)}` }),
    svg("text", { x: x(0) + 2, y: top - 5 }, title),
    svg("text", { x: x(0) - 6, y: top + 8, "text-anchor": "end" }, short(Number(most.toPrecision(2)))),
    svg("text", { x: x(0) - 6, y: bottom + 3, "text-anchor": "end" }, "0"),
  ];
}

/** An area of steps: a value holds from its slot to the next one. */
function lane(place, values, ink) {
  const { x, top, bottom, most } = place;
  const y = (value) => bottom - (bottom - top) * clamped(value / (most || 1));
  const points = values.flatMap((value, frame) => [[x(frame * page.every), y(value)],
    [x(Math.min((frame + 1) * page.every, place.run.slots)), y(value)]]);
  const area = svg("path", { d: `M${x(0)} ${bottom}${path(points).replace("M", "L")}V${bottom}Z` });
  area.style.fill = `var(--${ink})`;
  return [...laneFrame(place), area];
}

/** A bar per slot: as high as the power; a low pale one where the device trains without sending. */
function actionLane(place, codes) {
  const { run, x, top, bottom } = place;
  const powers = run.trace.powers_watt;
  const most = powers.at(-1) || 1;
  const bars = { sends: "", trains: "" };
  codes.forEach((code, frame) => {
    const power = powers[code % TRAINED];
    if (!(power > 0) && code < TRAINED) return;
    const height = power > 0 ? Math.max(0.12, power / most) * (bottom - top) : 4;
    const width = Math.max(x(page.every) - x(0) - 0.4, 0.6);
    bars[power > 0 ? "sends" : "trains"] += `M${x(frame * page.every).toFixed(1)} ${bottom}v${-height.toFixed(1)}h${width.toFixed(1)}V${bottom}Z`;
  });
  const [sends, trains] = [svg("path", { d: bars.sends }), svg("path", { d: bars.trains })];
  sends.style.fill = "var(--arrives)";
  trains.style.fill = "var(--muted)";
  const title = "trains and sends at [W]; low grey: trains only; gap: idle";
  return [...laneFrame({ ...place, title, most }), sends, trains];
}

function drawDeviceAccuracy(host, run, device) {
  host.append(html("h3", {}, "Accuracy [%]"));
  if (!run.done) { host.append(html("p", { class: "empty" }, "No accuracy is known yet.")); return; }
  const [width, top, bottom] = [Math.max(host.clientWidth, 200), 10, 116];
  const slots = numbers(run.curves.slot);
  const x = (slot) => 34 + (width - 42) * slot / run.slots;
  const y = (value) => bottom - (bottom - top) * value;
  const curve = (values, ink, dash) => {
    const line = svg("path", { class: "curve", d: path(slots.map((slot, index) => [x(slot), y(values[index])])), "stroke-dasharray": dash });
    line.style.stroke = ink;
    return line;
  };
  const own = column(run.curves.device_accuracy, device);
  host.append(svg("svg", { viewBox: `0 0 ${width} 140`, height: 140, role: "img",
    "aria-label": `Accuracy of device ${device}, at last ${percent(own.at(-1))} %, and of the mean device, dashed` },
    ...[0, 0.5, 1].flatMap((share) => [svg("path", { class: "grid", d: `M${x(0)} ${y(share)}H${x(run.slots)}` }),
      svg("text", { x: x(0) - 6, y: y(share) + 4, "text-anchor": "end" }, String(100 * share))]),
    curve(numbers(run.curves.accuracy_mean), "var(--muted)", "4 3"),
    curve(own, schemeColour(run.scheme), ""),
    svg("text", { x: x(run.slots), y: bottom + 18, "text-anchor": "end" }, "dashed: mean device")));
}

function drawLabels(host, run, device) {
  host.append(html("h3", {}, "Training samples by class"));
  if (!run.labels) { host.append(html("p", { class: "empty" }, `Not known: ${run.why_no_labels}.`)); return; }
  const { raw, shape: [, classes] } = decode(run.labels.counts);
  const own = Array.from(raw.subarray(device * classes, (device + 1) * classes));
  const most = raw.reduce((best, count) => Math.max(best, count), 1); // of all devices, so that they compare
  const [width, top, bottom] = [Math.max(host.clientWidth, 200), 18, 100];
  const step = (width - 8) / classes;
  const bars = own.flatMap((count, label) => {
    const height = (bottom - top) * count / most;
    const bar = svg("rect", { x: 4 + label * step + step * 0.1, y: bottom - height, width: step * 0.8, height });
    bar.style.fill = run.labels.colours[label];
    const text = (content, y) => svg("text", { x: 4 + (label + 0.5) * step, y, "text-anchor": "middle" }, content);
    return step < 22 ? [bar] : [bar, text(String(count), bottom - height - 4), text(String(label), bottom + 15)];
  });
  const total = own.reduce((sum, count) => sum + count, 0);
  host.append(svg("svg", { viewBox: `0 0 ${width} 120`, height: 120, role: "img",
    "aria-label": `${total} samples; by class: ${own.map((count, label) => `${label}: ${count}`).join(", ")}` },
    svg("path", { class: "grid", d: `M4 ${bottom}H${width - 4}` }), ...bars));
}

// ---- Everything ----

function showSubtitle() {
  const { devices } = networks[0];
  const what = page.scenarios.length === 1 ? `, ${several(devices, "device")}, ${several(page.runs[0].slots, "slot")}` : "";
  const thinned = page.every > 1 ? `; the player shows every ${page.every}th slot` : "";
  byId("subtitle").textContent = `${several(page.runs.length, "run")} of ${several(page.schemes.length, "scheme")} on `
    + `${several(page.scenarios.length, "scenario")}${what}${thinned}`;
}

startTheme(() => {
  drawKey();
  player.scenes.forEach((scene) => scene.draw());
});
showSubtitle();
showMissing();
showResults();
showCharts();
showPlayers();
deviceView.start();
showLedger();
showOverhead();
showOrigin();
