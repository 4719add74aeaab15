"""The trainer: replay a trace slot by slot, evaluate now and then, and be able to go on after any interruption.

Everything that decides a result is in the scenario, the trace and the seed. A run that was killed and resumed ends
with the same metrics as one that was not, bit for bit on a CPU.
"""

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heliomesh.learning.checkpoint import Checkpoint, CheckpointError, Checkpoints
from heliomesh.learning.dataset import Dataset
from heliomesh.learning.evaluation import COLUMNS, Evaluation, Evaluator
from heliomesh.learning.replay import Member, Replay, Stack, TrainJob, state_names
from heliomesh.learning.run import Floats, Run, TrainingError, machine, versions
from heliomesh.learning.settings import TrainSettings
from heliomesh.learning.tracking import Observer, unobserved
from heliomesh.problem.policy import ParallelMap, Track, untracked


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C or another signal after a checkpoint was written; the message says how far the run came."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


MakeStack = Callable[[Sequence[TrainJob], Dataset, TrainSettings], Stack]


@dataclass(frozen=True)
class Work:
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
    keep_weights: bool = True
    runs_at_once: int = 64
    stacks_at_once: int = 1


ALONE = Work()


def train_stack(
    jobs: Sequence[TrainJob],
    dataset: Dataset,
    settings: TrainSettings,
    origins: Sequence[Mapping[str, Any]],
    work: Work = ALONE,
    checkpoints: Checkpoints | None = None,
) -> list[Run]:
    """Train runs in one stack, from the newest checkpoint if there is one; ``origins`` are kept in their provenance.

    Each run gives what it gives alone: bit for bit on a CPU by every strategy but `grouped`, whose rounding depends
    on who trains together. Raises ScenarioError, TraceError, TooLargeError or TrainingError.
    """
    _check_settings(jobs, settings)
    resumed = checkpoints.newest(work.notify) if checkpoints else None
    if resumed:
        _check_facts(resumed.facts)
    if resumed and settings.strategy == "auto" and resumed.facts["device"] == settings.device:
        settings = replace(settings, strategy=resumed.facts["strategy"])  # another one rounds otherwise
    stack = work.make_stack(jobs, dataset, settings)
    training = _Training(stack, dataset, settings, origins)
    if resumed:
        training.restore(resumed)
    with _polite_interrupt(checkpoints is not None) as asked_to_stop:
        training.go_on(checkpoints, work.track, work.observer, asked_to_stop)
    return training.runs()


