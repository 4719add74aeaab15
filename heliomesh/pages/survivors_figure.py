"""A picture of models in a changing world: accuracy over slots, and what the unchanged world has more."""

from pathlib import Path

import pandas as pd

from heliomesh.pages.figures import draw
from heliomesh.scenario.scenario import Scenario
from heliomesh.studies.line import Line, Scheme
from heliomesh.studies.results import Result
from heliomesh.studies.survivors import UNCHANGED, Survivors


def draw_survivors(models: Survivors, scenario: Scenario, title: str, target: Path) -> None:
    """Write the curves of all plans as SVG, with a mark at the first change."""
    curves = models.curves()
    results = [_result(scenario, plan, own) for plan, own in curves.groupby("plan", sort=False)]
    draw(results, title, None, UNCHANGED, target, marks=(models.change_slot,))


def _result(scenario: Scenario, plan: object, curves: pd.DataFrame) -> Result:
    line = Line("live", Scheme(str(plan), str(plan)), scenario, int(curves["seed"].nunique()))
    return Result(line, curves.assign(accuracy_mean=curves["accuracy"] / 100), {})
