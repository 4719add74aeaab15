"""Estimates of memory are within a factor of 1.5 of what is used, where that is large enough to be told apart."""

from pathlib import Path

import pytest

from tests.faults.memory import CASES, Case, measure


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_estimates_hold(case: Case, tmp_path: Path) -> None:
    estimate, peak = measure(case, tmp_path)
    assert 1 / 1.5 < estimate / peak < 1.5
