"""Times of a slot's work: airtime from bits, training from operations, and both within the slot."""

import pytest

import heliomesh as hm
from heliomesh.jobs.job import Job
from heliomesh.model.workload import compute_second, transmit_second
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.tasks.dataset import DatasetError
from heliomesh.tasks.datasets import digits

BITS = {"energy.transmit_second": "bits", "energy.bit_per_second": 1e6}
FLOP = {
    "energy.compute_joule": None,
    "energy.compute_watt": 2.0,
    "energy.compute_second": "flop",
    "energy.flop_per_second": 1e9,
    "energy.transmit_second": 0.5,
}
STEPS = {"learning.local_steps": 3, "learning.batch": 10, "learning.sample_flop": 1e6}


def tiny(*changes):
    scenario = Scenario.load("tiny")
    for change in changes:
        scenario = scenario.override(change)
    return scenario


def test_airtime_is_bits_over_rate():
    assert transmit_second(tiny(BITS)) == pytest.approx(4810 * 32 / 1e6)
    assert transmit_second(tiny(BITS, {"energy.packet_overhead": 0.25})) == pytest.approx(1.25 * 4810 * 32 / 1e6)
    assert transmit_second(tiny(BITS, {"learning.update_bits": 5000})) == pytest.approx(5e-3)
    assert transmit_second(tiny(BITS, {"learning.dataset": "synthetic"})) == pytest.approx(4810 * 32 / 1e6)


def test_fewer_bits_cost_fewer_joules():
    spent = [
        hm.build(tiny(BITS, {"learning.update_bits": bits, "energy.compute_joule": 0.0})).actions.spent_joule[0, 2]
        for bits in (100_000, 25_000)
    ]
    assert float(spent[0]) == pytest.approx(4 * float(spent[1]))


def test_training_takes_operations_over_rate():
    assert compute_second(tiny(FLOP, STEPS)) == pytest.approx([0.03] * 5)
    assert hm.build(tiny(FLOP, STEPS)).compute_joule.tolist() == pytest.approx([0.06] * 5)
    rates = {"energy.flop_per_second": [1e9, 2e9, 3e9, 4e9, 5e9]}
    assert compute_second(tiny(FLOP, STEPS, rates)) == pytest.approx([0.03 / k for k in range(1, 6)])


def test_power_times_time_is_an_energy():
    product = {"energy.compute_watt": [1, 2, 3, 4, 5], "energy.compute_second": 0.5, "energy.transmit_second": 0.5}
    problem = hm.build(tiny({"energy.compute_joule": None} | product))
    assert problem.compute_joule.tolist() == [0.5, 1.0, 1.5, 2.0, 2.5]


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        (BITS | {"energy.bit_per_second": 1e4}, "energy.bit_per_second", "153920 bits of an update take at most"),
        (BITS | {"energy.bit_per_second": 1e4}, "energy.bit_per_second", "actual value 10000 takes 15.39 s"),
        (FLOP | STEPS | {"learning.sample_flop": 1e8}, "energy.slot_second", "3 s + 0.5 s, actual value 1"),
    ],
)
def test_work_that_does_not_fit_into_a_slot_is_refused(changes, field, words):
    with pytest.raises(ScenarioError) as caught:
        hm.build(tiny(changes))
    assert caught.value.field == field
    assert words in str(caught.value)


def test_a_duty_cycle_limits_the_airtime():
    slot = {"energy.slot_second": 100.0, "energy.transmit_second": 1.0}
    assert transmit_second(tiny(slot, {"energy.duty_cycle": 0.01})) == 1.0
    with pytest.raises(ScenarioError, match=r"energy.duty_cycle: expected .* 1 s of 100 s, actual value 0.009"):
        hm.build(tiny(slot, {"energy.duty_cycle": 0.009}))


def test_field40_fits_a_tenth_but_not_a_hundredth_on_air():
    field40 = Scenario.load("field40")
    assert transmit_second(field40.override({"energy.duty_cycle": 0.1})) == transmit_second(field40)
    with pytest.raises(ScenarioError, match=r"energy.duty_cycle: expected .* 7\.\d+ s of 600 s"):
        transmit_second(field40.override({"energy.duty_cycle": 0.01}))


def test_data_are_not_loaded_to_count_bits(monkeypatch):
    monkeypatch.delattr(digits, "load")
    assert hm.build(tiny(BITS)).consumption.sending.second == pytest.approx(0.15392)


def test_a_model_is_looked_at_only_if_bits_are_asked_for():
    """Data that nobody has do not matter to a fixed airtime."""
    missing = {"learning.dataset": "own"}
    hm.build(tiny(missing))
    with pytest.raises(DatasetError, match=r"learning\.path: expected"):
        hm.build(tiny(missing, BITS))
    hm.build(tiny(missing, BITS, {"learning.update_bits": 1000}))


def test_plans_depend_on_the_model_where_it_decides_the_airtime():
    def key(*changes):
        return Job(tiny({"learning.dataset": "fashion_mnist"}, *changes), "uncoordinated").key("plan")

    roomy, other = {"energy.slot_second": 100.0}, {"learning.model": "mlp"}
    assert key(roomy) == key(roomy, other)
    assert key(roomy, BITS) != key(roomy, BITS, other)
    assert key(roomy, BITS) == key(roomy, BITS, {"learning.learning_rate": 0.5})
    assert key(roomy, BITS) == key(roomy, BITS, {"learning.update_bits": 32 * 1_663_370})
    assert key(roomy, FLOP) != key(roomy, FLOP, other)
