"""One device of the planner `bids`: its account of its model, its two messages a slot, and its choice.

A device runs the simulator's own policy (`planners/bids.py`) and its pure functions (`slot/bids.py`) with its own
row: whatever belongs to other devices is blank, but for what their messages and packets said. What it did not hear in
time counts as not said, so a device that hears nobody decides alone.

    bid     of its own battery, weather and account
    grant   of the bids that it heard
    choose  of the grants that it heard
    learn   its account follows its model: the packets that it averages tell their senders' accounts
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.field.fleet.view import View
from heliomesh.model.policy import Noticed, Observation
from heliomesh.model.problem import Problem, interpolated
from heliomesh.planners.bids import Bidders
from heliomesh.scenario.section import Section
from heliomesh.slot.bids import (
    NOBODY,
    Bid,
    Grant,
    Listener,
    bid,
    bid_bytes,
    choose,
    grant,
    grant_bytes,
    message_bytes,
    read_bid,
    read_grant,
)
from heliomesh.slot.learning_model import Contributions

Bools = npt.NDArray[np.bool_]


_LEAN_STEPS = 127  # of the largest direction, which no lean exceeds


class OwnBids(Section):
    """What a device is given of a plan of `bids`: nothing that tells of another, but the common step of leans."""

    format: Literal["heliomesh-bids"] = "heliomesh-bids"
    device: Annotated[int, Field(ge=0)]
    levels: Annotated[int, Field(ge=2)]  # of the battery grid
    values: tuple[tuple[float, ...], ...] | None  # (slot, energy) least cost to come; None: a guessed price of energy
    direction: tuple[float, ...]  # (direction,) in which its training moves a model
    bias_weight: tuple[float, ...]  # (slot,)
    lean_step: Annotated[float, Field(gt=0)]

    @classmethod
    def of(cls, policy: Bidders, device: int) -> "OwnBids":
        """A device's part of a planned policy."""
        return cls(
            device=device,
            levels=policy.problem.battery.levels,
            values=None if policy.values is None else tuple(map(tuple, policy.values[:, device].tolist())),
            direction=tuple(policy.model.directions[device].tolist()),
            bias_weight=policy.bias_weight,
            lean_step=policy.terms.lean_step,
        )

    def fits(self, problem: Problem, device: int) -> bool:
        """Whether this is the part of a device of the problem."""
        energies, values = problem.harvest.law.num_weather * self.levels, self.values or ()
        return (
            (self.device, len(self.bias_weight)) == (device, problem.slots)
            and len(values) in ((0,) if self.values is None else (problem.slots,))
            and all(len(row) == energies for row in values)
        )


