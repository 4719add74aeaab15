"""Adaptive scope: a larger neighbourhood only for the devices where it pays.

The `decentralized` planner with k + 1 hops for everyone costs far more tables and messages than with k and helps some
devices more than others. Both are planned and simulated with common random numbers; a device's gain is what it and
its neighbours lose less, each neighbour's share divided among all that could have helped it. Devices are then grown
in the order of gain, an eighth of them more at a time, until the mixed plan saves as large a share of the full plan's
saving as asked for. What counts is the measured cost of the mixed plan, not the attribution.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.arguments import Count, Index, checked
from heliomesh.planning import make_plan
from heliomesh.problem.overhead import Overhead
from heliomesh.problem.policy import Track, untracked
from heliomesh.problem.problem import Problem
from heliomesh.scenario import ScenarioError
from heliomesh.simulation.diagnostics import Interval, interval
from heliomesh.simulation.trace import simulate

Array = npt.NDArray[np.float64]
_STEPS = 8  # sizes tried between nobody and everybody


@dataclass(frozen=True)
class Scope:
    """One choice of who sees how far, measured."""

    grown: tuple[int, ...]  # devices that see one hop more
    update_loss: Array  # (episode, device) mean x_j
    overhead: Overhead

    @property
    def cost(self) -> Array:
        """Cost per slot; (episode,)."""
        total: Array = self.update_loss.sum(1)
        return total


@dataclass(frozen=True)
class AdaptedScope:
    """Nobody grown, the chosen devices grown, everybody grown."""

    hops: int
    base: Scope
    chosen: Scope
    full: Scope

    @property
    def gain(self) -> Interval:
        """Cost per slot saved by the chosen scope, paired by episode."""
        return interval(self.base.cost - self.chosen.cost)

    @property
    def full_gain(self) -> Interval:
        """Cost per slot that growing everybody saves."""
        return interval(self.base.cost - self.full.cost)

    def overhead_saved(self, field: str) -> float:
        """Share of the full scope's extra traffic that the chosen one does without."""
        base, chosen, full = (float(getattr(s.overhead, field)) for s in (self.base, self.chosen, self.full))
        return (full - chosen) / (full - base) if full > base else 0.0


@checked
def adapt_scope(
    problem: Problem,
    hops: Index = 0,
    options: Mapping[str, Any] | None = None,
    *,
    keep_gain: float = 0.8,
    episodes: Count = 64,
    seed: Index = 0,
    track: Track = untracked,
) -> AdaptedScope:
    """Let devices of Algorithm 1 see one hop more where it pays.

    Nobody sees further where the full growth saves nothing significant.

    Parameters
    ----------
    problem
        What is planned for.
    hops
        What every device sees at first.
    options
        Options of the planner `decentralized`.
    keep_gain
        Least share of the full growth's gain that is kept, from 0 to 1.
    episodes
        Episodes of each plan.
    seed
        Draws the episodes.
    track
        Shows progress: ``track(items, description, total)`` yields the items.

    Returns
    -------
    AdaptedScope
        Who sees further, and what that saves.
    """
    if not 0 < keep_gain <= 1:
        raise ScenarioError("keep_gain", f"expected a share above 0 and up to 1, actual value {keep_gain:g}")

    def measured(grown: tuple[int, ...]) -> Scope:
        chosen = {**(options or {}), "hops": hops, "grown": grown}
        made = make_plan(problem, "decentralized", chosen, bound=False, track=track)
        trace = simulate(problem, made, episodes, seed, track=track)
        return Scope(grown, trace.update_loss.mean(1), made.overhead)

    everyone = tuple(range(problem.num_devices))
    base, full = measured(()), measured(everyone)
    saving = interval(base.cost - full.cost)
    if not saving.mean > saving.half_width:
        return AdaptedScope(hops, base, base, full)
    order = np.argsort(-device_gains(problem, base, full), kind="stable")
    for step in range(1, _STEPS):
        grown = tuple(sorted(order[: -(-step * len(order) // _STEPS)].tolist()))
        chosen = measured(grown)
        if (base.cost - chosen.cost).mean() >= keep_gain * saving.mean:
            return AdaptedScope(hops, base, chosen, full)
    return AdaptedScope(hops, base, full, full)


def device_gains(problem: Problem, base: Scope, full: Scope) -> Array:
    """What a device and its neighbours lose less, each loss shared among those around it; (device,)."""
    less = (base.update_loss - full.update_loss).mean(0)
    near = problem.topology.mixing > 0
    share = less / near.sum(1)
    gains: Array = near @ share
    return gains
