"""Killed, interrupted, damaged, out of space: a run ends with the same numbers, or says why it does not."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.common import durable
from heliomesh.learning.checkpoint import Checkpoint, CheckpointError, Checkpoints
from heliomesh.learning.evaluation import COLUMNS
from tests.faults.forked import start

SLOTS = 40
CHANGES = {"slots": SLOTS, "network.devices": 4, "learning.local_steps": 2}


def job(**changes):
    scenario = hm.Scenario.load("tiny").override(CHANGES | changes)
    problem = hm.build(scenario)
    return hm.TrainJob(scenario, hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1))


def train(task, folder=None, **settings):
    settings = {"strategy": "loop"} | settings  # which one is quickest may change from run to run
    return hm.train(task.scenario, task.trace, folder=folder, evaluate_every=3, **settings)


def interrupted_after(task, folder, slot, **settings):
    """Train until Ctrl-C is pressed in a slot."""

    def press(items, description, total):
        for item in items:
            if item == slot:
                os.kill(os.getpid(), signal.SIGINT)
            yield item

    with pytest.raises(hm.TrainingInterrupted, match=f"stopped after slot {slot + 1} of {SLOTS}"):
        train(task, folder, track=press, **settings)


def assert_same(one, other):
    assert torch.equal(one.weights, other.weights)
    np.testing.assert_array_equal(one.accuracy, other.accuracy)
    np.testing.assert_array_equal(one.loss, other.loss)
    for name in COLUMNS:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name])


def train_slowly(folder, threads):
    """Train with a checkpoint after every slot, slowly enough to be killed in the middle of anything."""
    warnings.simplefilter("error")
    torch.set_num_threads(threads)
    task = job()

    def slow(items, description, total):
        for item in items:
            print("slot", item, flush=True)
            time.sleep(0.005)
            yield item

    train(task, folder, checkpoint_every=1, notify=lambda text: print("damaged", text), track=slow)


def kill_and_resume(folder, most, rng):
    """Train in a child again and again, kill it at random moments, and let it end after ``most`` kills.

    Returns how often it was really killed in the middle of its work.
    """
    threads = torch.get_num_threads()  # sums depend on it in the last bit, and an imported library may change it
    log = folder.with_suffix(".log")
    for kills in range(most + 1):
        child = start(partial(train_slowly, folder, threads), log)
        if kills < most:
            slots = rng.randint(1, 4)
            while child.is_alive() and log.read_text(encoding="utf-8").count("slot") < slots:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.03))
            child.kill()
        child.join(120)
        assert "damaged" not in log.read_text(encoding="utf-8")
        if child.exitcode == 0:
            return kills
        assert child.exitcode == -signal.SIGKILL, log.read_text(encoding="utf-8")
    raise AssertionError("the program did not end")


def test_killed_at_random_moments(tmp_path):
    folder = tmp_path / "run"
    assert kill_and_resume(folder, 2, random.Random(0)) > 0  # noqa: S311
    assert_same(hm.Run.load(folder), train(job()))


@pytest.mark.slow
def test_killed_at_thirty_random_moments(tmp_path):
    rng, expected, kills = random.Random(1), train(job()), 0  # noqa: S311
    while kills < 30:
        folder = tmp_path / str(kills)
        kills += kill_and_resume(folder, 5, rng)
        assert_same(hm.Run.load(folder), expected)


GOES_ON = {  # slot after which a run is interrupted, and settings with which the rest depends on what came before
    **{f"after {slot}": (slot, {}) for slot in (0, 1, 7, SLOTS - 2)},
    "momentum": (7, {"learning.quasi_global": 0.8}),
    "falling rates": (7, {"learning.schedule": "cosine", "learning.final_rate": 0.25}),
}


@pytest.mark.parametrize(("slot", "changes"), GOES_ON.values(), ids=GOES_ON)
def test_interrupted_runs_go_on(tmp_path, slot, changes):
    task = job(**changes)
    interrupted_after(task, tmp_path, slot)
    assert_same(train(task, tmp_path), train(task))
    assert not (tmp_path / "checkpoints").exists()


def test_another_strategy_does_not_go_on_with_a_run(tmp_path):
    task = job()
    interrupted_after(task, tmp_path, 5, strategy="vmap")
    with pytest.raises(CheckpointError, match=r"strategy: expected 'vmap' \(as in the folder\), actual 'batched'"):
        train(task, tmp_path, strategy="auto")
    assert_same(train(task, tmp_path, strategy="vmap"), train(task, strategy="vmap"))


def test_a_second_interrupt_does_not_wait(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def press_twice(items, description, total):
        for item in items:
            if item == 5:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            yield item

    with pytest.raises(KeyboardInterrupt) as caught:
        train(job(), tmp_path, track=press_twice, checkpoint_every=2)
    assert not isinstance(caught.value, hm.TrainingInterrupted)
    assert signal.getsignal(signal.SIGINT) is before
    assert_same(train(job(), tmp_path), train(job()))


def test_other_threads_train_too(tmp_path):
    """Signals belong to the main thread. Both runs get a new one, which has PyTorch's default number of threads."""
    results = []
    for folder in (tmp_path, None):
        thread = threading.Thread(target=lambda folder=folder: results.append(train(job(), folder)))
        thread.start()
        thread.join()
    assert_same(*results)


def stopped(tmp_path):
    """A task and its two checkpoints, after slots 8 and 12."""
    task = job()
    interrupted_after(task, tmp_path, 12, checkpoint_every=4)
    folder = tmp_path / "checkpoints"
    names = [f"{slot:08d}{suffix}" for slot in (12, 13) for suffix in (".json", ".safetensors")]
    assert sorted(path.name for path in folder.iterdir()) == names
    return task, folder


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def swap(path):
    """The same slot's file of another run, or the other slot's tensors."""
    path.write_bytes(path.with_name(path.name.replace("13", "12")).read_bytes())


