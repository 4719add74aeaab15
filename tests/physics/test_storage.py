"""Storage: published numbers with their sources, the law by hand, and the grid's kernel against plain loops."""

import math
import shutil
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import heliomesh as hm
from heliomesh.model.problem import interpolated, with_levels
from heliomesh.physics.battery import Battery
from heliomesh.physics.storage import Converter, Losses
from heliomesh.scenario import parts
from tests.physics.test_battery import law_of, laws, tensor
from tests.plain_storage import FOLDER, PlainStorage

NAMES = sorted(file.stem for file in FOLDER.glob("*.toml"))
FIELDS = {"charge_efficiency", "leak_per_day", "converter_efficiency"}
TABLE = [[0.01, 0.5], [0.5, 0.8], [1.5, 0.6]]


def tiny(**changes):
    return hm.build(hm.Scenario.load("tiny").override(changes))


def lossy(capacity, levels, retention=1.0, efficiency=1.0, drain=0.0, rounding="mean"):
    losses = Losses(tensor([retention]), tensor([efficiency]), tensor([drain]))
    return Battery(tensor([capacity]), losses, levels, rounding)


# published numbers


def test_the_scenario_knows_the_published_storages():
    assert parts.names("storage") == NAMES


def test_a_new_storage_is_one_file(tmp_path, monkeypatch):
    folder = shutil.copytree(FOLDER, tmp_path / "storages")
    with pytest.raises(hm.ScenarioError, match=r"energy\.storage: expected one of ideal, "):
        tiny(**{"energy.storage": "lossy"})
    text = (FOLDER / "li-ion.toml").read_text(encoding="utf-8").replace("0.916", "0.5")
    (folder / "lossy.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(parts, "_folder", lambda kind: folder)
    assert tiny(**{"energy.storage": "lossy"}).battery.losses.charge_efficiency.unique().tolist() == [0.5]


@pytest.mark.parametrize("name", NAMES)
def test_every_published_number_has_a_source_and_is_possible(name):
    found = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    assert set(found) == {*FIELDS, "source", "title"}
    assert set(found["source"]) == FIELDS
    assert all(len(text) > 40 for text in found["source"].values())
    own = {f"energy.{field}": found[field] for field in FIELDS}
    written_out = tiny(**own)  # the scenario's own checks accept them
    published = tiny(**{"energy.storage": name})
    for field in ("retention", "charge_efficiency", "drain_joule"):
        assert torch.equal(getattr(written_out.battery.losses, field), getattr(published.battery.losses, field))
    assert torch.equal(written_out.actions.spent_joule, published.actions.spent_joule)
    loses = name != "ideal"
    assert bool(((published.battery.losses.charge_efficiency < 1) == loses).all())
    assert bool(((published.battery.losses.retention < 1) == loses).all())
    assert bool(((published.actions.spent_joule[:, 1:] > tiny().actions.spent_joule[:, 1:]) == loses).all())


def test_a_scenario_replaces_published_numbers():
    changes = {
        "energy.storage": "li-ion",
        "energy.charge_efficiency": 0.5,
        "energy.leak_per_day": [0.0, 0.1, 0, 0, 0],
    }
    losses = tiny(**changes, **{"energy.slot_second": 43200.0}).battery.losses
    assert losses.charge_efficiency.tolist() == [0.5] * 5
    np.testing.assert_allclose(losses.retention, [1, math.sqrt(0.9), 1, 1, 1], rtol=1e-14)


def test_an_ideal_battery_is_the_default_to_the_bit():
    plain, zero = (
        tiny(),
        tiny(**{"energy.storage": "ideal", "energy.charge_efficiency": 1.0, "energy.leak_per_day": 0.0}),
    )
    assert not plain.battery.drains
    assert torch.equal(plain.battery.losses.retention, torch.ones(5, dtype=torch.float64))
    assert torch.equal(plain.actions.needed_joule, plain.actions.spent_joule)
    assert torch.equal(plain.energy_kernels(0), zero.energy_kernels(0))
    assert not set(hm.Scenario.load("tiny").chosen()["energy"]) & {"storage", "sleep_watt", "receive_watt"}


# the converter


@given(st.floats(1e-6, 100))
def test_a_table_of_loads_is_linear_in_what_is_drawn(load):
    converter = tiny(**{"energy.converter_efficiency": TABLE}).consumption.converter
    plain = PlainStorage(hm.Scenario.load("tiny").override({"energy.converter_efficiency": TABLE}))
    ratio = float(converter.per_joule(tensor(load)))
    assert ratio == pytest.approx(plain.per_joule(load), rel=1e-12)
    assert float(converter.delivered_watt(tensor(load * ratio))) == pytest.approx(load, rel=1e-9)


def test_at_its_points_a_table_says_what_was_published():
    converter = tiny(**{"energy.converter_efficiency": TABLE}).consumption.converter
    for load, share in TABLE:
        assert float(converter.per_joule(tensor(load))) == pytest.approx(1 / share, rel=1e-14)


@pytest.mark.parametrize("wake", [0.0, 0.2])
def test_the_largest_power_draws_no_more_than_asked(wake):
    used = tiny(**{"energy.converter_efficiency": TABLE, "energy.wake_joule": wake}).consumption
    joule = torch.linspace(0.45, 9, 50, dtype=torch.float64).unsqueeze(1)
    power = used.most_watt(joule.expand(-1, 5))
    drawn = used.drawn_joule(power, torch.zeros_like(power, dtype=torch.bool))
    assert bool((drawn <= joule * (1 + 1e-12)).all())
    assert bool((drawn >= joule - 0.2).all()) if wake else torch.allclose(drawn, joule.expand(-1, 5))


def test_training_loads_the_converter_with_the_power_of_the_computer():
    """20 mW for a tenth of a second; the table's drawn power is linear from 1 mW / 0.5 to 100 mW / 0.8."""
    table = [[0.001, 0.5], [0.1, 0.8]]
    known = {"energy.compute_joule": None, "energy.compute_watt": 0.02, "energy.compute_second": 0.1}
    spread = {"energy.compute_joule": 0.002}
    scenario = hm.Scenario.load("tiny").override({"energy.converter_efficiency": table, "energy.slot_second": 4.0})
    drawn = [hm.build(scenario.override(one)).consumption.training_drawn_joule[0].item() for one in (known, spread)]
    drawn_watt = 0.002 + (0.125 - 0.002) * (0.02 - 0.001) / (0.1 - 0.001)
    assert drawn[0] == pytest.approx(0.1 * drawn_watt)
    assert drawn[1] == pytest.approx(0.002 / 0.5)  # 0.5 mW is below the table


def test_one_number_is_one_efficiency_at_every_load():
    problem = tiny(**{"energy.converter_efficiency": 0.8})
    torch.testing.assert_close(problem.actions.spent_joule, tiny().actions.spent_joule / 0.8)
    assert isinstance(problem.consumption.converter, Converter)


# what a slot drains


def test_standing_by_by_hand():
    energy = {
        "energy.slot_second": 4.0,
        "energy.receive_watt": 0.06,
        "energy.listen_second": [0.0, 1.0, 1.0, 4.0, 0.5],
        "energy.sleep_watt": 0.01,
        "energy.wake_joule": 0.02,
        "energy.converter_efficiency": 0.5,
    }
    problem = tiny(**energy)
    expected = [0.04, 0.06 + 0.02 + 0.03, 0.11, 0.24 + 0.02, 0.03 + 0.02 + 0.035]
    np.testing.assert_allclose(problem.consumption.standby_joule, expected, atol=1e-15)
    np.testing.assert_allclose(problem.battery.losses.drain_joule, np.array(expected) * 2, atol=1e-15)
    waking = (
        problem.actions.spent_joule[:, 1] - tiny(**{**energy, "energy.wake_joule": 0.0}).actions.spent_joule[:, 1]
    )
    np.testing.assert_allclose(waking, [0.04, 0, 0, 0, 0], atol=1e-15)  # who listens is awake when it sends
    needed = problem.actions.needed_joule - problem.actions.spent_joule
    np.testing.assert_allclose(needed[:, 0], 0)
    np.testing.assert_allclose(needed[:, 1], problem.battery.losses.drain_joule)


def test_idle_is_always_feasible_and_nothing_else_is_in_the_dark():
    problem = tiny(**{"energy.sleep_watt": 1.5, "energy.train_only": True, "energy.compute_joule": 0.0})
    assert problem.feasible[..., 0].all()
    level = torch.arange(problem.num_energy) % problem.battery.levels
    assert torch.equal(problem.dark[0], level * problem.battery.step_joule[0] < 1.5)
    assert not problem.feasible[problem.dark][:, 1:].any()
    assert problem.feasible[~problem.dark][:, 1].all()  # free training needs the drain only


# the law


@pytest.mark.parametrize(
    ("battery", "spent", "harvested", "after", "overflow"),
    [
        (3.0, 1.0, 0.0, 1.6, 0.0),  # leaks a fifth
        (3.0, 1.0, 2.0, 2.6, 0.0),  # half of the harvest is stored
        (3.0, 0.0, 8.0, 4.0, 4.8),  # 3.2 of 8 J fill it: 2.4 kept + 1.6 stored
        (0.5, 0.5, 1.0, 0.5, 0.0),
    ],
)
def test_a_step_by_hand(battery, spent, harvested, after, overflow):
    found = lossy(4.0, 5, retention=0.8, efficiency=0.5).step(tensor([battery]), tensor([spent]), tensor([harvested]))
    np.testing.assert_allclose([part.item() for part in found], [spent, after, overflow], atol=1e-12)


losses = st.fixed_dictionaries(
    {"retention": st.floats(0.01, 1), "efficiency": st.floats(0.05, 1), "drain": st.floats(0, 3)}
)


@settings(max_examples=150, deadline=None)
@given(losses, laws(3), st.lists(st.floats(0, 9), min_size=3, max_size=3), st.integers(2, 9), st.floats(0.5, 9))
def test_the_kernel_keeps_the_mean_of_the_law(numbers, prob, joule, levels, capacity):
    """Every row is a law whose mean is that of a step, clipped at the top, within the two nearest points of each."""
    battery, law = lossy(capacity, levels, **numbers), law_of([joule], [prob])
    kernel, step = battery.kernel(law, 0)[0, 0], float(battery.step_joule)
    torch.testing.assert_close(kernel.sum(-1), torch.ones(levels, dtype=torch.float64))
    for left in range(levels):
        row = np.zeros(levels)
        for energy, share in zip(joule, prob, strict=True):
            kept = numbers["retention"] * max(left * step - numbers["drain"], 0.0)
            exact = min((kept + numbers["efficiency"] * energy) / step, levels - 1.0)
            low = min(math.floor(exact + 1e-9), levels - 2)
            row[low] += share * (1 - (exact - low))
            row[low + 1] += share * (exact - low)
        np.testing.assert_allclose(kernel[left].numpy(), row, atol=1e-7)


def test_harvests_beyond_all_whole_numbers_fill_the_battery():
    kernel = lossy(1e-90, 4, retention=0.9, drain=1e-91).kernel(law_of([[0.0, 1e90]], [[0.5, 0.5]]), 0)[0, 0]
    np.testing.assert_allclose(kernel[0], [0.5, 0, 0, 0.5])


def test_simulated_slots_follow_the_kernel():
    """Energies in whole grid steps: drain, losses and darkness included, planners see the simulated process."""
    energy = {"energy.sleep_watt": 1.0, "energy.charge_efficiency": 0.5, "energy.converter_efficiency": 0.5}
    harvest = {"harvest.joule": [0.0, 4.0, 8.0]}
    problem = tiny(slots=40, **energy, **harvest, **{"energy.capacity_joule": 8.0, "energy.battery_levels": 9})
    assert problem.grid_is_exact
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=300)
    drawn = problem.consumption.drawn_joule(torch.from_numpy(trace.power_watt), torch.from_numpy(trace.scheduled))
    left = np.rint(trace.battery_joule[:, :-1] - drawn.numpy()).astype(int)
    after = np.rint(trace.battery_joule[:, 1:]).astype(int)
    for level in range(9):
        found = np.bincount(after[left == level], minlength=9)
        if found.sum() > 400:
            law = problem.energy_kernels(0)[0][level].numpy()
            spread = np.sqrt(law * (1 - law) / found.sum())
            assert (np.abs(found / found.sum() - law) <= 5 * spread + 1e-9).all(), level


