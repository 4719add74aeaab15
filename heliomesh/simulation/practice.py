"""Devices that decide by what training and packets bring to their models, and practice that prices their energy.

A device weighs what an action gains against V_j(t, b_j − e), the value of the energy that is left. V_j is planned: a
dynamic program of device j alone, which in every slot meets an *opportunity*, the gains of its actions given what the
others do. The law of opportunities comes from practice episodes, by time to the deadline, and is practised again
with the values found. The rate at which averaging lowers bias comes from there as well.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.bounds.minorant import plan_grid
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits
from heliomesh.grid.after_spending import EnergyAfterAction
from heliomesh.grid.single_device import opportunity_values
from heliomesh.model.overhead import Talk, paid_talk, talk_joule
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import ActionPolicy, Decision, Observation
from heliomesh.model.problem import Problem, around_cycle, with_battery
from heliomesh.scenario.section import Section
from heliomesh.simulation.slot_loop import run_slots
from heliomesh.slot.leans import Leans, leans_of
from heliomesh.slot.learning_model import Contributions, LearningModel, bias_weights, slots_to_deadline
from heliomesh.slot.packet_market import scarcity_price

_BIN_SLOTS, _BINS = 6, 9  # opportunities within so many slots of a deadline share a law; the last bin has all others
_ATOMS = 16  # opportunities that stand for a law
_FIRST_SLOTS = 10  # nobody's model has much to tell yet: not counted among the opportunities
_CYCLES, _CYCLE_SLOTS = 3, 200  # fewest of both in practice around a cycle; the first cycle is not counted
_PRACTICE_SEED = 2**62  # practice and evaluation never share random numbers
_FIRST_KEPT = 0.85  # share of bias that a slot's averaging leaves, until practice has shown it
_LAST_SLOTS = 12  # before a deadline, in which that is not measured: agreeing devices have little left
_FIRST_PRICE = 1.8  # of a slot's training from an empty battery, in such slots, until values are planned
_MOST_LEVELS = 81
HELD_ENTRIES = 1 << 24  # of all episodes that are handled at a time


class PracticeOptions(Section):
    """Options of planners that practise."""

    practice: Annotated[int, Field(ge=1, le=100_000)] = Field(
        8, description="practice episodes from which opportunities are learned"
    )
    passes: Annotated[int, Field(ge=0, le=100)] = Field(
        2, description="how often devices practise and plan anew; 0: no plan, a guessed price of energy"
    )
    levels: Annotated[int, Field(ge=2, le=4096)] | None = Field(
        None, description="points of the battery grid; default: up to 81, which divide the energies of actions best"
    )
    leans: Literal["devices", "labels"] = Field(
        "devices", description="directions in which training moves models: one per device, or its label shares"
    )
    partition_seed: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        None, description="seed that deals the samples out, for leans = 'labels'; default: the training's"
    )
    memory_gib: float = Field(DEFAULT_LIMIT_GIB, gt=0, description="refuse to start above this estimate [GiB]")


@dataclass(frozen=True, kw_only=True)
class Learners(ActionPolicy):
    """Devices that account for their models; the memory has progress (batch, device) and leans (…, direction)."""

    memory_axes: ClassVar[tuple[str, ...]] = ("device", "device")
    most_kept: ClassVar[float] = 1.0  # most of the bias that a slot's averaging is believed to leave
    problem: Problem  # on the grid of the values
    bias_weight: tuple[float, ...]  # (slot,)
    values: Tensor | None  # (slot, device, ...): least cost to come; None: a first guess of the price of energy
    directions: Tensor | None = None  # (device, direction) of training; None: one per device

    @abstractmethod
    def settled(self, slot: int, seen: Observation) -> Tensor:
        """Actions of all devices in some episodes; (batch, device)."""

    @abstractmethod
    def practised(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        """The same, and what packets make every action gain over idling; (batch, device, action)."""

    @cached_property
    def model(self) -> LearningModel:
        """How contributions move."""
        return LearningModel(self.problem, self.directions)

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """Contributions after the training and the packets of the slot before."""
        now = Contributions(*seen.memory) if seen.memory else self.model.first(len(seen.battery_joule))
        if seen.noticed is not None:
            now = self.model.averaged(self.model.trained(now, seen.noticed.trained), seen.noticed.arrived)
        return now.progress, now.lean

    def action(self, slot: int, seen: Observation) -> Tensor:
        """What devices settle, in pieces that fit the memory."""
        return torch.cat([self.settled(slot, piece) for piece in seen.pieces(self._batch)])

    def training_gain(self, slot: int, seen: Observation) -> Tensor:
        """What actions gain by training; (batch, device, action)."""
        value = self.model.training_value(Contributions(*seen.memory), self.bias_weight[slot])
        return value.unsqueeze(-1) * self.problem.actions.trained

    def price(self, slot: int, seen: Observation) -> Tensor:
        """What actions cost through their energy, less what training gains; infinite where it is not paid."""
        cost = self._spending(slot, seen) - self.training_gain(slot, seen)
        return cost.masked_fill(~EnergyAfterAction(self.problem, seen).affordable, torch.inf)

    def _spending(self, slot: int, seen: Observation) -> Tensor:
        """What actions cost through the energy they spend; (batch, device, action)."""
        problem = self.problem
        if self.values is not None:
            return EnergyAfterAction(problem, seen).values(self.values[slot]).to(torch.float64)
        return scarcity_price(problem, seen.battery_joule, _FIRST_PRICE)

    def contributions(self, memory: tuple[Tensor, ...]) -> Contributions:
        """Progress and leans of a memory."""
        return Contributions(*memory)

    def held(self, values: Tensor) -> Tensor:
        """Values of energy (slot, device, energy) as devices hold them."""
        return values

    def taught_by(self, practised: "Practice") -> Self:
        """The policy with what else practice has shown."""
        return self

    @property
    def _batch(self) -> int:
        """Episodes to handle at a time."""
        per_episode = self.problem.topology.num_edges * (2 * self.model.directions.shape[1] + 32)
        return max(1, HELD_ENTRIES // max(per_episode, 1))


@dataclass
class Practice:
    """Plays a policy and writes down what each action would have gained, and how much bias averaging left."""

    policy: Learners
    gains: list[Tensor] = field(default_factory=list)  # by slot: (episode, device, action)
    bias: list[tuple[float, float]] = field(default_factory=list)  # by slot: its sum before and after averaging
    last: Contributions | None = None  # of the latest slot
    lead: float = 0.0  # the most that a neighbour's progress after training was ahead of a device's own [slots]

    @cached_property
    def problem(self) -> Problem:
        """The policy's, through some cycles if it has no end."""
        return practice_world(self.policy.problem)

    def play(self, episodes: int) -> Iterator[object]:
        """Its slots, one after the other."""
        return run_slots(self.problem, self, list(range(episodes)), _PRACTICE_SEED + self.problem.scenario.seed)

    @property
    def talk(self) -> Talk | None:
        """The policy's."""
        return self.policy.talk

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """As the policy does."""
        after = self.policy.recall(seen)
        if seen.noticed is not None:
            known = self.policy.contributions
            before, network = known(seen.memory), self.policy.model.network
            trained, self.last = self.policy.model.trained(before, seen.noticed.trained), known(after)
            leads = trained.progress[:, network.sender] - before.progress[:, network.receiver]
            self.lead = max(self.lead, float(leads.amax()) if leads.numel() else 0.0)
            self.bias.append((float(trained.bias.sum()), float(self.last.bias.sum())))
        return after

    def decide(self, slot: int, seen: Observation) -> Decision:
        """The policy's decision."""
        slot %= self.policy.problem.slots
        chosen, gains = self.policy.practised(slot, seen)
        self.gains.append(gains + self.policy.training_gain(slot, seen))
        actions = self.problem.actions
        return Decision(actions.power_watt[chosen], actions.trained[chosen])

    @property
    def kept(self) -> float:
        """ρ: the share of bias that averaging left, but in the last slots before deadlines."""
        last = np.resize(slots_to_deadline(self.policy.problem), len(self.bias)) >= _LAST_SLOTS
        before, after = np.array(self.bias)[last].sum(0) if last.any() else (0.0, 0.0)
        return min(float(after / before), self.policy.most_kept) if before > 0 else _FIRST_KEPT


