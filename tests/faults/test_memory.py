"""Estimates of memory are within a factor of 1.5 of what is used, where that is large enough to be told apart."""

import json
from functools import partial
from pathlib import Path

import pytest

import heliomesh as hm
from tests.faults.forked import call
from tests.faults.memory import CASES, Case, _status, measure


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_estimates_hold(case: Case, tmp_path: Path) -> None:
    estimate, peak = measure(case, tmp_path)
    assert 1 / 1.5 < estimate / peak < 1.5


def _plan_long(limit_gib: float, result: Path) -> None:
    """A job: plan with prices that see channels over many slots, and write the peak in bytes."""
    problem = hm.build(hm.Scenario.load("geometric30").override({"network.devices": 40, "slots": 60}))
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    hm.plan(problem, "receiver", bound=False, memory_gib=limit_gib, largest_table=0, sweeps=1)
    result.write_text(json.dumps(_status("VmHWM") - before))


@pytest.mark.slow
def test_the_receiver_planner_stays_below_its_limit(tmp_path: Path) -> None:
    """With all slots' tensors at once it took five times as much."""
    ended = call(partial(_plan_long, 0.5, tmp_path / "peak.json"), tmp_path / "log")
    assert ended.code == 0, ended.told
    assert json.loads((tmp_path / "peak.json").read_text()) <= 0.5 * 2**30
