"""The picture of cost against computation and bytes."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from typer.testing import CliRunner

from heliomesh.cli import app
from heliomesh.comparison import Comparison, Row
from heliomesh.problem.overhead import Overhead
from heliomesh.problem.policy import Plan
from heliomesh.report.pareto import pareto_svg
from heliomesh.simulation.diagnostics import Interval

SPACE = "{http://www.w3.org/2000/svg}"


def row(name: str, gap: float, seconds: float, online: float) -> Row:
    plan = Plan(name, policy=None, seconds=seconds, overhead=Overhead(online_bytes_per_slot=online))  # type: ignore[arg-type]
    return Row(name, plan, None, np.zeros(2), gap=Interval(gap, 0.01))


def dots(svg: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(svg).iter(f"{SPACE}circle")  # noqa: S314
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in found]


def test_cheaper_is_lower_quicker_is_left_and_silence_leftmost() -> None:
    rows = (row("receiver", 0.01, 1.0, 1000.0), row("prices alone", 0.2, 0.1, 0.0), row("myopic", 0.1, 10.0, 10.0))
    slow_quick, bytes_sent = np.split(np.array(dots(pareto_svg(Comparison(rows, "the optimum"), "t"))), 2)[0:2]
    assert slow_quick[1, 0] < slow_quick[0, 0] < slow_quick[2, 0]
    assert bytes_sent[1, 0] < bytes_sent[2, 0] < bytes_sent[0, 0]
    assert slow_quick[0, 1] > slow_quick[2, 1] > slow_quick[1, 1]  # SVG counts downwards


def test_names_are_escaped_and_refusals_left_out() -> None:
    rows = (row("<script>", 0.1, 1.0, 1.0), Row("centralized", None, None, None, refusal="too large"))
    svg = pareto_svg(Comparison(rows, 'a "reference" & more'), "<b>")
    assert "<script>" not in svg
    assert "<b>" not in svg
    assert len(dots(svg)) == 2  # one planner in two panels


def test_compare_writes_it(tmp_path: Path) -> None:
    target = tmp_path / "picture.svg"
    arguments = ["compare", "tiny", "prices", "uncoordinated", "--episodes", "2", "--svg", str(target)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len(dots(target.read_text(encoding="utf-8"))) == 2 * 3  # prices has two variants
