"""What a planner returns: a policy that acts on observations, and what is known about it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.common.arguments import checked
from heliomesh.common.tensors import with_tensors
from heliomesh.model import policy_checks as guard
from heliomesh.model.factor import Variable, energy, site
from heliomesh.model.overhead import Overhead, Talk
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import ScenarioError, refuse

_Item = TypeVar("_Item")


class Track(Protocol):
    """Wraps an iterable of known length with a progress display."""

    def __call__(self, items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
        """Yield the items unchanged."""


def untracked(items: Iterable[_Item], description: str, total: int) -> Iterator[_Item]:
    """No progress display."""
    yield from items


ParallelMap = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Noticed:
    """What devices noticed in the slot before: their own harvests, their own actions, and the packets they got."""

    harvested_joule: Tensor  # (batch, device), NaN where nobody knows
    arrived: Tensor  # (batch, edge) bool
    trained: Tensor  # (batch, device) bool
    power_watt: Tensor  # (batch, device) at which they sent

    def of(self, episodes: Tensor) -> "Noticed":
        """What was noticed in some of the episodes; their positions (chosen,)."""
        return with_tensors(self, lambda tensor: tensor[episodes])


@dataclass(frozen=True)
class Observation:
    """What can be seen at the start of a slot; every tensor has a leading batch (episode) axis."""

    channel_level: Tensor  # (batch, site)
    battery_joule: Tensor  # (batch, device)
    weather: Tensor  # (batch, device)
    uniform: Tensor  # (batch, device) the policy's own random numbers, for randomised policies
    noticed: Noticed | None = None  # None in the first slot; most plans do not need it
    memory: tuple[Tensor, ...] = ()  # (batch, ...) each: what a policy with a method `recall` keeps from slot to slot
    heard: Tensor | None = None  # (batch, edge, message) bool: which control messages of the slot arrive; None: all

    @classmethod
    def nothing(cls, problem: Problem, batch: int) -> "Observation":
        """Empty batteries and the first levels of channels and weather, to write into what is known."""
        level = torch.zeros(batch, problem.channel.num_sites, dtype=torch.long, device=problem.device)
        battery = torch.zeros(batch, problem.num_devices, dtype=torch.float64, device=problem.device)
        return cls(level, battery, torch.zeros_like(battery, dtype=torch.long), torch.zeros_like(battery))

    def copied(self) -> "Observation":
        """The same numbers in tensors of their own: whoever gets them may write into them."""
        return with_tensors(self, Tensor.clone)

    def recalled_by(self, policy: "Policy") -> "Observation":
        """With what a policy that remembers makes of its memory and of what was noticed since."""
        return replace(self, memory=policy.recall(self)) if isinstance(policy, Remembers) else self

    def energy_state(self, problem: Problem) -> Tensor:
        """Energy state of every device on the planning grid, weather × levels + level; (batch, device)."""
        return self.weather * problem.battery.levels + problem.battery.level(self.battery_joule)

    def pieces(self, batch: int) -> "list[Observation]":
        """The same observations in pieces of at most ``batch``."""
        count = len(self.uniform)
        return [self] if count <= batch else [self.of(piece) for piece in torch.split(torch.arange(count), batch)]

    def mirrored(self, problem: Problem) -> "Observation":
        """The state at the other end of every variable: full for empty, the best channel for the worst."""
        level = problem.channel.levels - 1 - self.channel_level
        weather = problem.harvest.law.num_weather - 1 - self.weather
        battery = problem.battery.lacking(self.battery_joule)
        return replace(self, channel_level=level, battery_joule=battery, weather=weather)

    def on_links(self, kept: Tensor) -> "Observation":
        """What is seen where only some links are left, (edge,) bool; memory stays as it is."""
        noticed = self.noticed and replace(self.noticed, arrived=self.noticed.arrived[:, kept])
        return replace(self, noticed=noticed, heard=None if self.heard is None else self.heard[:, kept])

    def of(self, episodes: Tensor) -> "Observation":
        """What is seen in some of the episodes; their positions (chosen,)."""
        return with_tensors(self, lambda tensor: tensor[episodes])

    def assignment(self, problem: Problem, scope: Iterable[Variable]) -> dict[Variable, Tensor]:
        """Index tensors (batch,) of state variables on the planning grid."""
        table = {"site": self.channel_level, "energy": self.energy_state(problem)}
        return {variable: table[variable.kind][:, variable.owner] for variable in scope}


class Sight(frozenset[Variable]):
    """What a device sees: a set of state variables. Its action is *local*, a_j(s) = a_j(s') if s = s' within it."""

    @classmethod
    def within(cls, problem: Problem, device: int, hops: int) -> "Sight":
        """The state variables of all devices at most so many links away."""
        return cls(neighbourhood(problem, device, hops))

    def owners(self, kind: str) -> list[int]:
        """Numbers of the sites or devices whose state is in sight, rising."""
        return sorted(variable.owner for variable in self if variable.kind == kind)

    def of(self, seen: Observation, elsewhere: Observation) -> Observation:
        """What is seen, with another observation's numbers wherever the device does not look."""
        sites, devices = self.owners("site"), self.owners("energy")
        level, battery, weather = map(
            Tensor.clone, (elsewhere.channel_level, elsewhere.battery_joule, elsewhere.weather)
        )
        level[:, sites] = seen.channel_level[:, sites]
        battery[:, devices], weather[:, devices] = seen.battery_joule[:, devices], seen.weather[:, devices]
        return replace(seen, channel_level=level, battery_joule=battery, weather=weather)


@dataclass(frozen=True)
class Weights:
    """Mixing weights in force, which may differ between episodes once devices stop waiting for a neighbour."""

    edge: Tensor  # (batch, edge) a_ij
    own: Tensor  # (batch, device) a_jj


@dataclass(frozen=True)
class Decision:
    """What every device does in a slot; shapes (batch, device)."""

    power_watt: Tensor
    trained: Tensor
    weights: Weights | None = None  # None: the network's own


@runtime_checkable
class Policy(Protocol):
    """Anything that decides from observations.

    Powers are the scenario's, unless the policy has an attribute ``continuous_powers = True``: then they are any from
    0 to the largest.
    """

    def decide(self, slot: int, seen: Observation) -> Decision:
        """Powers and training of all devices."""


@runtime_checkable
class Remembers(Protocol):
    """A policy whose decisions depend on earlier slots; it is given its own memory back in every slot.

    With an attribute ``memory_axes``, "device" or "edge" for the second axis of each tensor, it can be followed by a
    plan for other links.
    """

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """Its memory at the start of a slot: from ``seen.memory`` and ``seen.noticed``, both empty in the first."""


def refuse_memory(policy: Policy, planner: str, what: str) -> None:
    """Raise ScenarioError for a policy that remembers; ``what`` cannot hand its memory on from slot to slot."""
    expected = f"a plan that remembers nothing of earlier slots, as {what} needs"
    refuse(isinstance(policy, Remembers), "planner", expected, f"value {planner!r}")


def decided(problem: Problem, policy: Policy, slot: int, seen: Observation) -> Decision:
    """What a policy decides about copies of what is seen; raises ScenarioError for what no policy may return."""
    if slot == 0:
        check_sight(policy, slot, seen)
    decision: object = policy.decide(slot, seen.copied())
    where, batch = type(policy).__name__, len(seen.battery_joule)
    if not isinstance(decision, Decision):
        raise ScenarioError(f"{where}.decide", "a Decision", f"type {type(decision).__name__}")
    if not _picks_actions(problem, policy):
        continuous = getattr(policy, "continuous_powers", False)
        guard.check_powers(f"{where}: power_watt", problem, decision.power_watt, batch, continuous)
        guard.check_trained(f"{where}: trained", problem, decision.trained, batch)
    if decision.weights is not None:
        guard.check_weights(f"{where}: weights.edge", decision.weights.edge, batch, problem.topology.num_edges)
        guard.check_weights(f"{where}: weights.own", decision.weights.own, batch, problem.num_devices)
    return decision


# the slot's place among those prepared, and batteries [J] (batch, device) → actions (batch, device)
Ahead = Callable[[int, npt.NDArray[np.float64]], npt.NDArray[np.int64]]


class ActionPolicy(ABC):
    """A policy that picks from the problem's action set."""

    problem: Problem
    looks_back = True  # decisions may depend on `Observation.noticed`; if not, the simulator is faster

    @property
    def talk(self) -> Talk | None:
        """Messages of every slot, which batteries pay for with `energy.control = "paid"`; None: there are none."""
        return None

    @property
    def stationary(self) -> bool:
        """Whether the slot number does not matter."""
        return False

    @property
    def period(self) -> int | None:
        """Slots after which decisions repeat for ever; None: they end with the horizon."""
        return 1 if self.stationary else None

    @abstractmethod
    def action(self, slot: int, seen: Observation) -> Tensor:
        """Action index of every device; (batch, device)."""

    def given(self, seen: Observation) -> Observation:
        """What of an observation the policy is given: earlier slots if it looks back, channels if some are seen."""
        if not self.looks_back and seen.noticed is not None:
            seen = replace(seen, noticed=None)
        return replace(seen, channel_level=seen.channel_level[:, :0]) if self._sees_no_channel else seen

    @cached_property
    def _sees_no_channel(self) -> bool:
        claims = map(self.visible, range(self.problem.num_devices))
        return not any(claim is None or any(one.kind == "site" for one in claim) for claim in claims)

    def checked_action(self, slot: int, seen: Observation) -> Tensor:
        """`action` of what is given; raises ScenarioError for anything but indices of actions."""
        chosen, shape = self.action(slot, self.given(seen)), tuple(seen.battery_joule.shape)
        guard.check_actions(f"{type(self).__name__}.action", chosen, shape, len(self.problem.actions))
        return chosen

    def ahead(self, slots: Sequence[int], channel_level: Tensor, weather: Tensor) -> Ahead | None:
        """Decisions of several slots of which all but the batteries is known; None: `action` decides slot by slot.

        Channels and weather are (slot, batch, ...). Actions are those of `action`.
        """
        return None

    def action_ahead(self, slot: int, seen: Observation) -> Tensor | None:
        """`action` as `ahead` prepares it for one slot, if it does."""
        decide = self.ahead([slot], seen.channel_level.unsqueeze(0), seen.weather.unsqueeze(0))
        return None if decide is None else torch.from_numpy(decide(0, seen.battery_joule.numpy()))

    def prepared(self, slots: Sequence[int], channel_level: Tensor, weather: Tensor) -> Ahead | None:
        """`ahead`, unless a class below the one that has it decides otherwise."""
        by_class = (vars(one) for one in type(self).__mro__)
        nearest = next(own for own in by_class if own.keys() & {"action", "checked_action", "ahead"})
        return self.ahead(slots, channel_level, weather) if "ahead" in nearest else None

    def action_prob(self, slot: int, seen: Observation) -> Tensor:
        """Law of the actions, independent across devices; (batch, device, action)."""
        chosen = torch.nn.functional.one_hot(self.checked_action(slot, seen).long(), len(self.problem.actions))
        return chosen.to(self.problem.dtype)

    def checked_prob(self, slot: int, seen: Observation) -> Tensor:
        """`action_prob` of copies of what is given; raises ScenarioError for anything but laws."""
        prob = self.action_prob(slot, self.given(seen).copied())
        shape = (*seen.battery_joule.shape, len(self.problem.actions))
        guard.check_law(f"{type(self).__name__}.action_prob", prob, shape)
        return prob

    def visible(self, device: int) -> Collection[Variable] | None:
        """State variables that the device's action can depend on, its `Sight`; None: any."""
        return None

    def decide(self, slot: int, seen: Observation) -> Decision:
        """Translate action indices to powers and training."""
        chosen, actions = self.checked_action(slot, seen).long(), self.problem.actions
        return Decision(actions.power_watt[chosen], actions.trained[chosen])


class OwnStatePolicy(ActionPolicy):
    """A policy whose devices look at their own batteries and weather only."""

    looks_back = False

    def visible(self, device: int) -> Sight:
        """Its own energy only."""
        return Sight([energy(device)])


class PartPolicy(ActionPolicy):
    """A policy whose devices look at the whole present state of their part of the network."""

    looks_back = False

    def visible(self, device: int) -> Sight:
        """The state variables of its part."""
        return Sight(self.problem.part_of(device).states)


def check_sight(policy: Policy, slot: int, seen: Observation, devices: Sequence[int] | None = None) -> None:
    """Refuse a policy that looks beyond what it says of its devices; by default of a few, which chance picks.

    The state outside a device's sight is mirrored: the device may not do otherwise.
    """
    if not isinstance(policy, ActionPolicy) or policy.visible(0) is None:
        return
    if devices is None:
        count = seen.uniform.shape[1]
        first = int(seen.uniform[0, 0] * count)
        devices = [(first + step) % count for step in range(min(count, _DEVICES_CHECKED))]
    chosen, other = policy.checked_action(slot, seen.copied()), seen.mirrored(policy.problem)
    for device in devices:
        claim = policy.visible(device)
        again = chosen if claim is None else policy.checked_action(slot, Sight(claim).of(seen.copied(), other))
        differs = bool((again[:, device] != chosen[:, device]).any())
        actual = "another action where only the rest of the network differs"
        refuse(differs, f"{type(policy).__name__}.visible", f"all that device {device} looks at", actual)


_DEVICES_CHECKED = 2  # in every simulation; `heliomesh.testing` checks all


def _picks_actions(problem: Problem, policy: Policy) -> bool:
    """Whether a policy's decisions are entries of the problem's own tables, whose indices have been checked."""
    if not isinstance(policy, ActionPolicy) or type(policy).decide is not ActionPolicy.decide:
        return False
    own, given = policy.problem.actions, problem.actions  # those of a plan's own grid share these tensors
    return own.power_watt is given.power_watt and own.trained is given.trained


def sees_present_only(problem: Problem, policy: Policy) -> bool:
    """Whether a policy picks the problem's own actions and looks at nothing but the slot's state."""
    if not isinstance(policy, ActionPolicy) or isinstance(policy, Remembers):
        return False
    return not policy.looks_back and _picks_actions(problem, policy)


@dataclass(frozen=True)
class Plan:
    """A policy with what is known about it; costs are updates lost per slot, None where unknown.

    Attributes
    ----------
    planner
        Name, with the options that tell variants apart.
    policy
        What decides: ``decide(slot, seen)``.
    lower_bound
        No policy of the action set is expected to cost less.
    expected_cost
        On the planner's own battery grid.
    converged
        Whether the last round changed nothing.
    rounds
        Rounds of improvement that were made.
    residual
        How much the last round changed.
    overhead
        Bytes sent while planning and in every slot.
    seconds
        Time of planning [s].
    process_seconds
        Time of processors on planning [s], all threads of this process: other work on the machine does not add to it.
    notes
        Remarks for the reader.
    """

    planner: str
    policy: Policy
    lower_bound: float | None = None
    expected_cost: float | None = None
    converged: bool = True
    rounds: int = 0
    residual: float | None = None
    overhead: Overhead = field(default_factory=Overhead)
    seconds: float = 0.0
    process_seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @checked
    def save(self, path: str | Path) -> None:
        """Write one file that `load` reads; raises PlanError where the policy is more than tables and settings."""
        from heliomesh.model.plan_file import save_plan  # here, because it needs this file

        save_plan(self, path)

    @classmethod
    @checked
    def load(cls, path: str | Path, *, trust: bool = False) -> "Plan":
        """Read a saved plan; ``trust`` lets it name classes outside heliomesh. Raises PlanError."""
        from heliomesh.model.plan_file import load_plan

        return load_plan(path, trust=trust)

    @property
    def picks_actions(self) -> bool:
        """Whether the policy picks from the problem's action set: bounds and the optimum speak of such ones only."""
        return isinstance(self.policy, ActionPolicy)

    @property
    def gap(self) -> float | None:
        """Relative distance of the expected cost from the lower bound."""
        if self.expected_cost is None or self.lower_bound is None:
            return None
        if self.lower_bound < 0:
            return (self.expected_cost - self.lower_bound) / -self.lower_bound
        return self.expected_cost / self.lower_bound - 1 if self.lower_bound > 0 else 0.0


def as_plan(plan: Plan | Policy) -> Plan:
    """A plan as it is, or one of a policy about which nothing more is known."""
    return plan if isinstance(plan, Plan) else Plan(type(plan).__name__, plan)


def neighbourhood(problem: Problem, device: int, hops: int) -> tuple[Variable, ...]:
    """The state variables of all devices at most so many links away, each once, the nearest first."""
    distance = problem.topology.within(device, hops)
    near = sorted(distance, key=lambda member: (distance[member], member))
    return tuple(dict.fromkeys(variable for member in near for variable in state_variables(problem, member)))


def state_variables(problem: Problem, device: int) -> tuple[Variable, ...]:
    """The paper's s_i = ({h_ij}, b_i): a device's incoming sites and its energy."""
    return (*map(site, problem.sites_into(device)), energy(device))
