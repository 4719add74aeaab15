"""Train independent learners in the PettingZoo environment and compare them with the planners.

    python examples/independent_learner.py [scenario]

A planner is a file. Those in `examples/planners` join the catalog once their folder is on the catalog's path; then
`compare` knows them by name, on the same luck as all others.
"""

import sys
from pathlib import Path

import heliomesh as hm
import heliomesh.planners
from heliomesh.studies.compare import Comparison

PLANNERS = ["receiver", "battery_threshold", "independent_learner", "uncoordinated"]


def main(scenario: str = "tiny", episodes: int = 64) -> Comparison:
    """Compare the learner with three planners and print a line for each."""
    folder = str(Path(__file__).parent / "planners")
    if folder not in heliomesh.planners.__path__:
        heliomesh.planners.__path__.append(folder)
    result = hm.compare(hm.build(hm.Scenario.load(scenario)), PLANNERS, episodes=episodes)
    for row in result.rows:
        if row.summary is None or row.gap is None:
            print(f"{row.planner:22} {row.refusal}")
            continue
        cost, gap = row.summary.cost, row.gap
        print(f"{row.planner:22} {cost.mean:.3f} ± {cost.half_width:.3f}  {gap.mean:+.2%} from {result.reference}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:2])
