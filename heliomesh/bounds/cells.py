"""Cells of receivers whose one-slot minimum is taken together, with their cost tables; see `dual.py`."""

from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
import torch
from torch import Tensor

from heliomesh.model.cost import receiver_factor
from heliomesh.model.factor import action, site, total
from heliomesh.model.problem import Part, Problem
from heliomesh.slot.coordination import Coordination, Group

_LISTED_ENTRIES = {"cpu": 1 << 18, "cuda": 1 << 22}  # channel states × joint actions of one receiver, listed
_GROUP_ENTRIES = 1 << 24  # the same of receivers whose minima are taken together
_CELL_ENTRIES = 1 << 23  # the same of a cell of several receivers, and of all cells of a part together
_SHARING_RECEIVERS = 30  # parts of fewer receivers have merged cells as large as if they were so many
_MERGED_RECEIVERS = 500  # larger networks have cells of one receiver


@dataclass(frozen=True)
class Priced:
    """Cells that hear equally many devices over equally many channels."""

    actors: Tensor  # (cell, heard) devices
    cost: Tensor  # Σ_{i∈c} f_i: (channel state, cell, joint action)
    channel_prob: Tensor  # (channel state,)
    level: Tensor  # (channel state, heard) level that a price may move with
    site: Tensor  # (cell, heard) channel site of that level, −1 for none

    @property
    def heard(self) -> int:
        """Devices heard by each cell."""
        return self.actors.shape[1]

    def to(self, dtype: torch.dtype) -> "Priced":
        """The same with tables of another number type."""
        return replace(self, cost=self.cost.to(dtype), channel_prob=self.channel_prob.to(dtype))


def priced_cells(problem: Problem, coordination: Coordination) -> list[Priced]:
    """Cost tables of all cells over all their channel states; single receivers are pruned to what can be listed."""
    joined = [cell for cell in receiver_cells(problem) if len(cell) > 1]
    alone = set(range(problem.num_devices)).difference(*joined)
    found = [_priced(problem, coordination, group) for group in _pruned_groups(problem, coordination, alone)]
    by_size: dict[tuple[int, int], list[Part]] = {}
    for cell in joined:
        part = _cell_part(problem, cell)
        by_size.setdefault((len(part.sites), len(part.devices)), []).append(part)
    return found + [_joined(problem, parts) for parts in by_size.values()]


def receiver_cells(problem: Problem) -> list[tuple[int, ...]]:
    """Receivers that are minimised together: whole independent parts, or neighbours merged while they can be listed.

    Of all merges the one that shares most devices comes first, then the one that lists least.
    """
    receivers = [i for i in range(problem.num_devices) if problem.topology.neighbours[i]]
    if len(receivers) > _MERGED_RECEIVERS:
        return [(i,) for i in receivers]
    found: list[tuple[int, ...]] = []
    for part in problem.parts:
        if _cell_entries(problem, part.receivers) <= _CELL_ENTRIES:
            found += [part.receivers] if part.receivers else []
        else:
            found += _merged(problem, part.receivers)
    return found


