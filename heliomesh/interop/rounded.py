"""Joint decisions by message rounds with every cost rounded to a whole number, as devices decide them in C.

In a slot, each device as a sender has a price per action, u_j(a), and as a receiver a table of what it misses,
f_i(h_i, joint action of those it hears); see `slot/coordination.py`. The planner `prices` has the value of a
device's energy in u_j. The planner `receiver` adds W_i(h_i, energies left to those heard) to the receiver's side. All
are multiples of 2^−k, so sums are exact and every processor comes to the same actions. `RoundedTables` is that policy
in Python; the plan itself may differ from it where costs differ by less than the rounding.

W_i is by far the largest table. It is kept in entries of 8, 16 or 32 bits, W_i ≈ entry · step; the step is the
smallest that holds the table's range.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Literal

import torch
from torch import Tensor

from heliomesh.model.policy import ActionPolicy, Observation
from heliomesh.model.problem import Problem
from heliomesh.planners.prices import Coordinated
from heliomesh.planners.receiver import ReceiverTables
from heliomesh.scenario.errors import refuse
from heliomesh.slot.coordination import Coordination, Group, Tables

ValueWidth = Literal[8, 16, 32]  # bits

MOST_MESSAGES = 12  # min-sum rounds: each halves what it says, and all halves are kept
_LARGEST = 2**29  # of any sum that a device forms: a bit to spare in 32
_FINEST = 24  # bits after the point, at most
_DOUBLE_BITS = 32  # bits after the point that a double has left beside a forbidden action's price


@dataclass(frozen=True)
class RoundedTables(ActionPolicy):
    """`prices` or `receiver` in whole numbers; costs are in units of 2^−k unless a name says otherwise."""

    problem: Problem
    source: Coordinated | ReceiverTables
    value_width: ValueWidth = 32
    looks_back = False

    @cached_property
    def first(self) -> Tensor:
        """Actions of the first start: own choices, or the last affordable; (slot or 1, device, energy)."""
        if isinstance(self.source, Coordinated):
            return self.source.alone.actions
        return self.problem.actions.last_of(self.problem.feasible).unsqueeze(0)

    @cached_property
    def _exact_missed(self) -> dict[int, Tensor]:
        """The weight missed, f_i, per group offset; (level combination, receiver, joint action)."""
        problem, missed = self.problem, {}
        for group in self.source.coordination.groups:
            levels = torch.tensor(list(product(range(problem.channel.levels), repeat=num_sites(problem, group))))
            place = torch.tensor([site_places(problem, group, n) for n in range(len(group.receivers))])
            fading = problem.channel.gain[levels[:, place].to(problem.device)]  # (combination, receiver, neighbour)
            missed[group.offset] = self.source.coordination.missed(group, fading)
        return missed

    @cached_property
    def _exact_idle(self) -> Tensor:
        """What an action costs by not training, above the device's cheapest; (device, action)."""
        cost = self.problem.idle_cost
        return cost - cost.amin(
            -1, keepdim=True
        )  # a constant per device decides nothing, and C's numbers have no sign

    @cached_property
    def _exact_futures(self) -> Tensor:
        """Value of the energy left to its device alone; (slot or 1, device, energy)."""
        source = self.source
        futures = source.alone.futures if isinstance(source, Coordinated) else source.futures
        if futures is None:
            shape = (1, self.problem.num_devices, self.problem.num_energy)
            return torch.zeros(shape, device=self.problem.device)
        return futures - futures.amin(-1, keepdim=True)  # a constant per slot and device decides nothing

    @cached_property
    def _exact_values(self) -> tuple[Tensor, ...]:
        """W of every kind of receiver; (stored slot, state)."""
        tables = self.source.tables if isinstance(self.source, ReceiverTables) else ()
        return tuple(table - table.amin(-1, keepdim=True) for table in tables)

    @cached_property
    def bits(self) -> int:
        """k, bits after the point."""
        listeners = max(len(self.problem.heard_by(j)) for j in range(self.problem.num_devices))
        table = max((float(t.abs().max()) for t in self._exact_missed.values()), default=0.0)
        table += max((float(t.max()) for t in self._exact_values), default=0.0)
        largest = table * listeners + float(self._exact_futures.max()) + float(self._exact_idle.max())
        finest = min(_FINEST, _DOUBLE_BITS - self.source.messages)
        return max((k for k in range(finest + 1) if largest * 2**k <= _LARGEST), default=0)

    def _whole(self, cost: Tensor) -> Tensor:
        return torch.round(cost.double() * 2**self.bits)

    @cached_property
    def missed(self) -> dict[int, Tensor]:
        """What is missed, per group offset; (level combination, receiver, joint action)."""
        return {offset: self._whole(table) for offset, table in self._exact_missed.items()}

    @cached_property
    def futures(self) -> Tensor:
        """Values of the energy left to its device alone; (slot or 1, device, energy)."""
        return self._whole(self._exact_futures)

    @cached_property
    def idle(self) -> Tensor:
        """What actions cost that do not train; (device, action)."""
        return self._whole(self._exact_idle)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Cost of one unit of an entry of W, per kind of receiver."""
        most = 2**self.value_width - 1
        return tuple(max(1, -(-int(self._whole(table.max())) // most)) for table in self._exact_values)

    @cached_property
    def entries(self) -> tuple[Tensor, ...]:
        """W of every kind of receiver in its steps; (stored slot, state)."""
        tables = zip(self._exact_values, self.steps, strict=True)
        return tuple(torch.round(table.double() * 2**self.bits / step) for table, step in tables)

    @cached_property
    def _receivers(self) -> ReceiverTables | None:
        """The planner's own look-up in the rounded W; None where devices' own values take its place."""
        if not isinstance(self.source, ReceiverTables) or self.source.futures is not None:
            return None
        tables = tuple(table * step for table, step in zip(self.entries, self.steps, strict=True))
        wide = replace(self.problem, dtype=torch.float64)
        return replace(self.source, problem=wide, grids=dict.fromkeys(self.source.grids, wide), tables=tables)

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Coordinate rounds from the first actions, from silence and from the min-sum messages' advice."""
        return torch.cat([self._decide(slot, piece) for piece in seen.pieces(self._coordination.batch())])

    @cached_property
    def _coordination(self) -> Coordination:
        """The planner's; ties of whole numbers are exact."""
        return replace(self.source.coordination, exact=True)

    def _decide(self, slot: int, seen: Observation) -> Tensor:
        problem, coordination, unit = self.problem, self._coordination, 2.0**-self.bits
        device, state = torch.arange(problem.num_devices, device=problem.device), seen.energy_state(problem)
        left = problem.energy_left[device, state]  # (batch, device, action)
        price = self.futures[min(slot, len(self.futures) - 1)][device.unsqueeze(-1), left] + self.idle
        price = price.masked_fill(~problem.feasible[device, state], torch.inf)
        tables = coordination.flat((self._tables(slot, group, seen) for group in coordination.groups), price)
        first = self.first[min(slot, len(self.first) - 1)][device, state].long()
        starts = [first, torch.zeros_like(first)]
        return coordination.decide(
            Tables(tables * unit), price * unit, starts, self.source.rounds, self.source.messages
        )

    def _tables(self, slot: int, group: Group, seen: Observation) -> Tensor:
        """Costs of a group's joint actions; (batch, receiver, joint action)."""
        place = self.problem.device
        sites = torch.tensor([self.problem.sites_into(i) for i in group.receivers.tolist()], device=place)
        index = torch.zeros(len(seen.weather), len(sites), dtype=torch.long, device=place)
        for number in range(sites.shape[1]):
            index = index * self.problem.channel.levels + seen.channel_level[:, sites[:, number]]
        table = self.missed[group.offset][index, torch.arange(len(sites), device=place)]
        if self._receivers is not None:
            table = table + self._receivers.values_left(slot, group, seen)
        return table


def check_roundable(source: Coordinated | ReceiverTables) -> None:
    """Refuse plans whose costs are no tables of whole numbers."""
    refuse(source.problem.battery.rounding != "up", "planner option.interpolate", "false in a C header", "value true")
    expected = f"messages of at most {MOST_MESSAGES} in a C header"
    refuse(source.messages > MOST_MESSAGES, "planner", expected, f"value {source.messages}")


def num_sites(problem: Problem, group: Group) -> int:
    """Channel sites into each receiver of a group."""
    return len(problem.sites_into(int(group.receivers[0])))


def site_places(problem: Problem, group: Group, number: int) -> list[int]:
    """Where the channels of a receiver's edges, in the group's order, stand among its sites."""
    sites = problem.sites_into(int(group.receivers[number]))
    return [sites.index(int(problem.channel.site_of_edge[edge])) for edge in group.edges[number]]