def test_other_grids_keep_the_losses():
    problem = tiny(**{"energy.storage": "supercapacitor", "energy.sleep_watt": 0.1})
    for other in (interpolated(problem, 7), with_levels(problem, 6), problem.wide):
        assert other.battery.losses is problem.battery.losses
    assert not interpolated(problem, 7).grid_is_exact


def test_leakage_by_voltage_follows_its_differential_equation():
    """dx/dt = −ρ x^(1 + k), by small steps; a weak exponent is the linear law."""
    settings = {"energy.leak_per_day": 0.7, "energy.slot_second": 43200.0}
    slow, steep, linear = (
        tiny(**settings, **law).battery
        for law in (
            {"storage.source": "voltage", "storage.exponent": 1e-9},
            {"storage.source": "voltage", "storage.exponent": 2.0},
            {},
        )
    )
    full = linear.capacity_joule
    share, pieces = 1.0, 20_000
    for _ in range(pieces):
        share += math.log(0.3) * share**3 * 0.5 / pieces
    np.testing.assert_allclose(steep.losses.kept_share(full), share, rtol=1e-4)
    np.testing.assert_allclose(slow.losses.kept_share(full / 3), linear.losses.retention, rtol=1e-6)
    assert "storage" not in tiny(**settings).scenario.as_dict()


def test_a_storage_law_is_refused_by_name():
    with pytest.raises(
        hm.ScenarioError, match=r"storage\.source: expected one of linear, voltage, actual value 'volt"
    ):
        tiny(**{"storage.source": "volt"})


def test_scarcity_counts_losses_and_the_drain():
    plain, problem = tiny(), tiny(**{"energy.charge_efficiency": 0.5, "energy.sleep_watt": 3.0})
    np.testing.assert_allclose(problem.scarcity(), plain.scarcity() * 0.5 * 3 / 6)  # 3 J become 6 J
