"""The paper's decentralised baseline: every device always sends at the largest power its battery pays for.

Where training and sending are actions of their own, a device trains first and sends with what is left.
"""

from dataclasses import dataclass

from torch import Tensor

from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, OwnStatePolicy, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Section


class Options(Section):
    """No options."""


@dataclass(frozen=True)
class Greedy(OwnStatePolicy):
    """Last affordable action: those that train come last, and among them powers rise."""

    problem: Problem
    stationary = True

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Last affordable action of every device."""
        actions = self.problem.actions
        return actions.last_of(self.problem.affordable(seen.battery_joule))


def plan(context: PlannerContext[Options]) -> Plan:
    """Nothing to compute."""
    return Plan("uncoordinated", Greedy(context.problem))