class _Training:
    """A stack with its metrics so far."""

    def __init__(
        self, stack: Stack, dataset: Dataset, settings: TrainSettings, origins: Sequence[Mapping[str, Any]]
    ) -> None:
        self._stack, self._dataset, self._settings, self._origins = stack, dataset, settings, origins
        self._evaluator = Evaluator(stack, len(dataset.test_labels), settings.device_samples)
        self._done = 0
        self._losses: list[Floats] = []  # (row,) of every slot since the last evaluation
        self._evaluations: list[list[Evaluation]] = []  # by evaluated slot and run
        self._second_before = 0.0  # spent before the last interruption
        self._started = time.monotonic()

    def go_on(
        self,
        checkpoints: Checkpoints | None,
        track: Track,
        observer: Observer,
        asked_to_stop: Callable[[], int | None],
    ) -> None:
        """Train the slots that are left; whatever ``track`` or ``observer`` raises ends it after a checkpoint."""
        slots, every = self._stack.num_slots, self._settings.evaluate_every
        last_written, last_second = self._done, time.monotonic()
        left = iter(track(range(self._done, slots), "train", slots - self._done))
        while True:
            with self._kept_if_cancelled(checkpoints):
                slot = next(left, None)
            if slot is None:
                return
            self._losses.append(self._stack.step(slot))
            self._done = slot + 1
            if self._done % every == 0 or self._done == slots:
                evaluations = self._evaluate()
                with self._kept_if_cancelled(checkpoints):
                    for run, evaluation in enumerate(evaluations):
                        observer(run, evaluation.row)
            signal_number = asked_to_stop() if self._done < slots else None
            stopping = signal_number is not None
            if checkpoints and (stopping or self._is_due(last_second)) and self._done > last_written:
                checkpoints.write(self._checkpoint())
                last_written, last_second = self._done, time.monotonic()
            if signal_number is not None:
                raise TrainingInterrupted(f"stopped after slot {self._done} of {slots}", signal_number)

    def _is_due(self, last_second: float) -> bool:
        every = self._settings.checkpoint_every
        if every is not None:
            return self._done % every == 0
        return time.monotonic() - last_second >= self._settings.checkpoint_second

    @contextmanager
    def _kept_if_cancelled(self, checkpoints: Checkpoints | None) -> Iterator[None]:
        """Around a caller's callback, which may raise to cancel the training."""
        try:
            yield
        except BaseException:
            if checkpoints and self._done and self._done not in checkpoints.slots():
                checkpoints.write(self._checkpoint())
            raise

    def _evaluate(self) -> list[Evaluation]:
        evaluations = self._evaluator.evaluate(self._done, np.stack(self._losses))
        self._losses.clear()
        self._evaluations.append(evaluations)
        return evaluations

    def _checkpoint(self) -> Checkpoint:
        state = self._stack.gather_state()
        losses = np.stack(self._losses) if self._losses else np.empty((0, len(state["weights"])))
        tensors = {**state, "losses": torch.from_numpy(losses)}
        for run, member in enumerate(self._stack.members):
            metrics, accuracy, loss = self._curves(run, member)
            table = np.stack(list(metrics.values()))
            tensors |= {f"metrics {run}": torch.from_numpy(table), f"accuracy {run}": torch.from_numpy(accuracy)}
            tensors[f"loss {run}"] = torch.from_numpy(loss)
        facts = {"second": self._seconds(), "strategy": self._stack.report.setting, "device": self._settings.device}
        return Checkpoint(self._done, tensors, facts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint."""
        tensors = checkpoint.tensors
        self._check_shapes(tensors)
        self._stack.restore(tensors, checkpoint.done)
        self._done, self._losses = checkpoint.done, list(tensors["losses"].numpy())
        self._second_before = float(checkpoint.facts["second"])
        runs = range(len(self._stack.members))
        self._evaluations = [
            [_evaluation(tensors, run, number) for run in runs] for number in range(tensors["metrics 0"].shape[1])
        ]

    def _check_shapes(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse a checkpoint whose tensors do not fit this run: the seal says only that they were written so."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        rows = sum(member.topology.num_devices for member in self._stack.members)  # of all runs
        kept = state_names(self._stack.members[0].job.scenario.learning)
        by_row: tuple[int, ...] = (rows, self._stack.layout.num_parameters)
        expected = dict.fromkeys(kept, by_row)
        expected["losses"] = (*shapes.get("losses", (0,))[:1], rows)
        evaluated = shapes.get("metrics 0", (0, 0))[1:2]
        for run, member in enumerate(self._stack.members):
            by_device = (*evaluated, member.topology.num_devices)
            expected |= {f"metrics {run}": (len(COLUMNS), *evaluated), f"accuracy {run}": by_device}
            expected[f"loss {run}"] = by_device
        for name in sorted(expected.keys() | shapes.keys()):
            if expected.get(name) != shapes.get(name):
                raise CheckpointError(
                    f"checkpoint: expected {name} of shape {expected.get(name)}, actual shape {shapes.get(name)}"
                )

    def _curves(self, run: int, member: Member) -> tuple[dict[str, Floats], Floats, Floats]:
        """Metrics by column, and accuracy and loss (evaluated slot, device) of one run so far."""
        own = [evaluations[run] for evaluations in self._evaluations]
        metrics = {name: np.array([one.row[name] for one in own], np.float64) for name in COLUMNS}
        devices = member.topology.num_devices
        accuracy = np.array([one.accuracy for one in own], np.float64).reshape(-1, devices)
        loss = np.array([one.loss for one in own], np.float64).reshape(-1, devices)
        return metrics, accuracy, loss

    def _seconds(self) -> float:
        return self._second_before + time.monotonic() - self._started

    def runs(self) -> list[Run]:
        """The finished runs."""
        weights = self._stack.gather()
        return [
            Run(*self._curves(run, member), weights[member.rows], self._provenance(run, member))
            for run, member in enumerate(self._stack.members)
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
            "strategy": self._stack.report.setting,
            "precision": self._settings.precision,
            **self._stack.facts,
            "runs_in_stack": len(self._stack.members),
            "duration_second": self._seconds(),
            "versions": versions(),
            "machine": machine(self._settings.device),
        }


def _check_facts(facts: Mapping[str, Any]) -> None:
    for name, kind in (("second", float), ("strategy", str), ("device", str)):
        if not isinstance(facts.get(name), kind):
            raise CheckpointError(f"checkpoint: expected a fact {name}, actual value {facts.get(name)!r:.40}")


def _evaluation(tensors: Mapping[str, Tensor], run: int, number: int) -> Evaluation:
    """One evaluation as a checkpoint holds it."""
    row = dict(zip(COLUMNS, tensors[f"metrics {run}"][:, number].tolist(), strict=True))
    return Evaluation(row, tensors[f"accuracy {run}"][number].numpy(), tensors[f"loss {run}"][number].numpy())


def _check_settings(jobs: Sequence[TrainJob], settings: TrainSettings) -> None:
    if not jobs:
        raise TrainingError("jobs: expected at least one, actual number 0")
    for name in ("evaluate_every", "device_samples", "checkpoint_every"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise TrainingError(f"{name}: expected at least 1, actual value {value}")


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
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows lacks one
            handler = None if number is None else signal.getsignal(number)
            if number is not None and callable(handler):
                before[number] = handler
                signal.signal(number, handle)
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
