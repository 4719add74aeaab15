"""Coordinate rounds on looked-up best responses, for networks so small that an operation takes longer than its work.

A device's best response depends on what the devices do with which it shares a receiver. Where their joint actions are
few, all responses are found at once; rounds are then walks through a list of integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from heliomesh.problem.ties import first_least

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
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
        """Every response's device (response,), and the entries whose sum it makes least (response × action,) each.

        Entries are counted from 1. Entry 0 stands for a receiver that a device has less than others.
        """
        most = max(map(len, self._hearing), default=0)
        rows = list[list[int]]()
        devices = list[int]()
        for device, _, others in self.listed:
            for doings in product(range(self.count), repeat=len(others)):
                devices.append(device)
                doing = dict(zip((other for other, _ in others), doings, strict=True))
                for own in range(self.count):
                    row = [1 + self._entry(one, doing | {device: own}) for one in self._hearing[device]]
                    rows.append(row + [0] * (most - len(row)))
        return np.array(devices), list(np.array(rows, dtype=np.int64).reshape(len(rows), most).T.copy())

    def _entry(self, hearing: Hearing, doing: dict[int, int]) -> int:
        """Entry of a receiver's table in the flat buffer."""
        start, actors = hearing
        joint = 0
        for device in actors:
            joint = joint * self.count + doing[device]
        return start + joint

    def entries(self, chosen: Ints) -> Ints:
        """Where every receiver's table is read; actions (..., device) → (..., receiver)."""
        starts, actors, strides = self._read
        found: Ints = starts + (chosen[..., actors] * strides).sum(-1)
        return found

    @cached_property
    def _read(self) -> tuple[Ints, Ints, Ints]:
        """Starts of all tables (receiver,), and devices heard with their strides (receiver, heard), 0 beyond them."""
        most = max((len(actors) for _, actors in self.heard), default=0)
        starts, actors = np.zeros(len(self.heard), np.int64), np.zeros((len(self.heard), most), np.int64)
        strides = np.zeros_like(actors)
        for number, (start, heard) in enumerate(self.heard):
            starts[number], actors[number, : len(heard)] = start, heard
            strides[number, : len(heard)] = self.count ** np.arange(len(heard) - 1, -1, -1)
        return starts, actors, strides

    def best(self, tables: Floats, price: Floats) -> list[list[int]]:
        """The responses, (episode, response); tables (batch, entry), price (batch, device, action)."""
        devices, terms = self._terms
        padded = np.zeros((len(tables), tables.shape[1] + 1), tables.dtype)
        padded[:, 1:] = tables
        value = price.take(devices, 1)
        for term in terms:  # in the order of `Rounds`, so that sums have the same bits
            value = value + padded.take(term, 1).reshape(value.shape)
        costs = torch.from_numpy(value)
        found: list[list[int]] = (costs.argmin(-1) if self.exact else first_least(costs)).tolist()
        return found

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
