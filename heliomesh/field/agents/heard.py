"""What a watcher has heard of a network, slot by slot: checked, kept in its folder, and read again after a restart.

Each device counts once a slot. So a device that says too much, or says it again and again, fills its own places only.
"""

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits
from heliomesh.field.agents.folder import ClockSettings
from heliomesh.field.agents.journal import RotatedLines
from heliomesh.field.agents.report import Report, ReportCheck
from heliomesh.model.cost import update_loss
from heliomesh.model.problem import Problem
from heliomesh.pages.run_folder import Live
from heliomesh.simulation.slot_loop import Slot
from heliomesh.simulation.trace import Trace

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

# what is held of each slot, by axis
_HELD: dict[str, dict[str, type[np.generic]]] = {
    "device": {
        "heard": np.bool_,
        "battery_joule": np.float64,
        "battery_after_joule": np.float64,
        "power_watt": np.float64,
        "trained": np.bool_,
        "planned_joule": np.float64,
        "measured_joule": np.float64,
        "harvested_joule": np.float64,
        "overflow_joule": np.float64,
        "weather": np.int16,
    },
    "edge": {"error_prob": np.float64, "delivered": np.bool_},
    "site": {"channel_level": np.int16},
}


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
        self._check, self._lock = ReportCheck(problem), threading.Lock()
        self.plans: dict[int, str] = {}  # that devices followed when they were heard last
        self.last_slot = np.full(problem.num_devices, -1)  # in which each was heard; −1: in none
        self._refused: dict[int, Refusal] = {}  # by device
        self.not_kept = ""  # the reason, where lines cannot be kept
        self.count = 0  # lines that were heard
        for text in () if kept is None else kept.read():
            self._recall(text)

    def hear(self, device: int, text: bytes) -> None:
        """A line that a device has signed; what cannot be true is counted and forgotten."""
        try:
            found = self._check.report(text, device)
            if (now := self.slot_now()) is not None and found.slot > now:
                raise ValueError(f"slot: expected one that has begun, at most {now}, actual {found.slot}")
        except ValueError as error:
            with self._lock:
                before = self._refused.get(device, Refusal(0, str(error)))
                self._refused[device] = replace(before, count=before.count + 1)
            return
        if not self._held["heard"][found.slot, device]:
            self._enter(found)
            self._keep(found)

    def _recall(self, text: str) -> None:
        """A line that was heard before a restart; one that a lost supply cut off is left out."""
        try:
            found = self._check.report(text)
        except ValueError:
            return
        self._enter(found)

    def _enter(self, found: Report) -> None:
        slot, device = found.slot, found.device
        edges = slice(*self.problem.topology.edge_start[device : device + 2])
        with self._lock:
            for name in _HELD["device"].keys() - {"heard"}:
                self._held[name][slot, device] = getattr(found, name)  # None becomes NaN
            for name in _HELD["edge"]:
                self._held[name][slot, edges] = getattr(found, name)
            for site, level in found.channel_level.items():
                self._held["channel_level"][slot, int(site)] = level
            self._held["heard"][slot, device] = True
            if slot > self.last_slot[device]:
                self.last_slot[device], self.plans[device] = slot, found.plan
            self.count += 1

    def _keep(self, found: Report) -> None:
        try:
            if self._kept is not None:
                self._kept.add(found.model_dump_json())
        except OSError as error:  # the page goes on
            self.not_kept = error.strerror or str(error)

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

    def slot(self, number: int, battery_joule: Tensor) -> tuple[Slot, Tensor]:
        """A slot, and what meters say was spent in it [J]; (1, device), NaN where there is none.

        Of devices that were not heard the last battery is known, ``battery_joule`` (1, device).
        """
        row = {name: torch.from_numpy(array) for name, array in self._rows(np.array([number])).items()}
        known = row["heard"]
        battery = torch.where(known, row["battery_joule"], battery_joule)
        now = Slot(
            channel_level=row["channel_level"].long(),
            weather=row["weather"].long(),
            battery_joule=battery,
            power_watt=row["power_watt"],
            scheduled=row["trained"],
            error_prob=row["error_prob"],
            delivered=row["delivered"],
            update_loss=update_loss(self.problem, row["error_prob"], row["trained"]),
            spent_joule=row["planned_joule"],
            harvested_joule=row["harvested_joule"],
            overflow_joule=row["overflow_joule"],
            battery_after_joule=torch.where(known, row["battery_after_joule"], battery_joule),
            dark=self.problem.battery.dark(battery),
        )
        return now, row["measured_joule"]

    def trace(self, planner: str, most_slots: int) -> tuple[Trace, Live] | None:
        """The newest slots in which somebody was heard; None where there are none.

        What a battery gained or lost unheard is harvested or spent in the slot before it is heard again.
        """
        slots = np.flatnonzero(self._held["heard"][: self.latest + 1].any(1))[-most_slots:]
        if not len(slots):
            return None
        row = self._rows(slots)
        trained, error = (torch.from_numpy(row[name]) for name in ("trained", "error_prob"))
        battery, change = _batteries(slots, row["heard"], row["battery_joule"], row["battery_after_joule"])
        arrays: dict[str, npt.NDArray[Any]] = {
            "scheduled": row["trained"],
            "power_watt": row["power_watt"],
            "update_loss": update_loss(self.problem, error, trained).numpy(),
            "battery_joule": battery,
            "spent_joule": row["planned_joule"] + np.maximum(-change, 0),
            "harvested_joule": row["harvested_joule"] + np.maximum(change, 0),
            "overflow_joule": row["overflow_joule"],
            "delivered": row["delivered"],
            "error_prob": row["error_prob"],
            "channel_level": row["channel_level"],
        }
        trace = Trace(
            scenario_toml=self.problem.scenario.first_slots(len(slots)).to_toml(),
            planner=planner,
            seed=0,
            edge_receiver=self.problem.topology.edge_receiver,
            edge_sender=self.problem.topology.edge_sender,
            **{name: array[np.newaxis] for name, array in arrays.items()},
        )
        return trace, Live(slots, row["heard"])

    def _rows(self, slots: Numbers) -> dict[str, npt.NDArray[Any]]:
        """What is held of some slots; nothing reaches a device that was not heard, and no meter tells of it."""
        with self._lock:
            row = {name: array[slots] for name, array in self._held.items()}
        known = row["heard"]
        row["error_prob"] = np.where(known[:, self.problem.topology.edge_receiver], row["error_prob"], 1.0)
        row["measured_joule"] = np.where(known, row["measured_joule"], np.nan)
        return row