LearnersT = TypeVar("LearnersT", bound=Learners)
OptionsT = TypeVar("OptionsT", bound=PracticeOptions)


@dataclass(frozen=True)
class Preparation:
    """What a policy starts from: the grid of its values, directions of training and weights of bias."""

    problem: Problem
    leans: Leans

    def bias_weights(self, kept: float = _FIRST_KEPT) -> tuple[float, ...]:
        """λ_t of every slot where averaging leaves a share of the bias."""
        return bias_weights(self.problem, kept, self.leans.unlikeness)


def prepared(context: PlannerContext[OptionsT]) -> Preparation:
    """The grid and the directions that the options ask for; raises TooLargeError."""
    options = context.options
    problem = plan_grid(context.problem, options.levels, interpolate=True, most=_MOST_LEVELS)
    leans = leans_of(problem, options.leans == "labels", options.partition_seed)
    _check_fits(problem, LearningModel(problem, leans.directions), options)
    return Preparation(problem, leans)


def practised(context: PlannerContext[OptionsT], start: Preparation, policy: LearnersT) -> tuple[LearnersT, str]:
    """The policy after all passes, each with the values found by the one before; and a note on its bias."""
    options, problem, kept = context.options, start.problem, _FIRST_KEPT
    paying = _paying(problem, policy)
    for number in range(options.passes):
        practice = Practice(policy)
        steps = practice.play(options.practice)
        deque(context.track(steps, f"practice {number + 1}", practice.problem.slots), maxlen=0)  # plays them all
        values, kept = opportunity_values(paying, -opportunities(practice, context.rng)), practice.kept
        policy = replace(policy, bias_weight=start.bias_weights(kept), values=policy.held(values)).taught_by(practice)
    return policy, f"a slot's averaging leaves {kept:.2f} of the bias, whose weight is {policy.bias_weight[0]:.3g}"


