"""Two short messages a slot: what a device has to give, and what its packet would be worth.

Every slot has three steps, each a pure function of a device's own state and of the messages that it heard:

1. `bid`: each device decides alone whether it trains, and broadcasts its account after that and its largest
   affordable power. An account is the model's progress and lean (`slot/learning_model.py`).
2. `grant`: each receiver j weighs every neighbour i that it heard, as far as that is `believable`,

       g_ij(p) = P(arrival | i alone, p) · (α (S_i − S_j) − a_ji β_j + λ (|x|² − |(1 − α) x + α y|²)),

   with x and y the leans of j and i and α the weight of a lone packet. It names the neighbour whose packet is worth
   most to all who get it, as far as it heard them: with H_ji the neighbours of j that hear i, and g'_ik what k's bid
   says in place of j's own state,

       max_i  g_ij + Σ_{k ∈ H_ji} g'_ik,

   and says what that packet is worth to itself at each power, if it is worth anything. Receivers that hear the same
   bids so name the same device; if each named whom it gains most from itself, many would be named, and collide.
3. `choose`: device i takes the action (train or not, power) of the least price net of

       W_i(p) − ½ Σ_k g_k(p_k) (1 − e^{−φ p / p_k}),

   with W_i the sum of the grants that it got, and k over its neighbours' grants to others, which send at p_k at most.
   One half is the chance that they do. Under half duplex the grant that it made itself is lost likewise.

Then accounts follow the models: `trained`, and `averaged` with the accounts that came along with models.

All numbers are integers, so simulator, fleet and the C99 of `interop/firmware/bids` decide alike to the bit. Values
are in 2⁻¹⁶ slots of training, shares in 2⁻¹⁵, progress in 1/64 slots, leans in steps of the largest direction / 127,
energies in units of the battery. A product is divided by a power of two and rounded to the nearest, halves to even
numbers (`rounded`): halves away from zero would let leans grow. Other quotients are rounded down. Sums of values stay
within ±2²⁸.

Tensors may have any axes before those that are named; a device alone has none, the simulator (batch, device).

| message | bytes | content |
|---|---|---|
| account | 2 | progress, modulo 2¹⁶, unsigned, little-endian; comes along with a model |
| | 1 per direction | lean, signed |
| bid | 1 | number of the largest affordable power, 0 where there is none |
| | | account |
| grant | 1 | place of the named device among the receiver's neighbours in rising order, 255 for nobody |
| | 2 per power but 0 | worth m · 2ᵉ: m in the 12 low bits, e in the 4 high ones, little-endian |
"""

import struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from heliomesh.slot.learning_model import PULL_BITS
from heliomesh.slot.ties import TIE

NOBODY = 255
VALUE_BITS, SHARE_BITS = 16, 15  # after the point
ONE = 1 << VALUE_BITS  # a slot of training
PROGRESS_STEPS = 64  # in a slot of training
LEAN_STEPS = 127
BARRED = 1 << 30  # price of what a battery does not pay for
_LIMIT = 1 << 28  # of prices and of what others' packets are worth
_PROGRESS_RANGE = 1 << 16
MOST_LEAD = _PROGRESS_RANGE // 2  # that can be told
_WORTH_BITS, _MOST_EXPONENT = 12, 15
_MOST_WORTH = ((1 << _WORTH_BITS) - 1) << _MOST_EXPONENT
_PART_BITS = 8  # of a place between two points of a table of values
_AHEAD_BITS = SHARE_BITS + 6 - VALUE_BITS  # by which progress times a share is finer than a value


class Account(NamedTuple):
    """What a model is made of."""

    progress: Tensor  # (...)
    lean: Tensor  # (..., direction)


class Bid(NamedTuple):
    """What a device has to give."""

    progress: Tensor  # (...) modulo 2¹⁶
    power: Tensor  # (...) number of the largest affordable power; 0: none
    lean: Tensor  # (..., direction)


class Grant(NamedTuple):
    """Whose packet a receiver wants, and what it is worth to it."""

    place: Tensor  # (...) among its neighbours, or NOBODY
    worth: Tensor  # (..., power); 0 at power 0


class Terms(NamedTuple):
    """What all devices know from the start."""

    action_power: Tensor  # (action,) number of the action's power, powers rising from 0
    trained: Tensor  # (action,) bool
    harm: Tensor  # (power of the harmed, power) half the share of a packet that is destroyed
    bias_bits: int  # by which a weight of bias times squared steps of lean is finer than a value
    keeps: str  # who takes the weight of packets that did not arrive: "oneself", "all" or those that "arrived"
    half_duplex: bool
    most_lead: int = MOST_LEAD  # by which a neighbour's progress is believed to be ahead


