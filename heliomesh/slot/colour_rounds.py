"""Coordinate rounds: devices of one colour move at once, each to what is best for it, until nobody moves.

There are three kinds, by what a mover asks for.

- `PacketMoves`: the packets that its move concerns. Devices of one colour neither hear each other nor share a
  receiver. So every receiver near them hears one mover only, and a mover's action changes nothing but the packets
  into its receivers and into itself. Sums have the order of the network's edges.
- `TableRounds`: tables of the receivers that hear it. Nearly all moves happen in the first rounds. Later rounds ask
  only devices near which something has changed: all others would answer as they did before.
- `ListedResponses`: its best response to what devices do with which it shares a receiver. Where their joint actions
  are few, all responses are found at once; rounds are then walks through a list of integers. That is for networks so
  small that an operation takes longer than its work.

In the first two episodes are the last axis, so that rows of edges, devices and receivers are contiguous: that is many
times faster, and so is ``index_select`` than indexing. What does not change from round to round is gathered once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.physics.link import Radio
from heliomesh.slot.ties import first_least, first_least_of

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
_FEW_CHANGED = 1 / 32  # share of tables below which only devices near them are asked


def by_colour(colour: Sequence[int], device: torch.device) -> list[Tensor]:
    """Devices of each colour, in rising order; (mover,) each."""
    colours = torch.tensor(colour, device=device)
    return [(colours == turn).nonzero().squeeze(1) for turn in range(int(colours.max()) + 1)]


def place_among(movers: Tensor, devices: int) -> Tensor:
    """Place of every device among the movers (mover,), −1 for the others; (device,)."""
    place = torch.full((devices,), -1, device=movers.device)
    place[movers] = torch.arange(len(movers), device=movers.device)
    return place


@dataclass(frozen=True)
class Edges:
    """Some directed edges in the network's order, so that sums over them keep their bits."""

    number: Tensor  # (edge,) in the network
    receiver: Tensor  # (edge,)
    sender: Tensor  # (edge,)
    place: Tensor  # (edge,) where sums over edges put it


@dataclass(frozen=True)
class PacketTurn:
    """Devices that move at once, and the edges which their moves concern."""

    mover: Tensor  # (mover,) devices
    out: Edges  # from movers, by mover; each ends at a receiver of its own
    into: Edges  # into movers, by mover
    near: Edges  # into the receivers of movers from anyone, by out edge
    concerned: Edges  # near ones, then those into movers, by receiver
    out_near: Tensor  # (out,) positions of edges from movers in ``near``


def packet_turn(receiver: Tensor, sender: Tensor, movers: Tensor, devices: int) -> PacketTurn:
    """The turn of devices (mover,), rising, which neither hear each other nor share a receiver; ends (edge,) each."""
    place = place_among(movers, devices)
    out, into = ((place[ends] >= 0).nonzero().squeeze(1) for ends in (sender, receiver))
    out_of_receiver = place_among(receiver[out], devices)
    near = (out_of_receiver[receiver] >= 0).nonzero().squeeze(1)
    concerned = torch.cat([near, into])

    def edges(number: Tensor, place: Tensor) -> Edges:
        return Edges(number, receiver[number], sender[number], place)

    return PacketTurn(
        movers,
        edges(out, place[sender[out]]),
        edges(into, place[receiver[into]]),
        edges(near, out_of_receiver[receiver[near]]),
        edges(concerned, receiver[concerned]),
        (place[sender[near]] >= 0).nonzero().squeeze(1),
    )


@dataclass(frozen=True)
class Doing:
    """What all devices do in a slot."""

    power_watt: Tensor  # (device, batch)
    trains: Tensor  # (device, batch) bool


