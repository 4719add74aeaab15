"""What a planner returns: a policy that acts on observations, and what is known about it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from heliomesh.problem.factor import Variable, energy, site
from heliomesh.problem.overhead import Overhead
from heliomesh.problem.problem import Problem

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
    """What devices noticed in the slot before: each its own harvest, and each receiver the packets it got."""

    harvested_joule: Tensor  # (batch, device)
    arrived: Tensor  # (batch, edge) bool


@dataclass(frozen=True)
class Observation:
    """What can be seen at the start of a slot; every tensor has a leading batch (episode) axis."""

    channel_level: Tensor  # (batch, site)
    battery_joule: Tensor  # (batch, device)
    weather: Tensor  # (batch, device)
    uniform: Tensor  # (batch, device) the policy's own luck, for randomised policies
    noticed: Noticed | None = None  # None in the first slot; plans do not need it, whoever watches for changes does

    def energy_state(self, problem: Problem) -> Tensor:
        """Energy state of every device on the planning grid, weather × levels + level; (batch, device)."""
        return self.weather * problem.battery.levels + problem.battery.level(self.battery_joule)

    def pieces(self, batch: int) -> "list[Observation]":
        """The same observations in pieces of at most ``batch``."""
        fields = (self.channel_level, self.battery_joule, self.weather, self.uniform)
        return [Observation(*piece) for piece in zip(*(torch.split(f, batch) for f in fields), strict=True)]

    def of(self, episodes: Tensor) -> "Observation":
        """What is seen in some of the episodes; their positions (chosen,)."""
        return Observation(
            self.channel_level[episodes], self.battery_joule[episodes], self.weather[episodes], self.uniform[episodes]
        )

    def assignment(self, problem: Problem, scope: Iterable[Variable]) -> dict[Variable, Tensor]:
        """Index tensors (batch,) of state variables on the planning grid."""
        table = {"site": self.channel_level, "energy": self.energy_state(problem)}
        return {variable: table[variable.kind][:, variable.owner] for variable in scope}


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


class Policy(Protocol):
    """Anything that decides from observations."""

    def decide(self, slot: int, seen: Observation) -> Decision:
        """Powers and training of all devices."""


class ActionPolicy(ABC):
    """A policy that picks from the problem's action set."""

    problem: Problem
    stationary: ClassVar[bool] = False  # whether the slot number does not matter

    @abstractmethod
    def action(self, slot: int, seen: Observation) -> Tensor:
        """Action index of every device; (batch, device)."""

    def action_prob(self, slot: int, seen: Observation) -> Tensor:
        """Law of the actions, independent across devices; (batch, device, action)."""
        chosen = torch.nn.functional.one_hot(self.action(slot, seen), len(self.problem.actions))
        return chosen.to(self.problem.dtype)

    def visible(self, device: int) -> frozenset[Variable] | None:
        """State variables that the device's action can depend on; None: any."""
        return None

    def decide(self, slot: int, seen: Observation) -> Decision:
        """Translate action indices to powers and training."""
        chosen, actions = self.action(slot, seen), self.problem.actions
        return Decision(actions.power_watt[chosen], actions.trained[chosen])


@dataclass(frozen=True)
class Plan:
    """A policy with what is known about it; costs are normalised means per slot, None where unknown."""

    planner: str
    policy: Policy
    lower_bound: float | None = None
    expected_cost: float | None = None
    converged: bool = True
    rounds: int = 0
    residual: float | None = None
    overhead: Overhead = field(default_factory=Overhead)
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def gap(self) -> float | None:
        """Relative distance of the expected cost from the lower bound."""
        if self.expected_cost is None or self.lower_bound is None:
            return None
        return self.expected_cost / self.lower_bound - 1 if self.lower_bound > 0 else 0.0


def as_plan(plan: Plan | Policy) -> Plan:
    """A plan as it is, or one of a policy about which nothing more is known."""
    return plan if isinstance(plan, Plan) else Plan(type(plan).__name__, plan)


def state_variables(problem: Problem, device: int) -> tuple[Variable, ...]:
    """The paper's s_i = ({h_ij}, b_i): a device's incoming sites and its energy."""
    return (*map(site, problem.sites_into(device)), energy(device))
