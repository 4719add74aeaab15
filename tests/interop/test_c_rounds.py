"""Message rounds in C come to the actions of the rounded plan, and that plan costs what the plan itself does."""

from dataclasses import replace

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.interop.c_rounds import Rounded, write_round_headers
from tests.interop.test_export import STATES, WEATHER, actions_in_c, actions_in_python, needs_gcc, random_states

PLANS = {
    "ring": {},
    "links": {"channel.state": "link"},
    "reciprocal, star": {"channel.state": "reciprocal", "network.topology": "star", "network.devices": 4},
    "half duplex, train only": {"link.half_duplex": True, "energy.train_only": True},
    "weather, uneven": {**WEATHER, "energy.compute_joule": 0.77, "energy.capacity_joule": 3.3},
    "one device alone": {
        "network.topology": "edges",
        "network.devices": 4,
        "network.edges": [[0, 1], [1, 2]],
        "network.allow_disconnected": True,
    },
}


def planned(changes):
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    return problem, hm.plan(problem, "prices", bound=False, messages=0)


def program(problem, headers):
    """The whole network in one C program: rounds from both starts, the better end written."""
    numbers = range(problem.num_devices)
    lines = ["#include <stdio.h>", *(f'#include "device_{i}.h"' for i in numbers)]
    lines += [f"static hm{i}_state s{i};" for i in numbers]
    lines += ["static void tell(uint16_t from, uint8_t action)", "{"]
    lines += [f"    (void)hm{i}_note(&s{i}, from, action);" for i in numbers] + ["}"]
    lines += ["static int32_t end(uint32_t slot, int start, uint8_t *chosen)", "{"]
    lines += ["    int round, colour, changed = 1;", "    int32_t total = 0;"]
    lines += [f"    chosen[{i}] = hm{i}_start(&s{i}, slot, start);" for i in numbers]
    lines += [f"    tell({i}, chosen[{i}]);" for i in numbers]
    lines += ["    for (round = 0; changed && round < HM0_ROUNDS; round++) {", "        changed = 0;"]
    lines += ["        for (colour = 0; colour < HM0_COLOURS; colour++) {"]
    for i in numbers:
        rows = [f"                (void)hm{j}_row(&s{j}, {i}, row);" for j in numbers]
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
    lines += [f"    uint8_t own[{len(numbers)}], silent[{len(numbers)}];"]
    lines += [f"    if (hm{i}_flash_bytes() != HM{i}_FLASH_BYTES) return 3;" for i in numbers]
    lines += [f"    if (sizeof s{i} != {headers[i].ram_bytes}) return 4;" for i in numbers]
    lines += ["    while (fread(&slot, 4, 1, stdin) == 1) {"]
    for i in numbers:
        lines += [f"        if (fread(level, 1, HM{i}_SITES, stdin) != HM{i}_SITES) return 1;"]
        lines += ["        if (fread(&weather, 1, 1, stdin) != 1 || fread(&battery, 4, 1, stdin) != 1) return 1;"]
        lines += [f"        hm{i}_begin(&s{i}, level, battery, weather);"]
    lines += ["        if (end(slot, 1, silent) < end(slot, 0, own)) (void)fwrite(silent, 1, sizeof silent, stdout);"]
    lines += ["        else (void)fwrite(own, 1, sizeof own, stdout);"]
    return "\n".join([*lines, "    }", "    return 0;", "}"]) + "\n"


@needs_gcc
@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_rounds_in_c_are_rounds_in_python(changes, tmp_path):
    problem, plan = planned(changes)
    headers = write_round_headers(problem, plan.policy, plan.planner, tmp_path)
    seen, micro, slots = random_states(problem, STATES)
    actions = actions_in_c(tmp_path, problem, program(problem, headers), seen, micro, slots)
    expected = actions_in_python(problem, Rounded(problem, plan.policy), seen, slots)
    np.testing.assert_array_equal(actions, expected)
    assert len(np.unique(actions)) == len(problem.actions)


@pytest.mark.parametrize("changes", PLANS.values(), ids=PLANS)
def test_rounding_hardly_costs(changes):
    problem, plan = planned(changes)
    rounded = replace(plan, policy=Rounded(problem, plan.policy))
    one, other = (hm.simulate(problem, p, 200, seed=3).cost for p in (plan, rounded))
    assert abs(one.mean() - other.mean()) <= 0.005 * one.mean()
    assert rounded.policy.bits >= 20


def test_min_sum_messages_are_refused(tmp_path):
    problem = hm.build(hm.Scenario.load("tiny").override({"link.half_duplex": True}))
    plan = hm.plan(problem, "prices", bound=False)
    with pytest.raises(hm.ScenarioError, match=r"expected no min-sum messages in a C header \(messages=0\)"):
        write_round_headers(problem, plan.policy, plan.planner, tmp_path)
