"""Means over slots of large networks: the slot loop without a trace, so memory does not grow with the horizon."""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.common.arguments import NOT_EMPTY, Count, Index, checked
from heliomesh.model.overhead import refuse_uncounted
from heliomesh.model.policy import Plan, Policy, Track, as_plan, sees_present_only, untracked
from heliomesh.model.problem import Problem
from heliomesh.model.threads import fitting_threads
from heliomesh.simulation.blocks import for_every_slot, run_blocks
from heliomesh.simulation.slot_loop import STEADY, Worlds
from heliomesh.simulation.trace import check_finite

Floats = npt.NDArray[np.float64]


class EpisodeMeans(NamedTuple):
    """Means over the slots of episodes; (episode,) each."""

    cost: Floats  # updates lost per slot
    dark: Floats  # share of devices whose battery did not pay for the slot's drain


@checked
def simulate_costs(
    problem: Problem,
    plan: Plan | Policy,
    episodes: Count | Annotated[Sequence[Index], NOT_EMPTY] = 64,
    seed: Index = 0,
    *,
    truth: Mapping[Index, Problem] = STEADY,
    at_once: Count = 64,
    track: Track = untracked,
) -> Floats:
    """Costs of episodes without their trace, the same numbers as ``simulate(...).cost``.

    Parameters
    ----------
    problem
        The world as it is planned for.
    plan
        A plan, or any policy: an object with ``decide(slot, seen)``.
    episodes
        How many, from number 0 on, or their numbers.
    seed
        Draws channels, harvests and packet losses.
    truth
        The world as it is from a slot on; by default the problem all along.
    at_once
        Episodes that are simulated together.
    track
        Shows progress: ``track(items, description, total)`` yields the items.

    Returns
    -------
    numpy.ndarray
        Updates lost per slot, a mean over slots; (episode,).
    """
    numbers = list(range(episodes)) if isinstance(episodes, int) else list(episodes)
    return simulate_means(problem, plan, numbers, seed, truth, track, at_once).cost


def simulate_means(
    problem: Problem, plan: Plan | Policy, episodes: list[int], seed: int, truth: Worlds, track: Track, at_once: int
) -> EpisodeMeans:
    """Costs and darkness of episodes without their trace; other arguments as of `simulate_costs`."""
    plan = as_plan(plan)
    refuse_uncounted(problem, plan.policy, plan.overhead, plan.planner)
    packets = not sees_present_only(problem, plan.policy)  # else costs need only their error rates
    found = []
    for first in range(0, len(episodes), at_once):
        chunk = episodes[first : first + at_once]
        cost, dark = torch.zeros(2, len(chunk), dtype=torch.float64, device=problem.device)
        blocks = run_blocks(problem, plan.policy, chunk, seed, truth, packets)
        with fitting_threads(problem):
            for block in track(for_every_slot(blocks), f"simulate {plan.planner}", problem.slots):
                if block is None:
                    continue
                for lost in block.update_loss.sum(-1).reshape(-1, len(chunk)):  # in the same order for all blocks
                    cost += lost
                dark += block.dark.double().mean(-1).reshape(-1, len(chunk)).sum(0)
        check_finite(cost.cpu().numpy())
        found.append(torch.stack((cost, dark)).cpu().numpy() / problem.slots)
    return EpisodeMeans(*np.concatenate(found, axis=1))
