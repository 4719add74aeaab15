"""The agreement phase: what any plan may wear before a deadline."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store
from heliomesh.slot.agreement import agreed

SLOTS = 3


def ring(**changes: object) -> hm.Problem:
    chosen = {"slots": 12, "energy.actions": "separate", "energy.initial": "uniform", **changes}
    return hm.build(hm.Scenario.load("ring10").override(chosen))


@pytest.mark.parametrize("planner", ["uncoordinated", "receiver", "news"])
@pytest.mark.parametrize("actions", ["coupled", "separate"])
def test_devices_only_send_in_turns_before_the_deadline(planner: str, actions: str) -> None:
    problem = ring(**{"energy.actions": actions})
    plan = hm.plan(problem, planner)
    before, after = (hm.simulate(problem, one, 20) for one in (plan, agreed(problem, plan, SLOTS)))
    first = slice(0, problem.slots - SLOTS)
    for name in ("power_watt", "scheduled", "battery_joule"):
        assert np.array_equal(getattr(before, name)[:, first], getattr(after, name)[:, first])
    last = slice(problem.slots - SLOTS, None)
    assert not after.scheduled[:, last].any()
    sent = after.power_watt[:, last] > 0
    assert sent.any()
    colour = np.array(problem.colour)
    for number, slot in enumerate(range(problem.slots - SLOTS, problem.slots)):
        assert not sent[:, number, colour != slot % (colour.max() + 1)].any()


def test_it_sends_at_the_largest_power_that_the_battery_pays_for() -> None:
    problem = ring()
    plan = agreed(problem, hm.plan(problem, "uncoordinated"), SLOTS)
    trace, consumption = hm.simulate(problem, plan, 50), problem.consumption
    powers = torch.unique(problem.actions.power_watt)
    for slot in range(problem.slots - SLOTS, problem.slots):
        watt, held = trace.power_watt[:, slot], trace.battery_joule[:, slot]
        for episode, device in zip(*np.nonzero(watt), strict=True):
            stronger = powers[powers > watt[episode, device]]
            everyone = stronger.unsqueeze(1).expand(-1, problem.num_devices)
            drawn = consumption.drawn_joule(everyone, torch.zeros_like(everyone, dtype=torch.bool))[:, device]
            assert (drawn > held[episode, device]).all()


def test_nothing_of_the_plans_cost_is_claimed() -> None:
    problem = ring(**{"energy.actions": "coupled"})
    plan = agreed(problem, hm.plan(problem, "receiver", bound=True), SLOTS)
    assert (plan.lower_bound, plan.expected_cost, plan.gap, plan.picks_actions) == (None, None, None, False)
    assert plan.planner == "receiver+agree=3"


def test_no_slots_change_nothing_and_too_many_are_refused() -> None:
    problem = ring()
    plan = hm.plan(problem, "uncoordinated")
    assert agreed(problem, plan, 0) is plan
    with pytest.raises(hm.ScenarioError, match=r"agree: expected 0 to 12 slots, actual value 13"):
        agreed(problem, plan, 13)


def test_a_job_wears_it_and_its_plan_is_stored(tmp_path) -> None:
    scenario = ring().scenario
    plain, worn = Job(scenario, "news"), Job(scenario, "news", agree=SLOTS)
    assert plain.key("plan") != worn.key("plan")
    assert "agree" not in plain.identity("plan")
    store = Store(tmp_path)
    trace = store.trace(worn)
    assert not trace.scheduled[:, -SLOTS:].any()
    assert np.array_equal(Store(tmp_path).trace(worn).power_watt, trace.power_watt)
    again = hm.simulate(hm.build(scenario), Store(tmp_path).plan(worn), 1)
    assert np.array_equal(again.power_watt, trace.power_watt)


def test_a_reaction_to_changes_is_refused() -> None:
    with pytest.raises(hm.ScenarioError, match="agree: expected 0 with a reaction to changes, actual value 1"):
        Job(ring().scenario, "uncoordinated", agree=1, reaction="stale", changes=("harvest=0.5@3",))


def test_an_agreement_phase_leaves_slots_to_train() -> None:
    problem = ring(**{"slots": 60, "cost.deadline": "always"})
    plan = hm.plan(problem, "uncoordinated")
    with pytest.raises(hm.ScenarioError, match="agree: expected fewer slots than lie between deadlines"):
        agreed(problem, plan, 25)
    assert agreed(problem, plan, 24).planner == "uncoordinated+agree=24"


def test_an_agreeing_job_does_not_learn_to_react() -> None:
    agreeing = Job(ring().scenario, "uncoordinated", agree=1, changes=("harvest=0.5@3",))
    with pytest.raises(hm.ScenarioError, match="agree: expected 0 with a reaction to changes"):
        replace(agreeing, reaction="stale")


def test_turns_need_no_messages() -> None:
    problem = ring(**{"energy.control": "paid", "energy.actions": "separate"})
    plan = hm.plan(problem, "bids", talk="messages", practice=2, passes=1)
    control = hm.simulate(problem, agreed(problem, plan, SLOTS), 20).control_joule
    assert control is not None
    assert (control[:, : problem.slots - SLOTS] > 0).any()
    assert not control[:, problem.slots - SLOTS :].any()
    whole = hm.simulate(problem, plan, 20).control_joule
    assert whole is not None
    assert np.array_equal(whole[:, : problem.slots - SLOTS], control[:, : problem.slots - SLOTS])
