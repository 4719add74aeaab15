"""What devices see, as numbers in [0, 1]: the network's state as one row, and the columns of it that a device sees.

A row has the slot as a share of the horizon; every device's battery as a share of its capacity; every device's
weather level as a share of the highest; every channel site's level as a share of the highest.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.model.factor import Variable
from heliomesh.model.policy import Observation, neighbourhood
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import ScenarioError
from heliomesh.simulation.slot_loop import Episodes

Array = npt.NDArray[Any]


def network_state(problem: Problem, slot: int, seen: Observation | Episodes) -> Array:
    """The rows of episodes in a slot, float64; (episode, 1 + 2 · devices + sites)."""
    battery = (seen.battery_joule / problem.battery.capacity_joule).nan_to_num(0.0).clamp(0, 1)
    shares = (
        seen.weather / max(problem.harvest.law.num_weather - 1, 1),
        seen.channel_level / max(problem.channel.levels - 1, 1),
    )
    time = torch.full_like(battery[:, :1], slot / problem.slots)
    rows: Array = torch.cat([time, battery, *(share.double() for share in shares)], dim=1).cpu().numpy()
    return rows


@dataclass(frozen=True)
class Sights:
    """What devices see within k hops, as rows of one length, so that one network can serve them all.

    In this order: the slot; for every device within ``hops``, itself first, then by distance and number, its battery
    and its weather; every channel site into those devices. Who sees less has zeros at the end. With ``agent_id`` a 1
    follows at the device's number among all, and with a ``clock`` of k one at the slot modulo k: devices that know
    both can agree to take turns.
    """

    problem: Problem
    hops: int = 1
    agent_id: bool = False
    clock: int = 0

    def __post_init__(self) -> None:
        """Refuse what does not count anything."""
        whole_number("hops", self.hops)
        whole_number("clock", self.clock)

    @cached_property
    def columns(self) -> list[list[int]]:
        """Of `network_state`, by device."""
        everybody = range(self.problem.num_devices)
        return [self._columns_of(neighbourhood(self.problem, device, self.hops)) for device in everybody]

    def _columns_of(self, seen: tuple[Variable, ...]) -> list[int]:
        count = self.problem.num_devices
        own = [column for v in seen if v.kind == "energy" for column in (1 + v.owner, 1 + count + v.owner)]
        return [0, *own, *(1 + 2 * count + v.owner for v in seen if v.kind == "site")]

    @cached_property
    def _equal_columns(self) -> Array:
        """Columns of a row that ends with a zero; (device, value)."""
        return np.array([*zip_longest(*self.columns, fillvalue=-1)]).T.copy()

    @cached_property
    def _endings(self) -> Array:
        """What follows in slots of each phase of the clock; (phase, device, value)."""
        every, phases = self.problem.num_devices, max(self.clock, 1)
        name = np.eye(every) if self.agent_id else np.empty((every, 0))
        time = np.eye(phases, self.clock)[:, None].repeat(every, axis=1)
        return np.concatenate([np.broadcast_to(name, (phases, *name.shape)), time], axis=2)

    @property
    def size(self) -> int:
        """Number of values in a device's row."""
        return int(self._equal_columns.shape[1] + self._endings.shape[2])

    def of(self, state: Array, slot: int) -> Array:
        """Rows of devices from rows of the network in a slot; (episode, column) → (episode, device, value)."""
        seen = np.pad(state, [(0, 0), (0, 1)])[:, self._equal_columns]
        after = self._endings[slot % len(self._endings)]
        return np.concatenate([seen, np.broadcast_to(after, (len(state), *after.shape))], axis=2, dtype=state.dtype)


def whole_number(name: str, value: object, least: int = 0) -> int:
    """An integer of at least ``least``; raises ScenarioError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ScenarioError(name, f"a whole number of at least {least}", f"value {value!r:.40}")
    return int(value)
