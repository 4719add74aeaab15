"""Zero-hop best responses: devices plan in turn, each against the laws of the others' actions.

Every device minimises the same expected cost over its own policy, so a turn can only lower it; devices of one colour
share no receiver and may move together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heliomesh.problem.joint_form import CostForm
from heliomesh.problem.policy import Track
from heliomesh.problem.problem import Problem
from heliomesh.problem.single import action_laws, best_responses

_SLOT_ENTRIES = 1 << 24  # wedge-action entries handled at a time
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
    colour = torch.tensor(problem.colour, device=problem.device)
    actions = torch.zeros(
        problem.slots,
        problem.num_devices,
        problem.num_energy,
        dtype=problem.actions.index_type,
        device=problem.device,
    )
    futures = torch.zeros(actions.shape, dtype=problem.dtype, device=problem.device)
    prices = torch.zeros_like(law)
    cost, done, converged, exact = np.inf, 0, False, True
    for sweep in track(range(sweeps), description, sweeps):
        for turn in range(int(colour.max()) + 1):
            movers = colour == turn
            price = _by_slots(form.action_cost, law, problem)
            response, future, exact = best_responses(problem, price)
            actions[:, movers], futures[:, movers] = response[:, movers], future[:, movers]
            prices[:, movers] = price[:, movers]
            law = torch.where(movers.unsqueeze(-1), action_laws(problem, actions), law)
        after = float(_by_slots(form.cost, law, problem).mean())
        done, converged = sweep + 1, cost - after <= _ENOUGH * abs(after)
        cost = after
        if converged:
            break
    return Descent(actions, futures, prices, law, cost, done, converged and exact)


def _by_slots(function: Callable[[Tensor, int], Tensor], law: Tensor, problem: Problem) -> Tensor:
    """Apply a function of laws and their first slot in pieces that fit the cache and the memory."""
    at_once = max(1, _SLOT_ENTRIES // _entries(problem))
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


def descent_bytes(problem: Problem) -> float:
    """Peak memory of `descend`: actions and futures, all and those of a turn, and the wedges of a piece of slots."""
    width = torch.empty((), dtype=problem.dtype).element_size()
    values = float(problem.slots * problem.num_devices * problem.num_energy)
    entries = _entries(problem)
    piece = min(problem.slots * entries, max(_SLOT_ENTRIES, entries)) / len(problem.actions)
    return 2.5 * values * (width + problem.actions.index_type.itemsize) + _WEDGE_COPIES * width * piece


_WEDGE_COPIES = 5  # survival of each, of all, of all the rest, and what is made on the way
