"""Devices that say nothing: what one believes of its neighbours, and what it reckons that they would grant it.

A device keeps its neighbours' accounts as it last heard them, together with models. Between two packets it believes
that a neighbour's progress stays as far ahead of its own as it was, and that each model it sent moved the neighbour
as far as such models do in the mean: with a chance c that it arrived and was alone, and the share α of a lone packet,

    S_j − S_i ← (1 − c α) (S_j − S_i),    x_j ← x_j + c α (x_i − x_j).

The neighbour's training, with a chance τ in a slot, leads it the opposite way, x_j ← x_j − τ ε (d_i + x_j).

Before a first packet it believes that the neighbour's data lead the opposite way, x_j = −d_i: so it has something to
tell, and its own packets make it believe so less and less. It sends in its slots of a common frame (`slot/frame.py`)
only, by what neighbours would grant it (`slot/bids.py`) if they were as it believes and heard its bid alone.

Numbers and axes are those of `slot/bids.py`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from heliomesh.slot import bids
from heliomesh.slot.bids import SHARE_BITS, Account, rounded
from heliomesh.slot.frame import FRAME_SLOTS
from heliomesh.slot.learning_model import PULL_BITS

TRAINS = 0.6  # τ, chance that a neighbour trains in a slot
_DRIFT = round(TRAINS * (1 << SHARE_BITS - PULL_BITS))  # τ ε


class Belief(NamedTuple):
    """What a device believes of its neighbours' accounts."""

    ahead: Tensor  # (..., neighbour) progress, less the device's own
    believed: Tensor  # (..., neighbour, direction) leans


class Reach(NamedTuple):
    """What a silent device alone knows of its packets from the start."""

    may_send: Tensor  # (..., slot of the frame) bool
    lands: Tensor  # (..., slot of the frame, neighbour, power) probability that a packet arrives alone
    landed: Tensor  # (..., neighbour, power) the same in the mean over slots in which the device may send
    their_share: Tensor  # (..., neighbour) weight that the neighbour gives to such a packet
    their_weight: Tensor  # (..., neighbour) by which the neighbour's own training in the slot counts, in the mean


def first_belief(direction: Tensor, neighbours: int) -> Belief:
    """Of neighbours that were never heard; direction (..., direction) of the device."""
    ahead = direction.new_zeros(*direction.shape[:-1], neighbours)
    return Belief(ahead, -direction.unsqueeze(-2).expand(*ahead.shape, -1))


def remembered(
    reach: Reach,
    belief: Belief,
    direction: Tensor,
    power: Tensor,
    now: Account,
    after: Account,
    told: Account,
    arrived: Tensor,
) -> Belief:
    """The belief after a slot in which the device of a direction sent at a power (...), 0 for not at all.

    Its accounts before and after averaging, and those (..., neighbour) that came along where a model arrived.
    """
    landed = reach.landed.expand(*power.shape, -1, -1)
    landed = landed.gather(-1, power[..., None, None].expand(*landed.shape[:-1], 1)).squeeze(-1)
    moved = rounded(landed * reach.their_share, SHARE_BITS)
    ahead = belief.ahead - rounded(belief.ahead * moved, SHARE_BITS)
    apart = now.lean.unsqueeze(-2) - belief.believed
    believed = belief.believed + rounded(apart * moved.unsqueeze(-1), SHARE_BITS)
    believed = believed - rounded((direction.unsqueeze(-2) + believed) * _DRIFT, SHARE_BITS)
    heard = bids.ahead_of(told.progress, after.progress.unsqueeze(-1))
    return Belief(torch.where(arrived, heard, ahead), torch.where(arrived.unsqueeze(-1), told.lean, believed))


def choose_silently(
    terms: bids.Terms,
    reach: Reach,
    slot: int,
    account: Account,
    belief: Belief,
    direction: Tensor,
    price: Tensor,
    there: Tensor,
    bias_weight: int,
) -> tuple[Tensor, Tensor]:
    """A device's action (...), and what packets make each action gain (..., action).

    direction (..., direction) and price (..., action) of the device, and which neighbours (..., neighbour) there are
    """
    barred = ~reach.may_send[..., slot % FRAME_SLOTS].unsqueeze(-1) & (terms.action_power > 0)
    price = torch.where(barred, bids.BARRED, price)
    said, _ = bids.bid(terms, account, direction, price)
    ahead, heard = belief.ahead, there.expand_as(belief.ahead)
    listener = bids.Listener(
        account.progress.unsqueeze(-1) + ahead,
        belief.believed,
        heard,
        reach.their_share.unsqueeze(-1),
        reach.their_weight.unsqueeze(-1),
        reach.lands[..., slot % FRAME_SLOTS, :, :].unsqueeze(-2),
        torch.zeros_like(ahead[..., None, None]),  # what others gain, they say themselves
    )
    one = (*ahead.shape, 1)  # each neighbour hears one bid
    lean = said.lean[..., None, None, :].expand(*one, -1)
    alone = bids.Bid(said.progress[..., None, None].expand(one), said.power[..., None, None].expand(one), lean)
    reckoned = bids.grant(terms, listener, alone, heard.unsqueeze(-1), bias_weight)
    own = bids.Grant(torch.full_like(said.power, bids.NOBODY), price.new_zeros(*said.power.shape, len(terms.harm)))
    chosen, gains = bids.choose(terms, price, own, reckoned, heard, torch.zeros_like(reckoned.place))
    return chosen, torch.where(barred, 0, gains)
