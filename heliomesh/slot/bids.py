"""Two short messages a slot: what a device has to give, and what its packet would be worth.

Every slot has three steps, each a pure function of a device's own state and of the messages that it heard:

1. `bid`: each device decides alone whether it trains, and broadcasts its progress and lean after that and its largest
   affordable power.
2. `grant`: each receiver j weighs every neighbour i that it heard,

       g_ij(p) = P(arrival | i alone, p) · (α (S_i − S_j) − a_ji β_j + λ (|x|² − |(1 − α) x + α y|²)),

   with x and y the leans of j and i and α the weight of a lone packet (`slot/learning_model.py`). It names the best
   neighbour, if that is worth anything, and says what it is worth at each power.
3. `choose`: device i takes the action (train or not, power) of the least price net of

       W_i(p) − ½ Σ_k g_k(p_k) (1 − e^{−φ p / p_k}),

   with W_i the sum of the grants that it got, and k over its neighbours' grants to others, which send at p_k at most.
   One half is the chance that they do. Under half duplex the grant that it made itself is lost likewise.

Tensors may have any axes before those that are named; a device alone has none, the simulator (batch, device).
Messages hold what their bytes hold, so simulated devices decide by the numbers that real ones hear:

| message | bytes | content |
|---|---|---|
| bid | 2 | progress in 1/64 slots, modulo 2¹⁶, unsigned, little-endian |
| | 1 | number of the largest affordable power, 0 where there is none |
| | 1 per direction | lean in steps of the largest direction / 127, signed |
| grant | 1 | place of the named device among the receiver's neighbours in rising order, 255 for nobody |
| | 2 per power but 0 | worth in half precision, little-endian |
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heliomesh.slot.ties import TIE, first_least

NOBODY = 255
_PROGRESS_STEPS, _PROGRESS_RANGE = 64.0, 65536.0
_LEAN_STEPS = 127
_MOST_WORTH = 65504.0  # of half precision
_NUDGE = 1e-6  # exact halves round alike on all processors
_SENDS = 0.5  # chance that the device of another's grant sends


class Bid(NamedTuple):
    """What a device has to give."""

    progress: Tensor  # (...) whole steps
    power: Tensor  # (...) number of the largest affordable power; 0: none
    lean: Tensor  # (..., direction) whole steps


class Grant(NamedTuple):
    """Whose packet a receiver wants, and what it is worth to it."""

    place: Tensor  # (...) among its neighbours, or NOBODY
    worth: Tensor  # (..., power) in slots of training; 0 at power 0


@dataclass(frozen=True)
class Terms:
    """What all devices know from the start."""

    power_watt: Tensor  # (power,) rising from 0
    action_power: Tensor  # (action,) number of the action's power
    trained: Tensor  # (action,) bool
    lean_step: float
    waterfall: float
    half_duplex: bool


def lean_step(directions: Tensor) -> float:
    """Length of a step in which leans are told: no lean leaves the hull of the directions (device, direction)."""
    return max(float(directions.abs().max()), TIE) / _LEAN_STEPS if directions.numel() else 1.0


def _rounded(value: Tensor) -> Tensor:
    return (value + 0.5 + _NUDGE).floor()


def bid(terms: Terms, progress: Tensor, lean: Tensor, lean_trained: Tensor, price: Tensor) -> tuple[Bid, Tensor]:
    """What a device says first, and whether it means to train.

    progress (...), lean as it is and after training (..., direction), price (..., action), infinite where not paid
    """
    trains = terms.trained[first_least(price)]
    power = torch.where(price.isinf(), 0, terms.action_power).amax(-1)
    steps = _rounded(_PROGRESS_STEPS * (progress + trains)).remainder(_PROGRESS_RANGE)
    said = torch.where(trains.unsqueeze(-1), lean_trained, lean) / terms.lean_step
    return Bid(steps, power, _rounded(said).clamp(-_LEAN_STEPS, _LEAN_STEPS)), trains


class Listener(NamedTuple):
    """A receiver's own state, and what it knows of its neighbours' packets."""

    progress: Tensor  # (...)
    lean: Tensor  # (..., direction)
    trains: Tensor  # (...)
    share: Tensor  # (..., neighbour) α, weight of a packet that arrives alone
    weight: Tensor  # (..., neighbour) a_ji
    arrival: Tensor  # (..., neighbour, power) probability that a packet arrives, of a neighbour that sends alone


def grant(terms: Terms, own: Listener, bids: Bid, heard: Tensor, bias_weight: float) -> Grant:
    """What a receiver says next, of the bids of its neighbours (..., neighbour) that it heard (..., neighbour)."""
    apart = bids.progress - (_PROGRESS_STEPS * own.progress).unsqueeze(-1)
    ahead = ((apart + _PROGRESS_RANGE / 2).remainder(_PROGRESS_RANGE) - _PROGRESS_RANGE / 2) / _PROGRESS_STEPS
    mine, share = own.lean.unsqueeze(-2), own.share.unsqueeze(-1)
    mixed = (1 - share) * mine + share * (terms.lean_step * bids.lean)
    unbiased = mine.square().sum(-1) - mixed.square().sum(-1)
    value = own.share * ahead - own.weight * own.trains.unsqueeze(-1) + bias_weight * unbiased
    number = torch.arange(len(terms.power_watt), device=value.device)
    paid = heard.unsqueeze(-1) & (number > 0) & (number <= bids.power.unsqueeze(-1))
    worth = torch.where(paid, own.arrival * value.unsqueeze(-1), 0.0)  # (..., neighbour, power)
    most = worth.gather(-1, bids.power.unsqueeze(-1)).squeeze(-1)
    if not most.shape[-1]:
        return Grant(torch.full(most.shape[:-1], NOBODY, device=most.device), worth.sum(-2))
    best = first_least(-most).unsqueeze(-1)
    wanted = most.gather(-1, best) > TIE
    said = worth.gather(-2, best.unsqueeze(-1).expand(*best.shape, len(number))).squeeze(-2)
    said = (said * (1 + _NUDGE)).clamp(0, _MOST_WORTH).half().to(worth) * wanted
    return Grant(torch.where(wanted, best, NOBODY).squeeze(-1), said)


def choose(
    terms: Terms, price: Tensor, granted: Grant, grants: Grant, heard: Tensor, place: Tensor
) -> tuple[Tensor, Tensor]:
    """A device's action (...), and what packets make each action gain (..., action).

    price (..., action), the grant that it made itself, its neighbours' grants (..., neighbour) that it heard
    (..., neighbour), its own place at each of them (..., neighbour)
    """
    to_me = heard & (grants.place == place)
    to_others = heard & (grants.place != NOBODY) & ~to_me
    own = (grants.worth * to_me.unsqueeze(-1)).sum(-2)  # (..., power)
    at_stake = grants.worth.amax(-1) * to_others
    number = torch.arange(len(terms.power_watt), device=price.device)
    most_watt = terms.power_watt[((grants.worth > 0) * number).amax(-1)]  # p_k
    ratio = terms.power_watt / torch.where(most_watt > 0, most_watt, 1.0).unsqueeze(-1)
    destroyed = -torch.expm1(-terms.waterfall * ratio)
    harm = (at_stake.unsqueeze(-1) * destroyed).sum(-2)
    if terms.half_duplex:
        harm = harm + granted.worth.amax(-1, keepdim=True) * (terms.power_watt > 0)
    gains = (own - _SENDS * harm)[..., terms.action_power]
    return first_least(price - gains), gains


def bid_bytes(said: Bid) -> bytes:
    """A device's bid on air."""
    lean = said.lean.cpu().numpy().astype(np.int8).tobytes()
    return struct.pack("<HB", int(said.progress), int(said.power)) + lean


def read_bid(message: bytes) -> Bid:
    """The bid of a message."""
    progress, power = struct.unpack_from("<HB", message)
    lean = torch.from_numpy(np.frombuffer(message, np.int8, offset=3).astype(np.float64))
    return Bid(torch.tensor(float(progress), dtype=torch.float64), torch.tensor(power), lean)


def grant_bytes(said: Grant) -> bytes:
    """A device's grant on air."""
    return struct.pack("<B", int(said.place)) + said.worth[1:].cpu().numpy().astype("<f2").tobytes()


def read_grant(message: bytes) -> Grant:
    """The grant of a message."""
    worth = np.frombuffer(message, "<f2", offset=1).astype(np.float64)
    return Grant(torch.tensor(message[0]), torch.from_numpy(np.concatenate([[0.0], worth])))


def message_bytes(num_directions: int, num_powers: int) -> tuple[int, int]:
    """Bytes of a bid and of a grant."""
    return 3 + num_directions, 1 + 2 * (num_powers - 1)
