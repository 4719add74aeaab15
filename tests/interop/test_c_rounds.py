"""Message rounds in C come to the actions of the rounded plan, and that plan costs what the plan itself does."""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import heliomesh as hm
from heliomesh.cli import app
from heliomesh.interop.c_rounds import RoundHeader, write_round_headers
from heliomesh.interop.rounded import RoundedTables
from tests.interop.conftest import DRAINED, WEATHER
from tests.interop.test_export import (
    STATES,
    actions_in_c,
    actions_in_python,
    check_object,
    compiled,
    needs_gcc,
    random_states,
)

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
WEIGHTED = {"cost.objective": "learning", "slots": 5, "cost.phases": [[5, -0.2, 1.7]]}
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
    "prices, weighted": (WEIGHTED, "prices", {}),
    "receiver, weighted": (WEIGHTED, "receiver", {}),
}


def planned(changes, planner, options, scenario="tiny"):
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    return problem, hm.plan(problem, planner, bound=False, **{"interpolate": False} | options)


def program(problem, headers):
    """The whole network in one C program: rounds from all starts, the best end written."""
    numbers, messages = range(problem.num_devices), headers[0].policy.source.messages
    lines = ["#include <stdio.h>", *(f'#include "device_{i}.h"' for i in numbers)]
    lines += [f"static hm{i}_state s{i};" for i in numbers]
    lines += [f"static int64_t belief[{len(numbers)}][HM0_ACTIONS];"] if messages else []
    lines += ["static void tell(uint16_t from, uint8_t action)", "{"]
    lines += [f"    (void)hm{i}_note(&s{i}, from, action);" for i in numbers] + ["}"]
    lines += _advice(numbers) if messages else []
    lines += ["static int64_t end(uint32_t slot, int start, uint8_t *chosen)", "{"]
    lines += ["    int round, colour, changed = 1;", "    int64_t total = 0;"]
    lines += [f"    chosen[{i}] = hm{i}_start(&s{i}, slot, start);" for i in numbers]
    if messages:
        lines += ["    if (start == 2) {"]
        lines += [f"        chosen[{i}] = hm{i}_start_advised(&s{i}, slot, belief[{i}]);" for i in numbers] + [
            "    }"
        ]
    lines += [f"    tell({i}, chosen[{i}]);" for i in numbers]
    lines += ["    for (round = 0; changed && round < HM0_ROUNDS; round++) {", "        changed = 0;"]
    lines += ["        for (colour = 0; colour < HM0_COLOURS; colour++) {"]
    for i in numbers:
        rows = [f"                (void)hm{j}_row(&s{j}, slot, {i}, row);" for j in numbers]
        lines += [
            f"            if (colour == HM{i}_COLOUR) {{",
            f"                int32_t row[HM{i}_ACTIONS] = {{0}};",
        ]
        lines += [*rows, f"                uint8_t now = hm{i}_move(&s{i}, slot, row);"]
        lines += [f"                changed |= now != chosen[{i}];", f"                chosen[{i}] = now;"]
        lines += [f"                tell({i}, now);", "            }"]
    lines += ["        }", "    }", *(f"    total += hm{i}_share(&s{i}, slot);" for i in numbers)]
    lines += ["    return total;", "}", "int main(void)", "{", "    uint32_t slot, battery;", "    uint8_t weather;"]
    lines += [f"    uint8_t level[{max(len(problem.sites_into(i)) for i in numbers) + 1}];"]
    lines += [f"    uint8_t chosen[HM0_STARTS][{len(numbers)}];", "    int start, best;"]
    lines += [f"    if (hm{i}_flash_bytes() != HM{i}_FLASH_BYTES) return 3;" for i in numbers]
    lines += [f"    if (sizeof s{i} != {headers[i].ram_bytes}) return 4;" for i in numbers]
    lines += ["    while (fread(&slot, 4, 1, stdin) == 1) {", "        int64_t cost[HM0_STARTS];"]
    for i in numbers:
        lines += [f"        if (fread(level, 1, HM{i}_SITES, stdin) != HM{i}_SITES) return 1;"]
        lines += ["        if (fread(&weather, 1, 1, stdin) != 1 || fread(&battery, 4, 1, stdin) != 1) return 1;"]
        lines += [f"        hm{i}_begin(&s{i}, level, battery, weather);"]
    lines += [f"        (void)hm{i}_note_energy(&s{i}, {j}, s{j}.energy);" for i in numbers for j in numbers]
    lines += ["        advise(slot);"] if messages else []
    lines += ["        for (start = best = 0; start < HM0_STARTS; start++) {"]
    lines += ["            cost[start] = end(slot, start, chosen[start]);"]
    lines += ["            if (cost[start] < cost[best]) best = start;", "        }"]
    lines += ["        (void)fwrite(chosen[best], 1, sizeof chosen[best], stdout);"]
    return "\n".join([*lines, "    }", "    return 0;", "}"]) + "\n"


def _advice(numbers):
    """All min-sum rounds of a slot; they end with the devices' beliefs."""
    lines = ["static void believe(uint32_t slot)", "{", "    int action;"]
    for i in numbers:
        lines += [f"    for (action = 0; action < HM0_ACTIONS; action++) belief[{i}][action] = 0;"]
        lines += [f"    (void)hm{j}_advice(&s{j}, {i}, belief[{i}]);" for j in numbers]
        lines += [f"    hm{i}_belief(&s{i}, slot, belief[{i}]);"]
    lines += ["}", "static void advise(uint32_t slot)", "{", "    int message;"]
    lines += ["    for (message = 0; message < HM0_MESSAGES; message++) {", "        believe(slot);"]
    lines += [f"        (void)hm{i}_wish(&s{i}, {j}, belief[{j}]);" for i in numbers for j in numbers]
    lines += [f"        hm{i}_advise(&s{i}, slot);" for i in numbers]
    return [*lines, "    }", "    believe(slot);", "}"]


