"""How good are the weights that a pilot finds, or that label counts suggest, against a grid of constant ones?

Trains `contributions` on digits for every weight of the grid, for the pilot's and for the guess, over paired seeds.
The last line is the largest loss of the pilot's weight against the best of the grid, in points.

    python benchmarks/unlikeness.py [--seeds 5] [--scenario ring10]
"""

import argparse
import time
from typing import Any

import numpy as np

import heliomesh as hm
from heliomesh.jobs.scheme import Scheme
from heliomesh.slot.learning_model import unlikeness
from heliomesh.studies.results import finals
from heliomesh.studies.schemes import SEPARATE

PARTITIONS: dict[str, dict[str, Any]] = {
    "iid": {"learning.partition": "iid"},
    "Dir(0.8)": {"learning.partition": "dirichlet", "learning.alpha": 0.8},
    "Dir(0.1)": {"learning.partition": "dirichlet", "learning.alpha": 0.1},
}
GRID = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)


def main() -> None:
    """Print one table per partition."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scenario", default="ring10")
    asked = parser.parse_args()
    worst = 0.0
    for name, partition in PARTITIONS.items():
        scenario = hm.Scenario.load(asked.scenario).override(partition)
        pilots = [hm.pilot(scenario, seed=seed) for seed in range(3)]
        found = float(np.mean([pilot.unlikeness for pilot in pilots]))
        weights = {f"{weight:g}": weight for weight in GRID} | {"pilot": found, "guess": unlikeness(scenario)}
        schemes = [
            Scheme(label, "contributions", {}, {**SEPARATE, "cost.unlikeness": weight})
            for label, weight in weights.items()
        ]
        started = time.perf_counter()
        rows = hm.compare(hm.build(scenario), schemes, 1, train=asked.seeds).rows
        arms = {row.planner: 100 * finals(row.runs, "accuracy_mean") for row in rows}
        best = max(arms[f"{weight:g}"].mean() for weight in GRID)
        for label, accuracy in arms.items():
            print(f"{name:9s} {label:6s} weight {weights[label]:5.2f}: {accuracy.mean():6.2f} %")
        seconds = np.mean([pilot.seconds for pilot in pilots])
        print(
            f"{name}: a pilot took {seconds:.1f} s, the trainings {time.perf_counter() - started:.0f} s", flush=True
        )
        worst = max(worst, best - arms["pilot"].mean())
    print(f"largest loss of the pilot's weight against the best of the grid: {worst:.2f} points")


if __name__ == "__main__":
    main()
