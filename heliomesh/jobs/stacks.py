"""Train runs in stacks, in this process or in others: each run is kept as it ends, and has checkpoints on the way.

A run that diverges leaves its stack. The others go on from their last checkpoint.
"""

import math
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from heliomesh.jobs.job import Job
from heliomesh.jobs.steps import begun
from heliomesh.learning.checkpoint import Checkpoints, common_slots
from heliomesh.learning.members import SHARED, DivergedError
from heliomesh.learning.run import Run, TrainingError
from heliomesh.learning.trainer import ALONE, Execution
from heliomesh.simulation.trace import Trace

if TYPE_CHECKING:
    from heliomesh.jobs.store import Store

_Item = TypeVar("_Item")
_Outcome = dict[int, Run | DivergedError]  # what became of a stack's runs, by their place in it
_POLL_SECOND = 0.5  # between looks at how far other processes are


def train_stacks(jobs: Sequence[Job], store: "Store", work: Execution) -> dict[str, TrainingError]:
    """Train jobs whose traces are stored, of one dataset and model together; returns why runs failed, by key."""
    stacks, failed = _stacks(jobs, store, work), dict[str, TrainingError]()
    alone = len(stacks) < 2 or (work.train_map or work.parallel_map) is map
    with closing((_here if alone else _elsewhere)(stacks, store, work, failed)) as slots:
        done = (max(common_slots(store.checkpoints(stack)), default=0) for stack in stacks)
        left = sum(stack[0].num_slots - slot for stack, slot in zip(stacks, done, strict=True))
        for _ in work.track(slots, "train", left):
            pass
    for job in jobs if len(jobs) > 1 else ():
        if job.key() in failed:
            said = job.identity()
            where = f"{said['planner']}, training seed {said['training seed']}"
            failed[job.key()] = TrainingError(f"{where}: {failed[job.key()]}")
    return failed


def _stacks(jobs: Sequence[Job], store: "Store", work: Execution) -> list[list[Job]]:
    """Jobs that train together: of one dataset, model and horizon, and equally far."""
    found = []
    for _, alike in groupby(sorted(jobs, key=_kind), key=_kind):
        for members in _equally_far(list(alike), store):
            size = min(work.runs_at_once, math.ceil(len(members) / work.stacks_at_once))
            found += [members[start : start + size] for start in range(0, len(members), size)]
    return found


def _kind(job: Job) -> str:
    own = job.scenario.learning
    shared = [getattr(own, name) for name in SHARED]
    return f"{shared} {job.num_slots} {job.training} {id(job.dataset)}"


def _equally_far(jobs: Sequence[Job], store: "Store") -> list[list[Job]]:
    """All jobs where they have a checkpoint in common, else those with the same newest one."""
    if common_slots(store.checkpoints(jobs)):
        return [list(jobs)]
    newest = {job.key(): max(common_slots(store.checkpoints([job])), default=0) for job in jobs}
    ordered = sorted(jobs, key=lambda job: newest[job.key()])
    return [list(group) for _, group in groupby(ordered, key=lambda job: newest[job.key()])]


def _here(
    stacks: Sequence[Sequence[Job]], store: "Store", work: Execution, failed: dict[str, TrainingError]
) -> Generator[int, None, None]:
    """Train stacks one after the other; gives a number for every slot."""
    for stack in stacks:
        traces = [store.read_trace(job) for job in stack]
        done = yield from _surviving(stack, traces, work, store.checkpoints(stack))
        _keep(stack, done, store, work, failed)


def _surviving(
    jobs: Sequence[Job], traces: Sequence[Trace], work: Execution, checkpoints: Sequence[Checkpoints]
) -> Generator[int, None, _Outcome]:
    """Train a stack without the runs that diverge; gives a number for every slot."""
    left, found = list(range(len(jobs))), _Outcome()
    while left:
        own = [checkpoints[number] for number in left] if checkpoints else []
        training = begun([jobs[number] for number in left], [traces[number] for number in left], work, own)
        try:
            yield from training.slots()
        except DivergedError as error:
            found[left.pop(error.run)] = error
            continue
        return found | dict(zip(left, training.runs(), strict=True))
    return found


def _keep(
    stack: Sequence[Job], done: _Outcome, store: "Store", work: Execution, failed: dict[str, TrainingError]
) -> None:
    for number, found in done.items():
        if isinstance(found, Run):
            store.put_run(stack[number], found, work)
        else:
            failed[stack[number].key()] = found


@dataclass(frozen=True)
class _Task:
    """A stack for another process."""

    jobs: Sequence[Job]
    traces: Sequence[Trace]
    checkpoints: Sequence[Checkpoints]
    mark: Path | None  # a file whose size tells how many slots are done; where it is gone, nobody waits


def _trained(task: _Task) -> _Outcome:
    """Train a stack to its end; where nobody waits for it any more, FileNotFoundError stops it."""
    slots, done = _surviving(task.jobs, task.traces, ALONE, task.checkpoints), 0
    with closing(slots):
        try:
            while True:
                if task.mark is not None:
                    os.truncate(task.mark, done)
                next(slots)
                done += 1
        except StopIteration as end:
            return _Outcome(end.value)


def _elsewhere(
    stacks: Sequence[Sequence[Job]], store: "Store", work: Execution, failed: dict[str, TrainingError]
) -> Generator[int, None, None]:
    """Train stacks side by side; gives a number for every slot, as far as other processes tell of it."""
    with TemporaryDirectory() as folder:
        marks = [Path(folder) / str(number) for number in range(len(stacks))]
        for mark in marks:
            mark.touch()
        tasks = (
            _Task(
                stack,
                [store.read_trace(job) for job in stack],
                store.checkpoints(stack) if work.same_disk else (),
                mark if work.same_disk else None,
            )
            for stack, mark in zip(stacks, marks, strict=True)
        )
        waiting, shown = zip(stacks, marks, strict=True), 0
        for done in _awaited((work.train_map or work.parallel_map)(_trained, tasks)):
            if done is not None:
                stack, mark = next(waiting)
                _keep(stack, done, store, work, failed)
                if not work.same_disk:
                    os.truncate(mark, stack[0].num_slots)
            total = sum(mark.stat().st_size for mark in marks)
            yield from range(shown, total)
            shown = max(shown, total)


def _awaited(results: Iterable[_Item]) -> Iterator[_Item | None]:
    """Results as they come, and None now and then where none has come yet; raises what their iterator raises."""
    arrived: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def wait() -> None:
        try:
            for result in results:
                arrived.put((result, None))
            arrived.put((None, StopIteration()))
        except BaseException as error:  # it is raised where somebody listens
            arrived.put((None, error))

    Thread(target=wait, daemon=True).start()
    while True:
        try:
            result, error = arrived.get(timeout=_POLL_SECOND)
        except Empty:
            yield None
            continue
        if isinstance(error, StopIteration):
            return
        if error is not None:
            raise error
        yield result