def check_c_is_python(problem, plan, width, states, folder):
    headers = write_round_headers(problem, plan.policy, plan.planner, folder, width)
    seen, micro, slots = random_states(problem, states)
    actions = actions_in_c(folder, problem, program(problem, headers), seen, micro, slots)
    expected = actions_in_python(problem, RoundedTables(problem, plan.policy, width), seen, slots)
    np.testing.assert_array_equal(actions, expected)
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
        ("ring10", {"slots": 30}, 16),
        pytest.param("ring10", {}, 8, marks=pytest.mark.slow),
        pytest.param("ring10", {}, 16, marks=pytest.mark.slow),
        pytest.param("ring10", {"link.half_duplex": True, "slots": 60}, 16, marks=pytest.mark.slow),
    ],
)
def test_receivers_decide_in_constant_memory(scenario, changes, width, tmp_path):
    problem, plan = planned(changes, "receiver", {}, scenario)
    for header in check_c_is_python(problem, plan, width, STATES, tmp_path):
        check_object(tmp_path, header.device, functions_of(header), header)


def functions_of(header):
    """All functions of a header, as a device's program would call them."""
    i, state = header.device, f"hm{header.device}_state *s"
    lines = [
        f"void begin({state}, const uint8_t *l, uint32_t b, uint8_t w) {{ hm{i}_begin(s, l, b, w); }}",
        f"int energy({state}, uint16_t from, uint16_t e) {{ return hm{i}_note_energy(s, from, e); }}",
        f"uint8_t start({state}, uint32_t t, int n) {{ return hm{i}_start(s, t, n); }}",
        f"int note({state}, uint16_t from, uint8_t a) {{ return hm{i}_note(s, from, a); }}",
        f"int row({state}, uint32_t t, uint16_t from, int32_t *r) {{ return hm{i}_row(s, t, from, r); }}",
        f"uint8_t move({state}, uint32_t t, const int32_t *r) {{ return hm{i}_move(s, t, r); }}",
        f"int32_t share({state}, uint32_t t) {{ return hm{i}_share(s, t); }}",
    ]
    if header.policy.source.messages:
        lines += [
            f"int advice({state}, uint16_t from, int64_t *r) {{ return hm{i}_advice(s, from, r); }}",
            f"void belief({state}, uint32_t t, int64_t *r) {{ hm{i}_belief(s, t, r); }}",
            f"int wish({state}, uint16_t from, const int64_t *r) {{ return hm{i}_wish(s, from, r); }}",
            f"void advise({state}, uint32_t t) {{ hm{i}_advise(s, t); }}",
            f"uint8_t follow({state}, uint32_t t, const int64_t *r) {{ return hm{i}_start_advised(s, t, r); }}",
        ]
    return "\n".join(lines) + "\n"


def test_receivers_without_a_table_have_prices():
    problem, plan = planned(*PLANS["receiver, no tables"])
    rounded = RoundedTables(problem, plan.policy)
    headers = [RoundHeader(rounded, "receiver", device) for device in range(problem.num_devices)]
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
    (tmp_path / "main.c").write_text(
        '#include "device_1.h"\n'
        "int main(void)\n{\n"
        "    hm1_state state = {0};\n"
        "    const uint8_t level[HM1_SITES] = {1}, both[HM1_HEARD] = {2, 2};\n"
        "    hm1_begin(&state, level, 3000000, 0);\n"
        "    if (!hm1_note_energy(&state, 0, 3) || !hm1_note_energy(&state, 2, 3)) return 1;\n"
        f"    if (hm1_note_energy(&state, 0, {problem.num_energy}) || hm1_note_energy(&state, 3, 0)) return 2;\n"
        "    if (hm1_note_energy(&state, 1, 0)) return 3;\n"
        "    if (state.heard_energy[0] != 3 || state.heard_energy[1] != 3) return 4;\n"
        "    return hm1_cost(&state, 4000000000u, both) != hm1_cost(&state, HM1_SLOTS - 1, both);\n"
        "}\n",
        encoding="utf-8",
    )
    compiled(tmp_path, "main.c", "-o", str(tmp_path / "main"))
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0  # noqa: S603


def test_what_is_no_table_of_whole_numbers_is_refused(tmp_path):
    problem, plan = planned({"link.half_duplex": True}, "prices", {"messages": 13})
    with pytest.raises(hm.ScenarioError, match=r"expected messages of at most 12 in a C header, actual value 13"):
        write_round_headers(problem, plan.policy, plan.planner, tmp_path)
    problem, plan = planned({}, "receiver", {"interpolate": True})
    with pytest.raises(hm.ScenarioError, match=r"planner option.interpolate: expected false in a C header"):
        write_round_headers(problem, plan.policy, plan.planner, tmp_path)
    changing = {**WEIGHTED, "cost.phases": [[3, 1.0, 1.0], [2, 0.0, 2.0]]}
    problem, plan = planned(changing, "prices", {})
    with pytest.raises(hm.ScenarioError, match=r"cost.phases: expected one phase in a C header, actual number of"):
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
        flash[bits] = json.loads(done.output)["flash bytes, largest device"]
        text = (folder / "device_0.h").read_text(encoding="utf-8")
        assert f"Flash: {flash[bits]} bytes" in text
        assert f"static const uint{bits}_t hm0_value[" in text
    assert flash["8"] < flash["16"] < flash["32"]
