// ---- Player: the network on its positions ----

const lerp = (from, to, share) => from + (to - from) * share;
const STRIP = 122; // height of the curves below a network [px]
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

/** A device that was not heard: an empty circle, struck through. */
function addMissing(pen, x, y, radius) {
  addCircle(pen, x, y, radius);
  pen.moveTo(x - radius, y + radius); pen.lineTo(x + radius, y - radius);
}

function strokeMissing(pen, add) {
  pen.setLineDash([3, 3]);
  paint(pen, "stroke", inks.drops, 2, add);
  pen.setLineDash([]);
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
      html("div", { class: "bar one-line" }, this.swatch, this.select), this.canvas, this.strip, this.facts);
    host.append(this.card);
    this.select.addEventListener("change", () => { this.setRun(Number(this.select.value)); links.changed(); });
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
    this.heard = this.run.live && decode(this.run.live.heard);
    this.powers = trace.powers_watt;
    this.frames = trace.slot.shape[0];
    this.meanHarvest = this.meanByFrame(this.harvested);
    this.mostHarvest = this.meanHarvest.reduce((most, joule) => Math.max(most, joule), 0);
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
    return bitAt(this.delivered, frame, edge);
  }

  /** Whether nothing is known of a device in a slot: it is off, or out of reach. */
  misses(device, frame = this.frame) { return this.heard !== null && !bitAt(this.heard, frame, device); }

  sinceText(device) {
    let last = this.frame;
    while (last >= 0 && this.misses(device, last)) last -= 1;
    return last < 0 ? "not heard so far" : `not heard since slot ${heardSlots[last]}`;
  }

  layout() {
    this.cardWidth = this.card.clientWidth;
    const width = this.canvas.clientWidth;
    if (!width) return;
    const { points } = this.network;
    const bounds = [0, 1].map((axis) => points.reduce(([low, high], point) =>
      [Math.min(low, point[axis]), Math.max(high, point[axis])], [Infinity, -Infinity]));
    const [across, down] = bounds.map(([low, high]) => Math.max(high - low, 1e-9));
    const pad = 48; // as wide as the widest waves
    const tallest = this.network.devices > 40 ? 600 : 420; // many devices need the room
    this.width = width;
    this.height = Math.round(Math.min(Math.max((width - 2 * pad) * down / across + 2 * pad, 180), tallest));
    this.canvas.style.height = `${this.height}px`;
    this.pen = sharpCanvas(this.canvas, width, this.height);
    const scale = Math.min((width - 2 * pad) / across, (this.height - 2 * pad) / down);
    const middle = bounds.map(([low, high]) => (low + high) / 2);
    this.places = points.map(([x, y]) => [width / 2 + (x - middle[0]) * scale, this.height / 2 + (y - middle[1]) * scale]);
    const apart = this.spacing();
    this.radius = Math.min(Math.max(0.26 * apart, 4), 19);
    this.rim = Math.min(4, 0.08 * apart); // from a device to its arc of harvest
    this.halo = Math.min(1.05 * this.radius, 0.12 * apart); // how far its waves spread beyond that
    this.links = this.linkPath();
    this.ends = this.packetEnds();
    this.stripPen = sharpCanvas(this.strip, width, STRIP);
    this.strip.style.height = `${STRIP}px`;
    this.draw();
    this.tell();
  }

  /** Distance [px] that sizes devices: circles never overlap, but one close pair does not make all others tiny. */
  spacing() {
    const widest = Math.min(this.width, this.height) / 2;
    const nearest = this.places.map(([x, y], one) => this.places.reduce((least, [px, py], other) =>
      (other === one ? least : Math.min(least, Math.hypot(x - px, y - py))), widest)).sort((a, b) => a - b);
    return Math.min(1.8 * nearest[0], nearest[Math.floor(nearest.length / 4)]);
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
      const gap = Math.min(this.radius + this.rim + 2, 0.4 * length);
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
    this.drawPackets();
    this.drawWaves();
    this.drawDevices();
    this.drawStrip();
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
    const { pen, radius, rim, halo } = this;
    const most = this.powers.at(-1) || 1;
    const grown = clamped(player.phase / 0.7);
    pen.globalAlpha = 0.75 * (1 - 0.7 * grown * clamped((player.phase - 0.6) / 0.4));
    paint(pen, "stroke", inks.muted, 1.5, () => this.places.forEach(([x, y], device) => {
      const share = this.power(device) / most;
      if (share > 0) addCircle(pen, x, y, radius + rim + 3 + halo * (0.15 + 0.85 * share) * grown);
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
    const { pen, radius, rim, places } = this;
    const each = (test, add) => () => places.forEach((place, device) => { if (test(device)) add(place, device); });
    const circle = (grow) => ([x, y]) => addCircle(pen, x, y, radius + grow);
    const heard = (device) => !this.misses(device);
    const sunny = this.harvested.scale * 255 || 1;
    paint(pen, "fill", inks.card, 1, each(() => true, circle(rim + 1)));
    paint(pen, "fill", inks.battery, 1, each(heard, ([x, y], device) => addSegment(pen, x, y, radius, this.level(device))));
    paint(pen, "stroke", inks.muted, 1, each((device) => heard(device) && !this.trains(device), circle(0)));
    paint(pen, "stroke", inks.text, 3, each((device) => this.trains(device), circle(0)));
    strokeMissing(pen, each((device) => !heard(device), ([x, y]) => addMissing(pen, x, y, radius)));
    paint(pen, "stroke", inks.sun, radius > 8 ? 3 : 2, each(heard, ([x, y], device) => {
      const sweep = 2 * Math.PI * this.at(this.harvested, device) / sunny;
      pen.moveTo(x, y - radius - rim);
      pen.arc(x, y, radius + rim, -Math.PI / 2, -Math.PI / 2 + sweep);
    }));
    if (selected.device < places.length) {
      paint(pen, "stroke", inks.accent, 2, () => circle(rim + 4)(places[selected.device]));
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
    pen.clearRect(0, 0, this.width, STRIP);
    for (const [alpha, from, to] of [[0.25, 0, this.width], [1, 0, x(now)]]) {
      pen.save();
      pen.beginPath(); pen.rect(from, 0, to - from, STRIP); pen.clip();
      pen.globalAlpha = alpha;
      this.stripSun(pen, x);
      this.stripAccuracy(pen, x, curves);
      pen.restore();
    }
    paint(pen, "stroke", inks.text, 1, () => [[20, 52], [70, STRIP]].forEach(([top, bottom]) => {
      pen.moveTo(x(now), top);
      pen.lineTo(x(now), bottom);
    }));
    this.stripMark(pen);
    this.stripTexts(pen);
  }

  /** A sun that is larger and brighter the more is harvested in this slot. */
  stripMark(pen) {
    const share = clamped(this.meanHarvest[this.frame] / (this.mostHarvest || 1));
    pen.globalAlpha = 0.2 + 0.8 * share;
    drawSunMark(pen, 11, 10, 2.5 + 2.5 * share);
    pen.globalAlpha = 1;
  }

  stripSun(pen, x) {
    const most = this.mostHarvest || 1;
    paint(pen, "fill", inks.sun, 1, () => {
      pen.moveTo(x(0), 52);
      this.meanHarvest.forEach((joule, frame) => {
        pen.lineTo(x(frame * page.every), 52 - 30 * joule / most);
        pen.lineTo(x((frame + 1) * page.every), 52 - 30 * joule / most);
      });
      pen.lineTo(x(this.run.slots), 52);
    });
  }

  stripAccuracy(pen, x, { slots, accuracy }) {
    paint(pen, "stroke", inks.schemes[this.run.scheme], 2, () => slots.forEach((slot, index) => {
      pen[index ? "lineTo" : "moveTo"](x(slot), STRIP - 2 - (STRIP - 74) * accuracy[index]);
    }));
  }

  stripTexts(pen) {
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    pen.fillStyle = inks.muted;
    pen.fillText("harvest of the mean device", 26, 14);
    pen.fillText(this.run.done ? "accuracy of the mean device, 0 to 100 %" : "no accuracy known yet", 4, 66);
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
      ["accuracy", this.accuracyNow() === null ? UNKNOWN : `${percent(this.accuracyNow())} %`],
      ["battery", `${fixed(sum((device) => this.at(this.battery, device)) / devices, 2)} J`],
      ["training", `${all.filter((device) => this.trains(device)).length} of ${devices}`],
      ["sending", `${all.filter((device) => this.power(device) > 0).length} of ${devices}`],
      ["arrived", `${sent.filter((edge) => this.delivers(edge)).length} of ${several(sent.length, "packet")}`],
      ["update loss", fixed(sum((device) => this.at(this.update_loss, device)), 2)],
    ];
    const missing = all.filter((device) => this.misses(device));
    if (this.run.live) facts.unshift(["heard", `${devices - missing.length} of ${devices}`]);
    this.facts.replaceChildren(...facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value))));
    const text = [...facts.map(([name, value]) => `${name} ${value}`),
      ...missing.map((device) => `device ${this.network.called(device)} ${this.sinceText(device)}`)].join(", ");
    this.canvas.setAttribute("aria-label", `Network of ${runLabel(this.run)}, slot ${slotName(player.slotNow())}: ${text}`);
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
    const name = `device ${this.network.called(device)}`;
    if (this.misses(device)) {
      showTip(event.clientX, event.clientY, `${name}: ${this.sinceText(device)}`, [
        [null, "battery then", `${fixed(this.at(this.battery, device), 2)} J`],
      ]);
      return;
    }
    showTip(event.clientX, event.clientY, name, [
      [null, "battery", `${fixed(this.at(this.battery, device), 2)} J`],
      [null, "action", actionText(this.trains(device), this.power(device))],
      [null, "harvest", `${fixed(this.at(this.harvested, device), 2)} J`],
      [null, "update loss", fixed(this.at(this.update_loss, device), 2)],
    ]);
  }
}

