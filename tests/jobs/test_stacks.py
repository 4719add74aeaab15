"""Stacks of runs: slots that show, checkpoints that a kill leaves, and runs that fail alone."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.engine.processes import parallel_map
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.learning import trainer
from heliomesh.learning.checkpoint import Checkpoints
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.trainer import Execution

SCENARIO = hm.Scenario.load("tiny").override({"slots": 8, "learning.local_steps": 1, "learning.dataset": "synthetic"})
BASE = Job(SCENARIO, "uncoordinated", training=TrainSettings(strategy="loop", evaluate_every=3, checkpoint_every=2))
JOBS = [replace(BASE, episode=seed, training_seed=seed) for seed in range(4)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in other processes: a product that threads share may add in another order, and runs would differ by bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Watching:
    """A progress callback that counts slots, and may do something at one of them."""

    def __init__(self, at: int | None = None, act: Callable[[], object] = lambda: None) -> None:
        self.shown, self.total, self._at, self._act = 0, 0, at, act

    def __call__(self, items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        for item in items:
            if description == "train":
                self.total = total
                if self.shown == self._at:
                    self._act()
                self.shown += 1
            yield item


class CancelledError(Exception):
    """What a user's callback raises."""


def cancel() -> None:
    raise CancelledError


def assert_whole(runs: list[hm.Run]) -> None:
    """The runs of all jobs, equal to what each gives alone."""
    for job, run in zip(JOBS, runs, strict=True):
        with hm.jobs.store.opened(None) as scratch:  # type: ignore[attr-defined]
            alone = scratch.run(job)
        np.testing.assert_array_equal(run.accuracy, alone.accuracy)
        np.testing.assert_array_equal(run.weights.numpy(), alone.weights.numpy())


@pytest.mark.parametrize(("runs_at_once", "stacks"), [(4, 1), (2, 2), (3, 2), (1, 4)])
def test_every_slot_of_every_stack_shows(tmp_path: Path, runs_at_once: int, stacks: int) -> None:
    seen = Watching()
    Store(tmp_path).runs(JOBS, Execution(track=seen, runs_at_once=runs_at_once))
    assert (seen.shown, seen.total) == (8 * stacks, 8 * stacks)
    assert not list(tmp_path.rglob("checkpoints"))


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from heliomesh.jobs.store import Store
from heliomesh.learning.trainer import Execution
from tests.jobs.test_stacks import JOBS, Watching

