"""A scenario as Gymnasium environments: many episodes in one batch, and a single-agent view.

`vector_env` plays ``episodes`` episodes at once in tensors. With the view ``"device"`` every device of every episode
is a sub-environment of its own, so that one network learns for all devices (parameter sharing); sub-environment
``e · devices + j`` is device j of episode e. With ``"network"`` every episode is one sub-environment of a central
controller. Actions, observations and rewards are those of `pettingzoo.py`; a central controller sees the whole
network, has one action per device (``MultiDiscrete``) and the shared reward.

`single_env` is one episode at a time with a central controller: it asks what coordination can reach.

All sub-environments end in the same step and begin their next episodes in it (`AutoresetMode.SAME_STEP`); ``infos``
then has ``final_obs`` and ``final_info``. An action that a battery does not pay for counts as idle.
"""

from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat

import numpy as np

from heliomesh.interop.episode_batch import EpisodeBatch, Reward, opened
from heliomesh.interop.sight import Array, Sights
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario

try:
    from gymnasium import Env, spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise ImportError(
        f"Gymnasium is not installed (no module {error.name!r}). Run `pip install heliomesh[pettingzoo]`."
    ) from None

View = Literal["device", "network"]


class HarvestingVectorEnv(VectorEnv[Array, Array, Array]):
    """Many episodes at once, with an agent per device of every episode, or a central one per episode."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (as in its base)

    def __init__(self, batch: EpisodeBatch, seed: int, *, central: bool) -> None:
        self.batch, self.central = batch, central
        problem, episodes, devices = batch.problem, batch.num_episodes, batch.problem.num_devices
        actions, width = len(problem.actions), 1 + 2 * problem.num_devices + problem.channel.num_sites
        self.num_envs = episodes if central else episodes * devices
        self._asked_shape = (episodes, devices) if central else (self.num_envs,)
        size = width if central else batch.sights.size
        self.single_observation_space = spaces.Box(0.0, 1.0, (size,), np.float32, seed)
        self.single_action_space: spaces.Space[Any] = (  # seeded, else copies sample different actions
            spaces.MultiDiscrete([actions] * devices, seed=seed) if central else spaces.Discrete(actions, seed)
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space.seed(seed)
        self.action_space.seed(seed)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin the next episodes, or the first ones of ``seed``, or those from ``options["episode"]`` on.

        They are the episodes of the same numbers in ``simulate(problem, plan, seed=seed)``.
        """
        self.batch.begin(seed, options)
        return self._observations(), {"action_mask": self.action_masks()}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """One slot of every episode; actions (sub-environment,) or, of controllers, (episode, device)."""
        seen, reward, infos = self.play(np.asarray(actions))
        over = self.batch.over
        ended = np.full(self.num_envs, over)
        if over:
            apart = np.empty(self.num_envs, dtype=object)  # an array of arrays, as Gymnasium has them
            apart[:] = list(seen)
            final = {"final_obs": apart, "_final_obs": ended, "final_info": infos, "_final_info": ended}
            seen, infos = self.reset()
            infos |= final
        return seen, reward, ended, np.zeros(self.num_envs, bool), infos

    def play(self, actions: Array) -> tuple[Array, Array, dict[str, Any]]:
        """One slot, the last one too: observations, rewards and infos; actions as in `step`."""
        if actions.shape != self._asked_shape:
            raise ScenarioError("actions", f"the shape {self._asked_shape}", f"shape {actions.shape}")
        reward, infos = self.batch.play(actions.reshape(self.batch.num_episodes, -1))
        cost = infos.pop("cost")
        by_agent = {name: part.reshape(self._asked_shape) for name, part in infos.items()}
        by_agent |= {"action_mask": self.action_masks(), "cost": cost.repeat(self.num_envs // len(cost))}
        return self._observations(), -cost if self.central else reward.reshape(-1), by_agent

    def action_masks(self) -> Array:
        """1 where batteries pay for actions; (agent, action), of controllers (episode, device, action)."""
        mask = self.batch.masks()
        return mask.reshape(*self._asked_shape, mask.shape[-1])

    def _observations(self) -> Array:
        state = self.batch.state().astype(np.float32)
        rows = state if self.central else self.batch.sights.of(state, self.batch.under_way.slot)
        return rows.reshape(self.num_envs, -1)


class HarvestingSingleEnv(Env[Array, Any]):
    """One episode at a time with one agent; see the module's docstring."""

    metadata = {"render_modes": []}  # noqa: RUF012 (as in its base)

    def __init__(self, env: HarvestingVectorEnv) -> None:
        self._env = env
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin the next episode, or the first one of ``seed``, or that in ``options["episode"]``."""
        seen, infos = self._env.reset(seed=seed, options=options)
        super().reset(seed=seed)
        return seen[0], {name: value[0] for name, value in infos.items()}

    def step(self, action: Any) -> tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]:
        """One slot."""
        seen, reward, infos = self._env.play(np.asarray(action)[None])
        return seen[0], float(reward[0]), self._env.batch.over, False, {n: value[0] for n, value in infos.items()}


def vector_env(
    scenario: Scenario | str,
    episodes: int = 64,
    *,
    view: View = "device",
    hops: int = 1,
    reward: Reward = "own",
    agent_id: bool = False,
    clock: int = 0,
    seed: int | None = None,
) -> HarvestingVectorEnv:
    """Episodes of a scenario, side by side.

    ``view``: ``"device"``, a sub-environment per device and episode, or ``"network"``, one per episode, to which
    the remaining arguments but ``seed`` do not apply. ``hops``, ``reward``, ``seed``: as in `parallel_env`.
    ``agent_id`` adds the device's number, one-hot, to what it sees; ``clock`` adds the slot modulo that number.
    """
    problem, first_seed = opened(scenario, seed)
    refuse(view not in ("device", "network"), "view", "device or network", f"value {view!r}")
    central = view == "network"
    sights = Sights(problem) if central else Sights(problem, hops, agent_id, clock)
    return HarvestingVectorEnv(EpisodeBatch(sights, episodes, reward, first_seed), first_seed, central=central)


def single_env(scenario: Scenario | str, *, seed: int | None = None) -> HarvestingSingleEnv:
    """One episode of a scenario at a time, for single-agent learners that control the whole network."""
    return HarvestingSingleEnv(vector_env(scenario, 1, view="network", seed=seed))
