"""What happened in each slot, a line of JSON each, with planned and measured joules side by side."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heliomesh.common.durable import unlinked, without_nan
from heliomesh.field.agents.folder import AgentFolder
from heliomesh.field.agents.inbox import Inbox
from heliomesh.field.fleet.device import Happened, Sensed
from heliomesh.field.living.detector import harvest_moments


@dataclass(frozen=True)
class RotatedLines:
    """Lines of text in a file of limited size; a full file takes the place of the one before it, which is dropped."""

    newer: Path
    older: Path
    most_bytes: int

    def add(self, line: str) -> None:
        """Add a line, behind the end of one that a lost supply cut off."""
        with open(self.newer, "ab+", opener=unlinked) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                cut_off = file.read(1) != b"\n"
                file.write(b"\n" * cut_off)
            file.write(line.encode() + b"\n")
            full = file.tell() >= self.most_bytes
        if full:
            self.newer.replace(self.older)

    def read(self) -> Iterator[str]:
        """All lines that are kept, the oldest first; one that was cut off may be anything."""
        for path in filter(Path.exists, (self.older, self.newer)):
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from file


def journal_of(folder: AgentFolder) -> RotatedLines:
    """The journal of one agent, of limited size; a restart goes on in the same file."""
    newer, older = folder.path / "slots.jsonl", folder.path / "slots.old.jsonl"
    return RotatedLines(newer, older, folder.settings.journal_bytes)


def line_of(
    folder: AgentFolder,
    slot: int,
    sensed: Sensed,
    happened: Happened,
    measured_joule: float | None,
    inbox: Inbox,
    away: Sequence[int],
) -> dict[str, Any]:
    """The line of a slot; ``away`` are neighbours without a sign of life."""
    device, problem = folder.settings.device, folder.problem
    weather = torch.full((1, problem.num_devices), sensed.weather)
    books = asdict(happened)
    books["planned_joule"] = books.pop("spent_joule")  # as a meter may say otherwise
    line: dict[str, Any] = without_nan(
        {
            "slot": slot,
            "device": device,
            "plan": folder.settings.plan,
            "channel_level": sensed.channel_level,
            "weather": sensed.weather,
            **{name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in books.items()},
            "measured_joule": measured_joule,
            "expected_harvest_joule": float(harvest_moments(problem, slot, weather)[0][0, device]),
            "refused": inbox.refused,
            "isolated": sorted(inbox.isolated),
            "away": away,
        }
    )
    return line


def sentence_of(line: Mapping[str, Any], neighbours: Sequence[int]) -> str:
    """A slot in a sentence for a terminal; ``neighbours`` are those of ``delivered``, in its order."""
    sent = f"sent at {line['power_watt']:g} W" if line["power_watt"] else ""
    done = " and ".join(word for word in ("trained" if line["trained"] else "", sent) if word) or "idle"
    senders = [str(other) for other, came in zip(neighbours, line["delivered"], strict=True) if came]
    loss = "" if line["loss"] is None else f", loss {line['loss']:.3f}"
    heard = f"averaged with {', '.join(senders)}" if senders else "averaged with nobody"
    battery = f"battery {line['battery_joule']:.3g} to {line['battery_after_joule']:.3g} J"
    return f"slot {line['slot']}: {done}, {heard}, {battery}{loss}"
