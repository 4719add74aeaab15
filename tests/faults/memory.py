"""Print what the package says that it will need, beside what it needs: `python -m tests.faults.memory`.

The estimate is the one in the refusal that a tiny limit provokes; the peak is that of a child's resident memory,
above what it had before.
"""

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import heliomesh as hm
from heliomesh.grid.evaluation import exact_cost
from tests.faults.forked import call

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NO_MEMORY_GIB = 1e-9
_LITTLE_GIB = 1e-4  # more than the joint actions of one slot need, less than any table here


def _planner(name: str, scenario: str, changes: dict[str, Any], **options: Any) -> Callable[[float], object]:
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    return lambda memory_gib: hm.plan(problem, name, bound=False, memory_gib=memory_gib, **options)


def _simulation(scenario: str, changes: dict[str, Any], episodes: int) -> Callable[[float], object]:
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    plan = hm.plan(problem, "uncoordinated", bound=False)
    return lambda memory_gib: hm.simulate(problem, plan, episodes, memory_gib=memory_gib)


def _evaluation(scenario: str, changes: dict[str, Any]) -> Callable[[float], object]:
    problem = hm.build(hm.Scenario.load(scenario).override(changes))
    plan = hm.plan(problem, "uncoordinated", bound=False)
    return lambda memory_gib: exact_cost(problem, plan, memory_gib)


def _training(scenario: str, changes: dict[str, Any]) -> Callable[[float], object]:
    loaded = hm.Scenario.load(scenario).override(changes)
    problem = hm.build(loaded)
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated", bound=False), 1)
    return lambda memory_gib: hm.train(loaded, trace, memory_gib=memory_gib, strategy="loop")


@dataclass(frozen=True)
class Case:
    """Work of a given size."""

    name: str
    size: str
    prepare: Callable[[], Callable[[float], object]]
    refused_gib: float = _NO_MEMORY_GIB  # limit whose refusal states the estimate of the whole


def _few(levels: int) -> dict[str, Any]:
    return {"slots": 4, "energy.battery_levels": levels}


def _star(devices: int) -> dict[str, Any]:
    shape = {"network.topology": "star", "network.devices": devices}
    return shape | {"slots": 6, "energy.battery_levels": 9, "energy.capacity_joule": 8.0}


def _many(devices: int) -> dict[str, Any]:
    return {"network.devices": devices, "slots": 2, "learning.dataset": "synthetic", "learning.local_steps": 1}


CASES = [
    *(
        Case("centralized", f"4 devices, {n} battery levels", partial(_planner, "centralized", "tiny", _few(n)))
        for n in (8, 9, 10)
    ),
    Case(
        "receiver",
        "star of 7, 9 battery levels",
        partial(_planner, "receiver", "ring10", _star(7), largest_table=10**9),
        _LITTLE_GIB,
    ),
    Case("exact_cost", "4 devices, 7 battery levels", partial(_evaluation, "tiny", _few(7))),
    *(Case("simulate", f"{n} episodes", partial(_simulation, "tiny", {}, n)) for n in (10_000, 20_000, 40_000)),
    *(Case("train", f"{n} devices, synthetic", partial(_training, "ring10", _many(n))) for n in (500, 1000, 2000)),
]


def _measure(case: Case, result: Path) -> None:
    """A job: write [estimate, peak] in bytes."""
    work = case.prepare()
    estimate = _estimate(work, case.refused_gib)
    before = _status("RssAnon")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts anew
    kept = work(64.0)
    code = _status("RssFile") + _status("RssShmem")  # pages of libraries: when they come in is the kernel's choice
    result.write_text(json.dumps([estimate, _status("VmHWM") - code - before]), encoding="utf-8")
    del kept


def _estimate(work: Callable[[float], object], refused_gib: float) -> float:
    """What the refusal says [byte]."""
    with pytest.raises(hm.TooLargeError) as caught:
        work(refused_gib)
    found = re.search(r"actual estimate ([0-9.e+]+) (\w+)", str(caught.value))
    assert found is not None
    return float(found[1]) * _UNITS[found[2]]


def _status(field: str) -> int:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    assert match is not None
    return 1024 * int(match[1])


def measure(case: Case, folder: Path) -> tuple[float, float]:
    """Estimate and peak [byte]."""
    ended = call(partial(_measure, case, folder / "result.json"), folder / "log")
    assert ended.code == 0, ended.told
    estimate, peak = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return estimate, peak


def main() -> None:
    print("| what | size | estimate MiB | measured peak MiB | estimate / peak |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for case in CASES:
            estimate, peak = measure(case, Path(name))
            cells = (case.name, case.size, f"{estimate / 2**20:.0f}", f"{peak / 2**20:.0f}", f"{estimate / peak:.2f}")
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
