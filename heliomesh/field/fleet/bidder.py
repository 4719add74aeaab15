"""One device of the planner `bids`: what it is given, its account of its model, its messages, its choice.

A device calls the pure functions of `slot/bids.py` with its own numbers, as the simulator does with everybody's. What
it did not hear in time counts as not said, so a device that hears nobody decides alone.

    open    look at the own battery, weather and channels
    bid     say what there is to give
    grant   answer the bids that were heard
    choose  an action, by the grants that were heard
    learn   the account follows the model: packets that are averaged bring their senders' accounts

A silent device, `SilentBidder`, neither bids nor grants. It chooses by what it believes of its neighbours.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.field.fleet.view import View
from heliomesh.model.overhead import Talk, broadcast_talk
from heliomesh.model.problem import Problem
from heliomesh.planners.bids.accounts import Accountants
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.section import Section
from heliomesh.slot import bids
from heliomesh.slot.bids import Account, Bid, Grant, Listener, Own, Terms
from heliomesh.slot.energy_table import battery_units
from heliomesh.slot.frame import FRAME_SLOTS
from heliomesh.slot.learning_model import LearningModel
from heliomesh.slot.silence import Belief, Reach, choose_silently, first_belief, remembered

Bools = npt.NDArray[np.bool_]
Share = Annotated[int, Field(ge=0, le=1 << bids.SHARE_BITS)]
Shares = tuple[Share, ...]
Units = tuple[Annotated[int, Field(ge=0, le=1 << 40)], ...]  # of energy
Entry = Annotated[int, Field(ge=0, le=(1 << 16) - 1)]  # of a table of values


class OwnBids(Section):
    """A device's part of a plan of `bids`, in integers; names are those of `slot/bids.py` and `slot/silence.py`."""

    format: Literal["heliomesh-bids"] = "heliomesh-bids"
    device: Annotated[int, Field(ge=0)]
    # what all devices know
    action_power: Units
    trained: tuple[bool, ...]
    harm: tuple[Shares, ...]
    bias_bits: Annotated[int, Field(ge=1, le=30)]
    keeps: Literal["oneself", "all", "arrived"]
    half_duplex: bool
    most_lead: Annotated[int, Field(ge=0, le=bids.MOST_LEAD)] = bids.MOST_LEAD
    # what it alone knows
    direction: tuple[Annotated[int, Field(ge=-bids.LEAN_STEPS, le=bids.LEAN_STEPS)], ...]
    spent: Units
    needed: Units
    point_bits: Annotated[int, Field(ge=0, le=40)]
    entry_bits: Annotated[int, Field(ge=0, le=30)]
    own_weight: Share
    weight: Shares
    share: Shares
    arrival: tuple[tuple[Shares, ...], ...]
    place: tuple[Annotated[int, Field(ge=0, lt=bids.NOBODY)], ...]
    hears: tuple[tuple[Annotated[int, Field(ge=0, le=1)], ...], ...]
    endless: bool = False  # whether slots are those of a cycle
    bias_weight: tuple[Entry, ...]  # by slot
    entries: tuple[tuple[tuple[Entry, ...], ...], ...]  # (slot, weather, point)
    # if it is silent
    may_send: tuple[bool, ...] = ()
    lands: tuple[tuple[Shares, ...], ...] = ()
    landed: tuple[Shares, ...] = ()
    their_share: Shares = ()
    their_weight: Shares = ()

    @classmethod
    def all_of(cls, policy: Accountants) -> "list[OwnBids]":
        """The parts of all devices; raises ScenarioError for a policy that did not practise."""
        refuse(policy.entries is None, "bids option.passes", "at least 1 for devices", "value 0")
        return [cls.of(policy, device) for device in range(policy.problem.num_devices)]

    @classmethod
    def of(cls, policy: Accountants, device: int) -> "OwnBids":
        """A device's part of a policy with tables of values."""
        tables = torch.zeros(0) if policy.entries is None else policy.entries[:, device]
        numbers = policy.terms._asdict() | policy.part_of(device)
        numbers |= {"entries": tables, "endless": policy.problem.endless}
        weights = [policy.bias_weight_in(slot) for slot in range(policy.problem.slots)]
        plain = {name: one.tolist() if isinstance(one, Tensor) else one for name, one in numbers.items()}
        return cls.model_validate({"device": device, "bias_weight": weights, **plain}, strict=False)

    def bidder(self, view: View) -> "Bidder":
        """The device that decides by it."""
        return SilentBidder(view, self) if self.may_send else Bidder(view, self)

    def fits(self, problem: Problem, device: int, before: "OwnBids | None" = None) -> bool:
        """Whether this is a part of the problem for a device, in sizes, and can follow the one before."""
        degree, actions = len(problem.topology.neighbours[device]), len(problem.actions)
        powers = len(set(problem.actions.power_watt.tolist()))
        try:
            sizes = {name: tuple(np.shape(getattr(self, name))) for name in type(self).model_fields}
        except ValueError:  # ragged
            return False
        points = max(sizes["entries"][-1:], default=0)
        slots = max(len(self.bias_weight), 1) if self.endless else problem.slots
        expected = {
            **dict.fromkeys(("action_power", "trained", "spent", "needed"), (actions,)),
            **dict.fromkeys(("weight", "share", "place"), (degree,)),
            "arrival": (degree, problem.channel.levels, powers) if degree else (0,),
            "hears": (degree, degree) if degree else (0,),
            "harm": (powers, powers),
            "bias_weight": (slots,),
            "entries": (slots, problem.harvest.law.num_weather, points),
            "direction": sizes["direction"] if before is None else (len(before.direction),),
            **dict.fromkeys(Reach._fields, (0,)),
        }
        if self.may_send:
            expected |= dict.fromkeys(("their_share", "their_weight"), (degree,))
            expected |= {"may_send": (FRAME_SLOTS,), "landed": (degree, powers) if degree else (0,)}
            expected["lands"] = (FRAME_SLOTS, degree, powers) if degree else (FRAME_SLOTS, 0)
        trained, keeps = tuple(problem.actions.trained.tolist()), LearningModel(problem).keeps
        full = int(battery_units(problem, problem.battery.capacity_joule)[device])
        return (
            (self.device, self.trained, self.keeps) == (device, trained, keeps)
            and self.half_duplex == problem.link.half_duplex
            and expected.items() <= sizes.items()
            and len(sizes["direction"]) == 1
            and max(self.action_power) < powers
            and (full >> self.point_bits) + 1 < points
        )


