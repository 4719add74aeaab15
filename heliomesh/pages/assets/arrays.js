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

/** Whether a bit of a decoded (row, column) array is set. */
function bitAt({ raw, shape }, row, index) {
  const bit = row * shape[1] + index;
  return Boolean(raw[bit >> 3] & (1 << (bit & 7)));
}

// of a network that is watched: slots that were heard, by their own numbers
const heardSlots = page.runs[0]?.live ? numbers(page.runs[0].live.slot) : null;

/** A slot's name by how many slots are over with it: of a live network its own number, which agents print too. */
const slotName = (done) => (heardSlots ? heardSlots[Math.min(Math.max(Math.ceil(done), 1), heardSlots.length) - 1] : done);
const SLOT_AXIS = heardSlots ? "slots heard, in order" : "slot";

const networks = page.scenarios.map(({ network }) => {
  const flat = numbers(network.position_metre);
  return {
    devices: network.devices,
    called: (device) => (network.names[device] ? `${device}, ${network.names[device]}` : String(device)),
    points: Array.from({ length: network.devices }, (_, device) => [flat[2 * device], flat[2 * device + 1]]),
    receiver: decode(network.receiver).raw,
    sender: decode(network.sender).raw,
  };
});
