"""A lower bound on the cost of every policy on the scenario's powers, by prices of actions; any degree, any size.

Receivers are gathered in *cells*. Give every pair (cell c, device j that its receivers hear), slot t, level h of the
channel between them and action a price g_cj(t, h, a). For any prices

    Σ_j V_j[Σ_c g_cj]  +  Σ_t Σ_c E_h min_p ( Σ_{i∈c} f_i(h, p) − Σ_j g_cj(t, h, p_j) )   ≤   optimal cost

where V_j[·] is device j's own dynamic program paying the prices and its idle cost, over its battery and the
channels that prices move with. Along any policy the prices paid cancel. The first sum is at most what devices pay:
given any history of the network, the next battery, weather and channels s_j of device j depend on its own only,

    P(s_j(t+1) | history to t, all actions) = P(s_j(t+1) | s_j(t), p_j(t)).

Its battery may well depend on what the others saw and did, through its own earlier actions. But a Markov decision
process has no better policy for knowing more than its state, so by induction over slots j pays at least V_j. The
second sum is at most what each cell loses net of the prices: channels are in their stationary law in every slot,
whatever devices do, and a cell's minimum may use its channels. A cell of several receivers sees that they want
different things of one device, such as around a cycle of odd length.

Where all devices share their weather, prices move with it as well: a program has it in its state, and it is in its
stationary law in every slot.

The bound is concave in g. It is raised by gradient ascent on a soft minimum of falling temperature, on a coarse
battery grid: first with prices that see no channel, from the expected cost given each device's action under zero-hop
best responses, then with prices that do. It is certified with hard minima and with programs that bound continuous
batteries (`minorant.py`). That is in float64: float32 would round the bound to either side. Prices are sought in
float32, since any prices will do.

A receiver that hears so many devices that not even one slot's joint actions can be listed is *pruned*: it is split
into several that hear some of them each. Interference between these parts is left out, which can only lower the cost.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from heliomesh.bounds.cells import Priced, expected_prices, listed_entries, priced_cells
from heliomesh.bounds.minorant import DeviceClass, device_classes, dividing_levels, first_laws
from heliomesh.bounds.soft_cells import expected_least
from heliomesh.bounds.soft_programs import SoftPrograms, mean_over_channels, moved_channels
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB
from heliomesh.grid.best_response import descend, even_laws
from heliomesh.grid.cycle_fixed_point import settle_values
from heliomesh.model.policy import Track
from heliomesh.model.problem import Problem, interpolated
from heliomesh.model.threads import fitting_threads
from heliomesh.slot.colour_rounds import place_among
from heliomesh.slot.coordination import Coordination
from heliomesh.slot.enumerated_cost import cost_form

_LAST_SLOTS = 4  # slots near the horizon that have prices of their own
_MOST_BLOCKS = 12  # groups of earlier slots that share prices
_STEADY = 1e-6  # a slot's rise may vary by so much when it stands for earlier ones


@dataclass(frozen=True)
class Watchers:
    """Devices whose own programs watch equally many channels."""

    devices: Tensor  # (device,)
    axes: tuple[tuple[Tensor, Tensor], ...]  # per channel watched: pairs whose price moves with it, and their devices


def num_skies(problem: Problem) -> int:
    """Weather levels that all devices share; 1 where each has a weather of its own."""
    law = problem.harvest.law
    return 1 if law.sky == "independent" else law.num_weather


def slot_blocks(problem: Problem) -> npt.NDArray[np.int64]:
    """Slots that share prices; (slot,) block numbers.

    Each of the last slots is alone. Earlier ones are grouped: evenly where harvests change with time, else
    finely at both ends, where batteries still leave their first level or see the horizon. Around a
    cycle no slot is the last.
    """
    slots = problem.slots
    early = slots if problem.endless else max(slots - _LAST_SLOTS, 0)
    if problem.endless and problem.is_steady:
        grouped = np.zeros(early, dtype=np.int64)
    elif not problem.is_steady:
        blocks = min(_MOST_BLOCKS, early)
        grouped = (np.arange(early) * blocks) // max(early, 1)
    else:
        edges = np.unique(np.clip([4, 12, early - 8], 0, early))
        grouped = np.searchsorted(edges, np.arange(early), side="right")
    numbers = np.concatenate([grouped, slots + np.arange(slots - early)])
    begins = np.diff(numbers, prepend=numbers[0]) != 0
    return np.cumsum(begins, dtype=np.int64)


@dataclass(frozen=True)
class Effort:
    """What an ascent may take."""

    steps: int = 60
    channel_steps: int = 0  # further ones of prices that see channels; worth it for link channels and half duplex
    memory_gib: float = DEFAULT_LIMIT_GIB  # less is done where all does not fit


def usual_effort(problem: Problem) -> Effort:
    """What is tried where nothing else is asked for."""
    moving = problem.link.half_duplex or problem.scenario.channel.state != "receiver"
    return Effort(channel_steps=40 if moving else 0)


def is_quick(problem: Problem) -> bool:
    """Whether the bound takes seconds."""
    rough = _rough(problem)
    blocks = len(np.unique(slot_blocks(rough))) * num_skies(rough)
    listed = float(sum(listed_entries(rough, Coordination(rough)))) * blocks
    programs = float(rough.slots * rough.num_devices * rough.num_energy * len(rough.actions))
    if usual_effort(problem).channel_steps:
        most = max(map(len, problem.topology.neighbours), default=0)
        programs *= min(float(problem.channel.levels) ** most, _WATCHED_STATES / problem.num_devices)
    return listed <= _QUICK_LISTED and programs <= _QUICK_PROGRAMS


_QUICK_LISTED = 50_000_000  # entries of all cells in all blocks of slots
_QUICK_PROGRAMS = 5_000_000  # values of all devices' programs


def raise_bound(problem: Problem, effort: Effort, track: Track) -> float:
    """A certified bound on the total cost of the simulated process over the horizon, or the mean one of a cycle."""
    with fitting_threads(problem):
        wide = problem.wide
        rough, priced = _rough(wide), priced_cells(wide, Coordination(wide))
        narrow, unwatched = [one.to(rough.dtype) for one in priced], _unwatched(wide)
        # a few zero-hop best responses, only a starting point
        sweeps = descend(rough, cost_form(rough), even_laws(rough), _DESCENT_SWEEPS, track, "action laws")
        blind = _dual(rough, narrow, unwatched, effort)
        prices = blind.ascend(blind.first_prices(sweeps.laws), effort.steps, track, "dual bound")
        bound = _dual(wide, priced, unwatched, effort).certified(prices)
        watched = _watched(rough, narrow, effort.memory_gib) if priced and effort.channel_steps else None
        if watched is not None:
            wider = [price.expand(-1, problem.channel.levels, -1, -1, -1).clone() for price in prices]
            seeing = _dual(rough, narrow, watched, effort)
            better = seeing.ascend(wider, effort.channel_steps, track, "channel prices")
            bound = max(bound, _dual(wide, priced, watched, effort).certified(better))
        return bound


def _rough(problem: Problem) -> Problem:
    """The problem on which prices are sought: float32, few battery levels, and fewer slots where these are alike.

    Any prices give a bound, so it need not be exact.
    """
    rough = replace(interpolated(problem, rough_levels(problem)), dtype=torch.float32)
    if problem.endless or not problem.is_steady or problem.slots <= _ROUGH_SLOTS:
        return rough
    return replace(rough, scenario=problem.scenario.first_slots(_ROUGH_SLOTS))


def rough_levels(problem: Problem) -> int:
    """Levels of the grid on which prices are sought: the problem's own where batteries never leave them, else few."""
    return problem.battery.levels if problem.grid_is_exact else dividing_levels(problem, _ROUGH_LEVELS)


