"""What each part of planning for learning contributes: all parts, and all but one.

Trains on digits over paired seeds; differences are points over the coupled plan with the rule `model`. Two arms have
the terms of all parts but a plan for packets. The last line is the gain of all parts, in points.

    python benchmarks/learning_parts.py [--seeds 5] [--scenario ring10] [--alpha 0.1] [--evaluate-every 10]
"""

import argparse

import numpy as np

import heliomesh as hm
from heliomesh.jobs.scheme import Scheme
from heliomesh.pages.intervals import interval_text
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.experiments import COUPLED, SEPARATE
from heliomesh.studies.results import finals

REASSIGNED = {**COUPLED, "learning.aggregation": "reassigned"}
ARMS = (
    Scheme("all parts", "contributions", {}, SEPARATE),
    Scheme("but coupled actions", "contributions", {}, {**SEPARATE, "energy.actions": "coupled"}),
    Scheme("but the rule renormalized", "contributions", {}, {**SEPARATE, "learning.aggregation": "renormalized"}),
    Scheme("but the rule model", "contributions", {}, {**SEPARATE, "learning.aggregation": "model"}),
    Scheme("but λ = 0, so no agreement", "contributions", {}, {**SEPARATE, "cost.unlikeness": 0.0}),
    Scheme("but a guessed energy price", "contributions", {"passes": 0}, SEPARATE),
    Scheme("news", "news", {}, SEPARATE),
    Scheme("receiver, separate, reassigned, agreement", "receiver", {}, SEPARATE, agree=6),
    Scheme("receiver, coupled, reassigned, agreement", "receiver", {}, REASSIGNED, agree=6),
    Scheme("receiver, coupled, reassigned", "receiver", {}, REASSIGNED),
    Scheme("receiver, coupled, model", "receiver", {}, COUPLED),
)


def main() -> None:
    """Print one line per arm."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scenario", default="ring10")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--evaluate-every", type=int, default=10)
    asked = parser.parse_args()
    unlike = {"learning.partition": "dirichlet", "learning.alpha": asked.alpha}
    scenario = hm.Scenario.load(asked.scenario).override(unlike)
    compared = hm.compare(hm.build(scenario), ARMS, 1, train=asked.seeds, evaluate_every=asked.evaluate_every)
    points = {row.planner: 100 * finals(row.runs, "accuracy_mean") for row in compared.rows}
    over_run = {
        row.planner: 100 * np.array([run.metrics["accuracy_mean"].mean() for run in row.runs])
        for row in compared.rows
    }
    first, *_, reference = points
    print("| arm | accuracy % | at the end | over the run | joule |\n|---|---|---|---|---|")
    for row in compared.rows:
        end, run = points[row.planner] - points[reference], over_run[row.planner] - over_run[reference]
        joule = finals(row.runs, "spent_joule").mean()
        cells = [
            f"{points[row.planner].mean():.2f}",
            interval_text(interval(end), "+.2f"),
            interval_text(interval(run), "+.2f"),
        ]
        print(f"| {' | '.join([row.planner, *cells, f'{joule:.0f}'])} |")
    print(f"all parts over the coupled plan: {(points[first] - points[reference]).mean():+.2f} points")


if __name__ == "__main__":
    main()
