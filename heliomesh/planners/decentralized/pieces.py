"""Two hops where joint tables do not fit: values and policies are sums of pieces, one per receiver.

The cost of the network is a sum over receivers. What is lost at receiver r depends on the sites into r and on the
actions of the devices that r hears, N_r. All of these lie within two hops of each device of N_r. So a device i keeps
one piece per receiver: over the channel of r, its own energy in full, and the batteries of the other devices of N_r
in a few classes. Per slot, backwards:

    Q_ir = v_t f_r + shares of idle costs + E[V_ir,t+1]      over (h_r, e_i, classes, all actions of N_r)
    S_ir = E_{others ∼ π|r}[Q_ir]                            over (h_r, e_i, classes, p_i)
    π_i  = argmin over p_i of Σ_r S_ir                       in turns; online this sum is looked up
    π_i|r = E[π_i | what r's piece knows]                    the other receivers' states drawn from reference laws
    V_ir = E_{p_i ∼ π_i|r}[S_ir]

Class 0 of a battery pays for nothing, so that few pairs of class and action remain. The last slot has R soft rounds
as the joint form has them. Every earlier slot starts from the policies of the slot after it and makes best responses
only.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from heliomesh.problem.cost import receiver_factor
from heliomesh.problem.factor import Factor, action, site
from heliomesh.problem.policy import Track
from heliomesh.problem.problem import Problem
from heliomesh.problem.size import entries
from heliomesh.problem.ties import tied

_PIECE_ENTRIES = 20_000  # of a piece's Q table; decides the number of battery classes
_SAMPLES = 4  # states of the other receivers, from which a piece's policy is averaged
BEST_RESPONSES = 2  # rounds of a slot that starts from the policies of the next


@dataclass(frozen=True)
class Classes:
    """Battery classes of all devices, and which classes pay for which actions."""

    count: int
    of_energy: Tensor  # (device, energy) class
    choice_class: Tensor  # (choice,) a choice is a class with an action that some battery of the class pays for
    choice_action: Tensor  # (choice,)
    members: Tensor  # (choice, class) 1 where the choice is one of the class

    @property
    def num_choices(self) -> int:
        """Pairs of class and action."""
        return len(self.choice_class)


def battery_classes(problem: Problem, count: int) -> Classes:
    """Class 0 pays for no action that costs energy; the levels above are cut into equal ranges."""
    levels = problem.battery.levels
    level = torch.arange(problem.num_energy, device=problem.device) % levels
    needed = problem.actions.needed_quanta
    cheapest = torch.where(needed > 0, needed, levels).amin(1).clamp(max=levels).unsqueeze(1)  # (device, 1)
    if count >= levels:
        of_energy = level.expand(problem.num_devices, -1)
    else:
        width = (levels - cheapest).clamp_min(1)
        above = ((level - cheapest) * (count - 1)).div(width, rounding_mode="floor")
        of_energy = torch.where(level < cheapest, 0, 1 + above)
    classes = min(count, levels)
    affordable = torch.zeros(classes, len(problem.actions), dtype=torch.long, device=problem.device)
    for device in range(problem.num_devices):
        affordable.index_add_(0, of_energy[device], problem.feasible[device].long())
    chosen = affordable.gt(0).nonzero()
    members = torch.nn.functional.one_hot(chosen[:, 0], classes).to(problem.dtype)
    return Classes(classes, of_energy, chosen[:, 0], chosen[:, 1], members)


def num_classes(problem: Problem, sites: int, heard: int) -> int:
    """The most battery classes, two at least, with which a receiver's Q table stays small."""
    own = problem.channel.levels**sites * problem.num_energy * len(problem.actions)
    for count in range(problem.battery.levels, 2, -1):
        if own * battery_classes(problem, count).num_choices ** (heard - 1) <= _PIECE_ENTRIES:
            return count
    return 2


