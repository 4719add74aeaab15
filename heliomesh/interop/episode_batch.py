"""Many episodes of a scenario that are played at once, as arrays: what every environment here is made of.

Physics is that of `simulation/slot_loop.py`, with its continuous batteries: given the seed of `simulate` and a plan's
actions, losses are those of that simulation to the last bit. All episodes have the scenario's slots, so they begin
and end together.
"""

from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from heliomesh.interop.sight import Array, Sights, network_state, whole_number
from heliomesh.model import policy_checks as guard
from heliomesh.model.policy import Decision
from heliomesh.model.problem import Problem, build
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.slot_loop import Episodes

Reward = Literal["own", "nearby", "shared"]
_REACH_HOPS = {"own": 0, "nearby": 2}  # a device disturbs packets of those with whom it shares a receiver


class EpisodeBatch:
    """Episodes side by side, in which every device is told what to do."""

    def __init__(self, sights: Sights, episodes: int, reward: Reward, seed: int) -> None:
        refuse(reward not in get_args(Reward), "reward", f"{', '.join(get_args(Reward))}", f"value {reward!r}")
        self.problem, self.sights = sights.problem, sights
        self.num_episodes, self._counted = whole_number("episodes", episodes, least=1), self._within_reach(reward)
        self._seed, self.first_episode = seed, -episodes
        self._under_way: Episodes | None = None

    def _within_reach(self, reward: Reward) -> Tensor:
        """1 where a device's loss counts in another's reward; (device, rewarded device)."""
        hops, devices = _REACH_HOPS.get(reward), self.problem.num_devices
        counted = torch.zeros(devices, devices, dtype=torch.float64, device=self.problem.device)
        for device in range(devices):
            near = range(devices) if hops is None else self.problem.topology.within(device, hops)
            counted[list(near), device] = 1
        return counted

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
        self._seed, self.first_episode = new_seed, first

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
        """1 where batteries pay for actions; (episode, device, action)."""
        payable: Array = self.problem.affordable(self.under_way.battery_joule).cpu().numpy()
        return payable.astype(np.int8)

    def play(self, asked: Array) -> tuple[Array, dict[str, Array]]:
        """One slot: devices do what is asked, (episode, device), or idle where they cannot pay for it.

        Returns rewards, minus the update loss of the device, of all within two hops, or of the network; the device's
        update loss x_j and whether it could not pay, (episode, device) each; and Σ_j x_j, (episode,).
        """
        if self.over:
            raise RuntimeError("step: the episode has ended. Call reset() first.")
        told, actions = torch.as_tensor(asked, device=self.problem.device), self.problem.actions
        guard.check_actions("actions", told, (self.num_episodes, self.problem.num_devices), len(actions))
        payable = self.problem.affordable(self.under_way.battery_joule)
        infeasible = ~payable.gather(-1, told.long().unsqueeze(-1)).squeeze(-1)
        chosen = torch.where(infeasible, 0, told.long())
        decision = Decision(actions.power_watt[chosen], actions.trained[chosen])
        loss = self.under_way.advance(decision, "actions").update_loss
        told_of = {"update_loss": loss, "infeasible": infeasible, "cost": loss.sum(1)}
        return -(loss @ self._counted).cpu().numpy(), {name: part.cpu().numpy() for name, part in told_of.items()}


def opened(scenario: Scenario | str, seed: int | None) -> tuple[Problem, int]:
    """The problem of a scenario, or of that with a name or at a path, and the seed of its first episodes."""
    loaded = Scenario.load(scenario) if isinstance(scenario, str) else scenario
    return build(loaded), loaded.seed if seed is None else whole_number("seed", seed)
