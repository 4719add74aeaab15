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
    called: (device) => (network.names[device] ? `${device}, ${network.names[device]}` : String(device)),
    points: Array.from({ length: network.devices }, (_, device) => [flat[2 * device], flat[2 * device + 1]]),
    receiver: decode(network.receiver).raw,
    sender: decode(network.sender).raw,
  };
});