@dataclass(frozen=True)
class Shape:
    """Receivers that have equally many sites and hear equally many devices."""

    problem: Problem
    receivers: tuple[int, ...]
    senders: Tensor  # (receiver, position) devices heard, by their turn
    sites: Tensor  # (receiver, site)
    classes: Classes

    @property
    def heard(self) -> int:
        """Devices that each receiver hears."""
        return self.senders.shape[1]

    @property
    def num_channels(self) -> int:
        """Joint levels of a receiver's sites."""
        levels: int = self.problem.channel.levels ** self.sites.shape[1]
        return levels

    @cached_property
    def state_shape(self) -> tuple[int, ...]:
        """Channels, own energy, class of each other device."""
        return (self.num_channels, self.problem.num_energy, *(self.classes.count,) * (self.heard - 1))

    @property
    def raw_entries(self) -> int:
        """Entries of Q of one receiver and position."""
        own = self.num_channels * self.problem.num_energy * len(self.problem.actions)
        joint: int = self.classes.num_choices ** (self.heard - 1)
        return own * joint

    def others(self, position: int) -> list[int]:
        """Positions of the other devices, in the order of a piece's axes."""
        return [other for other in range(self.heard) if other != position]


def shapes(problem: Problem, turn: Sequence[int]) -> list[Shape]:
    """All receivers that hear somebody, by shape."""
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for receiver in range(problem.num_devices):
        if problem.topology.neighbours[receiver]:
            groups[len(problem.sites_into(receiver)), len(problem.heard_by(receiver))].append(receiver)
    found = []
    for (sites, heard), receivers in groups.items():
        senders = [sorted(problem.heard_by(r), key=lambda j: (turn[j], j)) for r in receivers]
        into = [problem.sites_into(r) for r in receivers]
        classes = battery_classes(problem, num_classes(problem, sites, heard))
        where = problem.device
        found.append(
            Shape(
                problem,
                tuple(receivers),
                torch.tensor(senders, device=where),
                torch.tensor(into, device=where),
                classes,
            )
        )
    return found


def pieces_bytes(problem: Problem, found: Sequence[Shape]) -> float:
    """Peak memory of `PieceRun`: all Q tables of a slot, values, policies, temporaries, and what is stored."""
    width, stored_width = torch.empty((), dtype=problem.dtype).element_size(), torch.float32.itemsize
    count = len(problem.actions)
    pairs = [len(shape.receivers) * shape.heard for shape in found]
    raw = [float(number * shape.raw_entries) for number, shape in zip(pairs, found, strict=True)]
    shares = [float(n * entries(shape.state_shape) * count) for n, shape in zip(pairs, found, strict=True)]
    drawn = max(_SAMPLES * share / shape.heard for share, shape in zip(shares, found, strict=True))
    stored = 2 * sum(shares) * problem.slots * stored_width  # by slot, and put together at the end
    return width * (sum(raw) + 4 * max(raw) + 4 * sum(shares) + 4 * drawn) + stored


