"""Algorithm 1 at one device: it computes its own tables and knows those of others from their messages only.

For every slot index, backwards, and every round, turn by turn:

    tell  every device l tells each device i of this turn its share, E_{others ∼ π}[Q_l] as i sees it
    move  the devices of this turn improve their policies and tell those whose cost it enters

and then each device computes its value alone. The steps are those of `planners/decentralized/device_step.py`, which
the planner in one process uses too. That one stops the best responses once nobody in the network changes; devices,
who cannot know that, go on to the last round, in which then nothing changes either.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from heliomesh.common.memory_limit import entries
from heliomesh.field.fleet.messages import Message, table_message
from heliomesh.field.fleet.view import View
from heliomesh.model.factor import Factor, Variable
from heliomesh.model.problem import Problem
from heliomesh.model.symmetry import turns
from heliomesh.physics.chain import draw
from heliomesh.planners.decentralized.consistent import DAMPING, num_best_responses, policy_scope, share_scope
from heliomesh.planners.decentralized.device_step import DeviceStep, action_table, average_change, blend
from heliomesh.planners.decentralized.literal import uniform_policy
from heliomesh.planners.decentralized.neighbourhood import Neighbourhood
from heliomesh.planners.decentralized.planner import Options, num_rounds, rising_gammas

Round = tuple[float, float]  # γ and the weight of the new policy


@dataclass(frozen=True)
class Timetable:
    """The rounds that all devices follow, and who moves when."""

    rounds: tuple[Round, ...]
    colour: tuple[int, ...]  # (device,) turn in which each moves

    @property
    def num_turns(self) -> int:
        """Turns of a round."""
        return max(self.colour) + 1

    def movers(self, turn: int) -> list[int]:
        """Devices that move in a turn."""
        return [device for device, own in enumerate(self.colour) if own == turn]


def timetable(problem: Problem, options: Options) -> Timetable:
    """Soft rounds with rising γ, then best responses."""
    found = turns(problem) if options.order == "turns" else (0,) * problem.num_devices
    numbers = sorted(set(found))
    soft = [(gamma, DAMPING) for gamma in rising_gammas(options, num_rounds(options))]
    best = [(torch.inf, 1.0)] * num_best_responses(len(soft), len(numbers))
    return Timetable((*soft, *best), tuple(numbers.index(colour) for colour in found))


@dataclass(frozen=True)
class Partners:
    """With whom a device exchanges tables, of what size and in which rounds."""

    rounds: tuple[Round, ...]
    scope: tuple[Variable, ...]  # of its own policy
    sources: tuple[int, ...]  # devices whose cost its action enters, itself among them, in the order of its sum
    policy_entries: int
    # of devices whose actions enter its cost: scopes of their policies, entries of shares for them, when they move
    movers: Mapping[int, tuple[tuple[Variable, ...], int, int]]


def partners_of(problem: Problem, areas: Sequence[Neighbourhood], table: Timetable) -> list[Partners]:
    """The partners of every device, from what each sees."""
    scopes = [policy_scope(areas, device) for device in range(problem.num_devices)]
    count = len(problem.actions)

    def share(device: int, mover: int) -> int:
        return count * entries(problem.sizes(share_scope(areas, scopes, device, mover)))

    return [
        Partners(
            rounds=table.rounds,
            scope=scopes[device],
            sources=tuple(source for source in area.members if device in areas[source].actors),
            policy_entries=count * entries(problem.sizes(scopes[device])),
            movers={mover: (scopes[mover], share(device, mover), table.colour[mover]) for mover in area.actors},
        )
        for device, area in enumerate(areas)
    ]


class TablePlanner:
    """A device's part in the planning, and the table that it ends with.

    The table is looked up with what the device's neighbourhood measures.
    """

    def __init__(self, view: View, partners: Partners) -> None:
        self.scope, self.residual = partners.scope, 0.0
        self._view, self._partners, self._rounds = view, partners, partners.rounds
        self.problem, self.device = view.problem, view.device
        self.coordinated = len(self.scope) > 1  # only if the table depends on others
        self._value: Factor | None = None
        self._future: Factor | None = None
        self._raw: Factor | None = None
        self._policies: dict[int, Factor] = {}
        self._shares: dict[int, Factor] = {}
        self._change = 0.0
        self._tables: deque[Tensor] = deque(maxlen=view.problem.slots)  # by slot, the last slot first
        self._enter(view.problem.unrolled_slots - 1)

    @cached_property
    def _step(self) -> DeviceStep:
        return DeviceStep(self.problem, Neighbourhood(self.problem, self.device, self._view.hops))

    def tell(self, slot: int, turn: int) -> list[Message]:
        """Shares for those who move in this turn."""
        # a new round: own actions may have changed what is averaged in the own Q
        raw = self._refreshed() if turn == 0 or self._raw is None else self._raw
        messages = []
        for mover, (scope, size, own_turn) in self._partners.movers.items():
            if own_turn != turn:
                continue
            share = self._step.share(raw, self._policies, mover, scope)
            if mover == self.device:
                self._shares[mover] = share
            else:
                messages.append(table_message("share", self.device, mover, slot, share, size))
        return messages

    def move(self, slot: int, number: int) -> list[Message]:
        """Improve the own policy in a round, and tell it."""
        gamma, rate = self._rounds[number]
        shares = [self._shares.pop(source) for source in self._partners.sources]
        before = self._policies[self.device]
        after = blend(before, self._step.improved(shares, gamma), rate)
        self._change = average_change(after, before)
        self._policies[self.device] = after
        return [
            table_message("policy", self.device, other, slot, after, self._partners.policy_entries)
            for other in self._partners.sources
            if other != self.device
        ]

    def hear(self, message: Message) -> None:
        """Keep what another device told."""
        if not isinstance(message.content, Factor) or message.slot != self._slot:
            kind = type(message.content).__name__
            raise RuntimeError(f"expected a table of slot {self._slot}, actual: a {kind} of slot {message.slot}")
        heard = self._shares if message.kind == "share" else self._policies
        heard[message.origin] = message.content

    def settle(self, slot: int) -> None:
        """End a slot index: its table, the value of what is going to be done, and the beginning of the next index.

        So everyone has begun an index before anyone tells something about it.
        """
        raw = self._refreshed()
        chosen = bool(self._rounds)
        table = action_table(self.problem, self.scope, self._policies[self.device], chosen)
        self._tables.append(table.to(self.problem.actions.index_type) if chosen else table)
        self._value = self._step.value(raw, self._policies)
        if chosen:
            self.residual = max(self.residual, self._change)
        if slot > 0:
            self._enter(slot - 1)

    @cached_property
    def table(self) -> Tensor:
        """Action indices (slot, state...), or without rounds probabilities (slot, state..., action)."""
        return torch.stack(list(self._tables)[::-1])

    def energy_state(self, weather: int, battery_joule: float) -> int:
        """By the planning grid."""
        return grid_state(self.problem, self.device, weather, battery_joule)

    def action(self, slot: int, seen: Mapping[Variable, int], battery_joule: float, uniform: float) -> int:
        """The tabulated action for what is seen, or one drawn from the tabulated law; what was never heard is 0."""
        found = self.table[slot % len(self.table)][tuple(seen.get(variable, 0) for variable in self.scope)]
        return int(found if self._rounds else draw(found, torch.tensor(uniform, dtype=torch.float64)))

    def _enter(self, slot: int) -> None:
        """Begin a slot index: future of the value found last, and the first policies of all actors."""
        self._slot, self._raw = slot, None
        self._future = None if self._value is None else self._step.future(self._value, self._place)
        self._policies = {actor: uniform_policy(self.problem, actor) for actor in self._step.area.actors}

    def _refreshed(self) -> Factor:
        self._raw = self._step.raw(self._future, self._policies[self.device], self._raw)
        return self._raw

    @property
    def _place(self) -> int:
        """The slot that is planned; around a cycle indices go on where slots begin again."""
        return self._slot % self.problem.slots


def grid_state(problem: Problem, device: int, weather: int, battery_joule: float) -> int:
    """A device's weather and battery as one state of the planning grid."""
    battery = problem.battery.of(torch.tensor([device]))
    return weather * problem.battery.levels + int(battery.level(torch.tensor([battery_joule], dtype=torch.float64)))
