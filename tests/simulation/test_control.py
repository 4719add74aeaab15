"""Messages that batteries pay for: their energy by hand, the books, silent devices, and plans that say nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.field.living.conditional_plan import Answering
from heliomesh.field.living.conditions import Conditions
from heliomesh.grid.single_device import opportunity_values
from heliomesh.model.overhead import Talk, paid_talk, talk_joule
from heliomesh.simulation import practice
from heliomesh.simulation.ledger import energy_facts

PAID = {"energy.control": "paid"}
LISTENING = {"energy.receive_watt": 0.05, "energy.control_bit_per_second": 5e3, "energy.converter_efficiency": 0.8}
SEPARATE = {"energy.actions": "separate", "slots": 30}
QUICK: dict[str, Any] = {"practice": 2, "passes": 1}
TALKING = {**QUICK, "talk": "messages"}
LORA = {
    "energy.radio": "sx1276",
    "energy.slot_second": 900.0,
    "learning.update_bits": 20_000,
    "energy.compute_joule": 80.0,
    "energy.capacity_joule": 200.0,
    "energy.duty_cycle": 0.05,
}


def build(name: str = "tiny", **changes: Any) -> hm.Problem:
    return hm.build(hm.Scenario.load(name).override(SEPARATE | PAID | changes))


def options(planner: str) -> dict[str, Any]:
    return {"bids": TALKING, "contributions": QUICK}.get(planner, {})


def one_message(problem: hm.Problem, num_bytes: float) -> Talk:
    """Device 0 says it, device 1 hears it."""
    said, heard = (torch.eye(problem.num_devices, dtype=torch.float64)[device] for device in (0, 1))
    return Talk(said * num_bytes, said, heard * num_bytes, heard)


def test_energy_of_a_message_by_hand():
    """18 bytes after 12 of preamble and header: LoRa at 20 dBm, and Bluetooth LE at 8 dBm behind a converter."""
    lora = build(**LORA)
    sent, heard = talk_joule(lora, one_message(lora, 18))[:2].tolist()
    second = 8 * 30 / 5468.75
    assert sent == pytest.approx(second * 3.3 * 0.120)
    assert heard == pytest.approx(second * 3.3 * 0.0115)
    bluetooth = {"energy.radio": "nrf52840", "energy.converter_efficiency": 0.9, "energy.control_header_byte": 10}
    problem = build(**bluetooth)
    sent, heard = talk_joule(problem, one_message(problem, 18))[:2].tolist()
    assert sent == pytest.approx(8 * 28 / 1e6 * 3.0 * 0.0164 / 0.9)
    assert heard == pytest.approx(8 * 28 / 1e6 * 3.0 * 0.00626 / 0.9)


PLANNERS = ("bids", "contributions", "news", "receiver", "prices", "centralized", "myopic")


@pytest.mark.parametrize("planner", PLANNERS)
def test_talk_by_device_is_the_plans_overhead(planner):
    problem = build(slots=2)
    plan = hm.plan(problem, planner, **options(planner))
    talk = plan.policy.talk
    assert float(talk.sent_byte.sum()) == pytest.approx(plan.overhead.online_bytes_per_slot)
    if planner != "bids":  # whose messages are for all neighbours at once
        assert float(talk.heard_byte.sum()) == pytest.approx(float(talk.sent_byte.sum()))
        assert float(talk.heard.sum()) == float(talk.sent.sum())


@pytest.mark.parametrize("planner", ["bids", "contributions", "news", "receiver"])
def test_the_books_balance_and_show_messages(planner):
    problem = build(**LISTENING, **{"energy.sleep_watt": 0.001})
    plan = hm.plan(problem, planner, **options(planner))
    trace = hm.simulate(problem, plan, 6)
    ledger = hm.energy_ledger(trace)
    assert np.abs(ledger.imbalance_joule).max() < 1e-9
    joule = talk_joule(problem, plan.policy.talk).numpy()
    drawn = trace.control_joule
    assert drawn is not None
    assert (np.isclose(drawn, joule) | (drawn == 0)).all()
    assert (drawn > 0).any()
    np.testing.assert_allclose(ledger.control_joule, drawn.sum(1))
    assert (ledger.converter_joule > -1e-9).all()
    assert energy_facts(trace)["spent on messages [J]"] == pytest.approx(drawn.sum((1, 2)).mean())


def test_a_trace_keeps_what_messages_cost(tmp_path):
    problem = build(**LISTENING)
    trace = hm.simulate(problem, hm.plan(problem, "news"), 3)
    trace.save(tmp_path / "trace.npz")
    again = hm.Trace.load(tmp_path / "trace.npz")
    np.testing.assert_array_equal(again.control_joule, trace.control_joule)
    assert trace.first_slots(5).control_joule.shape[1] == 5
    np.testing.assert_array_equal(trace.episode(1).control_joule, trace.control_joule[1:2])


@pytest.mark.parametrize("planner", ["bids", "contributions", "news", "receiver", "myopic"])
def test_who_cannot_pay_is_silent_and_idles(planner):
    """It keeps its energy, neither trains nor sends, and no neighbour decides by what it would have said."""
    problem = build("ring10", **LISTENING, slots=6)
    plan = hm.plan(problem, planner, **options(planner))
    needed = talk_joule(problem, plan.policy.talk).numpy()
    trace = hm.simulate(problem, plan, 40)
    silent = trace.battery_joule[:, :-1] < needed * (1 - 1e-9)
    assert silent.any()
    assert not silent.all()
    assert (trace.control_joule[silent] == 0).all()
    assert (trace.control_joule[~silent] > 0).all()
    assert (trace.spent_joule[silent] == 0).all()
    assert not (trace.scheduled | (trace.power_watt > 0))[silent].any()


def test_neighbours_do_not_hear_who_is_silent():
    problem = build("ring10", **LISTENING, slots=6)
    policy = hm.plan(problem, "bids", **TALKING).policy
    seen = []

    class Spying(type(policy)):  # type: ignore[misc]
        def recall(self, observation):
            seen.append(observation)
            return super().recall(observation)

    names = ("problem", "bias_weight", "values", "directions")
    spy = Spying(**{name: getattr(policy, name) for name in names})
    trace = hm.simulate(problem, spy, 40)
    sender, receiver = trace.edge_sender, trace.edge_receiver
    for slot, one in enumerate(seen):
        talks = trace.control_joule[:, slot] > 0
        both = talks[:, sender] & talks[:, receiver]
        np.testing.assert_array_equal(one.heard.numpy(), np.stack([both, both], -1))
        left = np.where(talks, trace.battery_joule[:, slot] - trace.control_joule[:, slot], 0)
        np.testing.assert_allclose(one.battery_joule.numpy(), left, atol=1e-12)


def test_the_default_changes_no_identity_and_no_number():
    plain = hm.Scenario.load("tiny").override({"slots": 10})
    assert "control" not in plain.as_dict()["energy"]
    assert "control_header_byte" not in plain.as_dict()["energy"]
    free = plain.override({"energy.control": "free"})
    assert paid_talk(hm.build(free), hm.plan(hm.build(free), "news").policy) is None
    ours, theirs = (hm.simulate(hm.build(one), hm.plan(hm.build(one), "news"), 3) for one in (plain, free))
    np.testing.assert_array_equal(ours.battery_joule, theirs.battery_joule)
    assert ours.control_joule is None
    assert "spent on messages [J]" not in energy_facts(ours)


@pytest.mark.parametrize("planner", ["uncoordinated", "turns", "battery_threshold"])
def test_plans_without_messages_pay_nothing(planner):
    free, paid = build(**{"energy.control": "free"}), build(**LISTENING | {"energy.converter_efficiency": 1.0})
    ours, theirs = (hm.simulate(problem, hm.plan(problem, planner), 3) for problem in (free, paid))
    assert theirs.control_joule is None
    np.testing.assert_array_equal(ours.battery_joule, theirs.battery_joule)


def test_decisions_do_not_know_the_future():
    """Another seed's later slots change nothing before them: what is paid depends on the present battery."""
    problem = build(**LISTENING)
    plan = hm.plan(problem, "bids", **TALKING)
    whole = hm.simulate(problem, plan, 4)
    short = hm.build(problem.scenario.override({"slots": 12}))
    cut = replace(plan.policy, problem=hm.plan(short, "bids", **TALKING).policy.problem)
    assert isinstance(cut, practice.Learners)
    begun = hm.simulate(short, cut, 4)
    np.testing.assert_array_equal(begun.control_joule, whole.control_joule[:, :12])
    np.testing.assert_array_equal(begun.power_watt, whole.power_watt[:, :12])