class Own(NamedTuple):
    """What a device alone knows from the start."""

    direction: Tensor  # (..., direction) in which its data lead
    spent: Tensor  # (..., action) energy
    needed: Tensor  # (..., action) what a battery must hold
    point_bits: Tensor  # (...) log₂ of the distance of two points of its table of values
    entry_bits: Tensor  # (...) log₂ of an entry of that table
    own_weight: Tensor  # (...) a_jj
    weight: Tensor  # (..., neighbour) a_ji
    share: Tensor  # (..., neighbour) α, weight of a packet that arrives alone
    arrival: Tensor  # (..., neighbour, level, power) probability that a packet arrives, of one that sends alone
    place: Tensor  # (..., neighbour) its own place among that neighbour's
    hears: Tensor  # (..., hearing neighbour, neighbour) 1 where they hear each other, else 0


def as_share(number: Tensor) -> Tensor:
    """A share or probability as an integer."""
    return (number * (1 << SHARE_BITS)).round().long()


def lean_step(directions: Tensor) -> float:
    """Length of a step in which leans are told: no lean leaves the hull of the directions (device, direction)."""
    return max(float(directions.abs().max()), TIE) / LEAN_STEPS if directions.numel() else 1.0


def harm_table(power_watt: Tensor, waterfall: float) -> Tensor:
    """½ (1 − e^{−φ p / p_k}); (power of the harmed, power)."""
    ratio = power_watt / torch.where(power_watt > 0, power_watt, torch.inf).unsqueeze(-1)
    return as_share(-torch.expm1(-waterfall * ratio) / 2)


def rounded(product: Tensor, bits: int) -> Tensor:
    """The product / 2^bits, for at least one bit; halves to even numbers."""
    size = product.abs()
    return product.sign() * ((size + ((size >> bits) & 1) + (1 << bits - 1) - 1) >> bits)


def trained(account: Account, direction: Tensor, trains: Tensor) -> Account:
    """S + 1 and x + ε (d − x) where a device trains."""
    lean = torch.where(trains.unsqueeze(-1), lean_after_training(account, direction), account.lean)
    return Account(account.progress + PROGRESS_STEPS * trains, lean)


def lean_after_training(account: Account, direction: Tensor) -> Tensor:
    """The lean x + ε (d − x); (..., direction)."""
    return account.lean + rounded(direction - account.lean, PULL_BITS)


def averaged(terms: Terms, own: Own, account: Account, told: Account, arrived: Tensor) -> Account:
    """S_i + Σ_j share_ij (S_j − S_i), and leans alike, over models of neighbours that arrived (..., neighbour)."""
    weight, unit = own.weight * arrived, 1 << SHARE_BITS
    total = weight.sum(-1)
    if terms.keeps == "oneself":
        scale = torch.full_like(total, unit)
    elif terms.keeps == "all":
        scale = (unit * unit) // (own.own_weight + total).clamp_min(1)
    else:
        scale = ((unit - own.own_weight) * unit) // total.clamp_min(1)
    ahead = ahead_of(told.progress, account.progress.unsqueeze(-1))
    apart = told.lean - account.lean.unsqueeze(-2)
    progress = rounded((weight * ahead).sum(-1) * scale, 2 * SHARE_BITS)
    lean = rounded((weight.unsqueeze(-1) * apart).sum(-2) * scale.unsqueeze(-1), 2 * SHARE_BITS)
    return Account(account.progress + progress, (account.lean + lean).clamp(-LEAN_STEPS, LEAN_STEPS))


def ahead_of(theirs: Tensor, mine: Tensor) -> Tensor:
    """By how much progress is ahead, modulo 2¹⁶."""
    return ((theirs - mine + MOST_LEAD) & (_PROGRESS_RANGE - 1)) - MOST_LEAD


def training_gain(terms: Terms, account: Account, direction: Tensor, bias_weight: int) -> Tensor:
    """1 − λ (|x'|² − |x|²), with x' the lean after training; (...)."""
    after = lean_after_training(account, direction)
    rise = after.square().sum(-1) - account.lean.square().sum(-1)
    return (ONE - rounded(rise * bias_weight, terms.bias_bits)).clamp(-_LIMIT, _LIMIT)


