"""What it is worth to see a device's own channels, and a shared sky, in advance; see `path_dual.py`.

Let v_j(t, b, h) be any values of device j with energy b, when the channels of its own links are at h. With the energy
x left after spending and W(x, h') = E[v_j(t+1, b', h') | x],

    D_j(t, x) = W(x, h_{t+1}) − E[W(x, h') | h_t]

has mean zero given the channels up to t, for every x. The nearer v_j is to what a device's energy is worth, the less
is gained by knowing h_{t+1}. Where paths tell a shared sky, h has its weather too, and W is read at what is harvested
along the path. Here v_j is the value of a program whose prices have a part for every link, a function of that link's
level and of the shared weather: the means of prices along other paths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.bounds.path_dual import PathDual, filled
from heliomesh.bounds.paths import Paths
from heliomesh.bounds.soft_programs import mean_over_channels, moved_channels
from heliomesh.grid.after_spending import Spending
from heliomesh.model.problem import Problem, interpolated

_MOST_STATES = 4096  # joint levels of the channels that a device's values move with
_PIECE_ENTRIES = 1 << 24  # values of devices handled at a time


@dataclass(frozen=True)
class Watched:
    """Devices whose values move with equally many channels."""

    devices: Tensor  # (device,)
    sites: Tensor  # (device, watched)
    price: Tensor  # (device, joint level, weather, action) Σ_i g_ij in the mean; one weather where none is shared


@dataclass(frozen=True)
class Foresight:
    """What sampled paths taught about the worth of foresight."""

    watched: list[Watched]
    received: Tensor  # (weather,) receivers' part of a slot in the mean, by the shared weather


@torch.no_grad()
def learned(dual: PathDual, prices: list[Tensor]) -> Foresight:
    """Mean prices by the levels of devices' links, and what receivers lose by the weather, along sampled paths."""
    paths, lost = dual.paths, dual.received(prices).flatten()
    seen = torch.nn.functional.one_hot(paths.weather.flatten(), paths.weathers).to(lost)
    mean = torch.where(seen.sum(0) > 0, lost @ seen / seen.sum(0).clamp_min(1), lost.mean())
    return Foresight(_watched(dual, prices), mean)


def _watched(dual: PathDual, prices: list[Tensor]) -> list[Watched]:
    """Devices with the mean prices of their actions by the levels of their links."""
    problem, devices = dual.problem, range(dual.problem.num_devices)
    none = torch.zeros(dual.paths.weathers, len(problem.actions), dtype=problem.dtype, device=problem.device)
    blind = [none for _ in devices]
    by_site: list[dict[int, Tensor]] = [{} for _ in devices]
    for group, price in zip(dual.coordination.groups, prices, strict=True):
        sites = problem.channel.site_of_edge[group.edges]
        means = _by_level(dual.paths, sites, price)
        for place, own in enumerate(group.actors.tolist()):
            for position, device in enumerate(own):
                mean = means[place, position]
                if position >= sites.shape[1]:  # a half-duplex receiver itself
                    blind[device] = blind[device] + mean.mean(0)
                    continue
                site = int(sites[place, position])
                by_site[device][site] = by_site[device].get(site, torch.zeros_like(mean)) + mean
    by_count: dict[int, list[int]] = {}
    for device in devices:
        blind[device] = blind[device] + _forgotten(by_site[device], problem.channel.levels)
        by_count.setdefault(len(by_site[device]), []).append(device)
    return [_together(problem, alike, by_site, blind) for alike in by_count.values()]


def _by_level(paths: Paths, sites: Tensor, price: Tensor) -> Tensor:
    """Mean prices given the level of each link and the shared weather; (receiver, heard, level, weather, action).

    A half-duplex receiver itself has no link: its prices are the same at all levels.
    """
    levels = paths.problem.channel.levels
    state = paths.level.flatten(0, 1)[:, sites] * paths.weathers + paths.weather.reshape(-1, 1, 1)
    seen = torch.nn.functional.one_hot(state, levels * paths.weathers).to(price)
    itself = torch.nn.functional.one_hot(paths.weather.flatten(), paths.weathers).to(price).repeat(1, levels)
    more = price.shape[2] - sites.shape[1]
    seen = torch.cat([seen, itself.reshape(-1, 1, 1, levels * paths.weathers).expand(-1, len(sites), more, -1)], 2)
    weight = seen.sum(0).unsqueeze(-1)
    total = torch.einsum("trkl,trka->rkla", seen, price)
    found = torch.where(weight > 0, total / weight.clamp_min(1), price.mean(0).unsqueeze(2))
    return found.reshape(*found.shape[:2], levels, paths.weathers, -1)


