"""The picture of a measure over battery capacity and panel, and its page."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.engine.sizing import Axes, Pair, Prices, Target, size
from heliomesh.report.contour import contour_svg, description
from heliomesh.report.page import source_hash
from heliomesh.report.sizing_page import sizing_page

SPACE = "{http://www.w3.org/2000/svg}"
AXES = Axes((1.0, 2.0, 3.0), (10.0, 20.0, 30.0), "harvest.panel_cm2", "cm²", 1.0)
NOISE = np.array([-1e-9, 1e-9])


def plane(pair):
    """A loss that is linear over the cells of the picture: 0.9 in the lower left corner, 0.1 in the other."""
    return 0.9 - 0.2 * (pair.capacity_joule - 1) - 0.02 * (pair.panel - 10) + NOISE


def sizing_of(value=0.6, every_pair=True, measure="update loss", samples=plane, axes=AXES):
    return size(axes, Target(measure, value), samples, every_pair)


def drawn(sizing, title="t", prices=None):
    return ElementTree.fromstring(contour_svg(sizing, title, prices))  # noqa: S314


def segments(root, name):
    for path in root.iter(f"{SPACE}path"):
        if path.attrib.get("class") == name:
            numbers = [float(word) for word in re.findall(r"[\d.]+", path.attrib["d"])]
            return np.array(numbers).reshape(-1, 2, 2)
    return np.empty((0, 2, 2))


def test_every_pair_is_a_cell_with_its_mean():
    root = drawn(sizing_of())
    texts = [text.text for text in root.iter(f"{SPACE}text")]
    assert [f"{plane(pair).mean():.3f}" in texts for pair in AXES.pairs] == [True] * 9
    assert len(list(root.iter(f"{SPACE}rect"))) == 9 + 1  # and the ground


def test_the_line_of_the_target_lies_where_a_plane_has_it():
    # 0.6 is 1.5 cells from the first corner, along any path: column + row = 1.5
    lines = segments(drawn(sizing_of(0.6)), "target-mean").reshape(-1, 2)
    column, row = (lines[:, 0] - 74) / 78 - 0.5, (50 + 3 * 46 - lines[:, 1]) / 46 - 0.5
    assert len(lines) == 2 * 3
    np.testing.assert_allclose(column + row, 1.5, atol=0.01)


def test_the_border_runs_between_cells():
    lines = segments(drawn(sizing_of(0.6)), "target")
    # met where column + row ≥ 2: two steps down to the right, and none along the outer sides
    lengths = np.abs(lines[:, 0] - lines[:, 1])
    assert len(lines) == 4
    np.testing.assert_allclose(sorted(lengths.sum(1)), [46, 46, 78, 78])


def test_better_is_darker():
    for measure, samples in (("update loss", plane), ("accuracy", lambda pair: 1 - plane(pair))):
        svg = contour_svg(sizing_of(0.5, measure=measure, samples=samples), "t")
        fills = re.findall(r'width="78" height="46" fill="#(\w{6})"', svg)
        by_pair = dict(zip(AXES.pairs, fills, strict=True))
        assert by_pair[Pair(1.0, 10.0)] == "ffffff"
        assert by_pair[Pair(3.0, 30.0)] == min(fills)


def test_rings_mark_the_smallest_pairs_and_two_the_cheapest():
    sizing = sizing_of(0.6)
    rings = [ring for ring in drawn(sizing).iter(f"{SPACE}ellipse") if ring.attrib.get("class") == "chosen"]
    assert len(rings) == len(sizing.smallest) == 3
    priced = drawn(sizing, prices=Prices(1.0, 0.01))
    rings = [ring for ring in priced.iter(f"{SPACE}ellipse") if ring.attrib.get("class") == "chosen"]
    assert len(rings) == 3 + 1
    assert "The cheapest is 1 J with 30 cm²" in description(sizing, Prices(1.0, 0.01))


def test_pairs_that_follow_say_what_follows():
    sizing = sizing_of(0.6, every_pair=False)
    texts = [text.text for text in drawn(sizing).iter(f"{SPACE}text")]
    assert texts.count("meets") + texts.count("misses") == len(sizing.skipped) > 0


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("axes", [AXES, Axes((1.0,), (10.0,), "harvest.scale", "times the harvest", 1.0)])
def test_all_or_none_meet(value, axes):
    root = drawn(sizing_of(value, axes=axes), prices=Prices(1.0, 1.0))
    assert len(segments(root, "target")) == 0
    assert ("No pair meets it" in root.find(f"{SPACE}desc").text) == (value == 0)


def test_equal_means_have_no_lines():
    root = drawn(sizing_of(0.5, samples=lambda pair: 0.5 + 0 * NOISE))
    assert len(segments(root, "equal")) == 0


def test_titles_are_escaped_and_told_to_those_who_cannot_see():
    root = drawn(sizing_of(), title='<b> & "c"')
    assert root.attrib["role"] == "img"
    assert root.find(f"{SPACE}title").text == '<b> & "c"'
    assert "1 J with 30 cm² (0.5 ±" in root.find(f"{SPACE}desc").text


def test_the_page_asks_nobody():
    scenario = hm.Scenario.load("tiny").override({"name": "</pre><script>"})
    page = sizing_page(sizing_of(every_pair=False), scenario, "<script>", Prices(1.0, 1.0))
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert f"default-src 'none'; style-src '{source_hash(style)}'" in page
    assert "<script" not in page
    assert "http" not in re.sub(r'http-equiv|src="data:[^"]*"', "", page)
    assert page.count("<td>not tried</td>") == len(sizing_of(every_pair=False).skipped)
