"""Many episodes of a scenario that are played at once, as arrays: what every environment here is made of.

Physics is that of `simulation/slot_loop.py`, with its continuous batteries: given the seed of `simulate` and a plan's
actions, losses are those of that simulation to the last bit. All episodes have the scenario's slots, so they begin
and end together.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from heliomesh.interop.sight import Array, Sights, network_state, whole_number
from heliomesh.model import policy_checks as guard
from heliomesh.model.overhead import paid_talk
from heliomesh.model.policy import Decision, Policy, decided
from heliomesh.model.problem import Problem, build
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.slot_loop import Episodes

Reward = Literal["own", "nearby", "shared"]
_REACH_HOPS = {"own": 0, "nearby": 2}  # a device disturbs packets of those with whom it shares a receiver


class EpisodeBatch:
    """Episodes side by side, in which devices with ``sights`` are told what to do and the others follow a policy."""

    def __init__(
        self, sights: Sights, episodes: int, reward: Reward, seed: int, others: Policy | None = None
    ) -> None:
        refuse(reward not in get_args(Reward), "reward", f"{', '.join(get_args(Reward))}", f"value {reward!r}")
        paid = paid_talk(sights.problem, others) is not None
        refuse(paid, "energy.control", "'free' where others follow a plan that talks", "value 'paid'")
        self.problem, self.sights, self.controlled = sights.problem, sights, list(sights.devices)
        self.num_episodes = whole_number("episodes", episodes, least=1)
        self._others, self._counted = others, self._within_reach(reward)
        self._seed, self.first_episode = seed, -episodes
        self._under_way: Episodes | None = None
        self._memory: tuple[Tensor, ...] = ()

    def _within_reach(self, reward: Reward) -> Tensor:
        """1 where a device's loss counts in a controlled device's reward; (device, controlled device)."""
        hops, everybody = _REACH_HOPS.get(reward), range(self.problem.num_devices)
        counted = torch.zeros(len(everybody), len(self.controlled), dtype=torch.float64)
        for column, device in enumerate(self.controlled):
            near = everybody if hops is None else self.problem.topology.within(device, hops)
            counted[list(near), column] = 1
        return counted.to(self.problem.device)

    def begin(self, seed: object = None, options: object = None) -> None:
        """Begin the next episodes, or the first ones of ``seed``, or those from ``options["episode"]`` on.

        Raises ScenarioError for anything else, and then goes on as if it had not been called.
        """
        new_seed = self._seed if seed is None else whole_number("seed", seed)
        first = self.first_episode + self.num_episodes if seed is None else 0
        if options is not None and not isinstance(options, Mapping):
            raise ScenarioError("options", "a dictionary", f"value {options!r:.40}")
        if options and "episode" in options:
            first = whole_number("options.episode", options["episode"])
        numbers = list(range(first, first + self.num_episodes))
        self._under_way = Episodes(self.problem, numbers, new_seed)
        self._seed, self.first_episode, self._memory = new_seed, first, ()

    @property
    def under_way(self) -> Episodes:
        """The episodes; raises RuntimeError where there are none."""
        if self._under_way is None:
            raise RuntimeError("no episode is running. Call reset() first.")
        return self._under_way

    @property
    def over(self) -> bool:
        """Whether the last slot was played."""
        return self.under_way.slot == self.problem.slots

    def state(self) -> Array:
        """The whole network; (episode, column)."""
        return network_state(self.problem, self.under_way.slot, self.under_way)

    def masks(self) -> Array:
        """1 where batteries pay for actions; (episode, controlled device, action)."""
        payable: Array = self.problem.affordable(self.under_way.battery_joule).cpu().numpy()
        return payable[:, self.controlled].astype(np.int8)

    def play(self, asked: Array) -> tuple[Array, dict[str, Array]]:
        """One slot: devices do what is asked, (episode, controlled device), or idle where they cannot pay for it.

        Returns rewards, minus the update loss of the device, of all within two hops, or of the network; the device's
        update loss x_j and whether it could not pay, (episode, controlled device) each; and Σ_j x_j, (episode,).
        """
        if self.over:
            raise RuntimeError("step: the episode has ended. Call reset() first.")
        told = torch.as_tensor(asked, device=self.problem.device)
        guard.check_actions("actions", told, (self.num_episodes, len(self.controlled)), len(self.problem.actions))
        payable = self.problem.affordable(self.under_way.battery_joule)[:, self.controlled]
        infeasible = ~payable.gather(-1, told.long().unsqueeze(-1)).squeeze(-1)
        decision, memory = self._decision(torch.where(infeasible, 0, told.long()))
        loss = self.under_way.advance(decision, "actions").update_loss
        self._memory = memory
        told_of = {"update_loss": loss[:, self.controlled], "infeasible": infeasible, "cost": loss.sum(1)}
        return -(loss @ self._counted).cpu().numpy(), {name: part.cpu().numpy() for name, part in told_of.items()}

    def _decision(self, chosen: Tensor) -> tuple[Decision, tuple[Tensor, ...]]:
        """What all do where controlled devices do as told, (episode, controlled device); the policy's new memory."""
        actions, policy = self.problem.actions, self._others
        power_watt, trained = actions.power_watt[chosen], actions.trained[chosen]
        if policy is None:
            return Decision(power_watt, trained), ()
        seen = replace(self.under_way.see(), memory=self._memory).recalled_by(policy)
        planned = decided(self.problem, policy, self.under_way.slot, seen)
        all_watt, all_trained = planned.power_watt.clone(), planned.trained.clone()
        all_watt[:, self.controlled], all_trained[:, self.controlled] = power_watt, trained
        return Decision(all_watt, all_trained, planned.weights), seen.memory


def opened(scenario: Scenario | str, seed: int | None) -> tuple[Problem, int]:
    """The problem of a scenario, or of that with a name or at a path, and the seed of its first episodes."""
    loaded = Scenario.load(scenario) if isinstance(scenario, str) else scenario
    return build(loaded), loaded.seed if seed is None else whole_number("seed", seed)
