"""The gallery shows every planner, and its pictures are what they claim."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.comparison import variants

DOCS = Path(__file__).parents[1] / "docs"
SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def make():
    """The script that draws the pictures."""
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "pictures" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("planner", hm.planner_names())
def test_every_planner_has_a_section_and_a_picture_of_each_variant(planner):
    text = (DOCS / "gallery.md").read_text()
    assert f"\n## `{planner}`\n" in text, f"add a section on {planner!r} and run docs/pictures/make.py {planner}"
    section = text.split(f"\n## `{planner}`\n")[1].split("\n## ")[0]
    assert section.count("(pictures/planner-") == len(variants(planner))


def test_every_picture_of_the_gallery_is_there_and_speaks():
    names = [part.split(")")[0] for part in (DOCS / "gallery.md").read_text().split("](pictures/")[1:]]
    for name in names:
        root = ElementTree.parse(DOCS / "pictures" / name).getroot()  # noqa: S314
        assert root.attrib["role"] == "img"
        assert root.find(f"{SPACE}title").text
        assert root.find(f"{SPACE}desc").text


def test_a_dot_for_every_packet_and_a_hole_for_every_loss(make):
    problem = hm.build(hm.Scenario.load("tiny"))
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=1)
    root = ElementTree.fromstring(make.episode_svg(problem, trace, "a < b"))  # noqa: S314
    assert root.find(f"{SPACE}title").text == "a < b"
    dots = [path for path in root.findall(f"{SPACE}path") if path.attrib.get("stroke-linecap") == "round"]
    holes = [path.attrib["d"].count("M") for path in dots if path.attrib["stroke"] == "#ffffff"]
    sent = [path.attrib["d"].count("M") for path in dots if path.attrib["stroke"] != "#ffffff"]
    power = trace.power_watt[0]
    assert sum(sent) == (power > 0).sum()
    lost = {
        (slot, trace.edge_sender[edge])
        for slot, edge in np.argwhere(~trace.delivered[0])
        if power[slot, trace.edge_sender[edge]] > 0
    }
    assert sum(holes) == len(lost)
