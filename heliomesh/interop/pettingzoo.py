"""A scenario as a PettingZoo environment, so that multi-agent learners can stand beside the planners.

The environment runs `simulation/slot_loop.py` itself, with its continuous batteries: given the seed of `simulate` and
a plan's actions it gives that simulation's costs to the last bit. The slot loop draws all random numbers before
anyone acts, so channels, weather and policies' random numbers are known in advance from a pass in which everybody
idles; only batteries follow from actions.

Each agent ``device_0``, ``device_1``, … has

- *actions* ``Discrete(A)``: indices of the scenario's action set, 0 idle, then "send only" with rising power and
  "train only" where the scenario has them, then train and send with rising power;
- *observations*, a dictionary of ``observation``, numbers in [0, 1] (see `Sight`), and ``action_mask``, 1 where the
  battery pays for an action. An action that it does not pay for counts as idle, and ``infos`` says so;
- *rewards*, ``"own"``: −x_j, the share of the device's own update weight that is lost in the slot; ``"shared"``:
  −Σ_j x_j for everyone. Summed over agents (own) and averaged over slots, rewards are minus the cost of `simulate`;
- *infos*: ``action_mask`` again, ``update_loss`` x_j, ``battery_joule`` and ``infeasible``.

An episode ends for all agents after the scenario's slots. That is the end of the problem, not a time limit, since
slots are seen and nothing counts beyond: ``terminations``, never ``truncations``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heliomesh.problem import guard
from heliomesh.problem.factor import Variable
from heliomesh.problem.policy import Decision, Observation, state_variables
from heliomesh.problem.problem import Problem, build
from heliomesh.scenario import Scenario, ScenarioError
from heliomesh.simulation.slot_loop import Slot, run_slots

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ImportError(
        "pettingzoo: expected to be installed, as `pip install heliomesh[pettingzoo]` does, "
        f"actual: no module {error.name!r}"
    ) from None

Reward = Literal["own", "shared"]
Array = npt.NDArray[Any]

_EPISODES_AHEAD = (
    16  # whose random numbers are drawn at a time: resets are quicker, and the numbers do not depend on it
)


@dataclass(frozen=True)
class Sight:
    """What one device sees within k hops, as numbers in [0, 1].

    In this order: the slot as a share of the horizon; for every device within ``hops``, itself first, then by
    distance and number, its battery as a share of its capacity and its weather level as a share of the highest; for
    every channel site into those devices, its level as a share of the highest.
    """

    problem: Problem
    device: int
    hops: int

    @cached_property
    def members(self) -> tuple[int, ...]:
        """Devices within k hops, the device itself first."""
        within = self.problem.topology.within(self.device, self.hops)
        return tuple(sorted(within, key=lambda member: (within[member], member)))

    @cached_property
    def sites(self) -> tuple[int, ...]:
        """Channel sites into the members, each once."""
        variables: list[Variable] = [v for m in self.members for v in state_variables(self.problem, m)]
        return tuple(dict.fromkeys(v.owner for v in variables if v.kind == "site"))

    @property
    def size(self) -> int:
        """Number of values."""
        return 1 + 2 * len(self.members) + len(self.sites)

    def of(self, slot: int, battery_share: Array, weather_share: Array, level_share: Array) -> Array:
        """The values; shares by device, device and site → (size,)."""
        members = list(self.members)
        own = np.stack([battery_share[members], weather_share[members]], axis=1).reshape(-1)
        return np.concatenate([[slot / self.problem.slots], own, level_share[list(self.sites)]])


class _Submitted:
    """A policy that does what it was last told; actions come before their slot."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    def decide(self, slot: int, seen: Observation) -> Decision:
        return self.decision


