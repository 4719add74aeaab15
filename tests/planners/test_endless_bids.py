"""Plans of `bids` without an end: what a cycle spends stays, deadlines come in every cycle, models learn more."""

from pathlib import Path
from typing import Any

import pytest

import heliomesh as hm
from heliomesh.jobs.training import train
from heliomesh.model.endless import Endless
from heliomesh.planners.bids import Bidders

DAY = {"harvest.source": "trace", "harvest.joule": [0.0] * 6 + [1.0, 3.0, 4.0, 4.0, 2.0, 1.0], "harvest.start": 0}
QUICK: dict[str, Any] = {"practice": 4, "endless": True}


def build(slots: int, **changes: Any) -> hm.Problem:
    fixed = {"energy.actions": "separate", "slots": slots, "learning.dataset": "digits", "learning.local_steps": 2}
    return hm.build(hm.Scenario.load("ring10").override({**fixed, **changes}))


@pytest.mark.parametrize("talk", ["messages", "silent"])
@pytest.mark.parametrize(("changes", "cycle"), [({}, 32), (DAY, 36)], ids=["steady", "days"])
def test_every_cycle_spends_the_same(changes: dict[str, Any], cycle: int, talk: str) -> None:
    problem = build(10 * cycle, **changes)
    plan = hm.plan(problem, "bids", talk=talk, **QUICK)
    assert isinstance(plan.policy, Endless)
    assert plan.policy.period == cycle
    trace = hm.simulate(problem, plan, 8)
    spent = trace.spent_joule.sum(-1).mean(0).reshape(10, cycle).sum(1)[1:]  # batteries start half full
    assert spent.std() < 0.05 * spent.mean()
    assert abs(spent[:3].mean() / spent[-3:].mean() - 1) < 0.05  # nothing is saved up, and nothing runs down


@pytest.mark.parametrize(("slots", "deadlines", "cycle"), [(114, [38], 38), (40, [30, 40], 40)], ids=["one", "two"])
def test_devices_agree_before_every_deadline_of_a_cycle(slots: int, deadlines: list[int], cycle: int) -> None:
    """The fewer of them follow within the horizon, the more."""
    problem = build(slots, **{"cost.deadline": deadlines, "learning.partition": "shards"})
    plan = hm.plan(problem, "bids", **QUICK)
    assert plan.policy.period == cycle
    trained = hm.simulate(problem, plan, 8).scheduled.mean((0, 2)).reshape(-1, cycle)
    last = [slot - back for slot in deadlines for back in (1, 2)]
    assert (trained[:, last].mean(1) < 0.8 * trained[:, 5:20].mean(1)).all()


def test_models_learn_more_than_where_devices_take_turns(tmp_path: Path) -> None:
    problem = build(120, **{"learning.partition": "dirichlet", "learning.alpha": 0.3, "learning.local_steps": 5})
    for seed in range(2):
        hm.plan(problem, "bids", partition_seed=seed, **QUICK).save(tmp_path / "plan")
        plans = hm.Plan.load(tmp_path / "plan"), hm.plan(problem, "turns")
        assert isinstance(plans[0].policy, Endless)
        assert isinstance(plans[0].policy.cycle, Bidders)
        traces = [hm.simulate(problem, plan, [seed]) for plan in plans]
        ours, theirs = (train(problem.scenario, trace, seed=seed).accuracy[-1].mean() for trace in traces)
        assert ours > theirs + 0.05


def test_a_cycle_goes_on_as_a_plan_for_long_does() -> None:
    """Far from the end, values of energy differ by a constant only: as many devices train and send."""
    problem = build(320)
    ends, goes_on = (
        hm.simulate(problem, hm.plan(problem, "bids", practice=4, endless=one), 8) for one in (False, True)
    )
    for name in ("scheduled", "power_watt"):
        mine, theirs = ((getattr(trace, name)[:, 60:240] > 0).mean() for trace in (goes_on, ends))
        assert mine == pytest.approx(theirs, rel=0.05)
