"""Packet errors from tables: interpolation by hand, files that are refused, and the waterfall written as a table."""

import itertools

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.physics.link import ErrorTable, read_table
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario

STEPS = "sinr_db,error\n-5,0.9\n0,0.5\n10,0.1\n"


@pytest.fixture
def written(tmp_path):
    """A function that writes a table and returns its path."""
    number = itertools.count()

    def write(text):
        path = tmp_path / f"table{next(number)}.csv"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def by_table(path, **changes):
    settings = {"link.error": "table", "link.table": path, "energy.battery_levels": 4}
    return Scenario.load("tiny").override(
        settings | {key.replace("__", "."): value for key, value in changes.items()}
    )


@pytest.mark.parametrize(
    ("sinr_db", "error"),
    [(-50.0, 1.0), (-5.1, 1.0), (-4.999, 0.9), (-2.5, 0.7), (0.0, 0.5), (5.0, 0.3), (10.0, 0.1), (90.0, 0.1)],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rates_are_linear_in_decibels_between_the_points(sinr_db, error, dtype, written):
    ratio = torch.tensor([[10 ** (sinr_db / 10)]], dtype=dtype)
    found = read_table(written(STEPS))(ratio)
    assert found.dtype == dtype
    assert float(found) == pytest.approx(error, abs=1e-4)


def test_headings_and_empty_lines_may_be_there_or_not(written):
    european = STEPS.replace(",", ";").replace(".", ",")
    texts = (STEPS, STEPS.partition("\n")[2], STEPS.replace("\n", "\n\n"), european)
    tables = [read_table(written(text)) for text in texts]
    assert all(torch.equal(table.error, tables[0].error) for table in tables)
    assert tables[0].sinr_db.tolist() == [-5.0, 0.0, 10.0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sinr_db,error\n0,0.5\n", "expected at least 2 points, actual number 1"),
        ("", "actual number 0"),
        ("0,0.5\n0,0.4\n", "expected rising SINRs and falling error rates, actual 0.5 at 0 dB before 0.4 at 0 dB"),
        ("0,0.5\n1,0.6\n", "before 0.6 at 1 dB"),
        ("0,1.5\n1,0.6\n", "an error rate from 0 to 1 in line 1, actual 0 and 1.5"),
        ("0,nan\n1,0.6\n", "in line 1, actual 0 and nan"),
        ("-400,1\n1,0.6\n", "expected at most 300 dB either way"),
        ("0,0.5\n1,0.4,3\n", "expected 2 values in line 2, as in the first, actual number of values 3"),
        ("-5,0,0,9\n5,0,0,1\n", "a SINR [dB] and an error rate in line 1, actual '-5,0,0,9'"),
        ("0,0.5\nlow,0.4\n", "in line 2, actual 'low,0.4'"),
    ],
)
def test_a_wrong_table_is_told_in_a_sentence(text, words, written):
    with pytest.raises(ScenarioError, match=r"^link\.table: expected .+, actual ") as caught:
        hm.build(by_table(written(text)))
    assert words in str(caught.value)


def test_a_table_lies_beside_its_scenario_and_counts_by_content(tmp_path, monkeypatch):
    for folder, text in (("one", STEPS), ("two", STEPS), ("three", STEPS.replace("0.5", "0.6"))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "errors.csv").write_text(text, encoding="utf-8")
        (tmp_path / folder / "case.toml").write_text("[link]\nerror = 'table'\ntable = 'errors.csv'\n")
    monkeypatch.chdir(tmp_path)
    one, two, three = (Scenario.load(f"{folder}/case.toml") for folder in ("one", "two", "three"))
    assert one.content_hash == two.content_hash != three.content_hash
    keys = [hm.Job(scenario, "uncoordinated").key("plan") for scenario in (one, two, three)]
    assert keys[0] == keys[1] != keys[2]


WATERFALL = "\n".join(f"{db:.3f},{1 - np.exp(-(10 ** (-db / 10))):.12f}" for db in np.arange(-20, 60, 0.05))


@pytest.mark.parametrize("half_duplex", [False, True])
def test_the_waterfall_as_a_table_gives_its_plans(half_duplex, written):
    """Every planner that uses errors comes to nearly the same cost, in plans and in simulations."""
    table = hm.build(by_table(written(WATERFALL), network__devices=4, slots=4, link__half_duplex=half_duplex))
    plain = hm.build(table.scenario.override({"link.error": "waterfall", "link.table": None}))
    costs = [hm.plan(problem, "centralized").expected_cost for problem in (table, plain)]
    assert costs[0] == pytest.approx(costs[1], abs=2e-4)
    for planner, options in (
        ("prices", {"coordinate": False}),
        ("receiver", {}),
        ("decentralized", {}),
        ("myopic", {}),
    ):
        plans = [hm.plan(problem, planner, **options) for problem in (table, plain)]
        runs = [hm.simulate(table, plan, episodes=20, seed=1).cost.mean() for plan in plans]
        assert runs[0] == pytest.approx(runs[1], rel=0.05), planner


def test_bounds_hold_for_tables(written):
    problem = hm.build(by_table(written(STEPS), slots=5))
    optimum = hm.plan(problem, "centralized").expected_cost
    plan = hm.plan(problem, "prices", bound=True)
    assert 0 < plan.lower_bound <= optimum + 1e-9


def test_a_crowd_that_cannot_be_listed_is_refused(written):
    scenario = by_table(written(STEPS), network__topology="star", network__devices=40)
    with pytest.raises(hm.TooLargeError, match="joint actions heard by receivers"):
        hm.plan(hm.build(scenario), "prices", coordinate=False)


def test_the_simulator_draws_packets_by_the_table(written):
    """Two devices 10 dB above the noise: a tenth of the packets is lost."""
    scenario = by_table(
        written(STEPS),
        network__devices=2,
        slots=200,
        link__noise_watt=0.1,
        energy__powers_watt=[0.0, 1.0],
        channel__gains=[1.0],
        channel__kernel=[[1.0]],
        harvest__joule=[3.0],
        harvest__prob=[1.0],
    )
    trace = hm.simulate(hm.build(scenario), hm.plan(hm.build(scenario), "uncoordinated"), episodes=4)
    sent = trace.power_watt[..., trace.edge_sender] > 0
    assert np.allclose(trace.error_prob[sent], 0.1)
    assert trace.delivered[sent].mean() == pytest.approx(0.9, abs=0.03)


def test_shapes_and_strides_do_not_matter():
    table = ErrorTable(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    ratios = 1 + torch.rand(3, 4)
    assert torch.equal(table(ratios.T), table(ratios).T)