class PacketMoves:
    """Gains of all powers of a turn's movers, with and without training."""

    def __init__(self, link: Radio, turn: PacketTurn, power_watt: Tensor, fading: Tensor, value: Tensor) -> None:
        """Powers (power,); fading (edge, batch); value (receiver trains, sender trains, edge, batch)."""
        self._link, self._turn = link, turn
        self._own_watt = power_watt.reshape(-1, 1, 1).expand(-1, len(turn.mover), fading.shape[1])
        self._fading = fading.index_select(0, turn.concerned.number)
        self._path_gain = link.path_gain[turn.concerned.number].unsqueeze(-1)
        self._noise_watt = link.noise_watt[turn.concerned.receiver].unsqueeze(-1)
        groups = (turn.near, turn.out, turn.into)
        self._near_value, self._out_value, self._into_value = (value.index_select(2, g.number) for g in groups)

    def gains(self, doing: Doing) -> Tensor:
        """What movers gain, all others doing as they do, up to a constant; (mover trains, power, mover, batch)."""
        turn, arrival = self._turn, self._arrival(doing)
        near, into = arrival[:, : len(turn.near.number)], arrival[:, len(turn.near.number) :]
        sent = near.index_select(1, turn.out_near)
        kept = near.index_fill(1, turn.out_near, 0.0) * self._worth_near(doing)  # movers' packets are counted apart
        heard = torch.zeros_like(sent).index_add_(1, turn.near.place, kept)
        gain = heard.new_zeros(2, *self._own_watt.shape)
        gain.index_add_(2, turn.out.place, heard.expand(2, -1, -1, -1))
        receiver_trains = doing.trains.index_select(0, turn.out.receiver)
        worth = torch.where(receiver_trains, self._out_value[1], self._out_value[0])  # (mover trains, out, batch)
        gain.index_add_(2, turn.out.place, sent * worth.unsqueeze(1))
        sender_trains = doing.trains.index_select(0, turn.into.sender)
        # (mover trains, in, batch)
        worth = torch.where(sender_trains, self._into_value[:, 1], self._into_value[:, 0])
        return gain.index_add_(2, turn.into.place, into * worth.unsqueeze(1))

    def _arrival(self, doing: Doing) -> Tensor:
        """1 − q of all concerned edges, by the power of their mover; (power, edge, batch)."""
        edges, levels = self._turn.concerned, len(self._own_watt)
        power_watt = doing.power_watt.repeat(levels, 1, 1).index_copy_(1, self._turn.mover, self._own_watt)
        signal_watt = power_watt.index_select(1, edges.sender).mul_(self._fading).mul_(self._path_gain)
        total_watt = torch.zeros_like(power_watt).index_add_(1, edges.receiver, signal_watt)
        disturbance_watt = total_watt.index_select(1, edges.receiver).sub_(signal_watt).clamp_min_(0)
        arrival = 1 - self._link.packet_error(signal_watt, disturbance_watt.add_(self._noise_watt))
        if self._link.half_duplex:
            arrival *= (power_watt == 0).index_select(1, edges.receiver)
        return arrival

    def _worth_near(self, doing: Doing) -> Tensor:
        """Values of packets into receivers of movers; (near, batch)."""
        edges, value = self._turn.near, self._near_value
        sender_trains = doing.trains.index_select(0, edges.sender)
        by_receiver = torch.where(sender_trains, value[:, 1], value[:, 0])
        return torch.where(doing.trains.index_select(0, edges.receiver), by_receiver[1], by_receiver[0])


@dataclass(frozen=True)
class TableTurn:
    """Devices of one colour, and the tables that hear them: each table hears one of them at most.

    A device that nobody hears has no pair: only its own price decides.
    """

    devices: Tensor  # (mover,)
    table: Tensor  # (pair,) receiver of every pair (receiver, mover), by receiver
    place: Tensor  # (pair,) the mover, as its place among the devices
    stride: Tensor  # (pair,) of the mover's action in the receiver's table
    pairs: Tensor  # (mover, heard by) each mover's pairs in the same order, 0 beyond them
    heard: Tensor  # (mover, heard by) bool: whether there is such a pair


def table_turn(devices: Tensor, count: int, table: Tensor, actor: Tensor, stride: Tensor) -> TableTurn:
    """The turn of some of ``count`` devices; every table's actors, and the strides of their actions, (pair,) each."""
    places = place_among(devices, count)[actor]
    which = (places >= 0).nonzero().squeeze(1)
    table, place, stride = table[which], places[which], stride[which]
    counts = torch.bincount(place, minlength=len(devices))
    order = torch.argsort(place, stable=True)
    column = torch.arange(len(place), device=place.device) - (torch.cumsum(counts, 0) - counts)[place[order]]
    pairs = place.new_zeros(len(devices), int(counts.max()) if len(counts) else 0)
    pairs[place[order], column] = order
    heard = torch.arange(pairs.shape[1], device=place.device) < counts.unsqueeze(1)
    return TableTurn(devices, table, place, stride, pairs, heard)


