"""The picture of a measure over battery capacity and panel."""

from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.contour import ContourSet

from heliomesh.pages.contour import BEST, BORDER, LINES, WORST, contour, contour_svg
from heliomesh.pages.drawing import INK, PAPER
from heliomesh.pages.sizing_words import description
from heliomesh.studies.sizing import Axes, PairSamples, Prices, Target, search
from tests.pages.test_colours import contrast

SPACE = "{http://www.w3.org/2000/svg}"
AXES = Axes((1.0, 2.0, 3.0), (10.0, 20.0, 30.0), "harvest.panel_cm2", "cm²")
NOISE = np.array([-1e-9, 1e-9])


def plane(pair):
    """A loss that is linear over the cells of the picture: 0.9 in the lower left corner, 0.1 in the other."""
    return 0.9 - 0.2 * (pair.capacity_joule - 1) - 0.02 * (pair.panel - 10) + NOISE


def sizing_of(value=0.6, every_pair=True, measure="update loss", samples=plane, axes=AXES, dark=0.0):
    """Of a measure by pair, and one darkness of all pairs."""
    return search(axes, Target(measure, value), lambda pair: PairSamples(samples(pair), dark + 0 * NOISE), every_pair)


def drawn(sizing, prices=None):
    """The picture's only panel; cells lie at whole numbers, from 0 in the lower left corner."""
    (panel,) = contour(sizing, "t", prices).axes
    return panel


def words(panel):
    return [text.get_text() for text in panel.texts]


def lines(panel, dash):
    """Points of the contours of a dash; (point, 2)."""
    sets = [one for one in panel.collections if isinstance(one, ContourSet) and one.linestyles == dash]
    return [path.vertices for one in sets for path in one.get_paths()]


def test_every_pair_is_a_cell_with_its_mean():
    panel = drawn(sizing_of())
    assert sorted(words(panel)) == sorted(f"{plane(pair).mean():.3f}" for pair in AXES.pairs)
    assert panel.collections[0].get_array().shape == (3, 3)
    assert (panel.get_xlim(), panel.get_ylim()) == ((-0.5, 2.5), (-0.5, 2.5))


def test_the_line_of_the_target_lies_where_a_plane_has_it():
    # 0.6 is 1.5 cells from the first corner, along any path: column + row = 1.5
    (points,) = lines(drawn(sizing_of(0.6)), "--")
    np.testing.assert_allclose(points.sum(1), 1.5, atol=1e-6)
    np.testing.assert_allclose(np.sort(points[[0, -1]], axis=0), [[0, 0], [1.5, 1.5]], atol=1e-6)


def test_round_values_have_lines_too():
    levels = [
        round(0.9 - 0.2 * points.sum(1).mean(), 6) for points in lines(drawn(sizing_of(0.6)), "-") if len(points)
    ]
    assert levels == [0.15, 0.3, 0.45, 0.75]  # 0.6 has a line of its own


def test_the_border_runs_between_cells():
    # met where column + row ≥ 2: two steps down to the right, and none along the outer sides
    sides = [tuple(map(tuple, line.get_xydata().tolist())) for line in drawn(sizing_of(0.6)).lines]
    assert sorted(sides) == [
        ((-0.5, 1.5), (0.5, 1.5)),
        ((0.5, 0.5), (0.5, 1.5)),
        ((0.5, 0.5), (1.5, 0.5)),
        ((1.5, -0.5), (1.5, 0.5)),
    ]


def test_better_is_darker():
    for measure, samples in (("update loss", plane), ("accuracy", lambda pair: 1 - plane(pair))):
        mesh = drawn(sizing_of(0.5, measure=measure, samples=samples)).collections[0]
        lightness = mesh.to_rgba(mesh.get_array())[..., :3].sum(-1)
        assert lightness[0, 0] == 3.0  # white
        assert lightness[2, 2] == lightness.min()


def test_rings_mark_the_smallest_pairs_and_two_the_cheapest():
    sizing = sizing_of(0.6)
    places = [ring.center for ring in drawn(sizing).patches]
    assert sorted(places) == [(0, 2), (1, 1), (2, 0)]
    assert len(sizing.smallest) == 3
    priced = [ring.center for ring in drawn(sizing, Prices(1.0, 0.01)).patches]
    assert sorted(priced) == [(0, 2), (0, 2), (1, 1), (2, 0)]
    assert "The cheapest is 1 J with 30 cm²" in description(sizing, Prices(1.0, 0.01))


def test_darkness_and_the_border_of_the_grid_are_told():
    text = description(sizing_of(0.9, dark=0.04))
    assert "At most 5 % of device slots may be dark." in text
    assert "1 J with 20 cm² (0.7 ± 1.3e-08, 4.0 % dark)" in text
    assert "lies at the border of the grid (smallest battery): nothing beyond was tried." in text
    assert "dark" not in description(sizing_of(0.9))


def test_pairs_that_follow_say_what_follows():
    sizing = sizing_of(0.6, every_pair=False)
    texts = words(drawn(sizing))
    assert texts.count("meets") + texts.count("misses") == len(sizing.skipped) > 0


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("axes", [AXES, Axes((1.0,), (10.0,), "harvest.scale", "times the harvest")])
def test_all_or_none_meet(value, axes):
    sizing = sizing_of(value, axes=axes)
    panel = drawn(sizing, Prices(1.0, 1.0))
    assert (list(panel.lines), lines(panel, "--")) == ([], [])
    assert ("No pair meets it" in description(sizing, Prices(1.0, 1.0))) == (value == 0)


def test_equal_means_have_no_lines():
    assert lines(drawn(sizing_of(0.5, samples=lambda pair: 0.5 + 0 * NOISE)), "-") == []


def test_titles_are_escaped_and_told_to_those_who_cannot_see():
    root = ElementTree.fromstring(contour_svg(sizing_of(), '<b> & "c"'))  # noqa: S314
    assert root.attrib["role"] == "img"
    assert root.find(f"{SPACE}title").text == '<b> & "c"'
    assert "1 J with 30 cm² (0.5 ±" in root.find(f"{SPACE}desc").text


def test_all_that_is_drawn_stands_out():
    for ground in (WORST, BEST):
        assert contrast(INK, ground) >= 4.5
    for mark in (BORDER, LINES):
        assert contrast(mark, WORST) >= 3
    svg = contour_svg(sizing_of(), "t")
    assert INK in svg
    assert PAPER in svg
