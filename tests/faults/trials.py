"""Disturb a command, run it again undisturbed, and compare with a run that never was disturbed.

Every trial ends in one of the words of `Outcome`; ``wrong`` and ``crash`` must never happen.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from heliomesh.common.durable import alone_in
from heliomesh.simulation.trace import TraceError
from tests.faults import faults
from tests.faults.forked import Ended, Job, call, command, start
from tests.faults.jobs import JOBS

Outcome = Literal["same", "refused", "wrong", "crash"]


class Bench:
    """Undisturbed results of all commands, and room for disturbed ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trials = 0
        self._essence: dict[str, str] = {}
        self.changes: dict[str, int] = {}  # of files, by command

    def undisturbed(self, name: str) -> Path:
        """The folder of a command that nothing has disturbed."""
        folder = self.root / "whole" / name
        if name not in self._essence:
            folder.mkdir(parents=True)
            counted = partial(faults.counting, folder, self.root / f"{name}.count")
            ended = call(self.job(name, folder), self.root / f"{name}.log", counted)
            assert ended.code == 0, ended.told
            self._essence[name] = JOBS[name].essence(folder)
            self.changes[name] = (self.root / f"{name}.count").stat().st_size
        return folder

    def job(self, name: str, folder: Path) -> Job:
        """A command in a folder."""
        work = JOBS[name]
        return work.job(self.undisturbed(work.needs) if work.needs else self.root, folder)

    def new_folder(self, copy_of: Path | None = None) -> Path:
        """An empty folder for one trial, or a copy."""
        self._trials += 1
        folder = self.root / f"trial{self._trials}"
        if copy_of is None:
            folder.mkdir()
        else:
            shutil.copytree(copy_of, folder)
        return folder

    def call(self, name: str, folder: Path, fault: Job | None = None) -> Ended:
        """Run a command in a folder, with a fault or without."""
        return call(self.job(name, folder), self.root / "trial.log", fault)

    def judge(self, name: str, folder: Path) -> Outcome:
        """Run a command again undisturbed, and compare."""
        ended = self.call(name, folder)
        if ended.refused:
            return "refused"
        if ended.code != 0:
            return "crash"
        self.undisturbed(name)
        return "same" if JOBS[name].essence(folder) == self._essence[name] else "wrong"

    def start(self, name: str, folder: Path) -> object:
        """Run a command in a folder without waiting."""
        return start(self.job(name, folder), self.root / "trial.log")


def kill_at_changes(bench: Bench, name: str, numbers: Sequence[int]) -> Counter[Outcome]:
    """SIGKILL right before each of these changes of a file."""
    outcomes: Counter[Outcome] = Counter()
    for number in numbers:
        folder = bench.new_folder()
        ended = bench.call(name, folder, partial(faults.kill_at_change, folder, number))
        assert ended.code == -signal.SIGKILL, (number, ended)
        outcomes[bench.judge(name, folder)] += 1
        shutil.rmtree(folder)
    return outcomes


def kill_at_times(bench: Bench, name: str, seconds: Sequence[float]) -> Counter[Outcome]:
    """SIGKILL after each of these times, wherever the command is then."""
    outcomes: Counter[Outcome] = Counter()
    for second in seconds:
        folder = bench.new_folder()
        child = bench.start(name, folder)
        time.sleep(second)
        child.kill()  # type: ignore[attr-defined]
        child.join()  # type: ignore[attr-defined]
        outcomes[bench.judge(name, folder)] += 1
        shutil.rmtree(folder)
    return outcomes


def fail_at_changes(bench: Bench, name: str, numbers: Sequence[int], code: int) -> Counter[Outcome]:
    """Let each of these changes of a file fail; the command must say so, or do without."""
    outcomes: Counter[Outcome] = Counter()
    for number in numbers:
        folder = bench.new_folder()
        ended = bench.call(name, folder, partial(faults.fail_at_change, folder, number, code))
        outcomes[bench.judge(name, folder) if _is_clear(ended) else "crash"] += 1
        shutil.rmtree(folder)
    return outcomes


