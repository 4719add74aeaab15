// ---- Curves: how they are drawn ----

const MARGIN = { left: 54, right: 18, top: 8, bottom: 34 };
const WHOLE = { low: 0, high: Math.max(...page.runs.map((run) => run.slots)) };
const MOST_BANDS = 5; // more of them hide each other and the lines
const view = { ...WHOLE, hidden: new Set(), bands: page.schemes.length <= MOST_BANDS, against: null };
const inView = (slot) => slot >= view.low && slot <= view.high;

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

/** A line's values in view, and where it crosses the ends of the view: evaluations may lie wider apart than the zoom. */
function seen(x, values) {
  const ends = [view.low, view.high].map((slot) => {
    const next = x.findIndex((one) => one >= slot);
    if (next < 1) return NaN;
    return values[next - 1] + (values[next] - values[next - 1]) * (slot - x[next - 1]) / (x[next] - x[next - 1]);
  });
  return [...values.filter((_, index) => inView(x[index])), ...ends.filter(Number.isFinite)];
}

const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

class Chart {
  constructor(settings, host) {
    Object.assign(this, { settings, option: 0, readAt: null, dragFrom: null, series: [] });
    this.picture = svg("svg", { tabindex: 0, role: "img" });
    const names = settings.options.map(([name], index) => html("option", { value: index }, name));
    const select = html("select", { "aria-label": `${settings.title}: what is shown` }, ...names);
    select.addEventListener("change", () => { this.option = Number(select.value); this.read(); this.draw(); });
    keepSelect(settings.title.toLowerCase().replaceAll(" ", "-"), select);
    this.unit = html("span", { class: "muted small" });
    const tools = html("div", { class: "bar one-line" }, select, saveSvgButton(() => this.picture, settings.title, () => this.shown.map(({ index }) => index)));
    const head = html("div", { class: "chart-head" }, html("h3", {}, settings.title, this.unit), tools);
    this.empty = html("p", { class: "empty", hidden: true }, "No run shown here has this curve.");
    host.append(html("div", { class: "chart" }, head, this.picture, this.empty));
    this.listen();
    this.read();
    new ResizeObserver(() => this.draw()).observe(this.picture);
  }

  read() {
    const [, reader, { factor }] = this.settings.options[this.option];
    this.series = page.schemes.map((_, index) => (view.against === null
      ? schemeSeries(index, reader, factor) : differenceSeries(index, view.against, reader, factor)));
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
    this.log = Boolean(this.settings.options[this.option][2].log) && view.against === null
      && shown.every(({ y }) => y.every((value) => value > 0));
    this.unit.textContent = this.unitText();
    this.setScales(shown);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.picture.setAttribute("aria-label", this.description(shown));
    this.marks = svg("g");
    this.cursor = svg("path", { class: "cursor" });
    this.picture.replaceChildren(...this.frame(), ...shown.flatMap((series) => this.curve(series)), this.cursor, this.marks);
    this.showCursor();
  }

  unitText() {
    const { unit, difference } = this.settings;
    return view.against === null ? ` ${[unit, this.log && "log scale"].filter(Boolean).join(", ")}` : ` ${difference}`;
  }

  description(shown) {
    const last = shown.map(({ y, index }) => `${page.schemes[index].label} ${short(y.at(-1))}`);
    const against = view.against === null ? "" : ` to ${page.schemes[view.against].label}`;
    return `${this.settings.title}${this.unitText()}${against}, ${this.settings.options[this.option][0]}, over slots. Last values: ${last.join("; ")}. `
      + "Arrow keys read values, plus and minus zoom.";
  }

