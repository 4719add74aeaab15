"""Plan, simulate and train decentralized federated learning on energy-harvesting wireless devices."""

from heliomesh.comparison import compare
from heliomesh.planning import plan, planners
from heliomesh.problem.evaluation import exact_cost
from heliomesh.problem.policy import Plan
from heliomesh.problem.problem import Problem, build
from heliomesh.problem.size import TooLargeError
from heliomesh.scenario import Scenario, ScenarioError
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.ledger import energy_ledger
from heliomesh.simulation.trace import Trace, TraceError, simulate

__all__ = [
    "Plan",
    "Problem",
    "Scenario",
    "ScenarioError",
    "TooLargeError",
    "Trace",
    "TraceError",
    "build",
    "compare",
    "energy_ledger",
    "exact_cost",
    "plan",
    "planners",
    "simulate",
    "summarise",
]
