// ---- The answer: paired differences, best first ----

const MEASURES = {
  cost: { head: "update loss", unit: "per slot", factor: 1, digits: 3, better: -1, pairs: "episodes" },
  accuracy: { head: "accuracy at the end", unit: "points", factor: 100, digits: 2, better: 1, pairs: "seeds" },
  accuracy_over_run: { head: "accuracy over the run", unit: "points", factor: 100, digits: 2, better: 1, pairs: "seeds" },
};
const BROAD = 620; // of a plot with names and numbers beside the intervals [px]

/** Whether a difference is told from zero; pairs that agree to the digit, or few of them, are no evidence. */
const isTold = (fact, pairs) => pairs >= page.least_pairs && fact.half > 0 && Math.abs(fact.mean) > fact.half;

const signed = (value, digits) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);

const answerPlot = {
  rows: [],
  picture: null,

  start() {
    const { reference } = page.answer;
    const usable = page.differences.map((_, index) => index).filter((index) => page.differences[index].some(Boolean));
    byId("differences").hidden = byId("paired").hidden = !usable.length;
    if (!usable.length) return;
    byId("reference").append(...usable.map((index) => html("option", { value: index }, page.schemes[index].label)));
    byId("reference").value = usable.includes(reference) ? reference : usable[0];
    byId("measure").append(...Object.entries(MEASURES).map(([name, { head }]) => html("option", { value: name }, head)));
    byId("measure").value = page.answer.measure;
    this.picture = svg("svg", { role: "img" });
    byId("answer-plot").append(this.picture);
    byId("answer-tools").append(saveSvgButton(() => this.picture, "differences"));
    for (const id of ["reference", "measure"]) byId(id).addEventListener("change", () => this.show());
    keepSchemeSelect("against", byId("reference"));
    keepSelect("measure", byId("measure"));
    new ResizeObserver(() => this.draw()).observe(byId("answer-plot"));
    this.show();
  },

  get reference() { return Number(byId("reference").value); },
  get measure() { return MEASURES[byId("measure").value]; },

  show() {
    const { factor, better, pairs } = this.measure;
    const name = byId("measure").value;
    const others = page.differences[this.reference].map((row, scheme) => ({ row, scheme }))
      .filter(({ row }) => isKnown(row?.[name].mean))
      .map(({ row, scheme }) => ({ scheme, mean: factor * row[name].mean, half: factor * (row[name].half ?? 0),
        pairs: row[pairs], told: isTold(row[name], row[pairs]) }));
    this.rows = [...others, { scheme: this.reference, mean: 0, half: 0, pairs: 0, told: true }]
      .sort((a, b) => better * (b.mean - a.mean));
    this.draw();
    showDifferences(this.reference);
  },

  /** From the least to the largest difference; intervals far beyond are cut. */
  get range() {
    const means = this.rows.map(({ mean }) => mean);
    const [least, most] = [Math.min(...means), Math.max(...means)];
    const reach = 0.35 * (most - least) || 1;
    const low = Math.max(least - reach, Math.min(...this.rows.map(({ mean, half }) => mean - half)));
    const high = Math.min(most + reach, Math.max(...this.rows.map(({ mean, half }) => mean + half)));
    const room = 0.04 * (high - low) || 1;
    return [low - room, high + room];
  },

  text({ scheme, mean, half }) {
    if (scheme === this.reference) return "reference";
    return signed(mean, this.measure.digits) + (half > 0 ? ` ± ${half.toFixed(this.measure.digits)}` : "");
  },

  draw() {
    const width = byId("answer-plot").clientWidth;
    if (!this.picture || !width) return;
    const broad = width >= BROAD;
    const step = broad ? 26 : 40;
    const longest = Math.max(...this.rows.map(({ scheme }) => page.schemes[scheme].label.length));
    const left = broad ? Math.min(34 + 7.2 * longest, 0.34 * width) : 8;
    const place = { left, right: width - (broad ? 128 : 8), top: 6, bottom: 6 + step * this.rows.length, step, width, broad };
    const height = place.bottom + 42;
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) this.picture.setAttribute(name, value);
    this.picture.setAttribute("aria-label", this.description());
    const [low, high] = this.range;
    const x = (value) => place.left + (place.right - place.left) * (Math.min(Math.max(value, low), high) - low) / (high - low);
    this.picture.replaceChildren(...this.frame(place, x), ...this.rows.flatMap((row, number) => this.line(row, number, place, x)));
  },

  description() {
    const each = this.rows.filter(({ scheme }) => scheme !== this.reference)
      .map((row) => `${page.schemes[row.scheme].label} ${this.text(row)}${row.told ? "" : ", not certain"}`);
    return `${this.measure.head}, ${this.measure.unit}, against ${page.schemes[this.reference].label}, best first: ${each.join("; ")}.`;
  },

  frame({ left, right, top, bottom, width, broad }, x) {
    const ticks = niceTicks(...this.range, broad ? 7 : 4);
    const better = this.measure.better < 0 ? "← better" : "better →";
    return [
      ...ticks.map((tick) => svg("path", { class: tick === 0 ? "axis" : "grid", d: `M${x(tick)} ${top}V${bottom}` })),
      ...ticks.map((tick) => svg("text", { x: x(tick), y: bottom + 15, "text-anchor": "middle" }, short(tick))),
      svg("text", { x: this.measure.better < 0 ? left : right, y: bottom + 34, "text-anchor": this.measure.better < 0 ? "start" : "end" }, better),
      svg("text", { x: broad ? (left + right) / 2 : width / 2, y: bottom + 34, "text-anchor": "middle" },
        `${this.measure.head}, ${this.measure.unit}`),
    ];
  },

  /** A name, an interval with its dot, hollow where the difference is not certain, and the number. */
  line(row, number, { left, right, top, step, width, broad }, x) {
    const middle = top + step * (number + 0.5) + (broad ? 0 : 9);
    const colour = schemeColour(row.scheme);
    const words = broad ? middle + 4 : middle - 15;
    const interval = svg("path", { class: "whisker", d: `M${x(row.mean - row.half)} ${middle}H${x(row.mean + row.half)}` });
    const dot = svg("circle", { cx: x(row.mean), cy: middle, r: 5, "stroke-width": 2.2, "data-scheme": row.scheme, "data-told": row.told });
    interval.style.stroke = dot.style.stroke = colour;
    dot.style.fill = row.told ? colour : "var(--card)";
    const name = svg("text", broad ? { class: "name", x: left - 12, y: words, "text-anchor": "end" } : { class: "name", x: 0, y: words },
      shortened(page.schemes[row.scheme].label, broad ? left / 7 : width / 11));
    const value = svg("text", { x: width - 2, y: words, "text-anchor": "end" }, this.text(row));
    return [...(broad ? [] : [svg("path", { class: "grid", d: `M${left} ${middle}H${right}` })]), interval, dot, name, value];
  },
};

const shortened = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, Math.floor(most) - 1))}…` : text);
