"""A lower bound on the cost of every policy, as a mean over sampled paths with its confidence interval.

E_H B(H) of `path_dual.py` bounds the optimum. Its mean over independent paths H has a confidence interval, as a
simulated cost has. What decides B, such as the functions D_j, comes from other paths, so the mean is unbiased. It is
far tighter than `dual.py` for link channels and shared skies, and takes any number of links. It also speaks of
harvests replayed from a random start: a path tells where they begin.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from heliomesh.problem.coordination import Coordination
from heliomesh.problem.dual import rough_levels
from heliomesh.problem.path_dual import PathDual
from heliomesh.problem.path_penalty import Foresight, foresight_gains, learned
from heliomesh.problem.paths import Paths, drawn_paths, with_known_clouds
from heliomesh.problem.policy import Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.problem.size import DEFAULT_LIMIT_GIB
from heliomesh.scenario import ScenarioError

_STEPS = 80
_TRAINING_SLOTS = 400  # of all training paths
_BATCH_ENTRIES = {"cpu": 1 << 23, "cuda": 1 << 27}  # joint actions of all receivers, slots and paths of a batch


@dataclass(frozen=True)
class SampledBound:
    """A bound on the expected cost per slot, as a mean over sampled paths."""

    per_path: tuple[float, ...]

    @property
    def mean(self) -> float:
        """At most the optimum, but for what sampling leaves open."""
        return math.fsum(self.per_path) / len(self.per_path)

    @property
    def half_width(self) -> float:
        """Of the 95 % confidence interval of the mean, by Student's t."""
        count = len(self.per_path)
        spread = float(np.std(self.per_path, ddof=1)) / math.sqrt(count)
        return float(stats.t.ppf(0.975, count - 1)) * spread

    @property
    def lower(self) -> float:
        """Lower end of that interval: a bound with a confidence of 97.5 %."""
        return self.mean - self.half_width


def sampled_bound(problem: Problem, *, paths: int = 16, seed: int = 0, track: Track = untracked) -> SampledBound:
    """Bound the expected cost per slot of the simulated process; for every policy that picks the scenario's powers.

    Replays from a random start and clouds that plans do not know of are bounded too: paths tell them.
    """
    if paths < 2:
        raise ScenarioError("paths", f"expected at least 2, actual value {paths}")
    wide = with_known_clouds(problem.wide)
    coordination = Coordination(wide)
    coordination.check_fits(DEFAULT_LIMIT_GIB)
    at_once = max(1, _BATCH_ENTRIES[wide.device.type] // max(coordination.entries * wide.slots, 1))
    training = drawn_paths(wide, range(-(-_TRAINING_SLOTS // wide.slots)), seed, purpose=1)
    levels = rough_levels(training.problem)
    dual = PathDual(training, levels)
    seen = learned(dual, dual.ascend(_STEPS, track, "training paths"))
    found: list[float] = []
    for first in range(0, paths, at_once):
        drawn = drawn_paths(wide, range(first, min(first + at_once, paths)), seed)
        found += (path_bounds(wide, drawn, seen, levels, track) / wide.slots).tolist()
    return SampledBound(tuple(found))


def path_bounds(problem: Problem, paths: Paths, seen: Foresight, levels: int, track: Track) -> torch.Tensor:
    """B(H) of every path, over the horizon; (path,)."""
    penalty, at_first = foresight_gains(problem, seen, paths, levels)
    dual = PathDual(paths, levels, penalty)
    return dual.certified(dual.ascend(_STEPS, track, "paths")) - at_first
