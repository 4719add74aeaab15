"""Joint decisions of the planners `prices` and `receiver` as C99 headers: message rounds between neighbours.

All costs are whole numbers, and `RoundedTables` in `interop/rounded.py` is the same policy in Python. Rounds start
from two first actions, the devices' own or the last affordable, and silence; min-sum messages, where a plan has any,
advise a third. Which end costs least is a sum over the network: each device offers its share of it, and collecting
the shares is left to the application.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import networkx as nx
import torch
from torch import Tensor

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.interop.c_kit import Constants, Head, bits_of, check_limits, write_kit
from heliomesh.interop.c_levels import Measuring
from heliomesh.interop.rounded import RoundedTables, ValueWidth, check_roundable, num_sites, site_places
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import TOLERANCE
from heliomesh.planners.prices import Coordinated
from heliomesh.planners.receiver import ReceiverTables
from heliomesh.slot.coordination import FORBIDDEN, Group


@dataclass(frozen=True)
class ReceiverValues:
    """W of one receiver: the expected cost to come by its channels and the energies left to the devices it hears."""

    entries: Tensor  # (different row, channels × energies)
    row_of_left: list[int]  # by slots left, the last one for all earlier slots
    step: int  # of an entry


@dataclass(frozen=True)
class Branch:
    """Where a device stands in the tree along which shares of the cost are summed up."""

    parent: int  # the root is its own
    depth: int


@dataclass(frozen=True)
class RoundHeader:
    """The table file of one device."""

    policy: RoundedTables
    device: int
    tree: Mapping[int, Branch]

    @property
    def number(self) -> int:
        """Of the device."""
        return self.device

    @cached_property
    def measuring(self) -> Measuring:
        """Units and thresholds."""
        return Measuring(self.policy.problem, self.device)

    @property
    def ram_bytes(self) -> int:
        """Bytes of the state that a device keeps, where numbers are aligned to their size."""
        small = 4 + 2 + 1 + 3 * self._room  # channels, energy, action; energies and actions of those heard
        large = 2 * 8 * self._room * len(self.policy.problem.actions) if self.policy.source.messages else 0
        aligned = 8 if large else 4
        return -(-(small + large) // aligned) * aligned

    @property
    def code_bytes(self) -> int:
        """Bytes of code of the example program on AVR, about; measured by `benchmarks/firmware.py`."""
        return 7500 if self.policy.source.messages else 4300

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
        step, actions = float(problem.battery.step_joule[device]), problem.actions
        cuts = [self.measuring.units(step * level * (1 - TOLERANCE)) for level in range(1, problem.battery.levels)]
        idle, futures = policy.idle[device], policy.futures[:, device].flatten()
        first, colours = policy.first[:, device].flatten().tolist(), [problem.colour[other] for other in self.heard]
        return [
            Constants("cut", 32, cuts, "battery levels begin here, in units of energy"),
            Constants("quanta", 16, actions.steps_up[device].tolist(), "battery levels that actions cost"),
            Constants("needed", 16, actions.needed_steps_up[device].tolist(), "battery levels that actions need"),
            Constants("idle", 32, idle.long().tolist(), f"penalty of each action, in 2^-{policy.bits}"),
            Constants("future", 32, futures.long().tolist(), "value of the energy left"),
            Constants("first", min(bits_of(len(actions)), 8), first, "first actions"),
            Constants("missed", 32, self._missed, "weight missed by channels and joint action heard"),
            Constants("heard", 16, self.heard, "devices heard, the first one's action counts most"),
            Constants("heard_colour", 8, colours, "their colours"),
            *self._value_constants(),
        ]

    @property
    def _missed(self) -> list[int]:
        """Weight missed, by channels and joint action heard; nothing where nobody is heard."""
        if self._place is None:
            return [0] * self._channel_combinations
        group, number = self._place
        missed: list[int] = self.policy.missed[group.offset][:, number].flatten().long().tolist()
        return missed

    def _value_constants(self) -> list[Constants]:
        values, policy = self.values, self.policy
        if values is None:
            return []
        heard, actions = torch.tensor(self.heard, device=policy.problem.device), policy.problem.actions
        steps_up, needed = (table[heard].flatten().tolist() for table in (actions.steps_up, actions.needed_steps_up))
        unit = f"{values.step} * 2^-{policy.bits}"
        return [
            Constants("quanta_heard", 16, steps_up, "battery levels that actions of those heard cost"),
            Constants("needed_heard", 16, needed, "battery levels that actions of those heard need"),
            Constants("row_of_left", 16, values.row_of_left, "row of values by slots left"),
            Constants(
                "value",
                policy.value_width,
                values.entries.flatten().long().tolist(),
                f"cost to come by row, channels and energies left to those heard, in {unit}",
            ),
        ]

    @property
    def _channel_combinations(self) -> int:
        problem = self.policy.problem
        return int(problem.channel.levels ** len(problem.sites_into(self.device)))

    @property
    def macros(self) -> Mapping[str, int | str]:
        """Numbers by name."""
        policy, problem, values = self.policy, self.policy.problem, self.values
        sizes: dict[str, int | str] = {
            "ACTIONS": len(problem.actions),
            "FIRST_SLOTS": len(policy.first),
            "FUTURE_SLOTS": len(policy.futures),
            "SITES": len(problem.sites_into(self.device)),
            "CHANNEL_LEVELS": problem.channel.levels,
            "BATTERY_LEVELS": problem.battery.levels,
            "ENERGIES": problem.num_energy,
            "WEATHERS": problem.harvest.law.num_weather,
            "HEARD": len(self.heard),
            "ROOM": self._room,
            "VALUED": int(values is not None),
        }
        if values is not None:
            sizes |= {
                "SLOTS": problem.slots,
                "ROWS_OF_LEFT": len(values.row_of_left),
                "CHANNEL_COMBINATIONS": self._channel_combinations,
                "VALUE_STEP": values.step,
            }
        return sizes | self._steps()

    def _steps(self) -> dict[str, int | str]:
        """How devices take turns."""
        colour, messages, branch = self.policy.problem.colour, self.policy.source.messages, self.tree[self.device]
        steps: dict[str, int | str] = {
            "COLOUR": colour[self.device],
            "COLOURS": max(colour) + 1,
            "ENERGY_TOLD": int(bool(self.policy.entries)),
            "ROUNDS": self.policy.source.rounds,
            "MESSAGES": messages,
            "STARTS": 3 if messages else 2,
            "PARENT": branch.parent,
            "DEPTH": branch.depth,
            "DEPTHS": 1 + max(other.depth for other in self.tree.values()),
        }
        if messages:
            forbidden = int(FORBIDDEN * 2**self.policy.bits) << messages
            steps |= {"MESSAGE_UNIT": str(1 << messages), "FORBIDDEN_UNITS": f"INT64_C({forbidden})"}
        return steps


def collecting_tree(problem: Problem) -> dict[int, Branch]:
    """Shortest ways to a central device, for every connected part of the network."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(problem.num_devices))
    graph.add_edges_from((i, j) for i in range(problem.num_devices) for j in problem.topology.neighbours[i])
    tree = {}
    for members in nx.connected_components(graph):
        root = min(nx.center(graph.subgraph(members)))
        for device, way in nx.single_source_shortest_path(graph, root).items():
            tree[device] = Branch(parent=way[max(len(way) - 2, 0)], depth=len(way) - 1)
    return tree


