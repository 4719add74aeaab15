"""Many episodes of a scenario that are played at once, as arrays: what every environment here is made of.

Physics is that of `simulation/slot_loop.py`, with its continuous batteries: given the seed of `simulate` and a plan's
actions, losses are those of that simulation to the last bit. All episodes have the scenario's slots, so they begin
and end together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from heliomesh.interop.sight import Array, Sight
from heliomesh.model import policy_checks as guard
from heliomesh.model.policy import Decision, Policy, decided
from heliomesh.model.problem import Problem, build
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.slot_loop import Episodes

Reward = Literal["own", "nearby", "shared"]
_REACH_HOPS = 2  # a device disturbs packets of those with whom it shares a receiver


@dataclass(frozen=True)
class Played:
    """What came of a slot; (episode, controlled device) each but for the last."""

    reward: Array  # minus the update loss of the device, of all within two hops, or of the network
    update_loss: Array  # x_j
    infeasible: Array  # the battery does not pay for what was asked: the device idles
    cost: Array  # Σ_j x_j; (episode,)


class EpisodeBatch:
    """Episodes side by side, in which some devices are told what to do and the others follow a policy."""

    def __init__(
        self,
        problem: Problem,
        episodes: int,
        reward: Reward,
        seed: int,
        controlled: tuple[int, ...] | None = None,
        others: Policy | None = None,
    ) -> None:
        self.problem, self.num_episodes = problem, episodes
        self.controlled = tuple(range(problem.num_devices)) if controlled is None else controlled
        self._others = others
        self._counted = None if reward == "own" else self._within_reach(reward)
        self._seed, self.first_episode = seed, -episodes
        self._under_way: Episodes | None = None
        self._memory: tuple[Tensor, ...] = ()

    def _within_reach(self, reward: Reward) -> Tensor:
        """1 where a device's loss counts in a controlled device's reward; (device, controlled device)."""
        counted = torch.ones(self.problem.num_devices, len(self.controlled), dtype=torch.float64)
        if reward == "nearby":
            counted.zero_()
            for column, device in enumerate(self.controlled):
                counted[list(self.problem.topology.within(device, _REACH_HOPS)), column] = 1
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

    def affordable(self) -> Array:
        """Whether batteries pay for actions; (episode, controlled device, action)."""
        payable: Array = self.problem.affordable(self.under_way.battery_joule).cpu().numpy()
        return payable[:, self.controlled]

    def play(self, asked: Array) -> Played:
        """One slot: devices do what is asked, (episode, controlled device), or idle where they cannot pay for it."""
        under_way, devices = self.under_way, list(self.controlled)
        if self.over:
            raise RuntimeError("step: the episode has ended. Call reset() first.")
        told = torch.as_tensor(asked, device=self.problem.device)
        guard.check_actions("actions", told, (self.num_episodes, len(devices)), len(self.problem.actions))
        payable = self.problem.affordable(under_way.battery_joule)[:, devices]
        infeasible = ~payable.gather(-1, told.long().unsqueeze(-1)).squeeze(-1)
        decision, memory = self._decision(torch.where(infeasible, 0, told.long()))
        loss = under_way.advance(decision, "actions").update_loss
        self._memory = memory
        cost = loss.sum(1)
        own = loss[:, devices]
        reward = -own if self._counted is None else -(loss @ self._counted)
        return Played(*(part.cpu().numpy() for part in (reward, own, infeasible, cost)))

    def _decision(self, chosen: Tensor) -> tuple[Decision, tuple[Tensor, ...]]:
        """What all do where controlled devices do as told, (episode, controlled device); the policy's new memory."""
        actions, policy = self.problem.actions, self._others
        power_watt, trained = actions.power_watt[chosen], actions.trained[chosen]
        if policy is None:
            return Decision(power_watt, trained), ()
        seen = replace(self.under_way.see(), memory=self._memory).recalled_by(policy)
        planned, devices = decided(self.problem, policy, self.under_way.slot, seen), list(self.controlled)
        all_watt, all_trained = planned.power_watt.clone(), planned.trained.clone()
        all_watt[:, devices], all_trained[:, devices] = power_watt, trained
        return Decision(all_watt, all_trained, planned.weights), seen.memory


def opened(scenario: Scenario | str, seed: int | None) -> tuple[Problem, int]:
    """The problem of a scenario, or of that with a name or at a path, and the seed of its first episodes."""
    loaded = Scenario.load(scenario) if isinstance(scenario, str) else scenario
    return build(loaded), loaded.seed if seed is None else whole_number("seed", seed)


def sights_of(problem: Problem, devices: Sequence[int], hops: int) -> tuple[Sight, ...]:
    """What these devices see within so many hops."""
    reach = whole_number("hops", hops)
    return tuple(Sight(problem, device, reach) for device in devices)


def whole_number(name: str, value: object, least: int = 0) -> int:
    """An integer of at least ``least``; raises ScenarioError for anything else."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ScenarioError(name, f"a whole number of at least {least}", f"value {value!r:.40}")
    return int(value)


def check_reward(reward: Any) -> None:
    """Refuse unknown rewards."""
    refuse(reward not in get_args(Reward), "reward", f"{', '.join(get_args(Reward))}", f"value {reward!r}")