def forecast(context: PlannerContext[OptionsT], policy: Learners) -> float:
    """What the learning model makes of practice episodes at their end, S − λ_t B: the mean over devices, in slots."""
    practice = Practice(policy)
    deque(practice.play(context.options.practice), maxlen=0)
    if practice.last is None:  # an episode of one slot
        return 0.0
    return float((practice.last.progress - policy.bias_weight[-1] * practice.last.bias).mean())


def _paying(problem: Problem, policy: Learners) -> Problem:
    """The problem of devices that pay for the next slot's messages when this one ends, as they do for a drain."""
    talk = paid_talk(problem, policy)
    if talk is None:
        return problem
    losses = problem.battery.losses
    losses = replace(losses, drain_joule=losses.drain_joule + talk_joule(problem, talk))
    return with_battery(problem, replace(problem.battery, losses=losses))


def opportunities(practice: Practice, rng: np.random.Generator) -> Tensor:
    """Sampled gains of actions; (slot, opportunity, device, action), slots of a bin share them."""
    gains, problem = practice.gains, practice.policy.problem
    number, first = _bins(problem), problem.slots if problem.endless else _FIRST_SLOTS
    devices = torch.arange(problem.num_devices, device=problem.device)
    by_bin = {}
    for name in np.unique(number).tolist():
        slots = np.flatnonzero(np.resize(number, len(gains)) == name)
        late = slots[slots >= first]
        pool = torch.cat([gains[slot] for slot in (late if len(late) else slots).tolist()])
        drawn = rng.integers(0, len(pool), (_ATOMS, problem.num_devices))
        by_bin[name] = pool[torch.from_numpy(drawn).to(problem.device), devices]
    return torch.stack([by_bin[name] for name in number.tolist()])


def practice_world(problem: Problem) -> Problem:
    """The problem through which devices practise: some cycles, until accounts come again, where it has no end."""
    cycles = max(_CYCLES, -(-_CYCLE_SLOTS // problem.slots))
    return around_cycle(problem, cycles * problem.slots) if problem.endless else problem


def _bins(problem: Problem) -> npt.NDArray[np.int64]:
    """Which slots share a law of opportunities, by their distance to the next deadline; (slot,)."""
    near = np.minimum(slots_to_deadline(problem), _BINS * _BIN_SLOTS - 1)
    number: npt.NDArray[np.int64] = (near // _BIN_SLOTS).astype(np.int64)
    return number


def _check_fits(problem: Problem, model: LearningModel, options: PracticeOptions) -> None:
    """Refuse contributions and opportunities that memory does not hold."""
    actions, devices = len(problem.actions), problem.num_devices
    practised = 8.0 * options.practice * practice_world(problem).slots * devices * actions
    stored = 8.0 * problem.slots * devices * (problem.num_energy + _ATOMS * actions)
    leans = 8.0 * options.practice * model.directions.shape[1] * (devices + 4 * problem.topology.num_edges)
    remedy = "lower practice or levels, or use the planner 'news'"
    check_fits("opportunities and leans", practised + stored + leans, options.memory_gib, remedy)
