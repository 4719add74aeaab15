"""SkipTrain: devices share in every round, and whole rounds of training are skipped to save energy.

A. Dhasade, P. Dini, E. Guerra, A.-M. Kermarrec, M. Miozzo, R. Pires, R. Sharma, M. de Vos: "Energy-Aware
Decentralized Learning with Intermittent Model Training", arXiv 2407.01283.

All devices follow one cycle: ``train_rounds`` (Γ_train) slots of training, then ``sync_rounds`` (Γ_sync) slots of
synchronisation. With ``energy.actions = "separate"`` the method is its authors':

- in a training slot device j trains and shares with probability P_j, and only shares otherwise;
- in a synchronisation slot it shares without training.

The energy-aware form matches P_j to the budget. E_j is the energy expected over the T slots, first battery and
harvests; e_j is the energy of training, p_j τ that of sharing, and T_train the number of training slots:

    P_j = min(1, max(0, E_j − T p_j τ) / (T_train e_j))

The authors' budget is a number of training rounds. Ours counts harvests, and sharing is paid first. A device whose
battery does not pay for training and sharing only shares. Where it does not pay for that either, the device tries the
next lower power, and idles below all of them. Where sharing takes all of E_j the device never trains; a note says so.

Coupled actions have no sharing without training, so the cycle is adapted. Training slots train and send, and
synchronisation slots are idle: they save and harvest. With ``energy.train_only = true`` training slots only train,
and synchronisation slots train and send. Device j takes part in a slot with probability min(1, E_j / D_j), where D_j
is what taking part in all of them would spend. It falls back to the largest action below its part that the battery
pays for.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, OwnStatePolicy, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Positive, Rounds, Section
from heliomesh.slot.preference import by_power, chosen_power, first_affordable, sending_actions, sending_powers


class Options(Section):
    """Options of the cycle."""

    train_rounds: Rounds = Field(4, description="Γ_train, slots of training per cycle")
    sync_rounds: Annotated[int, Field(ge=0, le=100_000)] = Field(
        4, description="Γ_sync, slots of synchronisation per cycle"
    )
    power_watt: Positive | None = Field(
        None,
        description="power of sending [W], one of energy.powers_watt; default: the largest, with separate actions "
        "the largest at which the energy pays for the whole cycle, or else the least",
    )


@dataclass(frozen=True)
class Cycle(OwnStatePolicy):
    """What devices prefer in the two kinds of slots, if they are drawn and if not."""

    problem: Problem
    training: Tensor  # (slot,) bool, whether the slot is one of training
    prefers: Tensor  # (synchronisation or training, not drawn or drawn, device, rank) actions, best first
    participation: Tensor  # (device,) probability of being drawn

    def _choices(self, slot: int, seen: Observation) -> tuple[Tensor, Tensor]:
        """What each device does if it is not drawn, and if it is; (batch, device) each."""
        lists = self.prefers[int(self.training[slot])]
        passed, drawn = (first_affordable(self.problem, seen.battery_joule, preferred) for preferred in lists)
        return passed, drawn

    def action(self, slot: int, seen: Observation) -> Tensor:
        """A device is drawn where its random number is below its probability."""
        passed, drawn = self._choices(slot, seen)
        return torch.where(seen.uniform < self.participation, drawn, passed)

    def action_prob(self, slot: int, seen: Observation) -> Tensor:
        """Two atoms at most."""
        share, count, kind = self.participation.unsqueeze(-1), len(self.problem.actions), self.problem.dtype
        passed, drawn = (torch.nn.functional.one_hot(one, count).to(kind) for one in self._choices(slot, seen))
        return share * drawn + (1 - share) * passed


def plan(context: PlannerContext[Options]) -> Plan:
    """The cycle and the probabilities that match the devices' energy."""
    problem, options = context.problem, context.options
    position = torch.arange(problem.slots, device=problem.device) % (options.train_rounds + options.sync_rounds)
    training = position < options.train_rounds
    prefers = preferences(problem, _power_watt(problem, options, int(training.sum())))
    passed, drawn = _demand_joule(problem, training, prefers)
    drawing = drawn - passed
    spare = (supply_joule(problem) - passed).clamp_min(0)
    participation = torch.where(drawing > 0, spare / drawing.clamp_min(1e-300), 1.0).clamp_max(1.0)
    policy = Cycle(problem, training, prefers, participation.to(problem.dtype))
    return Plan("skiptrain", policy, notes=_notes(problem, participation))


def _notes(problem: Problem, participation: Tensor) -> tuple[str, ...]:
    """What to know about devices whose energy goes into sharing."""
    never = int((participation == 0).sum())
    told = f"{never} of {problem.num_devices} devices never train: sharing in every slot takes all their energy"
    return (told,) if never and problem.actions.apart else ()


def preferences(problem: Problem, most_watt: Tensor) -> Tensor:
    """Lists of both kinds of slots under the largest power [W] (device,); (kind, draw, device, rank)."""
    sends, trains = sending_actions(problem, most_watt)
    shares = sends & ~problem.actions.trained
    nothing = torch.zeros_like(sends)
    if problem.actions.apart:
        kinds = [[shares, shares], [shares, sends]]
    elif problem.actions.trains_silently:
        kinds = [[nothing, sends | trains], [nothing, trains]]
    else:
        kinds = [[nothing, nothing], [nothing, sends]]
    return by_power(problem, torch.stack([torch.stack(kind) for kind in kinds]))


def supply_joule(problem: Problem) -> Tensor:
    """Energy expected over the horizon, first battery and stored harvests less the drain [J]; (device,)."""
    losses = problem.battery.losses
    harvested = losses.charge_efficiency * problem.harvest.law.mean_joule() - losses.drain_joule
    return (first_joule(problem) + problem.slots * harvested).clamp_min(0)


def first_joule(problem: Problem) -> Tensor:
    """Mean energy stored in the first slot, rounded down to the planning grid [J]; (device,)."""
    level = torch.arange(problem.num_energy, device=problem.device) % problem.battery.levels
    return problem.initial_energy_law.double() @ level.double() * problem.battery.step_joule


def _demand_joule(problem: Problem, training: Tensor, prefers: Tensor) -> tuple[Tensor, Tensor]:
    """What the first preferences of all slots spend, never and always drawn [J]; (device,) each."""
    favourite = prefers[training.long(), :, :, 0]  # (slot, draw, device)
    device = torch.arange(problem.num_devices, device=problem.device)
    passed, drawn = problem.actions.spent_joule[device, favourite].sum(0)
    return passed, drawn


def _power_watt(problem: Problem, options: Options, train_slots: int) -> Tensor:
    """The power of sending [W]; (device,)."""
    largest = chosen_power(problem, options.power_watt, "skiptrain")
    powers = sending_powers(problem)
    if options.power_watt is not None or not problem.actions.apart or not len(powers):
        return torch.full((problem.num_devices,), largest, dtype=torch.float64, device=problem.device)
    silent = torch.zeros_like(powers.unsqueeze(1), dtype=torch.bool)
    sharing_joule = problem.slots * problem.consumption.drawn_joule(powers.unsqueeze(1), silent).T
    training_joule = train_slots * problem.compute_joule
    pays = sharing_joule + training_joule.unsqueeze(1) <= supply_joule(problem).unsqueeze(1)  # (device, power)
    return powers[(pays.sum(1) - 1).clamp_min(0)]


KNOBS = {"power_watt": "energy.powers_watt", "train_rounds": (1, 2, 4, 8), "sync_rounds": (1, 2, 4, 8)}
