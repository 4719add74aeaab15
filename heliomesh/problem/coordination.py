"""One slot's joint decision by neighbour messages: minimise Σ_i U_i(p_{N_i}) + Σ_j u_j(p_j).

U_i is a table over the joint actions that receiver i hears, u_j a price per own action. Devices of one colour share
no receiver, so they may move at once; each move needs only the tables of the receivers that hear the mover.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from heliomesh.problem.problem import Problem
from heliomesh.problem.responses import Floats, Ints, Responses
from heliomesh.problem.size import check_fits
from heliomesh.problem.threads import is_small
from heliomesh.problem.ties import first_least

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
class Coordination:
    """Tables and rounds for one network."""

    problem: Problem
    exact: bool = False  # whether costs are whole multiples of a unit, whose ties need no tolerance

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All receivers with at least one neighbour, by how many devices they hear."""
        problem = self.problem
        by_count: dict[int, list[int]] = {}
        for receiver in range(problem.num_devices):
            if problem.topology.neighbours[receiver]:
                by_count.setdefault(len(problem.heard_by(receiver)), []).append(receiver)
        groups, offset = [], 0
        for count, receivers in sorted(by_count.items()):
            edges = torch.tensor([self.edge_order(i) for i in receivers], device=problem.device)
            actors = torch.from_numpy(problem.topology.edge_sender).to(problem.device)[edges]
            places = torch.tensor(receivers, device=problem.device)
            if problem.link.half_duplex:
                actors = torch.cat([actors, places.unsqueeze(1)], dim=1)
            groups.append(Group(places, actors, edges, offset))
            offset += len(receivers) * len(problem.actions) ** count
        return tuple(groups)

    def edge_order(self, receiver: int) -> list[int]:
        """Edges into a receiver, alike senders beside each other: equal surroundings then give equal tables."""
        start, stop = self.problem.topology.edge_start[receiver : receiver + 2]
        return sorted(range(start, stop), key=lambda edge: self._edge_looks[edge])

    def edge_look(self, edge: int) -> tuple[float, ...]:
        """What distinguishes an edge and its sender for a receiver."""
        return self._edge_looks[edge]

    @cached_property
    def _edge_looks(self) -> list[tuple[float, ...]]:
        """What distinguishes an edge and its sender for a receiver."""
        problem, topology = self.problem, self.problem.topology
        looks = self.device_looks
        gain = [
            float(f"{g:.9e}") for g in problem.link.path_gain.tolist()
        ]  # computed, so equal but for the last digits
        weight = topology.edge_weight.tolist()
        return [(weight[e], gain[e], *looks[j]) for e, j in enumerate(topology.edge_sender.tolist())]

    @cached_property
    def device_looks(self) -> list[tuple[float, ...]]:
        """What distinguishes one device's energy and idling from another's."""
        problem = self.problem
        stored = problem.battery.losses.charge_efficiency * problem.harvest.law.scale
        scale = (stored / problem.battery.step_joule).tolist()
        heard = torch.bincount(
            torch.tensor([j for i in range(problem.num_devices) for j in problem.heard_by(i)]),
            minlength=problem.num_devices,
        ).tolist()
        quanta = torch.cat([problem.actions.quanta, problem.actions.needed_quanta], 1).tolist()
        whole, rest = problem.battery.kept_steps()
        kept, first = (whole + rest).tolist(), problem.wide.initial_energy_law.tolist()
        own = problem.topology.self_weight.tolist()
        return [
            (scale[j], float(heard[j]), own[j], *map(float, quanta[j]), *kept[j], *first[j])
            for j in range(problem.num_devices)
        ]

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

    def slot_costs(self, slot: int, group: Group, channel_level: Tensor) -> Tensor:
        """v_t f_i of a group for observed channels; (batch, receiver, joint action)."""
        missed, deliver = self.observed(group, channel_level), self.problem.weights.in_slot(slot).deliver
        return missed if deliver == 1 else deliver * missed

    def costs_ahead(self, slots: Sequence[int], group: Group, channel_level: Tensor) -> Floats:
        """`slot_costs` of several slots, whose channels are (slot, batch, site); (slot, batch, receiver, joint)."""
        missed = self.observed(group, channel_level.flatten(0, 1))
        deliver = torch.from_numpy(self.problem.weights.deliver_of_slot[slots]).to(missed.dtype)
        by_slot = missed.reshape(*channel_level.shape[:2], *missed.shape[1:])
        found: Floats = (deliver.reshape(-1, 1, 1, 1) * by_slot).numpy()
        return found

    def observed(self, group: Group, channel_level: Tensor) -> Tensor:
        """f_i of a group for observed channels; (batch, receiver, joint action)."""
        problem = self.problem
        if problem.scenario.channel.state == "receiver":
            table = self._by_level[group.offset]  # (level × receiver, joint action)
            number = group.receivers.shape[0]
            return table[channel_level[:, group.receivers] * number + self._counted[:number]]
        fading = problem.channel.gain[channel_level[:, problem.channel.site_of_edge[group.edges]]]
        return self.missed(group, fading)

    @cached_property
    def _by_level(self) -> dict[int, Tensor]:
        """f_i for every level of a receiver's own channel; per group offset (level × receiver, joint action)."""
        gain = self.problem.channel.gain
        return {
            group.offset: self.missed(group, gain.reshape(-1, 1, 1).expand(-1, *group.edges.shape)).flatten(0, 1)
            for group in self.groups
        }

    @cached_property
    def _counted(self) -> Tensor:
        """0, 1, 2, … (device,)."""
        return torch.arange(self.problem.num_devices, device=self.problem.device)

    def missed(self, group: Group, fading: Tensor) -> Tensor:
        """Σ_j a_ij q_ij for all joint actions; fading (batch, receiver, neighbour) → (batch, receiver, joint)."""
        problem, count = self.problem, len(self.problem.actions)
        weight = torch.from_numpy(problem.topology.edge_weight).to(problem.device)[group.edges]
        watt = (fading * problem.link.path_gain[group.edges]).unsqueeze(-1) * problem.actions.power_watt
        watt = watt.to(problem.dtype)  # (batch, receiver, neighbour, action)
        axes = group.edges.shape[1]
        each = [self._on_axis(watt[..., k, :], k, group.heard) for k in range(axes)]
        everyone = torch.zeros((), dtype=problem.dtype, device=problem.device)
        for term in each:
            everyone = everyone + term
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
    def _pairs(self) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Per colour: table, movers, position among the movers and stride of every (receiver, mover) pair.

        A device that nobody hears is a mover without pairs: only its own price decides.
        """
        problem, count = self.problem, len(self.problem.actions)
        none = torch.zeros(0, dtype=torch.long, device=problem.device)
        slot_of_table, actors, strides = [none], [none], [none]
        number = 0
        for group in self.groups:
            size, heard = group.actors.shape
            slot_of_table.append(torch.arange(number, number + size, device=problem.device).repeat_interleave(heard))
            actors.append(group.actors.flatten())
            stride = count ** torch.arange(heard - 1, -1, -1, device=problem.device)
            strides.append(stride.repeat(size))
            number += size
        table, actor, stride = torch.cat(slot_of_table), torch.cat(actors), torch.cat(strides)
        colour = torch.tensor(problem.colour, device=problem.device)
        pairs = []
        for turn in range(int(colour.max()) + 1):
            which, movers = colour[actor] == turn, (colour == turn).nonzero().squeeze(1)
            pairs.append((table[which], movers, torch.searchsorted(movers, actor[which]), stride[which]))
        return pairs

    @cached_property
    def _starts(self) -> Tensor:
        """Start of every receiver's table in the flat buffer."""
        count, place = len(self.problem.actions), self.problem.device
        starts = [g.offset + torch.arange(len(g.receivers), device=place) * count**g.heard for g in self.groups]
        return torch.cat([torch.zeros(0, dtype=torch.long, device=place), *starts])

    @staticmethod
    def flat(tables: Iterable[Tensor], price: Tensor) -> Tensor:
        """All groups' tables (batch, ...) in one buffer (batch, entry), empty where nobody hears anybody."""
        return torch.cat([price.new_zeros(len(price), 0), *(table.flatten(1) for table in tables)], 1)

    def rounds(self, tables: Tensor, price: Tensor, chosen: Tensor, rounds: int) -> Tensor:
        """Coordinate rounds from ``chosen`` until nobody moves; tables (batch, entry), price (batch, device, action).

        Infeasible actions carry an infinite price.
        """
        chosen, position = chosen.clone(), self.positions(chosen)
        for _ in range(rounds):
            before = chosen.clone()
            for table, movers, mover, stride in self._pairs:
                now = chosen[:, movers]
                # where the tables stand with the movers at action 0, then at each of their actions
                base = position[:, table] - now[:, mover] * stride
                index = base.unsqueeze(-1) + stride.unsqueeze(-1) * torch.arange(price.shape[-1], device=price.device)
                value = tables.gather(1, index.flatten(1)).reshape(index.shape)  # (batch, pair, action)
                best = self._first_least(price[:, movers].index_add(1, mover, value))
                chosen[:, movers] = best
                position[:, table] = base + best[:, mover] * stride  # a table hears one device of a colour at most
            if torch.equal(before, chosen):
                break
        return chosen

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
                answer = (
                    torch.stack(
                        [
                            joint.movedim(2 + k, -1).reshape(batch, len(group.receivers), -1, count).amin(2)
                            for k in range(group.heard)
                        ],
                        dim=2,
                    )
                    - wish
                )
                advice[number] = (advice[number] + answer - answer.amin(-1, keepdim=True)) / 2
        return self._first_least(self._belief(finite, advice) + price)

    def _belief(self, price: Tensor, advice: list[Tensor]) -> Tensor:
        """Price plus all receivers' messages; (batch, device, action)."""
        belief = price.clone()
        for group, message in zip(self.groups, advice, strict=True):
            belief.index_add_(1, group.actors.flatten(), message.flatten(1, 2))
        return belief

    def positions(self, chosen: Tensor) -> Tensor:
        """Index of every receiver's current joint action in the flat buffer; (batch, receiver)."""
        count = len(self.problem.actions)
        parts = [torch.zeros(len(chosen), 0, dtype=torch.long, device=chosen.device)]
        for group in self.groups:
            joint = torch.zeros(len(chosen), len(group.receivers), dtype=torch.long, device=chosen.device)
            for k in range(group.heard):
                joint = joint * count + chosen[:, group.actors[:, k]]
            parts.append(joint)
        return torch.cat(parts, dim=1) + self._starts

    def total(self, tables: Tensor, price: Tensor, chosen: Tensor) -> Tensor:
        """Objective of joint actions; (batch,)."""
        own = price.gather(2, chosen.unsqueeze(-1)).squeeze(-1).sum(1)
        return tables.gather(1, self.positions(chosen)).sum(1) + own

    def decide(self, tables: Tensor, price: Tensor, starts: Sequence[Tensor], rounds: int, messages: int) -> Tensor:
        """The best result, per episode, of coordinate rounds from several starts and from the messages' advice."""
        starts = [*starts, self.min_sum(tables, price, messages)] if messages else starts
        if self._looks_up(len(price)):
            first = [start.numpy() for start in starts]
            return torch.from_numpy(self._responses.decide(tables.numpy(), price.numpy(), first, rounds))
        ends = [self.rounds(tables, price, start, rounds) for start in starts]
        costs = torch.stack([self.total(tables, price, end) for end in ends])
        best = self._first_least(costs, 0)
        return torch.stack(ends)[best, torch.arange(len(best), device=best.device)]

    def _first_least(self, costs: Tensor, dim: int = -1) -> Tensor:
        """Index of the first of equal least costs along an axis."""
        return costs.argmin(dim) if self.exact else first_least(costs, dim)

    def decide_few(self, tables: Sequence[Floats], price: Floats, start: Ints, rounds: int, messages: int) -> Ints:
        """What `decide` finds from a start and from silence; arrays, which it takes and returns.

        Tables (batch, receiver, joint action) by group, price (batch, device, action), start (batch, device).
        """
        starts = [start, np.zeros_like(start)]
        flat = [table.reshape(len(price), -1) for table in tables]
        joined = flat[0] if len(flat) == 1 else np.concatenate([price[:, 0, :0], *flat], 1)
        if self._looks_up(len(price)) and not messages:
            return self._responses.decide(joined, price, starts, rounds)
        first = [torch.from_numpy(start) for start in starts]
        found: Ints = self.decide(torch.from_numpy(joined), torch.from_numpy(price), first, rounds, messages).numpy()
        return found

    def _looks_up(self, episodes: int) -> bool:
        """Whether rounds of so many episodes are faster on looked-up responses."""
        return is_small(self.problem) and episodes * self._responses.number <= _MOST_RESPONSES

    @cached_property
    def _responses(self) -> Responses:
        """Best responses to look up, for networks that are small enough."""
        actors = [tuple(row) for group in self.groups for row in group.actors.tolist()]
        heard = tuple(zip(self._starts.tolist(), actors, strict=True))
        return Responses(len(self.problem.actions), self.problem.colour, heard, self.exact)

    @cached_property
    def batch(self) -> int:
        """Episodes to handle at a time."""
        return max(1, _BATCH_ENTRIES[self.problem.device.type] // max(self.entries, 1))