@dataclass
class TableRounds:
    """Rounds under way in a batch of episodes."""

    entries: Tensor  # (entry,) of all tables
    price: Tensor  # (device, action, batch); infeasible actions carry an infinite price
    chosen: Tensor  # (device, batch) actions
    position: Tensor  # (receiver, batch) of the joint actions in the entries

    def run(self, turns: Sequence[TableTurn], rounds: int) -> Tensor:
        """Actions (device, batch) after so many rounds, or once nobody moves."""
        near: Tensor | None = None  # tables (receiver, batch) that changed in the round before, where these are few
        for _ in range(rounds):
            if near is None:
                before = self.position.clone()
                for turn in turns:
                    self._move_all(turn)
                changed = self.position != before
            else:
                changed = torch.zeros_like(near)
                for turn in turns:
                    self._move_near(turn, near, changed)
            count = int(changed.sum())
            if count == 0:
                break
            near = changed if count <= _FEW_CHANGED * changed.numel() else None
        return self.chosen

    def _move_all(self, turn: TableTurn) -> None:
        """Let all devices of a colour move."""
        now = self.chosen.index_select(0, turn.devices)
        stride = turn.stride.unsqueeze(1)
        # where the tables stand with the movers at action 0, then at each of their actions
        base = self.position.index_select(0, turn.table).sub_(now.index_select(0, turn.place).mul_(stride))
        cost = self.price.index_select(0, turn.devices)
        value = self._values(base.unsqueeze(1), stride.unsqueeze(2), axis=1)
        best = first_least(cost.index_add_(0, turn.place, value), 1)
        self.chosen.index_copy_(0, turn.devices, best)
        self.position.index_copy_(0, turn.table, base.add_(best.index_select(0, turn.place).mul_(stride)))

    def _move_near(self, turn: TableTurn, near: Tensor, changed: Tensor) -> None:
        """Let those devices of a colour move that are heard near tables which changed since their last turn.

        ``near`` (receiver, batch): changed in the round before; ``changed``, in which moves are noted: in this one.
        """
        stale = (near.index_select(0, turn.table) | changed.index_select(0, turn.table)).int()
        asked = stale.new_zeros(len(turn.devices), stale.shape[1]).index_add_(0, turn.place, stale)
        mover, episode = asked.nonzero(as_tuple=True)
        device, pair = turn.devices[mover], turn.pairs[mover]  # (asked,), (asked, heard by)
        table, heard = turn.table[pair], turn.heard[mover]
        now, stride = self.chosen[device, episode], turn.stride[pair] * heard
        base = self.position[table, episode.unsqueeze(1)] - now.unsqueeze(1) * stride
        value = self._values(base.unsqueeze(2), stride.unsqueeze(2), axis=2)  # (asked, heard by, action)
        cost = self.price[device, :, episode]
        for one, present in zip(value.unbind(1), heard.unbind(1), strict=True):  # in the order of `_move_all`
            cost += torch.where(present.unsqueeze(1), one, 0.0)
        best = first_least(cost, 1)
        moved = (heard & (best != now).unsqueeze(1)).nonzero(as_tuple=True)
        self.chosen[device, episode] = best
        place = table[moved], episode[moved[0]]
        self.position[place] = base[moved] + best[moved[0]] * stride[moved]
        changed[place] = True

    def _values(self, base: Tensor, stride: Tensor, axis: int) -> Tensor:
        """Entries at each of the movers' actions, which are the axis named."""
        shape = [1] * base.ndim
        shape[axis] = self.price.shape[1]
        index = base + stride * torch.arange(shape[axis], device=base.device).reshape(shape)
        return self.entries.index_select(0, index.view(-1)).view(index.shape)