class PieceRun:
    """One run of the default form by pieces.

    Tables are kept per shape n and position p among the devices that a receiver hears; receivers are the first axis.
    """

    def __init__(
        self,
        problem: Problem,
        found: Sequence[Shape],
        turn: Sequence[int],
        gammas: Sequence[float],
        damping: float,
        sweeps: int,
        rng: np.random.Generator,
    ) -> None:
        self.problem, self.shapes, self.gammas, self.damping, self.sweeps = problem, found, gammas, damping, sweeps
        self.keys = [(n, p) for n, shape in enumerate(found) for p in range(shape.heard)]
        turns = torch.tensor(turn, device=problem.device)
        self.turns = [
            {
                (n, p): rows
                for n, p in self.keys
                if len(rows := (turns[found[n].senders[:, p]] == number).nonzero().flatten())
            }
            for number in sorted(set(turn))
        ]
        self.drawn = [torch.from_numpy(_strata(rng, count)).to(problem.device) for count in _drawn_variables(problem)]
        self.cost: dict[tuple[int, int], Tensor] = {}  # of the phase of the cost that the run is in
        self._costed: Problem | None = None
        uniform = torch.full(
            (problem.num_devices, problem.num_energy),
            1 / problem.num_energy,
            dtype=problem.dtype,
            device=problem.device,
        )
        self.energy_law = [uniform] * problem.slots  # (device, energy) reference law, by slot
        self.residual = 0.0
        self.total = uniform.new_zeros(
            problem.num_devices, _SAMPLES, problem.num_energy, len(problem.actions)
        )  # sums of all pieces of a device at the drawn states
        self._entered: tuple[Tensor, Tensor] | None = None

    def run(self, track: Track) -> list[Tensor]:
        """What actions cost more than idling, per shape: (slot, receiver, position, states..., action)."""
        for sweep in range(self.sweeps):
            stored, acted = self._backward(track, f"decentralized, by pieces, sweep {sweep + 1} of {self.sweeps}")
            if sweep + 1 < self.sweeps:
                self._forward(acted)
        return [
            torch.stack([torch.stack([row[n, p] for p in range(shape.heard)], dim=1) for row in stored])
            for n, shape in enumerate(self.shapes)
        ]

    def _backward(self, track: Track, description: str) -> tuple[list[dict[tuple[int, int], Tensor]], list[Tensor]]:
        """Shares to store and own action laws (device, energy, action), by slot."""
        slots = self.problem.slots
        stored: list[dict[tuple[int, int], Tensor]] = [{} for _ in range(slots)]
        acted = [torch.empty(0)] * slots
        values: dict[tuple[int, int], Tensor] = {}
        self.residual = 0.0
        self.policy = {key: self._uniform(*key) for key in self.keys}
        unrolled = self.problem.unrolled_slots
        for number in track(range(unrolled - 1, -1, -1), description, unrolled):
            slot = number % slots
            self._enter(slot)
            self.raw = {key: self._raw(*key, values.get(key), slot) for key in self.keys}
            rounds = [(gamma, self.damping) for gamma in self.gammas] if number == unrolled - 1 else []
            change = 0.0
            for gamma, rate in [*rounds, *[(torch.inf, 1.0)] * BEST_RESPONSES]:
                change = self._round(gamma, rate)
            self.residual = max(self.residual, change)
            stored[slot] = {key: _above_idle(share) for key, share in self.share.items()}
            acted[slot] = self._respond(self.total.movedim(-1, 1), None, torch.inf).mean(2).movedim(1, -1)
            values = {key: self._value(*key) for key in self.keys}
        return stored, acted

    def _enter(self, slot: int) -> None:
        """Costs and laws of a slot; laws are the same objects in all slots of the first sweep."""
        if self._costed is not self.problem.during(slot):
            self._costed = self.problem.during(slot)
            self.cost = {key: self._cost(*key, self._costed) for key in self.keys}
        law = self.energy_law[slot]
        kernels = self.problem.energy_kernels(slot)
        if self._entered is None or self._entered[0] is not law or self._entered[1] is not kernels:
            self._entered = law, kernels
            self.class_law = [_class_law(law, shape.classes) for shape in self.shapes]
            self.class_kernel = [self._class_kernel(shape.classes, law, kernels) for shape in self.shapes]
            left = self.problem.energy_left.flatten(1)  # (device, energy · action)
            self.own_kernel = torch.stack([kernel[rows] for kernel, rows in zip(kernels, left, strict=True)])
            self.samples = {key: self._samples(*key, law) for key in self.keys}
        self.seen = {key: self._seen(*key) for key in self.keys}
        self.share: dict[tuple[int, int], Tensor] = {}
        self.total = law.new_zeros(
            self.problem.num_devices, _SAMPLES, self.problem.num_energy, len(self.problem.actions)
        )

    def _class_kernel(self, classes: Classes, law: Tensor, kernels: Tensor) -> Tensor:
        """Law of the next class given a choice; (device, choice, class)."""
        problem = self.problem
        paid = problem.feasible[:, :, classes.choice_action].movedim(2, 1)  # (device, choice, energy)
        inside = classes.of_energy.unsqueeze(1) == classes.choice_class.reshape(1, -1, 1)
        now = _normalised(law.unsqueeze(1) * (paid & inside), inside)
        left = problem.energy_left[:, :, classes.choice_action].movedim(2, 1)
        after = torch.zeros_like(now).scatter_add_(2, left, now)
        following = torch.nn.functional.one_hot(classes.of_energy, classes.count).to(law.dtype)
        return after @ kernels @ following

    def _samples(self, n: int, p: int, law: Tensor) -> Tensor:
        """Flat entries (channel, classes of others) of drawn states; (receiver, sample)."""
        shape, problem = self.shapes[n], self.problem
        sites, energies = self.drawn
        cumulated = problem.channel.stationary.to(problem.dtype).cumsum(0)
        level = torch.searchsorted(cumulated, sites.to(problem.dtype)).clamp(max=problem.channel.levels - 1)
        charge = torch.searchsorted(law.cumsum(1), energies.to(problem.dtype)).clamp(max=problem.num_energy - 1)
        classes = shape.classes.of_energy.gather(1, charge)  # (device, sample)
        entry = torch.zeros(len(shape.receivers), _SAMPLES, dtype=torch.long, device=problem.device)
        for column in shape.sites.unbind(1):
            entry = entry * problem.channel.levels + level[column]
        for other in shape.others(p):
            entry = entry * shape.classes.count + classes[shape.senders[:, other]]
        return entry

    def _cost(self, n: int, p: int, problem: Problem) -> Tensor:
        """v_t f_r and shares of idle costs; (receiver, channel, 1, own action, choice of each other...)."""
        shape = self.shapes[n]
        order, tables = [p, *shape.others(p)], []
        parts = torch.zeros(problem.num_devices, dtype=problem.dtype, device=problem.device)
        for other in self.shapes:
            parts.index_add_(0, other.senders.flatten(), torch.ones_like(parts)[other.senders.flatten()])
        idle = problem.idle_cost / parts.clamp_min(1).unsqueeze(1)
        for receiver, senders in zip(shape.receivers, shape.senders.tolist(), strict=True):
            devices = [senders[position] for position in order]
            scope = (*map(site, problem.sites_into(receiver)), *map(action, devices))
            table = receiver_factor(problem, receiver)
            for device in devices:
                table = table + Factor((action(device),), idle[device])
            tables.append(table.aligned(scope).reshape(shape.num_channels, 1, *(len(problem.actions),) * shape.heard))
        cost = torch.stack(tables)
        for axis in range(4, cost.ndim):
            cost = cost.index_select(axis, shape.classes.choice_action)
        return cost

    def _uniform(self, n: int, p: int) -> Tensor:
        """Uniform over affordable actions; (receiver, action, channel, own energy, classes...)."""
        shape = self.shapes[n]
        feasible = self.problem.feasible[shape.senders[:, p]].to(self.problem.dtype)  # (receiver, energy, action)
        law = (feasible / feasible.sum(-1, keepdim=True)).movedim(-1, 1)
        law = law.reshape(*law.shape[:2], 1, law.shape[2], *(1,) * (shape.heard - 1))
        return law.expand(*law.shape[:2], *shape.state_shape)

    def _raw(self, n: int, p: int, value: Tensor | None, slot: int) -> Tensor:
        """Q over (receiver, channel, own energy, own action, choice of each other...)."""
        shape, problem = self.shapes[n], self.problem
        cost = self.cost[n, p]
        if value is None:
            return cost.expand(-1, -1, problem.num_energy, *cost.shape[3:])
        for other in reversed(shape.others(p)):  # each axis moves to the front, so the last comes first
            value = _contract_last(value, self.class_kernel[n][shape.senders[:, other]])
        value = _contract_last(value, self.own_kernel[shape.senders[:, p]])
        channel = problem.channel.kernel.to(problem.dtype)
        joint = channel
        for _ in range(shape.sites.shape[1] - 1):
            joint = torch.kron(joint, channel)
        value = _contract_last(value, joint.expand(len(shape.receivers), -1, -1))
        return cost + value.reshape(*value.shape[:2], problem.num_energy, len(problem.actions), *value.shape[3:])

    def _seen(self, n: int, q: int) -> Tensor:
        """π|r by the class of its device; (receiver, action, channel, own class, classes of others...)."""
        policy, law = self.policy[n, q], self.class_law[n][self.shapes[n].senders[:, q]]
        mean = torch.einsum("rce,rahez->rahcz", law, policy.reshape(*policy.shape[:4], -1))
        return mean.reshape(*mean.shape[:4], *policy.shape[4:])

    def _seen_from(self, n: int, p: int, q: int, rows: Tensor) -> Tensor:
        """π|r of position q as position p has its states; (receiver, channel, energy of p, classes..., action)."""
        shape = self.shapes[n]
        table = self.seen[n, q][rows].movedim(4 + (p if p < q else p - 1), 1)
        classes = shape.classes.of_energy[shape.senders[rows, p]]  # (receiver, energy)
        table = table[torch.arange(len(rows), device=rows.device).unsqueeze(1), classes]
        rest = [other for other in shape.others(p) if other != q]
        axes = {q: 4} | {other: 5 + place for place, other in enumerate(rest)}
        return table.permute(0, 3, 1, *(axes[other] for other in shape.others(p)), 2)

    def _share_of(self, n: int, p: int, rows: Tensor) -> Tensor:
        """E_{others ∼ π|r}[Q]; (receiver, channel, own energy, own action, classes...)."""
        shape, classes = self.shapes[n], self.shapes[n].classes
        table = self.raw[n, p][rows]
        chosen = classes.choice_class * len(self.problem.actions) + classes.choice_action
        others = shape.others(p)
        for place in range(len(others) - 1, -1, -1):
            law = self._seen_from(n, p, others[place], rows).movedim(3 + place, -2)
            law = law.flatten(-2).index_select(-1, chosen)  # classes of the rest, choice
            open_axes, settled = list(range(3, 3 + place)), list(range(3 + place, law.ndim - 1))
            law = law.permute(0, 1, 2, *settled, *open_axes, law.ndim - 1)
            for axis in range(3 + len(settled), law.ndim - 1):
                law = law.index_select(axis, classes.choice_class)
            table = ((table * law.unsqueeze(3)) @ classes.members).movedim(-1, 4)
        return table

    def _round(self, gamma: float, rate: float) -> float:
        """All devices improve their policies turn by turn; the largest mean change of a piece's policies."""
        change = 0.0
        for turn in self.turns:
            shares = {(n, p): self._share_of(n, p, rows) for (n, p), rows in turn.items()}
            drawn = {key: self._drawn(key, share, turn[key]) for key, share in shares.items()}
            movers = torch.cat([self.shapes[n].senders[rows, p] for (n, p), rows in turn.items()])
            self.total[movers] = 0
            for (n, p), rows in turn.items():
                self.total.index_add_(0, self.shapes[n].senders[rows, p], drawn[n, p])
            for key, rows in turn.items():
                new = self._piece_policy(key, shares[key], drawn[key], rows, gamma)
                change = max(change, self._update(key, rows, new, shares[key], rate))
        return change

    def _drawn(self, key: tuple[int, int], share: Tensor, rows: Tensor) -> Tensor:
        """Shares at the drawn states; (receiver, sample, own energy, action)."""
        table = share.movedim((2, 3), (-2, -1)).flatten(1, -3)  # (receiver, channel · classes, energy, action)
        return table[torch.arange(len(rows), device=rows.device).unsqueeze(1), self.samples[key][rows]]

    def _piece_policy(self, key: tuple[int, int], share: Tensor, drawn: Tensor, rows: Tensor, gamma: float) -> Tensor:
        """Response to the sum of all pieces, averaged over the other receivers' drawn states; as a policy is kept."""
        n, p = key
        devices = self.shapes[n].senders[rows, p]
        rest = (self.total[devices] - drawn).movedim(-1, 1)  # (receiver, action, sample, energy)
        own = share.movedim(3, 1)  # (receiver, action, channel, energy, classes...)
        shape = own.shape
        own = own.reshape(*shape[:2], 1, *shape[2:4], -1)
        expected = own + rest.unsqueeze(3).unsqueeze(-1)  # (receiver, action, sample, channel, energy, classes)
        return self._respond(expected, devices, gamma).mean(2).reshape(shape)

    def _respond(self, expected: Tensor, devices: Tensor | None, gamma: float) -> Tensor:
        """Logit or best response over axis 1; energies are axis 4, or the last of (device, action, sample, energy).

        Equally good actions share the weight.
        """
        feasible = self.problem.feasible if devices is None else self.problem.feasible[devices]
        blocked = ~feasible.movedim(-1, 1)  # (device, action, energy)
        blocked = blocked[:, :, None, :] if expected.ndim == 4 else blocked[:, :, None, None, :, None]
        if gamma < torch.inf:
            return torch.softmax((-gamma * expected).masked_fill(blocked, -torch.inf), dim=1)
        expected = expected.masked_fill(blocked, torch.inf)
        best = tied(expected, 1).to(expected.dtype)
        return best / best.sum(1, keepdim=True)

    def _update(self, key: tuple[int, int], rows: Tensor, new: Tensor, share: Tensor, rate: float) -> float:
        """Blend new policies in; their mean change in total variation."""
        old = self.policy[key]
        before = old[rows]
        after = new if rate == 1 else (1 - rate) * before + rate * new
        self.policy[key] = old.clone().index_copy_(0, rows, after)
        self.seen[key] = self._seen(*key)
        known = self.share.get(key)
        if known is None:
            known = self.share[key] = share.new_zeros(len(old), *share.shape[1:])
        known.index_copy_(0, rows, share)
        return float((after - before).abs().sum(1).mean()) / 2

    def _value(self, n: int, p: int) -> Tensor:
        """V of every piece under the policies of all, but for a constant; (receiver, channel, energy, classes...)."""
        rows = torch.arange(len(self.shapes[n].receivers), device=self.problem.device)
        share = self._share_of(n, p, rows)
        value = (share * self.policy[n, p].movedim(1, 3)).sum(3)
        return value - value.mean()

    def _forward(self, acted: list[Tensor]) -> None:
        """New reference laws: each device's energy under its own action law (device, energy, action) by slot."""
        problem = self.problem
        law = problem.initial_energy_law
        laws = [law] * problem.slots
        for slot in (number % problem.slots for number in range(problem.unrolled_slots)):
            laws[slot] = law
            joint = (law.unsqueeze(-1) * acted[slot]).flatten(1)
            left = torch.zeros_like(law).scatter_add_(1, problem.energy_left.flatten(1), joint)
            law = torch.einsum("de,den->dn", left, problem.energy_kernels(slot))
        self.energy_law = laws


