"""Independent Q-learning: every device learns from its own battery and its reward, as if it were alone.

Each device j keeps a table Q_j(energy state, action) and learns it in the PettingZoo environment with

    Q ← Q + α (r + δ max over affordable a' of Q(s', a') − Q)

taking a random affordable action with a probability that falls from one to zero. The others are part of its world, so
nothing is guaranteed; that is what makes it a baseline. Needs `pip install heliomesh[pettingzoo]`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heliomesh.interop.pettingzoo import HarvestingEnv, parallel_env
from heliomesh.model.factor import Variable, energy
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import ActionPolicy, Observation, Plan
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Section


class Options(Section):
    """Options of the learner."""

    episodes: Annotated[int, Field(ge=1)] = Field(400, description="episodes to learn from")
    reward: Literal["own", "shared"] = Field("own", description="what a device is paid for")
    rate: Annotated[float, Field(gt=0, le=1)] = Field(0.1, description="α")
    discount: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="δ")
    seed: Annotated[int, Field(ge=0)] = Field(1, description="of the episodes; others than those it is compared on")


@dataclass(frozen=True)
class Learned(ActionPolicy):
    """The learned tables as a policy like any other."""

    problem: Problem
    actions: Tensor  # (device, energy)
    stationary = True

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Tabulated action."""
        device = torch.arange(self.problem.num_devices, device=self.problem.device)
        return self.actions[device, seen.energy_state(self.problem)]

    def visible(self, device: int) -> frozenset[Variable]:
        """Its own energy only."""
        return frozenset([energy(device)])


def plan(context: PlannerContext[Options]) -> Plan:
    """Learn, then act greedily."""
    problem, options = context.problem, context.options
    env = parallel_env(problem.scenario, hops=0, reward=options.reward, seed=options.seed)
    table = np.zeros((problem.num_devices, problem.num_energy, len(problem.actions)))
    for episode in context.track(range(options.episodes), "Q-learning", options.episodes):
        _learn(env, table, options, context.rng, exploration=1 - episode / options.episodes)
    value = torch.from_numpy(table).to(problem.device).masked_fill(~problem.feasible, -torch.inf)
    return Plan("independent_learner", Learned(problem, value.argmax(-1)), rounds=options.episodes)


def _learn(
    env: HarvestingEnv, table: np.ndarray, options: Options, rng: np.random.Generator, exploration: float
) -> None:
    """One episode; table (device, energy, action) is changed in place."""
    seen, _ = env.reset()
    device = np.arange(len(table))
    state, mask = _states(env, seen)
    while env.agents:
        random = rng.random(mask.shape) * mask
        best = np.where(mask, table[device, state], -np.inf)
        action = np.where(rng.random(len(device)) < exploration, random.argmax(-1), best.argmax(-1))
        seen, rewards, ended, _, _ = env.step(dict(zip(env.agents, action.tolist(), strict=True)))
        after, mask = _states(env, seen)
        future = np.where(mask, table[device, after], -np.inf).max(-1) * (not all(ended.values()))
        target = np.array(list(rewards.values())) + options.discount * future
        table[device, state, action] += options.rate * (target - table[device, state, action])
        state = after


def _states(env: HarvestingEnv, seen: Mapping[str, Mapping[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Energy states (device,) on the planning grid and action masks (device, action)."""
    values = np.array([one["observation"] for one in seen.values()])  # slot, battery, weather, channel
    levels, num_weather = env.problem.battery.levels, env.problem.harvest.law.num_weather
    level = np.floor(values[:, 1] * (levels - 1) + 1e-9).astype(int)
    weather = np.rint(values[:, 2] * (num_weather - 1)).astype(int)
    return weather * levels + level, np.array([one["action_mask"] for one in seen.values()]).astype(bool)
