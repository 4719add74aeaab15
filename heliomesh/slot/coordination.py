"""One slot's joint decision by neighbour messages: minimise Σ_i U_i(p_{N_i}) + Σ_j u_j(p_j).

U_i is a table over the joint actions that receiver i hears, u_j a price per own action. Devices of one colour share
no receiver, so they may move at once; each move needs only the tables of the receivers that hear the mover.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.memory_limit import check_fits
from heliomesh.model.problem import Problem
from heliomesh.model.threads import is_small
from heliomesh.slot.colour_rounds import ListedResponses, TableRounds, TableTurn, by_colour, table_turn
from heliomesh.slot.ties import first_least

FORBIDDEN = 1e6  # stands for an infinite price where differences are taken
_BATCH_ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 28}  # table entries of all episodes handled at a time
_MOST_RESPONSES = 1 << 15  # of all episodes, for which rounds on looked-up responses are the faster ones


@dataclass(frozen=True)
class Group:
    """Receivers that hear equally many devices."""

    receivers: Tensor  # (receiver,)
    actors: Tensor  # (receiver, heard) devices whose actions matter there
    edges: Tensor  # (receiver, neighbour) edges into them; under half duplex the receiver itself is heard last
    offset: int  # of the group's first table in the flat buffer

    @property
    def heard(self) -> int:
        """Number of devices heard."""
        return self.actors.shape[1]


@dataclass(frozen=True)
class Tables:
    """Receivers' tables over the joint actions that they hear, in one buffer."""

    entries: Tensor  # (batch, entry) a group after the other, or (1, entry) where episodes share tables
    begins: Tensor | None = None  # (receiver, batch) where each receiver's table begins, if they do


