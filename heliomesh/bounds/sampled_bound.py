"""A lower bound on the cost of every policy on the scenario's powers: a mean over sampled paths, and its confidence.

E_H B(H) of `path_dual.py` bounds the optimum. Its mean over independent paths H has a confidence interval, as a
simulated cost has. What decides B, such as the functions D_j, comes from other paths, so the mean is unbiased. It is
far tighter than `dual.py` for link channels and shared skies, and takes any number of links. It also speaks of
harvests replayed from a random start: a path tells where they begin.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import stdtrit

from heliomesh.bounds.dual import rough_levels
from heliomesh.bounds.path_dual import KEPT_ENTRIES, PathDual, is_large
from heliomesh.bounds.path_penalty import Foresight, foresight_gains, learned
from heliomesh.bounds.paths import Paths, drawn_paths, with_known_clouds
from heliomesh.common.arguments import Count, Index, checked
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB
from heliomesh.model.policy import Track, untracked
from heliomesh.model.problem import Problem, interpolated
from heliomesh.scenario.errors import refuse
from heliomesh.slot.coordination import Coordination

_TRAINING_SLOTS = 400  # of all training paths


@dataclass(frozen=True)
class SampledBound:
    """A bound on the expected cost per slot, as a mean over sampled paths.

    Attributes
    ----------
    per_path
        The bound along every path [cost per slot].
    """

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
        return float(stdtrit(count - 1, 0.975)) * spread

    @property
    def lower(self) -> float:
        """Lower end of that interval: a bound with a confidence of 97.5 %."""
        return self.mean - self.half_width


@checked
def sampled_bound(
    problem: Problem, *, paths: Count = 16, seed: Index = 0, steps: Index = 80, track: Track = untracked
) -> SampledBound:
    """Bound the expected cost per slot of the simulated process; for every policy that picks the scenario's powers.

    Replays from a random start and clouds that plans do not know of are bounded too: paths tell them. Where the joint
    actions of one path are too many to be listed at once, no penalty for foresight is learned: the bound holds
    without it, and large networks differ little from path to path.

    Parameters
    ----------
    problem
        What is bounded.
    paths
        Independent paths of the channels, at least two.
    seed
        Of the paths.
    steps
        Steps by which prices along a path are raised; any number gives a bound.
    track
        Shows progress: ``track(items, description, total)`` yields the items.

    Returns
    -------
    SampledBound
        The bound along every path, their mean and its confidence interval [cost per slot].
    """
    refuse(paths < 2, "paths", "at least 2", f"value {paths}")
    wide = with_known_clouds(problem.wide)
    coordination = Coordination(wide)
    coordination.check_fits(DEFAULT_LIMIT_GIB)
    at_once = KEPT_ENTRIES[wide.device.type] // max(coordination.entries * wide.slots, 1)
    taught = -(-_TRAINING_SLOTS // wide.slots) if at_once > 0 else 1  # without penalties one tells the grid
    training = drawn_paths(wide, range(taught), seed, purpose=1)
    levels = rough_levels(training.problem)
    seen = None
    if at_once > 0:
        dual = PathDual(training, levels)
        seen = learned(dual, dual.ascend(steps, track, "training paths"))
    search = PathSearch(wide, levels, narrow=seen is None and is_large(wide))
    found: list[float] = []
    for first in range(0, paths, max(at_once, 1)):
        drawn = drawn_paths(wide, range(first, min(first + max(at_once, 1), paths)), seed)
        found += (search.bounds(drawn, seen, steps, track) / wide.slots).tolist()
    return SampledBound(tuple(found))


@dataclass(frozen=True)
class PathSearch:
    """Bounds along paths; what all paths share is made once."""

    problem: Problem
    levels: int  # of the battery grid on which prices are sought
    narrow: bool  # whether they are sought in float32

    @cached_property
    def _certain(self) -> Coordination:
        return Coordination(interpolated(self.problem, self.levels))

    @cached_property
    def _rough(self) -> Coordination:
        return Coordination(replace(self._certain.problem, dtype=torch.float32)) if self.narrow else self._certain

    def bounds(self, paths: Paths, seen: Foresight | None, steps: int, track: Track) -> torch.Tensor:
        """B(H) of every path, over the horizon; (path,)."""
        penalty, at_first = (None, 0.0) if seen is None else foresight_gains(self.problem, seen, paths, self.levels)
        rough = replace(paths, problem=replace(paths.problem, dtype=self._rough.problem.dtype))
        prices = PathDual(rough, self.levels, penalty, self._rough).ascend(steps, track, "paths")
        dual = PathDual(paths, self.levels, penalty, self._certain)
        return dual.certified([price.to(dual.problem.dtype) for price in prices]) - at_first
