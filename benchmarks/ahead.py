"""Algorithm 1 against `receiver` and `prices` on every shipped scenario: cost with common random numbers, and
planning time.

Algorithm 1 runs in both forms, with the largest number of hops that fits the memory limit; the better one is compared
with the quickest plan that costs no more. Prints a Markdown table and last the smallest ratio of planning times and
the largest cost difference.
"""

import argparse

import numpy as np

import heliomesh as hm
from heliomesh.scenario.files import shipped
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.compare import Row


def best(rows: list[Row]) -> Row:
    """The row with the least mean cost."""
    return min(rows, key=lambda row: float(np.mean(row.cost)) if row.cost is not None else np.inf)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", nargs="+", default=shipped(), choices=shipped())
    parser.add_argument("--episodes", type=int, default=64)
    options = parser.parse_args()
    print("| scenario | planner | cost | planning s |")
    print("|---|---|---|---|", flush=True)
    ratios, differences = [], []
    for name in options.scenarios:
        problem = hm.build(hm.Scenario.load(name))
        found = hm.compare(problem, ["decentralized", "receiver", "prices"], options.episodes)
        done = [row for row in found.rows if row.plan is not None and row.summary is not None]
        for row in done:
            cost = row.summary.cost
            print(f"| {name} | {row.planner} | {cost.mean:.4f} ± {cost.half_width:.4f} | {row.plan.seconds:.2f} |")
        paper = best([row for row in done if row.planner.startswith("decentralized")])
        others = [row for row in done if not row.planner.startswith("decentralized")]
        ahead = [row for row in others if row.cost.mean() <= paper.cost.mean()]
        ours = min(ahead, key=lambda row: row.plan.seconds) if ahead else best(others)
        difference = interval(100 * (ours.cost - paper.cost) / paper.cost.mean())
        ratios.append(paper.plan.seconds / ours.plan.seconds)
        differences.append(difference.mean)
        print(
            f"  ({ours.planner} costs {difference.mean:+.2f} ± {difference.half_width:.2f} % of {paper.planner}'s, "
            f"planned {ratios[-1]:.1f} times as fast)",
            flush=True,
        )
    print(
        f"planning time of Algorithm 1 over ours at least {min(ratios):.1f}, cost at most {max(differences):+.2f} %"
    )


if __name__ == "__main__":
    main()
