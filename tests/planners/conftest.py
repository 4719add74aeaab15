"""Small problems shared by the planner tests."""

from collections.abc import Callable
from typing import Any

import pytest

import heliomesh as hm

RINGS = {
    "φ=.3": {"link.waterfall": 0.3},
    "φ=1": {"link.waterfall": 1.0},
    "φ=.3, rich": {"link.waterfall": 0.3, "harvest.prob": [0.1, 0.4, 0.5]},
}


@pytest.fixture
def tiny() -> Callable[..., hm.Problem]:
    """Build `tiny` with overrides."""

    def make(overrides: dict[str, Any] | None = None) -> hm.Problem:
        return hm.build(hm.Scenario.load("tiny").override(overrides or {}))

    return make
