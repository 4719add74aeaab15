"""What a watcher has heard of a network, slot by slot: checked, kept in its folder, and read again after a restart.

A watcher believes nothing of a device's line before its size, types and ranges are checked.
Each device counts once a slot. So a device that says too much, or says it again and again, fills its own places only.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from pydantic import ConfigDict, Field, ValidationError
from torch import Tensor

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits
from heliomesh.field.agents.folder import ClockSettings, Index
from heliomesh.field.agents.journal import RotatedLines
from heliomesh.model.cost import update_loss
from heliomesh.model.problem import Problem
from heliomesh.pages.run_folder import Live
from heliomesh.scenario.section import Fraction, NonNegative, Section
from heliomesh.simulation.slot_loop import Slot
from heliomesh.simulation.trace import RECORDED, Trace

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_MOST_TIMES = 100.0  # what a panel may give, in batteries and in the law's largest harvests
_ABOVE = 1 + 1e-6  # of a full battery, for rounding

_Name = Annotated[str, Field(max_length=64)]  # a sha256
_Site = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]

# what is held of each slot, as the simulator calls it, by axis
_HELD: dict[str, dict[str, type[np.generic]]] = {
    "device": {
        **dict.fromkeys(("heard", "scheduled"), np.bool_),
        **dict.fromkeys(("battery_joule", "battery_after_joule", "power_watt", "spent_joule"), np.float64),
        **dict.fromkeys(("harvested_joule", "overflow_joule"), np.float64),
        "weather": np.int16,
    },
    "edge": {"error_prob": np.float64, "delivered": np.bool_},
    "site": {"channel_level": np.int16},
}
_SAID = {"scheduled": "trained", "spent_joule": "planned_joule"}  # other names in a line


class DeviceReport(Section):
    """The part of a journal's line that watchers read; what else is in a line is left out."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, strict=True)

    slot: Index
    device: Index
    plan: _Name
    channel_level: dict[_Site, Index]
    weather: Index
    battery_joule: NonNegative
    battery_after_joule: NonNegative
    power_watt: NonNegative
    trained: bool
    planned_joule: NonNegative
    harvested_joule: NonNegative
    overflow_joule: NonNegative
    error_prob: tuple[Fraction, ...]
    delivered: tuple[bool, ...]


@dataclass(frozen=True)
class Refusal:
    """Lines of a device that cannot be true."""

    count: int
    first_reason: str