def _dual(problem: Problem, priced: list[Priced], watchers: tuple[Watchers, ...], effort: Effort) -> "Dual":
    sparing = ascent_bytes(problem, priced, watchers, sparing=False) > effort.memory_gib * 2**30
    return Dual(problem, priced, watchers, sparing)


_ROUGH_LEVELS = 21
_AROUND_SLOTS = 24  # fewest slots through which a step of the ascent goes where these come again
_ROUGH_SLOTS = 64
_DESCENT_SWEEPS = 3


_RATES, _TEMPERATURES = (0.03, 0.001), (0.05, 0.001)


def _unwatched(problem: Problem) -> tuple[Watchers, ...]:
    """All devices' programs see their own energy only."""
    return (Watchers(torch.arange(problem.num_devices, device=problem.device), ()),)


def _watched(problem: Problem, priced: list[Priced], memory_gib: float) -> tuple[Watchers, ...] | None:
    """Devices by the number of channels their programs watch; None where the states would be too many.

    Programs watch as many of their channels as a limit of states allows, and then as many as the memory allows.
    """
    actors = torch.cat([one.actors.flatten() for one in priced])
    watched = torch.cat([one.site.flatten() for one in priced])
    by_site: list[dict[int, list[int]]] = [{} for _ in range(problem.num_devices)]
    for pair, (device, site) in enumerate(zip(actors.tolist(), watched.tolist(), strict=True)):
        if site >= 0:
            by_site[device].setdefault(site, []).append(pair)
    levels, most = float(problem.channel.levels), max(map(len, by_site))
    while most and sum(levels ** min(len(sites), most) for sites in by_site) > _WATCHED_STATES:
        most -= 1
    for axes in range(most, 0, -1):
        by_count: dict[int, list[int]] = {}
        for device, sites in enumerate(by_site):
            by_count.setdefault(min(len(sites), axes), []).append(device)
        found = tuple(_watchers(problem, count, devices, by_site) for count, devices in sorted(by_count.items()))
        if ascent_bytes(problem, priced, found, sparing=True) <= memory_gib * 2**30:
            return found
    return None