def spending(own: Own, entries: Tensor, battery: Tensor) -> Tensor:
    """What actions cost through the energy they spend, by a table of values: entries (..., point), battery (...)."""
    left = (battery.unsqueeze(-1) - own.spent).clamp_min(0)
    bits = own.point_bits.unsqueeze(-1)
    low, part = left >> bits, ((left << _PART_BITS) >> bits) & ((1 << _PART_BITS) - 1)
    below, above = (entries.expand(*left.shape[:-1], -1).gather(-1, at) for at in (low, low + 1))
    between = rounded(below * ((1 << _PART_BITS) - part) + above * part, _PART_BITS)
    return between << own.entry_bits.unsqueeze(-1)


def price(terms: Terms, own: Own, spending: Tensor, battery: Tensor, gain: Tensor) -> Tensor:
    """What actions cost through their energy (..., action), less what training gains (...).

    An action that the battery (...) does not pay for costs BARRED.
    """
    cost = (spending - terms.trained * gain.unsqueeze(-1)).clamp(-_LIMIT, _LIMIT)
    return torch.where(battery.unsqueeze(-1) < own.needed, BARRED, cost)


def bid(terms: Terms, account: Account, direction: Tensor, price: Tensor) -> tuple[Bid, Tensor]:
    """What a device says first, and whether it means to train; direction (..., direction), price (..., action)."""
    trains = terms.trained[price.argmin(-1)]
    power = torch.where(price == BARRED, 0, terms.action_power).amax(-1)
    after = trained(account, direction, trains)
    return Bid(after.progress & (_PROGRESS_RANGE - 1), power, after.lean), trains


def believable(terms: Terms, bids: Bid, progress: Tensor) -> Bid:
    """Bids (..., neighbour) that are no further ahead of the receiver's progress (...) than neighbours come to be."""
    mine = progress.unsqueeze(-1)
    claimed = mine + ahead_of(bids.progress, mine).clamp(max=terms.most_lead)
    return bids._replace(progress=claimed & (_PROGRESS_RANGE - 1))


class Listener(NamedTuple):
    """A receiver's own state, and what it knows of its neighbours' packets."""

    progress: Tensor  # (...)
    lean: Tensor  # (..., direction)
    trains: Tensor  # (...)
    share: Tensor  # (..., neighbour) α, weight of a packet that arrives alone
    weight: Tensor  # (..., neighbour) a_ji
    arrival: Tensor  # (..., neighbour, power) probability that a packet arrives, of a neighbour that sends alone
    hears: Tensor  # (..., hearing neighbour, neighbour) 1 where they hear each other, else 0


def arrival_at(own: Own, level: Tensor) -> Tensor:
    """`Listener.arrival` at the levels of the channels to neighbours (..., neighbour)."""
    table = own.arrival.expand(*level.shape, -1, -1)
    index = level[..., None, None].expand(*level.shape, 1, table.shape[-1])
    return table.gather(-2, index).squeeze(-2)


def grant(terms: Terms, own: Listener, bids: Bid, heard: Tensor, bias_weight: int) -> Grant:
    """What a receiver says next, of the bids of its neighbours (..., neighbour) that it heard (..., neighbour)."""
    mine, number = own.lean.unsqueeze(-2), torch.arange(len(terms.harm), device=heard.device)
    apart = bids.lean - mine
    ahead = ahead_of(bids.progress, own.progress.unsqueeze(-1))
    value = _packet_value(terms, own.share, ahead, (mine * apart).sum(-1), apart.square().sum(-1), bias_weight)
    value = value - (own.weight << (VALUE_BITS - SHARE_BITS)) * own.trains.unsqueeze(-1)
    paid = heard.unsqueeze(-1) & (number > 0) & (number <= bids.power.unsqueeze(-1))
    worth = rounded(own.arrival * value.clamp(0, _MOST_WORTH).unsqueeze(-1), SHARE_BITS) * paid
    if not heard.shape[-1]:
        return Grant(torch.full(heard.shape[:-1], NOBODY, device=heard.device), worth.sum(-2))
    to_all = (value + _value_to_others(terms, own, bids, heard, bias_weight)).clamp(-_LIMIT, _LIMIT)
    arrives = (own.arrival * paid).gather(-1, bids.power.unsqueeze(-1)).squeeze(-1)
    best = torch.where(arrives > 0, arrives * to_all, -BARRED << SHARE_BITS).neg().argmin(-1, keepdim=True)
    said = worth.gather(-2, best.unsqueeze(-1).expand(*best.shape, len(number))).squeeze(-2)
    said = (said >> _exponent(said)) << _exponent(said)
    return Grant(torch.where(said.amax(-1, keepdim=True) > 0, best, NOBODY).squeeze(-1), said)


