"""The sentence that a page begins with, and the costs it rests on."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heliomesh as hm
from heliomesh.common.durable import Sealed
from heliomesh.pages.intervals import LEAST_PAIRS
from heliomesh.pages.page import report_page
from heliomesh.pages.page_data import page_data
from heliomesh.pages.run_folder import read_run
from heliomesh.pages.seed_by_seed import is_told
from heliomesh.pages.verdict import answer
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.compare import Comparison
from tests.conftest import Call

GAP = "\N{NO-BREAK SPACE}"  # around ±


def scheme(planner: str, **headline: Any) -> dict[str, Any]:
    numbers = {"cost": None, "accuracy_mean": None} | headline
    return {"label": planner, "planner": planner, "headline": numbers}


def row(cost: float, half: float = 0.01, points: float = 0.0, pairs: int = 8, seeds: int = 3) -> dict[str, Any]:
    accuracy = {"mean": points / 100, "half": 0.01}
    facts = {"cost": {"mean": cost, "half": half}, "accuracy": accuracy, "accuracy_over_run": accuracy}
    return {"seeds": seeds, "episodes": pairs, **facts}


def paired(*costs: float, half: float = 0.01, pairs: int = 8) -> list[list[dict[str, Any] | None]]:
    """Differences of schemes with these costs, by reference and scheme."""
    return [
        [None if one == other else row(mine - theirs, half, pairs=pairs) for one, mine in enumerate(costs)]
        for other, theirs in enumerate(costs)
    ]


# Costs of all episodes


def test_costs_are_those_of_all_episodes(comparison: Comparison, compared_runs: list[Path]) -> None:
    """The terminal prints intervals over all episodes, and so does the page."""
    schemes = {scheme["planner"]: scheme for scheme in page_data(compared_runs)["schemes"]}
    assert list(schemes) == [row.planner for row in comparison.rows]
    for one in comparison.rows:
        shown = schemes[one.planner]
        assert one.summary is not None
        assert one.gap is not None
        assert shown["episodes"] == 6
        assert shown["headline"]["cost"]["mean"] == one.summary.cost.mean
        assert shown["headline"]["cost"]["half"] == one.summary.cost.half_width
        assert shown["headline"]["gap"]["mean"] == pytest.approx(one.gap.mean)
        assert shown["headline"]["gap"]["half"] == pytest.approx(one.gap.half_width)
        assert shown["headline"]["bound"]["mean"] == comparison.lower_bound
        assert shown["headline"]["participation"]["mean"] == one.summary.participation
        assert shown["headline"]["delivery"]["mean"] == one.summary.delivery


def test_differences_of_costs_are_paired_over_all_episodes(comparison: Comparison, compared_runs: list[Path]) -> None:
    data = page_data(compared_runs)
    labels = [scheme["label"] for scheme in data["schemes"]]
    costs = {row.planner: row.cost for row in comparison.rows}
    found = data["differences"][labels.index("uncoordinated")][labels.index("receiver")]
    assert costs["receiver"] is not None
    assert costs["uncoordinated"] is not None
    expected = interval(costs["receiver"] - costs["uncoordinated"])
    assert (found["episodes"], found["seeds"]) == (6, 2)
    assert found["cost"] == {"mean": pytest.approx(expected.mean), "half": pytest.approx(expected.half_width)}


def test_the_terminal_and_the_page_of_one_command_agree(call: Call, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    arguments = ["compare", "tiny", "prices", "uncoordinated", "--episodes", 5, "--train", 1, "--set", "slots=6"]
    code, printed, _ = call(*arguments, "--report", target, "--json")
    assert code == 0
    data = json.loads(target.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0])
    shown = {scheme["planner"]: scheme["headline"]["cost"] for scheme in data["schemes"]}
    for one in json.loads(printed)["rows"]:
        assert shown[one["planner"]]["mean"] == one["cost"]
        assert shown[one["planner"]]["half"] == one["cost, 95 % half-width"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"key": "another"}, "expected the episodes of run"),
        ({"cost": []}, "episodes.json.cost: expected a list that is not empty, actual value []"),
        ({"cost": [1, "many"]}, "episodes.json.cost.1: expected a number, actual value 'many'"),
        ({"shares": {"participation": None, "sending": 1}}, "participation: expected a number, actual value None"),
        ({"seed": "0"}, "expected the episodes of a comparison with seed (int)"),
    ],
)
def test_damaged_episodes_are_one_sentence(
    call: Call, compared_runs: list[Path], tmp_path: Path, content: dict[str, Any], words: str
) -> None:
    run = Path(shutil.copytree(compared_runs[0], tmp_path / "run"))
    kind = Sealed("the episodes of a comparison", 1)
    kind.write(run / "episodes.json", kind.read(run / "episodes.json", ValueError) | content)
    code, _, told = call("report", run, "--out", tmp_path / "report.html")
    assert code == 2
    assert words in told
    assert told.count("\n") == 1


def test_runs_of_other_comparisons_have_costs_of_their_own(compared_runs: list[Path], tmp_path: Path) -> None:
    """Folders that disagree on the episodes, or have none, show their own."""
    receiver = [path for path in compared_runs if path.name.startswith("receiver")]
    copies = [Path(shutil.copytree(path, tmp_path / path.name)) for path in receiver]
    (copies[0] / "episodes.json").unlink()
    (shown,) = page_data(copies)["schemes"]
    assert shown["episodes"] is None
    costs = [float(hm.Trace.load(path / "trace.npz").cost[0]) for path in copies]
    assert shown["headline"]["cost"]["mean"] == pytest.approx(np.mean(costs))
    assert read_run(copies[1]).episodes is not None


# The sentence


def test_the_best_is_named_with_its_lead() -> None:
    schemes = [scheme("uncoordinated"), scheme("prices"), scheme("receiver")]
    found = answer(schemes, paired(3.0, 2.5, 2.2))
    assert found.sentence == (
        f"receiver is best: it loses 0.800{GAP}±{GAP}0.010 fewer updates per slot than uncoordinated "
        "(95 % interval, 8 common episodes)."
    )
    assert (found.best, found.reference, found.measure) == (2, 0, "cost")
    assert "Not told apart" not in found.details
    assert f"+0.00{GAP}±{GAP}1.00 points against uncoordinated (3 common seeds: not certain)" in found.details


def test_rivals_that_are_not_told_apart_are_said() -> None:
    names = ("uncoordinated", "a", "b", "c", "d", "best")
    found = answer([scheme(name) for name in names], paired(3.0, 2.003, 2.001, 2.009, 2.005, 2.0))
    assert found.best == 5
    spread = f"{GAP}±{GAP}0.010"
    assert f"Not told apart from it: b (+0.001{spread}), a (+0.003{spread}), d (+0.005{spread}), 1 more." in (
        found.details
    )


def test_an_uncertain_lead_is_called_so() -> None:
    schemes = [scheme("uncoordinated"), scheme("receiver")]
    assert answer(schemes, paired(3.0, 2.9, half=0.2)).sentence.endswith("(8 common episodes: not certain).")
    few = answer(schemes, paired(3.0, 2.0, pairs=LEAST_PAIRS - 1))
    assert few.sentence.endswith("(3 common seeds: not certain).")
    same = answer(schemes, paired(3.0, 3.0, half=0.0)).sentence
    assert same == "uncoordinated and receiver do not differ (8 common episodes: not certain)."


def test_where_the_baseline_is_best_it_is_compared_with_the_next() -> None:
    found = answer([scheme("uncoordinated"), scheme("turns"), scheme("receiver")], paired(1.0, 1.5, 1.2))
    assert found.sentence.startswith(f"uncoordinated is best: it loses 0.200{GAP}±{GAP}0.010 fewer updates")
    assert "than receiver" in found.sentence
    assert (found.best, found.reference) == (0, 2)


def test_without_costs_the_most_accurate_is_best() -> None:
    nan = float("nan")
    rows = [[None, row(nan, points=3, seeds=5)], [row(nan, points=-3, seeds=5), None]]
    found = answer([scheme("uncoordinated"), scheme("receiver")], rows)
    assert found.sentence == (
        f"receiver is best: its devices are 3.00{GAP}±{GAP}1.00 percentage points more accurate than uncoordinated "
        "(95 % interval, 5 common seeds)."
    )
    assert (found.measure, found.details) == ("accuracy", "")


def test_another_that_is_more_accurate_is_named() -> None:
    rows = paired(3.0, 2.5, 2.0)
    rows[2][1] = row(0.5, points=2, seeds=6)
    found = answer([scheme("uncoordinated"), scheme("turns"), scheme("receiver")], rows)
    assert f"Most accurate: turns, +2.00{GAP}±{GAP}1.00 points against receiver (95 % interval, 6" in found.details


def test_one_scheme_tells_its_own_numbers_and_strangers_are_not_ranked(finished_runs: list[Path]) -> None:
    alone = page_data(finished_runs[2:])["answer"]
    assert alone["sentence"].startswith("uncoordinated loses ")
    assert "% accuracy." in alone["sentence"]
    assert (alone["best"], alone["reference"]) == (None, None)
    assert "they are not ranked" in page_data(finished_runs[1:])["answer"]["sentence"]
    assert answer([scheme("x")], [[None]]).sentence == "Nothing is known of x yet."


def test_the_sentence_is_in_the_page_without_any_script(compared_runs: list[Path]) -> None:
    page = report_page(compared_runs)
    sentence = page_data(compared_runs)["answer"]["sentence"]
    assert f'<p class="lead">{sentence}</p>' in page.split("<script")[0]


def test_few_or_equal_pairs_are_no_evidence() -> None:
    assert is_told({"mean": 1.0, "half": 0.5}, LEAST_PAIRS)
    assert not is_told({"mean": 1.0, "half": 0.5}, LEAST_PAIRS - 1)
    assert not is_told({"mean": 1.0, "half": 0.0}, 10)
    assert not is_told({"mean": 1.0, "half": float("nan")}, 10)
    assert not is_told({"mean": 1.0, "half": 1.5}, 10)


# One line per scheme


def test_ledger_and_plan_are_averaged_over_runs(finished_runs: list[Path]) -> None:
    data = page_data(finished_runs)
    receiver = data["schemes"][0]
    spent = [data["runs"][index]["trace"]["ledger"]["spent"] for index in receiver["runs"]]
    assert receiver["ledger"]["spent"]["mean"] == pytest.approx(np.mean(spent))
    assert receiver["ledger"]["spent"]["half"] == pytest.approx(interval(np.array(spent)).half_width)
    assert receiver["plan"]["converged"]["of"] == 2
    assert receiver["plan"]["seconds"]["mean"] >= 0


def test_titles_are_short(compared_runs: list[Path]) -> None:
    assert page_data(compared_runs)["title"] == "tiny: 4 planners"
    two = [path for path in compared_runs if path.name.startswith(("receiver", "uncoordinated"))]
    assert page_data(two)["title"] == "tiny: uncoordinated, receiver"


def test_a_variant_is_named_once(compared_runs: list[Path]) -> None:
    labels = [scheme["label"] for scheme in page_data(compared_runs)["schemes"]]
    assert labels == ["uncoordinated", "prices", "prices alone", "receiver"]
