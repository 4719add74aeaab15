"""A lower bound for receivers that hear too many devices for a table.

Give every pair (receiver i, device j it hears), slot t and action a price g_ij(t, a). For any prices

    Σ_j V_j[Σ_i g_ij]  +  Σ_t Σ_i E_h min_p ( f_i(h, p) − Σ_j g_ij(t, p_j) )   ≤   optimal cost of Σ_i f_i

where V_j[·] is device j's own battery dynamic program paying the prices: along any policy the prices paid cancel, the
first sum is at most what each device pays and the second at most what each receiver loses net of them (channels are
in their stationary law in every slot, and a receiver's minimum may use its channel but not its devices' batteries).
The bound is concave in g. It is raised by gradient ascent on a soft minimum of falling temperature, starting from
the expected cost given each device's action under zero-hop best responses, and certified with the hard minimum.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.problem.coordination import Coordination, Group
from heliomesh.problem.policy import Track
from heliomesh.problem.problem import Problem
from heliomesh.problem.single import action_values, best_responses, future_values, least_totals

_LAST_SLOTS = 4  # slots near the horizon that have prices of their own
_MOST_BLOCKS = 12  # groups of earlier slots that share prices


@dataclass(frozen=True)
class Priced:
    """Receivers of one group that are bounded by prices."""

    group: Group
    which: Tensor  # (receiver,) positions within the group
    cost: Tensor  # f_i: (channel state, receiver, joint action)
    channel_prob: Tensor  # (channel state,)


@dataclass(frozen=True)
class DualBound:
    """A certified bound and the devices' values that go with it."""

    bound: float  # on the total cost over the horizon
    futures: Tensor  # (slot, device, energy): E[v_j(t+1) | state after spending]


def slot_blocks(problem: Problem) -> npt.NDArray[np.int64]:
    """Slots that share prices; (slot,) block numbers. Each of the last slots is alone, earlier ones are grouped."""
    slots = problem.slots
    early = max(slots - _LAST_SLOTS, 0)
    blocks = min(_MOST_BLOCKS, early)
    grouped = (np.arange(early) * blocks) // max(early, 1)
    return np.concatenate([grouped, blocks + np.arange(slots - early)]).astype(np.int64)


def priced_groups(problem: Problem, coordination: Coordination, dual: set[int]) -> list[Priced]:
    """Cost tables of the receivers in ``dual`` over all channel states."""
    found = []
    levels, stationary = problem.channel.levels, problem.channel.stationary.to(problem.dtype)
    for group in coordination.groups:
        which = torch.tensor([n for n, i in enumerate(group.receivers.tolist()) if i in dual], dtype=torch.long)
        if not len(which):
            continue
        chosen = Group(group.receivers[which], group.actors[which], group.edges[which], group.offset)
        gain = problem.channel.gain
        neighbours = chosen.edges.shape[1]
        if problem.scenario.channel.state == "receiver":
            fading = gain.reshape(-1, 1, 1).expand(-1, len(which), neighbours)
            prob = stationary
        else:
            grid = torch.cartesian_prod(*[torch.arange(levels)] * neighbours).reshape(-1, neighbours)
            fading = gain[grid].unsqueeze(1).expand(-1, len(which), -1)
            prob = stationary[grid].prod(1)
        found.append(Priced(chosen, which, coordination.missed(chosen, fading), prob))
    return found


def raise_bound(
    problem: Problem,
    priced: list[Priced],
    laws: Tensor,
    own_price: Tensor,
    steps: int,
    track: Track,
) -> DualBound:
    """Ascend from the laws' expected costs; laws (slot, device, action), own_price (device, action) is fixed."""
    blocks = torch.from_numpy(slot_blocks(problem)).to(problem.device)
    count = int(blocks.max()) + 1
    weight = torch.bincount(blocks, minlength=count).to(problem.dtype)
    mean_law = torch.zeros(count, *laws.shape[1:], dtype=laws.dtype, device=laws.device)
    mean_law = mean_law.index_add_(0, blocks, laws) / weight.reshape(-1, 1, 1)
    prices = [_first_prices(one, mean_law).requires_grad_() for one in priced]
    optimiser = torch.optim.Adam(prices, lr=_FIRST_RATE)
    best, kept = -torch.inf, [price.detach().clone() for price in prices]
    for step in track(range(steps), "dual bound", steps):
        fade = step / max(steps - 1, 1)
        temperature = _FIRST_TEMPERATURE * (_LAST_TEMPERATURE / _FIRST_TEMPERATURE) ** fade
        for entry in optimiser.param_groups:
            entry["lr"] = _FIRST_RATE * (_LAST_RATE / _FIRST_RATE) ** fade
        optimiser.zero_grad()
        value = _soft_value(problem, priced, prices, blocks, weight, own_price, temperature)
        (-value).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if step % 10 == 9 or step == steps - 1:
            hard = _certify(problem, priced, prices, blocks, weight, own_price).bound
            if hard > best:
                best, kept = hard, [price.detach().clone() for price in prices]
    return _certify(problem, priced, kept, blocks, weight, own_price)


