"""Examples as modules, a harvest with memory, storage with losses and drains, and plans that tests share."""

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import heliomesh as hm

WEATHER = {
    "harvest": {
        "source": "markov",
        "joule": [[0.0, 0.3], [0.9, 1.7]],
        "prob": [[0.5, 0.5], [0.4, 0.6]],
        "kernel": [[0.8, 0.2], [0.3, 0.7]],
    }
}
DRAINED = {
    "energy.storage": "li-ion",
    "energy.capacity_joule": 5.3,
    "energy.sleep_watt": [0.0, 0.2, 0.31, 1.1, 0.05],
    "energy.wake_joule": 0.05,
}
EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def planned_once(scenario: str, changes: str, planner: str, options: str) -> tuple[hm.Problem, hm.Plan]:
    """The plan of a shipped scenario with changes and options in JSON, made once for all tests that ask for it."""
    problem = hm.build(hm.Scenario.load(scenario).override(json.loads(changes)))
    return problem, hm.plan(problem, planner, **json.loads(options))


@pytest.fixture
def example() -> Callable[[str], ModuleType]:
    """Import an example by its name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