def _drawn_variables(problem: Problem) -> tuple[int, int]:
    return problem.channel.num_sites, problem.num_devices


def _strata(rng: np.random.Generator, variables: int) -> np.ndarray:
    """Uniform numbers (variable, sample), one in each of equal parts of [0, 1), in random order."""
    offsets = rng.random((variables, _SAMPLES))
    order = rng.permuted(np.tile(np.arange(_SAMPLES), (variables, 1)), axis=1)
    found: np.ndarray = (order + offsets) / _SAMPLES
    return found


def _class_law(law: Tensor, classes: Classes) -> Tensor:
    """Law of a device's energy within each class; (device, class, energy)."""
    number = torch.arange(classes.count, device=law.device).reshape(1, -1, 1)
    inside = classes.of_energy.unsqueeze(1) == number
    return _normalised(law.unsqueeze(1) * inside, inside)


def _normalised(weight: Tensor, inside: Tensor) -> Tensor:
    """Weights as laws over the last axis: uniform inside where all are zero, everywhere where nothing is inside."""
    flat = inside.to(weight.dtype)
    flat = torch.where(flat.sum(-1, keepdim=True) > 0, flat, torch.ones_like(flat))
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, flat)
    return weight / weight.sum(-1, keepdim=True)


def _contract_last(table: Tensor, kernel: Tensor) -> Tensor:
    """Contract the last axis with kernels (receiver, now, next); the new axis comes right after the receiver."""
    rest = table.shape[1:-1]
    moved = table.movedim(-1, 1).reshape(len(table), table.shape[-1], -1)
    return torch.bmm(kernel, moved).reshape(len(table), kernel.shape[1], *rest)


def _above_idle(share: Tensor) -> Tensor:
    """What each action costs more than the first, narrow; (receiver, channel, energy, classes..., action)."""
    return (share - share.narrow(3, 0, 1)).movedim(3, -1).to(torch.float32)
