"""Plans without an end against a finite plan that is kept beyond its end or begun again, and against the bound.

Every plan meets the same episodes. The figure is the mean cost per slot from slot 200 on, where finite plans of 200
slots have ended.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from torch import Tensor

import heliomesh as hm
from heliomesh.model.policy import ActionPolicy, Observation

PLANNERS = ("receiver", "prices", "decentralized")
FIRST = 200  # slot from which on costs count, and the slots of finite plans


@dataclass(frozen=True)
class Beyond(ActionPolicy):
    """A finite plan after its end: its last slot kept, or all of it again."""

    problem: hm.Problem
    plan: ActionPolicy
    again: bool

    def action(self, slot: int, seen: Observation) -> Tensor:
        """The plan's."""
        return self.plan.action(slot % FIRST if self.again else min(slot, FIRST - 1), seen)


def late_cost(problem: hm.Problem, policy: ActionPolicy | hm.Plan, episodes: int) -> float:
    """Mean cost per slot from `FIRST` on."""
    trace = hm.simulate(problem, policy, episodes)
    return float(np.mean(trace.update_loss.sum(-1)[:, FIRST:]))


def main() -> None:
    """Print the table, and the largest gap last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", nargs="+", default=["ring10", "geometric30"])
    parser.add_argument("--planners", nargs="+", default=list(PLANNERS), choices=PLANNERS)
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=32)
    options = parser.parse_args()
    print("| scenario | planner | kept beyond its end | begun again | endless | repeats after | bound | gap |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    largest = 0.0
    for name in options.scenarios:
        scenario = hm.Scenario.load(name)
        short, problem = (hm.build(scenario.override({"slots": slots})) for slots in (FIRST, options.slots))
        bound = hm.average_bound(problem)
        assert bound is not None
        greedy = late_cost(problem, hm.plan(problem, "uncoordinated"), options.episodes)
        above = greedy / bound - 1
        print(f"| `{name}` | uncoordinated | | | {greedy:.3f} | 1 | {bound:.3f} | {above:.2%} |", flush=True)
        for planner in options.planners:
            finite, endless = hm.plan(short, planner).policy, hm.plan(problem, planner, endless=True).policy
            assert isinstance(finite, ActionPolicy)
            assert isinstance(endless, ActionPolicy)
            kept, again = (
                late_cost(problem, Beyond(problem, finite, again), options.episodes) for again in (False, True)
            )
            own = late_cost(problem, endless, options.episodes)
            gap = own / bound - 1
            largest = max(largest, gap)
            row = f"| `{name}` | {planner} | {kept:.3f} | {again:.3f} | {own:.3f} | {endless.period} |"
            print(f"{row} {bound:.3f} | {gap:.2%} |", flush=True)
    print(f"largest gap of an endless plan to the bound: {largest:.2%}")


if __name__ == "__main__":
    main()
