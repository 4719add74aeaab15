"""A SkipTrain-style schedule: blocks of training and of synchronisation in a fixed cycle, skipped to fit the energy.

From the published idea (de Vos, Dhasade, Kermarrec, Lavoie, Pujol, Sharma: "Energy-Aware Decentralized Learning with
Intermittent Model Training", 2024) are taken

- the cycle, common to all devices: ``train_rounds`` (Γ_train) slots of training, then ``sync_rounds`` (Γ_sync) slots
  of synchronisation;
- the energy-aware form: device j takes part in an active slot with probability min(1, E_j / D_j), independently of
  everything else, where E_j is the energy it may expect over the horizon (first battery and harvests) and D_j what it
  would spend if it took part in every active slot.

There a device shares its model in every round and the cycle saves the energy of training only. Here training and
sending are one action, so that synchronising without training does not exist. Hence

- without the action "train only", training slots train and send, and synchronisation slots are idle: they save and
  harvest, while hearing costs nothing;
- with ``energy.train_only = true``, training slots only train, and synchronisation slots train and send;
- E_j counts harvests, which a fixed budget of rounds does not have, and a device whose battery does not pay for its
  part of a slot falls back to the largest action below it that it can pay for.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.problem.context import Planning
from heliomesh.problem.factor import Variable, energy
from heliomesh.problem.policy import ActionPolicy, Observation, Plan
from heliomesh.problem.problem import Problem
from heliomesh.scenario import ScenarioError, Section


class Options(Section):
    """Options of the cycle."""

    train_rounds: Annotated[int, Field(ge=1, le=100_000)] = Field(
        4, description="Γ_train, slots of training per cycle"
    )
    sync_rounds: Annotated[int, Field(ge=0, le=100_000)] = Field(
        4, description="Γ_sync, slots of synchronisation per cycle"
    )
    power_watt: Annotated[float, Field(gt=0)] | None = Field(
        None, description="power of sending [W], one of energy.powers_watt; default: the largest"
    )


@dataclass(frozen=True)
class Cycle(ActionPolicy):
    """The part of every slot, taken with a fixed probability per device."""

    problem: Problem
    part: Tensor  # (slot,) largest action of the slot
    participation: Tensor  # (device,) probability of taking part in an active slot

    def _in_part(self, slot: int, seen: Observation) -> Tensor:
        """What each device does if it takes part: the largest affordable action up to the slot's; (batch, device)."""
        actions = self.problem.actions
        affordable = self.problem.battery.affordable(seen.battery_joule, actions.spent_joule)
        index = torch.arange(len(actions), device=self.problem.device)
        return (affordable * (index <= self.part[slot]) * (index + 1)).argmax(-1)

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Take part where the device's random number is below its probability, else idle."""
        return torch.where(seen.uniform < self.participation, self._in_part(slot, seen), 0)

    def action_prob(self, slot: int, seen: Observation) -> Tensor:
        """Two atoms at most: idle and the part."""
        active = torch.nn.functional.one_hot(self._in_part(slot, seen), len(self.problem.actions))
        law = self.participation.unsqueeze(-1) * active.to(self.problem.dtype)
        law[..., 0] += 1 - self.participation
        return law

    def visible(self, device: int) -> frozenset[Variable]:
        """Its own battery only."""
        return frozenset([energy(device)])


def plan(context: Planning[Options]) -> Plan:
    """The cycle and the probabilities that match the devices' energy."""
    problem = context.problem
    part = cycle(problem, context.options)
    demand = problem.actions.spent_joule[:, part].sum(-1)
    supply = first_joule(problem) + problem.slots * problem.harvest.law.mean_joule()
    participation = torch.where(demand > 0, supply / demand.clamp_min(1e-300), 1.0).clamp_max(1.0)
    return Plan("skiptrain", Cycle(problem, part, participation.to(problem.dtype)))


def cycle(problem: Problem, options: Options) -> Tensor:
    """The largest action of every slot; (slot,)."""
    send = _sending(problem, options.power_watt)
    train_only = problem.scenario.energy.train_only
    training, synchronising = (1, send) if train_only else (send, 0)
    position = torch.arange(problem.slots, device=problem.device) % (options.train_rounds + options.sync_rounds)
    return torch.where(position < options.train_rounds, training, synchronising)


def first_joule(problem: Problem) -> Tensor:
    """Mean energy stored in the first slot, rounded down to the planning grid [J]; (device,)."""
    level = torch.arange(problem.num_energy, device=problem.device) % problem.battery.levels
    return problem.initial_energy_law.double() @ level.double() * problem.battery.step_joule


def _sending(problem: Problem, power_watt: float | None) -> int:
    """The action that sends at a power."""
    powers = problem.actions.power_watt.tolist()
    if power_watt is None:
        return len(powers) - 1
    if power_watt not in powers:
        known = ", ".join(f"{power:g}" for power in powers if power > 0)
        raise ScenarioError("skiptrain option.power_watt", f"expected one of {known}, actual value {power_watt:g}")
    return powers.index(power_watt)