def _is_clear(ended: Ended) -> bool:
    return ended.code == 0 or ended.refused


def limit_files(bench: Bench, name: str, sizes: Sequence[int]) -> Counter[Outcome]:
    """Let the system take no more than so many bytes of any file."""
    outcomes: Counter[Outcome] = Counter()
    for size in sizes:
        folder = bench.new_folder()
        ended = bench.call(name, folder, partial(faults.file_limit, size))
        outcomes[bench.judge(name, folder) if _is_clear(ended) else "crash"] += 1
        shutil.rmtree(folder)
    return outcomes


def can_mount() -> bool:
    """Whether this process may mount file systems."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    test = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]  # in a namespace of its own
    return subprocess.run(test, capture_output=True, check=False).returncode == 0  # noqa: S603


@contextmanager
def small_disk(place: Path, num_bytes: int) -> Iterator[None]:
    """A real file system of a given size at a folder."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", place], check=True)  # noqa: S603, S607
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)  # noqa: S603, S607
        place.rmdir()


def fill_disks(bench: Bench, name: str, sizes: Sequence[int]) -> Counter[Outcome]:
    """Run on disks of these sizes; what is there afterwards goes on elsewhere."""
    outcomes: Counter[Outcome] = Counter()
    for size in sizes:
        place = bench.root / "disk"
        with small_disk(place, size):
            ended = bench.call(name, place)
            folder = bench.new_folder(copy_of=place)
        outcomes[bench.judge(name, folder) if _is_clear(ended) else "crash"] += 1
        shutil.rmtree(folder)
    return outcomes


def read_only(bench: Bench, name: str) -> Counter[Outcome]:
    """A folder that cannot be written to must be refused, and nothing may be left in it."""
    folder = bench.new_folder()
    folder.chmod(0o555)
    ended = bench.call(name, folder, faults.without_rights)
    clear = ended.refused and "Permission denied" in ended.told and not list(folder.iterdir())
    folder.chmod(0o755)
    shutil.rmtree(folder)
    return Counter({"refused" if clear else "crash": 1})


def spoiled(content: bytes, rng: random.Random, how: str) -> bytes:
    """A file's content, truncated or with one bit flipped."""
    if how == "truncated":
        return content[: rng.randrange(len(content))]
    position = rng.randrange(len(content))
    changed = bytearray(content)
    changed[position] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _files(folder: Path, pattern: str = "*") -> list[Path]:
    """Files below a folder that matter to anybody: hidden ones are what a killed writer left."""
    paths = sorted(path for path in folder.rglob(pattern) if path.is_file() and not path.name.startswith("."))
    return [path.relative_to(folder) for path in paths]


def spoil_files(
    bench: Bench, name: str, folder: Path, how: str, trials: int, rng: random.Random, pattern: str = "*"
) -> Counter[Outcome]:
    """Spoil each file of a folder so many times; `heliomesh store verify` must see it, the command must not err."""
    outcomes: Counter[Outcome] = Counter()
    for path in _files(folder, pattern):
        for _ in range(trials):
            copy = bench.new_folder(copy_of=folder)
            (copy / path).write_bytes(spoiled((copy / path).read_bytes(), rng, how))
            seen = call(partial(command, "store", "verify", copy), bench.root / "trial.log")
            outcome = bench.judge(name, copy)
            unseen = seen.code == 0 and outcome == "refused" and "checkpoints" not in path.parts
            outcomes["wrong" if unseen else outcome if seen.code in (0, 2) else "crash"] += 1
            shutil.rmtree(copy)
    return outcomes


