"""The trace: shapes, files that survive, files that are refused, and memory that is estimated first."""

import dataclasses
import errno
import io
import json
import pickle
import sys
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.policy import Decision, Weights
from heliomesh.simulation import trace as trace_module
from heliomesh.simulation.trace import COLUMNS, TraceError, axis_sizes, estimate_bytes

FIELDS = [field.name for field in dataclasses.fields(hm.Trace)]
OPTIONAL = ("edge_weight", "control_joule")
ARRAYS = [name for name in FIELDS if name not in ("scenario_toml", "planner", "seed", *OPTIONAL)]


def problem_of(**changes):
    return hm.build(hm.Scenario.load("tiny").override(changes))


def recorded(episodes=3, seed=0, **changes):
    problem = problem_of(**changes)
    return hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=episodes, seed=seed)


def assert_equal(first, second):
    for name in FIELDS:
        a, b = getattr(first, name), getattr(second, name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            assert a == b


@pytest.fixture(scope="module")
def record():
    return recorded()


@pytest.fixture
def saved(record, tmp_path):
    record.save(tmp_path / "run.trace")
    return tmp_path / "run.trace"


def refused(path, *parts):
    with pytest.raises(TraceError, match="expected") as caught:
        hm.Trace.load(path)
    for part in (str(path), *parts):
        assert part in str(caught.value)


def stored(path):
    """The arrays of a saved trace by name."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def written(path, arrays):
    with path.open("wb") as file:
        np.savez(file, **arrays)


# contents


def test_shapes_and_kinds():
    record = recorded(episodes=4, slots=7, **{"network.devices": 6, "channel.state": "reciprocal"})
    shapes = {name: getattr(record, name).shape for name in ARRAYS}
    by_device, by_edge = (4, 7, 6), (4, 7, 12)
    assert shapes == {
        "scheduled": by_device,
        "power_watt": by_device,
        "update_loss": by_device,
        "battery_joule": (4, 8, 6),
        "spent_joule": by_device,
        "harvested_joule": by_device,
        "overflow_joule": by_device,
        "delivered": by_edge,
        "error_prob": by_edge,
        "channel_level": (4, 7, 6),
        "edge_receiver": (12,),
        "edge_sender": (12,),
    }
    assert record.scheduled.dtype == record.delivered.dtype == np.bool_
    for name in ARRAYS:
        assert np.isfinite(getattr(record, name)).all()


def test_a_trace_knows_its_origin(record):
    assert record.planner == "uncoordinated"
    assert record.seed == 0
    assert recorded(seed=12).seed == 12
    assert "[network]" in record.scenario_toml


def test_scenario_can_be_read_back(record, tmp_path):
    (tmp_path / "tiny.toml").write_text(record.scenario_toml, encoding="utf-8")
    assert hm.Scenario.load(tmp_path / "tiny.toml") == hm.Scenario.load("tiny")


def test_cost_by_hand(record):
    loss = np.array([[[0.5, 1.0], [0.0, 0.25]], [[1.0, 1.0], [1.0, 1.0]]])  # (episode, slot, device)
    np.testing.assert_allclose(replace(record, update_loss=loss).cost, [(1.5 + 0.25) / 2, 2.0])


def test_cost_equals_a_plain_sum(record):
    for episode, cost in enumerate(record.cost):
        total = sum(float(x) for slot in record.update_loss[episode] for x in slot)
        assert cost == pytest.approx(total / 12)


def test_many_channel_levels_are_recorded_as_they_are():
    levels = 300
    circle = np.roll(np.eye(levels), 1, axis=1)  # level k is followed by k + 1
    changes = {"channel.gains": np.linspace(0.1, 2, levels).tolist(), "channel.kernel": circle.tolist()}
    level = recorded(episodes=5, **changes).channel_level.astype(int)
    assert level.min() >= 0
    np.testing.assert_array_equal(level[:, 1:], (level[:, :-1] + 1) % levels)
    assert level.max() > 127


# files


def test_round_trip(record, saved):
    assert_equal(hm.Trace.load(saved), record)
    assert_equal(hm.Trace.load(str(saved)), record)


def test_round_trip_without_edges(tmp_path):
    alone = recorded(**{"network.devices": 1, "channel.state": "link"})
    alone.save(tmp_path / "alone.npz")
    assert_equal(hm.Trace.load(tmp_path / "alone.npz"), alone)


def test_saving_keeps_the_name_and_leaves_nothing_else(record, tmp_path):
    for name in ("plain", "a.npz", "two words.trace"):
        record.save(tmp_path / name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.npz", "plain", "two words.trace"]


def test_saving_again_replaces(record, saved):
    other = recorded(seed=5)
    other.save(saved)
    assert_equal(hm.Trace.load(saved), other)
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]


def test_a_reader_of_the_old_file_is_not_disturbed(saved):
    before = saved.read_bytes()
    with saved.open("rb") as reader:
        recorded(seed=5).save(saved)
        assert reader.read() == before
    assert saved.read_bytes() != before


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failing_write_leaves_the_old_file(record, saved, monkeypatch, error):
    def full_disk(file, **arrays):
        file.write(b"PK half a file")
        raise error

    monkeypatch.setattr(trace_module.np, "savez_compressed", full_disk)
    with pytest.raises(type(error)):
        recorded(seed=5).save(saved)
    assert_equal(hm.Trace.load(saved), record)
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]


def test_a_failing_first_write_leaves_nothing(record, tmp_path, monkeypatch):
    def full_disk(file, **arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trace_module.np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="No space"):
        record.save(tmp_path / "run.trace")
    assert list(tmp_path.iterdir()) == []


def test_no_such_folder(record, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        record.save(tmp_path / "nowhere" / "run.trace")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_truncated_file(saved, share):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(len(whole) * share)])
    refused(saved, "complete trace file")


@pytest.mark.parametrize("content", [b"", b"\n", b"no trace", b"PK\x03\x04", b"\x93NUMPY", bytes(5000)])
def test_foreign_content(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file")


def test_foreign_files(tmp_path):
    np.save(tmp_path / "array.npy", np.arange(3))
    refused(tmp_path / "array.npy")
    np.savez(tmp_path / "other.npz", weights=np.arange(3))
    refused(tmp_path / "other.npz")
    (tmp_path / "pickled").write_bytes(pickle.dumps({"meta": 1}))
    refused(tmp_path / "pickled")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("meta.npy", "text")
    refused(tmp_path / "archive.zip")


def test_missing_file_and_folder(tmp_path):
    refused(tmp_path / "missing", "No such file")
    refused(tmp_path, "directory")


@pytest.mark.parametrize("meta", ["", "no json", "[]", "3", "null", '{"format": 1}', '{"scenario": "", "seed": 0}'])
def test_foreign_meta(saved, meta):
    written(saved, {**stored(saved), "meta": np.array(meta)})
    refused(saved)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_is_named(saved, version):
    arrays = stored(saved)
    meta = {**json.loads(str(arrays["meta"])), "format": version}
    written(saved, {**arrays, "meta": np.array(json.dumps(meta))})
    refused(saved, "expected trace format 1", f"actual value {version!r}")


@pytest.mark.parametrize("name", ARRAYS)
def test_a_missing_array(saved, name):
    arrays = stored(saved)
    del arrays[name]
    written(saved, arrays)
    refused(saved)


def test_objects_are_never_unpickled(saved):
    arrays = {**stored(saved), "scheduled": np.array([{"any": "object"}], dtype=object)}
    with saved.open("wb") as file:
        np.savez(file, allow_pickle=True, **arrays)
    refused(saved, "allow_pickle=False")


def test_flipped_bits_are_refused_or_harmless(record, saved):
    whole, rng = saved.read_bytes(), np.random.default_rng(0)
    caught = 0
    for position, bit in zip(rng.integers(len(whole), size=400), rng.integers(8, size=400), strict=True):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        saved.write_bytes(damaged)
        try:
            loaded = hm.Trace.load(saved)
        except TraceError:
            caught += 1
        else:
            assert_equal(loaded, record)
    assert caught > 200


# memory


@pytest.mark.parametrize("episodes", [10**9, 10**15])
def test_absurd_number_of_episodes_is_refused_with_its_size(episodes):
    problem = problem_of()
    with pytest.raises(hm.TooLargeError, match=r"trace: expected at most 6 GiB .* actual estimate .* lower episodes"):
        hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=episodes)


def test_memory_limit_is_an_option():
    problem = problem_of()
    plan = hm.plan(problem, "uncoordinated")
    needed = estimate_bytes(problem, 100) / 2**30
    hm.simulate(problem, plan, episodes=100, memory_gib=needed * 1.001)
    with pytest.raises(hm.TooLargeError):
        hm.simulate(problem, plan, episodes=100, memory_gib=needed * 0.999)


@pytest.mark.parametrize(("episodes", "copies"), [(10, 1), (300, 2)])  # so many are joined from parts
@pytest.mark.parametrize("state", ["receiver", "link"])
def test_estimate_covers_what_is_recorded(state, episodes, copies):
    changes = {"slots": 100, "channel.state": state, "network.topology": "complete"}
    problem = problem_of(**changes)
    record = recorded(episodes=episodes, **changes)
    actual = copies * sum(getattr(record, name).nbytes for name in ARRAYS[:-2])
    assert 0.98 * actual <= estimate_bytes(problem, episodes) <= 1.5 * actual


def test_a_file_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(saved, record, tmp_path):
    """Zeros shrink a thousandfold: the limit holds for what they become."""
    bomb, limit_gib = tmp_path / "bomb", 40 / 1024
    arrays = stored(saved) | {"power_watt": np.zeros((400, 100, 200))}  # 61 MiB
    with bomb.open("wb") as file:
        np.savez_compressed(file, **arrays)
    del arrays
    assert bomb.stat().st_size < 2**20
    tracemalloc.start()
    with pytest.raises(hm.TooLargeError, match=r"bomb: expected at most 0.0390625 GiB .* raise memory_gib"):
        hm.Trace.load(bomb, memory_gib=limit_gib)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22
    assert_equal(hm.Trace.load(saved, memory_gib=limit_gib), record)


def test_a_header_that_promises_more_than_the_file_holds_is_refused(saved, tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(saved) as before, zipfile.ZipFile(tmp_path / "file", "w") as after:
        for entry in before.infolist():
            after.writestr(entry, head.getvalue() if entry.filename == "power_watt.npy" else before.read(entry))
    refused(tmp_path / "file", "power_watt.npy ends before the 8000000000000000 bytes")


@pytest.mark.parametrize("episodes", [0, -1])
def test_no_episodes(episodes):
    problem = problem_of()
    with pytest.raises(
        ValueError, match=f"episodes: expected a whole number of at least 1 .*, actual value {episodes}"
    ):
        hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=episodes)


# progress


def test_progress_sees_every_slot_and_changes_nothing(record, monkeypatch):
    seen = []

    def track(items, description, total):
        for count, item in enumerate(items, 1):
            seen.append((description, count, total))
            yield item

    monkeypatch.setattr(trace_module, "_EPISODES_AT_ONCE", 2)
    problem = problem_of()
    tracked = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=3, track=track)
    assert seen == [("simulate uncoordinated", count, 24) for count in range(1, 25)]
    assert_equal(tracked, record)


# the schema


def test_the_schema_names_every_array_once(record):
    assert [column.name for column in COLUMNS] == ARRAYS
    sizes = axis_sizes(problem_of(), 3)
    for column in COLUMNS:
        array = getattr(record, column.name)
        assert (array.shape, array.dtype) == (column.shape(sizes), np.dtype(column.dtype)), column.name
        assert column.unit == ("J" if "joule" in column.name else "W" if "watt" in column.name else "1")


class OwnWeights:
    """Idle devices that change the weights of averaging in slot 5, in chunks of so many episodes only."""

    def __init__(self, problem, batch):
        self.problem, self.batch = problem, batch

    def decide(self, slot, seen):
        batch, edges = len(seen.battery_joule), self.problem.topology.num_edges
        own = Weights(torch.full((batch, edges), 0.25).double(), torch.full((batch, 5), 0.5).double())
        idle = seen.battery_joule * 0
        return Decision(idle, idle > 0, own if slot >= 5 and batch == self.batch else None)


def test_weights_are_recorded_where_a_policy_has_its_own(record, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_module, "_EPISODES_AT_ONCE", 2)
    problem = problem_of()
    usual = problem.topology.edge_weight
    trace = hm.simulate(problem, OwnWeights(problem, batch=1), episodes=3)
    np.testing.assert_array_equal(trace.edge_weight[:2], np.broadcast_to(usual, (2, 12, 10)))
    np.testing.assert_array_equal(trace.edge_weight[2, :5], np.broadcast_to(usual, (5, 10)))
    assert (trace.edge_weight[2, 5:] == 0.25).all()
    trace.save(tmp_path / "own.npz")
    assert_equal(hm.Trace.load(tmp_path / "own.npz"), trace)
    short = trace.episode(2).first_slots(6)
    assert short.edge_weight.shape == (1, 6, 10)
    assert short.edge_weight[0, 5, 0] == 0.25
    assert record.edge_weight is None
    assert hm.simulate(problem, OwnWeights(problem, batch=9), episodes=3).edge_weight is None


@pytest.mark.parametrize("wrong", [np.zeros((3, 12, 9)), np.full((3, 12, 10), np.nan), np.zeros((3, 12, 10), bool)])
def test_wrong_weights_of_a_file_are_refused(saved, wrong):
    written(saved, stored(saved) | {"edge_weight": wrong})
    refused(saved, "edge_weight")


def test_the_first_slots_keep_the_battery_after_them(record):
    short = record.first_slots(4)
    assert short.scheduled.shape == (3, 4, 5)
    np.testing.assert_array_equal(short.battery_joule, record.battery_joule[:, :5])
    np.testing.assert_array_equal(short.edge_sender, record.edge_sender)


def test_a_policy_is_simulated_without_a_plan(record):
    problem = problem_of()
    policy = hm.plan(problem, "uncoordinated").policy
    alone = hm.simulate(problem, policy, episodes=3)
    assert alone.planner == "Greedy"
    assert_equal(replace(alone, planner=record.planner), record)
    np.testing.assert_array_equal(hm.simulate_costs(problem, policy, 3), alone.cost)


def test_xarray_gets_names_coordinates_and_units(record):
    pytest.importorskip("xarray", reason="needs pip install heliomesh[xarray]")
    dataset = record.to_xarray()
    assert dict(dataset.sizes) == axis_sizes(problem_of(), 3)
    for column in COLUMNS:
        array = dataset[column.name]
        assert (array.dims, array.attrs["units"]) == (column.axes, column.unit)
        np.testing.assert_array_equal(array.to_numpy(), getattr(record, column.name))
    assert dataset.attrs["planner"] == "uncoordinated"
    np.testing.assert_allclose(dataset.update_loss.sum("device").mean("slot"), record.cost)
    heard = dataset.delivered.sel(episode=1).where(dataset.edge_receiver == 0, drop=True)
    assert heard.sizes["edge"] == int((record.edge_receiver == 0).sum())


def test_without_xarray_a_sentence_says_what_to_do(record, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"xarray is not installed. Run `pip install heliomesh\[xarray\]`\."
    ):
        record.to_xarray()
