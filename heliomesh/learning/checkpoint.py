"""Checkpoints: tensors as safetensors, everything else as JSON that knows the sha256 of both.

The JSON is written last and makes a checkpoint valid. The newest two are kept: should the last one be damaged, the
one before it still stands.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from heliomesh.common.durable import Sealed, file_sha256, make_folder, read_tensors, write_tensors
from heliomesh.common.memory_limit import readable
from heliomesh.learning.run import TrainingError, check_sum
from heliomesh.learning.same_run import check_same

_CHECKPOINT = Sealed("a checkpoint", 2, (("done", int), ("identity", dict), ("facts", dict), ("tensors_sha256", str)))
_KEPT = 2


class CheckpointError(TrainingError):
    """A checkpoint cannot be written or read, or belongs to another run."""


@dataclass(frozen=True)
class Checkpoint:
    """The state between two slots."""

    done: int  # slots
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]  # plain data
    identity: Mapping[str, Any] = field(default_factory=dict)  # of what it is of; known once it is read


class Checkpoints:
    """The checkpoints of one run, in a folder of their own.

    ``identity`` names what determines the results; a checkpoint with another one is refused. None: any will do.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any] | None) -> None:
        self._folder, self._identity = folder, identity

    def slots(self) -> list[int]:
        """Slots done at every checkpoint that is there, in rising order."""
        names = (path.stem for path in self._folder.glob("[0-9]*.json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def write(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint and drop all but the newest two; on failure those that were there remain."""
        target, sealed = self.place(checkpoint.done, "safetensors"), self.place(checkpoint.done, "json")
        try:
            make_folder(self._folder)
            sealed.unlink(missing_ok=True)  # it would speak of other tensors
            write_tensors(target, checkpoint.tensors)
            content = {
                "done": checkpoint.done,
                "identity": dict(self._identity or {}),
                "facts": dict(checkpoint.facts),
                "tensors_sha256": file_sha256(target),
            }
            _CHECKPOINT.write(sealed, content)
        except OSError as error:
            size = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
            last = max(self.slots(), default=None)
            kept = "no earlier one is there" if last is None else f"the one after slot {last} is kept"
            expected = f"room for a checkpoint of {readable(size)} after slot {checkpoint.done}"
            raise CheckpointError(self._folder, expected, f": {error.strerror}; {kept}") from error
        # old checkpoints, and tensors that a killed process left without their JSON
        newest = {self.place(done, "json").stem for done in self.slots()[-_KEPT:]}
        for path in sorted(self._folder.iterdir()):  # the JSON comes before its tensors
            if path.stem not in newest:
                path.unlink()

    def newest(self, notify: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that is whole, as `newest_of_all` finds it; None where there is none at all."""
        return next(iter(newest_of_all([self], notify)), None)

    def read(self, done: int) -> Checkpoint:
        """The checkpoint after so many slots; raises DamagedError, or CheckpointError where it is another run's."""
        path = self.place(done, "json")
        content = _CHECKPOINT.read(path, DamagedError)
        if self._identity is not None:
            check_same(path, content["identity"], self._identity, CheckpointError)
        tensors, expected = self.place(done, "safetensors"), content["tensors_sha256"]
        check_sum(tensors, expected, "a checkpoint's tensors", DamagedError)
        if content["done"] != done:
            raise DamagedError(f"{path}: expected the checkpoint after slot {done}, actual slot {content['done']}")
        return Checkpoint(done, read_tensors(tensors, DamagedError), content["facts"], content["identity"])

    def clear(self) -> None:
        """Drop all checkpoints: the run is finished."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def place(self, done: int, kind: Literal["json", "safetensors"]) -> Path:
        """The file of a kind that a checkpoint has."""
        return self._folder / f"{done:08d}.{kind}"


def newest_of_all(runs: Sequence[Checkpoints], notify: Callable[[str], None]) -> list[Checkpoint]:
    """The newest checkpoints of one slot that are whole in all runs of a stack, one each; none where there is none.

    ``notify`` is told of every damaged one that is passed over. Raises CheckpointError where all are damaged or where
    one belongs to another run.
    """
    found, damage = newest_whole(runs)
    if damage and not found:
        raise CheckpointError(f"{damage[0]}; no whole checkpoint is left, so start again in an empty folder")
    for sentence in damage:
        notify(f"{sentence}; going on from the checkpoint after slot {found[0].done}")
    for run in runs if found else ():
        for later in [slot for slot in run.slots() if slot > found[0].done]:
            run.place(later, "json").unlink()  # or it would count as the newest again
    return found


def newest_whole(runs: Sequence[Checkpoints]) -> tuple[list[Checkpoint], list[str]]:
    """The same without a change of any file, and a sentence on the damage of every later slot."""
    damage: list[str] = []
    for done in sorted(common_slots(runs), reverse=True):
        try:
            return [run.read(done) for run in runs], damage
        except DamagedError as error:
            damage.append(str(error))
    return [], damage


def common_slots(runs: Sequence[Checkpoints]) -> set[int]:
    """Slots done at checkpoints that all runs of a stack have."""
    return set.intersection(*(set(run.slots()) for run in runs)) if runs else set()


class DamagedError(Exception):
    """A checkpoint is not what was written."""
