"""A small model of learning: whose training is in whose model.

Let C_ik be how many slots of device k's training are in device i's model. Training adds one to C_ii. Averaging mixes
the rows of C exactly as it mixes weights. Suppose that a slot of training at device k moves a model by g + d_k: by
progress g that all data share, and by a pull d_k towards k's own data. Device i's model has then moved by

    S_i g + Σ_k C_ik d_k,    S_i = Σ_k C_ik,

and its loss is, in units of one slot of training,

    −S_i + λ B_i,    B_i = Σ_k (C_ik − S_i / m)².

S_i is *progress*. It is not the number of slots trained: averaging with whoever has more progress raises it, with
whoever has less lowers it. B_i is *bias*: how unevenly devices' training is in the model. Averaging lowers it by a
share 1 − ρ a slot. So bias matters at a deadline, by λ_end, and before it as far as it is still there by then; and
all along, by λ_run, since a biased model trains less well:

    λ_t = λ_run + λ_end ρ^(deadline − t).

A device that trains gains 1 − λ_t (its rise of B_i). Close to a deadline that turns negative where data are unlike:
devices then only send. Rows are kept in the coordinates of the pulls: X_i = Σ_k C_ik d_k with centred, orthogonal
d_k, so that B_i = |X_i|². Networks of more devices than `_EXACT_DIRECTIONS` have random directions, which keep
lengths on average.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.problem.exchange import Network
from heliomesh.problem.problem import Problem
from heliomesh.scenario import Scenario
from heliomesh.streams import stream

_EXACT_DIRECTIONS = 256
END_OVER_RUN = 40.0  # λ_end / λ_run
PERIOD_SLOTS = 25  # between deadlines where models must be good all along


@dataclass(frozen=True)
class Contributions:
    """What every device's model is made of."""

    progress: Tensor  # (batch, device) S_i, in slots of training
    pull: Tensor  # (batch, device, direction) X_i

    @property
    def bias(self) -> Tensor:
        """B_i = |X_i|²; (batch, device)."""
        return self.pull.square().sum(-1)


@dataclass(frozen=True)
class LearningModel:
    """How contributions move, and what training and packets are worth."""

    problem: Problem

    @cached_property
    def network(self) -> Network:
        """Edges and weights."""
        return Network(self.problem)

    @cached_property
    def directions(self) -> Tensor:
        """Pulls d_k of all devices, centred; (device, direction)."""
        devices, place = self.problem.num_devices, self.problem.device
        if devices <= _EXACT_DIRECTIONS:
            rows = torch.eye(devices, dtype=torch.float64, device=place)
        else:
            signs = stream(self.problem.scenario.seed, "policy").choice([-1.0, 1.0], (devices, _EXACT_DIRECTIONS))
            rows = torch.from_numpy(signs / math.sqrt(_EXACT_DIRECTIONS)).to(place)
        return rows - rows.mean(0)

    @property
    def _keeps(self) -> str:
        """Who takes the weight of packets that did not arrive: nobody else, all, or those that did."""
        return {"model": "oneself", "reassigned": "arrived"}.get(self.problem.scenario.learning.aggregation, "all")

    def first(self, batch: int) -> Contributions:
        """Nobody has trained."""
        devices, place = self.problem.num_devices, self.problem.device
        progress = torch.zeros(batch, devices, dtype=torch.float64, device=place)
        return Contributions(progress, progress.new_zeros(batch, *self.directions.shape))

    def trained(self, now: Contributions, trained: Tensor) -> Contributions:
        """After the training of some devices, (batch, device) bool."""
        return Contributions(now.progress + trained, now.pull + trained.unsqueeze(-1) * self.directions)

    def averaged(self, now: Contributions, arrived: Tensor) -> Contributions:
        """After averaging with what arrived, (batch, edge) bool."""
        share = self._shares(self.network.edge_weight * arrived)
        return Contributions(self._mixed(now.progress.unsqueeze(-1), share).squeeze(-1), self._mixed(now.pull, share))

    def _shares(self, weight: Tensor) -> Tensor:
        """What receivers make of the weights a_ij of packets that arrived, 0 for others; (batch, edge)."""
        network, own = self.network, self.network.own_weight
        if self._keeps == "oneself":
            return weight
        total = torch.zeros_like(own).expand(len(weight), -1).index_add(1, network.receiver, weight)
        scale = 1 / (own + total) if self._keeps == "all" else (1 - own) / total.clamp_min(_NOTHING)
        return weight * scale[:, network.receiver]

    def _mixed(self, rows: Tensor, share: Tensor) -> Tensor:
        """rows_i + Σ_j share_ij (rows_j − rows_i); (batch, device, column), (batch, edge)."""
        network = self.network
        difference = rows[:, network.sender] - rows[:, network.receiver]
        return rows.index_add(1, network.receiver, share.unsqueeze(-1) * difference)

    def training_value(self, now: Contributions, bias_weight: float) -> Tensor:
        """What a slot of training is worth to the device itself: 1 − λ (2 X_i·d_i + |d_i|²); (batch, device)."""
        rise = 2 * (now.pull * self.directions).sum(-1) + self.directions.square().sum(-1)
        return 1 - bias_weight * rise

    def packet_value(self, now: Contributions, bias_weight: float) -> Tensor:
        """What one packet is worth to its receiver, by the training of both ends in this slot.

        The receiver moves a share α towards the sender: α (S_j − S_i) + λ (|x|² − |(1 − α) x + α y|²), x and y their
        pulls. (batch, edge, receiver trains, sender trains).
        """
        network, own = self.network, self.directions
        receiver, sender, share = network.receiver, network.sender, self._lone_share
        x, y, dx, dy = now.pull[:, receiver], now.pull[:, sender], own[receiver], own[sender]
        xx, yy, xy = x.square().sum(-1), y.square().sum(-1), (x * y).sum(-1)
        x_dx, y_dx, x_dy, y_dy = (x * dx).sum(-1), (y * dx).sum(-1), (x * dy).sum(-1), (y * dy).sum(-1)
        dxx, dyy, dxy = dx.square().sum(-1), dy.square().sum(-1), (dx * dy).sum(-1)
        ahead = now.progress[:, sender] - now.progress[:, receiver]
        found = []
        for i_trains in (0, 1):
            for j_trains in (0, 1):
                before = xx + i_trains * (2 * x_dx + dxx)
                other = yy + j_trains * (2 * y_dy + dyy)
                product = xy + i_trains * y_dx + j_trains * x_dy + i_trains * j_trains * dxy
                after = (1 - share) ** 2 * before + share**2 * other + 2 * share * (1 - share) * product
                found.append(share * (ahead + j_trains - i_trains) + bias_weight * (before - after))
        return torch.stack(found, -1).reshape(*ahead.shape, 2, 2)

    @cached_property
    def _lone_share(self) -> Tensor:
        """Weight of a packet that arrives alone; (edge,)."""
        weight, own = self.network.edge_weight, self.network.own_weight[self.network.receiver]
        return {"oneself": weight, "all": weight / (weight + own), "arrived": 1 - own}[self._keeps]


