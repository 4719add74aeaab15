"""What devices see, as numbers in [0, 1]: the network's state as one row, and the columns of it that a device sees.

A row has the slot as a share of the horizon; every device's battery as a share of its capacity; every device's
weather level as a share of the highest; every channel site's level as a share of the highest.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.model.policy import Observation, state_variables
from heliomesh.model.problem import Problem
from heliomesh.simulation.slot_loop import Episodes

Array = npt.NDArray[Any]


def state_size(problem: Problem) -> int:
    """Numbers in a row."""
    return 1 + 2 * problem.num_devices + problem.channel.num_sites


def observed_state(problem: Problem, slot: int, seen: Observation) -> Array:
    """The rows of what can be seen in a slot, float64; (episode, `state_size`)."""
    return _rows(problem, slot, seen.battery_joule, seen.weather, seen.channel_level)


def network_state(under_way: Episodes) -> Array:
    """The rows of episodes under way, float64; (episode, `state_size`)."""
    now = under_way
    return _rows(now.problem, now.slot, now.battery_joule, now.weather, now.channel_level)


def _rows(problem: Problem, slot: int, battery_joule: Tensor, weather: Tensor, channel_level: Tensor) -> Array:
    battery = (battery_joule / problem.battery.capacity_joule).nan_to_num(0.0).clamp(0, 1)
    shares = (
        weather / max(problem.harvest.law.num_weather - 1, 1),
        channel_level / max(problem.channel.levels - 1, 1),
    )
    time = torch.full_like(battery[:, :1], slot / problem.slots)
    rows: Array = torch.cat([time, battery, *(share.double() for share in shares)], dim=1).cpu().numpy()
    return rows


@dataclass(frozen=True)
class Sight:
    """What one device sees within k hops.

    In this order: the slot; for every device within ``hops``, itself first, then by distance and number, its battery
    and its weather; every channel site into those devices.
    """

    problem: Problem
    device: int
    hops: int

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Devices within k hops, the device itself first."""
        within = self.problem.topology.within(self.device, self.hops)
        return tuple(sorted(within, key=lambda member: (within[member], member)))

    @cached_property
    def sites(self) -> tuple[int, ...]:
        """Channel sites into the members, each once."""
        variables = [v for m in self.members for v in state_variables(self.problem, m)]
        return tuple(dict.fromkeys(v.owner for v in variables if v.kind == "site"))

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """Its columns of `network_state`."""
        devices = self.problem.num_devices
        own = [column for member in self.members for column in (1 + member, 1 + devices + member)]
        return (0, *own, *(1 + 2 * devices + site for site in self.sites))

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.columns)


@dataclass(frozen=True)
class EqualSight:
    """What several devices see, as float32 rows of one length, so that one network can serve them all.

    Who sees less has zeros at the end. With ``agent_id`` a 1 follows at the device's number among all, and with a
    ``clock`` of k one at the slot modulo k: devices that know both can agree to take turns.
    """

    sights: tuple[Sight, ...]
    agent_id: bool = False
    clock: int = 0

    @cached_property
    def _columns(self) -> Array:
        """Columns of `network_state`, its width standing for a zero; (device, value)."""
        widest = max(sight.size for sight in self.sights)
        zero = state_size(self.sights[0].problem)
        return np.array([[*sight.columns, *[zero] * (widest - sight.size)] for sight in self.sights])

    @cached_property
    def _names(self) -> Array:
        """The ending of every row; (device, 0 or number of all devices)."""
        count = self.sights[0].problem.num_devices if self.agent_id else 0
        return np.eye(max(count, 1), count, dtype=np.float32)[[s.device if count else 0 for s in self.sights]]

    @property
    def size(self) -> int:
        """Number of values."""
        return int(self._columns.shape[1] + self._names.shape[1] + self.clock)

    def of(self, state: Array, slot: int) -> Array:
        """Rows of devices from rows of the network in a slot; (episode, column) → (episode, device, value)."""
        padded = np.pad(state.astype(np.float32), [(0, 0), (0, 1)])
        seen = padded[:, self._columns]
        time = np.eye(1, self.clock, slot % self.clock, dtype=np.float32) if self.clock else np.empty((1, 0))
        after = np.concatenate([self._names, time.repeat(len(self._names), 0)], axis=1, dtype=np.float32)
        return np.concatenate([seen, np.broadcast_to(after, (len(state), *after.shape))], axis=2)
