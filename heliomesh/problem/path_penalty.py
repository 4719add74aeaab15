"""What it is worth to see a device's own channels in advance; see `path_dual.py`.

Let v_j(t, b, h) be any values of device j with energy b, when the channels of its own links are at h. With the energy
x left after spending and W(x, h') = E[v_j(t+1, b', h') | x],

    D_j(t, x) = W(x, h_{t+1}) − E[W(x, h') | h_t]

has mean zero given the channels up to t, for every x. The nearer v_j is to what a device's energy is worth, the less
is gained by knowing h_{t+1}. Here v_j is the value of a program whose prices have a part for every link, a function
of that link's level: the means of prices along other paths.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heliomesh.problem.contraction import contract_axis
from heliomesh.problem.path_dual import PathDual, reached
from heliomesh.problem.paths import Paths
from heliomesh.problem.problem import Problem

_MOST_STATES = 4096  # joint levels of the channels that a device's values move with
_PIECE_ENTRIES = 1 << 24  # values of devices handled at a time


@dataclass(frozen=True)
class Watched:
    """Devices whose values move with equally many channels."""

    devices: Tensor  # (device,)
    sites: Tensor  # (device, watched)
    price: Tensor  # (device, joint level, action) Σ_i g_ij in the mean


def watched(dual: PathDual, prices: list[Tensor]) -> list[Watched]:
    """Devices with the mean prices of their actions by the levels of their links, from prices along sampled paths."""
    problem = dual.problem
    levels, count = problem.channel.levels, len(problem.actions)
    by_site: list[dict[int, Tensor]] = [{} for _ in range(problem.num_devices)]
    blind = [torch.zeros(count, dtype=problem.dtype, device=problem.device) for _ in range(problem.num_devices)]
    for group, price in zip(dual.coordination.groups, prices, strict=True):
        sites = problem.channel.site_of_edge[group.edges]
        price = price - price[..., :1]  # only differences move a device; the rest would be noise
        means = _by_level(dual.paths, sites, price)
        for place, own in enumerate(group.actors.tolist()):
            for position, device in enumerate(own):
                if position >= sites.shape[1]:  # a half-duplex receiver itself
                    blind[device] = blind[device] + price[:, place, position].mean(0)
                    continue
                site, mean = int(sites[place, position]), means[place, position]
                by_site[device][site] = by_site[device].get(site, torch.zeros_like(mean)) + mean
    most = 0
    while levels > 1 and levels ** (most + 1) <= _MOST_STATES:
        most += 1
    by_count: dict[int, list[int]] = {}
    for device, tables in enumerate(by_site):
        ranked = sorted(tables, key=lambda site: -float((tables[site].amax(0) - tables[site].amin(0)).sum()))
        for site in ranked[most:]:
            blind[device] = blind[device] + tables.pop(site).mean(0)
        by_count.setdefault(len(tables), []).append(device)
    return [_together(problem, devices, by_site, blind) for devices in by_count.values()]


def _by_level(paths: Paths, sites: Tensor, price: Tensor) -> Tensor:
    """Mean prices given the level of each link; (receiver, neighbour, level, action)."""
    seen = torch.nn.functional.one_hot(paths.level.flatten(0, 1)[:, sites], paths.problem.channel.levels).to(price)
    own = price[:, :, : sites.shape[1]]
    weight = seen.sum(0).unsqueeze(-1)
    total = torch.einsum("trkl,trka->rkla", seen, own)
    return torch.where(weight > 0, total / weight.clamp_min(1), own.mean(0).unsqueeze(2))


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
def penalties(problem: Problem, groups: list[Watched], level: Tensor) -> Tensor:
    """D_j along paths (path, slot, site), on the problem's grid; (slot, device, path, energy), 0 in the last slot."""
    shape = (problem.slots, problem.num_devices, len(level), problem.num_energy)
    found = torch.zeros(shape, dtype=problem.dtype, device=problem.device)
    for group in groups:
        per_device = group.price[0].numel() * problem.num_energy
        for piece in torch.split(torch.arange(len(group.devices)), max(1, _PIECE_ENTRIES // per_device)):
            own = Watched(group.devices[piece], group.sites[piece], group.price[piece])
            found[:, own.devices] = _differences(problem, own, level)
    return found


def _differences(problem: Problem, own: Watched, level: Tensor) -> Tensor:
    """D_j of some devices; (slot, device, path, energy)."""
    levels, (devices, watched_sites) = problem.channel.levels, own.sites.shape
    state = torch.zeros(*level.shape[:2], devices, dtype=torch.long, device=problem.device)
    for axis in range(watched_sites):
        state = state * levels + level[:, :, own.sites[:, axis]]  # (path, slot, device)
    idle = problem.idle_costs[torch.from_numpy(problem.weights.phase_of_slot)][:, own.devices]
    value = torch.zeros(devices, own.price.shape[1], problem.num_energy, dtype=problem.dtype, device=problem.device)
    found = value.new_zeros(problem.slots, devices, len(level), problem.num_energy)
    number = torch.arange(devices, device=problem.device).unsqueeze(1)
    for slot in range(problem.slots - 1, -1, -1):
        if slot < problem.slots - 1:
            told = value @ problem.energy_kernels(slot)[own.devices].transpose(1, 2)
            value = _expected(problem, told, watched_sites)
            found[slot] = told[number, state[:, slot + 1].T] - value[number, state[:, slot].T]
        paid = own.price + idle[slot].unsqueeze(1)
        value = (reached(problem, own.devices, value) + paid.unsqueeze(2)).amin(-1)
    return found


def _expected(problem: Problem, value: Tensor, axes: int) -> Tensor:
    """E[value | channels now]; (device, joint level, energy) likewise."""
    apart = value.reshape(len(value), *(problem.channel.levels,) * axes, -1)
    for axis in range(axes):
        apart = contract_axis(apart, 1 + axis, problem.channel.kernel.to(value))
    return apart.reshape(value.shape)