_FIRST_RATE, _LAST_RATE = 0.03, 0.001
_FIRST_TEMPERATURE, _LAST_TEMPERATURE = 0.05, 0.001


def _first_prices(one: Priced, law: Tensor) -> Tensor:
    """E[f_i | p_j = a], spread so that they add up to E[f_i] once; (block, receiver, heard, action)."""
    group, actions = one.group, law.shape[-1]
    expected = torch.tensordot(one.channel_prob, one.cost, dims=([0], [0]))  # (receiver, joint)
    table = expected.reshape(1, len(group.receivers), *(actions,) * group.heard)
    prices = []
    for own in range(group.heard):
        given = table.expand(len(law), *table.shape[1:])
        for axis in range(group.heard - 1, -1, -1):
            if axis != own:
                other = law[:, group.actors[:, axis]]  # (block, receiver, action)
                shape = [*other.shape[:2], *[1] * (given.ndim - 2)]
                shape[2 + axis if axis < own else given.ndim - 1] = actions
                given = (given * other.reshape(shape)).sum(2 + axis if axis < own else given.ndim - 1)
        prices.append(given)
    stacked = torch.stack(prices, dim=2)
    mean = (stacked * torch.stack([law[:, group.actors[:, k]] for k in range(group.heard)], dim=2)).sum(
        -1, keepdim=True
    )
    return (stacked - mean * (1 - 1 / group.heard)).detach()


def _net(one: Priced, price: Tensor) -> Tensor:
    """f_i − Σ_j g_ij for all joint actions; (block, channel state, receiver, joint action)."""
    blocks, receivers, heard, actions = price.shape
    joint = torch.zeros((), dtype=price.dtype, device=price.device)
    for axis in range(heard):
        shape = [blocks, receivers, *[1] * heard]
        shape[2 + axis] = actions
        joint = joint + price[:, :, axis].reshape(shape)
    return one.cost.unsqueeze(0) - joint.reshape(blocks, 1, receivers, -1)


def _device_prices(
    problem: Problem, priced: list[Priced], prices: list[Tensor], blocks: Tensor, own_price: Tensor
) -> Tensor:
    """What each device pays for each action; (slot, device, action)."""
    count = prices[0].shape[0]
    paid = own_price.expand(count, -1, -1)
    for one, price in zip(priced, prices, strict=True):
        flat = price.flatten(1, 2)  # (block, pair, action)
        paid = paid.index_add(1, one.group.actors.flatten(), flat)
    return paid[blocks]


def _soft_value(
    problem: Problem,
    priced: list[Priced],
    prices: list[Tensor],
    blocks: Tensor,
    weight: Tensor,
    own_price: Tensor,
    temperature: float,
) -> Tensor:
    """The bound with soft minima: smooth, and below the hard one."""
    paid = _device_prices(problem, priced, prices, blocks, own_price)
    value = torch.zeros(problem.num_devices, problem.num_energy, dtype=problem.dtype, device=problem.device)
    for slot in range(problem.slots - 1, -1, -1):
        future = value if slot == problem.slots - 1 else future_values(problem, slot, value)
        value = -temperature * torch.logsumexp(-action_values(problem, paid[slot], future) / temperature, dim=-1)
    result = (value * problem.initial_energy_law).sum()
    for one, price in zip(priced, prices, strict=True):
        least = -temperature * torch.logsumexp(-_net(one, price) / temperature, dim=-1)
        result = result + (torch.einsum("bcr,c->b", least, one.channel_prob) * weight).sum()
    return result


def _certify(
    problem: Problem, priced: list[Priced], prices: list[Tensor], blocks: Tensor, weight: Tensor, own_price: Tensor
) -> DualBound:
    """The bound with hard minima: valid for any prices."""
    with torch.no_grad():
        paid = _device_prices(problem, priced, prices, blocks, own_price)
        _, futures = best_responses(problem, paid)
        bound = float(least_totals(problem, paid, futures).sum())
        for one, price in zip(priced, prices, strict=True):
            least = _net(one, price).amin(-1)
            bound += float((torch.einsum("bcr,c->b", least, one.channel_prob) * weight).sum())
    return DualBound(bound, futures)
