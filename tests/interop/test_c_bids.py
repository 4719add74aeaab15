"""Bids, grants, choices and accounts in C are those of the simulator, to the bit."""

import json

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.interop.c_bids import write_bid_headers
from tests.interop.c_network import bids_in_python, bytes_in_c, check_constant_memory, needs_gcc
from tests.interop.conftest import DRAINED, WEATHER, planned_once
from tests.interop.test_export import check_program

SEPARATE = {"energy.actions": "separate", "learning.dataset": "digits"}
SHARDS = {"learning.partition": "shards", "learning.shards_per_device": 2}
PAID = {"energy.control": "paid", "energy.control_watt": 0.5, "energy.control_bit_per_second": 20000.0}
HUB = {"network.topology": "star", "network.devices": 9, "slots": 30}
SHAPES = {
    "ring": {},
    "coupled": {"energy.actions": "coupled"},
    "links, half duplex": {"channel.state": "link", "link.half_duplex": True},
    "weather, uneven": {**WEATHER, **SHARDS, "energy.compute_joule": 0.77, "energy.capacity_joule": 3.3},
    "drained": DRAINED,
    "messages are paid": {**PAID, "energy.sleep_watt": 0.03},
    "eight neighbours": HUB,
    "full mesh": {"network.topology": "complete", "network.devices": 6, "link.half_duplex": True, **SHARDS},
    "renormalized": {"learning.aggregation": "renormalized", "learning.partition": "dirichlet"},
    "own weight": {"learning.aggregation": "model", "slots": 40},
    "large batteries": {
        "energy.capacity_joule": 30_000.0,
        "energy.compute_joule": 10_000.0,
        "energy.transmit_second": 10_000.0,
        "energy.slot_second": 10_000.0,
        "harvest.scale": 10_000.0,
    },
    "tiny batteries": {
        "energy.capacity_joule": 3e-6,
        "energy.compute_joule": 1e-6,
        "energy.transmit_second": 1e-6,
        "energy.slot_second": 1e-6,
        "harvest.scale": 1e-6,
    },
    "one device alone": {
        "network.topology": "edges",
        "network.devices": 4,
        "network.edges": [[0, 1], [1, 2]],
        "network.allow_disconnected": True,
    },
}


def planned(changes, scenario="tiny"):
    options = json.dumps({"practice": 2, "passes": 1})
    return planned_once(scenario, json.dumps(SEPARATE | changes), "bids", options)[1].policy


def planned_cycle(changes):
    options = json.dumps({"practice": 2, "passes": 1, "endless": True})
    return planned_once("tiny", json.dumps(SEPARATE | changes), "bids", options)[1].policy.cycle


def check_c_is_python(policy, states, folder):
    headers, _ = write_bid_headers(policy, folder)
    expected = bids_in_python(policy, states)
    np.testing.assert_array_equal(bytes_in_c(folder, policy, states), expected)
    assert len(np.unique(expected[..., 0])) > len(policy.problem.actions) // 2
    return headers


@needs_gcc
@pytest.mark.parametrize("states", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_bids_in_c_are_bids_in_python(changes, states, tmp_path):
    check_c_is_python(planned(changes), states, tmp_path)


@needs_gcc
@pytest.mark.parametrize("changes", [{}, {"cost.deadline": [7]}], ids=["no deadline", "every seventh slot"])
def test_bids_without_an_end_go_around_in_c_as_in_python(changes, tmp_path):
    check_c_is_python(planned_cycle(changes), 3000, tmp_path)


@needs_gcc
@pytest.mark.parametrize("changes", [{"slots": 60}, HUB], ids=["ring10", "eight neighbours"])
def test_devices_that_bid_need_constant_memory(changes, tmp_path):
    for header in check_c_is_python(planned(changes, "ring10"), 2000, tmp_path):
        check_constant_memory(tmp_path, header)
        same = f"sizeof(heliomesh_state) == {header.ram_bytes}"
        (tmp_path / "check.c").write_text(
            f'#include "heliomesh_device.h"\nint main(void) {{ return !({same}); }}\n', encoding="utf-8"
        )
        check_program(tmp_path, header.number, "check.c")


def test_what_c_does_not_hold_is_refused(tmp_path):
    problem = hm.build(hm.Scenario.load("tiny").override(SEPARATE))
    guessing = hm.plan(problem, "bids", passes=0).policy
    with pytest.raises(hm.ScenarioError, match="planner option passes: expected at least 1 in a C header"):
        write_bid_headers(guessing, tmp_path)
    assert list(tmp_path.iterdir()) == []
