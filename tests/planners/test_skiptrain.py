"""The SkipTrain-style cycle: its blocks, its probabilities and its limits."""

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model.policy import Observation
from heliomesh.planners.skiptrain import first_joule

RICH = {"harvest.joule": [3.0], "harvest.prob": [1.0], "energy.initial": 3.0}
DRY = {"harvest.joule": [0.0], "harvest.prob": [1.0]}
SEPARATE = {"energy.actions": "separate"}


def chosen(problem, policy, slot, battery_joule, uniform=0.0):
    """Actions of five devices with these batteries [J]."""
    level = torch.zeros(1, problem.num_devices, dtype=torch.long)
    battery = torch.tensor([battery_joule], dtype=torch.float64)
    return policy.action(slot, Observation(level, battery, level, torch.full_like(battery, uniform)))[0].tolist()


def favourites(problem, **options):
    """What device 0 does with a full battery in every slot."""
    policy = hm.plan(problem, "skiptrain", **options).policy
    return [chosen(problem, policy, slot, [3.0] * 5)[0] for slot in range(problem.slots)]


def test_slots_without_train_only_send_or_idle(tiny):
    problem = tiny({"slots": 9})
    assert favourites(problem, train_rounds=2, sync_rounds=3) == [2, 2, 0, 0, 0, 2, 2, 0, 0]


def test_slots_with_train_only_train_and_then_send(tiny):
    problem = tiny({"slots": 6, "energy.train_only": True})
    assert favourites(problem, train_rounds=2, sync_rounds=1, power_watt=1.0) == [1, 1, 2, 1, 1, 2]


def test_separate_actions_share_in_every_slot_and_train_in_some(tiny):
    problem = tiny({**RICH, **SEPARATE})
    trace = hm.simulate(problem, hm.plan(problem, "skiptrain", train_rounds=2, sync_rounds=1), episodes=4)
    assert (trace.power_watt == 2.0).all()
    assert (trace.scheduled == (np.arange(12) % 3 < 2)[None, :, None]).all()


def test_separate_fallbacks_by_hand(tiny):
    """Idle 0 J, send 1 and 2 J, train 1 J, train and send 2 and 3 J: sharing only, then less power, then idle."""
    problem = tiny({**RICH, **SEPARATE})
    policy = hm.plan(problem, "skiptrain", train_rounds=1, sync_rounds=1).policy
    battery = [0.0, 0.9, 1.0, 2.5, 3.0]
    assert chosen(problem, policy, 0, battery) == [0, 0, 1, 2, 5]
    assert chosen(problem, policy, 1, battery) == [0, 0, 1, 2, 2]


def test_separate_devices_that_are_not_drawn_share(tiny):
    problem = tiny(SEPARATE)
    policy = hm.plan(problem, "skiptrain", power_watt=1.0).policy
    assert chosen(problem, policy, 0, [0.0, 1.0, 2.0, 3.0, 3.0], uniform=1.0) == [0, 1, 1, 1, 1]


def test_separate_probability_counts_harvests_and_sharing(tiny):
    """2 J in the battery and twelve times 1.25 J are 17 J; sharing at 1 W takes 12 J, eight trainings 8 J."""
    problem = tiny({**SEPARATE, "harvest.joule": [1.25], "harvest.prob": [1.0], "energy.initial": 2.0})
    policy = hm.plan(problem, "skiptrain", train_rounds=2, sync_rounds=1).policy
    torch.testing.assert_close(policy.participation, torch.full((5,), 5 / 8, dtype=torch.float64))


def test_separate_power_is_the_largest_that_the_whole_cycle_pays_for(tiny):
    """Six rounds of training and twelve of sharing take 6 J and 12 or 24 J."""
    problem = tiny({**SEPARATE, "harvest.joule": [1.0], "harvest.prob": [1.0], "harvest.scale": [0.5, 1, 2, 2.5, 3]})
    policy = hm.plan(problem, "skiptrain", train_rounds=1, sync_rounds=1).policy
    shared = chosen(problem, policy, 1, [3.0] * 5)
    assert problem.actions.power_watt[shared].tolist() == [1.0, 1.0, 1.0, 2.0, 2.0]
    torch.testing.assert_close(policy.participation[:2], torch.tensor([0.0, 1.5 / 6], dtype=torch.float64))


def test_separate_devices_whose_energy_goes_into_sharing_are_noted(tiny):
    scarce = {"harvest.joule": [1.0], "harvest.prob": [1.0], "harvest.scale": [0.5, 0.6, 2, 2, 2]}
    assert hm.plan(tiny({**SEPARATE, **scarce}), "skiptrain").notes == (
        "2 of 5 devices never train: sharing in every slot takes all their energy",
    )
    assert not hm.plan(tiny({**SEPARATE, **RICH}), "skiptrain").notes
    assert not hm.plan(tiny(DRY), "skiptrain").notes


def test_separate_devices_go_on_sharing_when_energy_is_scarce():
    problem = hm.build(hm.Scenario.load("ring10").override({**SEPARATE, "slots": 80}))
    trace = hm.simulate(problem, hm.plan(problem, "skiptrain"), episodes=8)
    assert (trace.power_watt > 0).mean() > 0.98
    assert 0.3 < trace.scheduled.mean() < 0.5


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


@pytest.mark.parametrize("actions", [{}, {"energy.train_only": True}, SEPARATE])
def test_cost_is_the_exact_cost_of_its_law(tiny, actions):
    problem = tiny({"network.devices": 3, **actions})
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