  setScales(shown) {
    const bound = (pick, least) => {
      const values = shown.flatMap((one) => seen(one.x, pick(one)));
      return values.reduce((best, value) => (least ? Math.min(best, value) : Math.max(best, value)), least ? Infinity : -Infinity);
    };
    let [low, high] = [bound(({ y }) => y, true), bound(({ y }) => y, false)];
    const reach = view.bands ? 0.4 * (high - low) : 0; // wide bands are cut, lest the lines be flattened
    if (!this.log) {
      low = Math.max(low - reach, bound(({ low: values, y }) => values ?? y, true));
      high = Math.min(high + reach, bound(({ high: values, y }) => values ?? y, false));
    }
    this.blank = !Number.isFinite(low); // every line ends before these slots, or begins after them
    if (this.blank) [low, high] = this.log ? [1, 10] : [0, 1];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    const { most: top = Infinity } = view.against === null ? this.settings.options[this.option][2] : {};
    high = Math.min(high, top - room); // an interval may reach beyond what is possible
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
    const ticks = this.log ? logTicks(...this.range) : niceTicks(...this.range, 5);
    for (const tick of this.blank ? [] : ticks) {
      const y = this.y(tick);
      const zero = view.against !== null && tick === 0; // where the reference is
      parts.push(svg("path", { class: zero ? "axis" : "grid", d: `M${MARGIN.left} ${y}H${right}` }));
      parts.push(svg("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, short(tick)));
    }
    for (const tick of niceTicks(view.low, view.high, this.width < 360 ? 4 : 8)) {
      parts.push(svg("text", { x: this.x(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick)));
    }
    parts.push(svg("path", { class: "axis", d: `M${MARGIN.left} ${MARGIN.top}V${bottom}H${right}` }));
    const middle = { x: (MARGIN.left + right) / 2, "text-anchor": "middle" };
    parts.push(svg("text", { ...middle, y: bottom + 31 }, SLOT_AXIS));
    if (this.blank) parts.push(svg("text", { ...middle, y: (MARGIN.top + bottom) / 2 }, "No value in these slots."));
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
    if (low && view.bands) {
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
    const slots = [...new Set(this.shown.flatMap(({ x }) => x))].filter(inView).sort((a, b) => a - b);
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
    const closer = (x) => (best, one) => (Math.abs(x[one] - slot) < Math.abs(x[best] - slot) ? one : best);
    const rows = this.shown.filter(({ x }) => x.some(inView)).map((series) =>
      ({ ...series, at: [...series.x.keys()].filter((index) => inView(series.x[index])).reduce(closer(series.x)) }));
    if (!rows.length) { this.forget(); return; }
    const all = rows.map(({ x, at }) => x[at]);
    this.readAt = all.reduce((best, one) => (Math.abs(one - slot) < Math.abs(best - slot) ? one : best));
    const there = rows.filter(({ x, at }) => x[at] === this.readAt);
    const line = svg("path", { class: "axis", d: `M${this.x(this.readAt)} ${MARGIN.top}V${this.height - MARGIN.bottom}` });
    this.marks.replaceChildren(line, ...there.map(({ x, y, at, index }) => this.dot([this.x(x[at]), this.y(y[at])], index)));
    showTip(clientX, clientY, `slot ${slotName(this.readAt)}`, there.map(({ y, low, high, at, index }) => {
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
  links.changed();
}

const zoomBy = (factor, centre) => zoomTo(centre - (centre - view.low) * factor, centre + (view.high - centre) * factor);

function showCharts() {
  byId("legend").append(...page.schemes.map((scheme, index) => html("button", {
    type: "button", "aria-pressed": "true", onclick: (event) => toggleScheme(index, event.currentTarget),
  }, lineSwatch(index), scheme.label)));
  startCurveReference();
  for (const settings of CHARTS) charts.push(new Chart(settings, byId("charts")));
  byId("reset-zoom").addEventListener("click", () => zoomTo(WHOLE.low, WHOLE.high));
  byId("bands").addEventListener("click", () => showBands(!view.bands));
  showBands(view.bands);
  keepCurves();
  const bands = page.schemes.some((scheme) => scheme.runs.length > 1)
    ? "Intervals: 95 % over seeds; for a single run, its least and most accurate device."
    : "Interval: least and most accurate device.";
  byId("curves-note").textContent = `${bands} Wide ones are cut. The dashed line is the slot shown below. Drag to zoom, or use the wheel on a chart that was clicked (or with Ctrl); `
    + "double click resets.";
}

function showBands(shown) {
  view.bands = shown;
  byId("bands").textContent = shown ? "Hide intervals" : "Show intervals";
  charts.forEach((chart) => chart.draw());
  links.changed();
}

function toggleScheme(index, button) {
  if (!view.hidden.delete(index)) view.hidden.add(index);
  button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
  charts.forEach((chart) => chart.draw());
  links.changed();
}

/** Differences at first, where all finished schemes share several seeds with the reference. */
function startCurveReference() {
  const usable = page.schemes.map((_, index) => index).filter((index) => page.differences[index].some((row) => row?.seeds));
  const select = byId("curve-reference");
  select.append(html("option", { value: "" }, "as measured"),
    ...usable.map((index) => html("option", { value: index }, `against ${page.schemes[index].label}`)));
  select.parentElement.hidden = !usable.length;
  const { reference } = page.answer;
  const all = reference !== null && page.schemes.every((scheme, index) =>
    index === reference || !scheme.finished || page.differences[reference][index]?.seeds > 1);
  select.value = all ? reference : "";
  const choose = () => {
    view.against = select.value === "" ? null : Number(select.value);
    charts.forEach((chart) => { chart.read(); chart.forget(); chart.draw(); });
  };
  select.addEventListener("change", choose);
  choose();
  keepSelect("curves", select, (value) => (value === "" ? "measured" : page.schemes[value].label),
    (text) => (schemeCalled(text) < 0 ? "" : schemeCalled(text)));
}

function keepCurves() {
  const first = view.bands;
  links.keep("intervals", () => (view.bands === first ? null : view.bands ? "shown" : "hidden"), (text) => showBands(text === "shown"));
  links.keep("slots", () => (view.low === WHOLE.low && view.high === WHOLE.high ? null : `${short(view.low)}-${short(view.high)}`), (text) => {
    const [low, high] = text.split("-").map(Number);
    if (low < high) zoomTo(low, high);
  });
  const buttons = byId("legend").children;
  links.keep("without", () => (view.hidden.size ? [...view.hidden].map((index) => page.schemes[index].label).join("|") : null),
    (text) => text.split("|").map(schemeCalled).filter((index) => index >= 0 && !view.hidden.has(index))
      .forEach((index) => toggleScheme(index, buttons[index])));
}
