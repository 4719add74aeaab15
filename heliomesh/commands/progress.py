"""Progress on standard error: bars that move on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

from rich import progress as bars
from rich.console import Console

from heliomesh.commands.terminal import console, note, tell
from heliomesh.learning.tracking import Observer, both
from heliomesh.learning.trainer import Execution
from heliomesh.model.policy import Track, untracked

_Item = TypeVar("_Item")

_LINE_SECOND = 60  # between lines of progress in a file
_BAR_SECOND = 2  # before a bar is shown


def _progress(screen: Console, *columns: bars.ProgressColumn, hidden: bool = False) -> bars.Progress:
    """What a task is, a bar and further columns; nothing of it is left behind."""
    described = (bars.TextColumn("{task.description}"), bars.BarColumn(), *columns)
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


def training_work(slots: int, silent: bool, watchers: Sequence[Observer] = (), **settings: Any) -> Execution:
    """A training that is shown, by a line for every evaluation; with further fields of `Execution`."""

    def observe(run: int, row: Mapping[str, float]) -> None:
        if not silent:
            tell(
                f"slot {row['slot']:.0f} of {slots}: accuracy {row['accuracy_mean']:.4f}, "
                f"of the average model {row['average_accuracy']:.4f}"
            )

    return Execution(track=track_unless(silent), observer=reduce(both, watchers, observe), notify=note, **settings)
