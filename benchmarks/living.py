"""Living networks: what re-planning recovers, what a warm start saves, and what pruning costs.

Prints one Markdown table per part and last a line of figures: the least recovered share, the share of false alarms,
the median ratio of planning times warm over cold, and what pruning saves.
"""

import argparse
import time

import numpy as np

import heliomesh as hm
from heliomesh.field.living.change import eras
from heliomesh.field.living.conditional_plan import Answering
from heliomesh.field.living.conditions import Conditions, problem_under
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.reaction import costs_by_slot
from heliomesh.field.living.replanning import Replanning
from heliomesh.physics.topology import spectral_gap
from heliomesh.planning import make_plan
from heliomesh.simulation.diagnostics import Interval, interval

STEPS = (
    ("ring10", 400, "harvest=0.5@100"),
    ("ring10", 200, "harvest=0.5@50"),
    ("ring10", 200, "link.3-4=off@50"),
    ("ring10", 200, "device.3=dead@50"),
    ("grid25", 200, "harvest=0.5@50"),
    ("grid25", 200, "link.7-12=off@50"),
)


def words(value: Interval, factor: float = 1.0, form: str = ".3f") -> str:
    return f"{factor * value.mean:{form}} ± {factor * value.half_width:{form}}"


def head(*columns: str) -> None:
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def recovery(episodes: int) -> str:
    head("scenario", "slots", "change", "stale", "re-planned", "fresh", "recovered %", "slots to detect", "seconds")
    least = np.inf
    for name, slots, change in STEPS:
        problem = hm.build(hm.Scenario.load(name).override({"slots": slots}))
        started = time.perf_counter()
        found = hm.live(problem, [change], episodes=episodes, train=0)
        costs = [words(interval(cost)) for cost in (found.stale, found.replanned, found.fresh)]
        seconds = f"{time.perf_counter() - started:.0f}"
        row(name, slots, change, *costs, words(found.recovered, 100, ".1f"), f"{found.delays.mean():.1f}", seconds)
        least = min(least, found.recovered.mean)
    return f"least recovered share {100 * least:.1f} %"


def alarms(episodes: int) -> str:
    head("scenario", "asked %", "episodes with an alarm in an unchanged world %")
    asked = 0.05
    problem = hm.build(hm.Scenario.load("ring10"))
    answering = Answering(problem, "prices")
    policy = Replanning(answering, answering.answer_to(Conditions()), Watch(asked))
    costs_by_slot(problem, {0: Conditions()}, policy, episodes, seed=7)
    share = np.mean([bool(a) for a in policy.alarms])
    row("ring10", 100 * asked, f"{100 * share:.1f} of {episodes} episodes")
    return f"false alarms {100 * share:.1f} % at {100 * asked:g} % asked"


def warm(episodes: int) -> str:
    head(
        "scenario",
        "change",
        "cold sweeps",
        "warm sweeps",
        "cold s",
        "warm s",
        "warm − cold, cost",
        "time warm / cold",
    )
    ratios = []
    for name, slots, change in STEPS:
        problem = hm.build(hm.Scenario.load(name).override({"slots": slots}))
        first = make_plan(problem, "prices", {}, bound=False)
        after = problem_under(problem, list(eras(problem, [change]).values())[-1])
        cold = make_plan(after, "prices", {}, bound=False)
        again = make_plan(after, "prices", {}, bound=False, previous=first)
        costs = [hm.simulate_costs(after, plan, episodes) for plan in (cold, again)]
        ratios.append(again.seconds / cold.seconds)
        times = f"{cold.seconds:.2f}", f"{again.seconds:.2f}"
        row(
            name, change, cold.rounds, again.rounds, *times, words(interval(costs[1] - costs[0])), f"{ratios[-1]:.2f}"
        )
    return f"median planning time warm / cold {np.median(ratios):.2f}"


def pruning(episodes: int) -> str:
    head("scenario", "least share of gap", "links with weight", "cost", "gap")
    costs = []
    for keep in (None, 1.0, 0.9, 0.5):
        problem = hm.build(hm.Scenario.load("geometric30").override({"network.keep_gap": keep}))
        costs.append(hm.simulate_costs(problem, hm.plan(problem, "prices", bound=False), episodes))
        links, gap = int((problem.topology.edge_weight > 0).sum()) // 2, spectral_gap(problem.topology.mixing)
        row("geometric30", keep, links, words(interval(costs[-1])), f"{gap:.5f}")
    return f"pruning saves {words(interval(costs[0] - costs[-1]))} at half the gap"


PARTS = {"recovery": recovery, "alarms": alarms, "warm": warm, "pruning": pruning}


def main() -> None:
    """Print the tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    figures = [PARTS[part](options.episodes) for part in options.only]
    print("\n" + "; ".join(figures))


if __name__ == "__main__":
    main()