def _empty(problem: Problem) -> dict[str, npt.NDArray[Any]]:
    """Room for all slots, of which the system gives what is written; raises TooLargeError."""
    sizes = {
        "device": problem.num_devices,
        "edge": problem.topology.num_edges,
        "site": problem.channel.num_sites,
    }
    size = sum(sizes[axis] * np.dtype(kind).itemsize for axis, held in _HELD.items() for kind in held.values())
    check_fits("watch", problem.slots * size, DEFAULT_LIMIT_GIB, "lower slots or network.devices")
    return {
        name: np.zeros((problem.slots, sizes[axis]), kind)
        for axis, held in _HELD.items()
        for name, kind in held.items()
    }


def _batteries(slots: Numbers, heard: Bools, before_joule: Floats, after_joule: Floats) -> tuple[Floats, Floats]:
    """Batteries at all moments (slot + 1, device), and by how much they changed unheard (slot, device) [J].

    A battery that is not heard stays as it was; before it was first heard it is what it was then.
    """
    moments = np.full((len(slots) + 1, heard.shape[1]), np.nan)
    moments[:-1][heard] = before_joule[heard]
    ends = np.where(heard, after_joule, np.nan)
    moments[1:] = np.where(np.isnan(moments[1:]), ends, moments[1:])
    known = ~np.isnan(moments)
    rank = np.arange(len(moments))[:, np.newaxis]
    last = np.maximum.accumulate(np.where(known, rank, -1))
    last = np.where(last < 0, known.argmax(0), last)  # the first that is known; a device never heard has none
    moments = np.nan_to_num(np.take_along_axis(moments, last, 0))
    followed = np.append(np.diff(slots) == 1, True)[:, np.newaxis]
    start = np.where(heard, after_joule, moments[:-1])
    return moments, np.where(heard & followed, 0.0, moments[1:] - start)
