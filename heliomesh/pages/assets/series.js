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
  { title: "Accuracy", unit: "%", difference: "difference in points", options: [
    ["mean device", byEvaluation("accuracy_mean", "accuracy_min", "accuracy_max"), { factor: 100, most: 100 }],
    ["average model", byEvaluation("average_accuracy"), { factor: 100, most: 100 }],
  ] },
  { title: "Update loss", unit: "devices' updates lost per slot", difference: "difference per slot", options: [
    ["mean so far", bySlot("cost_so_far", 1), {}],
    [`mean of the last ${page.window} slots`, bySlot("cost_recent", 1), {}],
  ] },
  { title: "Energy", unit: "J", difference: "difference in J", options: [
    ["battery, mean device", bySlot("mean_battery", 0), {}],
    ["spent so far, all devices", bySlot("spent_so_far", 1), {}],
    ["harvested so far, all devices", bySlot("harvested_so_far", 1), {}],
    ["overflow so far, all devices", bySlot("overflow_so_far", 1), {}],
  ] },
  { title: "Consensus and loss", unit: "", difference: "difference", options: [
    ["consensus distance", byEvaluation("consensus_distance"), { log: true }],
    ["training loss", byEvaluation("train_loss"), {}],
    ["test loss, mean device", byEvaluation("loss_mean"), {}],
  ] },
];

function schemeSeries(index, read, factor) {
  const scheme = page.schemes[index];
  const all = scheme.runs.map((run) => withoutGaps(read(page.runs[run]), factor));
  return all.length === 1 ? all[0] : averaged(all);
}

/** A scheme less another, run by run of the same seeds: luck that both have cancels out. */
function differenceSeries(index, reference, read, factor) {
  const runs = (scheme) => page.schemes[scheme].runs.map((run) => page.runs[run]);
  const pairs = index === reference ? [] : runs(index).flatMap((run) =>
    runs(reference).filter((other) => other.seeds === run.seeds).map((other) => [run, other]));
  const all = pairs.map((pair) => subtracted(...pair.map((run) => withoutGaps(read(run), factor))));
  if (!all.length) return { x: [], y: [] };
  return all.length === 1 ? all[0] : averaged(all);
}

function subtracted(own, reference) {
  const there = new Map(reference.x.map((slot, index) => [slot, reference.y[index]]));
  const common = [...own.x.keys()].filter((index) => there.has(own.x[index]));
  return { x: common.map((index) => own.x[index]), y: common.map((index) => own.y[index] - there.get(own.x[index])) };
}

/** Scaled, and without what is no number (a training loss where nobody trained). */
function withoutGaps(series, factor = 1) {
  const kept = series.y.map((_, index) => index).filter((index) => Number.isFinite(series.y[index]));
  const take = (values, by) => values && kept.map((index) => by * values[index]);
  return { x: take(series.x, 1), y: take(series.y, factor), low: take(series.low, factor), high: take(series.high, factor) };
}

/** Mean and 95 % band over seeds, where all of them have a value. */
function averaged(all) {
  const t = page.student[all.length];
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
