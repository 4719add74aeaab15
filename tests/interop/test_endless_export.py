"""Exported plans without an end go on as the plans do, in Python and in C, and cost what these cost."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.interop.c_header import write_headers
from heliomesh.interop.export_tables import Tabulated, read_tables, tabulate, write_tables
from tests.interop.c_network import actions_in_c, actions_in_python, needs_gcc, random_states
from tests.interop.conftest import planned_once

ALONE = ("prices", {"coordinate": False, "interpolate": False})
ONE_HOP = ("decentralized", {"hops": 1, "rounds": 2})
SLOTS = 1000


def planned(scenario, planner, options, changes=None):
    return planned_once(scenario, json.dumps(changes or {}), planner, json.dumps({"endless": True, **options}))


@pytest.mark.parametrize(
    ("planner", "options"),
    [
        ALONE,
        pytest.param("decentralized", {"hops": 1}, marks=pytest.mark.slow),
        pytest.param("decentralized", {}, marks=pytest.mark.slow),
    ],
)
def test_a_thousand_slots_cost_what_they_cost_in_simulation(planner, options):
    problem, plan = planned("ring10", planner, options, {"slots": SLOTS})
    episodes = 8
    own, out = (hm.simulate_costs(problem, one, episodes) for one in (plan, Tabulated(problem, tabulate(plan))))
    assert abs(out.mean() / own.mean() - 1) < 0.005
    if options.get("hops") != 1:  # one hop does not beat devices that act alone, with an end or without
        greedy = hm.simulate_costs(problem, hm.plan(problem, "uncoordinated"), episodes)
        assert out.mean() < 0.95 * greedy.mean()


@pytest.mark.parametrize(("planner", "options"), [ALONE, ONE_HOP], ids=["alone", "one hop"])
def test_tables_and_files_go_around(planner, options, tmp_path):
    _, plan = planned("tiny", planner, options)
    tables = tabulate(plan)
    assert tables.period == 12
    assert {len(device.table_of_slot) for device in tables.devices} <= {1, 12}
    assert read_tables(write_tables(tables, tmp_path)[0]) == tables
    for slot in (0, 11, 12, 250):
        seen, _ = random_states(plan.policy.problem, 500)
        expected = plan.policy.action(slot, seen)
        np.testing.assert_array_equal(Tabulated(plan.policy.problem, tables).action(slot, seen), expected)


def test_a_file_without_a_period_keeps_its_last_table(tmp_path):
    problem = hm.build(hm.Scenario.load("tiny"))
    tables = tabulate(hm.plan(problem, "prices", coordinate=False, interpolate=False))
    data = json.loads(tables.model_dump_json())
    assert data.pop("period") is None  # as files were before
    (tmp_path / "plan.json").write_text(json.dumps(data), encoding="utf-8")
    policy = Tabulated(problem, read_tables(tmp_path / "plan.json"))
    seen, _ = random_states(problem, 500)
    np.testing.assert_array_equal(policy.action(99, seen), policy.action(problem.slots - 1, seen))


LONGER = {"slots": 50}  # than the cycles of these plans


@needs_gcc
@pytest.mark.parametrize(("planner", "options"), [ALONE, ONE_HOP], ids=["alone", "one hop"])
def test_tables_in_c_go_around(planner, options, tmp_path):
    problem, plan = planned("tiny", planner, options, LONGER)
    write_headers(tabulate(plan), plan.policy.problem, tmp_path)
    found = actions_in_c(tmp_path, problem, None, 2000)
    np.testing.assert_array_equal(found, actions_in_python(problem, plan.policy, 2000))


ALONE_WORDS = ["-o", "coordinate=false"]
BIDDING = ["--set", "energy.actions=separate", "-o", "practice=2"]
LAST_SLOT = "Beyond slot 11 it keeps that slot's table, in which energy has no future."


@pytest.mark.parametrize(
    ("planner", "kind", "more", "sentence"),
    [
        ("uncoordinated", "c", [], "It has no end: every slot is alike."),
        ("prices", "c", ALONE_WORDS, "It has no end: it repeats after 12 slots."),
        ("prices", "c", [*ALONE_WORDS, "--finite"], LAST_SLOT),
        ("bids", "c", [*BIDDING, "--finite"], LAST_SLOT),
        ("bids", "c", BIDDING, "It has no end: it repeats after 32 slots."),
        ("uncoordinated", "json", [], "It has no end: every slot is alike."),
    ],
)
def test_the_command_says_what_comes_after_the_last_slot(planner, kind, more, sentence, tmp_path):
    words = ["export", "tiny", planner, "--out", str(tmp_path), "--format", kind, "--json", "--quiet", *more]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["after the last slot"] == sentence
    if kind == "c":
        assert sentence in (tmp_path / "device_0.h").read_text(encoding="utf-8")


def test_a_plan_for_ever_is_an_option_of_the_command():
    done = CliRunner().invoke(app, ["plan", "tiny", "receiver", "-o", "endless=true", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["repeats after [slots]"] == 1
    assert facts["lower bound"] == pytest.approx(hm.average_bound(hm.build(hm.Scenario.load("tiny"))))
