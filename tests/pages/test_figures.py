"""Figures of experiments: accuracy, and below it gains that are taken seed by seed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import heliomesh as hm
from heliomesh.jobs.scheme import Scheme
from heliomesh.learning.run import Run
from heliomesh.pages.figures import _gains, draw
from heliomesh.studies.line import LOSSLESS, Line
from heliomesh.studies.results import Result

SEEDS = 3


def of_seed(seed: int) -> dict[str, dict[str, int]]:
    """What a run says of its seed."""
    return {"identity": {"training seed": seed}}


def result(label: str, gain_percent: float, place: float | None = None, setting: str = "i.i.d.") -> Result:
    """Two evaluated slots; seeds differ far more than schemes."""
    scheme = LOSSLESS if label == "ideal" else Scheme(label, "receiver")
    slots = np.array([10.0, 20.0])
    gained = slots / 1000 + gain_percent / 100
    curves = [{"slot": slots, "accuracy_mean": 0.1 * seed + gained} for seed in range(SEEDS)]
    runs = [Run(metrics, *[np.empty(0)] * 2, torch.empty(0), of_seed(seed)) for seed, metrics in enumerate(curves)]
    return Result(Line("figure", scheme, hm.Scenario.load("tiny"), SEEDS, setting, place), tuple(runs))


RESULTS = [result("receiver", 2.0), result("uncoordinated", 0.0), result("ideal", 9.0)]


def test_gains_are_paired_and_leave_the_ideal_out():
    places = np.array([2.0, 4.0])
    base = np.array([[10.0, 20.0], [11.0, 21.0]])
    lines = {"receiver": (places, base + 2), "ideal": (places, base + 9), "uncoordinated": (places[1:], base[1:])}
    (label, (common, points)), *others = _gains(lines, "uncoordinated").items()
    assert (label, others) == ("receiver", [])
    np.testing.assert_array_equal(common, [4.0])
    np.testing.assert_array_equal(points, [[2.0, 2.0]])


@pytest.mark.parametrize(("reference", "shown"), [("uncoordinated", True), ("absent", False), (None, False)])
def test_gains_are_drawn_over_a_scheme_that_is_there(tmp_path, reference, shown):
    draw(RESULTS, "A figure", None, reference, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert (f">over {reference} [points]</text>" in text) == shown
    assert all(f">{label}</text>" in text for label in ("receiver", "uncoordinated", "ideal", "i.i.d.", "slot"))


def test_gains_over_other_seeds_are_not_drawn(tmp_path):
    first, second = RESULTS[:2]
    runs = [replace(run, provenance=of_seed(seed + SEEDS)) for seed, run in enumerate(second.runs)]
    later = replace(second, runs=tuple(runs))
    with pytest.raises(hm.TrainingError, match=r"expected the seeds \[0, 1, 2\] of .*, actual \[3, 4, 5\]"):
        draw([first, later], "A figure", None, "uncoordinated", tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_a_panel_without_the_reference_has_no_gains(tmp_path):
    halves = [*RESULTS[:2], result("receiver", 1.0, setting="Dir(0.8)")]
    draw(halves, "Half a figure", None, "uncoordinated", tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count(">slot</text>") == 2


def test_a_reference_alone_is_drawn(tmp_path):
    draw(RESULTS[1:2], "The first line of a figure", None, "uncoordinated", tmp_path / "a.svg")
    assert ">over uncoordinated [points]</text>" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_equal_results_give_equal_files(tmp_path):
    places = [result(label, gain, place) for place in (2.0, 8.0) for label, gain in (("one", 1.0), ("other", place))]
    for name in "ab":
        draw(places, "Over places", "battery capacity [J]", "one", tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert ">battery capacity [J]</text>" in (tmp_path / "a.svg").read_text(encoding="utf-8")
