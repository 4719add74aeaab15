"""The trainer: replay a trace slot by slot, evaluate now and then, and be able to go on after any interruption.

Everything that decides a result is in the scenario, the trace and the seed. A run that was killed and resumed ends
with the same metrics as one that was not: bit for bit on a CPU with the same number of threads.
"""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heliomesh.common.arguments import Count, checked
from heliomesh.learning.checkpoint import Checkpoint, CheckpointError, Checkpoints, newest_of_all
from heliomesh.learning.evaluation import COLUMNS, evaluate
from heliomesh.learning.members import DivergedError, Member
from heliomesh.learning.replay import Replay, Stack, state_names
from heliomesh.learning.run import Floats, Run, machine, versions
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.tracking import Observer, unobserved
from heliomesh.model.policy import ParallelMap, Track, untracked
from heliomesh.tasks.dataset import Dataset


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or another signal after a checkpoint was written; the message says how far the run came."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


MakeStack = Callable[[Sequence[TrainJob], Dataset, TrainSettings], Stack]


@checked
@dataclass(frozen=True)
class Execution:
    """How work is carried out and who watches it; nothing here decides a result.

    ``track`` and ``observer`` may raise any exception to cancel. It reaches the caller, locks are released, and what
    is finished stays in the store: the same call again goes on from there.

    Attributes
    ----------
    track
        Shows progress: ``track(items, description, total)`` yields the items.
    observer
        Is called as ``observer(run, row)`` with what every evaluation measured.
    notify
        Is told if a damaged checkpoint had to be passed over.
    make_stack
        Who holds the weights; by default this process.
    parallel_map
        For planners, and for jobs that do not depend on each other.
    train_map
        For stacks of runs; default: the same.
    same_disk
        Whether stacks train on this machine, wherever they do: then they write checkpoints and show their slots.
    keep_weights
        Whether final weights are saved.
    runs_at_once
        Runs that are trained in one stack.
    stacks_at_once
        Stacks that are trained side by side; so many are made where there are enough runs.
    """

    track: Track = untracked
    observer: Observer = unobserved
    notify: Callable[[str], None] = warnings.warn
    make_stack: MakeStack = Replay
    parallel_map: ParallelMap = map
    train_map: ParallelMap | None = None
    same_disk: bool = False
    keep_weights: bool = True
    runs_at_once: Count = 64
    stacks_at_once: Count = 1


ALONE = Execution()
_LEAST_BETWEEN = 20  # times as long as a checkpoint takes to write, between two of them


