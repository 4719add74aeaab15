"""Joint decisions of the planners `prices` and `receiver` as C99 headers: message rounds between neighbours.

All costs are whole numbers, and `RoundedTables` in `interop/rounded.py` is the same policy in Python. Rounds start
from two first actions, the devices' own or the last affordable, and silence; min-sum messages, where a plan has any,
advise a third. Which end costs least is a sum over the network: each device offers its share of it, and collecting
the shares is left to the application.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template

import torch
from torch import Tensor

from heliomesh.durable import alone_in, write_set
from heliomesh.interop.c_header import (
    FILE_PATTERN,
    Constants,
    action_bits,
    beyond,
    check_limits,
    harmless,
    head_fields,
    microjoule,
    packed_actions,
    place_of_slot,
)
from heliomesh.interop.c_round_text import ADVISED, HEADER, TELL_ENERGY, UNADVISED, UNVALUED, VALUED
from heliomesh.interop.export_tables import DUST
from heliomesh.interop.rounded import RoundedTables, ValueWidth, check_roundable, num_sites, site_places
from heliomesh.planners.prices import Coordinated
from heliomesh.planners.receiver import ReceiverTables
from heliomesh.problem.coordination import FORBIDDEN, Group
from heliomesh.problem.problem import Problem
from heliomesh.problem.size import DEFAULT_LIMIT_GIB, check_fits, entries


@dataclass(frozen=True)
class ReceiverValues:
    """W of one receiver: the expected cost to come by its channels and the energies left to the devices it hears."""

    entries: Tensor  # (different row, channels × energies)
    row_of_left: list[int]  # by slots left, the last one for all earlier slots
    step: int  # of an entry


@dataclass(frozen=True)
class RoundHeader:
    """The header of one device."""

    policy: RoundedTables
    planner: str
    device: int

    @property
    def file_name(self) -> str:
        """Name of the header's file."""
        return f"device_{self.device}.h"

    @property
    def flash_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(array.num_bytes for array in self.constants)

    @property
    def ram_bytes(self) -> int:
        """Bytes of the state that a device keeps, where numbers are aligned to their size."""
        room = self._room
        small = 4 + 2 + 1 + room + 2 * room * (self.values is not None)  # channels, energy, action, actions, energies
        large = 2 * 8 * room * len(self.policy.problem.actions) if self.policy.source.messages else 0
        aligned = 8 if large else 4
        return -(-(small + large) // aligned) * aligned

    @property
    def hops(self) -> int:
        """Links that messages travel."""
        return 1

    @cached_property
    def _place(self) -> tuple[Group, int] | None:
        """The group of receivers that the device is in, and where."""
        for group in self.policy.source.coordination.groups:
            where = (group.receivers == self.device).nonzero()
            if len(where):
                return group, int(where[0])
        return None

    @property
    def heard(self) -> list[int]:
        """Devices whose actions decide what this one gets."""
        return [] if self._place is None else self._place[0].actors[self._place[1]].tolist()

    @property
    def _room(self) -> int:
        """Places for devices heard; C knows no empty arrays."""
        return max(len(self.heard), 1)

    @cached_property
    def values(self) -> ReceiverValues | None:
        """W with channels in the order of the device's sites; None for a receiver without a table."""
        policy, problem = self.policy, self.policy.problem
        if self._place is None or not isinstance(policy.source, ReceiverTables):
            return None
        group, number = self._place
        kind = int(policy.source.kind_of[group.offset][number])
        if kind < 0:
            return None
        places = list(dict.fromkeys(site_places(problem, group, number)))  # of the planner's channel axes
        axes = [1 + places.index(place) for place in range(len(places))]
        shape = [problem.channel.levels] * len(places)
        table = policy.entries[kind].reshape(-1, *shape, problem.num_energy ** len(self.heard))
        ordered = table.permute(0, *axes, len(axes) + 1).flatten(1)
        rows, row_of_left = torch.unique(ordered, dim=0, return_inverse=True)
        return ReceiverValues(rows, row_of_left.tolist(), policy.steps[kind])

    @cached_property
    def constants(self) -> list[Constants]:
        """All arrays."""
        policy, problem, device = self.policy, self.policy.problem, self.device
        step = float(problem.battery.step_joule[device])
        cuts = [microjoule(step * level - DUST * step) for level in range(1, problem.battery.levels)]
        group, number = self._place or (None, 0)
        missed = [] if group is None else policy.missed[group.offset][:, number].flatten().long().tolist()
        first = policy.first[:, device].flatten().tolist()
        needed = problem.actions.needed_quanta[device].tolist()
        return [
            Constants("cut", 32, cuts, "battery levels begin here [microjoule]"),
            Constants("quanta", 16, problem.actions.quanta[device].tolist(), "battery levels that actions cost"),
            *([Constants("needed", 16, needed, "battery levels that actions need")] if self._drains else []),
            Constants(
                "idle", 32, policy.idle[device].long().tolist(), f"penalty of each action, in 2^-{policy.bits}"
            ),
            Constants("future", 32, policy.futures[:, device].flatten().long().tolist(), "value of the energy left"),
            Constants("first", 8, packed_actions(first, self._bits), f"first actions, {self._bits} bits each"),
            Constants("missed", 32, missed, "weight missed by channels and joint action heard"),
            Constants("heard", 16, self.heard, "devices heard, the first one's action counts most"),
            *self._value_constants(),
        ]

    def _value_constants(self) -> list[Constants]:
        values, policy = self.values, self.policy
        if values is None:
            return []
        heard, actions = torch.tensor(self.heard, device=policy.problem.device), policy.problem.actions
        quanta, needed = (table[heard].flatten().tolist() for table in (actions.quanta, actions.needed_quanta))
        need = Constants("needed_heard", 16, needed, "battery levels that actions of those heard need")
        unit = f"{values.step} * 2^-{policy.bits}"
        return [
            Constants("quanta_heard", 16, quanta, "battery levels that actions of those heard cost"),
            *([need] if self._drains else []),
            Constants("row_of_left", 16, values.row_of_left, "row of values by slots left"),
            Constants(
                "value",
                policy.value_width,
                values.entries.flatten().long().tolist(),
                f"cost to come by row, channels and energies left to those heard, in {unit}",
            ),
        ]

    @property
    def _drains(self) -> bool:
        """Whether slots drain batteries: actions then need more than they cost."""
        return self.policy.problem.battery.drains

    @property
    def _bits(self) -> int:
        return action_bits(len(self.policy.problem.actions))

    def text(self) -> str:
        """The header."""
        values, messages = self.values, self.policy.source.messages
        problem = self.policy.problem
        actions = zip(problem.actions.power_watt.tolist(), problem.actions.trained.tolist(), strict=True)
        head = head_fields(self.device, self.planner, list(actions), self.constants, self.ram_bytes)
        numbers = head | self._sizes() | self._steps()
        if values is not None:
            states = values.entries.shape[1]
            rows = {"stored": len(values.row_of_left), "states": states, "step": values.step}
            numbers |= rows | {"combinations": problem.num_energy ** len(self.heard)}
        valued = VALUED if values is not None else UNVALUED
        advised = ADVISED if messages else UNADVISED
        parts = {name: Template(part).substitute(numbers) for name, part in (valued | advised).items()}
        return HEADER.substitute(numbers | parts)

    def _sizes(self) -> dict[str, object]:
        """How much there is of everything."""
        policy, problem = self.policy, self.policy.problem
        return {
            "devices": problem.num_devices,
            "scenario": harmless(problem.scenario.name),
            "sha": problem.scenario.content_hash[:12],
            "count": len(problem.actions),
            "slots": problem.slots,
            "beyond": beyond(problem.slots, problem.cycle_slots),
            "place_of_slot": place_of_slot(problem.slots, problem.endless),
            "place_of_row": place_of_slot("slots", problem.endless),
            "future_slots": len(policy.futures),
            "first_slots": len(policy.first),
            "sites": len(problem.sites_into(self.device)),
            "channel_levels": problem.channel.levels,
            "battery_levels": problem.battery.levels,
            "energies": problem.num_energy,
            "cuts": problem.battery.levels - 1,
            "weathers": problem.harvest.law.num_weather,
            "heard": len(self.heard),
            "room": self._room,
            "needed": "needed" if self._drains else "quanta",
            "joint": len(problem.actions) ** len(self.heard) if self.heard else 0,
        }

    def _steps(self) -> dict[str, object]:
        """How devices take turns."""
        policy, colour = self.policy, self.policy.problem.colour
        messages = policy.source.messages
        return {
            "colour": colour[self.device],
            "colours": max(colour) + 1,
            "rounds": policy.source.rounds,
            "messages": messages,
            "starts": 3 if messages else 2,
            "starts_step": 3 if messages else 2,
            "choice_step": 4 if messages else 3,
            "forbidden": f"INT64_C({int(FORBIDDEN * 2**policy.bits)})",
            "unit": 1 << messages,
            "tell_energy": TELL_ENERGY if policy.entries else "",
        }


def write_round_headers(
    problem: Problem,
    policy: Coordinated | ReceiverTables,
    planner: str,
    folder: Path,
    value_width: ValueWidth = 32,
    memory_gib: float = DEFAULT_LIMIT_GIB,
) -> list[RoundHeader]:
    """Write ``device_0.h``, ``device_1.h``, …; raises ScenarioError for numbers that C's types do not hold."""
    check_roundable(policy)
    largest = max(
        (
            entries([problem.channel.levels] * num_sites(problem, group)) * float(len(problem.actions)) ** group.heard
            for group in policy.coordination.groups
        ),
        default=0.0,
    )
    check_fits("costs of one receiver", 64 * largest, memory_gib, "lower the degree, channel.levels or power levels")
    rounded = RoundedTables(problem, policy, value_width)
    limits = (
        ("energy.capacity_joule", (2**32 - 1) / 1e6, float(problem.battery.capacity_joule.max())),
        ("network.devices", 65535, problem.num_devices),
        ("energy.battery_levels", 65535, problem.num_energy),
        ("slots", 65535, max(map(len, rounded.entries), default=0)),
        ("table entries", 2**32 - 1, max((table.numel() for table in rounded.entries), default=0)),
    )
    check_limits(limits)
    headers = [RoundHeader(rounded, planner, device) for device in range(problem.num_devices)]
    with alone_in(folder):
        write_set(folder, FILE_PATTERN, {header.file_name: header.text() for header in headers})
    return headers
