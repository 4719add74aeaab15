"""Algorithm 1 to the letter beside its default form: the effect of γ, R, the default action and the scope k.

γ and R belong together: averaging Q tables fades a device's own action round by round, so more rounds need
a larger γ. Every literal row therefore says its γ, and the best one of a stated search stands beside the letter.

First exact costs on rings with two channel, four battery and three power levels, T = 12, Metropolis mixing,
idle_penalty 0 (the paper's cost); there the search judges by the exact cost. Then `ring10` with T = 200, where it
judges by simulated costs of 40 slots, on validation seeds that no printed cost has. Prints Markdown tables, and last
the gaps of both forms.
"""

import argparse
from collections.abc import Iterable
from functools import partial
from typing import Any

import heliomesh as hm
from heliomesh.pages.intervals import interval_text
from heliomesh.planners.decentralized.gamma import DECADES, least, searched_gamma
from heliomesh.planners.decentralized.planner import theorem_gamma
from heliomesh.simulation.diagnostics import interval, theorem2_bound

RINGS = {
    "φ = .3": {"link.waterfall": 0.3},
    "φ = 1": {"link.waterfall": 1.0},
    "φ = .3, rich harvest": {"link.waterfall": 0.3, "harvest.prob": [0.1, 0.4, 0.5]},
}


def ring(devices: int, overrides: dict[str, Any]) -> hm.Problem:
    """A ring of `tiny` with the paper's idle cost."""
    changes = {"cost.idle_penalty": 0.0, "network.devices": devices} | overrides
    return hm.build(hm.Scenario.load("tiny").override(changes))


def gap(problem: hm.Problem, optimum: float, **options: Any) -> str:
    """Excess of the exact cost over the optimum, in percent."""
    planner = options.pop("planner", "decentralized")
    cost = hm.exact_cost(problem, hm.plan(problem, planner, **options).policy)
    return f"{100 * (cost / optimum - 1):+.2f}"


def searched(problem: hm.Problem, **options: Any) -> tuple[float, float]:
    """γ of the literal form with the least exact cost among those that a search tries, and that cost."""

    def cost_at(gamma: float) -> float:
        return hm.exact_cost(problem, literal_plan(problem, gamma, **options).policy)

    return least(cost_at)


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def on_small_rings() -> str:
    """Exact costs; returns the gaps of both forms on the 8-ring."""
    problems = {(m, name): ring(m, changes) for m in (5, 8) for name, changes in RINGS.items()}
    optima = {key: float(hm.plan(p, "centralized").expected_cost or 0) for key, p in problems.items()}
    schemes: dict[str, dict[str, Any]] = {
        "default form, k = 2": {},
        "default form, k = 2, all at once": {"order": "simultaneous"},
        "default form, k = 1": {"hops": 1},
        "default form, k = 0": {"hops": 0},
        "literal, γ = 100, R = 20": {"form": "literal"},
        "literal, γ = 100, R = 1": {"form": "literal", "rounds": 1},
        "literal, γ of Theorem 2, R = 20": {"form": "literal", "gamma": "theorem"},
        "literal, γ = 100, R = 20, open-loop recursion": {"form": "literal", "bellman": "open-loop"},
        "myopic (exhaustive)": {"planner": "myopic", "mode": "exhaustive"},
        "uncoordinated": {"planner": "uncoordinated"},
    }
    print("Excess over the exact optimum in percent:\n")
    head = ["scheme", *(f"{m}-ring, {name}" for m, name in problems)]
    rows = [["optimum (cost per slot)", *(f"{optimum:.5f}" for optimum in optima.values())]]
    rows += [
        [name, *(gap(problems[key], optima[key], **options) for key in problems)] for name, options in schemes.items()
    ]
    for rounds in (20, 1):  # an exact cost on the 5-ring takes seconds: it has no halves to split into
        found = {key: searched(p, rounds=rounds) for key, p in problems.items() if key[0] == 8}
        costs = [f"{100 * (found[key][1] / optima[key] - 1):+.2f}" if key in found else "–" for key in problems]
        rows.append([f"literal, best γ, R = {rounds}", *costs])
        gammas = [f"{found[key][0]:.0f}" if key in found else "–" for key in problems]
        rows.append([f"best γ, R = {rounds}", *gammas])
    table(head, rows)

    key = (8, "φ = .3")
    problem, optimum = problems[key], optima[key]
    print("Literal form on the 8-ring, φ = .3: γ down, R across; last column what Theorem 2 promises at R = 20:\n")
    counts = [0, 1, 2, 5, 20, 40]
    rows = []
    for gamma in (theorem_gamma(problem), *DECADES):
        cells = [gap(problem, optimum, form="literal", gamma=gamma, rounds=r) for r in counts]
        bound = theorem2_bound(problem, gamma, 20)
        rows.append([f"{gamma:.3g}", *cells, f"gap ≤ {bound:.2g}" if bound < float("inf") else "nothing: D > 1"])
    table(["γ", *(f"R = {r}" for r in counts), "Theorem 2"], rows)

    print("Literal form on the 8-ring, φ = .3: excess by default action, at γ = 100 and at the best γ:\n")
    rows = []
    for action in range(len(problem.actions)):
        cells = [f"default {float(problem.actions.power_watt[action]):g} W"]
        for rounds in (5, 20):
            cells.append(gap(problem, optimum, form="literal", rounds=rounds, default_action=action))
            _, cost = searched(problem, rounds=rounds, default_action=action)
            cells.append(f"{100 * (cost / optimum - 1):+.2f}")
        rows.append(cells)
    table(["default action", *(f"R = {r}, {which}" for r in (5, 20) for which in ("γ = 100", "best γ"))], rows)
    literal, default = gap(problem, optimum, form="literal"), gap(problem, optimum)
    return f"8-ring, φ = .3: literal form {literal} %, default form {default} % above the optimum"


