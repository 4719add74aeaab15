"""The batched environment as Stable-Baselines3 has it, so that its learners train on all episodes at once.

    env = vec_env("ring10", episodes=64)  # 64 episodes × 10 devices
    PPO("MlpPolicy", env).learn(1_000_000)

Stable-Baselines3 counts one step per sub-environment: 640 for a slot here. ``infos`` has what it needs at the end of
episodes, their summed reward and length among it; `env_method("action_masks")` serves the learners with masks of
sb3-contrib. `learned_plan` makes a plan of what was learned, for `simulate`, `compare` and the trainer.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heliomesh.interop.gymnasium import HarvestingVectorEnv, vector_env
from heliomesh.interop.sight import Array, Sights, network_state
from heliomesh.model.policy import ActionPolicy, Observation, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.scenario import Scenario

try:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError(
        f"Stable-Baselines3 is not installed (no module {error.name!r}). Run `pip install heliomesh[rl]`."
    ) from None


class HarvestingVecEnv(VecEnv):
    """A `HarvestingVectorEnv` with the methods that Stable-Baselines3 calls."""

    def __init__(self, env: HarvestingVectorEnv) -> None:
        self.env = env
        self._asked: Array | None = None
        self._collected = np.zeros(env.num_envs)  # rewards of the episode so far
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Array:
        """Begin the next episodes, or those of the seed that was set."""
        self._collected[:] = 0
        seen, _ = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        return seen

    def step_async(self, actions: Array) -> None:
        """Take note of what is asked."""
        self._asked = actions

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Play the slot."""
        if self._asked is None:
            raise RuntimeError("step_wait: call step_async first.")
        seen, reward, ended, _, infos = self.env.step(self._asked)
        self._asked = None
        self._collected += reward
        if not ended[0]:
            return seen, reward, ended, [{} for _ in range(self.num_envs)]
        slots = self.env.batch.problem.slots
        told = [
            {"terminal_observation": last, "episode": {"r": total, "l": slots, "t": 0.0}}
            for last, total in zip(infos["final_obs"], self._collected.tolist(), strict=True)
        ]
        self._collected[:] = 0
        return seen, reward, ended, told

    def close(self) -> None:
        """Nothing to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the batch, once per asked sub-environment."""
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: sub-environments have no attributes of their own."""
        raise NotImplementedError(f"set_attr: expected no change of {attr_name!r}, actual value {value!r:.40}")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Only ``action_masks``: whether batteries pay for actions, for each asked sub-environment."""
        if method_name != "action_masks":
            raise AttributeError(f"env_method: expected action_masks, actual value {method_name!r}")
        masks = self.env.action_masks().astype(bool).reshape(self.num_envs, -1)
        return [masks[index] for index in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """No wrappers; `infos` has what a monitor would write."""
        return [False for _ in self._get_indices(indices)]


def vec_env(scenario: Scenario | str, episodes: int = 64, **settings: Any) -> HarvestingVecEnv:
    """`vector_env` for Stable-Baselines3; ``settings`` are its keyword arguments."""
    return HarvestingVecEnv(vector_env(scenario, episodes, **settings))


@dataclass(frozen=True)
class Learned(ActionPolicy):
    """Every device does what a trained network finds most probable, or idles where it cannot pay for it."""

    problem: Problem
    model: BaseAlgorithm
    sights: Sights

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Action of every device; (batch, device)."""
        rows = self.sights.of(network_state(self.problem, slot, seen).astype(np.float32), slot)
        chosen, _ = self.model.predict(rows.reshape(-1, rows.shape[-1]), deterministic=True)
        asked = torch.from_numpy(chosen).to(self.problem.device).reshape(rows.shape[:2])
        payable = self.problem.affordable(seen.battery_joule).gather(-1, asked.unsqueeze(-1)).squeeze(-1)
        return torch.where(payable, asked, 0)


def learned_plan(env: HarvestingVecEnv, model: BaseAlgorithm, name: str = "learned") -> Plan:
    """What a model learned in ``env``, whose agents are devices, as a plan."""
    batch = env.env.batch
    if env.env.central:
        raise ValueError("env: expected the view 'device', actual value 'network'")
    return Plan(name, Learned(batch.problem, model, batch.sights))
