"""The benchmark: fixed scenarios, lines that resume and can be checked, ranks and paired differences."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heliomesh.common.durable import json_sha256
from heliomesh.model.problem import build
from heliomesh.pages.leaderboard import leaderboard_text
from heliomesh.scenario.errors import ScenarioError
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.bench import bench as running
from heliomesh.studies.bench.bench import TooSlowError, bench, leaderboard, processor_limit
from heliomesh.studies.bench.line import BenchError, BenchLine, place_of, read_line
from heliomesh.studies.bench.scenarios import BENCH, Bench, BenchScenario

PINNED = {
    "tiny5": "ce9adb31cfd9",
    "ring10": "e8cbe734dca6",
    "ring10_skewed": "23827d1b1bfc",
    "paper10": "7656d73fbbdb",
    "grid25": "d1ab3839de62",
    "one_sky25": "113cf6905328",
    "geometric30": "5461bd79d6a2",
    "half_duplex30": "65c988b8fa2d",
    "field40": "6825386b893e",
    "geometric10000": "ef6c4313ace4",
}

SMALL = """# Three devices on a path.
slots = 4
[network]
topology = "edges"
devices = 3
edges = [[0, 1], [1, 2]]
[channel]
source = "table"
gains = [0.3, 1.5]
kernel = [[0.8, 0.2], [0.2, 0.8]]
[link]
waterfall = 1.0
noise_watt = 0.3
[energy]
powers_watt = [0.0, 1.0]
transmit_second = 1.0
slot_second = 1.0
compute_joule = 1.0
capacity_joule = 2.0
battery_levels = 3
[harvest]
source = "table"
joule = [0.0, 1.0]
prob = [0.5, 0.5]
"""


@pytest.fixture
def small(tmp_path: Path) -> Bench:
    """Two scenarios of seconds: one trained, one with a sampled bound."""
    for name in ("path", "pair"):
        (tmp_path / f"{name}.toml").write_text(SMALL, encoding="utf-8")
    return Bench(
        1,
        (
            BenchScenario(tmp_path / "path.toml", episodes=6, seeds=2),
            BenchScenario(tmp_path / "pair.toml", episodes=4, seeds=0, paths=2),
        ),
    )


def test_scenarios_of_version_1_are_fixed() -> None:
    """A change would mix results that do not compare: it needs a new version."""
    known = {one.name: one.sha256[:12] for one in BENCH.scenarios}
    assert BENCH.version == 1
    assert known == PINNED


def test_every_scenario_says_in_a_line_what_it_is() -> None:
    assert len(BENCH.scenarios) == 10
    for one in BENCH.scenarios:
        assert 20 < len(one.description) < 118
        assert one.seeds == 0 or one.seeds >= 4  # fewer seeds show nothing


def test_measures_every_planner_once(small: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, told = tmp_path / "results", []
    board = bench(folder, planners=["prices", "uncoordinated"], version=small, report=told.append)
    assert [line.label for line in board.lines] == ["prices", "prices coordinate=False", "uncoordinated"]
    entry = board.lines[0].entries["path"]
    assert len(entry.cost) == len(entry.spent_joule) == 6
    assert len(entry.accuracy) == 2
    assert board.lines[0].entries["pair"].accuracy == ()
    assert set(board.bounds) == {"path", "pair"}
    assert board.bounds["pair"].paths == 2
    assert any("path: prices: cost" in sentence for sentence in told)
    monkeypatch.setattr(running, "measured", None)  # nothing is measured again
    assert bench(folder, planners=["prices", "uncoordinated"], version=small) == board


def test_goes_on_after_an_interruption(small: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, original, calls = tmp_path / "results", running.measured, []

    def interrupted(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(running, "measured", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(folder, planners=["uncoordinated"], version=small)
    assert list(leaderboard(folder, small).lines[0].entries) == ["path"]
    bench(folder, planners=["uncoordinated"], version=small)
    assert len(calls) == 3


def test_a_changed_planner_is_measured_again(small: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def measured(results_version: int) -> BenchLine:
        monkeypatch.setattr("heliomesh.jobs.job.RESULTS_VERSION", results_version)
        monkeypatch.setattr(running, "RESULTS_VERSION", results_version)
        again = {"version": small, "notify": told.append}
        return bench(tmp_path / "results", ["pair"], ["uncoordinated"], **again).lines[0]

    assert measured(1000).entries["pair"].results_version == 1000
    assert told == []
    assert measured(1001).entries["pair"].results_version == 1001
    assert told == ["pair: uncoordinated: measured again: results version was 1000, now 1001"]


def test_a_refusal_is_a_result(small: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PLANNING_SECONDS", 1e-6)
    board = bench(tmp_path, ["pair"], [("centralized", {"memory_gib": 1e-9}), "prices"], version=small)
    kinds = {line.label: line.entries["pair"].refused_for for line in board.lines}
    assert kinds["centralized memory_gib=1e-09"] in ("memory", "time")
    assert kinds["prices"] == "time"
    text = leaderboard_text(board)
    assert "| `prices` | refused: time |" in text
    assert text.count("`prices` refused. time: expected at most") == 1


def spin() -> None:
    while True:
        pass


def test_a_planner_that_never_ends_is_stopped() -> None:
    with pytest.raises(TooSlowError, match=r"time: expected at most 0.05 s of processors"), processor_limit(0.05):
        spin()


def test_differences_are_paired_and_ranks_shared(small: Bench, tmp_path: Path) -> None:
    board = bench(tmp_path, ["path"], ["prices", "uncoordinated"], version=small)
    first, *_, last = board.standings(small.scenarios[0])
    assert first.cost is not None
    assert last.behind is not None
    assert first.gap is not None
    difference = np.array(last.entry.cost) - np.array(first.entry.cost)
    assert last.behind == interval(difference)
    assert first.gap.mean == pytest.approx(first.cost.mean / board.bounds["path"].per_slot - 1)
    assert sum(own.rank for own in board.standings(small.scenarios[0])) == 1 + 2 + 3
    assert board.overall()["planner"].iloc[0] == first.label
    assert set(board.table()["planner"]) == {line.label for line in board.lines}


def test_what_was_not_run_is_said(small: Bench, tmp_path: Path) -> None:
    text = leaderboard_text(bench(tmp_path, ["path"], ["uncoordinated"], version=small))
    assert "Not run yet: `uncoordinated`." in text
    assert "| `uncoordinated` | 1.00 |" in text
    assert "1 (1 not run yet)" in text


def test_a_line_from_elsewhere_is_checked(small: Bench, tmp_path: Path) -> None:
    bench(tmp_path / "a", planners=["uncoordinated"], version=small)
    place = place_of(tmp_path / "a", small, "uncoordinated")
    assert (read_line(place, small),) == leaderboard(tmp_path / "a", small).lines
    wrong: list[tuple[Callable[[dict], object], str]] = [
        (lambda content: content.update(bench=2), "expected a line of bench 1, actual version 2"),
        (lambda content: content["entries"]["path"].update(scenario_sha256="0"), "expected the scenario"),
        (lambda content: content["entries"]["path"].update(cost=[1.0]), "path: cost: expected 6 numbers"),
        (
            lambda content: content["entries"]["path"].update(cost=6 * [-1e9]),
            "path: cost: expected 0 to 3, actual value -1e",
        ),
        (
            lambda content: content["entries"]["path"].update(cost=6 * [3.1]),
            "cost: expected 0 to 3, actual value 3.1",
        ),
        (lambda content: content["entries"]["path"].update(spent_joule=6 * [-1.0]), "spent_joule: expected 0 to inf"),
        (lambda content: content["entries"].update(moon=content["entries"]["path"]), "moon: expected one of path"),
        (lambda content: content.update(planner=""), "planner: expected"),
        (lambda content: content.update(seed=7), "seed: expected 0, actual value 7"),
        (lambda content: content["entries"]["path"].pop("key"), "entries: expected"),
    ]
    for change, sentence in wrong:
        with pytest.raises((BenchError, ScenarioError), match=sentence):
            read_line(resealed(place, tmp_path / "wrong.json", change), small)
    (tmp_path / "text.json").write_text("no line", encoding="utf-8")
    with pytest.raises(BenchError, match=r"text\.json: expected a line of the benchmark, actual: "):
        read_line(tmp_path / "text.json", small)


def test_labels_that_differ_have_files_that_differ(tmp_path: Path) -> None:
    labels = ["a:b", "a-b", "a b", "a_b", "a=b", "A:b", "a", "A"]
    names = [place_of(tmp_path, BENCH, label).name for label in labels]
    assert len({name.lower() for name in names}) == len(labels)
    assert place_of(tmp_path, BENCH, "receiver").name == "receiver.json"


def test_a_strange_line_brings_no_markup_to_the_page(small: Bench, tmp_path: Path) -> None:
    bench(tmp_path, ["pair"], ["uncoordinated"], version=small)
    place = place_of(tmp_path, small, "uncoordinated")

    def planted(content: dict) -> None:
        entry = content["entries"]["pair"]
        entry |= {"refusal": "<script>x</script> [y](z)\n| a", "refused_for": "time", "cost": [], "spent_joule": []}
        content |= {"planner": "`<b>|", "package": "<i>"}

    resealed(place, place.with_name("strange.json"), planted)
    text = leaderboard_text(leaderboard(tmp_path, small))
    assert "`?<b>?` refused. \\<script\\>x\\</script\\> \\[y\\](z) \\| a\n" in text
    assert "| \\<i\\> " in text


def resealed(source: Path, target: Path, change: Callable[[dict], object]) -> Path:
    """A copy of a sealed file with something changed."""
    content = json.loads(source.read_text(encoding="utf-8"))
    del content["seal"]
    change(content)
    target.write_text(json.dumps(content | {"seal": json_sha256(content)}), encoding="utf-8")
    return target


def test_unknown_scenarios_and_planners_are_refused_before_any_work(small: Bench, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="only: expected some of path, pair, actual value 'moon'"):
        bench(tmp_path / "results", ["moon"], version=small)
    with pytest.raises(ScenarioError, match="planner: expected one of"):
        bench(tmp_path / "results", planners=["pricse"], version=small)
    assert not (tmp_path / "results").exists()


def test_bounds_hold_for_the_problem(small: Bench, tmp_path: Path) -> None:
    board = bench(tmp_path, ["path"], ["centralized"], version=small)
    best = board.lines[0].entries["path"]
    problem = build(small.scenarios[0].scenario)
    assert problem.grid_is_exact
    assert (
        board.bounds["path"].per_slot <= interval(np.array(best.cost)).mean + interval(np.array(best.cost)).half_width
    )
