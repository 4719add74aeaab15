"""A small model of learning: how much training is in a model, and towards whose data it leans.

A slot of training at device k moves a model in two ways: by a step of progress that all data share, and by a share ε
of its way to where k's own data alone would lead, d_k. So a model has *progress* S, in slots of training, and a
*lean* X, and training at home does

    S_i ← S_i + 1,    X_i ← (1 − ε) X_i + ε d_i.

Averaging mixes both as it mixes weights. Progress is therefore not the number of slots trained: averaging with
whoever has more raises it, with whoever has less lowers it. The leans of all devices together cancel, Σ_k d_k = 0: a
model in which all have their equal part leans nowhere. What is averaged away by later packets fades like what was
trained long ago, (1 − ε)^n after n slots of training. Where one packet replaces a model, variety comes from whose
training follows whose, so memory must outlast a round of all devices: with ε = ½ two devices that take turns seem
as good as all. A model's loss is, in units of one slot of training,

    −S_i + λ_t B_i,    B_i = |X_i|²,    λ_t = (λ + λ_end ρ^(deadline − t)) / 2ε.

*Bias* B_i costs all along, since a biased model trains less well (λ), and costs most when the model is used (λ_end),
so far as averaging, which leaves a share ρ of it a slot, will not have undone it by then. A device that trains gains
1 − λ_t (rise of B_i). Close to a deadline that turns negative where data are unlike: devices then only send.

Unless labels tell the d_k (`slot/leans.py`), they are taken as orthogonal but for their sum, which is zero. Networks
of more devices than `_EXACT_DIRECTIONS` then have random directions, which keep lengths on average.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.streams import stream
from heliomesh.model.problem import Problem
from heliomesh.scenario.scenario import Scenario
from heliomesh.slot.packet_market import EdgeTensors

_EXACT_DIRECTIONS = 256
PULL_BITS = 3
_PULL = 2.0**-PULL_BITS  # ε, of a slot's training
_END_OVER_RUN = 70.0  # λ_end / λ: devices stop training about ten slots before a deadline
_MOST_RUN_WEIGHT = (
    1.6 / _PULL
)  # far from deadlines: |X|² rises by ε/2 a slot at most, so training costs 0.8 of a slot
_REFERENCE_SLOTS = 200  # of the horizon to which numbers for unlikeness refer
_KEEPS = {"model": "oneself", "reassigned": "arrived", "renormalized": "all"}
_ASSUMED = "renormalized"  # of rules whose shares are not known
PERIOD_SLOTS = 25  # between deadlines where models must be good all along


@dataclass(frozen=True)
class Contributions:
    """What every device's model is made of."""

    progress: Tensor  # (batch, device) S_i, in slots of training
    lean: Tensor  # (batch, device, direction) X_i

    @property
    def bias(self) -> Tensor:
        """B_i = |X_i|²; (batch, device)."""
        return self.lean.square().sum(-1)