torch.set_num_threads(1)
kill = Watching(5, lambda: os.kill(os.getpid(), signal.SIGKILL))
Store(Path(sys.argv[1])).runs(JOBS, Execution(track=kill))
"""


def test_a_kill_in_the_middle_of_a_stack_loses_little(tmp_path: Path) -> None:
    place = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=place, check=False)  # noqa: S603
    assert ended.returncode == -signal.SIGKILL
    assert not any(Store(tmp_path).has(job) for job in JOBS)
    seen = Watching()
    assert_whole(Store(tmp_path).runs(JOBS, Execution(track=seen)))
    assert (seen.shown, seen.total) == (4, 4)  # from the checkpoints after slot 4


def test_a_cancelled_stack_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(CancelledError):
        Store(tmp_path).runs(JOBS, Execution(track=Watching(5, cancel)))
    seen = Watching()
    assert_whole(Store(tmp_path).runs(JOBS, Execution(track=seen)))
    assert seen.shown == 3


def test_a_kill_between_two_checkpoints_leaves_the_stack_together(tmp_path: Path) -> None:
    """Some runs have a newer checkpoint than others: all go on from the newest that they have in common."""
    store = Store(tmp_path)
    with pytest.raises(CancelledError):
        store.runs(JOBS, Execution(track=Watching(6, cancel)))
    for job in JOBS[2:]:
        next(store.place(job, "run").glob("checkpoints/00000006.json")).unlink()
    seen = Watching()
    assert_whole(store.runs(JOBS, Execution(track=seen)))
    assert (seen.shown, seen.total) == (4, 4)


def test_runs_go_on_alone_and_in_other_stacks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(CancelledError):
        store.runs(JOBS[:2], Execution(track=Watching(6, cancel)))
    alone, others = Watching(), Watching()
    store.run(JOBS[0], Execution(track=alone))
    assert_whole(store.runs(JOBS, Execution(track=others)))
    assert alone.shown == 2
    assert others.shown == 2 + 8  # the second run of the first stack, and two that had not begun


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    store, told = Store(tmp_path), []
    with pytest.raises(CancelledError):
        store.runs(JOBS, Execution(track=Watching(6, cancel)))
    place = next(store.place(JOBS[2], "run").glob("checkpoints/00000006.safetensors"))
    place.write_bytes(place.read_bytes()[:-1])
    assert_whole(store.runs(JOBS, Execution(notify=told.append)))
    assert len(told) == 1
    assert "going on from the checkpoint after slot 4" in told[0]


def test_a_scratch_store_writes_no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpoints, "write", pytest.fail)
    with hm.jobs.store.opened(None) as scratch:  # type: ignore[attr-defined]
        scratch.runs(JOBS)


def test_large_checkpoints_take_a_twentieth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, written = [0.0], []
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def write(own: Checkpoints, checkpoint: Any) -> None:
        written.append(checkpoint.done)
        clock[0] += 3  # seconds

    monkeypatch.setattr(Checkpoints, "write", write)
    long = replace(BASE, scenario=SCENARIO.override({"slots": 150}))
    own = replace(long, training=replace(BASE.training, checkpoint_every=None, checkpoint_second=10))

    def second_passes(items: Iterable[Any], description: str, total: int) -> Iterator[Any]:
        for item in items:
            clock[0] += description == "train"
            yield item

    Store(tmp_path).runs([own, replace(own, training_seed=1)], Execution(track=second_passes))
    assert written == [10, 10, 130, 130]


# runs that fail


STILL = {"harvest.scale": 0.0, "energy.initial": 0.0}  # nobody ever trains
DIVERGING = {"learning.learning_rate": 1e30}


def _some_diverge() -> list[Job]:
    still = SCENARIO.override(STILL | DIVERGING)
    return [replace(job, scenario=SCENARIO.override(DIVERGING) if job.episode == 1 else still) for job in JOBS]


def test_a_run_that_diverges_leaves_the_others_alone(tmp_path: Path) -> None:
    store, jobs = Store(tmp_path), _some_diverge()
    with pytest.raises(hm.TrainingError, match=r"^uncoordinated, training seed 1: device \d: expected finite losses"):
        store.runs(jobs)
    assert [store.has(job) for job in jobs] == [True, False, True, True]
    seen = Watching()
    assert list(store.train(jobs, Execution(track=seen))) == [jobs[1].key()]
    assert seen.shown <= 8  # the others are not trained again


# in other processes


def test_stacks_elsewhere_show_their_slots_and_go_on(tmp_path: Path) -> None:
    work = Execution(parallel_map=partial(parallel_map, processes=2), stacks_at_once=2, same_disk=True)
    longer = [replace(job, scenario=SCENARIO.override({"slots": 4000})) for job in JOBS]
    begun = Watching(1, cancel)
    with pytest.raises(CancelledError):
        Store(tmp_path).runs(longer, replace(work, track=begun))
    assert begun.total == 2 * 4000
    seen = Watching()
    assert_whole(Store(tmp_path).runs(JOBS, replace(work, track=seen)))
    assert (seen.shown, seen.total) == (16, 16)
    until = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/*/checkpoints/*.json")):  # who trains there stops, and keeps what is done
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_run_that_diverges_elsewhere_is_named(tmp_path: Path) -> None:
    work = Execution(parallel_map=partial(parallel_map, processes=2), stacks_at_once=2, same_disk=True)
    store, jobs = Store(tmp_path), _some_diverge()
    (error,) = store.train(jobs, work).values()
    assert str(error).startswith("uncoordinated, training seed 1: device")
    assert [store.has(job) for job in jobs] == [True, False, True, True]