def swap_files(bench: Bench, name: str, folder: Path, other: Path) -> Counter[Outcome]:
    """Put each file of another run, and each other file of the same run, in the place of a file."""
    outcomes: Counter[Outcome] = Counter()
    names = _files(folder)
    pairs = [(path, other / path) for path in names if (other / path).is_file()]
    pairs += [(path, folder / source) for path in names for source in names if path != source]
    for path, source in pairs:
        copy = bench.new_folder(copy_of=folder)
        shutil.copy(source, copy / path)
        outcomes[bench.judge(name, copy)] += 1
        shutil.rmtree(copy)
    return outcomes


def stopped_run(bench: Bench) -> Path:
    """A run that was killed while it trained, with two checkpoints."""
    bench.undisturbed("run")
    folder = bench.new_folder()
    bench.call("run", folder, partial(faults.kill_at_change, folder, 3 * bench.changes["run"] // 4))
    assert len(list((folder / "checkpoints").glob("*.json"))) == 2
    return folder


def other_run(bench: Bench) -> Path:
    """A finished run with the same scenario, under another seed."""
    folder = bench.new_folder()
    another = partial(command, *_command_of(bench, "run", folder), "--seed", 1)
    assert call(another, bench.root / "trial.log").code == 0
    return folder


def _command_of(bench: Bench, name: str, folder: Path) -> tuple[object, ...]:
    job = bench.job(name, folder)
    assert isinstance(job, partial)
    return job.args


def spoil_trace(bench: Bench, folder: Path, how: str, trials: int, rng: random.Random) -> Counter[Outcome]:
    """Spoil a trace that stands alone: it must be refused, or be the same trace all the same."""
    outcomes: Counter[Outcome] = Counter()
    expected, whole = JOBS["simulate"].essence(folder), (folder / "trace.npz").read_bytes()
    copy = bench.new_folder()
    for _ in range(trials):
        (copy / "trace.npz").write_bytes(spoiled(whole, rng, how))
        try:
            outcomes["same" if JOBS["simulate"].essence(copy) == expected else "wrong"] += 1
        except TraceError:
            outcomes["refused"] += 1
    shutil.rmtree(copy)
    return outcomes


def jump_clock(bench: Bench, name: str, seeds: Sequence[int]) -> Counter[Outcome]:
    """Run under a wall clock that jumps, with file stamps from anywhere, and go on from a kill under it."""
    outcomes: Counter[Outcome] = Counter()
    for seed in seeds:
        folder, rng = bench.new_folder(), random.Random(seed)  # noqa: S311
        bench.undisturbed(name)
        number = rng.randrange(bench.changes[name])
        bench.call(name, folder, partial(_clock_and_kill, folder, number, seed))
        for path in folder.rglob("*"):
            os.utime(path, (rng.uniform(0, 4e9),) * 2)
        ended = bench.call(name, folder, partial(faults.jumping_clock, seed))
        outcomes[bench.judge(name, folder) if ended.code == 0 else "crash"] += 1
        shutil.rmtree(folder)
    return outcomes


def _clock_and_kill(folder: Path, number: int, seed: int) -> None:
    faults.jumping_clock(seed)
    faults.kill_at_change(folder, number)


def two_at_once(bench: Bench, name: str, trials: int) -> Counter[Outcome]:
    """Start a command twice in one folder; one may be refused, and the folder must be right in the end."""
    outcomes: Counter[Outcome] = Counter()
    for _ in range(trials):
        folder = bench.new_folder()
        child = bench.start(name, folder)
        ended = call(bench.job(name, folder), bench.root / "second.log")
        child.join()  # type: ignore[attr-defined]
        clear = _is_clear(ended) and child.exitcode in (0, 2)  # type: ignore[attr-defined]
        outcomes[bench.judge(name, folder) if clear else "crash"] += 1
        shutil.rmtree(folder)
    return outcomes


def hold_folder(folder: Path, ready: Path, release: Path) -> None:
    """A job: hold a folder's lock until a file appears."""
    with alone_in(folder):
        ready.touch()
        while not release.exists():
            time.sleep(0.01)