@dataclass(frozen=True)
class Coordination:
    """Tables and rounds for one network."""

    problem: Problem

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All receivers with at least one neighbour, by how many devices they hear."""
        problem, topology = self.problem, self.problem.topology
        degree, groups, offset = np.diff(topology.edge_start), [], 0
        sender = torch.from_numpy(topology.edge_sender).to(problem.device)
        for neighbours in np.unique(degree[degree > 0]).tolist():
            receivers = np.flatnonzero(degree == neighbours)
            place = topology.edge_start[receivers].reshape(-1, 1) + np.arange(neighbours)
            edges, places = (torch.from_numpy(a).to(problem.device) for a in (self._edge_order[place], receivers))
            actors = sender[edges]
            if problem.link.half_duplex:
                actors = torch.cat([actors, places.unsqueeze(1)], dim=1)
            groups.append(Group(places, actors, edges, offset))
            offset += len(receivers) * len(problem.actions) ** actors.shape[1]
        return tuple(groups)

    @cached_property
    def _edge_order(self) -> npt.NDArray[np.int64]:
        """Edges by receiver, alike senders beside each other: equal surroundings then give equal tables; (edge,)."""
        problem, topology = self.problem, self.problem.topology
        senders = problem.device_kind[topology.edge_sender]
        return np.lexsort((senders, problem.edge_gain, topology.edge_weight, topology.edge_receiver))

    @property
    def entries(self) -> int:
        """Table entries of the whole network per episode."""
        return sum(len(g.receivers) * len(self.problem.actions) ** g.heard for g in self.groups)

    def check_fits(self, memory_gib: float) -> None:
        """Refuse receivers whose joint actions cannot be listed."""
        count = max((len(n) for n in self.problem.topology.neighbours), default=0) + self.problem.link.half_duplex
        largest = float(len(self.problem.actions)) ** count * 8 * 4
        remedy = "lower the degree or the power levels, or use the planner 'prices' with coordinate = false"
        check_fits("joint actions heard by one receiver", largest, memory_gib, remedy)

    def observed(self, group: Group, channel_level: Tensor) -> Tensor:
        """f_i of a group for observed channels; (batch, receiver, joint action)."""
        problem = self.problem
        if problem.scenario.channel.state == "receiver":
            level = channel_level[:, group.receivers]
            row = torch.arange(level.shape[1], device=problem.device) * problem.channel.levels + level
            return self._by_level[group.offset][row]
        fading = problem.channel.gain[channel_level[:, problem.channel.site_of_edge[group.edges]]]
        return self.missed(group, fading)

    @cached_property
    def _level_entries(self) -> Tensor:
        """f_i by the level of a receiver's own channel, group after group: (receiver, level, joint action) each."""
        levels = torch.arange(self.problem.channel.levels, device=self.problem.device).unsqueeze(1)
        found = (self.missed_at(group, levels) for group in self.groups)
        none = torch.zeros(0, dtype=self.problem.dtype, device=self.problem.device)
        return torch.cat([none, *(missed.transpose(0, 1).flatten() for missed in found)])

    @cached_property
    def _by_level(self) -> dict[int, Tensor]:
        """The same per group offset; (receiver × level, joint action)."""
        levels, count = self.problem.channel.levels, len(self.problem.actions)
        sizes = [levels * len(group.receivers) * count**group.heard for group in self.groups]
        pieces = torch.split(self._level_entries, sizes)
        return {g.offset: piece.view(-1, count**g.heard) for g, piece in zip(self.groups, pieces, strict=True)}

    def channel_states(self, group: Group) -> tuple[Tensor, Tensor]:
        """All levels of the channels into a group's receivers, (state, 1 or neighbour), and their law (state,).

        One level where all links into a receiver share it.
        """
        channel, shared = self.problem.channel, self.problem.scenario.channel.state == "receiver"
        links = 1 if shared else group.edges.shape[1]
        every = torch.arange(channel.levels, device=self.problem.device)
        levels = torch.cartesian_prod(*[every] * links).reshape(-1, links)
        return levels, channel.stationary.to(self.problem.dtype)[levels].prod(1)

    def missed_at(self, group: Group, levels: Tensor) -> Tensor:
        """`missed` at levels (state, 1 or neighbour); (state, receiver, joint action)."""
        return self.missed(group, self.problem.channel.gain[levels].unsqueeze(1).expand(-1, *group.edges.shape))

    def missed(self, group: Group, fading: Tensor) -> Tensor:
        """Σ_j a_ij q_ij for all joint actions; fading (batch, receiver, neighbour) → (batch, receiver, joint)."""
        problem, count = self.problem, len(self.problem.actions)
        weight = torch.from_numpy(problem.topology.edge_weight).to(problem.device)[group.edges]
        watt = (fading * problem.link.path_gain[group.edges]).unsqueeze(-1) * problem.actions.power_watt
        watt = watt.to(problem.dtype)  # (batch, receiver, neighbour, action)
        axes = group.edges.shape[1]
        each = [self._on_axis(watt[..., k, :], k, group.heard) for k in range(axes)]
        everyone = sum(each, torch.zeros((), dtype=problem.dtype, device=problem.device))
        noise = self._on_axis(problem.link.noise_watt[group.receivers].unsqueeze(-1), 0, group.heard)
        missed = torch.zeros((), dtype=problem.dtype, device=problem.device)
        for k, signal in enumerate(each):
            error = problem.link.packet_error(signal, (everyone - signal).clamp_min(0) + noise)
            missed = missed + self._on_axis(weight[:, k].unsqueeze(-1), 0, group.heard) * error
        if problem.link.half_duplex:
            sends = self._on_axis((problem.actions.power_watt > 0).reshape(1, -1), group.heard - 1, group.heard)
            deaf = self._on_axis(weight.sum(1, keepdim=True), 0, group.heard)
            missed = torch.where(sends, deaf, missed)
        full = (*fading.shape[:2], *(count,) * group.heard)
        return missed.expand(full).reshape(*fading.shape[:2], -1).to(problem.dtype)

    @staticmethod
    def _on_axis(values: Tensor, axis: int, heard: int) -> Tensor:
        """Put the last axis of (..., receiver, value) on the given joint-action axis."""
        shape = [1] * heard
        shape[axis] = values.shape[-1]
        return values.reshape(*values.shape[:-1], *shape)

    @cached_property
    def _turns(self) -> list[TableTurn]:
        """Devices by colour, with the tables that hear them."""
        problem, count = self.problem, len(self.problem.actions)
        none = torch.zeros(0, dtype=torch.long, device=problem.device)
        heard = torch.cat([none, *(torch.full_like(g.receivers, g.heard) for g in self.groups)])
        actor = torch.cat([none, *(g.actors.flatten() for g in self.groups)])
        powers = [count ** torch.arange(g.heard - 1, -1, -1, device=problem.device) for g in self.groups]
        stride = torch.cat([none, *(p.repeat(len(g.receivers)) for p, g in zip(powers, self.groups, strict=True))])
        table = torch.arange(len(heard), device=problem.device).repeat_interleave(heard)
        colours = by_colour(problem.colour, problem.device)
        return [table_turn(movers, problem.num_devices, table, actor, stride) for movers in colours]

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of every table: its receiver, its start in the flat buffer, and its entries; (receiver,) each."""
        none = torch.zeros(0, dtype=torch.long, device=self.problem.device)
        receivers = torch.cat([none, *(g.receivers for g in self.groups)])
        sizes = [torch.full_like(g.receivers, len(self.problem.actions) ** g.heard) for g in self.groups]
        size = torch.cat([none, *sizes])
        return receivers, torch.cumsum(size, 0) - size, size

    @staticmethod
    def flat(tables: Iterable[Tensor], price: Tensor) -> Tensor:
        """All groups' tables (batch, ...) in one buffer (batch, entry), empty where nobody hears anybody."""
        return torch.cat([price.new_zeros(len(price), 0), *(table.flatten(1) for table in tables)], 1)

    def shares_tables(self, messages: int) -> bool:
        """Whether all episodes read the same tables of one slot's cost, by the level of each receiver's channel."""
        alike = self.problem.scenario.channel.state == "receiver"
        return alike and not messages and not is_small(self.problem)

    def slot_tables(self, channel_level: Tensor, price: Tensor, messages: int) -> Tables:
        """f_i of all receivers for observed channels; price (batch, device, action)."""
        if not self.shares_tables(messages):
            return Tables(self.flat((self.observed(g, channel_level) for g in self.groups), price))
        receivers, start, size = self._places
        level = channel_level.T.index_select(0, receivers)
        first = (self.problem.channel.levels * start).unsqueeze(1)
        return Tables(self._level_entries.unsqueeze(0), first + size.unsqueeze(1) * level)

    def message_rounds(self, asked: int | None) -> int:
        """Min-sum rounds: as asked, or where coordinate moves alone get stuck, when sending and hearing compete."""
        return asked if asked is not None else (10 if self.problem.link.half_duplex else 0)

    def min_sum(self, tables: Tensor, price: Tensor, rounds: int) -> Tensor:
        """Damped min-sum messages between receivers and devices; the actions they advise, (batch, device).

        A receiver tells each device it hears the least cost of its table per action of that device, given what the
        others want; a device tells it the sum of its price and all other receivers' messages.
        """
        finite = price.clamp_max(FORBIDDEN)
        count, batch = price.shape[-1], len(price)
        advice = [price.new_zeros(batch, *g.actors.shape, count) for g in self.groups]
        for _ in range(rounds):
            belief = self._belief(finite, advice)
            for number, group in enumerate(self.groups):
                wish = belief[:, group.actors] - advice[number]  # (batch, receiver, heard, action)
                wish = wish - wish.amin(-1, keepdim=True)
                size = count**group.heard
                own = tables[:, group.offset : group.offset + len(group.receivers) * size]
                joint = own.reshape(batch, len(group.receivers), *(count,) * group.heard)
                for k in range(group.heard):
                    joint = joint + self._on_axis(wish[:, :, k], k, group.heard)
                shape = (batch, len(group.receivers), -1, count)
                least = [joint.movedim(2 + k, -1).reshape(shape).amin(2) for k in range(group.heard)]
                answer = torch.stack(least, dim=2) - wish
                advice[number] = (advice[number] + answer - answer.amin(-1, keepdim=True)) / 2
        return first_least(self._belief(finite, advice) + price)

    def _belief(self, price: Tensor, advice: list[Tensor]) -> Tensor:
        """Price plus all receivers' messages; (batch, device, action)."""
        belief = price.clone()
        for group, message in zip(self.groups, advice, strict=True):
            belief.index_add_(1, group.actors.flatten(), message.flatten(1, 2))
        return belief

    def _joint(self, chosen: Tensor) -> Tensor:
        """Number of every receiver's joint action; (device, batch) → (receiver, batch)."""
        parts = [chosen[:0]]
        for group in self.groups:
            joint = chosen.index_select(0, group.actors[:, 0])
            for k in range(1, group.heard):
                joint = joint * len(self.problem.actions) + chosen.index_select(0, group.actors[:, k])
            parts.append(joint)
        return torch.cat(parts)

    def decide(self, tables: Tables, price: Tensor, starts: Sequence[Tensor], rounds: int, messages: int) -> Tensor:
        """The best result, per episode, of coordinate rounds from several starts and from the messages' advice.

        Infeasible actions carry an infinite price; price (batch, device, action), starts (batch, device).
        """
        starts = [*starts, self.min_sum(tables.entries, price, messages)] if messages else starts
        batch, entries, begins = len(price), tables.entries.reshape(-1), tables.begins
        if begins is None:
            rows = torch.arange(batch, device=price.device) * tables.entries.shape[1]
            begins = self._places[1].unsqueeze(1) + rows
        begins = begins.repeat(1, len(starts))
        if self._looks_up(batch):
            first = [start.numpy() for start in starts]
            found = self._responses.ends(tables.entries.numpy(), price.numpy(), first, rounds)
            ends = torch.from_numpy(found)
            if (found == found[0]).all():
                return ends[0]
            position = self._joint(ends.flatten(0, 1).T).add_(begins)
        else:
            chosen = torch.cat(list(starts)).T.contiguous()  # (device, start × batch)
            position = self._joint(chosen).add_(begins)
            repeated = price.permute(1, 2, 0).repeat(1, 1, len(starts))
            under_way = TableRounds(entries, repeated, chosen, position)
            ends = under_way.run(self._turns, rounds).T.reshape(len(starts), batch, -1)
        missed = entries.index_select(0, position.T.reshape(-1)).view(len(starts), batch, -1)
        paid = price.expand(len(starts), -1, -1, -1).gather(3, ends.unsqueeze(-1)).squeeze(-1)
        best = first_least(missed.sum(2) + paid.sum(2), 0)
        return ends[best, torch.arange(batch, device=best.device)]

    def _looks_up(self, episodes: int) -> bool:
        """Whether rounds of so many episodes are faster on looked-up responses."""
        return is_small(self.problem) and episodes * self._responses.number <= _MOST_RESPONSES

    @cached_property
    def _responses(self) -> ListedResponses:
        """Best responses to look up, for networks that are small enough."""
        actors = [tuple(row) for group in self.groups for row in group.actors.tolist()]
        heard = tuple(zip(self._places[1].tolist(), actors, strict=True))
        return ListedResponses(len(self.problem.actions), self.problem.colour, heard)

    def batch(self, shared: bool = False) -> int:
        """Episodes to handle at a time; where they share tables, what is made for pairs of them decides."""
        entries = sum(group.actors.numel() for group in self.groups) if shared else self.entries
        return max(1, _BATCH_ENTRIES[self.problem.device.type] // max(entries, 1))