class Training:
    """Runs in one stack with their metrics so far, begun anew or from the newest checkpoints that all of them have.

    Each run gives what it gives alone: bit for bit on a CPU with as many threads. ``origins`` are kept in their
    provenance. ``checkpoints`` has one folder for each run, or is empty. Raises ScenarioError, TraceError,
    TooLargeError or TrainingError.
    """

    def __init__(
        self,
        jobs: Sequence[TrainJob],
        dataset: Dataset,
        settings: TrainSettings,
        origins: Sequence[Mapping[str, Any]],
        work: Execution = ALONE,
        checkpoints: Sequence[Checkpoints] = (),
    ) -> None:
        resumed = newest_of_all(checkpoints, work.notify)
        for second in [one.facts.get("second") for one in resumed]:
            wrong = not isinstance(second, float)
            CheckpointError.when(wrong, "checkpoint", "a fact second", f"value {second!r:.40}")
        self._stack = work.make_stack(jobs, dataset, settings)
        self._state_names = state_names(jobs[0].scenario.learning)
        self._dataset, self._settings, self._origins = dataset, settings, origins
        self._observer, self._checkpoints = work.observer, checkpoints
        self._done = 0
        self._losses: list[Floats] = []  # (row,) of every slot since the last evaluation
        self._curves = [_no_curves(member.topology.num_devices) for member in self._stack.members]
        self._started = time.monotonic()  # earlier by what was spent before the last interruption
        # the last checkpoints, or the start of the training: slots done, when by this process, and for how long
        self._written_done, self._written_second, self._write_second = 0, self._started, 0.0
        if resumed:
            self._restore(resumed)

    def to_the_end(self, track: Track) -> list[Run]:
        """Train all slots that are left; returns the finished runs."""
        try:
            with closing(self.slots()) as slots:
                for _ in track(slots, "train", self.num_slots_left):
                    pass
        except DivergedError as error:
            if len(self._stack.members) > 1:
                error.args = (f"run {error.run}: {error}",)
            raise
        return self.runs()

    @property
    def num_slots_left(self) -> int:
        """Slots that are not trained yet."""
        return self._stack.num_slots - self._done

    def slots(self) -> Generator[int, None, None]:
        """Train the slots that are left: gives the number of each before it is trained.

        A checkpoint is written now and then, and where the one who iterates closes this, or the observer raises.
        """
        with _polite_interrupt(bool(self._checkpoints)) as asked_to_stop:
            while self.num_slots_left:
                with self._kept_if_cancelled():
                    yield self._done
                self._train_slot()
                signal_number = asked_to_stop() if self.num_slots_left else None
                if signal_number is not None:
                    self._keep()
                    message = f"stopped after slot {self._done} of {self._stack.num_slots}"
                    raise TrainingInterrupted(message, signal_number)
                if self._is_due():
                    self._keep()

    def _train_slot(self) -> None:
        self._losses.append(self._stack.step(self._done))
        self._done += 1
        if self._done % self._settings.evaluate_every == 0 or not self.num_slots_left:
            total = len(self._dataset.test_labels)
            scored = min(self._settings.device_samples, total) if self.num_slots_left else total
            found = list(evaluate(self._stack, self._done, np.stack(self._losses), scored))
            self._losses.clear()
            for curves, (row, accuracy, loss) in zip(self._curves, found, strict=True):
                column = [[row[name]] for name in COLUMNS]
                curves["metrics"] = np.hstack([curves["metrics"], column])
                curves["accuracy"] = np.vstack([curves["accuracy"], accuracy])
                curves["loss"] = np.vstack([curves["loss"], loss])
            with self._kept_if_cancelled():
                for run, (row, _, _) in enumerate(found):
                    self._observer(run, row)

    def _is_due(self) -> bool:
        """Whether it is time for a checkpoint; those of a stack may be large: a twentieth of the time."""
        every, least = self._settings.checkpoint_every, self._settings.checkpoint_second
        if every is not None:
            return self._done % every == 0
        if len(self._checkpoints) > 1:
            least = max(least, _LEAST_BETWEEN * self._write_second)
        return time.monotonic() - self._written_second >= least

    def _keep(self) -> None:
        """Write a checkpoint of every run, unless there is one or nothing to keep."""
        if self._written_done == self._done or not self._checkpoints:
            return
        started, state = time.monotonic(), self._stack.gather_state()
        for run, checkpoints in enumerate(self._checkpoints):
            checkpoints.write(self._checkpoint(run, state))
        self._written_done, self._written_second = self._done, time.monotonic()
        self._write_second = self._written_second - started

    @contextmanager
    def _kept_if_cancelled(self) -> Iterator[None]:
        """Around a caller's callback, which may raise to cancel the training."""
        try:
            yield
        except BaseException:
            self._keep()
            raise

    def _checkpoint(self, run: int, state: Mapping[str, Tensor]) -> Checkpoint:
        """One run's part of the stack's state."""
        member = self._stack.members[run]
        losses = [one[member.rows] for one in self._losses]
        tensors = {name: stack[member.rows] for name, stack in state.items()}
        tensors["losses"] = torch.from_numpy(np.array(losses).reshape(-1, member.topology.num_devices))
        tensors |= {f"{name} 0": torch.from_numpy(table) for name, table in self._curves[run].items()}
        facts = {"second": time.monotonic() - self._started, "strategy": self._stack.setting}
        return Checkpoint(self._done, tensors, {**facts, "device": self._settings.device})

    def _restore(self, found: Sequence[Checkpoint]) -> None:
        """Go back to checkpoints, one of each run."""
        for member, one in zip(self._stack.members, found, strict=True):
            self._check_shapes(member, one.tensors, found[0].tensors)
        parts = [one.tensors for one in found]
        joined = {name: torch.cat([part[name] for part in parts]) for name in self._state_names}
        self._stack.restore(joined, found[0].done)
        self._done = self._written_done = found[0].done
        self._losses = list(torch.cat([part["losses"] for part in parts], 1).numpy())
        self._started -= max(float(one.facts["second"]) for one in found)
        self._curves = [{name: part[f"{name} 0"].numpy() for name in self._curves[0]} for part in parts]

    def _check_shapes(self, member: Member, tensors: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> None:
        """Refuse a checkpoint that does not fit its run and the stack's first: its seal does not tell."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        devices = member.topology.num_devices
        by_row: tuple[int, ...] = (devices, self._stack.layout.num_parameters)
        expected = dict.fromkeys(self._state_names, by_row)
        evaluated, losses = (tuple(first[name].shape) if name in first else () for name in ("metrics 0", "losses"))
        evaluated = evaluated[1:2]
        expected |= {"losses": (*losses[:1], devices), "metrics 0": (len(COLUMNS), *evaluated)}
        expected |= dict.fromkeys(("accuracy 0", "loss 0"), (*evaluated, devices))
        for name in sorted(expected.keys() | shapes.keys()):
            right, shape = expected.get(name), shapes.get(name)
            CheckpointError.when(right != shape, "checkpoint", f"{name} of shape {right}", f"shape {shape}")

    def runs(self) -> list[Run]:
        """The finished runs."""
        weights = self._stack.gather_state()["weights"]
        columns = [dict(zip(COLUMNS, curves["metrics"], strict=True)) for curves in self._curves]
        return [
            Run(columns[run], curves["accuracy"], curves["loss"], weights[member.rows], self._provenance(run, member))
            for run, (member, curves) in enumerate(zip(self._stack.members, self._curves, strict=True))
        ]

    def _provenance(self, run: int, member: Member) -> dict[str, Any]:
        layout, job = self._stack.layout, member.job
        return {
            **self._origins[run],
            "scenario": job.scenario.content_hash,
            "scenario_toml": job.scenario.to_toml(),
            "trace": job.trace_hash,
            "episode": job.episode,
            "seed": job.training_seed,
            "dataset": f"{self._dataset.name} {self._dataset.sha256}",
            "evaluate_every": self._settings.evaluate_every,
            "device_samples": self._settings.device_samples,
            "name": job.scenario.name,
            "planner": job.trace.planner,
            "simulation_seed": job.trace.seed,
            "parameters": [[name, list(shape)] for name, shape in zip(layout.names, layout.shapes, strict=True)],
            "strategy": self._stack.setting,
            "precision": self._settings.precision,
            **self._stack.facts,
            "runs_in_stack": len(self._stack.members),
            "duration_second": time.monotonic() - self._started,
            "versions": versions(),
            "machine": machine(self._settings.device),
        }


def _no_curves(num_devices: int) -> dict[str, Floats]:
    """Of one run so far: metrics (column, evaluated slot), and accuracy and loss (evaluated slot, device)."""
    return {
        "metrics": np.empty((len(COLUMNS), 0)),
        **{name: np.empty((0, num_devices)) for name in ("accuracy", "loss")},
    }


@contextmanager
def _polite_interrupt(enabled: bool) -> Iterator[Callable[[], int | None]]:
    """Let Ctrl-C, SIGTERM and SIGHUP only ask: the slot is finished first. A second one does what it did before.

    Gives a function that tells which of them asked. Signals without a handler in Python keep their meaning. Signals
    reach the main thread only; elsewhere, and without checkpoints, nothing changes.
    """
    asked: list[int] = []
    before: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if asked:
            before[number](number, frame)
        asked.append(number)

    if enabled and threading.current_thread() is threading.main_thread():
        known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        for number in known:  # Windows lacks one
            handler = signal.getsignal(number)
            if callable(handler):
                before[number] = handler
                signal.signal(number, handle)
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
