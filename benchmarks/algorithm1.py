"""Algorithm 1 to the letter beside its default form: the effect of γ, R, the default action and the scope k.

Exact costs on rings with two channel, four battery and three power levels, T = 12, Metropolis mixing,
idle_penalty 0 (the paper's cost). Prints Markdown tables, and last the literal and the default form's gaps.
"""

from typing import Any

import heliomesh as hm
from heliomesh.planners.decentralized.planner import theorem_gamma
from heliomesh.simulation.diagnostics import theorem2_bound

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


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def main() -> None:
    """Print all tables."""
    problems = {(m, name): ring(m, changes) for m in (5, 8, 10) for name, changes in RINGS.items()}
    optima = {key: float(hm.plan(p, "centralized").expected_cost or 0) for key, p in problems.items()}
    schemes: dict[str, dict[str, Any]] = {
        "default form, k = 2": {},
        "default form, k = 2, all at once": {"order": "simultaneous"},
        "default form, k = 1": {"hops": 1},
        "default form, k = 0": {"hops": 0},
        "literal, γ = 100, R = 20": {"form": "literal"},
        "literal, γ = 100, R = 1": {"form": "literal", "rounds": 1},
        "literal, γ of Theorem 2, R = 20": {"form": "literal", "gamma": "theorem"},
        "literal, open-loop recursion": {"form": "literal", "bellman": "open-loop"},
        "myopic (exhaustive)": {"planner": "myopic", "mode": "exhaustive"},
        "uncoordinated": {"planner": "uncoordinated"},
    }
    print("Excess over the exact optimum in percent:\n")
    head = ["scheme", *(f"{m}-ring, {name}" for m, name in problems)]
    rows = [["optimum (cost per slot)", *(f"{optimum:.5f}" for optimum in optima.values())]]
    rows += [
        [name, *(gap(problems[key], optima[key], **options) for key in problems)] for name, options in schemes.items()
    ]
    table(head, rows)

    key = (8, "φ = .3")
    problem, optimum = problems[key], optima[key]
    print("Literal form on the 8-ring, φ = .3: γ down, R across; last column what Theorem 2 promises at R = 20:\n")
    counts = [0, 1, 2, 5, 20, 40]
    rows = []
    for gamma in (theorem_gamma(problem), 1.0, 10.0, 100.0, 1000.0):
        cells = [gap(problem, optimum, form="literal", gamma=gamma, rounds=r) for r in counts]
        bound = theorem2_bound(problem, gamma, 20)
        rows.append([f"{gamma:.3g}", *cells, f"gap ≤ {bound:.2g}" if bound < float("inf") else "nothing: D > 1"])
    table(["γ", *(f"R = {r}" for r in counts), "Theorem 2"], rows)

    print("Literal form on the 8-ring, γ = 100, R = 5: the default action matters:\n")
    rows = [
        [
            f"{float(problem.actions.power_watt[a]):g} W",
            gap(problem, optimum, form="literal", rounds=5, default_action=a),
        ]
        for a in range(len(problem.actions))
    ]
    table(["default action", "excess %"], rows)
    literal, default = gap(problem, optimum, form="literal"), gap(problem, optimum)
    print(f"8-ring, φ = .3: literal form {literal} %, default form {default} % above the optimum")


if __name__ == "__main__":
    main()