def searched_short(problem: hm.Problem, **options: Any) -> float:
    """γ as the planner's own search chooses it, on the first slots and validation seeds."""

    def plan_at(short: hm.Problem, gamma: float) -> hm.Plan:
        return literal_plan(short, gamma, **options)

    return searched_gamma(problem, plan_at)


def literal_plan(problem: hm.Problem, gamma: float, **options: Any) -> hm.Plan:
    """The literal form at a fixed γ."""
    return hm.plan(problem, "decentralized", form="literal", gamma=gamma, **options)


EPISODES = 64
ROUNDS = (1, 5, 20)
DEFAULTS: dict[str, dict[str, Any]] = {
    "idle, full battery": {},
    "idle, empty battery": {"default_battery": "empty"},
    "idle, best gain": {"default_gain": "best"},
    "high power, full battery": {"default_action": 2},
}


def on_ring10(panels: Iterable[float], waterfalls: Iterable[float]) -> None:
    """Simulated costs of both forms and of the baselines, with γ from the validation seeds."""
    problems = {
        (panel, phi): hm.build(
            hm.Scenario.load("ring10").override({"harvest.panel_cm2": panel, "link.waterfall": phi})
        )
        for panel in panels
        for phi in waterfalls
    }
    print(f"`ring10`, T = 200, percent above the lower bound, {EPISODES} episodes; literal form at its best γ:\n")
    head = ["panel, φ", "bound", "receiver", "default form", "myopic", "uncoordinated"]
    head += ["literal, γ of Theorem 2", "literal, γ = 100"]
    rows = []
    for (panel, phi), problem in problems.items():
        bound = hm.lower_bound(problem) or float("nan")
        above = partial(above_bound, problem, bound)
        cells = [above("receiver"), above("decentralized"), above("myopic"), above("uncoordinated")]
        cells += [above("decentralized", form="literal", gamma=gamma) for gamma in ("theorem", 100.0)]
        for rounds in ROUNDS:
            gamma = searched_short(problem, rounds=rounds)
            cells += [above("decentralized", form="literal", gamma=gamma, rounds=rounds), f"{gamma:.0f}"]
        rows.append([f"{panel:g} cm², {phi:g}", f"{bound:.3f}", *cells])
    table([*head, *(name for r in ROUNDS for name in (f"literal, R = {r}", f"its γ, R = {r}"))], rows)

    print("`ring10`, T = 200, φ = 1: other hops at R = 20, literal at its best γ, percent above the bound:\n")
    kept = {panel: problem for (panel, phi), problem in problems.items() if phi == 1.0}
    rows = []
    for panel, problem in kept.items():
        for hops in range(4):
            gamma = searched_short(problem, hops=hops)
            above = partial(above_bound, problem, hm.lower_bound(problem) or float("nan"), "decentralized", hops=hops)
            rows.append([f"{panel:g} cm²", f"{hops}", above(), above(form="literal", gamma=gamma), f"{gamma:.0f}"])
    table(["panel", "k", "default form", "literal", "its γ"], rows)

    print(
        "`ring10`, T = 200, φ = 1: the literal form by what it takes devices out of sight to be and to do, each time"
    )
    print("at its best γ; differences from the first, paired by episode:\n")
    rows = []
    for (panel, problem), rounds in ((one, rounds) for one in kept.items() for rounds in (5, 20)):
        reference = None
        for name, options in DEFAULTS.items():
            gamma = searched_short(problem, rounds=rounds, **options)
            plan = literal_plan(problem, gamma, rounds=rounds, **options)
            costs = hm.simulate_costs(problem, plan, EPISODES)
            reference = costs if reference is None else reference
            cells = [f"{costs.mean():.3f}", interval_text(interval(costs - reference), "+.3f"), f"{gamma:.0f}"]
            rows.append([f"{panel:g} cm²", f"{rounds}", name, *cells])
    table(["panel", "R", "default", "cost", "difference", "its γ"], rows)


def above_bound(problem: hm.Problem, bound: float, planner: str, **options: Any) -> str:
    """Simulated cost of a plan above the bound, in percent."""
    costs = hm.simulate_costs(problem, hm.plan(problem, planner, **options), EPISODES)
    return interval_text(interval(100 * (costs / bound - 1)), "+.2f")


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=("rings", "ring10"), nargs="+", default=["rings", "ring10"])
    parser.add_argument("--panels", nargs="+", type=float, default=[12.5, 25.0], help="of ring10 [cm²]")
    parser.add_argument("--waterfalls", nargs="+", type=float, default=[0.3, 1.0, 3.0], help="φ of ring10")
    asked = parser.parse_args()
    if "ring10" in asked.on:
        on_ring10(asked.panels, asked.waterfalls)
    if "rings" in asked.on:
        print(on_small_rings())


if __name__ == "__main__":
    main()
