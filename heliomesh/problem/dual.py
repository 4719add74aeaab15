"""A lower bound for receivers that hear too many devices for a table.

Give every pair (receiver i, device j it hears), slot t, level h of the channel between them and action a price
g_ij(t, h, a). For any prices

    Σ_j V_j[Σ_i g_ij]  +  Σ_t Σ_i E_h min_p ( f_i(h, p) − Σ_j g_ij(t, h, p_j) )   ≤   optimal cost of Σ_i f_i

where V_j[·] is device j's own dynamic program paying the prices, over its battery and the channels they move with:
along any policy the prices paid cancel, the first sum is at most what each device pays (what else a policy may know
is independent of the device's own battery and channels) and the second at most what each receiver loses net of them
(channels are in their stationary law in every slot, and a receiver's minimum may use its channel but not its devices'
batteries). The bound is concave in g. It is raised by gradient ascent on a soft minimum of falling temperature:
first with prices that see no channel, from the expected cost given each device's action under zero-hop best
responses, then with prices that do. It is certified with the hard minimum. All of it is in float64: float32 would
round the bound to either side.

A receiver that hears so many devices that not even one slot's joint actions can be listed is *pruned*: it is split
into several that hear some of them each. Interference between these parts is left out, which can only lower the cost.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from heliomesh.problem.best_response import descent_bytes
from heliomesh.problem.coordination import Coordination, Group
from heliomesh.problem.policy import Track
from heliomesh.problem.problem import Problem
from heliomesh.problem.single import best_responses

_LAST_SLOTS = 4  # slots near the horizon that have prices of their own
_MOST_BLOCKS = 12  # groups of earlier slots that share prices


@dataclass(frozen=True)
class Priced:
    """Receivers that hear equally many devices and are bounded by prices."""

    group: Group
    cost: Tensor  # f_i: (channel state, receiver, joint action)
    channel_prob: Tensor  # (channel state,)
    level: Tensor  # (channel state, heard) level that a price may move with
    site: Tensor  # (receiver, heard) channel site of that level, −1 for none


@dataclass(frozen=True)
class Watchers:
    """Devices whose own programs watch equally many channels."""

    devices: Tensor  # (device,)
    axes: tuple[tuple[Tensor, Tensor], ...]  # per channel watched: pairs whose price moves with it, and their devices


@dataclass(frozen=True)
class DualBound:
    """A certified bound and the devices' values that go with it."""

    bound: float  # on the total cost over the horizon
    futures: Tensor  # (slot, device, energy): E[v_j(t+1) | state after spending]


def slot_blocks(problem: Problem) -> npt.NDArray[np.int64]:
    """Slots that share prices; (slot,) block numbers.

    Each of the last slots is alone. Earlier ones are grouped: evenly under a law that changes with the time of day,
    else finely at both ends, where batteries still leave their first level or see the horizon.
    """
    slots = problem.slots
    early = max(slots - _LAST_SLOTS, 0)
    if len(problem.harvest.law.joule) > 1:
        blocks = min(_MOST_BLOCKS, early)
        grouped = (np.arange(early) * blocks) // max(early, 1)
    else:
        edges = np.unique(np.clip([4, 12, early - 8], 0, early))
        grouped = np.searchsorted(edges, np.arange(early), side="right")
    numbers = np.concatenate([grouped, slots + np.arange(slots - early)])
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def priced_groups(problem: Problem, coordination: Coordination, dual: set[int]) -> list[Priced]:
    """Cost tables of the receivers in ``dual`` over all channel states, pruned to what can be listed."""
    return [_priced(problem, coordination, group) for group in _pruned_groups(problem, coordination, dual)]