def test_values_of_energy_pay_for_messages():
    """Given the same opportunities, devices that pay for messages lose something to come, and never gain."""
    problem = build(**LISTENING)
    policy = hm.plan(problem, "bids", **TALKING).policy
    rng, shape = np.random.default_rng(0), (problem.slots, 4, problem.num_devices, len(problem.actions))
    price = torch.from_numpy(-rng.random(shape))
    free = opportunity_values(policy.problem, price)
    paid = opportunity_values(practice._paying(policy.problem, policy), price)
    assert (paid >= free - 1e-9).all()
    assert (paid[0] > free[0] + 1e-3).all()


def test_bids_on_lora_train_and_send_and_rounds_are_refused():
    """A bid and a grant fit a band's duty cycle, in which the rounds of `contributions` do not."""
    problem = build("ring10", **LORA)
    trace = hm.simulate(problem, hm.plan(problem, "bids", **TALKING), 4)
    assert trace.scheduled.mean() > 0.05
    assert (trace.power_watt > 0).mean() > 0.05
    assert trace.delivered.mean() > 0.02
    assert trace.control_joule.mean() > 0
    tight = build("ring10", **LORA | {"energy.duty_cycle": 0.006})
    with pytest.raises(hm.ScenarioError, match=r"energy.duty_cycle: expected .* messages are on air"):
        hm.simulate(tight, hm.plan(tight, "contributions", **QUICK), 1)
    assert hm.simulate(tight, hm.plan(tight, "uncoordinated"), 1).control_joule is None


def test_what_cannot_be_counted_is_refused():
    problem = build(slots=3)
    with pytest.raises(hm.ScenarioError, match=r"energy.control: expected 'free' for exact evaluation"):
        hm.exact_cost(problem, hm.plan(problem, "centralized"))
    assert hm.plan(problem, "centralized").expected_cost is None
    assert hm.exact_cost(problem, hm.plan(problem, "uncoordinated")) > 0
    with pytest.raises(hm.ScenarioError, match=r"energy.control: expected 'free'"):
        Answering(problem, "receiver").answer_to(Conditions())
    assert Answering(problem, "uncoordinated").answer_to(Conditions()).plan.planner == "uncoordinated"
    told = hm.plan(problem, "decentralized", hops=1, rounds=2)
    with pytest.raises(hm.ScenarioError, match=r"energy.control: expected 'free' for the planner 'decentralized'"):
        hm.simulate(problem, told, 1)