@pytest.mark.parametrize("damage", [flip, truncate, swap, Path.unlink])
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_damage_is_named_and_passed_over(tmp_path, damage, suffix):
    task, folder = stopped(tmp_path)
    damaged = folder / f"00000013{suffix}"
    if damage is swap and suffix == ".json":
        content = json.loads(damaged.read_text(encoding="utf-8"))
        content["facts"]["second"] += 1
        damaged.write_text(json.dumps(content), encoding="utf-8")
    else:
        damage(damaged)
    told = []
    resumed = train(task, tmp_path, notify=told.append)
    if not (damage is Path.unlink and suffix == ".json"):  # without its JSON it never was a checkpoint
        assert len(told) == 1
        assert str(damaged) in told[0]
        assert "going on from the checkpoint after slot 12" in told[0]
    assert_same(resumed, train(task))


def test_no_whole_checkpoint_is_left(tmp_path):
    task, folder = stopped(tmp_path)
    for path in folder.glob("*.safetensors"):
        flip(path)
    with pytest.raises(CheckpointError, match=r"13\.safetensors: expected sha256 .* no whole checkpoint is left"):
        train(task, tmp_path)


def test_warned_of_damage_by_default(tmp_path):
    task, folder = stopped(tmp_path)
    truncate(folder / "00000013.safetensors")
    with pytest.warns(UserWarning, match="going on from the checkpoint after slot 12"):
        train(task, tmp_path)


def test_checkpoints_of_other_runs_are_refused(tmp_path):
    task, _ = stopped(tmp_path)
    other = job(**{"learning.learning_rate": 0.02})
    with pytest.raises(CheckpointError, match=r"json: learning\.learning_rate: expected .* actual 0\.02;"):
        hm.train(other.scenario, task.trace, folder=tmp_path, evaluate_every=3)
    later = hm.simulate(hm.build(task.scenario), hm.plan(hm.build(task.scenario), "uncoordinated"), 1, seed=9)
    with pytest.raises(CheckpointError, match=r"json: seed: expected 0 .* actual 9"):
        hm.train(task.scenario, later, folder=tmp_path, evaluate_every=3)
    with pytest.raises(CheckpointError, match=r"json: trace: expected"):
        hm.train(task.scenario, replace(later, seed=0), folder=tmp_path, evaluate_every=3)
    with pytest.raises(CheckpointError, match=r"evaluate every: expected 3 \(as in the folder\), actual 5"):
        hm.train(task.scenario, task.trace, folder=tmp_path, evaluate_every=5)


@pytest.mark.parametrize(
    ("user", "function"), [("learning.checkpoint", "write_tensors"), ("common.durable", "write_json")]
)
def test_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, user, function):
    task = job()
    whole, calls = getattr(durable, function), []

    def full(target, *content):
        calls.append(target)
        if len(calls) == 3:
            Path(target).with_name(f".{target.name}.{8 * '0f'}.part").write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        whole(target, *content)

    monkeypatch.setattr(f"heliomesh.{user}.{function}", full)
    with pytest.raises(CheckpointError, match="No space left on device; the one after slot 8 is kept"):
        train(task, tmp_path, checkpoint_every=4)
    monkeypatch.undo()
    assert_same(train(task, tmp_path), train(task))


@contextmanager
def largest_file(num_bytes):
    """Let the system refuse to write more than this to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_tensors_that_the_system_does_not_take(tmp_path):
    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.write(Checkpoint(3, {"x": torch.zeros(10)}, {}))
    with (
        largest_file(20_000),
        pytest.raises(CheckpointError, match=r"expected room for a checkpoint of 391 KiB .* after slot 3 is kept"),
    ):
        checkpoints.write(Checkpoint(4, {"x": torch.zeros(100_000)}, {}))
    assert checkpoints.slots() == [3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000003.json", "00000003.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device without space is found on Linux only")
def test_facts_that_a_full_device_does_not_take(tmp_path, monkeypatch):
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: write(Path("/dev/full"), content))
    checkpoints = Checkpoints(tmp_path, {})
    with pytest.raises(CheckpointError, match="actual: No space left on device; no earlier one is there"):
        checkpoints.write(Checkpoint(4, {"x": torch.zeros(10)}, {}))
    assert checkpoints.newest(pytest.fail) is None


def test_only_the_newest_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, {"scenario": "a"})
    (tmp_path / f".00000001.safetensors.{8 * '0f'}.part").write_bytes(b"left by a killed process")
    for done in (1, 5, 9):
        checkpoints.write(Checkpoint(done, {"x": torch.full((2,), float(done))}, {"y": done}))
    assert checkpoints.slots() == [5, 9]
    assert len(list(tmp_path.iterdir())) == 4
    newest = checkpoints.newest(pytest.fail)
    assert newest is not None
    assert (newest.done, newest.facts) == (9, {"y": 9})
    assert torch.equal(newest.tensors["x"], torch.full((2,), 9.0))
    assert Checkpoints(tmp_path / "none", {}).newest(pytest.fail) is None


@pytest.mark.parametrize("every", [2, None])
def test_a_run_whose_folder_is_removed_writes_nothing_more(tmp_path, every):
    """The lock went with the folder: a second process may be at work there by now."""

    def remove(items, description, total):
        for item in items:
            if item == 5:
                shutil.rmtree(tmp_path / "run")
            yield item

    with pytest.raises(durable.LostFolderError, match="was removed or replaced while the command was running"):
        train(job(), tmp_path / "run", track=remove, checkpoint_every=every)
    assert not (tmp_path / "run").exists()