class Heard:
    """All slots of all devices; lines are added by one thread and read by others."""

    def __init__(self, problem: Problem, clock: ClockSettings, kept: RotatedLines | None = None) -> None:
        self.problem, self._clock, self._kept = problem, clock, kept
        self._held = _empty(problem)
        law, self._lock = problem.harvest.law, threading.Lock()
        most_joule = _MOST_TIMES * (problem.battery.capacity_joule + law.scale * law.joule.max())
        self._most_joule: list[float] = most_joule.tolist()
        self.plans: dict[int, str] = {}  # that devices followed when they were heard last
        self.last_slot = np.full(problem.num_devices, -1)  # in which each was heard; −1: in none
        self._refused: dict[int, Refusal] = {}  # by device
        self.not_kept = ""  # the reason, where lines cannot be kept
        self.count = 0  # lines that were heard
        for text in () if kept is None else kept.read():
            with suppress(ValueError):  # a line that a lost supply cut off is left out
                self._enter(self._checked(text))

    def hear(self, device: int, text: bytes) -> None:
        """A line that a device has signed; what cannot be true is counted and forgotten."""
        try:
            found = self._checked(text, device)
            if (now := self.slot_now()) is not None and found.slot > now:
                raise ValueError(f"slot: expected one that has begun, at most {now}, actual {found.slot}")
        except ValueError as error:
            with self._lock:
                before = self._refused.get(device, Refusal(0, str(error)))
                self._refused[device] = replace(before, count=before.count + 1)
            return
        if not self._held["heard"][found.slot, device]:
            self._enter(found)
            try:
                if self._kept is not None:
                    self._kept.add(found.model_dump_json())
            except OSError as error:  # the page goes on
                self.not_kept = error.strerror or str(error)

    def _checked(self, text: bytes | str, device: int | None = None) -> DeviceReport:
        """What a line says, of a device if one is given; raises ValueError with a sentence where it cannot be so."""
        try:
            found = DeviceReport.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            place = ".".join(map(str, first["loc"])) or "line"
            raise ValueError(f"{place}: {first['msg']}") from None
        own = found.device < self.problem.num_devices and device in (None, found.device)
        fields = self._fits(found) if own else {"device": False}
        wrong = next((name for name, fits in fields.items() if not fits), None)
        if wrong is not None:
            raise ValueError(f"{wrong}: expected one that the device can have, actual {getattr(found, wrong)!r:.60}")
        return found

    def _fits(self, found: DeviceReport) -> dict[str, bool]:
        """Which fields can be what they are, by name."""
        problem, device, most = self.problem, found.device, self._most_joule[found.device]
        num_edges = len(problem.topology.neighbours[device])
        full = float(problem.battery.capacity_joule[device]) * _ABOVE
        sites, levels = set(problem.sites_into(device)), len(problem.channel.kernel)
        return {
            "slot": found.slot < problem.slots,
            "channel_level": all(int(site) in sites and n < levels for site, n in found.channel_level.items()),
            "weather": found.weather < problem.harvest.law.num_weather,
            "battery_joule": found.battery_joule <= full,
            "battery_after_joule": found.battery_after_joule <= full,
            "power_watt": found.power_watt in problem.actions.power_watt,
            "planned_joule": found.planned_joule <= full,
            "harvested_joule": found.harvested_joule <= most,
            "overflow_joule": found.overflow_joule <= most,
            "error_prob": len(found.error_prob) == num_edges,
            "delivered": len(found.delivered) == num_edges,
        }

    def _enter(self, found: DeviceReport) -> None:
        slot, device = found.slot, found.device
        edges = self.problem.topology.edges_into(device)
        with self._lock:
            for name in _HELD["device"].keys() - {"heard"}:
                self._held[name][slot, device] = getattr(found, _SAID.get(name, name))
            for name in _HELD["edge"]:
                self._held[name][slot, edges] = getattr(found, name)
            for site, level in found.channel_level.items():
                self._held["channel_level"][slot, int(site)] = level
            self._held["heard"][slot, device] = True
            if slot > self.last_slot[device]:
                self.last_slot[device], self.plans[device] = slot, found.plan
            self.count += 1

    @property
    def refused(self) -> dict[int, Refusal]:
        """Whose lines were refused, by device."""
        with self._lock:
            return dict(self._refused)

    @property
    def latest(self) -> int:
        """The last slot that was heard of; −1 where there is none."""
        return int(self.last_slot.max())

    def slot_now(self) -> int | None:
        """The slot of this moment, by the time of day; None where slots do not follow it."""
        clock = self._clock
        if clock.kind != "wall":
            return None
        return int((time.time() + clock.guard_second - clock.start_second) // clock.slot_second)

    def heard_in(self, slot: int) -> frozenset[int]:
        """The devices that were heard in a slot."""
        return frozenset(np.flatnonzero(self._held["heard"][slot]).tolist())

    def is_over(self, slot: int) -> bool:
        """Whether nothing more is to come of a slot."""
        return self.latest > slot + 1 or len(self.heard_in(slot)) == self.problem.num_devices

    def slot(self, number: int, battery_joule: Tensor) -> Slot:
        """A slot; of devices that were not heard the last battery is known, ``battery_joule`` (1, device)."""
        row = {name: torch.from_numpy(array) for name, array in self._rows(np.array([number])).items()}
        known = row.pop("heard")
        for name in ("battery_joule", "battery_after_joule"):
            row[name] = torch.where(known, row[name], battery_joule)
        for name in ("channel_level", "weather"):
            row[name] = row[name].long()
        return Slot(**row, dark=self.problem.battery.dark(row["battery_joule"]))

    def trace(self, planner: str, most_slots: int) -> tuple[Trace, Live] | None:
        """The newest slots in which somebody was heard; None where there are none.

        What a battery gained or lost unheard is harvested or spent in the slot before it is heard again.
        """
        slots = np.flatnonzero(self._held["heard"][: self.latest + 1].any(1))[-most_slots:]
        if not len(slots):
            return None
        row = self._rows(slots)
        battery, change = _batteries(slots, row["heard"], row["battery_joule"], row["battery_after_joule"])
        row["battery_joule"] = battery
        row["spent_joule"] += np.maximum(-change, 0)
        row["harvested_joule"] += np.maximum(change, 0)
        trace = Trace(
            scenario_toml=self.problem.scenario.first_slots(len(slots)).to_toml(),
            planner=planner,
            seed=0,
            edge_receiver=self.problem.topology.edge_receiver,
            edge_sender=self.problem.topology.edge_sender,
            **{column.name: row[column.name][np.newaxis] for column in RECORDED},
        )
        return trace, Live(slots, row["heard"])

    def _rows(self, slots: Numbers) -> dict[str, npt.NDArray[Any]]:
        """What is held of some slots; nothing reaches a device that was not heard."""
        with self._lock:
            row = {name: array[slots] for name, array in self._held.items()}
        known = row["heard"]
        row["error_prob"] = np.where(known[:, self.problem.topology.edge_receiver], row["error_prob"], 1.0)
        error, trained = torch.from_numpy(row["error_prob"]), torch.from_numpy(row["scheduled"])
        row["update_loss"] = update_loss(self.problem, error, trained).numpy()
        return row


def _empty(problem: Problem) -> dict[str, npt.NDArray[Any]]:
    """Room for all slots, of which the system gives what is written; raises TooLargeError."""
    axes = {"device": problem.num_devices, "edge": problem.topology.num_edges, "site": problem.channel.num_sites}
    held = {name: (axes[axis], kind) for axis, kinds in _HELD.items() for name, kind in kinds.items()}
    size = sum(length * np.dtype(kind).itemsize for length, kind in held.values())
    check_fits("watch", problem.slots * size, DEFAULT_LIMIT_GIB, "lower slots or network.devices")
    return {name: np.zeros((problem.slots, length), kind) for name, (length, kind) in held.items()}


def _batteries(slots: Numbers, heard: Bools, before_joule: Floats, after_joule: Floats) -> tuple[Floats, Floats]:
    """Batteries at all moments (slot + 1, device), and by how much they changed unheard (slot, device) [J].

    A battery that is not heard stays as it was; before it was first heard it is what it was then.
    """
    moments = np.full((len(slots) + 1, heard.shape[1]), np.nan)
    moments[:-1][heard] = before_joule[heard]
    ends = np.where(heard, after_joule, np.nan)
    moments[1:] = np.where(np.isnan(moments[1:]), ends, moments[1:])
    # the first that is known stands for all before it; a device never heard has none
    moments = pd.DataFrame(moments).ffill().bfill().fillna(0.0).to_numpy()
    followed = np.append(np.diff(slots) == 1, True)[:, np.newaxis]
    start = np.where(heard, after_joule, moments[:-1])
    return moments, np.where(heard & followed, 0.0, moments[1:] - start)
