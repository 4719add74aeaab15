"""The journal of a run's folder: its finished steps, with the sha256 of every file that each of them left.

A step is entered when its files are on the disk, so what the journal names was whole then; whether it still is, the
sums tell. Files that no step names are of a step that was interrupted, and are written again.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from heliomesh.durable import Sealed, alone_in, file_sha256
from heliomesh.learning.run import CHECKPOINTS, MANIFEST, METRICS, WEIGHTS, TrainingError, is_finished

JOURNAL, SCENARIO, PLAN, TRACE = "journal.json", "scenario.toml", "plan.json", "trace.npz"
PLAN_FILE = Sealed("the facts of a plan", 2, (("run", dict), ("plan", dict)))
_JOURNAL_FILE = Sealed("the journal of a run", 1, (("steps", dict),))

Step = Literal["plan", "simulate", "train"]
_FILES: dict[Step, tuple[str, ...]] = {
    "plan": (SCENARIO, PLAN),
    "simulate": (TRACE,),
    "train": (MANIFEST, METRICS, WEIGHTS),
}
Sums = dict[str, str]  # file name to hexadecimal sha256


def finished_steps(folder: Path) -> dict[str, Sums]:
    """The steps that are finished; none without a journal. Raises TrainingError where the journal is damaged."""
    if not (folder / JOURNAL).exists():
        return {}
    steps: dict[str, Sums] = _JOURNAL_FILE.read(folder / JOURNAL, TrainingError)["steps"]
    for step, sums in steps.items():
        if not isinstance(sums, dict):
            raise TrainingError(
                f"{folder / JOURNAL}: expected sums of files in step {step}, actual value {sums!r:.40}"
            )
    return steps


def finish_step(folder: Path, step: Step) -> None:
    """Enter a step whose files are written."""
    steps = finished_steps(folder) | {step: {name: file_sha256(folder / name) for name in _FILES[step]}}
    _JOURNAL_FILE.write(folder / JOURNAL, {"steps": steps})


def check_steps(folder: Path, *only: Step) -> dict[str, Sums]:
    """The finished steps (or some of them), after all their files were compared with their sums."""
    steps = {step: sums for step, sums in finished_steps(folder).items() if not only or step in only}
    for step, sums in steps.items():
        for name, expected in sums.items():
            try:
                actual = file_sha256(folder / name)
            except OSError as error:
                raise TrainingError(
                    f"{folder / name}: expected the file that step {step} left, actual: {error.strerror}"
                ) from None
            if actual != expected:
                raise TrainingError(
                    f"{folder / name}: expected sha256 {expected} of step {step}, actual value {actual}"
                )
    return steps


def take_back_plan(folder: Path) -> None:
    """Remove the files of plan and simulation, unless something was trained or another process is at work."""
    with suppress(TrainingError), reserved(folder):
        if not is_finished(folder) and not (folder / CHECKPOINTS).exists():
            for name in (JOURNAL, *_FILES["simulate"], *_FILES["plan"]):
                (folder / name).unlink(missing_ok=True)


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Be the only process that works in a folder, which is made; raises TrainingError where another one does."""
    with ExitStack() as stack:
        try:
            stack.enter_context(alone_in(folder))
        except BlockingIOError:
            raise TrainingError(
                f"{folder}: expected a folder that no other process uses, actual: one is at work there"
            ) from None
        yield