_WATCHED_STATES = 50_000  # joint channel states of all devices' programs


def _watchers(problem: Problem, count: int, devices: list[int], by_site: list[dict[int, list[int]]]) -> Watchers:
    axes = []
    for axis in range(count):
        own = [list(by_site[device].values())[axis] for device in devices]
        found = [(pair, place) for place, pairs in enumerate(own) for pair in pairs]
        moved, places = torch.tensor(found, device=problem.device).unbind(1)
        axes.append((moved, places))
    return Watchers(torch.tensor(devices, device=problem.device), tuple(axes))


@dataclass(frozen=True)
class Dual:
    """The bound as a function of the prices, one tensor (block, level, receiver, heard, action) per priced group.

    The level axis has length one for prices that see no channel.
    """

    problem: Problem
    priced: list[Priced]
    watchers: tuple[Watchers, ...]
    sparing: bool = False  # time for memory: gradients go through segments of slots

    @cached_property
    def blocks(self) -> Tensor:
        """Block of every slot; (slot,)."""
        return torch.from_numpy(slot_blocks(self.problem)).to(self.problem.device)

    @cached_property
    def skies(self) -> int:
        """Weather levels that prices move with."""
        return num_skies(self.problem)

    @cached_property
    def weight(self) -> Tensor:
        """Slots of every block, by the stationary law of a shared weather; (block × sky,)."""
        slots = torch.bincount(self.blocks).to(self.problem.dtype)
        weather = self.problem.harvest.law.stationary.to(slots) if self.skies > 1 else torch.ones_like(slots[:1])
        return torch.outer(slots, weather).flatten()

    def first_prices(self, laws: Tensor) -> list[Tensor]:
        """Expected costs given each device's action; laws (slot, device, action)."""
        slots = torch.bincount(self.blocks).to(laws).reshape(-1, 1, 1)
        mean_law = torch.zeros(len(slots), *laws.shape[1:], dtype=laws.dtype, device=laws.device)
        mean_law = (mean_law.index_add_(0, self.blocks, laws) / slots).repeat_interleave(self.skies, dim=0)
        at_once = 1 if self.sparing else len(mean_law)
        parts = torch.split(mean_law, at_once)
        return [torch.cat([expected_prices(one, part) for part in parts]) for one in self.priced]

    def ascend(self, prices: list[Tensor], steps: int, track: Track, what: str) -> list[Tensor]:
        """The best prices met on the way up; none where nobody hears anybody."""
        if not prices:
            return prices
        prices = [price.clone().requires_grad_() for price in prices]
        adam = Adam(prices)
        best, kept = -torch.inf, prices
        schedule = zip(falling(*_TEMPERATURES, steps), falling(*_RATES, steps), strict=True)
        for step, (temperature, rate) in enumerate(track(schedule, what, steps)):
            # not torch.autograd.grad: it refuses `_recomputed`, and passes by the hooks of `_around`
            self.value(prices, temperature).backward()  # type: ignore[no-untyped-call]
            adam.ascend([price.grad for price in prices if price.grad is not None], rate)
            for price in prices:
                price.grad = None
            if step % 10 == 9 or step == steps - 1:
                with torch.no_grad():
                    hard = float(self.value(prices, 0.0))
                if hard > best:
                    best, kept = hard, [price.detach().clone() for price in prices]
        return kept

    @torch.no_grad()
    def certified(self, prices: list[Tensor]) -> float:
        """The bound for continuous batteries, with hard minima."""
        prices, total = [price.to(self.problem.dtype) for price in prices], 0.0
        for one, price in zip(self.priced, self._seen(prices), strict=True):
            total += float((expected_least(one, price, 0.0) * self.weight).sum())
        flat = self._by_pair(prices)
        first = first_laws(self.problem)
        classes = list(device_classes(self.problem))  # their kernels serve all watchers
        for watchers in self.watchers:
            paid = self._watched_prices(watchers, flat)
            for alike in classes:
                which = torch.isin(watchers.devices, alike.devices)
                if bool(which.any()) and self.problem.endless:
                    total += float(self._cycle_floor(alike, paid[:, which], len(watchers.axes)).sum())
                elif bool(which.any()):
                    value = self._floor(alike, paid[:, which], len(watchers.axes))
                    value = (value * first[watchers.devices[which]].unsqueeze(1)).sum(-1)
                    total += float(mean_over_channels(self.problem, value, len(watchers.axes)).sum())
        return total

    def _floor(self, alike: DeviceClass, paid: Tensor, axes: int) -> Tensor:
        """Lower bounds on devices' programs (device, channel state, energy).

        paid (block × sky, device, channel state, action).

        Where earlier slots of a block have the same law, a slot that raised all numbers alike stands for them.
        """
        _, devices, states, _ = paid.shape
        value = torch.zeros(devices, states, alike.num_energy, dtype=paid.dtype, device=paid.device)
        steady, blocks = len(alike.law.joule) == 1, self.blocks.tolist()
        slot = self.problem.slots - 1
        while slot >= 0:
            after = self._before(alike, paid, value, slot, axes)
            rise = (after - value).flatten(1)
            value, slot = after, slot - 1
            least = rise.amin(1)
            goes_on = steady and slot >= 0 and blocks[slot] == blocks[slot + 1]
            if goes_on and bool((rise.amax(1) - least < _STEADY).all()):
                count = slot + 1 - blocks.index(blocks[slot])
                value, slot = value + count * least.reshape(-1, 1, 1), slot - count
        return value

    def _cycle_floor(self, alike: DeviceClass, paid: Tensor, axes: int) -> Tensor:
        """Lower bounds on what devices pay in a cycle on average (device,); paid as in `_floor`."""
        _, devices, states, _ = paid.shape

        def around(rows: Tensor) -> Tensor:
            value = rows.reshape(devices, states, -1)
            for slot in range(self.problem.slots - 1, -1, -1):
                value = self._before(alike, paid, value, slot, axes)
            return value.flatten(1)

        nothing = torch.zeros(devices, states * alike.num_energy, dtype=paid.dtype, device=paid.device)
        return settle_values(around, nothing, self.problem.slots)[1]

    def _before(self, alike: DeviceClass, paid: Tensor, value: Tensor, slot: int, axes: int) -> Tensor:
        """Numbers below a slot's values, from those below the next slot's; (device, channel state, energy)."""
        future = value.reshape(-1, alike.num_energy)
        if self.problem.endless or slot < self.problem.slots - 1:
            future = alike.filled(future, int(alike.law.phase_of_slot[slot]))
            kernel = self.problem.channel.kernel.to(future.dtype)
            future = moved_channels(future.reshape(value.shape), axes, kernel).reshape(future.shape)
        by_sky = paid.reshape(-1, self.skies, *paid.shape[1:])[self.blocks[slot]].movedim(0, 2)
        price = by_sky.reshape(-1, self.skies, paid.shape[-1])  # (device · channel state, sky, action)
        return alike.spent(future, price).reshape(value.shape)

    def value(self, prices: list[Tensor], temperature: float) -> Tensor:
        """The bound: with hard minima at temperature 0, else with soft ones, which are smooth and below them."""
        result = torch.zeros((), dtype=self.problem.dtype, device=self.problem.device)
        for one, price in zip(self.priced, self._seen(prices), strict=True):
            result = result + (expected_least(one, price, temperature) * self.weight).sum()
        flat = self._by_pair(prices)
        for watchers, programs in zip(self.watchers, self._programs, strict=True):
            result = result + self._totals(watchers, programs, flat, temperature)
        return result

    @cached_property
    def _programs(self) -> list[SoftPrograms]:
        """Own programs of every group of devices."""
        return [SoftPrograms(self.problem, one.devices, len(one.axes)) for one in self.watchers]

    def _by_pair(self, prices: list[Tensor]) -> Tensor:
        """All cells' prices; (block, level, pair, action)."""
        levels = prices[0].shape[1] if prices else 1
        none = self.weight.new_zeros(len(self.weight), levels, 0, len(self.problem.actions))
        return torch.cat([none, *(price.flatten(2, 3) for price in prices)], dim=2)

    @cached_property
    def _moving(self) -> Tensor:
        """Whether a pair's price moves with its channel; (pair,)."""
        pairs = sum(one.actors.numel() for one in self.priced)
        moving = torch.zeros(pairs, dtype=torch.bool, device=self.problem.device)
        for watchers in self.watchers:
            for own, _ in watchers.axes:
                moving[own] = True
        return moving

    def _seen(self, prices: list[Tensor]) -> list[Tensor]:
        """Prices with the mean over levels where nobody watches the channel."""
        masks = torch.split(self._moving, [one.actors.numel() for one in self.priced])
        moving = [mask.reshape(1, 1, *price.shape[2:4], 1) for price, mask in zip(prices, masks, strict=True)]
        return [torch.where(*one, one[1].mean(1, keepdim=True)) for one in zip(moving, prices, strict=True)]

    def _totals(self, watchers: Watchers, programs: SoftPrograms, flat: Tensor, temperature: float) -> Tensor:
        """Σ_j V_j of a group of devices, over their energies and the channels they watch."""
        problem, devices = self.problem, watchers.devices
        paid = self._watched_prices(watchers, flat)  # (block × sky, device, channel state, action)
        if problem.endless:
            return self._around(watchers, programs, paid, temperature)
        value = torch.zeros(len(devices), paid.shape[2], problem.num_energy, dtype=paid.dtype, device=paid.device)
        paid = paid.reshape(-1, self.skies, *paid.shape[1:]).movedim(1, 3)
        blocks, slots = self.blocks.tolist(), range(problem.slots - 1, -1, -1)
        spared = self.sparing and torch.is_grad_enabled()
        length = _segment_slots(problem.slots) if spared else problem.slots
        for begin in range(0, problem.slots, length):
            arguments = paid, value, blocks, slots[begin : begin + length], temperature
            value = _recomputed(programs.values, *arguments) if spared else programs.values(*arguments)
        value = (value * problem.initial_energy_law[devices].unsqueeze(1)).sum(-1)
        return mean_over_channels(problem, value, len(watchers.axes)).sum()

    def _around(self, watchers: Watchers, programs: SoftPrograms, paid: Tensor, temperature: float) -> Tensor:
        """Σ_j of what devices pay in a cycle on average: the mean rise of their values around it.

        Each call starts from the values that the call before ended with, and weighs them by the law in which that
        one ended, which is its gradient. So both settle while prices rise.
        """
        problem, key = self.problem, int(watchers.devices[0])
        value, law = self._settling.get(key) or (None, self._first_law(watchers, paid))
        value = torch.zeros_like(law) if value is None else value
        after = value = value.detach().requires_grad_(torch.is_grad_enabled())
        cycles = -(-_AROUND_SLOTS // problem.slots)
        paid = paid.reshape(-1, self.skies, *paid.shape[1:]).movedim(1, 3)
        blocks, slots = self.blocks.tolist(), range(problem.slots - 1, -1, -1)
        for _ in range(cycles):
            after = programs.values(paid, after, blocks, slots, temperature)
        kept = (after - after.amin((1, 2), keepdim=True)).detach()
        if torch.is_grad_enabled():

            def keep(slope: Tensor) -> None:
                self._settling[key] = kept, slope / slope.sum((1, 2), keepdim=True)

            value.register_hook(keep)  # type: ignore[no-untyped-call]
        return (law * (after - value.detach())).sum() / cycles

    @cached_property
    def _settling(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Around a cycle, by a group's first device: values and laws that the last call ended with."""
        return {}

    def _first_law(self, watchers: Watchers, paid: Tensor) -> Tensor:
        """First energies and stationary channels; (device, channel state, energy)."""
        channels = paid.new_ones(1)
        for _ in watchers.axes:
            channels = torch.outer(channels, self.problem.channel.stationary.to(paid.dtype)).flatten()
        return self.problem.initial_energy_law[watchers.devices].unsqueeze(1) * channels.reshape(1, -1, 1)

    def _watched_prices(self, watchers: Watchers, flat: Tensor) -> Tensor:
        """Σ_i g_ij of a group of devices for the joint levels of the channels watched."""
        blocks, levels, _, actions = flat.shape
        count = len(watchers.axes)
        place = place_among(watchers.devices, self.problem.num_devices)
        none = watchers.devices.new_zeros(0)
        actor = place[torch.cat([none, *(one.actors.flatten() for one in self.priced)])]
        blind = ((actor >= 0) & ~self._moving).nonzero().squeeze(1)
        base = self.problem.idle_cost[watchers.devices].expand(blocks, -1, -1)
        total = base.index_add(1, actor[blind], flat[:, :, blind].mean(1))
        total = total.reshape(blocks, len(watchers.devices), *[1] * count, actions)
        for axis, (pairs, places) in enumerate(watchers.axes):
            own = flat.new_zeros(blocks, levels, len(watchers.devices), actions)
            own.index_add_(2, places, flat[:, :, pairs])
            shape = [blocks, len(watchers.devices), *[1] * count, actions]
            shape[2 + axis] = levels
            total = total + own.transpose(1, 2).reshape(shape)
        return total.reshape(blocks, len(watchers.devices), -1, actions)


def falling(first: float, last: float, steps: int) -> list[float]:
    """A number of every step of an ascent, falling by the same factor each time."""
    return [first * (last / first) ** (step / max(steps - 1, 1)) for step in range(steps)]


class Adam:
    """Gradient ascent with a step size of its own for every number (Kingma and Ba, 2015), at their default decays.

    `torch.optim` would load a compiler for it, which takes longer than many an ascent.
    """

    def __init__(self, numbers: list[Tensor]) -> None:
        self._numbers, self._steps = numbers, 0
        self._mean = [torch.zeros_like(one) for one in numbers]
        self._square = [torch.zeros_like(one) for one in numbers]

    @torch.no_grad()
    def ascend(self, gradients: Sequence[Tensor], rate: float) -> None:
        """One step uphill, in place."""
        self._steps += 1
        for number, mean, square, gradient in zip(self._numbers, self._mean, self._square, gradients, strict=True):
            mean.lerp_(gradient, 1 - _MEAN_DECAY)
            square.mul_(_SQUARE_DECAY).addcmul_(gradient, gradient, value=1 - _SQUARE_DECAY)
            spread = (square / (1 - _SQUARE_DECAY**self._steps)).sqrt_().add_(_LEAST_SPREAD)
            number.addcdiv_(mean, spread, value=rate / (1 - _MEAN_DECAY**self._steps))


_MEAN_DECAY, _SQUARE_DECAY, _LEAST_SPREAD = 0.9, 0.999, 1e-8


def ascent_bytes(problem: Problem, priced: list[Priced], watchers: tuple[Watchers, ...], sparing: bool) -> float:
    """Peak memory: cost tables, prices paid, one block of minima, and what gradients keep of all slots.

    A sparing gradient keeps values where segments begin, and one segment at a time.
    """
    width, levels = torch.empty((), dtype=problem.dtype).element_size(), problem.channel.levels
    listed, actions = [one.cost.numel() for one in priced], len(problem.actions)
    blocks, slots = len(np.unique(slot_blocks(problem))) * num_skies(problem), problem.slots
    states = [float(len(one.devices)) * levels ** len(one.axes) for one in watchers]  # of devices and channels
    values = [count * problem.num_energy for count in states]
    choices = [value * (1 + actions) for value in values]
    devices = sum(len(one.devices) for one in watchers)
    kernels = devices * problem.num_energy**2 * len(problem.harvest.law.joule)
    kept = float(sum(listed)) + _PAID_COPIES * sum(states) * blocks * actions + kernels
    programs = _KEPT_SHARE * slots * sum(choices)
    if sparing:
        length = _segment_slots(slots)
        programs = sum(values) * slots / length + (_KEPT_SHARE * length + _PASSING_COPIES) * max(choices)
    return float(width * (kept + max(_LISTING_COPIES * max(listed, default=0), programs)))


# Measured: allocations of this many bytes per byte that a gradient keeps, since what lies between is not used again.
_KEPT_SHARE = 3
_PAID_COPIES = 6  # prices of a program's channels are added up one after the other, and so are their gradients
_PASSING_COPIES = 6  # of one slot's choices, on the way forth and back
_LISTING_COPIES = 4  # while a table is made, and while its minima are taken


def _segment_slots(slots: int) -> int:
    """Slots of a segment: about as many as there are segments, so that both together are fewest."""
    return math.isqrt(slots - 1) + 1


def _recomputed(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """The function's result; what its gradient needs is computed again then, not kept until then.

    The reentrant kind records nothing at all before that. The other kind leaves a small record of every operation,
    and such records between large tensors keep their memory from being used again.
    """
    found: Tensor = checkpoint(function, *arguments, use_reentrant=True, preserve_rng_state=False)
    return found
