"""What a planner is given: one object with the problem, the options and the means to work."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from pydantic import Field

from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB
from heliomesh.common.streams import stream
from heliomesh.model.policy import ParallelMap, Plan, Policy, Track, untracked
from heliomesh.model.problem import Problem
from heliomesh.scenario.section import Levels, Section

OptionsT = TypeVar("OptionsT", bound=Section)


class GridOptions(Section):
    """Options of planners whose tables grow so steeply with the levels that their grids are coarse."""

    levels: Levels | None = Field(
        None, description="points of its battery grid; default: up to 9, as few as round spending up little"
    )
    memory_gib: float = Field(DEFAULT_LIMIT_GIB, gt=0, description="refuse to start above this estimate [GiB]")


@dataclass(frozen=True)
class PlannerContext(Generic[OptionsT]):
    """The argument of every planner's ``plan(context)``."""

    problem: Problem
    options: OptionsT  # an instance of the planner's own class ``Options``, checked
    parallel_map: ParallelMap = map  # like the builtin, perhaps on many cores or machines
    track: Track = untracked  # wraps an iterable with a progress display
    previous: Plan | None = None  # an earlier plan of the same planner for the same devices, to start from

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers of the scenario's seed; the same for every planner."""
        return stream(self.problem.scenario.seed, "policy")


# A planner: returns a plan, or a policy of which nothing more is known.
PlanFunction = Callable[[PlannerContext[OptionsT]], Plan | Policy]