def write_round_headers(
    problem: Problem,
    policy: Coordinated | ReceiverTables,
    planner: str,
    folder: Path,
    value_width: ValueWidth = 32,
    memory_gib: float = DEFAULT_LIMIT_GIB,
) -> tuple[list[RoundHeader], list[Path]]:
    """Write the kit; returns its table files and all paths. Raises ScenarioError for what C's types do not hold."""
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
    tree = collecting_tree(problem)
    headers = [RoundHeader(rounded, device, tree) for device in range(problem.num_devices)]
    limits = (
        ("network.devices", 65535, problem.num_devices),
        ("devices heard by one", 254, max(len(header.heard) for header in headers)),
        ("links to the farthest device", 254, max(branch.depth for branch in tree.values())),
        ("rounds", 255, policy.rounds),
        ("channel.levels", 255, problem.channel.levels),
        ("energy.battery_levels", 65535, problem.num_energy),
        ("slots", 65535, max(map(len, rounded.entries), default=0)),
        ("table entries", 2**32 - 1, max((table.numel() for table in rounded.entries), default=0)),
    )
    check_limits(limits)
    actions = zip(problem.actions.power_watt.tolist(), problem.actions.trained.tolist(), strict=True)
    scenario = problem.scenario
    head = Head(
        planner,
        scenario.name,
        scenario.content_hash,
        len(headers),
        list(actions),
        problem.slots,
        problem.cycle_slots,
    )
    return headers, write_kit(folder, "rounds", head, headers)