def _packet_value(
    terms: Terms, share: Tensor, ahead: Tensor, along: Tensor, apart: Tensor, bias_weight: int
) -> Tensor:
    """α (S_i − S_j) + λ (|x|² − |(1 − α) x + α y|²), by S_i − S_j, x · (y − x) and |y − x|²."""
    rise = rounded(share * (2 * (1 << SHARE_BITS) * along + share * apart), SHARE_BITS)  # of |x|², 2⁻¹⁵ squared steps
    return rounded(share * ahead, _AHEAD_BITS) - rounded(rise * bias_weight, SHARE_BITS + terms.bias_bits)


def _value_to_others(terms: Terms, own: Listener, bids: Bid, heard: Tensor, bias_weight: int) -> Tensor:
    """What a neighbour's packet is worth to those that were heard and hear it too; (..., neighbour)."""
    lean = bids.lean.double()  # whose products are exact
    product = (lean @ lean.mT).long()  # (..., hearing neighbour, neighbour)
    length = product.diagonal(dim1=-2, dim2=-1)
    along = product - length.unsqueeze(-1)
    apart = length.unsqueeze(-2) - product - along
    ahead = ahead_of(bids.progress.unsqueeze(-2), bids.progress.unsqueeze(-1))
    value = _packet_value(terms, own.share.unsqueeze(-2), ahead, along, apart, bias_weight)
    return (value * own.hears * heard.unsqueeze(-1)).sum(-2)


def _exponent(worth: Tensor) -> Tensor:
    """Lowest bits of a worth that its message does not hold."""
    return (worth.double().frexp().exponent - _WORTH_BITS).clamp_min(0).long()


def choose(
    terms: Terms, price: Tensor, granted: Grant, grants: Grant, heard: Tensor, place: Tensor
) -> tuple[Tensor, Tensor]:
    """A device's action (...), and what packets make each action gain (..., action).

    price (..., action), the grant that it made itself, its neighbours' grants (..., neighbour) that it heard
    (..., neighbour), its own place at each of them (..., neighbour)
    """
    to_me = heard & (grants.place == place)
    to_others = heard & (grants.place != NOBODY) & ~to_me
    own = (grants.worth * to_me.unsqueeze(-1)).sum(-2).clamp(max=_LIMIT)  # (..., power)
    at_stake = grants.worth.amax(-1) * to_others
    number = torch.arange(len(terms.harm), device=price.device)
    most_power = ((grants.worth > 0) * number).amax(-1)  # p_k
    harm = rounded(at_stake.unsqueeze(-1) * terms.harm[most_power], SHARE_BITS).sum(-2)
    if terms.half_duplex:
        harm = harm + rounded(granted.worth.amax(-1, keepdim=True), 1) * (number > 0)
    gains = (own - harm.clamp(max=_LIMIT))[..., terms.action_power]
    return (price - gains).argmin(-1), gains


def account_bytes(said: Account | Bid) -> bytes:
    """A device's account on air."""
    lean = said.lean.cpu().numpy().astype(np.int8).tobytes()
    return struct.pack("<H", int(said.progress) % _PROGRESS_RANGE) + lean


def read_account(message: bytes) -> Account:
    """The account of a message."""
    lean = torch.from_numpy(np.frombuffer(message, np.int8, offset=2).astype(np.int64))
    return Account(torch.tensor(int.from_bytes(message[:2], "little")), lean)


def bid_bytes(said: Bid) -> bytes:
    """A device's bid on air."""
    return struct.pack("<B", int(said.power)) + account_bytes(said)


def read_bid(message: bytes) -> Bid:
    """The bid of a message."""
    progress, lean = read_account(message[1:])
    return Bid(progress, torch.tensor(message[0]), lean)


def grant_bytes(said: Grant) -> bytes:
    """A device's grant on air."""
    worth, exponent = said.worth[1:], _exponent(said.worth[1:])
    written = (worth >> exponent) | (exponent << _WORTH_BITS)
    return struct.pack("<B", int(said.place)) + written.cpu().numpy().astype("<u2").tobytes()


def read_grant(message: bytes) -> Grant:
    """The grant of a message."""
    written = np.frombuffer(message, "<u2", offset=1).astype(np.int64)
    worth = (written & ((1 << _WORTH_BITS) - 1)) << (written >> _WORTH_BITS)
    return Grant(torch.tensor(message[0]), torch.from_numpy(np.concatenate([[0], worth])))


def message_bytes(num_directions: int, num_powers: int) -> tuple[int, int]:
    """Bytes of a bid and of a grant."""
    return 3 + num_directions, 1 + 2 * (num_powers - 1)