const actionText = (trains, power) => {
  if (!trains) return power > 0 ? `sends only, at ${short(power)} W` : "idle";
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
  missing: (pen) => strokeMissing(pen, () => addMissing(pen, 13, 13, 9)),
};

function drawKey() {
  byId("missing-key").hidden = !heardSlots;
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
  const [first, other] = firstRuns();
  player.scenes.push(new Scene(byId("players"), first));
  byId("two").hidden = other === undefined;
  if (other !== undefined && window.matchMedia("(min-width: 1000px)").matches) showSecond(other);
  byId("two").addEventListener("click", () => (player.scenes.length > 1 ? hideSecond() : showSecond(other)));
  listenToTransport();
  player.seek(firstFrame());
  keepPlayers();
}

/** Of a live network the newest slot is shown. */
function firstFrame() { return heardSlots ? player.frames - 1 : 0; }

/** The slot, and the runs of the players by their folders. */
function keepPlayers() {
  links.keep("slot", () => (player.frame !== firstFrame() ? String(player.slotNow()) : null),
    (text) => {
      if (!(Number(text) >= 1)) return;
      player.pause();
      player.seek(Math.min(Math.floor((Number(text) - 1) / page.every), player.frames - 1));
    });
  const names = () => player.scenes.map((scene) => page.runs[scene.index].name).join("|");
  const at_first = names();
  links.keep("players", () => (names() === at_first ? null : names()), (text) => {
    const runs = text.split("|").map((name) => traced.find((index) => page.runs[index].name === name)).filter((index) => index !== undefined);
    if (!runs.length) return;
    if (runs.length < player.scenes.length) hideSecond();
    runs.slice(0, 2).forEach((run, number) => (player.scenes[number] ? player.scenes[number].setRun(run) : showSecond(run)));
  });
}

function showSecond(index) {
  player.scenes.push(new Scene(byId("players"), index));
  byId("two").setAttribute("aria-pressed", "true");
  byId("two").textContent = "One player";
  links.changed();
}

function hideSecond() {
  player.scenes.pop().card.remove();
  byId("two").setAttribute("aria-pressed", "false");
  byId("two").textContent = "Two players";
  links.changed();
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
