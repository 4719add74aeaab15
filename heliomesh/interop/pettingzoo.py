"""A scenario as a PettingZoo environment, so that multi-agent learners can stand beside the planners.

Each agent ``device_0``, ``device_1``, … has

- *actions* ``Discrete(A)``: indices of the scenario's action set, 0 idle, then "send only" with rising power and
  "train only" where the scenario has them, then train and send with rising power;
- *observations*, numbers in [0, 1] (see `sight.py`). As ``"dict"`` they are a dictionary of ``observation`` and
  ``action_mask``, 1 where the battery pays for an action. As ``"box"`` they are float32 of one length for all
  agents, with the agent's own number and a clock if wanted. An action that is not paid for counts as idle, and
  ``infos`` says so;
- *rewards*, ``"own"``: −x_j, the share of the device's own update weight that is lost in the slot; ``"nearby"``:
  −Σ_j x_j over devices within two hops, which are all whose packets it can disturb; ``"shared"``: −Σ_j x_j over all
  devices, for everyone. Summed over agents (own) and averaged over slots, rewards are minus the cost of `simulate`;
- *infos*: ``action_mask``, ``update_loss`` x_j, ``battery_joule`` and ``infeasible``.

An episode ends for all agents after the scenario's slots. That is the end of the problem, not a time limit, since
slots are seen and nothing counts beyond: ``terminations``, never ``truncations``. Copies and pickles go on as the
original does, also in mid-episode. A `reset` or `step` that is refused changes nothing.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from heliomesh.interop.episode_batch import EpisodeBatch, Reward, check_reward, opened, sights_of, whole_number
from heliomesh.interop.sight import Array, EqualSight, Sight, network_state
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.scenario import Scenario

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ImportError(
        f"PettingZoo is not installed (no module {error.name!r}). Run `pip install heliomesh[pettingzoo]`."
    ) from None

Form = Literal["dict", "box"]
Seen = Array | dict[str, Array]


class HarvestingEnv(ParallelEnv[str, Seen, int]):  # type: ignore[misc]
    """One episode of a scenario at a time; see the module's docstring for actions, observations and rewards."""

    metadata: ClassVar[dict[str, Any]] = {"name": "heliomesh_v0", "render_modes": [], "is_parallelizable": True}
    render_mode = None

    def __init__(
        self, problem: Problem, sights: tuple[Sight, ...], reward: Reward, seed: int, equal: EqualSight | None = None
    ) -> None:
        self.problem, self.sights, self._equal = problem, sights, equal
        self.possible_agents = [f"device_{device}" for device in range(problem.num_devices)]
        self.agents: list[str] = []
        self.observation_spaces = {
            agent: self._space(sight) for agent, sight in zip(self.possible_agents, self.sights, strict=True)
        }
        self.action_spaces: dict[str, spaces.Space[Any]] = {
            agent: spaces.Discrete(len(problem.actions)) for agent in self.possible_agents
        }
        for number, agent in enumerate(self.possible_agents):  # else copies sample different actions
            self.observation_spaces[agent].seed(seed + number)
            self.action_spaces[agent].seed(seed + number)
        self._batch = EpisodeBatch(problem, 1, reward, seed)

    def _space(self, sight: Sight) -> spaces.Space[Any]:
        if self._equal is not None:
            return spaces.Box(0.0, 1.0, (self._equal.size,), np.float32)
        mask = spaces.Box(0, 1, (len(self.problem.actions),), np.int8)
        return spaces.Dict({"observation": spaces.Box(0.0, 1.0, (sight.size,), np.float64), "action_mask": mask})

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The agent's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The agent's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Seen], dict[str, dict[str, Any]]]:
        """Begin the next episode, or the first one of ``seed``, or that in ``options["episode"]``.

        It is the episode of the same number in ``simulate(problem, plan, seed=seed)``. Raises ScenarioError for
        other values; the episode under way then goes on.
        """
        self._batch.begin(seed, options)
        self.agents = list(self.possible_agents)
        nothing = np.zeros(self.problem.num_devices)
        return self._observations(), self._infos(nothing, nothing.astype(bool))

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[dict[str, Seen], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """One slot: everybody acts, packets and energy follow."""
        agents = self.agents
        if not agents:
            raise RuntimeError("step: no episode is running. Call reset() first.")
        silent = [agent for agent in agents if agent not in actions]
        if silent:
            raise ScenarioError("actions", "an action of every agent", f": none of {silent[0]}")
        played = self._batch.play(np.array([[actions[agent] for agent in agents]]))
        over = self._batch.over
        observations, infos = self._observations(), self._infos(played.update_loss[0], played.infeasible[0])
        self.agents = [] if over else agents
        rewards = dict(zip(agents, played.reward[0].tolist(), strict=True))
        return observations, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), infos

    def state(self) -> Array:
        """The whole network: the slot, all batteries and weathers by device, all channel sites; in [0, 1]."""
        whole: Array = network_state(self._batch.under_way)[0]
        return whole

    def close(self) -> None:
        """Nothing to release."""

    @property
    def episode(self) -> int:
        """Number of the episode under way."""
        return self._batch.first_episode

    def _mask(self) -> Array:
        """1 where the battery pays for an action; (device, action)."""
        mask: Array = self._batch.affordable()[0].astype(np.int8)
        return mask

    def _observations(self) -> dict[str, Seen]:
        now = self._batch.under_way
        state = network_state(now)
        if self._equal is not None:
            return dict(zip(self.agents, self._equal.of(state, now.slot)[0], strict=True))
        mask = self._mask()
        return {
            agent: {"observation": state[0, list(self.sights[device].columns)], "action_mask": mask[device]}
            for device, agent in enumerate(self.agents)
        }

    def _infos(self, loss: Array, infeasible: Array) -> dict[str, dict[str, Any]]:
        mask, battery = self._mask(), self._batch.under_way.battery_joule[0].tolist()
        return {
            agent: {
                "action_mask": mask[device],
                "battery_joule": battery[device],
                "update_loss": float(loss[device]),
                "infeasible": bool(infeasible[device]),
            }
            for device, agent in enumerate(self.agents)
        }


def parallel_env(
    scenario: Scenario | str,
    *,
    hops: int = 1,
    reward: Reward = "own",
    seed: int | None = None,
    observations: Form = "dict",
    agent_id: bool = False,
    clock: int = 0,
) -> HarvestingEnv:
    """The environment of a scenario, or of the scenario with a name or at a path.

    ``hops``: how far devices see. ``reward``: ``"own"``, ``"nearby"`` or ``"shared"``. ``seed``: of the episodes
    until `reset` is given another; default: the scenario's. ``observations``: ``"dict"`` with the mask in it, or
    ``"box"``, where the mask is in ``infos`` only; ``agent_id`` adds the agent's number, one-hot, to a box, and
    ``clock`` the slot modulo that number.
    """
    problem, first_seed = opened(scenario, seed)
    check_reward(reward)
    refuse(observations not in ("dict", "box"), "observations", "dict or box", f"value {observations!r}")
    if (agent_id or clock) and observations != "box":
        raise ScenarioError("agent_id, clock", "observations='box' with them", "value 'dict'")
    sights = sights_of(problem, range(problem.num_devices), hops)
    equal = EqualSight(sights, agent_id, whole_number("clock", clock)) if observations == "box" else None
    return HarvestingEnv(problem, sights, reward, first_seed, equal)
