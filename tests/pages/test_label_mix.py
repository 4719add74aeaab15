from xml.etree import ElementTree

import numpy as np
import pytest

from heliomesh.pages.label_mix import label_mix, label_mix_svg

_SVG = "{http://www.w3.org/2000/svg}"


def _read(text):
    return ElementTree.fromstring(text)  # noqa: S314 - our own text


def _bars(counts):
    """One patch per class."""
    (panel,) = label_mix(counts, list(map(str, range(counts.shape[1]))), "t").axes
    return panel.patches


def test_every_sample_is_drawn_to_scale():
    counts = np.array([[3, 1, 0], [0, 2, 6]])
    tops, _, bottoms = zip(*(bars.get_data() for bars in _bars(counts)), strict=True)
    np.testing.assert_array_equal(np.array(tops)[:, ::2].T - np.array(bottoms)[:, ::2].T, counts)
    np.testing.assert_array_equal(np.array(bottoms)[1:, ::2], np.array(tops)[:-1, ::2])  # each on the one below


def test_it_tells_what_it_shows_to_those_who_cannot_see_it():
    root = _read(label_mix_svg(np.array([[5, 0], [1, 4]]), ["shoe", "bag"], "Dir(0.8)"))
    assert root.get("role") == "img"
    assert root.find(f"{_SVG}title").text == "Dir(0.8)"
    assert "device 0: 5 samples, commonest class shoe" in root.find(f"{_SVG}desc").text


def test_names_are_escaped():
    root = _read(label_mix_svg(np.array([[1, 1]]), ["<b>", "a & b"]))
    assert {"<b>", "a & b"} <= {text.text for text in root.iter(f"{_SVG}text")}


@pytest.mark.parametrize("classes", [1, 10, 100])
def test_classes_have_different_colours(classes):
    fills = {bars.get_facecolor() for bars in _bars(np.ones((3, classes), dtype=np.int64))}
    assert len(fills) == classes


def test_a_thousand_devices_give_a_small_picture():
    text = label_mix_svg(np.ones((1000, 10), dtype=np.int64))
    assert len(text) < 500_000
    assert "and 980 more devices" in text