class _Idle:
    """Nobody acts; what could be seen is kept."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def decide(self, slot: int, seen: Observation) -> Decision:
        self.seen.append(seen)
        return Decision(torch.zeros_like(seen.battery_joule), torch.zeros_like(seen.battery_joule, dtype=torch.bool))


class HarvestingEnv(ParallelEnv[str, dict[str, Array], int]):  # type: ignore[misc]
    """One episode of a scenario at a time; see the module's docstring for actions, observations and rewards."""

    metadata: ClassVar[dict[str, Any]] = {"name": "heliomesh_v0", "render_modes": [], "is_parallelizable": True}
    render_mode = None

    def __init__(self, problem: Problem, hops: int, reward: Reward, seed: int) -> None:
        self.problem, self.reward = problem, reward
        self.possible_agents = [f"device_{device}" for device in range(problem.num_devices)]
        self.agents: list[str] = []
        self.sights = tuple(Sight(problem, device, hops) for device in range(problem.num_devices))
        self.observation_spaces = {
            agent: spaces.Dict(
                {
                    "observation": spaces.Box(0.0, 1.0, (sight.size,), np.float64),
                    "action_mask": spaces.Box(0, 1, (len(problem.actions),), np.int8),
                }
            )
            for agent, sight in zip(self.possible_agents, self.sights, strict=True)
        }
        self.action_spaces = {agent: spaces.Discrete(len(problem.actions)) for agent in self.possible_agents}
        self._seed, self._episode = seed, -1
        self._ahead: tuple[int, int, list[Observation]] | None = None  # seed, first episode, and their slots
        nothing = torch.zeros(1, problem.num_devices, dtype=torch.float64, device=problem.device)
        self._told = _Submitted(Decision(nothing, nothing.bool()))
        self._slots: Iterator[Slot] = iter(())
        self._slot = 0
        self._seen: Observation | None = None

    def observation_space(self, agent: str) -> spaces.Dict:
        """The agent's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        """The agent's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, Array]], dict[str, dict[str, Any]]]:
        """Begin the next episode, or the first one of ``seed``, or that in ``options["episode"]``.

        It is the episode of the same number in ``simulate(problem, plan, seed=seed)``.
        """
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode = int((options or {}).get("episode", self._episode + 1))
        self.agents = list(self.possible_agents)
        self._slots = run_slots(self.problem, self._told, [self._episode], self._seed)
        self._slot = 0
        self._seen = self._weather(0)
        nothing = torch.zeros(self.problem.num_devices)
        return self._observations(), self._infos(nothing, nothing.bool())

    def step(
        self, actions: Mapping[str, int]
    ) -> tuple[
        dict[str, dict[str, Array]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """One slot: everybody acts, packets and energy follow."""
        agents = self.agents
        if not agents or self._seen is None:
            raise RuntimeError("step: expected an episode under way, actual: it ended or was never reset")
        asked = torch.tensor([actions[agent] for agent in agents], device=self.problem.device)
        guard.check_actions("actions", asked, (len(agents),), len(self.problem.actions))
        infeasible = ~self._affordable().gather(-1, asked.unsqueeze(-1)).squeeze(-1)
        chosen = torch.where(infeasible, 0, asked).unsqueeze(0)
        table = self.problem.actions
        self._told.decision = Decision(table.power_watt[chosen], table.trained[chosen])
        happened = next(self._slots)
        self._slot += 1
        over = self._slot == self.problem.slots
        ahead = self._seen if over else self._weather(self._slot)
        self._seen = Observation(
            ahead.channel_level, happened.battery_after_joule, ahead.weather, ahead.uniform
        )  # the last one shows the final batteries beside the last channels
        loss = happened.update_loss[0]
        rewards = (-loss).tolist() if self.reward == "own" else [-float(loss.sum())] * len(agents)
        observations, infos = self._observations(), self._infos(loss, infeasible)
        self.agents = [] if over else agents
        ended = dict.fromkeys(agents, over)
        return observations, dict(zip(agents, rewards, strict=True)), ended, dict.fromkeys(agents, False), infos

    def state(self) -> Array:
        """The whole network: the slot, all batteries and weathers by device, all channel sites; in [0, 1]."""
        slot, battery, weather, level = self._shares()
        return np.concatenate([[slot / self.problem.slots], battery, weather, level])

    def close(self) -> None:
        """Nothing to release."""

    @property
    def episode(self) -> int:
        """Number of the episode under way."""
        return self._episode

    def _weather(self, slot: int) -> Observation:
        """What can be seen in a slot of the episode while everybody idles."""
        seed, first, slots = self._ahead or (-1, 0, [])
        if seed != self._seed or not first <= self._episode < first + _EPISODES_AHEAD:
            first, idle = self._episode, _Idle()
            for _ in run_slots(self.problem, idle, list(range(first, first + _EPISODES_AHEAD)), self._seed):
                pass
            slots, self._ahead = idle.seen, (self._seed, first, idle.seen)
        here = slice(self._episode - first, self._episode - first + 1)
        seen = slots[slot]
        return Observation(seen.channel_level[here], seen.battery_joule[here], seen.weather[here], seen.uniform[here])

    def _now(self) -> Observation:
        if self._seen is None:
            raise RuntimeError("expected an episode under way, actual: it was never reset")
        return self._seen

    def _affordable(self) -> Tensor:
        """Whether batteries pay for actions; (device, action)."""
        return self.problem.affordable(self._now().battery_joule)[0]

    def _shares(self) -> tuple[int, Array, Array, Array]:
        """The slot and what can be seen, as shares of the largest possible: batteries, weathers, channel levels."""
        seen, problem = self._now(), self.problem
        battery = (seen.battery_joule[0] / problem.battery.capacity_joule).clamp(0, 1)
        weather = seen.weather[0] / max(problem.harvest.law.num_weather - 1, 1)
        level = seen.channel_level[0] / max(problem.channel.levels - 1, 1)
        battery, weather, level = (share.double().cpu() for share in (battery, weather, level))
        return self._slot, battery.numpy(), weather.numpy(), level.numpy()

    def _observations(self) -> dict[str, dict[str, Array]]:
        shares = self._shares()
        mask = self._affordable().cpu().numpy().astype(np.int8)
        return {
            agent: {"observation": self.sights[device].of(*shares), "action_mask": mask[device]}
            for device, agent in enumerate(self.agents)
        }

    def _infos(self, loss: Tensor, infeasible: Tensor) -> dict[str, dict[str, Any]]:
        mask = self._affordable().cpu().numpy().astype(np.int8)
        battery = self._now().battery_joule[0].tolist()
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
    scenario: Scenario | str, *, hops: int = 1, reward: Reward = "own", seed: int | None = None
) -> HarvestingEnv:
    """The environment of a scenario, or of the scenario with a name or at a path.

    ``hops``: how far devices see. ``reward``: ``"own"`` or ``"shared"``. ``seed``: of the episodes until `reset` is
    given another; default: the scenario's.
    """
    loaded = Scenario.load(scenario) if isinstance(scenario, str) else scenario
    if hops < 0:
        raise ScenarioError("hops", f"expected at least 0, actual value {hops}")
    if reward not in ("own", "shared"):
        raise ScenarioError("reward", f"expected own or shared, actual value {reward!r}")
    return HarvestingEnv(build(loaded), hops, reward, loaded.seed if seed is None else seed)
