"""What each of several changes is worth when all are made together, whatever their order.

With v(S) the score where the changes S are made, change f of n is worth its Shapley value

    φ_f = Σ_{S ∌ f} |S|! (n − |S| − 1)! / n! · (v(S ∪ {f}) − v(S)),

its gain averaged over all orders in which the changes can be made. The values add up to v(all) − v(none).
"""

from collections.abc import Mapping
from itertools import combinations
from math import factorial

import numpy as np
import numpy.typing as npt

from heliomesh.scenario.errors import refuse

Scores = npt.NDArray[np.float64]
_NONE = "none of them"


def label_of(changes: frozenset[str]) -> str:
    """How tables call a set of changes."""
    return " + ".join(sorted(changes)) or _NONE


def changes_of(label: str) -> frozenset[str]:
    """The set that a label names."""
    return frozenset() if label == _NONE else frozenset(label.split(" + "))


def shapley_values(score: Mapping[frozenset[str], Scores]) -> dict[str, Scores]:
    """φ of every change, paired by seed; v (seed,) of every set of changes → (seed,) by change."""
    changes = sorted(frozenset[str]().union(*score))
    subsets = [frozenset(one) for size in range(len(changes) + 1) for one in combinations(changes, size)]
    expected = f"scores of all {len(subsets)} sets of {', '.join(changes)}"
    for subset in subsets:
        refuse(subset not in score, "decomposition", expected, f"none of {label_of(subset)}")
    # share of the orders in which exactly so many changes come before another one
    count = len(changes)
    weight = [factorial(size) * factorial(count - size - 1) / factorial(count) for size in range(count)]
    found = {}
    for change in changes:
        others = [subset for subset in subsets if change not in subset]
        gains = [weight[len(subset)] * (score[subset | {change}] - score[subset]) for subset in others]
        found[change] = np.sum(gains, axis=0)
    return found