def _merged(problem: Problem, receivers: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Cells by merging two at a time. Every cell has a number, a merged one the next; only neighbours are tried."""
    widest = max(_cell_entries(problem, (i,)) for i in receivers)
    most = min(max(_CELL_ENTRIES // max(len(receivers), _SHARING_RECEIVERS), widest), _CELL_ENTRIES)
    cells: dict[int, tuple[int, ...]] = {}
    heard: list[set[int]] = []  # by number, also of cells that were merged since
    hearing: dict[int, list[int]] = {}  # by device: numbers of the cells that hear it
    merges: list[tuple[int, int, int, int]] = []  # a heap: devices shared, entries, both cells

    def add(cell: tuple[int, ...]) -> None:
        number, devices = len(heard), set(_cell_part(problem, cell).devices)
        for other in sorted({other for device in devices for other in hearing.get(device, ()) if other in cells}):
            entries = _cell_entries(problem, cells[other] + cell)
            if entries <= most:
                heappush(merges, (-len(heard[other] & devices), entries, other, number))
        cells[number] = cell
        heard.append(devices)
        for device in devices:
            hearing.setdefault(device, []).append(number)

    for receiver in receivers:
        add((receiver,))
    while merges:
        *_, first, second = heappop(merges)
        if first in cells and second in cells:
            add(cells.pop(first) + cells.pop(second))
    return list(cells.values())


def _cell_part(problem: Problem, cell: tuple[int, ...]) -> Part:
    """The devices and channel sites that a cell's receivers depend on."""
    devices = sorted({j for i in cell for j in problem.heard_by(i)})
    sites = dict.fromkeys(site for i in cell for site in problem.sites_into(i))
    return Part(tuple(devices), tuple(sites), cell)


def _cell_entries(problem: Problem, cell: tuple[int, ...]) -> int:
    """Channel states × joint actions of a cell."""
    part = _cell_part(problem, cell)
    listed: int = problem.channel.levels ** len(part.sites) * len(problem.actions) ** len(part.devices)
    return listed


def _joined(problem: Problem, parts: list[Part]) -> Priced:
    """Cells of several receivers; their prices see no channel."""
    levels, actions = problem.channel.levels, len(problem.actions)
    tables = []
    for part in parts:
        scope = (*map(site, part.sites), *map(action, part.devices))
        table = total([receiver_factor(problem, receiver) for receiver in part.receivers]).aligned(scope)
        tables.append(table.expand(problem.sizes(scope)).reshape(levels ** len(part.sites), -1))
    sites, heard = len(parts[0].sites), len(parts[0].devices)
    grid = torch.cartesian_prod(*[torch.arange(levels, device=problem.device)] * sites).reshape(-1, sites)
    actors = torch.tensor([part.devices for part in parts], device=problem.device)
    return Priced(
        actors=actors,
        cost=torch.stack(tables, 1).reshape(-1, len(parts), actions**heard),
        channel_prob=problem.channel.stationary.to(problem.dtype)[grid].prod(1),
        level=torch.zeros(len(grid), heard, dtype=torch.long, device=problem.device),
        site=torch.full_like(actors, -1),
    )


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


def listed_entries(problem: Problem, coordination: Coordination) -> tuple[int, ...]:
    """Entries of the tables of `priced_cells`, found without any table."""
    cells = receiver_cells(problem)
    alone = {cell[0] for cell in cells if len(cell) == 1}
    groups = _pruned_groups(problem, coordination, alone)
    single = (len(group.receivers) * _listed_entries(problem, group.edges.shape[1]) for group in groups)
    return (*single, *(_cell_entries(problem, cell) for cell in cells if len(cell) > 1))


def _columns(problem: Problem, group: Group) -> list[Tensor]:
    """Positions of the neighbours heard together; several parts where all at once are too many."""
    neighbours = group.edges.shape[1]
    per_neighbour = len(problem.actions) * (1 if _one_level(problem) else problem.channel.levels)
    heard = int(np.log(_LISTED_ENTRIES[problem.device.type]) / np.log(max(per_neighbour, 2)))
    parts = -(-neighbours // max(1, heard - problem.link.half_duplex))
    return list(torch.arange(neighbours, device=problem.device).tensor_split(parts))


def _one_level(problem: Problem) -> bool:
    """Whether all links into a receiver share one channel level."""
    return problem.scenario.channel.state == "receiver"


def _priced(problem: Problem, coordination: Coordination, group: Group) -> Priced:
    levels, prob = coordination.channel_states(group)
    cost, sites = coordination.missed_at(group, levels), problem.channel.site_of_edge[group.edges]
    if _one_level(problem):
        level, site = levels.expand(-1, group.heard), sites[:, :1].expand(-1, group.heard)
    else:
        more = group.heard - sites.shape[1]  # a half-duplex receiver itself has no link
        pad = torch.nn.functional.pad
        level, site = pad(levels, (0, more), value=0), pad(sites, (0, more), value=-1)
    return Priced(group.actors, cost, prob, level, site)


def expected_prices(one: Priced, law: Tensor) -> Tensor:
    """E[f_i | p_j = a], spread so that they add up to E[f_i] once; (block, 1, receiver, heard, action)."""
    actions, heard = law.shape[-1], one.heard
    expected = torch.tensordot(one.channel_prob, one.cost, dims=([0], [0]))  # (receiver, joint)
    table = expected.reshape(1, len(one.actors), *(actions,) * heard)
    prices = []
    for own in range(heard):
        given = table.expand(len(law), *table.shape[1:])
        for axis in range(heard - 1, -1, -1):
            if axis != own:
                other = law[:, one.actors[:, axis]]  # (block, receiver, action)
                shape = [*other.shape[:2], *[1] * (given.ndim - 2)]
                shape[2 + axis if axis < own else given.ndim - 1] = actions
                given = (given * other.reshape(shape)).sum(2 + axis if axis < own else given.ndim - 1)
        prices.append(given)
    stacked = torch.stack(prices, dim=2)
    mean = (stacked * law[:, one.actors]).sum(-1, keepdim=True)
    return (stacked - mean * (1 - 1 / heard)).unsqueeze(1)
