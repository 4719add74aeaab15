"""A few trials of every fault; `python -m tests.faults` makes hundreds of each and prints the table."""

import errno
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import heliomesh as hm
from heliomesh.common.durable import BusyFolderError, write_text
from tests.faults import trials
from tests.faults.forked import call, start
from tests.faults.jobs import JOBS
from tests.faults.trials import Bench, Outcome


@pytest.fixture
def rng() -> random.Random:
    return random.Random(0)  # noqa: S311


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to a child without rights
        Path(name).chmod(0o755)
        yield Bench(Path(name))


def assert_clear(found: Counter[Outcome]) -> None:
    assert found.total()
    assert not found["wrong"]
    assert not found["crash"]


def assert_same(found: Counter[Outcome]) -> None:
    assert set(found) == {"same"}, found


@pytest.mark.parametrize("name", JOBS)
def test_a_kill_at_any_change_costs_nothing(bench: Bench, name: str, rng: random.Random) -> None:
    bench.undisturbed(name)
    assert_same(trials.kill_at_changes(bench, name, rng.sample(range(bench.changes[name]), 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_kill_at_many_changes_costs_nothing(bench: Bench, name: str) -> None:
    bench.undisturbed(name)
    assert_same(trials.kill_at_changes(bench, name, range(0, bench.changes[name], 5)))
    assert_same(trials.kill_at_times(bench, name, [0.02 * step for step in range(10)]))


@pytest.mark.parametrize("name", ["simulate", "run", "reproduce"])
def test_a_full_disk_is_told_and_the_next_start_goes_on(bench: Bench, name: str, rng: random.Random) -> None:
    bench.undisturbed(name)
    changes = rng.sample(range(bench.changes[name]), 2)
    assert_same(trials.fail_at_changes(bench, name, changes, errno.ENOSPC))
    assert_same(trials.limit_files(bench, name, [2000]))


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_full_disks_of_many_kinds(bench: Bench, name: str) -> None:
    bench.undisturbed(name)
    assert_same(trials.fail_at_changes(bench, name, range(0, bench.changes[name], 5), errno.ENOSPC))
    assert_same(trials.limit_files(bench, name, [1500, 5000, 15000, 50000]))
    if trials.can_mount():
        assert_same(trials.fill_disks(bench, name, [4096, 16384, 65536, 262144]))


@pytest.mark.parametrize("name", JOBS)
def test_a_folder_that_cannot_be_written_is_refused(bench: Bench, name: str) -> None:
    assert trials.read_only(bench, name) == {"refused": 1}


@pytest.mark.parametrize("name", ["run", "reproduce"])
def test_no_result_depends_on_the_wall_clock(bench: Bench, name: str) -> None:
    assert_same(trials.jump_clock(bench, name, [0]))


@pytest.mark.parametrize("name", ["run", "reproduce", "report"])
def test_two_at_once_do_not_mix(bench: Bench, name: str) -> None:
    assert_same(trials.two_at_once(bench, name, 1))


@pytest.mark.parametrize("how", ["truncated", "bit flipped"])
def test_spoiled_files_of_a_run_are_found(bench: Bench, rng: random.Random, how: str) -> None:
    finished = trials.spoil_files(bench, "run", bench.undisturbed("run"), how, 1, rng)
    assert finished == {"refused": 8}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "bit flipped"])
@pytest.mark.parametrize("name", ["run", "reproduce", "size"])
def test_spoiled_files_never_give_another_result(bench: Bench, rng: random.Random, how: str, name: str) -> None:
    assert_clear(trials.spoil_files(bench, name, bench.undisturbed(name), how, 3, rng))


@pytest.mark.parametrize("how", ["truncated", "bit flipped"])
def test_a_spoiled_checkpoint_is_passed_over_or_refused(bench: Bench, rng: random.Random, how: str) -> None:
    assert_clear(trials.spoil_files(bench, "run", trials.stopped_run(bench), how, 1, rng, "checkpoints/*"))


@pytest.mark.parametrize("how", ["truncated", "bit flipped"])
def test_a_spoiled_trace_is_refused_or_harmless(bench: Bench, rng: random.Random, how: str) -> None:
    assert_clear(trials.spoil_trace(bench, bench.undisturbed("simulate"), how, 40, rng))


@pytest.mark.slow
def test_swapped_files_never_give_another_result(bench: Bench) -> None:
    assert_clear(trials.swap_files(bench, "run", bench.undisturbed("run"), trials.other_run(bench)))


def test_the_trace_of_another_run_is_refused(bench: Bench) -> None:
    copy = bench.new_folder(copy_of=trials.stopped_run(bench))
    shutil.copy(trials.other_run(bench) / "trace.npz", copy)
    assert bench.judge("run", copy) == "refused"


def _write_often(target: Path, letter: str) -> None:
    for _ in range(30):
        write_text(target, letter * 20_000)


def test_two_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    other = start(partial(_write_often, target, "a"), tmp_path / "log")
    assert call(partial(_write_often, target, "b"), tmp_path / "second log").code == 0
    other.join()
    assert other.exitcode == 0
    assert target.read_text(encoding="utf-8") in ("a" * 20_000, "b" * 20_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "page.html", "second log"]


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    ready, release = tmp_path / "ready", tmp_path / "release"
    other = start(partial(trials.hold_folder, tmp_path / "run", ready, release), tmp_path / "log")
    while not ready.exists():
        assert other.is_alive()
    problem = hm.build(hm.Scenario.load("tiny"))
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1)
    with pytest.raises(BusyFolderError, match="another process is using this folder"):
        hm.train(problem.scenario, trace, folder=tmp_path / "run")
    release.touch()
    other.join()
    hm.train(problem.scenario, trace, folder=tmp_path / "run")  # the lock ended with the process
