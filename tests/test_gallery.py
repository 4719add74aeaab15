"""Pages of planners are true of them, and pictures are what they claim.

A new planner passes without a page; one that has a page is held to it.
"""

import importlib.util
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.common import catalog
from heliomesh.planning import PLANNER_CATALOG, find_planner

DOCS = Path(__file__).parents[1] / "docs"
SPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def make():
    """The script that draws the pictures."""
    spec = importlib.util.spec_from_file_location("make_pictures", DOCS / "pictures" / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PARTS = ("What it does", "What a device must know", "Options", "Use it", "When, when not")
MOST_LINES = 80
DESCRIBED = sorted(path.stem for path in (DOCS / "planners").glob("*.md"))


def page(planner: str) -> str:
    """The planner's page."""
    return (DOCS / "planners" / f"{planner}.md").read_text(encoding="utf-8")


def part(planner: str, title: str) -> str:
    """One part of the planner's page."""
    return page(planner).split(f"\n## {title}\n")[1].split("\n## ")[0]


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of a language; "" for none."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("planner", DESCRIBED)
def test_a_page_is_short_and_has_all_parts_in_order(planner):
    text = page(planner)
    assert text.startswith(f"# `{planner}`\n")
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == PARTS
    assert len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("planner", DESCRIBED)
def test_a_page_with_pictures_shows_one_of_each_variant_before_it_explains(planner):
    opening = page(planner).split("\n## ")[0]
    assert opening.count("](../pictures/planner-") in (0, len(find_planner(planner).variants))


def test_no_page_is_left_of_a_planner_that_is_gone():
    assert set(DESCRIBED) <= set(hm.planner_names())
    assert len(DESCRIBED) >= 12


@pytest.mark.parametrize("planner", DESCRIBED)
def test_a_page_lists_the_options_as_the_planner_has_them(planner):
    fields = catalog.find(PLANNER_CATALOG, planner).Options.model_fields
    expected = [f"| `{name}` | {shown(field.default)} | {field.description} |" for name, field in fields.items()]
    assert [row for row in part(planner, "Options").splitlines() if row.startswith("| `")] == expected


def shown(default: object) -> str:
    """A default as one would write it on the command line; a dash where the meaning says what it is."""
    if default is None:
        return "–"
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


@pytest.mark.parametrize("planner", DESCRIBED)
def test_the_python_of_a_page_prints_the_number_beside_it(planner, capsys):
    (code,) = blocks(part(planner, "Use it"), "python")
    (expected,) = re.findall(r"# ([\d.]+)", code)
    exec(compile(code, planner, "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.strip() == expected


@pytest.mark.slow
@pytest.mark.parametrize("planner", DESCRIBED)
def test_the_commands_of_a_page_give_the_cost_beside_them(planner, call):
    (commands,) = blocks(part(planner, "Use it"), "")
    for line in commands.splitlines():
        command, cost, half_width = re.fullmatch(r"heliomesh (.*?) +# cost ([\d.]+) ± ([\d.]+)", line).groups()
        _, out, _ = call(*command.split(), "--json", "--quiet")
        found = json.loads(out)
        assert (f"{found['cost']:.3f}", f"{found['cost, 95 % half-width']:.3f}") == (cost, half_width), line


def test_every_picture_of_the_gallery_is_there_and_speaks():
    pages = [DOCS / "gallery.md", *(DOCS / "planners").glob("*.md")]
    names = {
        name for path in pages for name in re.findall(r"pictures/([\w-]+\.svg)", path.read_text(encoding="utf-8"))
    }
    assert len(names) > 12
    for name in names:
        root = ElementTree.parse(DOCS / "pictures" / name).getroot()  # noqa: S314
        assert root.attrib["role"] == "img"
        assert root.find(f"{SPACE}title").text
        assert root.find(f"{SPACE}desc").text


@pytest.mark.parametrize("start", ["gallery.md", "planners.md", "../README.md"])
def test_the_ways_in_lead_to_every_page_of_a_planner(start):
    text = (DOCS / start).read_text(encoding="utf-8")
    for planner in DESCRIBED:
        assert f"[`{planner}`](" in text, f"link {planner}'s page in docs/{start}"


def test_who_only_sends_or_only_trains_is_marked(make):
    changes = {"energy.actions": "separate", "energy.compute_joule": 1.5, "energy.powers_watt": [0.0, 1.0]}
    problem = hm.build(hm.Scenario.load("tiny").override(changes))
    trace = hm.simulate(problem, hm.plan(problem, "uncoordinated"), episodes=1)
    text = make.episode_svg(problem, trace, "separate")
    marks = [p for p in ElementTree.fromstring(text).findall(f"{SPACE}path") if p.get("stroke") == make._GREY]  # noqa: S314
    drawn = {path.get("stroke-linecap"): path.attrib["d"].count("M") for path in marks}
    sends, trains = trace.power_watt[0] > 0, trace.scheduled[0]
    assert drawn == {"round": (sends & ~trains).sum(), None: (trains & ~sends).sum()}
    assert "sends without training" in text
    coupled = hm.build(hm.Scenario.load("tiny"))
    plain = hm.simulate(coupled, hm.plan(coupled, "uncoordinated"), episodes=1)
    assert "sends without training" not in make.episode_svg(coupled, plain, "coupled")


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
