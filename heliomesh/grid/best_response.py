"""Zero-hop best responses: devices plan in turn, each against the laws of the others' actions.

Every device minimises the same expected cost over its own policy, so a turn can only lower it; devices of one colour
share no receiver and may move together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heliomesh.grid.single_device import OwnPrograms
from heliomesh.model.policy import Track
from heliomesh.model.problem import Problem
from heliomesh.model.threads import fitting_threads, is_small
from heliomesh.slot.colour_rounds import by_colour
from heliomesh.slot.enumerated_cost import CostForm

_SLOT_ENTRIES = {"cpu": 1 << 26, "cuda": 1 << 29}  # wedge-action entries of large networks handled at a time
_FEW_ENTRIES = 1 << 24  # the same of small ones
_ENOUGH = 1e-5  # relative improvement of a sweep below which best responses stop


@dataclass(frozen=True)
class Descent:
    """Result of best responses."""

    actions: Tensor  # (slot, device, energy)
    futures: Tensor  # (slot, device, energy)
    prices: Tensor  # (slot, device, action): expected cost of what an action touches, that the actions answer
    laws: Tensor  # (slot, device, action)
    cost: float  # exact expected cost per slot of the actions
    sweeps: int
    converged: bool


def starting_laws(problem: Problem) -> Tensor:
    """Laws of actions to start from; (slot, device, action).

    Around a cycle slots that begin alike stay alike, and devices that do not see each other could not take turns. So
    there every device begins by acting mostly in its own turns, those of its colour.
    """
    even = even_laws(problem)
    if not problem.endless:
        return even
    colour = torch.tensor(problem.colour, device=problem.device)
    slot = torch.arange(problem.slots, device=problem.device).unsqueeze(1)
    acts = torch.where(slot % (int(colour.max()) + 1) == colour, _IN_TURN, 1 - _IN_TURN).unsqueeze(-1)
    return torch.cat([1 - acts, (acts / max(even.shape[-1] - 1, 1)).expand(even[..., 1:].shape)], -1).to(even)


_IN_TURN = 0.9  # share of its turns in which a device acts at first


def even_laws(problem: Problem) -> Tensor:
    """All actions equally likely; (slot, device, action)."""
    shape = (problem.slots, problem.num_devices, len(problem.actions))
    return torch.full(shape, 1 / shape[-1], dtype=problem.dtype, device=problem.device)


def descend(problem: Problem, form: CostForm, law: Tensor, sweeps: int, track: Track, description: str) -> Descent:
    """Best responses colour by colour until a sweep gains nothing; laws (slot, device, action)."""
    with fitting_threads(problem):
        movers = by_colour(problem.colour, problem.device)
        turns = [(devices, form.of(devices), OwnPrograms(problem, devices)) for devices in movers]
        shape = (problem.slots, problem.num_devices, problem.num_energy)
        actions = torch.zeros(shape, dtype=problem.actions.index_type, device=problem.device)
        futures = torch.zeros(shape, dtype=problem.dtype, device=problem.device)
        prices, law = torch.zeros_like(law), law.clone()
        cost, done, converged, exact = np.inf, 0, False, False
        for sweep in track(range(sweeps), description, sweeps):
            exact = True
            for devices, costs, programs in turns:
                price = by_slots(costs.action_cost, law, problem)
                response, future, settled = programs.best_responses(price)
                actions[:, devices], futures[:, devices], prices[:, devices] = response, future, price
                exact = exact and settled
                law[:, devices] = programs.action_laws(response)
            after = float(by_slots(form.cost, law, problem).mean())
            done, converged = sweep + 1, cost - after <= _ENOUGH * abs(after)
            cost = after
            if converged:
                break
        return Descent(actions, futures, prices, law, cost, done, converged and exact)


def by_slots(function: Callable[[Tensor, int], Tensor], law: Tensor, problem: Problem) -> Tensor:
    """Apply a function of laws and their first slot in pieces that fit the cache and the memory."""
    most = _FEW_ENTRIES if is_small(problem) else _SLOT_ENTRIES[problem.device.type]
    at_once = max(1, most // _entries(problem))
    pieces = torch.split(law, at_once)
    return torch.cat([function(piece, number * at_once) for number, piece in enumerate(pieces)])


def _entries(problem: Problem) -> int:
    """Wedge-action entries of a slot, or joint actions where these are listed."""
    if problem.link.table is not None:
        heard = (len(problem.heard_by(receiver)) for receiver in range(problem.num_devices))
        return sum(len(problem.actions) ** count for count in heard)
    wedges = sum(len(n) ** 2 for n in problem.topology.neighbours)
    levels = 1 if problem.scenario.channel.state == "receiver" else problem.channel.levels
    return max(1, wedges * len(problem.actions) ** 2 * levels)
