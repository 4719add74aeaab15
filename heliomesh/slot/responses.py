"""Coordinate rounds on looked-up best responses, for networks so small that an operation takes longer than its work.

A device's best response depends on what the devices do with which it shares a receiver. Where their joint actions are
few, all responses are found at once; rounds are then walks through a list of integers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.slot.ties import TIE, first_least, first_least_of

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
_DOUBT = 0.1  # of a tie: sums in any order differ by less

Hearing = tuple[int, tuple[int, ...]]  # start of a receiver's table in the flat buffer, and the devices it hears


class Listed(NamedTuple):
    """Where a device's responses are listed."""

    device: int
    start: int  # in the list of all
    others: tuple[tuple[int, int], ...]  # each device that shares a receiver with it, and its stride in the list


@dataclass(frozen=True)
class Responses:
    """Best responses of all devices to all joint actions of those with which they share a receiver."""

    count: int  # actions
    colour: tuple[int, ...]  # (device,) devices of one colour share no receiver
    heard: tuple[Hearing, ...]  # receivers, in the order in which devices add their tables up
    exact: bool = False  # whether costs are whole numbers, equal only where all digits are

    @cached_property
    def listed(self) -> tuple[Listed, ...]:
        """All devices, in the order of their turns."""
        found, start = [], 0
        for device in sorted(range(len(self.colour)), key=lambda one: self.colour[one]):
            others = sorted({other for _, actors in self._hearing[device] for other in actors} - {device})
            strides = [self.count**place for place in range(len(others) - 1, -1, -1)]
            found.append(Listed(device, start, tuple(zip(others, strides, strict=True))))
            start += self.count ** len(others)
        return tuple(found)

    @cached_property
    def _hearing(self) -> list[list[Hearing]]:
        """Receivers that hear each device."""
        found: list[list[Hearing]] = [[] for _ in self.colour]
        for start, actors in self.heard:
            for device in actors:
                found[device].append((start, actors))
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
        most = max(map(len, self._hearing), default=0)
        rows = list[list[list[int]]]()  # (response, action, term)
        for device, _, others in self.listed:
            for doings in product(range(self.count), repeat=len(others)):
                doing = dict(zip((other for other, _ in others), doings, strict=True))
                rows.append([self._row(device, doing | {device: own}, most) for own in range(self.count)])
        price, *terms = np.array(rows, dtype=np.int64).reshape(-1, self.count, 1 + most).T.copy()
        return price, terms

    @cached_property
    def _are_unlike(self) -> bool:
        """Whether more receivers hear some device than another."""
        return len(set(map(len, self._hearing))) > 1

    def _row(self, device: int, doing: dict[int, int], most: int) -> list[int]:
        """Where a device's price is and those tables' entries that matter to it, when devices do as given."""
        heard = [self._entry(one, doing) for one in self._hearing[device]]
        return [device * self.count + doing[device], *heard, *[-1] * (most - len(heard))]

    def _entry(self, hearing: Hearing, doing: dict[int, int]) -> int:
        """Entry of a receiver's table in the flat buffer."""
        start, actors = hearing
        joint = 0
        for device in actors:
            joint = joint * self.count + doing[device]
        return start + joint

    def decide(self, tables: Floats, price: Floats, starts: Sequence[Ints], rounds: int) -> Ints:
        """The best result of rounds from several starts; tables (batch, entry), price (batch, device, action)."""
        best, first = self.best(tables, price).tolist(), [start.tolist() for start in starts]
        found = []
        for episode, responses in enumerate(best):
            ends = [self.rounds(responses, start[episode], rounds) for start in first]
            alike = all(end == ends[0] for end in ends)
            found.append(ends[0] if alike else ends[self._least(tables[episode], price[episode], ends)])
        return np.array(found)

    def _least(self, tables: Floats, price: Floats, ends: Sequence[Sequence[int]]) -> int:
        """Which joint actions cost least, the first of equal ones; tables (entry,), price (device, action)."""
        missed, paid, places = tables.tolist(), price.tolist(), [self._places(end) for end in ends]
        costs = [
            sum([missed[place] for place in heard])
            + sum([own[action] for own, action in zip(paid, end, strict=True)])
            for heard, end in zip(places, ends, strict=True)
        ]
        least = min(costs)
        tie = 0.0 if self.exact else (abs(least) + 1) * TIE
        doubt = _DOUBT if tables.dtype == np.float64 else math.inf
        if tie and min(abs(cost - least - tie) for cost in costs) < doubt * tie:
            # the order of the sums might decide: that of `Coordination.total` does
            lost, own = tables[np.array(places)], price[np.arange(len(price)), np.array(ends)]
            return int(first_least(torch.from_numpy(lost).sum(-1) + torch.from_numpy(own).sum(-1)))
        return next((number for number, cost in enumerate(costs) if cost <= least + tie), 0)

    def _places(self, chosen: Sequence[int]) -> list[int]:
        """Where every receiver's table is read, by the actions of all devices."""
        found = []
        for start, strides in self._strides:
            place = start
            for device, stride in strides:
                place += chosen[device] * stride
            found.append(place)
        return found

    @cached_property
    def _strides(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Start of every receiver's table, and the devices that it hears with their strides."""
        return [
            (start, [(device, self.count**place) for place, device in enumerate(reversed(actors))])
            for start, actors in self.heard
        ]

    def best(self, tables: Floats, price: Floats) -> Ints:
        """The responses, (batch, response)."""
        own, terms = self._terms
        if self._are_unlike:
            tables = np.concatenate([tables, np.zeros((len(tables), 1), tables.dtype)], 1)
        value = price.reshape(len(price), -1).take(own, 1)  # (batch, action, response)
        for term in terms:  # in the order of `Rounds`, so that sums have the same bits
            value = value + tables.take(term, 1)
        return self._first_least(value, 1)

    def _first_least(self, costs: Floats, axis: int) -> Ints:
        """Index of the first of equal least costs along an axis."""
        return costs.argmin(axis) if self.exact else first_least_of(costs, axis)

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