def _forgotten(tables: dict[int, Tensor], levels: int) -> Tensor | float:
    """Takes out the sites that matter least, so that joint levels stay few; their mean prices (weather, action)."""
    most = 0
    while levels > 1 and levels ** (most + 1) <= _MOST_STATES:
        most += 1
    ranked = sorted(tables, key=lambda site: -float((tables[site].amax(0) - tables[site].amin(0)).sum()))
    return sum((tables.pop(site).mean(0) for site in ranked[most:]), 0.0)


def _together(problem: Problem, devices: list[int], by_site: list[dict[int, Tensor]], blind: list[Tensor]) -> Watched:
    """Devices with the same number of channels; prices of a joint level add up."""
    price = torch.stack([blind[device] for device in devices]).unsqueeze(1)
    for axis in range(len(by_site[devices[0]])):
        own = torch.stack([list(by_site[device].values())[axis] for device in devices])
        price = (price.unsqueeze(2) + own.unsqueeze(1)).flatten(1, 2)
    sites = [list(by_site[device]) for device in devices]
    place = problem.device
    return Watched(torch.tensor(devices, device=place), torch.tensor(sites, dtype=torch.long, device=place), price)


@torch.no_grad()
def foresight_gains(problem: Problem, seen: Foresight, paths: Paths, levels: int) -> tuple[Tensor, Tensor]:
    """D_j along paths on a grid of so many levels, and what else varies between paths with mean zero.

    D_j is (slot, device, path, energy), 0 in the last slot. The other (path,) is Σ_j v_j in the first state and what
    receivers lose by the shared weather, both less their means: weather is in its stationary law in every slot.
    """
    seeing, told = interpolated(problem, levels), interpolated(paths.problem, levels)
    shape = (problem.slots, problem.num_devices, len(paths), told.num_energy)
    found = torch.zeros(shape, dtype=problem.dtype, device=problem.device)
    told_of = paths.skies is not None
    stationary = problem.harvest.law.stationary.to(found) if told_of else torch.ones_like(seen.received)
    rest = seen.received[paths.weather].sum(1) - problem.slots * (stationary * seen.received).sum()
    for group in seen.watched:
        per_device = group.price.shape[1] * seeing.num_energy * len(problem.actions)
        for piece in torch.split(torch.arange(len(group.devices)), max(1, _PIECE_ENTRIES // per_device)):
            own = Watched(group.devices[piece], group.sites[piece], group.price[piece])
            found[:, own.devices], first = _differences(seeing, told, own, paths)
            rest = rest + first
    return found, rest


def _differences(problem: Problem, told: Problem, own: Watched, paths: Paths) -> tuple[Tensor, Tensor]:
    """D_j of some devices (slot, device, path, energy), and Σ_j v_j in the first state less its mean (path,)."""
    devices, axes = own.sites.shape
    state = torch.zeros(*paths.phase.shape[:2], devices, dtype=torch.long, device=problem.device)
    for axis in range(axes):
        state = state * problem.channel.levels + paths.level[:, :, own.sites[:, axis]]  # (path, slot, device)
    number = torch.arange(devices, device=problem.device).unsqueeze(1)

    def at(table: Tensor, slot: int) -> Tensor:
        """A table (device, joint level, energy) along the paths; (device, path, energy) of told weathers."""
        along = table[number, state[:, slot].T].reshape(devices, len(paths), paths.weathers, told.num_energy)
        which = paths.weather[:, slot].reshape(1, -1, 1, 1).expand(devices, -1, -1, told.num_energy)
        return along.gather(2, which).squeeze(2)

    spending = Spending(problem, own.devices)
    idle = problem.idle_cost[own.devices].reshape(devices, 1, 1, -1)
    value = torch.zeros(devices, own.price.shape[1], problem.num_energy, dtype=problem.dtype, device=problem.device)
    found = value.new_zeros(problem.slots, devices, len(paths), told.num_energy)
    # (device, joint level, energy, action)
    price = own.price.repeat_interleave(problem.num_energy // paths.weathers, 2)
    for slot in range(problem.slots - 1, -1, -1):
        if slot < problem.slots - 1:
            mean = value @ problem.energy_kernels(slot)[own.devices].transpose(1, 2)
            if paths.skies is not None:
                then = filled(told, own.devices, at(value, slot + 1), paths.phase[:, slot])
            else:
                then = at(mean, slot + 1)  # harvests are not foretold, or not by the law
            value = moved_channels(mean, axes, problem.channel.kernel.to(mean))
            found[slot] = then - at(value, slot)
        value = (spending.reached(value) + price + idle).amin(-1)
    first = (at(value, 0) * told.initial_energy_law[own.devices].unsqueeze(1)).sum((0, 2))
    mean = (mean_over_channels(problem, value.flatten(1), axes) * problem.initial_energy_law[own.devices]).sum()
    return found, first - mean
