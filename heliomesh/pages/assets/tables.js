// ---- Tables ----

/** A table whose first column is a row's heading; a column is {head, unit, cell, best}. */
function table(columns, rows, heading) {
  const head = columns.map(({ head: text, unit, kind = null }) =>
    html("th", { scope: "col", class: kind }, text, ...(unit ? [html("span", { class: "unit" }, unit)] : [])));
  const body = rows.map((row, number) => html("tr", {},
    html("th", { scope: "row" }, ...heading(row)),
    ...columns.slice(1).map((one) => cell(one, row, number))));
  return html("table", {}, html("thead", {}, html("tr", {}, ...head)), html("tbody", {}, ...body));
}

function cell(one, row, number) {
  const content = one.cell(row);
  const marked = one.best === number ? "best" : one.kind ?? null;
  return html("td", { class: marked }, ...[content].flat());
}

/** A mean and, on a line of its own, its interval: twelve columns shall fit on a desk. */
function spread(fact, factor, digits) {
  if (!fact) return [UNKNOWN];
  const mean = (factor * fact.mean).toFixed(digits);
  return fact.half === null ? [mean] : [mean, html("span", { class: "unit" }, `± ${(factor * fact.half).toFixed(digits)}`)];
}

function headlineColumns() {
  const one = (name, factor, digits) => (row) => spread(row[name], factor, digits);
  const range = (row) => (row.accuracy_min ? `${percent(row.accuracy_min.low)} – ${percent(row.accuracy_max.high)}` : UNKNOWN);
  const sending = { head: "sending", unit: "% of slots", cell: one("sending", 100, 1) };
  return [
    { head: "scheme" },
    { head: "accuracy", unit: "mean device, %", cell: one("accuracy_mean", 100, 2), name: "accuracy_mean", sign: 1 },
    { head: "least – most", unit: "device, %", cell: range },
    { head: "accuracy", unit: "average model, %", cell: one("average_accuracy", 100, 2), name: "average_accuracy", sign: 1 },
    { head: "update loss", unit: "per slot", cell: one("cost", 1, 3), name: "cost", sign: -1 },
    { head: "lower bound", unit: "certified", cell: (row) => fixed(row.bound?.mean, 3) },
    { head: "above bound", unit: "%", cell: one("gap", 100, 1) },
    { head: "training", unit: "% of slots", cell: one("participation", 100, 1) },
    ...(page.schemes.some(trainsOrSendsAlone) ? [sending] : []),
    { head: "arrived", unit: "% of packets", cell: one("delivery", 100, 1) },
    { head: "spent", unit: "J", cell: one("spent_joule", 1, 0) },
    { head: "harvested", unit: "J", cell: one("harvested_joule", 1, 0) },
    { head: "overflow", unit: "J", cell: one("overflow_joule", 1, 1) },
  ];
}

/** Whether some device trains without sending, or the reverse. */
const trainsOrSendsAlone = ({ headline }) => headline.sending?.mean !== headline.participation?.mean;

/** Which row is best in a column; none where scenarios or seeds differ, for then luck differs too. */
function bestRow(name, sign, schemes) {
  const seeds = new Set(schemes.map((scheme) => scheme.runs.map((run) => page.runs[run].seed).sort().join()));
  if (page.scenarios.length > 1 || seeds.size > 1) return null;
  const values = schemes.map((scheme) => (scheme.finished ? scheme.headline[name]?.mean : undefined));
  const known = values.filter((value) => value !== undefined);
  return known.length < 2 ? null : values.indexOf(sign * Math.max(...known.map((value) => sign * value)));
}

function showResults() {
  const columns = headlineColumns();
  for (const one of columns) if (one.name) one.best = bestRow(one.name, one.sign, page.schemes);
  const headed = columns.map((one) => ({ ...one, cell: one.cell && ((scheme) => one.cell(scheme.headline)) }));
  byId("results-table").append(table(headed, page.schemes, (scheme) => {
    const runs = scheme.runs.length > 1 ? [html("span", { class: "unit" }, `${scheme.runs.length} seeds`)] : [];
    return [lineSwatch(page.schemes.indexOf(scheme)), ...breakable(scheme.label), ...runs];
  }));
  byId("results-note").textContent = resultsNote();
  if (columns.some((one) => Number.isInteger(one.best))) byId("results-note").append(" Bold: the best mean.");
  showDifferences();
  showGapLedger();
  showEachRun();
}

/** A difference and its interval, in bold where it is told from zero. */
function difference(fact, factor, digits) {
  if (fact.mean === null) return UNKNOWN;
  const [mean, width] = spread(fact, factor, digits);
  const told = fact.half > 0 && Math.abs(fact.mean) > fact.half; // seeds that agree to the digit are no evidence
  return [html(told ? "b" : "span", {}, (fact.mean < 0 ? "" : "+") + mean.replace("-", "−")), width ?? ""];
}

