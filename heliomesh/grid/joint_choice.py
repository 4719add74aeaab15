"""Policies whose devices settle every slot jointly, by neighbour messages, at what their energy is worth:

    p = argmin  Σ_i [ f_i(h_i, p_{N_i}) + W_i(h_i, b_{N_i} − e(p)) ] + Σ_j [ idle_j(p_j) + V_j(b_j − e(p_j)) ]

with the devices' own values V_j of the energy left, or with tables W_i of receivers. Few devices decide by NumPy.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.grid.after_spending import EnergyAfterAction, Floats, Ints, NumpyEnergyLookup, is_few, last_of
from heliomesh.model.endless import EndlessOptions
from heliomesh.model.overhead import Overhead, Talk, coordination_talk, online_overhead
from heliomesh.model.policy import ActionPolicy, Ahead, Observation
from heliomesh.scenario.section import Rounds
from heliomesh.slot.coordination import Coordination, Tables

TablesAhead = Callable[[int, Floats], list[Floats]]  # a slot's place among those prepared, and batteries [J]


class RoundsOptions(EndlessOptions):
    """Options of planners whose devices settle slots by message rounds."""

    sweeps: Rounds = Field(30, description="most sweeps of best responses")
    rounds: Rounds = Field(8, description="most coordinate rounds per slot")
    messages: Annotated[int, Field(ge=0, le=100_000)] | None = Field(
        None, description="min-sum rounds before them; default 10 under half duplex, else none"
    )


class JointChoice(ActionPolicy):
    """Rounds from the devices' first choices, from silence and from the min-sum messages' advice."""

    looks_back = False
    coordination: Coordination
    rounds: int
    messages: int

    @property
    @abstractmethod
    def own_values(self) -> Tensor | None:
        """V_j of the energy left, (slot, device, energy), if tables do not take their place."""

    @property
    @abstractmethod
    def first_bytes(self) -> int:
        """What a device says of itself before the rounds."""

    def first_choice(self, slot: int, left: EnergyAfterAction) -> Tensor:
        """Where rounds start: the last affordable actions."""
        return self.problem.actions.last_of(left.affordable)

    def first_choice_few(self, slot: int, affordable: npt.NDArray[np.bool_], values: Floats | float) -> Ints:
        """The same by NumPy; affordable, and values of the energy left if there are any, (batch, device, action)."""
        return last_of(affordable)

    def slot_tables(self, slot: int, seen: Observation, price: Tensor) -> Tables:
        """What receivers lose by joint actions; price (batch, device, action)."""
        return self.coordination.slot_tables(seen.channel_level, price, self.messages)

    def tables_ahead(self, slots: Sequence[int], channel_level: Tensor, weather: Tensor) -> TablesAhead:
        """The same by NumPy, in several slots of which all but the batteries is known."""
        shape, coordination = channel_level.shape[:2], self.coordination
        flat = (coordination.observed(group, channel_level.flatten(0, 1)) for group in coordination.groups)
        missed = [one.reshape(*shape, *one.shape[1:]).numpy() for one in flat]
        return lambda number, _: [cost[number] for cost in missed]

    @property
    def talk(self) -> Talk:
        """What a device is like, then rounds."""
        said = {"first_bytes": self.first_bytes, "messages": self.messages, "rounds": self.rounds}
        return coordination_talk(self.problem, **said)

    def overhead(self, table_entries: int) -> Overhead:
        """Traffic of the same; entries of a device's tables."""
        return online_overhead(self.problem, self.talk, table_entries)

    def action(self, slot: int, seen: Observation) -> Tensor:
        """What rounds settle, in pieces that fit the memory."""
        few = self.action_ahead(slot, seen)
        if few is not None:
            return few
        return torch.cat([self._decide(slot, piece) for piece in seen.pieces(self.batch)])

    @property
    def batch(self) -> int:
        """Episodes to handle at a time."""
        return self.coordination.batch(self.coordination.shares_tables(self.messages))

    def _decide(self, slot: int, seen: Observation) -> Tensor:
        left = EnergyAfterAction(self.problem, seen)
        price = self.problem.idle_cost.masked_fill(~left.affordable, torch.inf)
        if self.own_values is not None:
            price = price + left.values(self.own_values[slot])
        return self._settled(self.slot_tables(slot, seen, price), price, self.first_choice(slot, left))

    def _settled(self, tables: Tables, price: Tensor, first: Tensor) -> Tensor:
        """Where rounds from first choices and from silence end."""
        return self.coordination.decide(tables, price, [first, torch.zeros_like(first)], self.rounds, self.messages)

    def ahead(self, slots: Sequence[int], channel_level: Tensor, weather: Tensor) -> Ahead | None:
        """Decisions by NumPy, for few devices."""
        if not is_few(self.problem, weather.shape[1]):
            return None
        lookup, tables = NumpyEnergyLookup(self.problem), self.tables_ahead(slots, channel_level, weather)
        entries, idle = lookup.first_entries(weather), lookup.idle_cost
        futures = None if self.own_values is None else self.own_values.numpy()

        def decide(number: int, battery_joule: Floats) -> Ints:
            affordable, slot = lookup.affordable(battery_joule), slots[number]
            values: Floats | float = 0.0
            if futures is not None:
                values = lookup.values(futures[slot], entries[number], lookup.place(battery_joule))
            price = np.where(affordable, idle, np.inf) + values
            first = self.first_choice_few(slot, affordable, values)
            flat = [table.reshape(len(price), -1) for table in tables(number, battery_joule)]
            joined = flat[0] if len(flat) == 1 else np.concatenate([price[:, 0, :0], *flat], 1)
            whole, start = Tables(torch.from_numpy(joined)), torch.from_numpy(first)
            return self._settled(whole, torch.from_numpy(price), start).numpy()

        return decide
