"""Message rounds in C come to the actions of the rounded plan, and that plan costs what the plan itself does."""

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.interop.c_rounds import write_round_headers
from heliomesh.interop.rounded import Rounded
from tests.interop.test_export import (
    STATES,
    WEATHER,
    actions_in_c,
    actions_in_python,
    needs_gcc,
    random_states,
)

SHAPES = {
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
IRREGULAR = {  # degrees 1 to 4
    "network.topology": "edges",
    "network.devices": 7,
    "network.edges": [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 5], [5, 6]],
    "harvest.scale": [0.5, 0.8, 1.0, 1.0, 1.2, 1.5, 2.0],
    "energy.compute_joule": [1.0, 0.5, 1.0, 1.5, 1.0, 0.7, 1.0],
}
PLANS = {
    **{f"prices, {name}": (changes, "prices", {"messages": 0}) for name, changes in SHAPES.items()},
    **{f"receiver, {name}": (changes, "receiver", {"messages": 0}) for name, changes in SHAPES.items()},
    "receiver, irregular": (IRREGULAR, "receiver", {}),
    "receiver, irregular links": ({**IRREGULAR, "channel.state": "link", "slots": 3}, "receiver", {}),
    "receiver, tables and prices": (IRREGULAR, "receiver", {"largest_table": 2000, "steps": 5, "channel_steps": 0}),
    "receiver, half duplex": ({"link.half_duplex": True}, "receiver", {}),
    "receiver, irregular half duplex": ({**IRREGULAR, "link.half_duplex": True, "slots": 3}, "receiver", {}),
    "prices, half duplex": ({"link.half_duplex": True}, "prices", {}),
}


def planned(changes, planner, options, scenario="tiny"):
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    return problem, hm.plan(problem, planner, bound=False, **options)


def program(problem, headers):
    """The whole network in one C program: rounds from all starts, the best end written."""
    numbers, messages = range(problem.num_devices), headers[0].policy.source.messages
    lines = ["#include <stdio.h>", *(f'#include "device_{i}.h"' for i in numbers)]
    lines += [f"static hm{i}_state s{i};" for i in numbers]
    lines += ["static int64_t belief[HM0_STARTS * 100][HM0_ACTIONS];"] if messages else []
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
    expected = actions_in_python(problem, Rounded(problem, plan.policy, width), seen, slots)
    np.testing.assert_array_equal(actions, expected)
    assert len(np.unique(actions)) == len(problem.actions)
    return headers


@needs_gcc
@pytest.mark.parametrize(("changes", "planner", "options"), PLANS.values(), ids=PLANS)
def test_rounds_in_c_are_rounds_in_python(changes, planner, options, tmp_path):
    check_c_is_python(*planned(changes, planner, options), 32, STATES, tmp_path)
