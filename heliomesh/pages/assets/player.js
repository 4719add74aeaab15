// ---- Player: time ----

const SPEEDS = [1, 2, 5, 10, 20, 50]; // slots per second
const SNAPSHOT = 0.6; // of a slot: packets are in flight, some are lost already
const TRAINED = 128;
const traced = page.runs.map((_, index) => index).filter((index) => page.runs[index].trace);

/** The best run and, under the same luck, that of the scheme it is measured against; else the first two schemes. */
function firstRuns() {
  const { best, reference } = page.answer;
  const of = (scheme) => traced.filter((index) => page.runs[index].scheme === scheme);
  for (const one of of(best)) {
    const other = of(reference).find((index) => page.runs[index].seeds === page.runs[one].seeds);
    if (other !== undefined) return [one, other];
  }
  const other = traced.find((index) => page.runs[index].scheme !== page.runs[traced[0]].scheme) ?? traced[1];
  return [traced[0], other];
}

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
    links.changed();
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
    byId("slot").textContent = `slot ${slotName(this.slotNow())}${heardSlots ? "" : ` of ${WHOLE.high}`}`;
    byId("scrub").setAttribute("aria-valuetext", byId("slot").textContent);
    this.scenes.forEach((scene) => scene.tell());
    if (!this.playing) links.changed();
    charts.forEach((chart) => chart.showCursor());
    deviceView.showCursor();
  },
};
