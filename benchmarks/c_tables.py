"""What the bits of a receiver's tables cost: flash of a C header, decisions and cost, against the plan in doubles.

All policies have common random numbers. Actions are compared in the states that the plan itself visits; of actions
that cost the same, doubles choose by their last digits. Exported plans round spending up to a grid; the last column
is their cost against that of the plan which reads values between grid points. Prints a Markdown table and last the
largest cost difference at 16 bits.
"""

import argparse
from dataclasses import dataclass, field, replace
from typing import get_args

import numpy as np
from torch import Tensor

import heliomesh as hm
from heliomesh.interop.c_kit import flash_bytes
from heliomesh.interop.c_rounds import RoundHeader, collecting_tree
from heliomesh.interop.rounded import RoundedTables, ValueWidth
from heliomesh.model.policy import ActionPolicy, Observation
from heliomesh.planners.receiver import ReceiverTables
from heliomesh.simulation.diagnostics import interval

IRREGULAR = {  # degrees 1 to 4, uneven harvests
    "network.topology": "edges",
    "network.devices": 7,
    "network.edges": [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 5], [5, 6]],
    "harvest.scale": [0.5, 0.8, 1.0, 1.0, 1.2, 1.5, 2.0],
}
CASES: dict[str, tuple[str, dict[str, object], dict[str, object]]] = {
    "`ring10`": ("ring10", {}, {}),
    "`ring10`, tolerance = 0.01": ("ring10", {}, {"tolerance": 0.01}),
    "`ring10`, half duplex": ("ring10", {"link.half_duplex": True}, {}),
    "`paper`": ("paper", {}, {}),
    "`tiny`, seven devices of degree 1 to 4": ("tiny", IRREGULAR, {}),
    "`grid25`, devices' own values": ("grid25", {}, {"largest_table": 0}),
}


@dataclass(frozen=True)
class Witness(ActionPolicy):
    """Acts as the plan does and notes how often others would have acted alike."""

    problem: hm.Problem
    plan: ReceiverTables
    others: list[RoundedTables]
    equal: list[list[float]] = field(default_factory=list)  # (slot, other)

    def action(self, slot: int, seen: Observation) -> Tensor:
        """The plan's."""
        chosen = self.plan.action(slot, seen)
        self.equal.append([float((other.action(slot, seen) == chosen).double().mean()) for other in self.others])
        return chosen


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--episodes", type=int, default=256)
    options = parser.parse_args()
    print("| plan | bits | flash per device, largest | RAM | equal actions | cost difference | of rounding up |")
    print("|---|---|---|---|---|---|---|", flush=True)
    largest = 0.0
    for case in options.cases:
        name, changes, planner_options = CASES[case]
        problem = hm.build(hm.Scenario.load(name).override(changes))
        between = hm.simulate_costs(
            problem, hm.plan(problem, "receiver", bound=False, **planner_options), options.episodes
        )
        plan = hm.plan(problem, "receiver", bound=False, interpolate=False, **planner_options)
        assert isinstance(plan.policy, ReceiverTables)
        problem = plan.policy.problem  # on the plan's grid
        widths: tuple[ValueWidth, ...] = get_args(ValueWidth)
        rounded = [RoundedTables(problem, plan.policy, width) for width in widths]
        witness = Witness(problem, plan.policy, rounded)
        exact = hm.simulate(problem, replace(plan, policy=witness), options.episodes).cost
        for policy, equal in zip(rounded, np.mean(witness.equal, axis=0), strict=True):
            tree = collecting_tree(problem)
            headers = [RoundHeader(policy, device, tree) for device in range(problem.num_devices)]
            flash, ram = max(map(flash_bytes, headers)), max(header.ram_bytes for header in headers)
            cost = hm.simulate(problem, replace(plan, policy=policy), options.episodes).cost
            difference = interval(100 * (cost - exact) / exact.mean())
            above = interval(100 * (cost - between) / between.mean())
            print(
                f"| {case} | {policy.value_width} | {flash:,} B | {ram} B | {100 * equal:.2f} % | "
                f"{difference.mean:+.3f} ± {difference.half_width:.3f} % | "
                f"{above.mean:+.2f} ± {above.half_width:.2f} % |",
                flush=True,
            )
            if policy.value_width == 16:
                largest = max(largest, abs(difference.mean))
    print(f"largest cost difference at 16 bits: {largest:.3f} %")


if __name__ == "__main__":
    main()