class Bidder:
    """A device's part of every slot."""

    def __init__(self, view: View, given: OwnBids) -> None:
        actions, device = view.problem.actions, view.device
        spending = {name: getattr(actions, name).nan_to_num(0.0) for name in ("spent_joule", "needed_joule")}
        known = replace(view.problem, actions=replace(actions, **spending))  # others' rows are read, and never used
        problem = interpolated(known, given.levels)
        self._view, self._given, self._device, self._problem = view, given, device, problem
        direction = torch.tensor(given.direction, dtype=torch.float64)
        self.policy = Bidders(
            problem=problem,
            bias_weight=given.bias_weight,
            values=None if given.values is None else self._rows(torch.tensor(given.values, dtype=torch.float64), 1),
            directions=self._rows(direction, 0),
        )
        self._terms = replace(self.policy.terms, lean_step=given.lean_step)
        neighbours, model = view.neighbours, self.policy.model
        self._own_edges = slice(*problem.topology.edge_start[device : device + 2].tolist())
        self._share = model.lone_share[self._own_edges]
        self._weight = model.network.edge_weight[self._own_edges]
        self._place = torch.tensor([problem.topology.neighbours[other].index(device) for other in neighbours]).long()
        self.num_bytes = message_bytes(len(direction), len(self._terms.power_watt))
        self.progress, self.lean = torch.zeros((), dtype=torch.float64), torch.zeros_like(direction)
        self._said: dict[tuple[str, int], bytes] = {}  # in this slot, by kind and neighbour

    def _rows(self, own: Tensor, axis: int) -> Tensor:
        """Numbers of all devices, of which the others' are blank."""
        shape = (*own.shape[:axis], self._problem.num_devices, *own.shape[axis:])
        found = own.new_zeros(shape)
        found.select(axis, self._device).copy_(own)
        return found

    @property
    def problem(self) -> Problem:
        """What the device knows, on its plan's grid of energies."""
        return self._problem

    def open(self, slot: int, levels: Mapping[int, int], weather: int, battery_joule: float, heard: Bools) -> None:
        """Begin a slot with what is left of the battery once messages are paid.

        ``heard`` (neighbour, message) says which bids and grants of neighbours arrive, if they are sent.
        """
        level = torch.zeros(1, self._problem.channel.num_sites, dtype=torch.long)
        for number, found in levels.items():
            level[0, number] = found
        battery = torch.tensor(battery_joule, dtype=torch.float64)
        own = (self._rows(one, 0).unsqueeze(0) for one in (battery, torch.tensor(weather), battery))
        memory = tuple(self._rows(one, 0).unsqueeze(0) for one in (self.progress, self.lean))
        self._seen = Observation(level, *own, memory=memory)
        self._slot, self._arrives, self._said = slot, heard, {}

    def hear(self, kind: str, neighbour: int, content: bytes) -> None:
        """Keep what a neighbour said in this slot, where it arrives."""
        place = self._view.neighbours.index(neighbour)
        if bool(self._arrives[place, int(kind == "grant")]):
            self._said[kind, neighbour] = content

    def _heard(self, kind: str) -> tuple[list[bytes], Tensor]:
        """What all neighbours said, blank where nothing was heard, and a blank more; whether it was heard."""
        blank = bytes(self.num_bytes[kind == "grant"])
        said = [self._said.get((kind, other)) for other in self._view.neighbours]
        return [one or blank for one in (*said, None)], torch.tensor(
            [one is not None for one in said], dtype=torch.bool
        )

    def bid(self) -> bytes:
        """What the device says first."""
        now = Contributions(*self._seen.memory)
        self._price = self.policy.price(self._slot, self._seen)[0, self._device]
        trained = self.policy.model.lean_after_training(now)[0, self._device]
        said, self._trains = bid(self._terms, self.progress, self.lean, trained, self._price)
        return bid_bytes(said)

    def grant(self) -> bytes:
        """What it answers the bids that it heard."""
        messages, heard = self._heard("bid")
        bids = Bid(*(torch.stack(parts)[:-1] for parts in zip(*map(read_bid, messages), strict=True)))
        arrival = self.policy.arrival(self._seen)[0, self._device, : len(heard)]
        own = Listener(self.progress, self.lean, self._trains, self._share, self._weight, arrival)
        self._granted = grant(self._terms, own, bids, heard, self._given.bias_weight[self._slot])
        return grant_bytes(self._granted)

    def choose(self) -> int:
        """Its action."""
        messages, heard = self._heard("grant")
        grants = Grant(*(torch.stack(parts)[:-1] for parts in zip(*map(read_grant, messages), strict=True)))
        return int(choose(self._terms, self._price, self._granted, grants, heard, self._place)[0])

    def fault(self, kind: str, neighbour: int, content: bytes) -> str | None:
        """What no healthy neighbour says as a bid or grant, or as the account of a model; None where it may be so."""
        problem, num_powers = self._problem, len(self._terms.power_watt)
        account_bytes = 8 * (1 + len(self.lean))
        expected = {"bid": self.num_bytes[0], "grant": self.num_bytes[1], "model": account_bytes}[kind]
        if len(content) != expected:
            return f"{len(content)} bytes about a {kind}, which takes {expected}"
        if kind == "bid":
            power = int(read_bid(content).power)
            return None if power < num_powers else f"a bid with the power {power} of {num_powers}"
        if kind == "grant":
            said, degree = read_grant(content), len(problem.topology.neighbours[neighbour])
            sound = int(said.place) in {*range(degree), NOBODY} and bool(
                (said.worth.isfinite() & (said.worth >= 0)).all()
            )
            return None if sound else f"a grant to its neighbour {int(said.place)} of {degree}"
        progress, *lean = np.frombuffer(content, "<f8").tolist()
        most = self._terms.lean_step * (_LEAN_STEPS + 1)
        sound = 0 <= progress <= problem.slots and all(abs(one) <= most for one in lean)
        return None if sound else f"an account of {progress:g} slots of training"

    # its account

    def account(self, trained: bool) -> bytes:
        """The account of the model that it sends: progress and lean after its training, if it trained."""
        now = Contributions(*self._seen.memory)
        after = self.policy.model.trained(now, torch.full_like(self._seen.weather, trained, dtype=torch.bool))
        progress, lean = after.progress[0, self._device], after.lean[0, self._device]
        return torch.cat([progress.reshape(1), lean]).numpy().astype("<f8").tobytes()

    def learn(self, trained: bool, delivered: Bools, accounts: Mapping[int, bytes]) -> None:
        """Follow the model: the device's own training, and averaging with packets that were delivered.

        ``delivered`` by incoming edge, ``accounts`` by sender
        """
        now = Contributions(*(part.clone() for part in self._seen.memory))
        for sender, content in accounts.items():
            progress, *lean = np.frombuffer(content, "<f8").tolist()
            now.progress[0, sender], now.lean[0, sender] = progress, torch.tensor(lean, dtype=torch.float64)
        arrived = torch.zeros(1, self._problem.topology.num_edges, dtype=torch.bool)
        arrived[0, self._own_edges] = torch.from_numpy(delivered)
        own = self._rows(torch.tensor(trained), 0).unsqueeze(0)
        nothing = torch.full_like(self._seen.battery_joule, torch.nan)
        seen = replace(self._seen, memory=(now.progress, now.lean), noticed=Noticed(nothing, arrived, own))
        self.progress, self.lean = (part[0, self._device] for part in self.policy.recall(seen))

    def state(self) -> dict[str, Tensor]:
        """The account, for a checkpoint."""
        return {"progress": self.progress.clone(), "lean": self.lean.clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` gave."""
        self.progress, self.lean = state["progress"].clone(), state["lean"].clone()
