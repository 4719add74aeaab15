// ---- One device ----

const selected = { run: firstRuns()[0] ?? 0, device: 0 };

function select(run, device) {
  Object.assign(selected, { run, device });
  deviceView.show();
  player.scenes.forEach((scene) => scene.draw());
  links.changed();
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
    const at_first = { ...selected };
    links.keep("device", () => (selected.device === at_first.device ? null : String(selected.device)),
      (text) => { if (/^\d+$/.test(text)) select(selected.run, Number(text)); });
    links.keep("run", () => (selected.run === at_first.run ? null : page.runs[selected.run].name), (text) => {
      const run = page.runs.findIndex(({ name }) => name === text);
      if (run >= 0) select(run, selected.device);
    });
  },

  show() {
    const run = page.runs[selected.run];
    const { devices, called } = networks[run.scenario];
    selected.device = Math.min(selected.device, devices - 1);
    byId("device-run").value = selected.run;
    byId("device-number").replaceChildren(...Array.from({ length: devices }, (_, device) =>
      html("option", { value: device, selected: device === selected.device }, called(device))));
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
  const share = (test) => percent(codes.filter(test).length / codes.length, 0);
  const sends = (code) => trace.powers_watt[code % TRAINED] > 0;
  const loss = column(trace.update_loss, device);
  const [sent, arrived] = packetsOf(run, device, codes);
  const missed = missedFrames(run, device).length;
  return [
    ...(missed ? [`not heard in ${several(missed, "slot")}, shaded below`] : []),
    `battery of ${short(trace.capacity_joule[device])} J`,
    `trains in ${share((code) => code >= TRAINED)} % of slots, sends in ${share(sends)} %`,
    sent ? `${percent(arrived / sent, 0)} % of its ${sent} packets arrive` : "sends nothing",
    `mean update loss ${fixed(loss.reduce((sum, value) => sum + value, 0) / loss.length, 2)}`,
  ].join("; ");
}

/** Frames in which a watched device was not heard. */
function missedFrames({ live }, device) {
  if (!live) return [];
  const heard = decode(live.heard);
  return Array.from(heardSlots.keys()).filter((frame) => !bitAt(heard, frame, device));
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
  const x = (slot) => 46 + (width - 60) * slot / run.slots;
  const bottom = 306;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${bottom + 36}`, height: bottom + 36, role: "img",
    "aria-label": `Battery, harvest and actions of device ${device} over slots` });
  const line = svg("path", { class: "cursor" });
  const shades = missedFrames(run, device).map((frame) => `M${x(frame)} 0H${x(frame + 1)}V${bottom}H${x(frame)}Z`);
  picture.append(
    svg("path", { class: "missed", d: shades.join("") }),
    ...lane({ run, x, top: 18, bottom: 140, width, title: "battery [J]", most: run.trace.capacity_joule[device] },
      column(run.trace.battery, device), "battery"),
    ...lane({ run, x, top: 164, bottom: 216, width, title: "harvest [J]", most: run.trace.harvested.scale * 255 },
      column(run.trace.harvested, device), "sun"),
    ...actionLane({ run, x, top: 240, bottom, width }, column(run.trace.action, device)),
    ...niceTicks(0, run.slots, width < 400 ? 4 : 8).map((slot) =>
      svg("text", { x: x(slot), y: bottom + 16, "text-anchor": "middle" }, short(slot))),
    svg("text", { x: (46 + width) / 2, y: bottom + 31, "text-anchor": "middle" }, SLOT_AXIS),
    line);
  picture.append(...picture.querySelectorAll(".lane")); // titles last, over the cursor's line
  deviceView.cursor = { line, x, bottom };
  host.append(picture);
}

function laneFrame({ x, top, bottom, run, title, most }) {
  return [
    svg("path", { class: "grid", d: `M${x(0)} ${top}H${x(run.slots)}M${x(0)} ${bottom}H${x(run.slots)}` }),
    svg("text", { class: "lane", x: x(0) + 2, y: top - 5 }, title),
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

/** A bar per slot: as high as the power, pale where the device does not train; a low grey one where it trains only. */
function actionLane(place, codes) {
  const { run, x, top, bottom } = place;
  const powers = run.trace.powers_watt;
  const most = powers.at(-1) || 1;
  const bars = { both: "", sends: "", trains: "" };
  codes.forEach((code, frame) => {
    const power = powers[code % TRAINED];
    if (!(power > 0) && code < TRAINED) return;
    const height = power > 0 ? Math.max(0.12, power / most) * (bottom - top) : 4;
    const width = Math.max(x(page.every) - x(0) - 0.4, 0.6);
    const kind = code < TRAINED ? "sends" : power > 0 ? "both" : "trains";
    bars[kind] += `M${x(frame * page.every).toFixed(1)} ${bottom}v${-height.toFixed(1)}h${width.toFixed(1)}V${bottom}Z`;
  });
  const ink = { both: "arrives", sends: "link", trains: "muted" };
  const paths = Object.keys(bars).filter((kind) => bars[kind]).map((kind) => {
    const bar = svg("path", { d: bars[kind], "data-kind": kind });
    bar.style.fill = `var(--${ink[kind]})`;
    return bar;
  });
  const notes = [bars.sends && "pale: sends only", bars.trains && "low grey: trains only"].filter(Boolean);
  const title = ["sends at [W]", ...notes].join("; ");
  return [...laneFrame({ ...place, title, most }), ...paths];
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
  const { raw, shape: [, classes] } = decode(run.labels);
  const own = Array.from(raw.subarray(device * classes, (device + 1) * classes));
  const most = raw.reduce((best, count) => Math.max(best, count), 1); // of all devices, so that they compare
  const [width, top, bottom] = [Math.max(host.clientWidth, 200), 18, 100];
  const step = (width - 8) / classes;
  const bars = own.flatMap((count, label) => {
    const height = (bottom - top) * count / most;
    const bar = svg("rect", { x: 4 + label * step + step * 0.1, y: bottom - height, width: step * 0.8, height });
    bar.style.fill = "var(--arrives)";
    const text = (content, y) => svg("text", { x: 4 + (label + 0.5) * step, y, "text-anchor": "middle" }, content);
    return step < 22 ? [bar] : [bar, text(String(count), bottom - height - 4), text(String(label), bottom + 15)];
  });
  const total = own.reduce((sum, count) => sum + count, 0);
  host.append(svg("svg", { viewBox: `0 0 ${width} 120`, height: 120, role: "img",
    "aria-label": `${total} samples; by class: ${own.map((count, label) => `${label}: ${count}`).join(", ")}` },
    svg("path", { class: "grid", d: `M4 ${bottom}H${width - 4}` }), ...bars));
}
