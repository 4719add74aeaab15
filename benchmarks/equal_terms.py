"""Which plan is best where all have the same energy, actions and aggregation rule, and one search tuned them all?

Three experiments on Fashion-MNIST, over ten paired seeds: `learning`, every planner as tuned; `parts`, all sixteen
sets of the four changes that lead from `receiver` on the paper's terms to `contributions`; `cells`, every plan under
all terms. They are not published yet: together they are 4,500 runs. The same command goes on where it was stopped.
--quick is digits, on `ring10` alone. Last line: points of `contributions` over the best other plan, at the least.

    python benchmarks/equal_terms.py learning parts cells [--quick] [--device cuda] [--processes 16] [--out FOLDER]
"""

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import heliomesh as hm
from heliomesh.commands.options import process_maps
from heliomesh.jobs.job import IDEAL
from heliomesh.jobs.scheme import Scheme, scheme_of
from heliomesh.pages.tables import figure_text
from heliomesh.studies.decomposition import label_of
from heliomesh.studies.experiments import (
    COUPLED,
    FASHION_MNIST,
    SEPARATE,
    THREE_PARTITIONS,
    experiment,
    settings_of_networks,
)
from heliomesh.studies.line import Line
from heliomesh.studies.reproduce import Figure

TUNED = Path(__file__).with_name("tuned.toml")  # what `tune.py` chose on held-out samples and seeds of its own
PLANNERS = (
    *("contributions", "bids", "news", "receiver", "decentralized", "myopic", "uncoordinated", "turns", "skiptrain"),
)
NOT_TUNED: Mapping[str, Mapping[str, Any]] = {"decentralized": {"hops": 2}}  # as the paper says
AGREE_SLOTS = 6
# what stands beside them on the paper's own terms, and what no plan can reach: all train and send, nothing is lost
ON_PAPER = tuple(
    Scheme(f"{name}, paper's terms", name, NOT_TUNED.get(name, {}), COUPLED) for name in ("receiver", "decentralized")
)
# a trick without a plan for learning: the paper's actions, the better rule, and a last phase of agreement
COUPLED_AGREEING = Scheme(
    "receiver, coupled", "receiver", {}, {**COUPLED, "learning.aggregation": "reassigned"}, agree=AGREE_SLOTS
)
IDEALS = (Scheme(IDEAL, IDEAL, changes=COUPLED), Scheme(f"{IDEAL}, agreement", IDEAL, changes=COUPLED, agree=6))
CHANGES: Mapping[str, tuple[str, str]] = {  # from one to the other
    "rule": ("model", "reassigned"),
    "actions": ("coupled", "separate"),
    "agreement": ("none", f"last {AGREE_SLOTS} slots"),
    "plan": ("receiver", "contributions"),
}
UPDATE: Mapping[str, Any] = {"learning.aggregation": "update", "network.mixing": "lazy-metropolis"}


@cache
def tuned() -> Mapping[str, Mapping[str, str]]:
    """Scheme by planner, by setting."""
    return tomllib.loads(TUNED.read_text(encoding="utf-8"))


def first_scheme(planner: str) -> Scheme:
    """What the search for a planner begins with."""
    return Scheme(planner, planner, NOT_TUNED.get(planner, {}))


def fair_scheme(planner: str, setting: str) -> Scheme:
    """The planner as it was tuned for a setting, on equal terms."""
    chosen = tuned().get(setting, {}).get(planner)
    found = first_scheme(planner) if chosen is None else scheme_of(chosen)
    return replace(found, label=planner, changes={**SEPARATE, **found.changes})


def paying(scheme: Scheme) -> Scheme:
    """The scheme with its messages drawn from batteries, which nobody else's are."""
    return replace(
        scheme, label=f"{scheme.label}, control paid", changes={**scheme.changes, "energy.control": "paid"}
    )


@experiment("Planning for learning on equal terms, Fashion-MNIST", "contributions")
def learning(quick: bool) -> list[Line]:
    """Planning for learning, planning for packets and rules of thumb: equal terms, tuned by one search.

    Every planner on equal terms, two of them on the paper's own, and the ideal, which does not ask for panels. Two
    hops of the paper's proposal fit into memory on `ring10` only.
    """
    found = []
    for name, setting, changes, partition in settings_of_networks(quick):
        schemes = [*(fair_scheme(planner, setting) for planner in PLANNERS), COUPLED_AGREEING, *ON_PAPER]
        schemes += [paying(fair_scheme("bids", setting)), *(() if changes else IDEALS)]
        found += [
            FASHION_MNIST.line(quick, scheme, setting, changes, partition, network=name)
            for scheme in schemes
            if scheme.planner != "decentralized" or name == "ring10"
        ]
    return found


@experiment("The parts of planning for learning, Fashion-MNIST", label_of(frozenset()), shared=True)
def parts(quick: bool) -> list[Line]:
    """What are the aggregation rule, separate actions, an agreement phase and the plan worth, each on its own?"""
    subsets = [frozenset(some) for size in range(len(CHANGES) + 1) for some in combinations(CHANGES, size)]
    found = []
    for name, setting, changes, partition in settings_of_networks(quick):
        for made in subsets if name == "ring10" else ():
            rule, actions, _, planner = (pair[one in made] for one, pair in CHANGES.items())
            terms = {"learning.aggregation": rule, "energy.actions": actions}
            scheme = Scheme(label_of(made), planner, {}, terms, AGREE_SLOTS if "agreement" in made else 0)
            found.append(FASHION_MNIST.line(quick, scheme, setting, changes, partition))
    return found


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


EXPERIMENTS = {one.name: one for one in (learning, parts, cells)}


def lead(figure: Figure) -> float:
    """Points by which `contributions` is ahead of the best other plan on equal terms, the least over settings."""
    by_setting: dict[str, dict[str, float]] = {}
    for one in figure.results:
        if one.label in PLANNERS:
            by_setting.setdefault(one.line.setting, {})[one.label] = float(one.accuracy.mean())
    return min(own.pop("contributions") - max(own.values()) for own in by_setting.values())


def main() -> None:
    """Plan on all processes, train in stacks, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("asked", nargs="*", choices=EXPERIMENTS, default=["learning"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--together", type=int, default=160, help="runs trained in one stack")
    parser.add_argument("--out", type=Path, default=Path("results/equal_terms"))
    asked = parser.parse_args()
    chosen = [EXPERIMENTS[name] for name in dict.fromkeys(asked.asked)]
    maps = process_maps(asked.processes, asked.device)
    hm.reproduce(chosen, asked.out, quick=asked.quick, only="plan", **maps)
    training = maps if asked.device == "cpu" else {}  # one stack fills a GPU
    work = {"device": asked.device, "runs_at_once": asked.together, **training}
    figures = {figure.name: figure for figure in hm.reproduce(chosen, asked.out, quick=asked.quick, **work)}
    for figure in figures.values():
        print(figure_text(figure))
    leads = {name: lead(figure) for name, figure in figures.items() if name != "parts"}
    print(
        "contributions ahead of the best other plan, at the least: " + str({n: round(v, 2) for n, v in leads.items()})
    )


if __name__ == "__main__":
    main()