Hearing = tuple[int, tuple[int, ...]]  # start of a receiver's table in the flat buffer, and the devices it hears
Strides = tuple[tuple[int, int], ...]  # devices, and how far apart their actions are in a list


class Listed(NamedTuple):
    """Where a device's responses are listed."""

    device: int
    start: int  # in the list of all
    others: Strides  # of the devices that share a receiver with it


@dataclass(frozen=True)
class ListedResponses:
    """Best responses of all devices to all joint actions of those with which they share a receiver."""

    count: int  # actions
    colour: tuple[int, ...]  # (device,) devices of one colour share no receiver
    heard: tuple[Hearing, ...]  # receivers, in the order in which devices add their tables up

    @cached_property
    def listed(self) -> tuple[Listed, ...]:
        """All devices, in the order of their turns."""
        found, start = [], 0
        for device in sorted(range(len(self.colour)), key=lambda one: self.colour[one]):
            others = sorted({other for _, strides in self._hearing[device] for other, _ in strides} - {device})
            found.append(Listed(device, start, self._strides(others)))
            start += self.count ** len(others)
        return tuple(found)

    def _strides(self, devices: Sequence[int]) -> Strides:
        """Strides in a list of joint actions, in which the first device's counts most."""
        return tuple((device, self.count ** (len(devices) - 1 - place)) for place, device in enumerate(devices))

    @cached_property
    def _hearing(self) -> list[list[tuple[int, Strides]]]:
        """By device: starts of the tables of receivers that hear it, and the strides of all that these hear."""
        found: list[list[tuple[int, Strides]]] = [[] for _ in self.colour]
        for start, actors in self.heard:
            for device in actors:
                found[device].append((start, self._strides(actors)))
        return found

    @cached_property
    def number(self) -> int:
        """Responses of all devices."""
        return sum(self.count ** len(one.others) for one in self.listed)

    @cached_property
    def _terms(self) -> tuple[Ints, list[Ints]]:
        """Where the terms are whose sum a response makes least: its price, then receivers; (action, response) each.

        Prices are counted through (device × action). A device that fewer receivers hear than another has the entry
        −1 in their place.
        """
        most, found = max(map(len, self._hearing)), []
        for device, _, others in self.listed:
            number = self.count ** len(others)
            joint = np.indices((self.count,) * len(others)).reshape(-1, 1, number)
            doing = dict(zip((other for other, _ in others), joint, strict=True))
            doing[device] = np.arange(self.count).reshape(-1, 1)
            terms = np.full((1 + most, self.count, number), -1)
            terms[0] = device * self.count + doing[device]
            for row, (start, strides) in enumerate(self._hearing[device], 1):
                terms[row] = start + sum(doing[other] * stride for other, stride in strides)
            found.append(terms)
        price, *heard = np.concatenate(found, 2)
        return price, heard

    def ends(self, tables: Floats, price: Floats, starts: Sequence[Ints], rounds: int) -> Ints:
        """Where rounds from several starts (batch, device) end; tables (batch, entry), price (batch, device, action).

        (start, batch, device)
        """
        best, first = self.best(tables, price).tolist(), np.array(starts).tolist()
        return np.array([[self.rounds(*known, rounds) for known in zip(best, row, strict=True)] for row in first])

    def best(self, tables: Floats, price: Floats) -> Ints:
        """The responses, (batch, response)."""
        own, terms = self._terms
        if len(terms) > min(map(len, self._hearing)):  # more receivers hear some device than another
            tables = np.concatenate([tables, np.zeros((len(tables), 1), tables.dtype)], 1)
        value = price.reshape(len(price), -1).take(own, 1)  # (batch, action, response)
        for term in terms:  # in the order of `TableRounds`, so that sums have the same bits
            value = value + tables.take(term, 1)
        return first_least_of(value, 1)

    def rounds(self, best: Sequence[int], chosen: list[int], rounds: int) -> list[int]:
        """Turns from ``chosen`` (device,) until nobody moves."""
        chosen = chosen.copy()
        for _ in range(rounds):
            before = chosen.copy()
            for device, start, others in self.listed:
                place = start
                for other, stride in others:
                    place += chosen[other] * stride
                chosen[device] = best[place]
            if chosen == before:
                break
        return chosen