def _pruned_groups(problem: Problem, coordination: Coordination, dual: set[int]) -> list[Group]:
    """The receivers in ``dual``, split where they hear too many devices to list a slot's joint actions.

    Very many receivers are several groups, so that what is made on the way to one table stays small.
    """
    found = []
    for group in coordination.groups:
        chosen = torch.tensor([n for n, i in enumerate(group.receivers.tolist()) if i in dual], dtype=torch.long)
        for columns in _columns(problem, group) if len(chosen) else ():
            at_once = max(1, _GROUP_ENTRIES // _listed_entries(problem, len(columns)))
            for which in torch.split(chosen, at_once):
                actors = group.actors[which][:, columns]
                if problem.link.half_duplex:
                    actors = torch.cat([actors, group.receivers[which].unsqueeze(1)], dim=1)
                found.append(Group(group.receivers[which], actors, group.edges[which][:, columns], group.offset))
    return found


def _listed_entries(problem: Problem, neighbours: int) -> int:
    """Channel states × joint actions of a receiver that hears some neighbours."""
    channel_states = problem.channel.levels ** (1 if _one_level(problem) else neighbours)
    return int(channel_states * len(problem.actions) ** (neighbours + problem.link.half_duplex))


def least_bytes(problem: Problem, coordination: Coordination, dual: set[int]) -> float:
    """Memory of the leanest way to bound the receivers in ``dual``: by prices that see no channel."""
    if not dual:
        return 0.0
    groups = _pruned_groups(problem, coordination, dual)
    listed = tuple(len(group.receivers) * _listed_entries(problem, group.edges.shape[1]) for group in groups)
    ascent = Ascent(problem, listed, ((problem.num_devices, 1),)).num_bytes(sparing=True)
    return max(ascent, descent_bytes(problem))


def is_pruned(problem: Problem, group: Group) -> bool:
    """Whether receivers of a group hear too many devices to list a slot's joint actions."""
    return len(_columns(problem, group)) > 1


def _columns(problem: Problem, group: Group) -> list[Tensor]:
    """Positions of the neighbours heard together; several parts where all at once are too many."""
    neighbours = group.edges.shape[1]
    per_neighbour = len(problem.actions) * (1 if _one_level(problem) else problem.channel.levels)
    most = max(1, int(np.log(_LISTED_ENTRIES) / np.log(max(per_neighbour, 2))) - problem.link.half_duplex)
    parts = -(-neighbours // most)
    return list(torch.arange(neighbours, device=problem.device).tensor_split(parts))


def _one_level(problem: Problem) -> bool:
    """Whether all links into a receiver share one channel level."""
    return problem.scenario.channel.state == "receiver"


def _priced(problem: Problem, coordination: Coordination, group: Group) -> Priced:
    levels, gain = problem.channel.levels, problem.channel.gain
    stationary = problem.channel.stationary.to(problem.dtype)
    receivers, neighbours = group.edges.shape
    every = torch.arange(levels, device=problem.device)
    own = group.receivers.new_full((receivers, group.heard - neighbours), -1)
    sites = problem.channel.site_of_edge[group.edges]
    if _one_level(problem):
        fading = gain.reshape(-1, 1, 1).expand(-1, receivers, neighbours)
        level, site = every.unsqueeze(1).expand(-1, group.heard), sites[:, :1].expand(-1, group.heard)
        return Priced(group, coordination.missed(group, fading), stationary, level, site)
    grid = torch.cartesian_prod(*[every] * neighbours).reshape(-1, neighbours)
    fading = gain[grid].unsqueeze(1).expand(-1, receivers, -1)
    level = torch.cat([grid, grid.new_zeros(len(grid), group.heard - neighbours)], 1)
    cost = coordination.missed(group, fading)
    return Priced(group, cost, stationary[grid].prod(1), level, torch.cat([sites, own], 1))


@dataclass(frozen=True)
class Effort:
    """What an ascent may take."""

    steps: int
    channel_steps: int  # further ones of prices that see channels
    memory_gib: float  # less is done where all does not fit


def raise_bound(
    problem: Problem, priced: list[Priced], laws: Tensor, own_price: Tensor, effort: Effort, track: Track
) -> DualBound:
    """Ascend from the laws' expected costs; laws (slot, device, action), own_price (device, action) is fixed."""
    unwatched = _unwatched(problem)
    blind = Dual(problem, priced, own_price, unwatched, _is_sparing(problem, priced, unwatched, effort.memory_gib))
    weight = blind.weight.reshape(-1, 1, 1)
    mean_law = torch.zeros(len(weight), *laws.shape[1:], dtype=laws.dtype, device=laws.device)
    mean_law = mean_law.index_add_(0, blind.blocks, laws) / weight
    at_once = 1 if blind.sparing else len(mean_law)
    first = [torch.cat([_first_prices(one, part) for part in torch.split(mean_law, at_once)]) for one in priced]
    bound, prices = blind.ascend(first, effort.steps, track, "dual bound")
    _, futures = best_responses(problem, blind.paid(prices)[blind.blocks])
    watched = _watched(problem, priced, effort.memory_gib) if effort.channel_steps else None
    if watched is not None:
        seeing = Dual(problem, priced, own_price, watched, _is_sparing(problem, priced, watched, effort.memory_gib))
        wider = [price.expand(-1, problem.channel.levels, -1, -1, -1).clone() for price in prices]
        better, _ = seeing.ascend(wider, effort.channel_steps, track, "channel prices")
        bound = max(bound, better)
    return DualBound(bound, futures)


def _is_sparing(problem: Problem, priced: list[Priced], watchers: tuple[Watchers, ...], memory_gib: float) -> bool:
    """Whether gradients have to be computed in segments to stay below a limit."""
    return _ascent(problem, priced, watchers).num_bytes(sparing=False) > memory_gib * 2**30


def _ascent(problem: Problem, priced: list[Priced], watchers: tuple[Watchers, ...]) -> "Ascent":
    levels = problem.channel.levels
    programs = tuple((len(one.devices), levels ** len(one.axes)) for one in watchers)
    return Ascent(problem, tuple(one.cost.numel() for one in priced), programs)


_LISTED_ENTRIES = 1 << 18  # channel states × joint actions of one receiver that are listed
_GROUP_ENTRIES = 1 << 24  # the same of receivers whose minima are taken together
_FIRST_RATE, _LAST_RATE = 0.03, 0.001
_FIRST_TEMPERATURE, _LAST_TEMPERATURE = 0.05, 0.001


def _unwatched(problem: Problem) -> tuple[Watchers, ...]:
    """All devices' programs see their own energy only."""
    return (Watchers(torch.arange(problem.num_devices, device=problem.device), ()),)


def _watched(problem: Problem, priced: list[Priced], memory_gib: float) -> tuple[Watchers, ...] | None:
    """Devices by the number of channels their programs watch; None where the states would be too many.

    Programs watch as many of their channels as a limit of states allows, and then as many as the memory allows.
    """
    pairs = zip(
        torch.cat([one.group.actors.flatten() for one in priced]).tolist(),
        torch.cat([one.site.flatten() for one in priced]).tolist(),
        strict=True,
    )
    by_site: list[dict[int, list[int]]] = [{} for _ in range(problem.num_devices)]
    for pair, (device, site) in enumerate(pairs):
        if site >= 0:
            by_site[device].setdefault(site, []).append(pair)
    levels, most = float(problem.channel.levels), max(map(len, by_site))
    while most and sum(levels ** min(len(sites), most) for sites in by_site) > _WATCHED_STATES:
        most -= 1
    for watched in range(most, 0, -1):
        by_count: dict[int, list[int]] = {}
        for device, sites in enumerate(by_site):
            by_count.setdefault(min(len(sites), watched), []).append(device)
        found = tuple(_watchers(problem, count, devices, by_site) for count, devices in sorted(by_count.items()))
        if _ascent(problem, priced, found).num_bytes(sparing=True) <= memory_gib * 2**30:
            return found
    return None


_WATCHED_STATES = 50_000  # joint channel states of all devices' programs


def _watchers(problem: Problem, count: int, devices: list[int], by_site: list[dict[int, list[int]]]) -> Watchers:
    axes = []
    for axis in range(count):
        found = [
            (pair, place) for place, device in enumerate(devices) for pair in list(by_site[device].values())[axis]
        ]
        pairs, places = torch.tensor(found, device=problem.device).unbind(1)
        axes.append((pairs, places))
    return Watchers(torch.tensor(devices, device=problem.device), tuple(axes))


def _first_prices(one: Priced, law: Tensor) -> Tensor:
    """E[f_i | p_j = a], spread so that they add up to E[f_i] once; (block, 1, receiver, heard, action)."""
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
    mean = (stacked * law[:, group.actors]).sum(-1, keepdim=True)
    return (stacked - mean * (1 - 1 / group.heard)).unsqueeze(1)


@dataclass(frozen=True)
class Dual:
    """The bound as a function of the prices, one tensor (block, level, receiver, heard, action) per priced group.

    The level axis has length one for prices that see no channel.
    """

    problem: Problem
    priced: list[Priced]
    own_price: Tensor  # (device, action), paid in every slot
    watchers: tuple[Watchers, ...]
    sparing: bool = False  # time for memory: gradients go through segments of slots and single blocks

    @cached_property
    def blocks(self) -> Tensor:
        """Block of every slot; (slot,)."""
        return torch.from_numpy(slot_blocks(self.problem)).to(self.problem.device)

    @cached_property
    def weight(self) -> Tensor:
        """Slots of every block; (block,)."""
        return torch.bincount(self.blocks).to(self.problem.dtype)

    def ascend(self, prices: list[Tensor], steps: int, track: Track, what: str) -> tuple[float, list[Tensor]]:
        """The best certified bound met on the way up, and its prices."""
        prices = [price.clone().requires_grad_() for price in prices]
        optimiser = torch.optim.Adam(prices, lr=_FIRST_RATE)
        best, kept = -torch.inf, prices
        for step in track(range(steps), what, steps):
            fade = step / max(steps - 1, 1)
            temperature = _FIRST_TEMPERATURE * (_LAST_TEMPERATURE / _FIRST_TEMPERATURE) ** fade
            for entry in optimiser.param_groups:
                entry["lr"] = _FIRST_RATE * (_LAST_RATE / _FIRST_RATE) ** fade
            optimiser.zero_grad()
            (-self.value(prices, temperature)).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if step % 10 == 9 or step == steps - 1:
                with torch.no_grad():
                    hard = float(self.value(prices, 0.0))
                if hard > best:
                    best, kept = hard, [price.detach().clone() for price in prices]
        return best, kept

    def value(self, prices: list[Tensor], temperature: float) -> Tensor:
        """The bound: with hard minima at temperature 0, else with soft ones, which are smooth and below them."""
        result = torch.zeros((), dtype=self.problem.dtype, device=self.problem.device)
        for one, price in zip(self.priced, self._seen(prices), strict=True):
            if self.sparing:
                least = torch.cat(
                    [_recomputed(_expected_least, one, block, temperature) for block in torch.split(price, 1)]
                )
            else:
                least = _expected_least(one, price, temperature)
            result = result + (least * self.weight).sum()
        flat = torch.cat([price.flatten(2, 3) for price in prices], dim=2)  # (block, level, pair, action)
        for watchers in self.watchers:
            result = result + self._programs(watchers, flat, temperature)
        return result

    def paid(self, prices: list[Tensor]) -> Tensor:
        """What each device pays for each action at prices that see no channel; (block, device, action)."""
        paid = self.own_price.expand(len(self.weight), -1, -1)
        for one, price in zip(self.priced, prices, strict=True):
            paid = paid.index_add(1, one.group.actors.flatten(), price.mean(1).flatten(1, 2))
        return paid

    @cached_property
    def _moving(self) -> Tensor:
        """Whether a pair's price moves with its channel; (pair,)."""
        moving = torch.zeros(
            sum(one.group.actors.numel() for one in self.priced), dtype=torch.bool, device=self.problem.device
        )
        for watchers in self.watchers:
            for pairs, _ in watchers.axes:
                moving[pairs] = True
        return moving

    def _seen(self, prices: list[Tensor]) -> list[Tensor]:
        """Prices with the mean over levels where nobody watches the channel."""
        masks = torch.split(self._moving, [one.group.actors.numel() for one in self.priced])
        return [
            torch.where(mask.reshape(1, 1, *price.shape[2:4], 1), price, price.mean(1, keepdim=True))
            for price, mask in zip(prices, masks, strict=True)
        ]

    def _programs(self, watchers: Watchers, flat: Tensor, temperature: float) -> Tensor:
        """Σ_j V_j of a group of devices, over their energies and the channels they watch."""
        problem, count = self.problem, len(watchers.axes)
        devices, levels = watchers.devices, problem.channel.levels
        paid = self._watched_prices(watchers, flat)  # (block, device, channel state, action)
        value = torch.zeros(len(devices), paid.shape[2], problem.num_energy, dtype=paid.dtype, device=paid.device)
        if not self.sparing:
            value = self._recursion(watchers, paid, value, range(problem.slots - 1, -1, -1), temperature)
        else:
            length = _segment_slots(problem.slots)
            for last in range(problem.slots - 1, -1, -length):
                segment = range(last, max(last - length, -1), -1)
                value = _recomputed(self._recursion, watchers, paid, value, segment, temperature)
        value = (value * problem.initial_energy_law[devices].unsqueeze(1)).sum(-1)
        for _ in range(count):
            value = value.reshape(len(devices), levels, -1)
            value = torch.einsum("dlr,l->dr", value, problem.channel.stationary.to(paid.dtype))
        return value.sum()

    def _recursion(self, watchers: Watchers, paid: Tensor, value: Tensor, slots: range, temperature: float) -> Tensor:
        """Values (device, channel state, energy) at the last of falling ``slots``, from those after the first.

        Steps in place, where autograd allows them, keep one table of choices a slot instead of several.
        """
        problem, devices, levels = self.problem, watchers.devices, self.problem.channel.levels
        unpaid = ~problem.feasible[devices].unsqueeze(1)
        left = problem.energy_left[devices].unsqueeze(1).expand(-1, paid.shape[2], -1, -1)
        kernels: dict[int, Tensor] = {}  # by phase: a copy a slot would be kept for the gradient
        for slot in slots:
            if slot < problem.slots - 1:
                phase = int(problem.harvest.law.phase_of_slot[slot])
                if phase not in kernels:
                    kernels[phase] = problem.energy_kernels(slot)[devices].transpose(1, 2)
                value = value @ kernels[phase]
                for axis in range(len(watchers.axes)):
                    apart = value.reshape(len(devices) * levels**axis, levels, -1)
                    value = (problem.channel.kernel.to(paid.dtype) @ apart).reshape(value.shape)
            reached = value.unsqueeze(-1).expand(-1, -1, -1, left.shape[-1]).gather(2, left)
            choice = reached.add_(paid[self.blocks[slot]].unsqueeze(2)).masked_fill_(unpaid, torch.inf)
            value = _least(choice, temperature)
        return value

    def _watched_prices(self, watchers: Watchers, flat: Tensor) -> Tensor:
        """Σ_i g_ij of a group of devices for the joint levels of the channels watched."""
        blocks, levels, _, actions = flat.shape
        count = len(watchers.axes)
        place = torch.full((self.problem.num_devices,), -1, device=flat.device)
        place[watchers.devices] = torch.arange(len(watchers.devices), device=flat.device)
        actor = place[torch.cat([one.group.actors.flatten() for one in self.priced])]
        blind = ((actor >= 0) & ~self._moving).nonzero().squeeze(1)
        base = self.own_price[watchers.devices].expand(blocks, -1, -1)
        total = base.index_add(1, actor[blind], flat[:, :, blind].mean(1))
        total = total.reshape(blocks, len(watchers.devices), *[1] * count, actions)
        for axis, (pairs, places) in enumerate(watchers.axes):
            own = flat.new_zeros(blocks, levels, len(watchers.devices), actions).index_add(
                2, places, flat[:, :, pairs]
            )
            shape = [blocks, len(watchers.devices), *[1] * count, actions]
            shape[2 + axis] = levels
            total = total + own.transpose(1, 2).reshape(shape)
        return total.reshape(blocks, len(watchers.devices), -1, actions)


def _expected_least(one: Priced, price: Tensor, temperature: float) -> Tensor:
    """Σ_i E_h min_p (f_i − Σ_j g_ij) of a group of receivers; (block,)."""
    least = _least(_net(one, price), temperature)
    return torch.einsum("bcr,c->b", least, one.channel_prob)


def _net(one: Priced, price: Tensor) -> Tensor:
    """f_i − Σ_j g_ij for all joint actions; (block, channel state, receiver, joint action)."""
    blocks, levels, receivers, heard, actions = price.shape
    joint = torch.zeros((), dtype=price.dtype, device=price.device)
    for axis in range(heard):
        seen = price[:, one.level[:, axis] if levels > 1 else slice(None), :, axis]
        shape = [blocks, seen.shape[1], receivers, *[1] * heard]
        shape[3 + axis] = actions
        joint = joint + seen.reshape(shape)
    return one.cost.unsqueeze(0) - joint.flatten(3)


@dataclass(frozen=True)
class Ascent:
    """Sizes that decide how much memory an ascent takes."""

    problem: Problem
    listed: tuple[int, ...]  # entries of the cost tables of every priced group
    programs: tuple[tuple[int, int], ...]  # devices and channel states of every group of own programs

    def num_bytes(self, sparing: bool) -> float:
        """Peak memory: cost tables, prices paid, and what gradients keep of receivers' minima and of all slots.

        A sparing gradient keeps values where segments begin, and one segment or one block of minima at a time.
        """
        problem, width = self.problem, torch.empty((), dtype=self.problem.dtype).element_size()
        blocks, slots = len(np.unique(slot_blocks(problem))), problem.slots
        values = [float(devices * states * problem.num_energy) for devices, states in self.programs]
        choices = [value * (1 + len(problem.actions)) for value in values]
        paid = sum(devices * states * blocks * len(problem.actions) for devices, states in self.programs)
        kernels = (
            sum(devices for devices, _ in self.programs) * problem.num_energy**2 * len(problem.harvest.law.joule)
        )
        kept = float(sum(self.listed)) + _PAID_COPIES * paid + kernels
        if not sparing:
            return width * (kept + _KEPT_SHARE * (blocks * sum(self.listed) + slots * sum(choices)))
        length = _segment_slots(slots)
        segments = sum(values) * slots / length + (_KEPT_SHARE * length + _PASSING_COPIES) * max(choices)
        return width * (kept + max(_LISTING_COPIES * max(self.listed), segments))


# Measured: allocations of this many bytes per byte that a gradient keeps, since what lies between is not used again.
_KEPT_SHARE = 3
_PAID_COPIES = 6  # prices of a program's channels are added up one after the other, and so are their gradients
_PASSING_COPIES = 6  # of one slot's choices, on the way forth and back
_LISTING_COPIES = 4  # while a table is made, and while its minima are taken


def _segment_slots(slots: int) -> int:
    """Slots of a segment: about as many as there are segments, so that both together are fewest."""
    return math.isqrt(slots - 1) + 1


def _least(values: Tensor, temperature: float) -> Tensor:
    """Minimum over the last axis; a soft one at a positive temperature. The values are used up."""
    if temperature == 0:
        return values.amin(-1)
    return -temperature * torch.logsumexp(values.div_(-temperature), dim=-1)


def _recomputed(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """The function's result; what its gradient needs is computed again then, not kept until then.

    The reentrant kind records nothing at all before that. The other kind leaves a small record of every operation,
    and such records between large tensors keep their memory from being used again.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    found: Tensor = checkpoint(function, *arguments, use_reentrant=True, preserve_rng_state=False)
    return found
