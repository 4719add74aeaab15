"""γ of the literal form by a search: averaging fades a device's own action round by round, so R needs its own γ.

Decades from 10 to 10⁶ are tried, then the halves of a decade beside the best one. What is best is left to a cost.
"""

from collections.abc import Callable

from heliomesh.common.streams import VALIDATION_SEED
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem, built_like
from heliomesh.simulation.costs import simulate_costs

DECADES = tuple(10.0**power for power in range(1, 7))
_SEARCH_SLOTS, _EPISODES = 40, 32


def least(cost_at: Callable[[float], float]) -> tuple[float, float]:
    """γ of the least cost among those tried, and that cost."""
    tried = {gamma: cost_at(gamma) for gamma in DECADES}
    best = min(tried, key=lambda gamma: tried[gamma])
    tried |= {gamma: cost_at(gamma) for gamma in (best / 10**0.5, best * 10**0.5)}
    best = min(tried, key=lambda gamma: tried[gamma])
    return best, tried[best]


def searched_gamma(problem: Problem, plan_at: Callable[[Problem, float], Plan]) -> float:
    """γ of the least simulated cost over the first slots, on seeds that no published result has."""
    slots = min(_SEARCH_SLOTS, problem.slots)
    short = built_like(problem, problem.scenario.override({"slots": slots}))

    def cost_at(gamma: float) -> float:
        return float(simulate_costs(short, plan_at(short, gamma), _EPISODES, VALIDATION_SEED).mean())

    return least(cost_at)[0]
