// ---- What the tables say ----

const labelled = (scheme) => [lineSwatch(page.schemes.indexOf(scheme)), ...breakable(scheme.label)];
const withSeeds = (scheme) =>
  [...labelled(scheme), ...(scheme.runs.length > 1 ? [html("span", { class: "unit" }, `${scheme.runs.length} seeds`)] : [])];
const SCHEME = { head: "scheme", value: (scheme) => scheme.label };
const plain = (head, unit, value, kind = null) => ({ head, unit, value, kind });

function headlineColumns() {
  const of = (name, head, unit, factor, digits, sign = null) =>
    ({ ...measured(head, unit, (scheme) => scheme.headline[name], factor, digits), name, sign });
  const range = ({ headline: { accuracy_min: least, accuracy_max: most } }) =>
    (least ? `${percent(least.low)} – ${percent(most.high)}` : null);
  const spent = ["spent", "harvested", "overflow"].map((name) => of(`${name}_joule`, name, "J", 1, name === "overflow" ? 1 : 0));
  return [
    SCHEME,
    of("accuracy_mean", "accuracy", "mean device, %", 100, 2, 1),
    { head: "least – most", unit: "device, %", value: (scheme) => range(scheme) },
    of("average_accuracy", "accuracy", "average model, %", 100, 2, 1),
    of("cost", "update loss", "per slot", 1, 3, -1),
    { head: "lower bound", unit: "certified", value: ({ headline }) => headline.bound?.mean, cell: ({ headline }) => fixed(headline.bound?.mean, 3) },
    of("gap", "above bound", "%", 100, 1),
    of("participation", "training", "% of slots", 100, 1),
    ...(page.schemes.some(trainsOrSendsAlone) ? [of("sending", "sending", "% of slots", 100, 1)] : []),
    of("delivery", "arrived", "% of packets", 100, 1),
    ...spent,
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
  for (const one of columns) if (one.sign) one.best = bestRow(one.name, one.sign, page.schemes);
  showTable("results-table", columns, page.schemes, withSeeds);
  byId("results-note").textContent = resultsNote();
  if (columns.some((one) => Number.isInteger(one.best))) byId("results-note").append(" Bold: the best mean.");
  showGapLedger();
  showEachRun();
}

/** A column of differences, in bold where they are told from zero; `pairs` is how many a row rests on. */
function differenceColumn(head, unit, fact, factor, digits, pairs) {
  const column = measured(head, unit, fact, factor, digits);
  const shown = (row) => {
    if (column.value(row) === null) return UNKNOWN;
    const [, width] = spread(fact(row), factor, digits);
    return [html(isTold(fact(row), pairs(row)) ? "b" : "span", {}, signed(column.value(row), digits)), width ?? ""];
  };
  return { ...column, cell: shown };
}

/** Paired differences to the scheme that the plot above has as its reference. */
function showDifferences(reference) {
  const of = (name, head, unit) => {
    const { factor, digits, pairs } = MEASURES[name];
    return differenceColumn(head, unit, (row) => row[name], factor, digits, (row) => row[pairs]);
  };
  const columns = [
    { head: "scheme", value: ({ scheme }) => page.schemes[scheme].label },
    of("cost", "update loss", "per slot"),
    of("accuracy", "accuracy", "at the end, points"),
    of("accuracy_over_run", "accuracy", "over the run, points"),
    plain("episodes", "of update loss", (row) => row.episodes),
    plain("seeds", "of accuracies", (row) => row.seeds),
  ];
  const rows = page.differences[reference].map((row, scheme) => row && { ...row, scheme }).filter(Boolean);
  showTable("differences-table", columns, rows, ({ scheme }) => labelled(page.schemes[scheme]));
  const label = page.schemes[reference].label;
  byId("differences-note").textContent = `Each scheme less ${label}, over episodes and seeds that both have. Bold: the 95 % interval `
    + `excludes zero, with at least ${page.least_pairs} pairs.`;
}

const GAP_PARTS = [["steps not trained", "sun"], ["disagreement", "drops"], ["optimiser", "battery"]];

/** Why devices are less accurate than without any loss, for schemes of which that was asked. */
function showGapLedger() {
  const known = page.schemes.filter((scheme) => scheme.gap_ledger);
  byId("gap-ledger").hidden = !known.length;
  if (!known.length) return;
  const lost = (scheme, name) => Math.max(0, scheme.gap_ledger[name].mean);
  const total = (scheme) => GAP_PARTS.reduce((sum, [name]) => sum + lost(scheme, name), 0);
  const largest = Math.max(...known.map(total));
  const points = (name) =>
    differenceColumn(name, "points", (scheme) => scheme.gap_ledger[name], 1, 2, (scheme) => scheme.runs.length);
  const bar = (scheme) => {
    const text = GAP_PARTS.map(([name]) => `${name} ${fixed(scheme.gap_ledger[name].mean, 2)} points`).join(", ");
    return stackedBar(GAP_PARTS.map(([name, ink]) => [lost(scheme, name), ink]), largest, text);
  };
  const columns = [SCHEME, points("gap to the ideal"), ...GAP_PARTS.map(([name]) => points(name)),
    { head: "where it went", unit: "steps, disagreement, optimiser", cell: bar }];
  showTable("gap-ledger-table", columns, known, labelled);
}

function resultsNote() {
  const sentences = ["Update loss counts the devices' updates lost per slot: lower is better."];
  const episodes = new Set(page.schemes.map((scheme) => scheme.episodes).filter((count) => count !== null));
  if (episodes.size) {
    sentences.push(`Update loss, training and arrivals are of all ${[...episodes].join(" or ")} simulated episodes, the rest is of the trained ones.`);
  }
  if (page.schemes.some((scheme) => scheme.runs.length > 1)) {
    sentences.push("± is the 95 % interval; schemes share their random numbers, so compare them by paired differences.");
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
  const number = (head, unit, value, factor, digits) =>
    ({ head, unit, value: (run) => (isKnown(value(run)) ? factor * value(run) : null), cell: (run) => fixed(value(run) && factor * value(run), digits) });
  const columns = [
    { head: "run", value: (run) => run.name },
    plain("scheme", "", (run) => page.schemes[run.scheme].label, "text"),
    plain("seed", "", (run) => run.seed),
    number("accuracy", "mean device, %", (run) => last(run, "accuracy_mean"), 100, 2),
    { head: "least – most", unit: "device, %",
      value: (run) => `${percent(last(run, "accuracy_min"))} – ${percent(last(run, "accuracy_max"))}` },
    number("accuracy", "average model, %", (run) => last(run, "average_accuracy"), 100, 2),
    number("update loss", "per slot", (run) => run.trace?.cost, 1, 3),
    ...["spent", "harvested", "overflow"].map((name) => number(name, "J", (run) => run.trace?.ledger[name], 1, 1)),
  ];
  showTable("each-run-table", columns, page.runs, (run) => [run.name]);
}

function showLedger() {
  const known = page.schemes.filter((scheme) => scheme.ledger);
  if (!known.length) { byId("ledger").append(html("p", { class: "empty" }, "No run has a trace.")); return; }
  const of = (head, name) => measured(head, "J", (scheme) => scheme.ledger[name ?? head], 1, 1);
  const ideal = known.every((scheme) => scheme.ledger.ideal);
  const uses = ideal ? [] : [of("on training", "training"), of("on sending", "sending"), of("standing by", "standby"),
    of("in the converter", "converter")];
  const losses = ideal ? [] : [of("lost in charging", "charging"), of("leaked")];
  const imbalance = (scheme) => scheme.ledger.imbalance.mean;
  const columns = [
    SCHEME,
    ...[of("initial"), of("harvested"), of("spent"), ...uses, ...losses, of("overflow"), of("stored")],
    { head: "imbalance", unit: "J, rounding only", value: imbalance, cell: (scheme) => imbalance(scheme).toExponential(1) },
    { head: "where it went", unit: ideal ? "spent, overflow, stored" : "spent, lost, overflow, stored",
      cell: (scheme) => stack(scheme.ledger) },
  ];
  showTable("ledger", columns, known, withSeeds);
}

function stack(ledger) {
  const joule = (name) => ledger[name].mean;
  const parts = [["spent", "arrives", joule("spent")], ...(ledger.ideal ? [] : [["lost", "muted", joule("charging") + joule("leaked")]]),
    ["overflow", "drops", joule("overflow")], ["stored", "battery", joule("stored")]];
  const total = parts.reduce((sum, [, , value]) => sum + value, 0) || 1;
  const text = parts.map(([name, , value]) => `${name} ${percent(value / total)} %`).join(", ");
  return stackedBar(parts.map(([, ink, value]) => [value, ink]), total, text);
}

/** Values with their inks, side by side on a scale that ends at a total. */
function stackedBar(values, total, text) {
  const bars = values.map(([value, ink]) =>
    html("span", { style: { width: `${100 * value / (total || 1)}%`, background: `var(--${ink})` } }));
  return html("div", { class: "stack", role: "img", "aria-label": text, title: text }, ...bars);
}

function showOverhead() {
  const known = page.schemes.filter((scheme) => scheme.plan);
  if (!known.length) { byId("overhead-table").append(html("p", { class: "empty" }, "No run has the facts of its plan.")); return; }
  const of = (head, unit, name, text = short) => {
    const fact = (scheme) => scheme.plan[name];
    return { ...measured(head, unit, fact, 1, 2), cell: (scheme) => text(fact(scheme)?.mean ?? null) };
  };
  const columns = [
    SCHEME,
    measured("planning", "s", (scheme) => scheme.plan.seconds, 1, 2),
    of("rounds", "", "rounds"),
    plain("converged", "", ({ plan: { converged } }) => convergedText(converged)),
    of("expected cost", "grid", "expected cost (grid)"),
    of("table entries", "", "overhead: table entries"),
    of("offline", "on the air", "overhead: offline bytes", bytesText),
    of("offline", "J", "overhead: offline joule"),
    of("online", "per slot", "overhead: online bytes per slot", bytesText),
    of("online", "J per slot", "overhead: online joule per slot"),
  ];
  showTable("overhead-table", columns, known, labelled);
}

/** Of a scheme's plans: runs may have one each. */
function convergedText({ yes, of }) {
  if (!of) return null;
  if (yes && yes < of) return `${yes} of ${of}`;
  return yes ? "yes" : "no";
}

const distinct = (values) => [...new Set(values)].join(", ");
const versionsOf = (run) =>
  Object.entries(run.provenance.versions ?? {}).map(([name, value]) => `${name} ${value}`).join(", ") || UNKNOWN;
const originOf = (name, most = Infinity) => (run) => String(run.provenance[name] ?? UNKNOWN).slice(0, most);

function showOrigin() {
  for (const scenario of page.scenarios) {
    const names = scenario.runs.map((index) => page.runs[index].name).join(", ");
    byId("scenarios").append(html("details", {},
      html("summary", {}, `Scenario ${scenario.name}, ${several(scenario.runs.length, "run")}`),
      html("p", { class: "small muted" }, `sha256 ${scenario.hash}; runs: ${names}`),
      html("pre", { tabindex: 0, "aria-label": `Scenario ${scenario.name} as TOML` }, scenario.toml)));
  }
  const seconds = (run) => run.provenance.duration_second ?? null;
  const shared = [
    ["on", "", originOf("device")], ["strategy", "", originOf("strategy")], ["precision", "", originOf("precision")],
    ["scenario", "sha256", (run) => page.scenarios[run.scenario].hash.slice(0, 12)],
    ["dataset", "name, sha256", originOf("dataset", 24)], ["versions", "", versionsOf],
  ];
  const runsOf = (scheme) => scheme.runs.map((index) => page.runs[index]);
  const mean = (scheme) => runsOf(scheme).reduce((sum, run) => sum + seconds(run), 0) / scheme.runs.length || null;
  const textual = ([head, unit, value]) => plain(head, unit, (scheme) => distinct(runsOf(scheme).map(value)), "text");
  showTable("provenance", [SCHEME,
    textual(["seeds", "training", (run) => String(run.seed)]), textual(["seeds", "simulation", originOf("simulation_seed")]),
    { head: "trained in", unit: "s, mean run", value: mean, cell: (scheme) => fixed(mean(scheme), 1) },
    ...shared.map(textual)], page.schemes, labelled);
  showTable("each-origin-table", [
    { head: "run", value: (run) => run.name },
    plain("scheme", "", (run) => page.schemes[run.scheme].label, "text"),
    plain("seed", "training", (run) => run.seed),
    plain("seed", "simulation", originOf("simulation_seed")),
    { head: "trained in", unit: "s", value: seconds, cell: (run) => fixed(seconds(run), 1) },
    plain("trace", "sha256", originOf("trace", 12), "text"),
    ...shared.map(([head, unit, value]) => plain(head, unit, value, "text")),
  ], page.runs, (run) => [run.name]);
}

function showMissing() {
  const items = page.runs.flatMap((run) => run.missing.map((sentence) => html("li", {}, `${run.name}: ${sentence}`)));
  byId("missing").hidden = !items.length;
  byId("missing-list").append(...items);
}