class Bidder:
    """A device's part of every slot."""

    def __init__(self, view: View, given: OwnBids) -> None:
        self.problem, self._device, self._neighbours = view.problem, view.device, view.neighbours
        shared = [getattr(given, name) for name in Terms._fields]
        self._terms = Terms._make(torch.tensor(one) if isinstance(one, tuple) else one for one in shared)
        self._own = Own(*(torch.tensor(getattr(given, name), dtype=torch.long) for name in Own._fields))
        self._given, self._entries = given, torch.tensor(given.entries)
        self._site_of_edge = self.problem.site_of_neighbour(view.device)
        self.account = Account(torch.zeros((), dtype=torch.long), torch.zeros_like(self._own.direction))
        bid_bytes, grant_bytes = bids.message_bytes(len(given.direction), len(given.harm))
        self._num_bytes = {"bid": bid_bytes, "grant": grant_bytes, "model": bid_bytes - 1}
        self._said: dict[tuple[str, int], bytes] = {}  # in this slot, by kind and neighbour

    @property
    def talk(self) -> Talk | None:
        """A bid and a grant, told to all neighbours; of other devices' nothing is known. None for a silent device."""
        return broadcast_talk(self.problem, self._num_bytes["bid"] + self._num_bytes["grant"], 2)

    def open(self, slot: int, levels: Mapping[int, int], weather: int, battery_joule: Tensor, heard: Bools) -> None:
        """Begin a slot with what is left of the battery once messages are paid, (1,) [J].

        ``heard`` (neighbour, message) says which bids and grants of neighbours arrive, if they are sent.
        """
        everybody = torch.zeros(self.problem.num_devices, dtype=torch.float64)
        everybody[self._device] = battery_joule
        battery = battery_units(self.problem, everybody)[self._device]
        level = torch.tensor([levels.get(number, 0) for number in self._site_of_edge], dtype=torch.long)
        self._arrival = bids.arrival_at(self._own, level) if len(level) else self._own.share.new_zeros(0, 1)
        self._slot = slot = slot % len(self._given.bias_weight)
        self._bias_weight = self._given.bias_weight[slot]
        gain = bids.training_gain(self._terms, self.account, self._own.direction, self._bias_weight)
        cost = bids.spending(self._own, self._entries[slot, weather], battery)
        self._price = bids.price(self._terms, self._own, cost, battery, gain)
        self._arrives, self._said = heard, {}

    def hear(self, kind: str, neighbour: int, content: bytes) -> None:
        """Keep what a neighbour said in this slot, where it arrives."""
        if bool(self._arrives[self._neighbours.index(neighbour), int(kind == "grant")]):
            self._said[kind, neighbour] = content

    def _heard(self, kind: str) -> tuple[list[bytes], Tensor]:
        """What all neighbours said, blank where nothing was heard; whether it was heard."""
        blank = bytes(self._num_bytes[kind])
        said = [self._said.get((kind, other)) for other in self._neighbours]
        return [one or blank for one in said], torch.tensor([one is not None for one in said], dtype=torch.bool)

    def bid(self) -> bytes:
        """What the device says first."""
        said, self._trains = bids.bid(self._terms, self.account, self._own.direction, self._price)
        return bids.bid_bytes(said)

    def grant(self) -> bytes:
        """What it answers the bids that it heard."""
        messages, heard = self._heard("bid")
        given = Bid(*_stacked(map(bids.read_bid, (*messages, bytes(self._num_bytes["bid"])))))
        given = bids.believable(self._terms, given, self.account.progress)
        own = Listener(*self.account, self._trains, self._own.share, self._own.weight, self._arrival, self._own.hears)
        self._granted = bids.grant(self._terms, own, given, heard, self._bias_weight)
        return bids.grant_bytes(self._granted)

    def choose(self) -> int:
        """Its action."""
        messages, heard = self._heard("grant")
        grants = Grant(*_stacked(map(bids.read_grant, (*messages, bytes(self._num_bytes["grant"])))))
        return int(bids.choose(self._terms, self._price, self._granted, grants, heard, self._own.place)[0])

    def fault(self, kind: str, neighbour: int, content: bytes) -> str | None:
        """What no healthy neighbour says as a bid or grant, or beside a model; None where it may be so."""
        expected, powers = self._num_bytes[kind], len(self._given.harm)
        if self.talk is None and kind != "model":
            return f"a {kind} under a silent plan"
        if len(content) != expected:
            return f"{len(content)} bytes about a {kind}, which takes {expected}"
        if kind == "grant":
            place, degree = content[0], len(self.problem.topology.neighbours[neighbour])
            return f"a grant to its neighbour {place} of {degree}" if degree <= place != bids.NOBODY else None
        if kind == "bid" and content[0] >= powers:
            return f"the power {content[0]} of {powers}"
        lean = bids.read_account(content[1:] if kind == "bid" else content).lean
        return f"a lean of {int(lean.min())} steps" if bool((lean < -bids.LEAN_STEPS).any()) else None

    # its account

    def after_training(self, action: int) -> Account:
        """The account of the model that it sends."""
        return bids.trained(self.account, self._own.direction, self._terms.trained[action])

    def learn(self, action: int, delivered: Sequence[bytes | None]) -> None:
        """Follow the model: its training, and averaging with the models that came; their accounts, by neighbour."""
        blank = bytes(self._num_bytes["model"])
        told = Account(*_stacked(map(bids.read_account, (*(one or blank for one in delivered), blank))))
        arrived = torch.tensor([one is not None for one in delivered], dtype=torch.bool)
        self._follow(action, told, arrived)

    def _follow(self, action: int, told: Account, arrived: Tensor) -> Account:
        """Average the account with those (neighbour) that came; what it was before that."""
        now = self.after_training(action)
        self.account = bids.averaged(self._terms, self._own, now, told, arrived)
        return now

    def state(self) -> dict[str, Tensor]:
        """The account, for a checkpoint."""
        return {name: value.clone() for name, value in self.account._asdict().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` gave; an account of another plan's devices or directions starts anew."""
        self.account = Account(*_restored(self.account._asdict(), state))


class SilentBidder(Bidder):
    """A device that says nothing but models with their accounts."""

    talk = None

    def __init__(self, view: View, given: OwnBids) -> None:
        super().__init__(view, given)
        self._reach = Reach(*(torch.tensor(getattr(given, name)) for name in Reach._fields))
        self._there = torch.ones(len(view.neighbours), dtype=torch.bool)
        self._belief = first_belief(self._own.direction, len(view.neighbours))

    def choose(self) -> int:
        """Its action."""
        known = (self.account, self._belief, self._own.direction, self._price, self._there)
        return int(choose_silently(self._terms, self._reach, self._slot, *known, self._bias_weight)[0])

    def _follow(self, action: int, told: Account, arrived: Tensor) -> Account:
        """The belief follows as well."""
        now, power = super()._follow(action, told, arrived), self._terms.action_power[action]
        self._belief = remembered(
            self._reach, self._belief, self._own.direction, power, now, self.account, told, arrived
        )
        return now

    def state(self) -> dict[str, Tensor]:
        """Account and belief."""
        return super().state() | {name: value.clone() for name, value in self._belief._asdict().items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to both."""
        super().restore(state)
        self._belief = Belief(*_restored(self._belief._asdict(), state))


def _restored(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[Tensor]:
    """Tensors of a state, or the own ones where those do not fit."""
    fits = all(name in state and state[name].shape == one.shape for name, one in own.items())
    return [(state if fits else own)[name].clone() for name in own]


def _stacked(said: Iterable[NamedTuple]) -> list[Tensor]:
    """Messages of neighbours as tensors (neighbour, ...), without the last, which is there so that there is one."""
    return [torch.stack(parts)[:-1] for parts in zip(*said, strict=True)]
