"""Progress on standard error: bars that move on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from rich import progress as bars
from rich.console import Console

from heliomesh.commands.terminal import console, note, tell
from heliomesh.learning.tracking import Observer, both
from heliomesh.learning.trainer import Execution, MakeStack
from heliomesh.model.policy import Track, untracked
from heliomesh.simulation.trace import Trace

_Item = TypeVar("_Item")

_LINE_SECOND = 60  # between lines of progress in a file
_BAR_SECOND = 2  # before a bar is shown


def _progress(screen: Console, *columns: bars.ProgressColumn, hidden: bool = False, width: int = 40) -> bars.Progress:
    """What a task is, a bar of so many letters and further columns; nothing of it is left behind."""
    described = (bars.TextColumn("{task.description}"), bars.BarColumn(bar_width=width), *columns)
    return bars.Progress(*described, console=screen, transient=True, disable=hidden or not screen.is_terminal)


def track_unless(quiet: bool) -> Track:
    """Progress bars for work that lasts, or none."""
    return untracked if quiet else _tracked


def _tracked(items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
    """Show a bar after two seconds on a terminal, a plain line a minute elsewhere."""
    screen, started = console(stderr=True), time.monotonic()
    progress, told = _progress(screen, bars.MofNCompleteColumn(), bars.TimeRemainingColumn()), started
    task = progress.add_task(description, total=total)
    try:
        for done, item in enumerate(items):
            now = time.monotonic()
            if screen.is_terminal and now - started > _BAR_SECOND:
                progress.start()  # once; later calls change nothing
                progress.update(task, completed=done)
            elif not screen.is_terminal and now - told >= _LINE_SECOND:
                tell(f"{description}: {done} of {total}")
                told = now
            yield item
    finally:
        if progress.live.is_started:
            progress.stop()


@contextmanager
def downloads(hidden: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """What shows how much of each file is there: its label, the bytes done and, where known, all of them."""
    tasks: dict[str, bars.TaskID] = {}
    columns = (bars.DownloadColumn(), bars.TransferSpeedColumn())
    with _progress(console(stderr=True), *columns, hidden=hidden) as progress:

        def show(label: str, done_bytes: int, total_bytes: int | None) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, total=total_bytes)
            progress.update(tasks[label], completed=done_bytes, total=total_bytes)

        yield show


class TrainingProgress:
    """One line of a training that moves on a terminal, a plain line per evaluation elsewhere."""

    def __init__(self, trace: Trace, quiet: bool) -> None:
        sent = (trace.power_watt[0] > 0)[:, trace.edge_sender].sum(1).cumsum()
        arrived = trace.delivered[0].sum(1).cumsum()
        self._lost = 1 - arrived / np.maximum(sent, 1)  # (slot,) share of packets so far
        self._battery_joule = trace.battery_joule[0].mean(1)  # (slot + 1,)
        self._quiet, self._console, self._accuracy = quiet, console(stderr=True), "–"

    def work(self, watchers: Sequence[Observer], make_stack: MakeStack) -> Execution:
        """A training that is shown."""
        observer = reduce(both, watchers, self.observe)
        return Execution(track=self.track, observer=observer, notify=note, make_stack=make_stack)

    def track(self, items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
        """Show slots as they go by."""
        facts = "accuracy {task.fields[accuracy]} batteries {task.fields[joule]:.2f} J lost {task.fields[lost]:.0%}"
        columns, slots = (bars.TextColumn(facts), bars.TimeRemainingColumn()), len(self._lost)
        with _progress(self._console, *columns, hidden=self._quiet, width=24) as progress:
            task = progress.add_task("", total=slots, **self._fields(slots - total))
            for done, item in enumerate(items, start=slots - total):
                progress.update(task, description=f"slot {done}/{slots}", **self._fields(done))
                yield item

    def _fields(self, done: int) -> dict[str, Any]:
        lost = float(self._lost[done - 1]) if done else 0.0
        return {"completed": done, "accuracy": self._accuracy, "joule": self._battery_joule[done], "lost": lost}

    def observe(self, run: int, row: Mapping[str, float]) -> None:
        """Note the accuracy."""
        self._accuracy = f"{row['accuracy_mean']:.3f}"
        if not self._quiet and not self._console.is_terminal:
            tell(
                f"slot {row['slot']:.0f} of {len(self._lost)}: accuracy {row['accuracy_mean']:.4f}, "
                f"of the average model {row['average_accuracy']:.4f}"
            )
