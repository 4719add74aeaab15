"""What comes over the air: bounds on each format's error, memories by hand, and runs that agree."""

import importlib.util
import os
import signal

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.common import catalog
from heliomesh.learning.aggregation import aggregate
from heliomesh.learning.packets import (
    as_float16,
    as_int8,
    largest_changes,
    largest_updates,
    packet,
    rounding_noise,
)
from heliomesh.learning.replay import Replay, state_names
from heliomesh.learning.strategy import STRATEGY_CATALOG
from heliomesh.physics.topology import build_topology
from heliomesh.scenario.on_air import BLOCK
from heliomesh.scenario.schema import Learning
from heliomesh.tasks.dataset import load_dataset

SLOTS = 6
FORMATS = ("float16", "int8", "top-k")
RULES = ("model", "update", "renormalized", "reassigned", "median")
TRITON = importlib.util.find_spec("triton") is not None and torch.cuda.is_available()


def row_of(size=1000, seed=0):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def scenario_of(**changes):
    base = {"slots": SLOTS, "learning.local_steps": 2, "learning.batch": 8, "learning.learning_rate": 0.1}
    if changes.get("learning.aggregation") == "update":
        base["network.mixing"] = "lazy-metropolis"
    return hm.Scenario.load("tiny").override(base | changes)


def trace_of(scenario):
    problem = hm.build(scenario)
    return hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1)


# formats


