"""A scenario as Gymnasium environments: many episodes in one batch, and a single-agent view.

`vector_env` plays ``episodes`` episodes at once in tensors. With the view ``"device"`` every device of every episode
is a sub-environment of its own, so that one network learns for all devices (parameter sharing); sub-environment
``e · devices + j`` is device j of episode e. With ``"network"`` every episode is one sub-environment of a central
controller. Actions, observations and rewards are those of `pettingzoo.py`; a central controller sees the whole
network, has one action per device (``MultiDiscrete``) and the shared reward.

`single_env` is one episode at a time: a central controller or, with a ``device``, one device among others that
follow a plan. The first asks what coordination can reach; the second what one device gains by leaving the plan.

All sub-environments end in the same step and begin their next episodes in it (`AutoresetMode.SAME_STEP`); ``infos``
then has ``final_obs`` and ``final_info``. An action that a battery does not pay for counts as idle.
"""

from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat

import numpy as np

from heliomesh.interop.episode_batch import EpisodeBatch, Reward, check_reward, opened, sights_of, whole_number
from heliomesh.interop.sight import Array, EqualSight, network_state, state_size
from heliomesh.model.policy import Plan
from heliomesh.planning import make_plan
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


class Agents:
    """The deciding agents of a batch of episodes, a row for each: its devices, or one controller per episode."""

    def __init__(self, batch: EpisodeBatch, seen: EqualSight | None, seed: int) -> None:
        """``seen``: what each controlled device sees; None for central controllers."""
        self.batch, self.seen = batch, seen
        devices, actions = len(batch.controlled), len(batch.problem.actions)
        self._rows = devices if seen else 1  # of an episode
        self.count = batch.num_episodes * self._rows
        size = seen.size if seen else state_size(batch.problem)
        self.observation_space = spaces.Box(0.0, 1.0, (size,), np.float32, seed)
        self._asked_shape = (self.count,) if seen else (self.count, devices)
        self.action_space: spaces.Space[Any] = (  # seeded, else copies sample different actions
            spaces.Discrete(actions, seed) if seen else spaces.MultiDiscrete([actions] * devices, seed=seed)
        )

    def begin(self, seed: object, options: Mapping[str, Any] | None) -> tuple[Array, dict[str, Any]]:
        """Begin episodes, as `EpisodeBatch.begin` does: observations and infos."""
        self.batch.begin(seed, options)
        return self._observations(), {"action_mask": self.masks()}

    def play(self, actions: Array) -> tuple[Array, Array, dict[str, Any]]:
        """One slot: observations, rewards and infos; actions (agent,) or, of controllers, (episode, device)."""
        if actions.shape != self._asked_shape:
            raise ScenarioError("actions", f"the shape {self._asked_shape}", f"shape {actions.shape}")
        played = self.batch.play(actions.reshape(self.batch.num_episodes, -1))
        own = {"update_loss": played.update_loss, "infeasible": played.infeasible}
        if self.seen:
            own = {name: part.reshape(-1) for name, part in own.items()}
        reward = played.reward.reshape(-1) if self.seen else -played.cost
        infos = {"action_mask": self.masks(), **own, "cost": np.repeat(played.cost, self._rows)}
        return self._observations(), reward, infos

    def masks(self) -> Array:
        """1 where batteries pay for actions; (agent, action), of controllers (episode, device, action)."""
        mask = self.batch.affordable().astype(np.int8)
        return mask.reshape(self.count, -1) if self.seen else mask

    def _observations(self) -> Array:
        now = self.batch.under_way
        state = network_state(now)
        return self.seen.of(state, now.slot).reshape(self.count, -1) if self.seen else state.astype(np.float32)


class HarvestingVectorEnv(VectorEnv[Array, Array, Array]):
    """Many episodes at once; see the module's docstring."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (as in its base)

    def __init__(self, agents: Agents, seed: int) -> None:
        self.agents, self.num_envs = agents, agents.count
        self.single_observation_space, self.single_action_space = agents.observation_space, agents.action_space
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
        return self.agents.begin(seed, options)

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """One slot of every episode; actions (sub-environment,) or, of controllers, (episode, device)."""
        seen, reward, infos = self.agents.play(np.asarray(actions))
        over = self.agents.batch.over
        ended = np.full(self.num_envs, over)
        if over:
            final = {"final_obs": _unbatched(seen), "_final_obs": ended, "final_info": infos, "_final_info": ended}
            seen, infos = self.agents.begin(None, None)
            infos |= final
        return seen, reward, ended, np.zeros(self.num_envs, bool), infos


def _unbatched(rows: Array) -> Array:
    """Final observations as Gymnasium has them: an array of arrays."""
    apart = np.empty(len(rows), dtype=object)
    apart[:] = list(rows)
    return apart


class HarvestingSingleEnv(Env[Array, Any]):
    """One episode at a time with one agent; see the module's docstring."""

    metadata = {"render_modes": []}  # noqa: RUF012 (as in its base)

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.observation_space, self.action_space = agents.observation_space, agents.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin the next episode, or the first one of ``seed``, or that in ``options["episode"]``."""
        seen, infos = self._agents.begin(seed, options)
        super().reset(seed=seed)
        return seen[0], {name: value[0] for name, value in infos.items()}

    def step(self, action: Any) -> tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]:
        """One slot."""
        seen, reward, infos = self._agents.play(np.asarray(action)[None])
        over = self._agents.batch.over
        return seen[0], float(reward[0]), over, False, {name: value[0] for name, value in infos.items()}


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
    check_reward(reward)
    refuse(view not in ("device", "network"), "view", "device or network", f"value {view!r}")
    batch = EpisodeBatch(problem, whole_number("episodes", episodes, least=1), reward, first_seed)
    seen = None
    if view == "device":
        seen = EqualSight(sights_of(problem, batch.controlled, hops), agent_id, whole_number("clock", clock))
    return HarvestingVectorEnv(Agents(batch, seen, first_seed), first_seed)


def single_env(
    scenario: Scenario | str,
    *,
    device: int | None = None,
    others: Plan | str = "receiver",
    hops: int = 1,
    reward: Reward = "shared",
    seed: int | None = None,
) -> HarvestingSingleEnv:
    """One episode of a scenario at a time, for single-agent learners.

    Without a ``device`` the agent controls the whole network, and the remaining arguments but ``seed`` do not apply.
    With one it controls that device and sees ``hops`` around it, while ``others`` follow a plan.
    """
    problem, first_seed = opened(scenario, seed)
    check_reward(reward)
    if device is None:
        return HarvestingSingleEnv(Agents(EpisodeBatch(problem, 1, "shared", first_seed), None, first_seed))
    if whole_number("device", device) >= problem.num_devices:
        raise ScenarioError("device", f"0 to {problem.num_devices - 1}", f"value {device}")
    plan = make_plan(problem, others, {}, bound=False) if isinstance(others, str) else others
    batch = EpisodeBatch(problem, 1, reward, first_seed, (device,), plan.policy)
    return HarvestingSingleEnv(Agents(batch, EqualSight(sights_of(problem, (device,), hops)), first_seed))
