"""Planners across nights: a week of ten-minute slots, a law per time of day and weather, one sky."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.model import problem as problems
from heliomesh.simulation.ledger import energy_ledger

WEEK = Path(__file__).parents[1] / "scenarios/week40.toml"
FEW = {
    "prices": {"levels": 11, "sweeps": 3, "restarts": 0},
    "contributions": {"levels": 11, "practice": 1, "passes": 1},
}
FEW |= {"battery_threshold": {"levels": 4, "sweeps": 1}}
PLANNERS = ["uncoordinated", "turns", "news", *FEW]


def two_days(**changes):
    """Two days of five devices, from six o'clock on."""
    few = {"slots": 288, "network.devices": 5, "network.topology": "ring", "harvest.start": "06:00"}
    return hm.build(hm.Scenario.load(WEEK).override(few | changes))


@pytest.mark.parametrize("name", PLANNERS)
def test_planners_live_through_nights(name):
    problem = two_days()
    trace = hm.simulate(problem, hm.plan(problem, name, bound=False, **FEW.get(name, {})), episodes=2)
    assert np.abs(energy_ledger(trace).imbalance_joule).max() < 1e-6
    night = trace.harvested_joule[:, 90:126] == 0  # 21 to 3 h
    assert night.all()
    assert trace.scheduled[:, 30:60].any()


def test_a_plan_across_nights_beats_greed():
    """Devices that know of the night keep something for it."""
    problem = two_days()
    costs = {
        name: hm.simulate(problem, hm.plan(problem, name, bound=False, **FEW.get(name, {})), episodes=16).cost
        for name in ("uncoordinated", "prices")
    }
    saved = costs["uncoordinated"] - costs["prices"]
    assert saved.mean() > 5 * saved.std() / 4
    assert saved.mean() > 0.05 * costs["uncoordinated"].mean()


def test_kernels_that_do_not_fit_are_made_anew(monkeypatch):
    problem = two_days()
    kept = [problem.energy_kernels(slot) for slot in (0, 50, 100, 0)]
    assert kept[0] is kept[3]
    monkeypatch.setattr(problems, "_KEPT_KERNEL_BYTES", kept[0].nbytes)
    anew = two_days()
    again = [anew.energy_kernels(slot) for slot in (0, 50, 100, 0)]
    for one, other in zip(kept, again, strict=True):
        assert torch.equal(one, other)
    assert len(anew._kept_kernels) == 1


# a process of its own: the peak of this one may be another test's, and `ru_maxrss` begins with it
_MEASURE = """
import json, sys
from pathlib import Path
import heliomesh as hm
week, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
problem = hm.build(hm.Scenario.load(week))
trace = hm.simulate(problem, hm.plan(problem, name, bound=False, **options), episodes=2)
peak_kib = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(*trace.scheduled.shape, peak_kib)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncoordinated", "turns", "news", "prices"])
def test_a_week_of_forty_devices(name):
    told = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _MEASURE, str(WEEK), name, json.dumps(FEW.get(name, {}))],
        check=True,
        capture_output=True,
        text=True,
    )
    *shape, peak_kib = map(int, told.stdout.split())
    assert shape == [2, 1008, 40]
    assert peak_kib < 2**21