def test_float16_is_the_nearest_and_cuts_what_is_too_large():
    row = torch.cat([row_of(), torch.tensor([1e6, -1e6, 0.0])])
    sent = as_float16(row)
    assert bool(((sent - row).abs()[:-3] <= row.abs()[:-3] * 2**-11 + 2**-25).all())
    assert sent[-3:].tolist() == [65504.0, -65504.0, 0.0]


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 7])
def test_int8_is_within_a_step_of_its_block(size):
    row = row_of(size) * torch.logspace(-3, 3, size)
    sent = as_int8(row, rounding_noise(0, 0, 0, -(-size // BLOCK)))
    for here in torch.arange(size).split(BLOCK):
        step = row[here].abs().max() / 127
        assert bool(((sent[here] - row[here]).abs() <= step * (1 + 1e-5)).all())
        levels = sent[here] / step
        assert torch.allclose(levels, levels.round(), atol=1e-3)
        assert levels.abs().max().round() == 127


def test_int8_is_right_on_average_where_the_nearest_would_not_be():
    row = torch.full((BLOCK,), 0.3)
    row[0] = 127.0  # the step is 1
    sent = torch.stack([as_int8(row, rounding_noise(0, slot, 0, 1)) for slot in range(200)])
    assert sent[:, 0].tolist() == [127.0] * 200
    assert set(sent[:, 1:].flatten().tolist()) == {0.0, 1.0}
    assert abs(float(sent[:, 1:].mean()) - 0.3) < 4 * (0.21 / sent[:, 1:].numel()) ** 0.5


@pytest.mark.parametrize("size", [0.0, 1e-44, 2e-43])
def test_int8_of_blocks_without_size(size):
    sent = as_int8(torch.full((BLOCK,), size), rounding_noise(0, 0, 0, 1))
    assert bool((sent.abs() <= 2 * size).all())


def test_noise_follows_from_seed_slot_and_device():
    drawn = [rounding_noise(*key, 2) for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))]
    assert torch.equal(drawn[0], drawn[4])
    assert len({one.numpy().tobytes() for one in drawn}) == 4
    assert drawn[0].shape == (2, BLOCK)
    assert drawn[0].dtype == torch.uint8
    assert drawn[0][0, :4].tolist() == [145, 171, 46, 125]  # published results rest on them


def test_top_k_by_hand():
    """Two of four entries: those that changed most since they were sent."""
    last_sent, row = torch.zeros(4), torch.tensor([1.0, -3.0, 2.0, 0.5])
    assert largest_changes(row, last_sent, 2).nan_to_num(9.0).tolist() == [9.0, -3.0, 2.0, 9.0]
    assert last_sent.tolist() == [0.0, -3.0, 2.0, 0.0]
    row = torch.tensor([1.0, -3.25, 2.0, 0.75])  # the largest are known; what was left behind comes next
    assert largest_changes(row, last_sent, 2).nan_to_num(9.0).tolist() == [1.0, 9.0, 9.0, 0.75]
    assert last_sent.tolist() == [1.0, -3.0, 2.0, 0.75]


def test_no_entry_of_an_update_is_lost_by_its_sender():
    unsent, updates, received = torch.zeros(40, dtype=torch.float64), torch.zeros(40), torch.zeros(40)
    for slot in range(30):
        update = row_of(40, seed=slot).double() if slot < 25 else torch.zeros(40, dtype=torch.float64)
        sent = largest_updates(update, unsent, 8)
        assert int((~sent.isnan()).sum()) == 8
        updates, received = updates + update, received + sent.nan_to_num(0.0)
    torch.testing.assert_close(received + unsent, updates)
    assert bool((unsent == 0).all())  # the last five packets had room for all


def test_float32_is_the_row_itself_and_top_k_asks_for_a_memory():
    row = row_of()
    assert packet(Learning(), row, None, 0, 0, 0) is row
    with pytest.raises(ValueError, match="feedback: expected the sender's memory"):
        packet(Learning(on_air="top-k"), row, None, 0, 0, 0)


# averaging


@pytest.mark.parametrize("rule", RULES)
def test_receivers_average_what_was_sent_with_their_own_exact_weights(rule):
    """Every rule is that of exact packets for a receiver in whose eyes the senders have other weights."""
    topology = build_topology(hm.Scenario.load("ring10").override({"network.topology": "grid", "network.devices": 6}))
    rng = np.random.default_rng(0)
    trained, delivered = rng.random((2, 6)) < 0.6, rng.random((2, topology.num_edges)) < 0.6
    before, step, sent = (torch.from_numpy(rng.normal(size=(2, 6, 9))) for _ in range(3))
    after = before + step * torch.from_numpy(trained)[..., None]
    sent[torch.from_numpy(rng.random(sent.shape) < 0.4)] = torch.nan
    found = torch.empty_like(after)
    aggregate(rule, topology, before, after, delivered, trained, found, sent)
    in_place = after.clone()
    aggregate(rule, topology, before, in_place, delivered, trained, in_place, sent)
    assert torch.equal(found, in_place)
    for receiver in range(6):
        if rule == "update":
            seen_before, seen = torch.zeros_like(before), sent.nan_to_num(0.0)
            seen_trained = np.ones_like(trained)
            seen_trained[:, receiver] = trained[:, receiver]
        else:
            seen_before, seen = before.clone(), torch.where(sent.isnan(), after[:, [receiver]], sent)
            seen_trained = trained
        seen[:, receiver], seen_before[:, receiver] = after[:, receiver], before[:, receiver]
        expected = torch.empty_like(after)
        aggregate(rule, topology, seen_before, seen, delivered, seen_trained, expected)
        torch.testing.assert_close(found[:, receiver], expected[:, receiver], rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not TRITON, reason="needs Triton and a CUDA device")
@pytest.mark.parametrize("rule", RULES[:4])
def test_the_fused_kernel_leaves_out_what_was_not_sent(rule):
    topology = build_topology(hm.Scenario.load("ring10"))
    rng = np.random.default_rng(0)
    delivered, trained = rng.random((2, topology.num_edges)) < 0.5, rng.random((2, 10)) < 0.6
    before, after, sent = (torch.from_numpy(rng.normal(size=(2, 10, 3001))).float() for _ in range(3))
    sent[torch.from_numpy(rng.random(sent.shape) < 0.4)] = torch.nan
    expected, found = torch.empty_like(after), torch.empty_like(after).cuda()
    aggregate(rule, topology, before, after, delivered, trained, expected, sent)
    aggregate(rule, topology, before.cuda(), after.cuda(), delivered, trained, found, sent.cuda())
    torch.testing.assert_close(found.cpu(), expected)


# runs


@pytest.mark.parametrize("rule", RULES)
def test_all_entries_of_top_k_are_a_run_in_float32(rule):
    exact, all_sent = (
        scenario_of(**{"learning.aggregation": rule}, **changes)
        for changes in ({}, {"learning.on_air": "top-k", "learning.top_k_share": 1.0})
    )
    trace = trace_of(exact)
    assert torch.equal(hm.train(exact, trace).weights, hm.train(all_sent, trace).weights)
    assert trace.delivered.any()


@pytest.mark.parametrize("rule", ["reassigned", "update"])
@pytest.mark.parametrize("on_air", FORMATS)
def test_a_format_changes_what_is_learned_a_little(on_air, rule):
    exact = scenario_of(**{"learning.aggregation": rule, "learning.learning_rate": 0.5})
    trace = trace_of(exact)
    expected = hm.train(exact, trace).weights
    changes = {"learning.on_air": on_air, "learning.top_k_share": 0.5}
    found = hm.train(exact.override(changes), trace).weights
    assert not torch.equal(found, expected)
    moved = (expected - hm.train(exact.override({"learning.learning_rate": 1e-30}), trace).weights).norm()
    limit = {"float16": 2e-3, "int8": 0.1, "top-k": 0.5}[on_air]
    assert (found - expected).norm() < limit * moved


def in_float64(replay):
    """The same replay with weights, memories and samples in double precision.

    No two inputs are equal: equal changes of two weights would differ by rounding only, and so which is sent.
    """
    replay._stacks = {name: stack.double() for name, stack in replay._stacks.items()}
    replay.weights = replay._stacks["weights"]
    inputs = replay.samples.inputs.double()
    noise = torch.rand(inputs.shape, dtype=inputs.dtype, generator=torch.Generator().manual_seed(0))
    replay.samples = type(replay.samples)(inputs + 0.1 * noise, replay.samples.labels)
    return replay


@pytest.mark.parametrize("strategy", sorted({*catalog.names(STRATEGY_CATALOG)} - {"fused", "loop"}))
@pytest.mark.parametrize("on_air", FORMATS)
def test_strategies_agree_to_the_last_digits(on_air, strategy):
    scenario = scenario_of(**{"learning.on_air": on_air, "learning.quasi_global": 0.5})
    trace, data = trace_of(scenario), load_dataset(scenario.learning)
    found = []
    for name in ("loop", strategy):
        replay = in_float64(Replay([hm.TrainJob(scenario, trace)], data, hm.TrainSettings(strategy=name)))
        for slot in range(SLOTS):
            replay.step(slot)
        found.append(replay.weights)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", ["reassigned", "update"])
@pytest.mark.parametrize("on_air", FORMATS)
def test_stacked_runs_are_single_runs(on_air, rule):
    scenario = scenario_of(**{"learning.on_air": on_air, "learning.aggregation": rule})
    trace = trace_of(scenario)
    jobs = [hm.TrainJob(scenario, trace, 0, seed) for seed in (1, 2)]
    for job, stacked in zip(jobs, hm.train_many(jobs), strict=True):
        assert torch.equal(hm.train(scenario, trace, seed=job.seed).weights, stacked.weights)


@pytest.mark.parametrize("changes", [{}, {"learning.aggregation": "update", "learning.quasi_global": 0.5}])
def test_a_resumed_run_remembers_what_was_not_sent(tmp_path, changes):
    scenario = scenario_of(**{"learning.on_air": "top-k"}, **changes)
    trace = trace_of(scenario)

    def press(items, description, total):
        for item in items:
            if item == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield item

    with pytest.raises(hm.TrainingInterrupted):
        hm.train(scenario, trace, folder=tmp_path, track=press, evaluate_every=2)
    resumed = hm.train(scenario, trace, folder=tmp_path, evaluate_every=2)
    whole = hm.train(scenario, trace, evaluate_every=2)
    assert torch.equal(resumed.weights, whole.weights)
    np.testing.assert_array_equal(resumed.accuracy, whole.accuracy)


def test_a_memory_that_is_forgotten_gives_another_run():
    """What the test above guards: without the memory the run would end elsewhere."""
    scenario = scenario_of(**{"learning.on_air": "top-k"})
    trace, data = trace_of(scenario), load_dataset(scenario.learning)
    whole, forgetful = (Replay([hm.TrainJob(scenario, trace)], data, hm.TrainSettings()) for _ in range(2))
    for slot in range(SLOTS):
        whole.step(slot)
        forgetful.step(slot)
        forgetful.restore(forgetful.gather_state() | {"feedback": forgetful.weights}, slot + 1)
    assert not torch.equal(whole.weights, forgetful.weights)
    assert state_names(scenario.learning) == ("weights", "feedback") == tuple(whole.gather_state())


def test_whoever_sends_remembers_it_heard_or_not():
    """A memory follows power, not arrivals; so both decide a run's key."""
    scenario = scenario_of(**{"learning.on_air": "top-k"})
    silent = trace_of(scenario)
    silent.delivered[:] = False
    loud = hm.TrainJob(scenario, silent)
    replay = Replay([loud], load_dataset(scenario.learning), hm.TrainSettings())
    first = replay.gather_state()["feedback"].clone()
    for slot in range(SLOTS):
        replay.step(slot)
    sent = (silent.power_watt[0] > 0).any(0)
    moved = (replay.gather_state()["feedback"] != first).any(1).numpy()
    assert np.array_equal(moved, sent)
    before = loud.trace_hash
    silent.power_watt[:] = 0.0
    assert hm.TrainJob(scenario, silent).trace_hash != before


def test_a_stack_shares_one_format():
    scenario = scenario_of()
    trace = trace_of(scenario)
    other = scenario.override({"learning.on_air": "int8"})
    with pytest.raises(
        hm.ScenarioError, match=r"learning\.on_air: expected one value in a stack, 'float32', actual value 'int8'"
    ):
        hm.train_many([hm.TrainJob(scenario, trace), hm.TrainJob(other, trace)])


def test_memory_counts_packets_and_feedback():
    scenario = scenario_of()
    trace, sentences = trace_of(scenario), set()
    for on_air in ("float32", "int8", "top-k"):
        with pytest.raises(hm.TooLargeError) as caught:
            hm.train(scenario.override({"learning.on_air": on_air}), trace, memory_gib=1e-9)
        sentences.add(str(caught.value))
    assert len(sentences) == 3
