"""Exported plans act as the plans do: in Python, from files, and in C."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.interop import export_tables
from heliomesh.interop.c_header import Header, write_headers
from heliomesh.interop.export_tables import Tabulated, read_tables, tabulate, write_tables
from heliomesh.planners.uncoordinated import Greedy
from tests.interop.c_network import (
    HOST,
    actions_in_c,
    actions_in_python,
    check_constant_memory,
    compiled,
    needs_gcc,
)
from tests.interop.conftest import DRAINED, WEATHER, planned_once

STATES = 100_000
SEPARATE = {"energy.actions": "separate", "energy.compute_joule": 1.5}  # a battery of 1 J pays for sending only
PLANS = {
    "uncoordinated": ({}, "uncoordinated", {}),
    "uncoordinated, uneven": (
        {"energy.compute_joule": 0.77, "energy.capacity_joule": 3.3, "energy.initial": "uniform"},
        "uncoordinated",
        {},
    ),
    "uncoordinated, separate": ({**SEPARATE, "energy.initial": "uniform"}, "uncoordinated", {}),
    "battery_threshold": ({"harvest.scale": [0.3, 0.6, 1.0, 1.5, 2.0]}, "battery_threshold", {}),
    "turns, separate": ({"energy.actions": "separate"}, "turns", {"last_slots": 3}),
    "uncoordinated, drained": (DRAINED, "uncoordinated", {}),
    "turns, drained": ({**DRAINED, "energy.actions": "separate"}, "turns", {}),
    "battery_threshold, drained": (DRAINED, "battery_threshold", {}),
    "one hop, drained": ({**DRAINED, "slots": 4}, "decentralized", {"hops": 1}),
    "prices alone": ({}, "prices", {"coordinate": False, "interpolate": False}),
    "prices alone, weather": (WEATHER, "prices", {"coordinate": False, "interpolate": False}),
    "zero hops": ({}, "decentralized", {"hops": 0}),
    "one hop, links": ({"channel.state": "link"}, "decentralized", {"hops": 1}),
    "one hop, reciprocal": ({"channel.state": "reciprocal"}, "decentralized", {"hops": 1}),
    "two hops of seven": ({"network.devices": 7, "slots": 6}, "decentralized", {"hops": 2}),
    "train only, half duplex": (
        {"energy.train_only": True, "link.half_duplex": True, "slots": 4},
        "decentralized",
        {"hops": 1},
    ),
    "one hop, separate": ({**SEPARATE, "slots": 4}, "decentralized", {"hops": 1}),
    "centralized, weather": ({**WEATHER, "network.devices": 2, "slots": 3}, "centralized", {}),
}


def planned(changes, planner, options):
    return planned_once("tiny", json.dumps(changes), planner, json.dumps({"bound": False, **options}))


@pytest.mark.parametrize(("changes", "planner", "options"), PLANS.values(), ids=PLANS)
def test_tables_and_files_are_the_policy(changes, planner, options, tmp_path):
    problem, plan = planned(changes, planner, options)
    tables = tabulate(plan)
    for kind in ("json", "npz"):
        assert read_tables(write_tables(tables, tmp_path, kind)[0]) == tables
    one, other = (
        hm.simulate(problem, p, 16, seed=2) for p in (plan, replace(plan, policy=Tabulated(problem, tables)))
    )
    np.testing.assert_array_equal(one.power_watt, other.power_watt)
    np.testing.assert_array_equal(one.scheduled, other.scheduled)
    np.testing.assert_array_equal(one.cost, other.cost)


@needs_gcc
@pytest.mark.parametrize(("changes", "planner", "options"), PLANS.values(), ids=PLANS)
def test_c_is_python_on_random_states(changes, planner, options, tmp_path):
    problem, plan = planned(changes, planner, options)
    write_headers(tabulate(plan), plan.policy.problem, tmp_path)
    expected = actions_in_python(problem, plan.policy, STATES)
    np.testing.assert_array_equal(actions_in_c(tmp_path, problem, None, STATES), expected)


@needs_gcc
@pytest.mark.parametrize("slots", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_two_hops_on_a_ring_of_ten_in_constant_memory(slots, tmp_path):
    problem = hm.build(hm.Scenario.load("ring10").override({"slots": slots}))
    plan = hm.plan(problem, "decentralized", bound=False, hops=2)
    headers, _ = write_headers(tabulate(plan), plan.policy.problem, tmp_path)
    assert {header.hops for header in headers} == {2}
    for header in headers:
        check_constant_memory(tmp_path, header)
    expected = actions_in_python(problem, plan.policy, STATES)
    np.testing.assert_array_equal(actions_in_c(tmp_path, problem, None, STATES), expected)


@needs_gcc
def test_damaged_and_foreign_messages_change_nothing(tmp_path):
    _, plan = planned({}, "decentralized", {"hops": 1})
    headers, _ = write_headers(tabulate(plan), plan.policy.problem, tmp_path)
    assert headers[1].device.scope[0].variable == ("site", 0)
    (tmp_path / "check.c").write_text(
        '#include "heliomesh_device.h"\n'
        "int main(void)\n{\n"
        "    heliomesh_view view = {{1, 1, 2}};\n"
        "    const uint8_t wrong[2] = {9, 0}, fine[2] = {0, 0};\n"
        "    if (heliomesh_hear(&view, 0, wrong, 2) || view.value[0] != 1) return 1;\n"
        "    if (heliomesh_hear(&view, 0, fine, 0) || view.value[0] != 1) return 2;\n"
        "    if (heliomesh_hear(&view, 3, fine, 2) || view.value[0] != 1) return 3;\n"
        "    if (!heliomesh_hear(&view, 0, fine, 2) || view.value[0] != 0 || view.value[2] != 2) return 4;\n"
        "    return heliomesh_action(4000000000u, &view) != heliomesh_action(HELIOMESH_TABLE_SLOTS - 1, &view);\n"
        "}\n",
        encoding="utf-8",
    )
    check_program(tmp_path, 1, "check.c", "heliomesh_device.c")


def check_program(folder, number, *sources):
    """Compile a program of one device; it must say that all is well."""
    compiled(folder, HOST, f"-DHELIOMESH_DEVICE={number}", *sources, "-o", "check")
    assert subprocess.run([folder / "check"], check=False).returncode == 0  # noqa: S603


@needs_gcc
def test_names_cannot_leave_their_comment(tmp_path):
    _, plan = planned({"name": '*/ int x; /* "\n#error'}, "uncoordinated", {})
    write_headers(tabulate(plan), plan.policy.problem, tmp_path)
    check_program(tmp_path, 0, "heliomesh_device.c", "heliomesh_levels.c", "example_main.c", "example_board.c")


def test_a_table_file_names_all_kinds_of_actions(tmp_path):
    _, plan = planned(SEPARATE, "uncoordinated", {})
    tables = tabulate(plan)
    write_headers(tables, plan.policy.problem, tmp_path)
    text = (tmp_path / "device_0.h").read_text(encoding="utf-8")
    kinds = ("0: idle", "2: send only at 2 W", "3: train only", "5: train and send at 2 W")
    assert all(kind in text for kind in kinds)


def test_a_table_that_never_changes_has_no_slots():
    _, plan = planned({}, "battery_threshold", {})
    for device in tabulate(plan).devices:
        header = Header(tabulate(plan), device, plan.policy.problem)
        assert device.table_of_slot == (0,)
        assert header.macros["TABLE_SLOTS"] == 1
        assert "of_slot" not in [array.name for array in header.constants]


@pytest.mark.parametrize(
    ("planner", "options", "reason"),
    [
        ("prices", {}, "decides for several devices together"),
        ("receiver", {}, "decides for several devices together"),
        ("skiptrain", {}, "draws actions at random"),
        ("decentralized", {"form": "literal", "hops": 1}, "draws actions at random"),
    ],
)
def test_plans_without_tables_are_refused(planner, options, reason):
    _, plan = planned({}, planner, options)
    with pytest.raises(hm.ScenarioError, match=reason):
        tabulate(plan)


class Peeking(Greedy):
    """Looks at a battery more closely than tables can."""

    def action(self, slot, seen):
        return super().action(slot, seen) * (seen.battery_joule % 0.5 > 0.25)


def test_a_policy_that_looks_closer_is_refused():
    problem, plan = planned({}, "uncoordinated", {})
    with pytest.raises(hm.ScenarioError, match="looks at more than tables hold"):
        tabulate(replace(plan, policy=Peeking(problem)))


def test_too_large_tables_are_refused():
    _, plan = planned({}, "decentralized", {"hops": 1})
    with pytest.raises(hm.TooLargeError, match="export"):
        tabulate(plan, memory_gib=1e-8)


def test_damaged_files_are_refused(tmp_path):
    _, plan = planned({}, "uncoordinated", {})
    tables = tabulate(plan)
    target = write_tables(tables, tmp_path, "json")[0]
    other = json.loads(target.read_text(encoding="utf-8")) | {"version": 2}
    (tmp_path / "new.json").write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(hm.ScenarioError, match="expected a plan of format heliomesh-plan 1, version"):
        read_tables(tmp_path / "new.json")
    whole = write_tables(tables, tmp_path, "npz")[0].read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(hm.ScenarioError, match="expected a complete plan file"):
        read_tables(tmp_path / "cut.npz")


def test_tables_that_would_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    _, plan = planned({}, "uncoordinated", {})
    target = write_tables(tabulate(plan), tmp_path, "npz")[0]
    monkeypatch.setattr(export_tables, "DEFAULT_LIMIT_GIB", 1e-7)
    with pytest.raises(hm.TooLargeError, match=r"plan.npz: expected at most 1e-07 GiB .* actual estimate"):
        read_tables(target)


def test_schema_describes_the_file(tmp_path):
    _, plan = planned({}, "uncoordinated", {})
    target, schema = write_tables(tabulate(plan), tmp_path, "json")
    described, written = (
        json.loads(schema.read_text(encoding="utf-8")),
        json.loads(target.read_text(encoding="utf-8")),
    )
    assert set(described["properties"]) == set(written)
    assert described["properties"]["version"]["const"] == written["version"] == 1


@pytest.mark.parametrize("kind", ["json", "npz", "c"])
def test_the_command(kind, tmp_path):
    arguments = ["export", "tiny", "battery_threshold", "--out", str(tmp_path / "out"), "--format", kind, "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["planner"] == "battery_threshold"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        file.rpartition("/")[2] for file in facts["files"]
    )
    if kind == "c":
        text = (tmp_path / "out" / "device_0.h").read_text(encoding="utf-8")
        assert f"Flash: {facts['flash bytes of tables, largest device']} bytes" in text


def test_many_files_are_counted_and_not_listed(tmp_path):
    arguments = ["export", "tiny", "battery_threshold", "--out", str(tmp_path), "--format", "c"]
    done = CliRunner().invoke(app, arguments)
    assert f"{len(list(tmp_path.iterdir()))} in " in done.output
    assert "device_0.h" not in done.output


def test_the_command_refuses_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(hm.ScenarioError, match=r"--out: expected a folder"):
        CliRunner().invoke(
            app, ["export", "tiny", "uncoordinated", "--out", str(tmp_path / "file")], catch_exceptions=False
        )
    with pytest.raises(hm.ScenarioError, match="decides for several devices together"):
        CliRunner().invoke(
            app,
            ["export", "tiny", "receiver", "--out", str(tmp_path / "out"), "--format", "json"],
            catch_exceptions=False,
        )
    assert not (tmp_path / "out").exists()