@dataclass(frozen=True)
class LearningModel:
    """How contributions move, and what training and packets are worth."""

    problem: Problem
    given: Tensor | None = None  # (device, direction), as `slot/leans.py` finds them; None: one per device

    @cached_property
    def network(self) -> EdgeTensors:
        """Edges and weights."""
        return EdgeTensors(self.problem)

    @cached_property
    def directions(self) -> Tensor:
        """Where each device's own data lead, d_k, centred; (device, direction)."""
        if self.given is not None:
            return self.given
        devices, place = self.problem.num_devices, self.problem.device
        if devices <= _EXACT_DIRECTIONS:
            rows = torch.eye(devices, dtype=torch.float64, device=place)
        else:
            signs = stream(self.problem.scenario.seed, "policy").choice([-1.0, 1.0], (devices, _EXACT_DIRECTIONS))
            rows = torch.from_numpy(signs / math.sqrt(_EXACT_DIRECTIONS)).to(place)
        return rows - rows.mean(0)

    @property
    def keeps(self) -> str:
        """Who takes the weight of packets that did not arrive: nobody else, all, or those that did."""
        return _KEEPS.get(self.problem.scenario.learning.aggregation, _KEEPS[_ASSUMED])

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is not as the scenario says, a sentence each."""
        rule = self.problem.scenario.learning.aggregation
        return () if rule in _KEEPS else (f"learning.aggregation {rule!r} is planned for as if it were {_ASSUMED!r}",)

    def first(self, batch: int) -> Contributions:
        """Nobody has trained."""
        devices, place = self.problem.num_devices, self.problem.device
        progress = torch.zeros(batch, devices, dtype=torch.float64, device=place)
        return Contributions(progress, progress.new_zeros(batch, *self.directions.shape))

    def trained(self, now: Contributions, trained: Tensor) -> Contributions:
        """After the training of some devices, (batch, device) bool."""
        lean = torch.where(trained.unsqueeze(-1), self.lean_after_training(now), now.lean)
        return Contributions(now.progress + trained, lean)

    def lean_after_training(self, now: Contributions) -> Tensor:
        """(1 − ε) X_i + ε d_i of every device; (batch, device, direction)."""
        return torch.lerp(now.lean, self.directions.expand_as(now.lean), _PULL)

    def averaged(self, now: Contributions, arrived: Tensor) -> Contributions:
        """After averaging with what arrived, (batch, edge) bool."""
        share = self.shares(arrived)
        return Contributions(self._mixed(now.progress.unsqueeze(-1), share).squeeze(-1), self._mixed(now.lean, share))

    def shares(self, arrived: Tensor) -> Tensor:
        """Weights by which receivers average what arrived, (batch, edge) bool; 0 for what did not; (batch, edge)."""
        network, own = self.network, self.network.own_weight
        weight = network.edge_weight * arrived
        if self.keeps == "oneself":
            return weight
        total = torch.zeros_like(own).expand(len(weight), -1).index_add(1, network.receiver, weight)
        scale = 1 / (own + total) if self.keeps == "all" else (1 - own) / total.clamp_min(_NOTHING)
        return weight * scale[:, network.receiver]

    def _mixed(self, rows: Tensor, share: Tensor) -> Tensor:
        """rows_i + Σ_j share_ij (rows_j − rows_i); (batch, device, column), (batch, edge)."""
        episode, edge = share.nonzero(as_tuple=True)  # few packets arrive
        first = episode * rows.shape[1]
        receiver, sender = first + self.network.receiver[edge], first + self.network.sender[edge]
        flat = rows.flatten(0, 1)
        difference = flat.index_select(0, sender) - flat.index_select(0, receiver)
        return flat.index_add(0, receiver, share[episode, edge].unsqueeze(-1) * difference).view(rows.shape)

    def training_value(self, now: Contributions, bias_weight: float) -> Tensor:
        """What a slot of training is worth to the device itself: 1 − λ_t (rise of B_i); (batch, device)."""
        return 1 - bias_weight * (self.lean_after_training(now).square().sum(-1) - now.bias)

    def packet_value(self, now: Contributions, bias_weight: float) -> Tensor:
        """What one packet is worth to its receiver, by the training of both ends in this slot.

        The receiver moves a share α towards the sender: α (S_j − S_i) + λ_t (|x|² − |(1 − α) x + α y|²), x and y
        their leans. The receiver's own training counts by a_ij in S_i and not at all in x: several packets would else
        each be charged, or credited, with undoing it. (batch, edge, receiver trains, sender trains).
        """
        network, share = self.network, self.lone_share
        receiver, sender = network.receiver, network.sender
        x, before = now.lean.index_select(1, receiver), now.bias[:, receiver]
        ahead = now.progress[:, sender] - now.progress[:, receiver]
        found = []
        for j_trains, lean in enumerate((now.lean, self.lean_after_training(now))):
            length = lean.square().sum(-1)[:, sender]  # |y|²
            along = (x * lean.index_select(1, sender)).sum(-1)
            after = (1 - share) ** 2 * before + share**2 * length + 2 * share * (1 - share) * along
            found.append(share * (ahead + j_trains) + bias_weight * (before - after))
        by_sender = torch.stack(found, -1)
        return torch.stack([by_sender, by_sender - network.edge_weight.unsqueeze(-1)], 2)

    @cached_property
    def lone_share(self) -> Tensor:
        """Weight of a packet that arrives alone; (edge,)."""
        weight, own = self.network.edge_weight, self.network.own_weight[self.network.receiver]
        return {"oneself": weight, "all": weight / (weight + own), "arrived": 1 - own}[self.keeps]


_NOTHING = 1e-300  # keeps a quotient finite where nothing arrived


def deadlines(problem: Problem) -> list[int]:
    """Numbers of slots after which models must be good, rising; of a cycle, those of each."""
    slots, wanted = problem.slots, problem.scenario.cost.deadline
    if wanted == "end":
        return [] if problem.endless else [slots]
    if wanted == "always":
        return [*range(PERIOD_SLOTS, slots, PERIOD_SLOTS), slots]
    return sorted({int(slot) for slot in wanted})


def slots_to_deadline(problem: Problem) -> npt.NDArray[np.float64]:
    """Slots from each slot to the next after which models must be good, infinite where there is none; (slot,)."""
    done = deadlines(problem)
    beyond = done[0] - 1.0 + problem.slots if problem.endless and done else np.inf  # the next cycle's first
    last = np.array([*(number - 1.0 for number in done), beyond])
    now = np.arange(problem.slots)
    ahead: npt.NDArray[np.float64] = last[np.searchsorted(last, now)] - now
    return ahead


def bias_weights(problem: Problem, kept: float, run_weight: float | None = None) -> tuple[float, ...]:
    """λ_t of every slot; ``kept`` is ρ, the share of bias that a slot's averaging leaves, ``run_weight`` λ.

    Progress serves all deadlines to come, and bias at the next one only that one: it weighs less, the more follow, by
    the square of their number. (By the number itself devices hardly ever trained.) A slot of training brings less,
    the more there were, about as 1 / S; so bias weighs more over long horizons. Far from deadlines it never weighs
    so much that training a model without bias would not pay: else nobody would ever train. Around a cycle the
    horizon, and as many deadlines as fall into it, is always still to come.
    """
    of_200 = unlikeness(problem.scenario) if run_weight is None else run_weight
    horizon, done = problem.scenario.slots, deadlines(problem)
    weight = horizon / _REFERENCE_SLOTS * of_200 / (2 * _PULL)
    following = len(done) - np.searchsorted(done, np.arange(problem.slots), side="right")
    if problem.endless:
        following = np.full(problem.slots, len(done) * horizon // problem.slots)
    near = kept ** slots_to_deadline(problem) / np.maximum(following, 1) ** 2
    return tuple((min(weight, _MOST_RUN_WEIGHT) + weight * _END_OVER_RUN * near).tolist())


def unlikeness(scenario: Scenario) -> float:
    """λ for 200 slots: given, as a pilot finds it, or guessed from how labels are spread over devices.

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
    """λ from the mean squared distance of label laws; fitted to the best of a grid on Fashion-MNIST."""
    return _ALIKE + _PER_DISTANCE * label_distance


_LABELS = 10
_ANY_DISTANCE = 0.1  # between equal parts and very unlike ones
_ALIKE, _PER_DISTANCE = 0.2, 6.0
