"""The battery: continuous steps by hand, rounding rules of the grid, and its kernel against plain loops."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heliomesh as hm
from heliomesh.model import policy_checks as guard
from heliomesh.model.actions import action_energies
from heliomesh.physics.battery import Battery, aligned_battery, build_battery, initial_battery, initial_level_law
from heliomesh.physics.harvesting import HarvestLaw
from heliomesh.physics.storage import Losses

energies = st.floats(0, 20, allow_subnormal=False)
capacities = st.floats(0.1, 20)
level_counts = st.integers(1, 12)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def battery_of(*capacity, levels=4, rounding="up"):
    one = torch.ones(len(capacity), dtype=torch.float64)
    return Battery(tensor(list(capacity)), Losses(one, one, 0 * one), levels, rounding)


def law_of(joule, prob, scale=(1.0,)):
    """Harvest law of one phase from arrays (weather, atom)."""
    weathers = len(joule)
    kernel = torch.full((weathers, weathers), 1 / weathers, dtype=torch.float64)
    return HarvestLaw(tensor([joule]), tensor([prob]), tensor(scale), kernel, np.zeros(1, dtype=np.int64))


def naive_row(levels, step, left, joule, prob):
    """Law of the next level, atom by atom, each split between the two nearest grid points."""
    row = [0.0] * levels
    for energy, share in zip(joule, prob, strict=True):
        quanta = energy / step
        low = math.floor(quanta + 1e-9)
        upper = min(max(quanta - low, 0.0), 1.0)
        row[min(left + low, levels - 1)] += share * (1 - upper)
        row[min(left + low + 1, levels - 1)] += share * upper
    return row


def laws(atoms):
    weights = st.lists(st.integers(0, 9), min_size=atoms, max_size=atoms).filter(any)
    return weights.map(lambda drawn: [weight / sum(drawn) for weight in drawn])


# the continuous battery


@pytest.mark.parametrize(
    ("battery", "spent", "harvested", "after", "overflow"),
    [
        (2.0, 1.5, 0.25, 0.75, 0.0),
        (2.0, 2.0, 0.0, 0.0, 0.0),
        (2.5, 0.0, 1.0, 3.0, 0.5),  # full: the rest is lost
        (3.0, 3.0, 7.0, 3.0, 4.0),  # what is harvested in a slot is usable from the next
        (0.0, 0.0, 3.0, 3.0, 0.0),
    ],
)
def test_a_slot_by_hand(battery, spent, harvested, after, overflow):
    _, stored, lost = battery_of(3.0).step(tensor([battery]), tensor([spent]), tensor([harvested]))
    assert stored.item() == after
    assert lost.item() == overflow


@settings(max_examples=100, deadline=None)
@given(capacity=capacities, filled=st.floats(0, 1), used=st.floats(0, 1), harvested=energies)
def test_never_negative_never_above_capacity_and_balanced(capacity, filled, used, harvested):
    battery = capacity * filled
    spent = battery * used
    _, stored, lost = battery_of(capacity).step(tensor([battery]), tensor([spent]), tensor([harvested]))
    assert 0 <= stored.item() <= capacity
    assert lost.item() >= 0
    assert battery - spent + harvested == pytest.approx(stored.item() + lost.item(), abs=1e-12)


def test_rounding_dust_does_not_make_a_battery_negative():
    _, stored, _ = battery_of(1.0).step(tensor([0.3]), tensor([0.1 + 0.2]), tensor([0.0]))
    assert stored.item() == 0


def test_what_a_battery_does_not_hold_is_not_spent_and_messages_are_paid_first():
    now, drawn, none = tensor([1.0, 1.0, 1.0]), tensor([0.5, 2.0, 0.5]), tensor([0.0, 0.0, 0.0])
    spent, stored, _ = battery_of(2.0, 2.0, 2.0).step(now, drawn, none)
    assert (spent.tolist(), stored.tolist()) == ([0.5, 1.0, 0.5], [0.5, 0.0, 0.5])
    spent, stored, _ = battery_of(2.0, 2.0, 2.0).step(now, drawn, none, tensor([0.25, 0.25, 0.75]))
    assert (spent.tolist(), stored.tolist()) == ([0.75, 1.0, 1.0], [0.25, 0.0, 0.0])


def test_devices_do_not_mix():
    battery = battery_of(1.0, 2.0, 4.0)
    _, stored, lost = battery.step(tensor([[1.0, 1.0, 1.0]]), tensor([[0.0, 1.0, 0.5]]), tensor([[2.0, 3.0, 1.0]]))
    assert stored.tolist() == [[1.0, 2.0, 1.5]]
    assert lost.tolist() == [[2.0, 1.0, 0.0]]


# the planning grid


@pytest.mark.parametrize(("levels", "step"), [(4, 1.0), (2, 3.0), (7, 0.5), (1, 3.0)])
def test_grid_step(levels, step):
    assert battery_of(3.0, levels=levels).step_joule.item() == step


@pytest.mark.parametrize(
    ("joule", "level"),
    [(0.0, 0), (0.999, 0), (1.0, 1), (1.999, 1), (2.0, 2), (2.999, 2), (3.0, 3), (1 - 1e-12, 1), (1 + 1e-12, 1)],
)
def test_look_up_rounds_down(joule, level):
    assert battery_of(3.0).level(tensor([joule])).item() == level


@pytest.mark.parametrize(
    ("joule", "steps_up"), [(0.0, 0), (0.001, 1), (1.0, 1), (1.001, 2), (2.0, 2), (2.5, 3), (3.0, 3), (1 + 1e-12, 1)]
)
def test_spending_rounds_up(joule, steps_up):
    assert battery_of(3.0).steps_up(tensor([[joule]])).item() == steps_up


@pytest.mark.parametrize("joule", [3.001, 9.5, 1e300])
def test_what_no_battery_pays_is_beyond_the_grid(joule):
    assert battery_of(3.0).steps_up(tensor([[joule]])).item() > 3


def test_sums_of_tenths_are_no_trap():
    battery = battery_of(1.0, levels=11)
    assert battery.level(tensor([0.1 + 0.2])).item() == 3
    assert battery.level(tensor([0.7 - 0.4])).item() == 3  # 0.29999999999999993
    assert battery.steps_up(tensor([[0.1 + 0.2]])).item() == 3  # 0.30000000000000004


@settings(max_examples=100, deadline=None)
@given(capacity=capacities, levels=level_counts, filled=st.floats(0, 1), spent=energies)
def test_what_the_grid_allows_the_battery_pays(capacity, levels, filled, spent):
    battery = battery_of(capacity, levels=levels)
    stored = tensor([capacity * filled])
    level, steps_up = int(battery.level(stored)), int(battery.steps_up(tensor([[spent]])))
    step = float(battery.step_joule)
    assert 0 <= level < levels
    assert level * step <= stored.item() + 1e-8 * step
    assert steps_up >= levels or steps_up * step >= spent - 1e-8 * step
    if steps_up <= level:
        assert spent <= stored.item() + 3e-9 * capacity


def test_affordable_by_hand_and_with_dust():
    battery = battery_of(3.0, 3.0)
    spent = tensor([[0.0, 1.0, 2.5], [0.0, 0.3, 3.0]])
    paid = battery.affordable(tensor([[0.0, 0.1 + 0.2], [2.0, 3.0 - 1e-13]]), spent)
    assert paid.tolist() == [
        [[True, False, False], [True, True, False]],
        [[True, True, False], [True, True, True]],
    ]


# between the points


@pytest.mark.parametrize(
    ("joule", "low", "share"),
    [
        (0.0, 0, 0.0),
        (0.25, 0, 0.25),
        (1.0, 1, 0.0),
        (2.5, 2, 0.5),
        (3.0, 2, 1.0),
        (9.0, 2, 1.0),
        (1 - 1e-12, 1, 0.0),
    ],
)
def test_a_place_by_hand(joule, low, share):
    """A full battery is the topmost point by a share of one."""
    found, above = battery_of(3.0).place(tensor([joule]))
    assert found.item() == low
    assert above.item() == pytest.approx(share, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(capacity=capacities, levels=st.integers(2, 12), filled=st.floats(0, 1))
def test_a_place_interpolates_the_energy_itself(capacity, levels, filled):
    battery = battery_of(capacity, levels=levels)
    low, share = battery.place(tensor([capacity * filled]))
    assert 0 <= low.item() <= levels - 2
    assert 0 <= share.item() <= 1
    assert (low + share).item() * float(battery.step_joule) == pytest.approx(capacity * filled, abs=1e-8 * capacity)


def test_one_level_has_one_place():
    low, share = battery_of(3.0, levels=1).place(tensor([0.0, 1.0, 3.0]))
    assert low.tolist() == [0, 0, 0]
    assert share.tolist() == [0, 0, 0]


@settings(max_examples=100, deadline=None)
@given(capacity=capacities, levels=st.integers(2, 12), spent=energies)
def test_change_is_what_rounding_up_takes_too_much(capacity, levels, spent):
    paying, rounding = battery_of(capacity, levels=levels, rounding="mean"), battery_of(capacity, levels=levels)
    joule, step = tensor([[spent]]), float(paying.step_joule)
    overshoot = float(paying.overshoot(joule))
    assert 0 <= overshoot <= 1  # 1: of spending that is nothing beside a step
    assert float(rounding.overshoot(joule)) == 0
    if spent <= capacity:
        assert (int(paying.steps_up(joule)) - overshoot) * step == pytest.approx(spent, abs=1e-8 * step)
    else:
        assert overshoot == 0


def test_overshoot_by_hand():
    spent = tensor([[0.0, 0.25, 1.0, 2.9, 3.0, 3.5]])
    np.testing.assert_allclose(
        battery_of(3.0, rounding="mean").overshoot(spent), [[0, 0.75, 0, 0.1, 0, 0]], atol=1e-12
    )


# the grid of planners that round


def excess(battery, spent):
    """What affordable spending is rounded up by at most, over the dearest action; (device,)."""
    rounded = battery.steps_up(spent) * battery.step_joule.unsqueeze(1)
    paid = spent <= battery.capacity_joule.unsqueeze(1)
    return ((rounded - spent) / spent.amax(1, keepdim=True)).masked_fill(~paid, 0).amax(1)


@settings(max_examples=100, deadline=None)
@given(capacity=st.floats(1, 20), first=st.floats(0.1, 3), more=st.floats(0.1, 5), most=st.integers(2, 12))
def test_an_aligned_grid_rounds_no_more_than_the_plain_one(capacity, first, more, most):
    spent = tensor([[0.0, first, first + more]])
    battery = aligned_battery(battery_of(capacity), spent, most)
    assert 2 <= battery.levels <= most
    assert battery.rounding == "up"
    plain = battery_of(capacity, levels=battery.levels)
    finest = battery_of(capacity, levels=most)
    assert float(excess(battery, spent)) <= float(excess(plain, spent)) + 1e-9
    assert float(excess(battery, spent)) <= float(excess(finest, spent)) + 0.02 + 1e-9  # coarser where nearly as good
    above = capacity - (battery.levels - 1) * float(battery.step_joule)
    assert -1e-9 * capacity <= above < float(battery.step_joule)


@settings(max_examples=200, deadline=None)
@given(
    capacity=capacities,
    shares=st.lists(st.floats(1e-6, 1.2), min_size=1, max_size=4),
    drain=st.sampled_from([0.0, 0.1]),
    fewest=st.integers(2, 9),
)
def test_what_a_full_battery_pays_for_the_topmost_level_pays_for(capacity, shares, drain, fewest):
    one = torch.ones(1, dtype=torch.float64)
    lossy = replace(battery_of(capacity), losses=Losses(one, one, drain * capacity * one))
    needed = tensor([shares]) * capacity
    spent = (needed - drain * capacity).clamp_min(0)
    battery = aligned_battery(lossy, torch.nn.functional.pad(spent, (1, 0)), 9, fewest)
    needed = spent + drain * capacity * (spent > 0)
    assert torch.equal(battery.steps_up(needed) < battery.levels, needed <= battery.capacity_joule.unsqueeze(1))


@pytest.mark.parametrize(
    ("capacity", "spent", "levels", "step"),
    [(3.0, [2.0, 3.0], 4, 1.0), (2.0, [1.5], 2, 1.5), (7.0, [3.0, 4.0], 8, 1.0), (4.0, [1.5, 3.0], 3, 1.5)],
)
def test_a_grid_that_divides_all_energies_comes_before_a_coarser_one(capacity, spent, levels, step):
    battery = aligned_battery(battery_of(capacity), tensor([[0.0, *spent]]), 9)
    assert (battery.levels, float(battery.step_joule)) == (levels, pytest.approx(step, rel=1e-12))


def test_an_aligned_grid_of_one_level():
    assert aligned_battery(battery_of(3.0), tensor([[0.0, 1.0]]), 1).levels == 1


@pytest.mark.parametrize(("name", "most"), [("ring10", 0.05), ("paper", 0.12), ("grid25", 0.12)])
def test_shipped_scenarios_lose_little_to_rounding(name, most):
    problem = hm.build(hm.Scenario.load(name))
    assert problem.battery.levels <= 9
    assert problem.rounding_excess() <= most


# rounding is forgiven as a share of the energies compared


def test_nothing_is_free_in_a_large_battery():
    battery, spent = battery_of(2e10, levels=9), tensor([[0.0, 2.0]])
    assert battery.steps_up(spent).tolist() == [[0, 1]]
    assert not battery.aligned(spent)
    assert battery.affordable(tensor([1.9]), spent).tolist() == [[True, False]]
    assert battery.affordable(tensor([2.0 * (1 - 1e-10)]), spent).tolist() == [[True, True]]
    with pytest.raises(hm.ScenarioError, match=r"at most the 1\.9 J"):
        guard.check_spending("policy", tensor([2.0]), tensor([1.9]))
    one = torch.ones(1, dtype=torch.float64)
    assert bool(replace(battery, losses=Losses(one, one, 2 * one)).dark(tensor([1.9])))


@settings(max_examples=200, deadline=None)
@given(capacity=st.floats(1e-6, 1e12), share=st.floats(1e-12, 1), levels=st.integers(2, 300), off=st.floats(-3, 3))
def test_a_level_that_pays_is_a_battery_that_pays(capacity, share, levels, off):
    battery, spent = battery_of(capacity, levels=levels), tensor([[capacity * share]])
    steps_up = battery.steps_up(spent)
    stored = tensor([float(steps_up) * float(battery.step_joule) * (1 + off * 1e-9)])
    if int(battery.level(stored)) >= int(steps_up):
        assert bool(battery.affordable(stored, spent))
        guard.check_spending("policy", spent[0], stored)


# the kernel


@settings(max_examples=80, deadline=None)
@given(data=st.data(), capacity=capacities, levels=level_counts, atoms=st.integers(1, 5), scale=st.floats(0, 3))
def test_kernel_equals_a_plain_loop(data, capacity, levels, atoms, scale):
    joule = [data.draw(st.lists(energies, min_size=atoms, max_size=atoms)) for _ in range(2)]
    prob = [data.draw(laws(atoms)) for _ in range(2)]
    battery = battery_of(capacity, 2 * capacity, levels=levels)
    kernel = battery.kernel(law_of(joule, prob, scale=(scale, 1.0)), phase=0)
    assert kernel.shape == (2, 2, levels, levels)
    assert (kernel >= 0).all()
    np.testing.assert_allclose(kernel.sum(-1), 1, atol=1e-12)
    for device, factor in enumerate((scale, 1.0)):
        step = float(battery.step_joule[device])
        for weather in range(2):
            scaled = [energy * factor for energy in joule[weather]]
            for left in range(levels):
                expected = naive_row(levels, step, left, scaled, prob[weather])
                np.testing.assert_allclose(kernel[device, weather, left], expected, atol=1e-8)


@settings(max_examples=60, deadline=None)
@given(joule=st.lists(st.floats(0, 2), min_size=3, max_size=3), prob=laws(3), capacity=st.floats(6, 20))
def test_split_keeps_the_mean_where_nothing_overflows(joule, prob, capacity):
    battery = battery_of(capacity, levels=9)
    kernel, step = battery.kernel(law_of([joule], [prob]), phase=0)[0, 0], capacity / 8
    mean = sum(energy * share for energy, share in zip(joule, prob, strict=True))
    grid = torch.arange(9, dtype=torch.float64) * step
    for left in range(9):
        gained = float(kernel[left] @ grid) - left * step
        if left * step + math.ceil(2 / step) * step <= capacity:
            assert gained == pytest.approx(mean, abs=1e-7)
        else:
            assert gained <= mean + 1e-7


def test_kernel_by_hand():
    kernel = battery_of(3.0).kernel(law_of([[0.0, 1.5]], [[0.4, 0.6]]), phase=0)[0, 0]
    expected = [[0.4, 0.3, 0.3, 0], [0, 0.4, 0.3, 0.3], [0, 0, 0.4, 0.6], [0, 0, 0, 1]]
    np.testing.assert_allclose(kernel, expected, atol=1e-15)


def test_no_harvest_no_change():
    kernel = battery_of(3.0, levels=6).kernel(law_of([[0.0]], [[1.0]]), phase=0)
    np.testing.assert_array_equal(kernel[0, 0], np.eye(6))


@pytest.mark.parametrize("joule", [3.0, 3.7, 1e6])
def test_a_flood_fills_the_battery(joule):
    kernel = battery_of(3.0).kernel(law_of([[joule]], [[1.0]]), phase=0)[0, 0]
    np.testing.assert_array_equal(kernel, [[0, 0, 0, 1]] * 4)


def test_one_level_stays():
    battery = battery_of(3.0, levels=1)
    np.testing.assert_array_equal(battery.kernel(law_of([[0.0, 2.0]], [[0.5, 0.5]]), phase=0), [[[[1]]]])
    assert battery.level(tensor([3.0])).item() == 0
    assert battery.steps_up(tensor([[0.0, 0.1]])).tolist() == [[0, 1]]


def test_grid_aligned_harvest_is_not_split_by_rounding():
    """0.3 J on a grid of 0.1 J is three steps although 0.3 / 0.1 < 3 in binary."""
    kernel = battery_of(1.0, levels=11).kernel(law_of([[0.3]], [[1.0]]), phase=0)[0, 0]
    np.testing.assert_array_equal(kernel.argmax(-1), [3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10])
    assert kernel.max(-1).values.min() > 1 - 1e-9


# the first battery


def first(initial, uniform, **changes):
    scenario = hm.Scenario.load("tiny").override({"energy.initial": initial, **changes})
    battery = build_battery(scenario, action_energies(scenario)[2], hm.build(scenario).battery.losses)
    return scenario, battery, initial_battery(scenario, battery, tensor(uniform))


def test_first_battery_by_hand():
    uniform = [[0.0, 0.2, 0.3, 0.5, 1 - 2**-53]]
    assert first("uniform", uniform)[2].tolist() == [[3 * u for u in uniform[0]]]
    assert first("uniform-grid", uniform)[2].tolist() == [[0, 0, 1, 2, 3]]
    assert first(1.25, uniform)[2].tolist() == [[1.25] * 5]
    assert first([0.0, 1.0, 2.0, 3.0, 0.5], uniform)[2].tolist() == [[0, 1, 2, 3, 0.5]]


@pytest.mark.parametrize("initial", ["uniform", "uniform-grid", 0.0, 2.0, 2.3])
@pytest.mark.parametrize("levels", [1, 2, 7])
@pytest.mark.parametrize("rounding", ["up", "mean"])
def test_first_level_law_is_a_distribution(initial, levels, rounding):
    scenario, battery, _ = first(initial, [0.0] * 5, **{"energy.battery_levels": levels})
    law = initial_level_law(scenario, replace(battery, rounding=rounding))
    assert law.shape == (5, levels)
    assert (law >= 0).all()
    np.testing.assert_allclose(law.sum(-1), 1, atol=1e-12)


@pytest.mark.parametrize("initial", ["uniform", "uniform-grid", 0.0, 1.9])
@pytest.mark.parametrize("levels", [2, 5, 8])
def test_the_first_law_keeps_the_mean_or_rounds_down(initial, levels):
    """`tiny` starts on four points of 3 J, whatever the grid of a plan is."""
    scenario, battery, _ = first(initial, [0.0] * 5)
    uniform = tensor(np.linspace(0.0005, 0.9995, 1000))[:, None].expand(-1, 5)
    mean = float(initial_battery(scenario, battery, uniform).mean())
    joule = torch.arange(levels, dtype=torch.float64) * 3 / (levels - 1)
    kept = initial_level_law(scenario, battery_of(*[3.0] * 5, levels=levels, rounding="mean"))
    down = initial_level_law(scenario, battery_of(*[3.0] * 5, levels=levels))
    assert float(kept[0] @ joule) == pytest.approx(mean, abs=1e-9)
    assert mean - 3 / (levels - 1) <= float(down[0] @ joule) <= mean + 1e-9


def test_a_uniform_start_may_lie_above_the_topmost_level_of_an_aligned_grid():
    scenario = hm.Scenario.load("ring10").override({"energy.capacity_joule": 3.3})
    battery = build_battery(scenario, action_energies(scenario)[2], hm.build(scenario).battery.losses)
    uniform = tensor(np.linspace(0.00005, 0.99995, 10_000))[:, None].expand(-1, 10)
    level = battery.level(initial_battery(scenario, battery, uniform))[:, 0]
    counted = np.bincount(level, minlength=battery.levels) / 10_000
    assert counted[-1] > 0
    np.testing.assert_allclose(initial_level_law(scenario, battery)[0], counted, atol=2e-4)


def test_batteries_start_on_nine_points_where_a_scenario_names_no_levels():
    scenario = hm.Scenario.load("ring10").override({"energy.initial": "uniform-grid"})
    battery = build_battery(scenario, action_energies(scenario)[2], hm.build(scenario).battery.losses)
    uniform = tensor(np.arange(9) / 9 + 0.01)[:, None].expand(-1, 10)
    np.testing.assert_allclose(initial_battery(scenario, battery, uniform)[:, 0], np.arange(9) / 2)


def test_capacities_by_device():
    capacity = [1.0, 2.0, 3.0, 4.0, 5.0]
    scenario, battery, joule = first("uniform", [[0.5] * 5], **{"energy.capacity_joule": capacity})
    assert battery.capacity_joule.tolist() == capacity
    assert joule.tolist() == [[0.5, 1, 1.5, 2, 2.5]]
    assert scenario.energy.battery_levels == battery.levels