_NOTHING = 1e-300  # keeps a quotient finite where nothing arrived


def slots_to_deadline(problem: Problem) -> npt.NDArray[np.float64]:
    """Slots from each slot to the next after which models must be good, infinite where there is none; (slot,)."""
    slots, wanted = problem.slots, problem.scenario.cost.deadline
    if wanted == "end":
        done = [slots]
    elif wanted == "always":
        done = [*range(PERIOD_SLOTS, slots, PERIOD_SLOTS), slots]
    else:
        done = sorted({int(slot) for slot in wanted})
    last = np.array([*(number - 1.0 for number in done), np.inf])
    now = np.arange(slots)
    ahead: npt.NDArray[np.float64] = last[np.searchsorted(last, now)] - now
    return ahead


def bias_weights(problem: Problem, kept: float) -> list[float]:
    """λ_t of every slot; ``kept`` is ρ, the share of bias that a slot's averaging leaves."""
    near = kept ** slots_to_deadline(problem)
    weights: list[float] = (unlikeness(problem.scenario) * (1 + END_OVER_RUN * near)).tolist()
    return weights


def unlikeness(scenario: Scenario) -> float:
    """λ_run: given, as a pilot finds it, or guessed from how labels are spread over devices.

    The guess is of the mean squared distance between a device's label law and the law of all, h = Σ_l E (p_l − p̄_l)²,
    for ten labels: 0 for equal parts, .9 / (10 α + 1) for Dirichlet ones, 1/n − 1/10 for n labels a device.
    """
    given, learning = scenario.cost.unlikeness, scenario.learning
    if given is not None:
        return given
    distance = {
        "iid": 0.0,
        "dirichlet": (1 - 1 / _LABELS) / (_LABELS * learning.alpha + 1),
        "shards": max(1 / learning.shards_per_device - 1 / _LABELS, 0.0),
        "indices": _ANY_DISTANCE,
    }[learning.partition]
    return guessed_unlikeness(distance)


def guessed_unlikeness(label_distance: float) -> float:
    """λ_run from the mean squared distance of label laws; fitted to the best of a grid on Fashion-MNIST."""
    return _ALIKE + _PER_DISTANCE * label_distance


_LABELS = 10
_ANY_DISTANCE = 0.1  # between equal parts and very unlike ones
_ALIKE, _PER_DISTANCE = 0.005, 0.12
