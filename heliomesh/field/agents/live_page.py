"""The live page: a file that is written anew where something was heard, and that a browser loads again by itself."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from heliomesh.common.durable import write_text
from heliomesh.field.agents.heard import Heard
from heliomesh.pages.packing import estimated_characters
from heliomesh.pages.page import render
from heliomesh.pages.page_data import LIMIT_MIB, described
from heliomesh.pages.run_folder import RunFolder, no_curves
from heliomesh.planning import chosen_options

_SILENT_SLOTS = 3  # after which a device is called silent
_MOST_SLOTS = 5000  # on the page
_MOST_NAMED = 10  # devices, one sentence each
_WAITING = (
    '<!doctype html><head><meta name="color-scheme" content="light dark"><title>heliomesh</title></head>'
    "<p>No slot has ended yet. "
)


@dataclass
class LivePage:
    """The page of all that was heard so far."""

    heard: Heard
    planner: str
    options: Mapping[str, Any]  # of the planner
    training_seed: int  # of the devices
    _made: tuple[int, ...] = ()  # for what it was written last

    def keep(self, target: Path, refresh_second: float, ended: threading.Event) -> None:
        """Write the page whenever something has changed, until the end; where there is no room, later."""
        reload = f'<head><meta http-equiv="refresh" content="{refresh_second:g}">'
        while True:
            last, now = ended.is_set(), self.heard.slot_now()
            state = (self.heard.count, len(self.heard.refused), -1 if now is None else now)
            if self._made != state:
                with suppress(OSError):
                    write_text(target, self.html().replace("<head>", reload, 1))
                    self._made = state
            if last:
                return
            ended.wait(refresh_second)

    def html(self) -> str:
        """The page of this moment."""
        problem = self.heard.problem
        per_slot = estimated_characters(1, problem.num_devices, problem.topology.num_edges)
        found = self.heard.trace(self.planner, min(_MOST_SLOTS, int(LIMIT_MIB * 2**20 / per_slot)))
        if found is None:
            return _WAITING + escape(" ".join(self.troubles()))
        trace, live = found
        scenario = problem.scenario.first_slots(len(live.slots))
        run = RunFolder(
            path=Path("agents"),
            scenario=scenario,
            topology=problem.topology,
            planner=self.planner,
            seed=self.training_seed,
            episode=0,
            finished=False,
            curves=no_curves(scenario),
            trace=trace,
            plan={},
            options=chosen_options(self.planner, self.options),
            provenance={},
            missing=("Devices have no test set, so no accuracy is known.", *self.silences(), *self.troubles()),
            live=live,
        )
        title = f"{problem.scenario.name}: live, the agents' slots {live.slots[0]} to {live.slots[-1]}"
        return render(described([run], title) | {"refusals": {}})

    def silences(self) -> list[str]:
        """A sentence on every device that has not been heard for some slots."""
        latest, now = self.heard.latest, self.heard.slot_now()
        if now is not None and min(now, self.heard.problem.slots) - latest > _SILENT_SLOTS:
            return [f"No device has been heard since slot {latest}; by the clock it is slot {now}."]
        last = enumerate(self.heard.last_slot.tolist())
        silent = [(device, slot) for device, slot in last if latest - slot >= _SILENT_SLOTS]
        sentences = [
            f"Device {device} has not been heard since slot {slot}; its battery is drawn as it was then."
            if slot >= 0
            else f"Device {device} has never been heard."
            for device, slot in silent[:_MOST_NAMED]
        ]
        more = len(silent) - len(sentences)
        return [*sentences, f"{more} more devices have not been heard for some slots."] if more else sentences

    def troubles(self) -> list[str]:
        """A sentence on every device whose lines were refused, and one where nothing can be kept."""
        sentences = [
            f"Device {device} has sent lines that cannot be true, {found.count} of them; first: {found.first_reason}."
            for device, found in sorted(self.heard.refused.items())[:_MOST_NAMED]
        ]
        kept = f"What is heard is not kept for a restart: {self.heard.not_kept}."
        return [*sentences, kept] if self.heard.not_kept else sentences
