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

from heliomesh.interop.episode_batch import EpisodeBatch, Reward, opened
from heliomesh.interop.sight import Array, Sights
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

    def __init__(self, batch: EpisodeBatch, seed: int, form: Form) -> None:
        self.problem, self.sights, self._batch, self._form = batch.problem, batch.sights, batch, form
        self.possible_agents = [f"device_{device}" for device in range(self.problem.num_devices)]
        self.agents: list[str] = []
        actions = len(self.problem.actions)
        self.observation_spaces: dict[str, spaces.Space[Any]] = {}
        self.action_spaces: dict[str, spaces.Space[Any]] = {}
        for number, agent in enumerate(self.possible_agents):
            space: spaces.Space[Any] = spaces.Box(0.0, 1.0, (self.sights.size,), np.float32)
            if form == "dict":
                values = spaces.Box(0.0, 1.0, (len(self.sights.columns[number]),), np.float64)
                space = spaces.Dict({"observation": values, "action_mask": spaces.Box(0, 1, (actions,), np.int8)})
            space.seed(seed + number)  # else copies sample different actions
            self.observation_spaces[agent] = space
            self.action_spaces[agent] = spaces.Discrete(actions, seed + number)

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
        return self._told(nothing, nothing)

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
        reward, told = self._batch.play(np.array([[actions[agent] for agent in agents]]))
        over = self._batch.over
        observations, infos = self._told(told["update_loss"][0], told["infeasible"][0])
        self.agents = [] if over else agents
        rewards = dict(zip(agents, reward[0].tolist(), strict=True))
        return observations, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), infos

    def state(self) -> Array:
        """The whole network: the slot, all batteries and weathers by device, all channel sites; in [0, 1]."""
        return np.asarray(self._batch.state()[0])

    def close(self) -> None:
        """Nothing to release."""

    @property
    def episode(self) -> int:
        """Number of the episode under way."""
        return self._batch.first_episode

    def _told(self, loss: Array, infeasible: Array) -> tuple[dict[str, Seen], dict[str, dict[str, Any]]]:
        """Observations and infos."""
        state, mask, now = self._batch.state(), self._batch.masks()[0], self._batch.under_way
        battery = now.battery_joule[0].tolist()
        infos: dict[str, dict[str, Any]] = {
            agent: {
                "action_mask": mask[device],
                "battery_joule": battery[device],
                "update_loss": float(loss[device]),
                "infeasible": bool(infeasible[device]),
            }
            for device, agent in enumerate(self.agents)
        }
        if self._form == "box":
            rows = self.sights.of(state.astype(np.float32), now.slot)[0]
            return dict(zip(self.agents, rows, strict=True)), infos
        observations: dict[str, Seen] = {
            agent: {"observation": state[0, columns], "action_mask": own.copy()}
            for agent, columns, own in zip(self.agents, self.sights.columns, mask, strict=True)
        }
        return observations, infos


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
    refuse(observations not in ("dict", "box"), "observations", "dict or box", f"value {observations!r}")
    if (agent_id or clock) and observations != "box":
        raise ScenarioError("agent_id, clock", "observations='box' with them", "value 'dict'")
    sights = Sights(problem, hops, agent_id, clock)
    return HarvestingEnv(EpisodeBatch(sights, 1, reward, first_seed), first_seed, observations)
