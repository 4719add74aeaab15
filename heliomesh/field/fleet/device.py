"""One device of the fleet: pure logic, without any idea of how its messages travel.

Every method that a clock calls returns the messages to send, by the neighbour to whom they go. A slot has
three parts, and between the first two those of devices that bid:

    open   measure channels, battery and weather, and tell them k hops far
    bid    say what there is to give
    grant  say whose model is wanted
    act    look the action up, spend, train, and transmit
    close  decode what the noise and the others' signals let through, average, harvest

What was not heard by the end of a part is missing: of states the last values stay, of models nothing is averaged and
their weight stays with oneself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.field.fleet.bidder import Bidder, OwnBids
from heliomesh.field.fleet.learner import Learner, Lesson
from heliomesh.field.fleet.messages import Kind, Logbook, Message, Outgoing, Packet, Receipt
from heliomesh.field.fleet.planning import Partners, TablePlanner, grid_state
from heliomesh.field.fleet.view import View
from heliomesh.model import policy_checks as guard
from heliomesh.model.factor import Variable, energy, site
from heliomesh.model.overhead import is_paid, talk_joule
from heliomesh.model.policy import ActionPolicy, Observation
from heliomesh.physics.battery import pays
from heliomesh.physics.link import error_prob
from heliomesh.physics.topology import Topology
from heliomesh.slot.bids import account_bytes


@dataclass(frozen=True)
class Sensed:
    """What a device measures itself at the start of a slot, and its own random number if its policy is randomised."""

    channel_level: dict[int, int]  # by site of its incoming links
    weather: int
    uniform: float
    battery_joule: float | None = None  # None: as the device's own books say
    heard: npt.NDArray[np.bool_] | None = None  # (incoming edge, message) bids and grants that arrive; None: all


@dataclass(frozen=True)
class Fate:
    """What happens to a device in a slot whatever it does."""

    uniform: npt.NDArray[np.float64]  # (incoming edge,) random numbers of packets
    harvested_joule: float


@dataclass(frozen=True)
class Happened:
    """What an observer reads off a device after a slot."""

    battery_joule: float  # at the start of the slot
    battery_after_joule: float
    power_watt: float
    trained: bool
    spent_joule: float
    harvested_joule: float
    overflow_joule: float
    error_prob: npt.NDArray[np.float64]  # (incoming edge,)
    delivered: npt.NDArray[np.bool_]  # (incoming edge,)
    loss: float  # of training; NaN where idle
    control_joule: float = 0.0  # for messages, part of the spending


class Decider(Protocol):
    """How a device chooses its action."""

    @property
    def coordinated(self) -> bool:
        """Whether it needs what others measure."""

    def energy_state(self, weather: int, battery_joule: float) -> int:
        """The own energy as its table, and those of others, count it."""

    def action(self, slot: int, seen: Mapping[Variable, int], battery_joule: float, uniform: float) -> int:
        """Index of the action."""


@dataclass(frozen=True)
class OwnPolicy:
    """A policy that looks at the own battery only."""

    policy: ActionPolicy
    device: int
    coordinated: bool = False

    def energy_state(self, weather: int, battery_joule: float) -> int:
        """By the planning grid."""
        return grid_state(self.policy.problem, self.device, weather, battery_joule)

    def action(self, slot: int, seen: Mapping[Variable, int], battery_joule: float, uniform: float) -> int:
        """The policy's own column; the others' are empty batteries."""
        problem, own = self.policy.problem, (0, self.device)
        known = Observation.nothing(problem, 1)
        known.battery_joule[own], known.uniform[own] = battery_joule, uniform
        known.weather[own] = seen[energy(self.device)] // problem.battery.levels
        return int(self.policy.checked_action(slot, known)[own])


@dataclass(frozen=True)
class Installation:
    """All that a device is given before it runs."""

    view: View
    lesson: Lesson
    battery_joule: float
    decider: Decider | Partners | OwnBids  # partners of a device that plans with others
    observed: bool = True  # whether somebody reads its logbook, which grows with every message


class Device:
    """One device."""

    def __init__(self, given: Installation) -> None:
        view = given.view
        self._number = view.device
        self._decider: Decider | Bidder = _decider(view, given.decider)
        self._learner = Learner(given.lesson, view.device, view.problem.scenario, self._look_at(view))
        self._battery_joule = torch.tensor([given.battery_joule], dtype=torch.float64)
        self._heard: dict[Variable, int] = {}  # the last values of all that is seen
        self._packets: dict[int, Packet] = {}  # of this slot, by sender
        self._sensed, self._power_watt, self._trained, self._loss = Sensed({}, 0, 0.0), 0.0, False, float("nan")
        self._action = 0
        self._drawn_joule = torch.zeros(1, dtype=torch.float64)  # these are of the slot that is going on
        self._control_joule = torch.zeros_like(self._drawn_joule)
        self._talks, self._silent = True, False  # whether it pays for messages; whether it says and hears nothing
        self._logbook: Logbook | None = {} if given.observed else None

    def _look_at(self, view: View) -> Topology:
        """Take a view of the network; returns the links into this device."""
        self._view, self._problem = view, view.problem
        self._star = _star(self._problem.topology, self._number, view.neighbours)
        self._battery = self._problem.battery.of(torch.tensor([self._number]))
        return self._star

    # messages

    def deliver(self, sender: int, messages: Sequence[Message]) -> Outgoing:
        """Take what a neighbour sent; what is meant for others is passed on, where there is a way to them."""
        for message in messages:
            if self._logbook is not None:
                receipt = Receipt(sender, message.origin, message.kind, message.slot)
                count, num_bytes = self._logbook.get(receipt, (0, 0))
                self._logbook[receipt] = (count + 1, num_bytes + message.num_bytes)
            if message.destination != self._number:
                continue
            if isinstance(message.content, Packet):
                self._packets[message.origin] = message.content
            elif isinstance(message.content, bytes):
                self.bidder.hear(message.kind, message.origin, message.content)
            elif isinstance(message.content, dict):
                self._heard |= message.content
            else:
                self._table_planner.hear(message)
        return self._posted([message for message in messages if message.destination in self._view.next_hop])

    def _posted(self, messages: Sequence[Message]) -> Outgoing:
        outgoing: Outgoing = {}
        for message in messages:
            outgoing.setdefault(self._view.next_hop[message.destination], []).append(message)
        return outgoing

    @property
    def bidder(self) -> Bidder:
        """Who decides, where it bids."""
        if not isinstance(self._decider, Bidder):
            raise RuntimeError(f"device {self._number} does not bid")
        return self._decider

    # planning

    @property
    def _table_planner(self) -> TablePlanner:
        if not isinstance(self._decider, TablePlanner):
            raise RuntimeError(f"device {self._number} plans alone: tables are for those who plan with others")
        return self._decider

    def tell(self, slot: int, turn: int) -> Outgoing:
        """Shares for the devices that move in a turn."""
        return self._posted(self._table_planner.tell(slot, turn))

    def move(self, slot: int, number: int) -> Outgoing:
        """A better policy, in this round."""
        return self._posted(self._table_planner.move(slot, number))

    def settle(self, slot: int) -> None:
        """The end of a slot index."""
        self._table_planner.settle(slot)

    # slots

    def open(self, slot: int, sensed: Sensed) -> Outgoing:
        """Measure, and tell those who need it."""
        if sensed.battery_joule is not None:
            self._battery_joule = torch.tensor([sensed.battery_joule], dtype=torch.float64)
        self._sensed, self._packets = sensed, {}
        if isinstance(self._decider, Bidder):
            self._begin_talk(slot, self._decider)
            return {}
        measured = {site(number): found for number, found in sensed.channel_level.items()}
        measured[energy(self._number)] = self._decider.energy_state(sensed.weather, float(self._battery_joule))
        self._heard |= measured
        if not self._decider.coordinated:
            return {}
        # the battery's level and, where there is more than one, the weather are a byte each
        num_bytes = len(measured) + (self._problem.harvest.law.num_weather > 1)
        own, others = self._number, self._view.distance
        return self._posted([Message(own, other, "state", slot, dict(measured), num_bytes) for other in others])

    def _begin_talk(self, slot: int, bidder: Bidder) -> None:
        """Begin the slot with what messages leave of the battery; whoever cannot pay for them is silent and idle."""
        battery, talk = self._battery_joule, bidder.talk
        joule, talks = torch.zeros_like(battery), torch.ones_like(battery, dtype=torch.bool)
        if talk is not None and is_paid(self._problem):
            joule = talk_joule(self._problem, talk)[[self._number]]
            talks = pays(battery, joule + self._battery.losses.drain_joule)
        self._control_joule, self._talks = joule * talks, bool(talks)
        left = ((battery - self._control_joule) * talks).clamp_min(0)
        self._silent = talk is None or bool(~talks | self._battery.dark(left))
        sensed, hears = self._sensed, np.full((len(self._view.neighbours), 2), not self._silent)
        heard = hears if sensed.heard is None else sensed.heard & hears
        bidder.open(slot, sensed.channel_level, sensed.weather, left, heard)

    def bid(self, slot: int) -> Outgoing:
        """Say what there is to give."""
        return self._said("bid", slot, self.bidder.bid())

    def grant(self, slot: int) -> Outgoing:
        """Answer the bids that were heard."""
        return self._said("grant", slot, self.bidder.grant())

    def _said(self, kind: Kind, slot: int, said: bytes) -> Outgoing:
        return {} if self._silent else self._broadcast(kind, slot, said, len(said))

    def _broadcast(self, kind: Kind, slot: int, content: bytes | Packet, num_bytes: int) -> Outgoing:
        """The same to every neighbour."""
        own = self._number
        return {other: [Message(own, other, kind, slot, content, num_bytes)] for other in self._view.neighbours}

    def _chosen(self, slot: int) -> int:
        """Index of the action."""
        if isinstance(self._decider, Bidder):
            return self._decider.choose() * self._talks
        return self._decider.action(slot, self._heard, float(self._battery_joule), self._sensed.uniform)

    def act(self, slot: int) -> Outgoing:
        """Decide, spend, train, transmit."""
        problem, actions = self._problem, self._problem.actions
        self._action = chosen = self._chosen(slot)
        power_watt, trained = actions.power_watt[chosen], bool(actions.trained[chosen])
        drawn = problem.consumption.slot_joule(power_watt, torch.tensor(trained))[[self._number]]
        active = trained or bool(power_watt > 0)
        left = (self._battery_joule - self._control_joule).clamp_min(0)
        guard.check_spending(f"device {self._number}", drawn * active, left)
        self._learner.begin()
        self._loss = self._learner.train(slot) if trained else float("nan")
        self._power_watt, self._trained = float(power_watt), trained
        self._drawn_joule = drawn
        if not power_watt > 0:
            return {}
        bids = isinstance(self._decider, Bidder)
        account = account_bytes(self.bidder.after_training(chosen)) if bids else b""
        packet = Packet(self._power_watt, *self._learner.sent(slot), account)
        return self._broadcast("model", slot, packet, self._learner.packet_bytes + len(account))

    def close(self, slot: int, fate: Fate) -> Happened:
        """Receive, average, harvest."""
        neighbours, error = self._view.neighbours, self._error_prob()
        heard = np.array([other in self._packets for other in neighbours], dtype=np.bool_)
        delivered = (fate.uniform >= error) & heard
        arrived = {row: self._packets[other].row for row, other in enumerate(neighbours, 1) if delivered[row - 1]}
        self._learner.average(arrived, delivered, self._trained)
        if isinstance(self._decider, Bidder):
            pairs = zip(neighbours, delivered, strict=True)
            told = [self._packets[other].account if came else None for other, came in pairs]
            self._decider.learn(self._action, told)
        before = float(self._battery_joule)
        spent, overflow = self._store(self._drawn_joule, fate.harvested_joule, self._control_joule)
        return Happened(
            battery_joule=before,
            battery_after_joule=float(self._battery_joule),
            power_watt=self._power_watt,
            trained=self._trained,
            spent_joule=spent,
            harvested_joule=fate.harvested_joule,
            overflow_joule=overflow,
            error_prob=error,
            delivered=delivered,
            loss=self._loss,
            control_joule=float(self._control_joule),
        )

    def _error_prob(self) -> npt.NDArray[np.float64]:
        """Packet error rate of every incoming edge: what reaches this device from its neighbours and from itself."""
        problem, incoming = self._problem, self._problem.topology.edges_into(self._number)
        levels = [self._sensed.channel_level[number] for number in problem.site_of_neighbour(self._number)]
        fading = problem.channel.gain[levels]
        noise = torch.full((self._star.num_devices,), torch.nan, dtype=torch.float64)
        noise[0] = problem.link.noise_watt[self._number]
        link = replace(problem.link, noise_watt=noise, path_gain=problem.link.path_gain[incoming])
        heard = [
            self._packets[other].power_watt if other in self._packets else 0.0 for other in self._view.neighbours
        ]
        power = torch.tensor([self._power_watt, *heard], dtype=torch.float64)
        deaf = torch.full_like(power, bool(self._battery.dark(self._battery_joule)), dtype=torch.bool)
        found: npt.NDArray[np.float64] = error_prob(link, self._star, power, fading, deaf).numpy()
        return found

    def rest(self, harvested_joule: float) -> None:
        """A slot that was missed: nothing is done, and the battery pays for the drain."""
        self._store(self._battery.losses.drain_joule, harvested_joule)

    def _store(
        self, drawn_joule: Tensor, harvested_joule: float, control_joule: Tensor | None = None
    ) -> tuple[float, float]:
        """Settle the battery's account; what is spent, and what finds no room [J]."""
        before, harvested = self._battery_joule, torch.tensor([harvested_joule], dtype=torch.float64)
        spent, self._battery_joule, overflow = self._battery.step(before, drawn_joule, harvested, control_joule)
        return float(spent), float(overflow)

    # between two slots

    def follow(self, decider: Decider | OwnBids, view: View) -> None:
        """Another part of another plan from now on; what was heard is counted in the old plan's cells."""
        before, self._decider, self._heard = self._decider, _decider(view, decider), {}
        if isinstance(before, Bidder) and isinstance(self._decider, Bidder):
            self._decider.restore(before.state())
        self._learner.follow(self._look_at(view))

    def correct(self, joule: float) -> None:
        """Add what a meter found beside the books, or take it away."""
        capacity = self._battery.capacity_joule
        self._battery_joule = torch.minimum((self._battery_joule + joule).clamp_min(0), capacity)

    def state(self) -> dict[str, Tensor]:
        """All that a device with a finished plan must not forget."""
        heard = [[variable.kind == "site", variable.owner, value] for variable, value in self._heard.items()]
        own = {"battery_joule": self._battery_joule, "heard": torch.tensor(heard, dtype=torch.long).view(-1, 3)}
        return own | self._learner.state() | (self._decider.state() if isinstance(self._decider, Bidder) else {})

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go back to what `state` gave."""
        self._battery_joule = state["battery_joule"].clone()
        self._heard = {
            (site if of_site else energy)(owner): value for of_site, owner, value in state["heard"].tolist()
        }
        self._learner.restore(state)
        if isinstance(self._decider, Bidder):
            self._decider.restore(state)

    # for an observer

    def weights(self) -> Tensor:
        """The device's model; (parameter,)."""
        return self._learner.weights.clone()

    def planned(self) -> tuple[Tensor, float]:
        """The device's table and the largest change of its policy in a last round."""
        return self._table_planner.table, self._table_planner.residual

    def logbook(self) -> Logbook:
        """Number and bytes of the messages received."""
        return self._logbook or {}


def _decider(view: View, given: Decider | Partners | OwnBids) -> Decider | Bidder:
    """Who decides, from what was given."""
    if isinstance(given, Partners):
        return TablePlanner(view, given)
    return given.bidder(view) if isinstance(given, OwnBids) else given


def _star(topology: Topology, device: int, neighbours: Sequence[int]) -> Topology:
    """The links into a device: itself is row 0, its neighbours follow in rising order."""
    size = len(neighbours) + 1
    own = np.full(size, np.nan)
    own[0] = topology.self_weight[device]
    return Topology(
        size,
        np.zeros(size - 1, dtype=np.int64),
        np.arange(1, size),
        topology.edge_weight[topology.edges_into(device)],
        own,
        np.full((size, 2), np.nan),
        np.full(size - 1, np.nan),
    )
