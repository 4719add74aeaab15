"""What are the aggregation rule, separate actions, an agreement phase and the plan worth, each on its own?

Trains all sixteen sets of the four changes that lead from `receiver` with coupled actions and the rule `model` to
`contributions` as it is shipped, over paired seeds, and prints every cell and what each change is worth whatever the
order (Shapley). The full form is `ring10` with both panels under three partitions of Fashion-MNIST, 960 runs; --quick
is digits. The same command goes on where it was stopped. Last line: what all four are worth, the least over settings.

    python benchmarks/factorial.py [--quick] [--device cuda] [--plan-processes 16] [--out FOLDER]
"""

import argparse
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

import heliomesh as hm
from heliomesh.commands.options import process_maps
from heliomesh.pages.tables import figure_text
from heliomesh.studies.decomposition import label_of
from heliomesh.studies.experiments import FASHION_MNIST, THREE_PARTITIONS, Experiment
from heliomesh.studies.line import Line

AGREE_SLOTS = 6
CHANGES: Mapping[str, tuple[str, str]] = {  # from one to the other
    "rule": ("model", "reassigned"),
    "actions": ("coupled", "separate"),
    "agreement": ("none", f"last {AGREE_SLOTS} slots"),
    "plan": ("receiver", "contributions"),
}
PANELS: Mapping[str, dict[str, Any]] = {"": {}, ", 25 cm²": {"harvest.panel_cm2": 25.0}}


def schemes() -> list[hm.Scheme]:
    """A scheme per set of changes."""
    found = []
    for made in [frozenset(some) for size in range(len(CHANGES) + 1) for some in combinations(CHANGES, size)]:
        rule, actions, _, planner = (pair[name in made] for name, pair in CHANGES.items())
        settings = {"learning.aggregation": rule, "energy.actions": actions}
        agree = AGREE_SLOTS if "agreement" in made else 0
        found.append(hm.Scheme(label_of(made), planner, {}, settings, agree))
    return found


def lines(quick: bool) -> list[Line]:
    """All cells."""
    return [
        FASHION_MNIST.line(quick, scheme, f"ring10{panel}, {setting}", own, partition)
        for panel, own in PANELS.items()
        if not (quick and panel)
        for setting, partition in THREE_PARTITIONS.items()
        for scheme in schemes()
    ]


def main() -> None:
    """Plan on all processes, train in stacks, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plan-processes", type=int, default=2)
    parser.add_argument("--together", type=int, default=160)
    parser.add_argument("--out", type=Path, default=Path("results/factorial"))
    asked = parser.parse_args()
    question, title = (__doc__ or "").splitlines()[0], "The parts of planning for learning, Fashion-MNIST"
    parts = Experiment("factorial", question, title, lines, label_of(frozenset()), shared=True)
    maps = process_maps(asked.plan_processes, asked.device)
    hm.reproduce([parts], asked.out, quick=asked.quick, only="plan", **maps)
    training = maps if asked.device == "cpu" else {}  # one stack fills a GPU
    work = {"device": asked.device, "runs_at_once": asked.together, **training}
    (figure,) = hm.reproduce([parts], asked.out, quick=asked.quick, **work)
    print(figure_text(figure))
    worth = {setting: np.sum(list(own.values()), axis=0).mean() for setting, own in figure.shares.items()}
    least = min(worth, key=worth.__getitem__)
    print(f"all four together are worth {worth[least]:+.2f} points on {least}, and more elsewhere")


if __name__ == "__main__":
    main()
