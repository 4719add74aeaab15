"""Every plan under every aggregation rule and action set, with and without an agreement phase, on `ring10`.

Fashion-MNIST, planners' default knobs, ten paired seeds: 2,160 runs, which are not published yet. The same command
goes on where it was stopped. --quick is digits. Last line: points of `contributions` over the best other plan, at the
least over all cells.

    python benchmarks/cells.py [--quick] [--device cuda] [--precision bf16] [--processes 16] [--out FOLDER]
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import heliomesh as hm
from heliomesh.commands.options import process_maps
from heliomesh.pages.tables import figure_text
from heliomesh.studies.experiments import FASHION_MNIST, THREE_PARTITIONS, experiment
from heliomesh.studies.line import Line
from heliomesh.studies.reproduce import Figure
from heliomesh.studies.schemes import AGREE_SLOTS, CHANGES, PLANNERS, first_scheme

UPDATE: Mapping[str, Any] = {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"}


@experiment("Every plan under all terms, Fashion-MNIST, ring10", "contributions")
def cells(quick: bool) -> list[Line]:
    """Which plan is best under which aggregation rule, action set and agreement phase? Defaults, on `ring10`.

    The paper's rule adds updates, so whoever does not train has nothing to say: it has neither separate actions nor
    agreement, and comes with the weights under which it does not diverge.
    """
    terms: dict[str, tuple[dict[str, Any], int]] = {"update, coupled": ({"energy.actions": "coupled", **UPDATE}, 0)}
    for rule, actions, agree in product(CHANGES["rule"], CHANGES["actions"], (0, AGREE_SLOTS)):
        changes = {"learning.aggregation": rule, "energy.actions": actions}
        terms[f"{rule}, {actions}{', agreement' if agree else ''}"] = changes, agree
    return [
        FASHION_MNIST.line(quick, replace(first_scheme(planner), changes=own, agree=agree), place, partition)
        for setting, partition in THREE_PARTITIONS.items()
        for kind, (own, agree) in terms.items()
        for place in (f"{setting}, {kind}",)
        for planner in PLANNERS
        if planner != "bids"
    ]


def lead(figure: Figure) -> float:
    """Points by which `contributions` is ahead of the best other plan, the least over cells."""
    by_cell: dict[str, dict[str, float]] = {}
    for one in figure.results:
        by_cell.setdefault(one.line.setting, {})[one.label] = float(one.accuracy.mean())
    return min(own.pop("contributions") - max(own.values()) for own in by_cell.values())


def main() -> None:
    """Plan on all processes, train in stacks, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--together", type=int, default=160, help="runs trained in one stack")
    parser.add_argument("--out", type=Path, default=Path("results/cells"))
    asked = parser.parse_args()
    maps = process_maps(asked.processes, asked.device)
    hm.reproduce([cells], asked.out, quick=asked.quick, only="plan", **maps)
    training = maps if asked.device == "cpu" else {}  # one stack fills a GPU
    work = {"device": asked.device, "precision": asked.precision, "runs_at_once": asked.together, **training}
    (figure,) = hm.reproduce([cells], asked.out, quick=asked.quick, **work)
    print(figure_text(figure))
    print(f"contributions ahead of the best other plan, at the least: {lead(figure):+.2f} points")


if __name__ == "__main__":
    main()
