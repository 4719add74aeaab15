"""The SkipTrain-style cycle: its blocks, its probabilities and its limits."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.planners.skiptrain import Options, cycle, first_joule
from heliomesh.problem.policy import Observation

RICH = {"harvest.joule": [3.0], "harvest.prob": [1.0], "energy.initial": 3.0}
DRY = {"harvest.joule": [0.0], "harvest.prob": [1.0]}


def test_slots_without_train_only_send_or_idle(tiny):
    problem = tiny({"slots": 9})
    assert cycle(problem, Options(train_rounds=2, sync_rounds=3)).tolist() == [2, 2, 0, 0, 0, 2, 2, 0, 0]


def test_slots_with_train_only_train_and_then_send(tiny):
    problem = tiny({"slots": 6, "energy.train_only": True})
    assert cycle(problem, Options(train_rounds=2, sync_rounds=1, power_watt=1.0)).tolist() == [1, 1, 2, 1, 1, 2]


def test_synchronisation_slots_are_idle(tiny):
    problem = tiny(RICH)
    trace = hm.simulate(problem, hm.plan(problem, "skiptrain", train_rounds=2, sync_rounds=1), episodes=4)
    np.testing.assert_array_equal(trace.scheduled.all((0, 2)), np.arange(12) % 3 < 2)
    assert not trace.scheduled[:, 2::3].any()


def test_train_only_slots_spend_no_power(tiny):
    problem = tiny({**RICH, "energy.train_only": True})
    trace = hm.simulate(problem, hm.plan(problem, "skiptrain", train_rounds=1, sync_rounds=1), episodes=2)
    assert trace.scheduled.all()
    np.testing.assert_array_equal(trace.power_watt[0, :, 0], np.tile([0.0, 2.0], 6))


def test_participation_matches_the_energy(tiny):
    """Two joules in the battery, half a joule per slot and twelve slots: 8 J for eight slots of 3 J."""
    problem = tiny({"harvest.joule": [0.5], "harvest.prob": [1.0], "energy.initial": 2.0})
    policy = hm.plan(problem, "skiptrain", train_rounds=2, sync_rounds=1).policy
    torch.testing.assert_close(policy.participation, torch.full((5,), 8 / 24, dtype=torch.float64))


def test_first_energy_is_the_mean_of_the_grid(tiny):
    torch.testing.assert_close(first_joule(tiny()), torch.full((5,), 1.5, dtype=torch.float64))


def test_law_is_what_is_drawn(tiny):
    problem = tiny()
    policy = hm.plan(problem, "skiptrain").policy
    rng, batch = torch.Generator().manual_seed(3), 40_000
    seen = Observation(
        channel_level=torch.zeros(batch, 5, dtype=torch.long),
        battery_joule=torch.tensor([0.0, 1.0, 2.0, 3.0, 2.5]).double().expand(batch, -1),
        weather=torch.zeros(batch, 5, dtype=torch.long),
        uniform=torch.rand(batch, 5, generator=rng, dtype=torch.float64),
    )
    drawn = torch.nn.functional.one_hot(policy.action(0, seen), 3).double().mean(0)
    torch.testing.assert_close(drawn, policy.action_prob(0, seen)[0], atol=0.01, rtol=0)


@pytest.mark.parametrize("train_only", [False, True])
def test_cost_is_the_exact_cost_of_its_law(tiny, train_only):
    problem = tiny({"network.devices": 3, "energy.train_only": train_only})
    plan = hm.plan(problem, "skiptrain", train_rounds=1, sync_rounds=1)
    cost = hm.simulate(problem, plan, episodes=4000, seed=5).cost
    assert abs(cost.mean() - hm.exact_cost(problem, plan)) <= 4 * cost.std(ddof=1) / len(cost) ** 0.5


def test_without_energy_nobody_acts(tiny):
    problem = tiny({**DRY, "energy.initial": 0.0})
    trace = hm.simulate(problem, hm.plan(problem, "skiptrain"), episodes=2)
    assert not trace.scheduled.any()
    np.testing.assert_allclose(trace.cost, 5.0)


def test_plenty_without_pauses_is_the_uncoordinated_plan(tiny):
    problem = tiny(RICH)
    ours, greedy = hm.plan(problem, "skiptrain", sync_rounds=0), hm.plan(problem, "uncoordinated")
    np.testing.assert_array_equal(
        hm.simulate(problem, ours, 4).power_watt, hm.simulate(problem, greedy, 4).power_watt
    )


def test_a_battery_too_small_for_a_power_sends_at_less(tiny):
    problem = tiny({**RICH, "energy.capacity_joule": 2.0, "energy.battery_levels": 3, "energy.initial": 2.0})
    trace = hm.simulate(problem, hm.plan(problem, "skiptrain", sync_rounds=0), episodes=1)
    assert set(trace.power_watt.flatten().tolist()) <= {0.0, 1.0}
    assert (trace.power_watt > 0).any()


def test_unknown_power_is_refused(tiny):
    with pytest.raises(hm.ScenarioError, match=r"skiptrain option.power_watt: expected one of 1, 2, actual value 3"):
        hm.plan(tiny(), "skiptrain", power_watt=3.0)
