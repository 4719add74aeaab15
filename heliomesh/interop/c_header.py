"""Plans that look actions up, as table files in C99 for the firmware kit.

Constants are battery cuts in units of energy, and actions in one, two, four or eight bits, each different table
once. In every slot a device writes its state message, sends it, hears those of others and looks its action up; all it
remembers is a view of a few bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from heliomesh.interop.c_kit import Constants, Head, bits_of, check_limits, write_kit
from heliomesh.interop.c_levels import Measuring
from heliomesh.interop.export_tables import DeviceTables, PlanTables
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import TOLERANCE


@dataclass(frozen=True)
class Header:
    """The table file of one device."""

    plan: PlanTables
    device: DeviceTables
    problem: Problem
    travel: int = 0  # links that every message of the network travels

    @property
    def number(self) -> int:
        """Of the device."""
        return self.device.device

    @cached_property
    def measuring(self) -> Measuring:
        """Units and thresholds."""
        return Measuring(self.problem, self.number)

    @property
    def ram_bytes(self) -> int:
        """Bytes of the view that a device keeps."""
        return max(len(self.device.scope), 1)

    @property
    def code_bytes(self) -> int:
        """Bytes of code of the example program on AVR, about; measured by `benchmarks/firmware.py`."""
        return 1500

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

    @cached_property
    def _sources(self) -> list[tuple[int, int]]:
        """Device that measures each variable of the view, the nearest of them, and the byte of its message."""
        devices = self.plan.devices
        found = []
        for seen in self.device.scope:
            if seen.kind == "energy":
                found.append((seen.owner, len(devices[seen.owner].reports.sites)))
                continue
            measuring = [d for d in devices if seen.owner in d.reports.sites]
            nearest = min(measuring, key=lambda d: (self._distances.get(d.device, len(devices)), d.device))
            found.append((nearest.device, nearest.reports.sites.index(seen.owner)))
        return found

    @cached_property
    def _distances(self) -> dict[int, int]:
        """Links from the device to every device that it can reach."""
        return self.problem.topology.within(self.number, len(self.plan.devices))

    @property
    def hops(self) -> int:
        """Links that messages travel until all that the device sees has reached it."""
        return max((self._distances[source] for source, _ in self._sources), default=0)


def write_headers(plan: PlanTables, problem: Problem, folder: Path) -> tuple[list[Header], list[Path]]:
    """Write the kit; returns its table files and all paths. Raises ScenarioError for what C's types do not hold."""
    travel = max(Header(plan, device, problem).hops for device in plan.devices)
    headers = [Header(plan, device, problem, travel) for device in plan.devices]
    for header in headers:
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
