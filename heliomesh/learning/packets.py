"""Models as they come over the air: what receivers get of a device's weights, by `learning.on_air`.

A device sends x = w½, or x = Δ = w½ − w where updates are averaged. Receivers average what arrived with their own
weights, which are exact. `heliomesh/scenario/on_air.py` counts the bits.

- ``float16``: x in half precision, rounded to the nearest, within ±65504.
- ``int8``: blocks of 256 parameters share a scale s = max |x| / 127, and x travels as s · ⌊x / s + u⌋ with u uniform
  in (0, 1). So its expectation is x. Rounding to the nearest pulls every average back to the same grid, and steps
  smaller than s / 2 are lost for good: docs/on_air.md has a case of 20 points. u follows from the training seed, the
  slot and the device.
- ``top-k``: k entries, chosen by error feedback. A sender of models keeps h, what it sent last of each entry, first
  the common first model; it sends the entries of w½ with the largest |w½ − h| and sets h to them. What is not sent
  adds up until it is among the largest. A sender of updates keeps e, what it did not send; it sends the largest
  entries of Δ + e. Entries that were not sent are NaN here, and receivers keep their own.

Senders cannot know which packets were lost. Schemes in which receivers add differences to a copy of the sender's
model (Koloskova, Stich and Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
communication", ICML 2019) need every packet: after one loss the copies differ for ever. Here models travel as values,
so a lost packet costs what it carried and nothing later.

Every row is computed alone, so results depend neither on the stack nor on parts of the network.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from heliomesh.common.streams import stream
from heliomesh.scenario.on_air import BLOCK, num_sent
from heliomesh.scenario.schema import Learning

_LARGEST_LEVEL = 127


def is_exact(learning: Learning) -> bool:
    """Whether receivers get a sender's weights bit for bit."""
    return learning.on_air == "float32"


def first_feedback(learning: Learning, first_weights: Tensor) -> Tensor:
    """What a sender of top-k packets remembers before the first: h = w, or e = 0; (parameter,)."""
    return torch.zeros_like(first_weights) if learning.aggregation == "update" else first_weights


def packet(learning: Learning, row: Tensor, feedback: Tensor | None, seed: int, slot: int, device: int) -> Tensor:
    """What receivers get of a device's row x; (parameter,), NaN where an entry was not sent.

    ``feedback`` (parameter,) is the memory of top-k, which is changed in place. ``seed`` is that of the training.
    """
    match learning.on_air:
        case "float32":
            return row
        case "float16":
            return as_float16(row)
        case "int8":
            return as_int8(row, rounding_noise(seed, slot, device, -(-len(row) // BLOCK)))
        case "top-k":
            if feedback is None:
                raise ValueError("feedback: expected the sender's memory, which top-k needs, actual: none")
            sent = num_sent(len(row), learning.top_k_share)
            make = largest_updates if learning.aggregation == "update" else largest_changes
            return make(row, feedback, sent)


def as_float16(row: Tensor) -> Tensor:
    """In half precision and back; (parameter,)."""
    largest = torch.finfo(torch.float16).max
    return row.clamp(-largest, largest).half().to(row.dtype)


def as_int8(row: Tensor, noise: Tensor) -> Tensor:
    """In whole multiples of every block's scale, rounded at random by ``noise`` (block, 256); (parameter,)."""
    blocks = pad(row, (0, -len(row) % BLOCK)).view(-1, BLOCK)
    scale = int8_scale(row).unsqueeze(1)
    uniform = (noise.to(row.device).to(row.dtype) + 0.5) / 256  # bytes travel to the device, not numbers
    levels = torch.floor(blocks / scale + uniform).clamp_(-_LARGEST_LEVEL, _LARGEST_LEVEL)
    return (levels * scale).view(-1)[: len(row)]


def int8_scale(row: Tensor) -> Tensor:
    """The scale of every block; (block,)."""
    scale = pad(row, (0, -len(row) % BLOCK)).view(-1, BLOCK).abs().amax(1) / _LARGEST_LEVEL
    return scale.masked_fill_(scale == 0, 1.0)  # of a block of zeros


def rounding_noise(seed: int, slot: int, device: int, num_blocks: int) -> Tensor:
    """Random bytes of one packet; (block, 256)."""
    words = stream(seed, "rounding", slot, device).integers(2**64, size=num_blocks * BLOCK // 8, dtype=np.uint64)
    words = words.astype("<u8", copy=False)  # the same bytes on every machine
    return torch.from_numpy(words.view(np.uint8)).view(-1, BLOCK)


def largest_changes(row: Tensor, last_sent: Tensor, num_entries: int) -> Tensor:
    """The entries of a model that differ most from what was sent of them last, which follows; (parameter,)."""
    chosen = _largest(row - last_sent, num_entries)
    last_sent[chosen] = row[chosen]
    return _only(row, chosen)


def largest_updates(update: Tensor, unsent: Tensor, num_entries: int) -> Tensor:
    """The largest entries of an update and all that was not sent before; what is left stays; (parameter,)."""
    unsent += update
    chosen = _largest(unsent, num_entries)
    sent = _only(unsent, chosen)
    unsent[chosen] = 0.0
    return sent


def _largest(row: Tensor, num_entries: int) -> Tensor:
    return row.abs().topk(num_entries, sorted=False).indices


def _only(row: Tensor, chosen: Tensor) -> Tensor:
    return torch.full_like(row, torch.nan).index_copy_(0, chosen, row[chosen])