/** Paired differences to a scheme of the reader's choice; at first to whoever coordinates nothing. */
function showDifferences() {
  const usable = page.differences.map((row, index) => index).filter((index) => page.differences[index].some(Boolean));
  byId("differences").hidden = !usable.length;
  if (!usable.length) return;
  const select = byId("reference");
  select.append(...usable.map((index) => html("option", { value: index }, page.schemes[index].label)));
  select.value = usable.find((index) => page.schemes[index].planner === "uncoordinated") ?? usable[0];
  const columns = [
    { head: "scheme" },
    { head: "accuracy", unit: "at the end, points", cell: (row) => difference(row.accuracy, 100, 2) },
    { head: "accuracy", unit: "over the run, points", cell: (row) => difference(row.accuracy_over_run, 100, 2) },
    { head: "update loss", unit: "per slot", cell: (row) => difference(row.cost, 1, 3) },
    { head: "seeds", unit: "in common", cell: (row) => String(row.seeds) },
  ];
  const show = () => {
    const rows = page.differences[Number(select.value)].map((row, scheme) => row && { ...row, scheme }).filter(Boolean);
    byId("differences-table").replaceChildren(table(columns, rows, ({ scheme }) =>
      [lineSwatch(scheme), ...breakable(page.schemes[scheme].label)]));
  };
  select.addEventListener("change", show);
  show();
}

const GAP_PARTS = [["steps not trained", "sun"], ["disagreement", "drops"], ["optimiser", "battery"]];

/** Why devices are less accurate than without any loss, for schemes of which that was asked. */
function showGapLedger() {
  const known = page.schemes.filter((scheme) => scheme.gap_ledger);
  byId("gap-ledger").hidden = !known.length;
  const lost = (scheme, name) => Math.max(0, scheme.gap_ledger[name].mean);
  const total = (scheme) => GAP_PARTS.reduce((sum, [name]) => sum + lost(scheme, name), 0);
  const largest = Math.max(...known.map(total));
  const points = (name) => ({ head: name, unit: "points", cell: (scheme) => difference(scheme.gap_ledger[name], 1, 2) });
  const bar = (scheme) => {
    const text = GAP_PARTS.map(([name]) => `${name} ${fixed(scheme.gap_ledger[name].mean, 2)} points`).join(", ");
    return stackedBar(GAP_PARTS.map(([name, ink]) => [lost(scheme, name), ink]), largest, text);
  };
  const columns = [
    { head: "scheme" }, points("gap to the ideal"), ...GAP_PARTS.map(([name]) => points(name)),
    { head: "where it went", unit: "steps, disagreement, optimiser", cell: bar },
  ];
  byId("gap-ledger-table").append(table(columns, known, (scheme) =>
    [lineSwatch(page.schemes.indexOf(scheme)), ...breakable(scheme.label)]));
}

function resultsNote() {
  const sentences = ["Update loss counts the devices' updates lost per slot: lower is better."];
  if (page.schemes.some((scheme) => scheme.runs.length > 1)) {
    sentences.push("± is the 95 % interval over seeds; schemes with the same seed meet the same luck, so compare them "
      + "seed by seed in the next table.");
  }
  if (page.schemes.some((scheme) => scheme.headline.bound)) {
    sentences.push("No policy with the scenario's actions is expected to lose less than the bound.");
  }
  const early = page.runs.filter((run) => !run.finished && run.done);
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
    { head: "least – most", unit: "device, %",
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
  const of = (head, name) => ({ head, unit: "J", cell: (run) => fixed(run.trace.ledger[name ?? head], 1) });
  const ideal = runs.every((run) => run.trace.ledger.ideal);
  const uses = ideal ? [] : [of("on training", "training"), of("on sending", "sending"), of("standing by", "standby"),
    of("in the converter", "converter")];
  const losses = ideal ? [] : [of("lost in charging", "charging"), of("leaked")];
  const columns = [
    { head: "run" },
    ...[of("initial"), of("harvested"), of("spent"), ...uses, ...losses, of("overflow"), of("stored")],
    { head: "imbalance", unit: "J, rounding only", cell: (run) => run.trace.ledger.imbalance.toExponential(1) },
    { head: "where it went", unit: ideal ? "spent, overflow, stored" : "spent, lost, overflow, stored",
      cell: (run) => stack(run.trace.ledger) },
  ];
  return byId("ledger").append(table(columns, runs, (run) => [lineSwatch(run.scheme), ...breakable(runLabel(run))]));
}

function stack(ledger) {
  const lost = ledger.charging + ledger.leaked;
  const parts = [["spent", "arrives", ledger.spent], ...(ledger.ideal ? [] : [["lost", "muted", lost]]),
    ["overflow", "drops", ledger.overflow], ["stored", "battery", ledger.stored]];
  const total = parts.reduce((sum, [, , joule]) => sum + joule, 0) || 1;
  const text = parts.map(([name, , joule]) => `${name} ${percent(joule / total)} %`).join(", ");
  return stackedBar(parts.map(([, ink, joule]) => [joule, ink]), total, text);
}

/** Values with their inks, side by side on a scale that ends at a total. */
function stackedBar(values, total, text) {
  const bars = values.map(([value, ink]) =>
    html("span", { style: { width: `${100 * value / (total || 1)}%`, background: `var(--${ink})` } }));
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
  return byId("overhead-table").append(table(columns, runs, (run) => [lineSwatch(run.scheme), ...breakable(runLabel(run))]));
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
