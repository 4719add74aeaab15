"""Message rounds in C come to the actions of the rounded plan, and that plan costs what the plan itself does."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.interop.c_rounds import RoundHeader, collecting_tree, write_round_headers
from heliomesh.interop.rounded import RoundedTables
from tests.interop.c_network import actions_in_c, actions_in_python, check_constant_memory, needs_gcc
from tests.interop.conftest import DRAINED, WEATHER, planned_once
from tests.interop.test_export import STATES, check_program

SHAPES = {
    "ring": {},
    "links": {"channel.state": "link"},
    "reciprocal, star": {"channel.state": "reciprocal", "network.topology": "star", "network.devices": 4},
    "half duplex, train only": {"link.half_duplex": True, "energy.train_only": True},
    "separate": {"energy.actions": "separate", "cost.idle_penalty": 0.3},
    "weather, uneven": {**WEATHER, "energy.compute_joule": 0.77, "energy.capacity_joule": 3.3},
    "drained": DRAINED,
    "drained by whole steps": {"energy.sleep_watt": [0.0, 1.0, 1.0, 1.5, 0.2], "energy.train_only": True},
    "one device alone": {
        "network.topology": "edges",
        "network.devices": 4,
        "network.edges": [[0, 1], [1, 2]],
        "network.allow_disconnected": True,
    },
}
IRREGULAR = {  # degrees 1 to 4
    "network.topology": "edges",
    "network.devices": 7,
    "network.edges": [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 5], [5, 6]],
    "harvest.scale": [0.5, 0.8, 1.0, 1.0, 1.2, 1.5, 2.0],
    "energy.compute_joule": [1.0, 0.5, 1.0, 1.5, 1.0, 0.7, 1.0],
}
SMALL = {
    "network.topology": "edges",
    "network.devices": 4,
    "network.edges": [[0, 1], [0, 2], [1, 2], [2, 3]],
    "slots": 3,
}
PLANS = {
    **{f"prices, {name}": (changes, "prices", {"messages": 0}) for name, changes in SHAPES.items()},
    **{f"receiver, {name}": (changes, "receiver", {"messages": 0}) for name, changes in SHAPES.items()},
    "receiver, irregular": (IRREGULAR, "receiver", {}),
    "receiver, irregular links": ({**IRREGULAR, "channel.state": "link", "slots": 3}, "receiver", {}),
    "receiver, no tables": (
        {**IRREGULAR, "slots": 4},
        "receiver",
        {"largest_table": 2000},
    ),
    "receiver, half duplex": ({"link.half_duplex": True}, "receiver", {}),
    "receiver, irregular half duplex": ({**SMALL, "link.half_duplex": True}, "receiver", {}),
    "receiver, separate half duplex": (
        {**SMALL, "energy.actions": "separate", "energy.powers_watt": [0.0, 1.0], "link.half_duplex": True},
        "receiver",
        {},
    ),
    "prices, half duplex": ({"link.half_duplex": True}, "prices", {}),
}


def planned(changes, planner, options, scenario="tiny"):
    options = {"bound": False, "interpolate": False, **options}
    return planned_once(scenario, json.dumps(changes), planner, json.dumps(options))


def check_c_is_python(problem, plan, width, states, folder):
    headers, _ = write_round_headers(problem, plan.policy, plan.planner, folder, width)
    rounded = RoundedTables(problem, plan.policy, width)
    actions = actions_in_c(folder, problem, rounded, states)
    np.testing.assert_array_equal(actions, actions_in_python(problem, rounded, states))
    assert len(np.unique(actions)) == len(problem.actions)
    return headers


@needs_gcc
@pytest.mark.parametrize("states", [2000, pytest.param(STATES, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("changes", "planner", "options"), PLANS.values(), ids=PLANS)
def test_rounds_in_c_are_rounds_in_python(changes, planner, options, states, tmp_path):
    check_c_is_python(*planned(changes, planner, options), 32, states, tmp_path)


@needs_gcc
@pytest.mark.parametrize(
    ("scenario", "changes", "width"),
    [
        ("tiny", IRREGULAR, 16),
        pytest.param("ring10", {"slots": 30}, 16, marks=pytest.mark.slow),
        pytest.param("ring10", {}, 8, marks=pytest.mark.slow),
        pytest.param("ring10", {}, 16, marks=pytest.mark.slow),
        pytest.param("ring10", {"link.half_duplex": True, "slots": 60}, 16, marks=pytest.mark.slow),
    ],
)
def test_receivers_decide_in_constant_memory(scenario, changes, width, tmp_path):
    problem, plan = planned(changes, "receiver", {}, scenario)
    for header in check_c_is_python(problem, plan, width, STATES, tmp_path):
        check_constant_memory(tmp_path, header)
        same = f"sizeof(heliomesh_state) == {header.ram_bytes}"
        (tmp_path / "check.c").write_text(
            f'#include "heliomesh_device.h"\nint main(void) {{ return !({same}); }}\n', encoding="utf-8"
        )
        check_program(tmp_path, header.number, "check.c")


def test_receivers_without_a_table_have_prices():
    problem, plan = planned(*PLANS["receiver, no tables"])
    rounded = RoundedTables(problem, plan.policy)
    tree = collecting_tree(problem)
    headers = [RoundHeader(rounded, device, tree) for device in range(problem.num_devices)]
    assert all(header.values is None for header in headers)
    assert len(rounded.futures) == problem.slots
    assert bool((rounded.futures.amax((0, 2)) > 0).any())


@pytest.mark.parametrize("width", [8, 16, 32])
def test_entries_are_values_to_half_a_step(width):
    problem, plan = planned(IRREGULAR, "receiver", {})
    rounded = RoundedTables(problem, plan.policy, width)
    for exact, entries, step in zip(plan.policy.tables, rounded.entries, rounded.steps, strict=True):
        cost = (exact - exact.amin(1, keepdim=True)) * 2**rounded.bits
        assert float((entries * step - cost).abs().max()) <= step / 2
        assert float(entries.max()) <= 2**width - 1
        assert step == 1 or float(entries.max()) > 2 ** (width - 1)  # no bit is wasted
        assert float(entries.min()) == 0


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_rounding_prices_hardly_costs(changes):
    problem, plan = planned(changes, "prices", {"messages": 0})
    check_cost(problem, plan, RoundedTables(problem, plan.policy))


@pytest.mark.parametrize("width", [8, 16, 32])
@pytest.mark.parametrize("name", ["receiver, ring", "receiver, irregular", "receiver, half duplex"])
def test_rounding_receivers_hardly_costs(name, width):
    problem, plan = planned(*PLANS[name])
    check_cost(problem, plan, RoundedTables(problem, plan.policy, width))


def check_cost(problem, plan, rounded):
    one, other = (hm.simulate(problem, p, 200, seed=3).cost for p in (plan, replace(plan, policy=rounded)))
    assert abs(one.mean() - other.mean()) <= 0.005 * one.mean()
    assert rounded.bits >= 20


@needs_gcc
def test_damaged_and_foreign_energies_change_nothing(tmp_path):
    problem, plan = planned({}, "receiver", {})
    write_round_headers(problem, plan.policy, plan.planner, tmp_path, 16)
    (tmp_path / "check.c").write_text(
        '#include "heliomesh_device.h"\n'
        "int main(void)\n{\n"
        "    heliomesh_state state = {0};\n"
        "    const uint8_t level[HELIOMESH_SITES] = {1};\n"
        "    int32_t last[HELIOMESH_ACTIONS] = {0}, later[HELIOMESH_ACTIONS] = {0};\n"
        "    heliomesh_begin(&state, level, 3000000, 0);\n"
        "    if (!heliomesh_note_energy(&state, 0, 3) || !heliomesh_note_energy(&state, 2, 3)) return 1;\n"
        "    if (heliomesh_note_energy(&state, 0, HELIOMESH_ENERGIES)) return 2;\n"
        "    if (heliomesh_note_energy(&state, 3, 0) || heliomesh_note_energy(&state, 1, 0)) return 3;\n"
        "    if (state.heard_energy[0] != 3 || state.heard_energy[1] != 3) return 4;\n"
        "    (void)heliomesh_start(&state, 0, 0);\n"
        "    if (heliomesh_note(&state, 3, 0) || heliomesh_note(&state, 0, HELIOMESH_ACTIONS)) return 5;\n"
        "    if (!heliomesh_row(&state, HELIOMESH_SLOTS - 1, 0, last)) return 6;\n"
        "    if (!heliomesh_row(&state, 4000000000u, 0, later)) return 7;\n"
        "    return last[0] != later[0] || last[1] != later[1];\n"
        "}\n",
        encoding="utf-8",
    )
    check_program(tmp_path, 1, "check.c", "heliomesh_device.c")


def test_what_is_no_table_of_whole_numbers_is_refused(tmp_path):
    problem, plan = planned({"link.half_duplex": True}, "prices", {"messages": 13})
    with pytest.raises(hm.ScenarioError, match=r"expected messages of at most 12 in a C header, actual value 13"):
        write_round_headers(problem, plan.policy, plan.planner, tmp_path)
    problem, plan = planned({}, "receiver", {"interpolate": True})
    with pytest.raises(hm.ScenarioError, match=r"planner option.interpolate: expected false in a C header"):
        write_round_headers(problem, plan.policy, plan.planner, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_receivers_in_fewer_bits(tmp_path):
    flash = {}
    for bits in ("8", "16", "32"):
        folder = tmp_path / bits
        arguments = [
            "export",
            "tiny",
            "receiver",
            "--format",
            "c",
            "--table-bits",
            bits,
            "--out",
            str(folder),
            "--json",
        ]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        flash[bits] = json.loads(done.output)["flash bytes of tables, largest device"]
        text = (folder / "device_0.h").read_text(encoding="utf-8")
        assert f"Flash: {flash[bits]} bytes" in text
        assert f"static uint{bits}_t table_value(" in text
    assert flash["8"] < flash["16"] < flash["32"]
