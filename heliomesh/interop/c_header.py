"""Plans that look actions up, as table files in C99 for the firmware kit.

Constants are battery cuts in units of energy, and actions in one, two, four or eight bits, each different table
once. In every slot a device writes its state message, sends it, hears those of others and looks its action up; all it
remembers is a view of a few bytes.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from heliomesh.interop.c_kit import Constants, Head, bits_of, check_limits, write_kit
from heliomesh.interop.c_levels import Measuring
from heliomesh.interop.export_tables import DeviceTables, PlanTables, Seen
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import TOLERANCE


class Header:
    """The table file of one device."""

    code_bytes = 1500  # of the example program on AVR, about; measured by `benchmarks/firmware.py`

    def __init__(self, plan: PlanTables, device: DeviceTables, problem: Problem) -> None:
        self.plan, self.device, self.number = plan, device, device.device
        self.measuring = Measuring(problem, self.number)
        self.ram_bytes = max(len(device.scope), 1)  # of the view that a device keeps
        distances = problem.topology.within(self.number, problem.num_devices)
        self._sources = [_source(plan, seen, distances) for seen in device.scope]
        self.hops = max((distances[source] for source, _ in self._sources), default=0)  # until all seen has arrived
        self.travel = self.hops  # links that every message of the network travels

    @cached_property
    def constants(self) -> list[Constants]:
        """All arrays."""
        device = self.device
        # the smallest whole numbers of units that reach the cuts
        cuts = [self.measuring.units(cut * (1 - TOLERANCE)) for cut in device.reports.battery_cuts_joule]
        actions = [action for table in device.tables for action in table]
        arrays = [
            Constants("cut", 32, cuts, "battery cells begin here, in units of energy"),
            Constants("size", 8, [seen.size for seen in device.scope], "values of each variable of the view"),
            Constants("from", 16, [source for source, _ in self._sources], "device whose message holds the variable"),
            Constants("byte", 8, [byte for _, byte in self._sources], "where in that message"),
            Constants("action", min(bits_of(len(self.plan.actions)), 8), actions, "actions by table and view"),
        ]
        if len(device.table_of_slot) > 1:
            width = max(bits_of(len(device.tables)), 8)
            arrays.append(Constants("of_slot", width, device.table_of_slot, "table of each slot"))
        return arrays

    @property
    def macros(self) -> Mapping[str, int]:
        """Numbers by name."""
        device = self.device
        return {
            "DEVICES": len(self.plan.devices),
            "TABLE_SLOTS": len(device.table_of_slot),
            "HOPS": self.travel,
            "SITES": len(device.reports.sites),
            "MESSAGE_BYTES": len(device.reports.sites) + 1,
            "LONGEST_MESSAGE_BYTES": max(len(other.reports.sites) + 1 for other in self.plan.devices),
            "WEATHERS": self.plan.num_weather,
            "CUTS": len(device.reports.battery_cuts_joule),
            "SCOPE": len(device.scope),
            "ROOM": max(len(device.scope), 1),
        }


def _source(plan: PlanTables, seen: Seen, distances: Mapping[int, int]) -> tuple[int, int]:
    """Device that measures a variable of a view, the nearest of them, and the byte of its message."""
    if seen.kind == "energy":
        return seen.owner, len(plan.devices[seen.owner].reports.sites)
    measuring = [device for device in plan.devices if seen.owner in device.reports.sites]
    nearest = min(measuring, key=lambda one: (distances.get(one.device, len(plan.devices)), one.device))
    return nearest.device, nearest.reports.sites.index(seen.owner)


def write_headers(plan: PlanTables, problem: Problem, folder: Path) -> tuple[list[Header], list[Path]]:
    """Write the kit; returns its table files and all paths. Raises ScenarioError for what C's types do not hold."""
    headers = [Header(plan, device, problem) for device in plan.devices]
    travel = max(header.hops for header in headers)
    for header in headers:
        header.travel = travel
        device = header.device
        check_limits(
            (
                ("energy.battery_levels", 255, max((seen.size for seen in device.scope), default=1)),
                ("channel.levels", 255, plan.channel_levels),
                ("network.devices", 65535, len(headers)),
                ("variables that a device sees", 254, len(device.scope)),
                ("channels into a device", 254, len(device.reports.sites)),
                ("hops", 255, header.hops),
                ("table entries", 2**32 - 1, len(device.tables) * len(device.tables[0])),
            )
        )
    actions = [(action.power_watt, action.trained) for action in plan.actions]
    head = Head(plan.planner, plan.scenario, plan.scenario_sha256, len(headers), actions, plan.slots, plan.period)
    return headers, write_kit(folder, "lookup", head, headers)
