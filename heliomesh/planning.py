"""Plan with a planner of the catalog or of the user: find it, check its options, time it."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from heliomesh.bounds.dual import raise_bound, usual_effort
from heliomesh.bounds.receiver_floor import receiver_floor
from heliomesh.common import catalog
from heliomesh.common.arguments import checked
from heliomesh.grid.exact import small_average, small_optimum
from heliomesh.model.endless import Endless, cycle_of
from heliomesh.model.overhead import is_paid
from heliomesh.model.planner_context import PlanFunction, PlannerContext
from heliomesh.model.policy import ParallelMap, Plan, Policy, Track, untracked
from heliomesh.model.problem import Problem
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.schema import variant
from heliomesh.scenario.section import Section, validated

PLANNER_CATALOG = "heliomesh.planners"


def planner_names() -> list[str]:
    """Names of all planners, those of installed packages included."""
    return catalog.names(PLANNER_CATALOG)


@dataclass(frozen=True)
class Planner:
    """A planner with what its module says about it; see docs/extend.md."""

    name: str
    plan: PlanFunction[Any]
    options: type[Section] = Section
    variants: tuple[dict[str, Any], ...] = ({},)  # option sets under which it is compared
    # options to try where these do not fit
    smaller: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _: None
    starts_warm: bool = False  # whether it uses the context's previous plan
    objective: str = "update-loss"  # what it plans for; "learning" is what no table of update losses would show
    # few options or paths of the scenario, with the values that `studies/tuning.py` tries
    knobs: Mapping[str, Any] = field(default_factory=dict)
    version: int = 0  # raised when it decides otherwise than before, so that its results are computed anew
    reads_learning: tuple[str, ...] = ()  # settings of ``[learning]`` that decide its plan, beside those of energies

    def checked_options(self, options: Mapping[str, Any]) -> Section:
        """Options by name, those not given at their defaults; raises ScenarioError."""
        return validated(self.options, options, f"{self.name} option")


def find_planner(planner: object) -> Planner:
    """A planner by its name, or made of a module with ``plan`` or of such a function itself."""
    found = _meant(planner)
    plan = getattr(found, "plan", found)
    if not callable(plan):
        raise ScenarioError("planner", "a name, a function plan(context) or its module", f"{found!r:.80}")
    told = _module_of(found)
    name = planner if isinstance(planner, str) else str(getattr(found, "__name__", type(found).__name__))
    return Planner(name, plan, **{one.lower(): getattr(told, one) for one in _SAID if hasattr(told, one)})


_SAID = ("Options", "VARIANTS", "smaller", "STARTS_WARM", "OBJECTIVE", "KNOBS", "VERSION", "READS_LEARNING")


def _meant(planner: object) -> object:
    """What a name means; who calls names the code, and readers of files ask `catalog.check_trusted` first."""
    catalog.vouch(planner)
    return variant(PLANNER_CATALOG, planner, "planner") if isinstance(planner, str) else planner


def _module_of(found: object) -> object:
    """The module whose ``plan`` this is, since it has the options; else what was given."""
    module = sys.modules.get(getattr(found, "__module__", ""))
    return module if getattr(module, "plan", None) is found else found


def planner_text(planner: object) -> str:
    """A planner as text, the same whether it is given by its name, as its module or as the module's ``plan``."""
    told = _module_of(_meant(planner))
    return catalog.spelled(told if isinstance(told, ModuleType) else planner)


@checked
def plan(problem: Problem, planner: catalog.CodeOrName, *, bound: bool = False, **options: Any) -> Plan:
    """Make a plan; options are checked before any work is done.

    Parameters
    ----------
    problem
        What is planned for.
    planner
        A name of `planner_names`, a function ``plan(context)``, or a module with such a function.
    bound
        Whether `lower_bound` is added where the planner itself gives none; it takes seconds or more. A policy that
        picks powers outside the action set gets none.
    **options
        Options of the planner, as its page in the gallery lists them.

    Returns
    -------
    Plan
        A policy with what is known about it.

    Raises
    ------
    ScenarioError
        Where the name or an option is wrong.
    TooLargeError
        Where the planner's tables would not fit into memory.
    """
    return make_plan(problem, planner, options, bound=bound)


def make_plan(
    problem: Problem,
    planner: object,
    options: Mapping[str, Any],
    *,
    bound: bool = False,
    previous: Plan | None = None,
    parallel_map: ParallelMap = map,
    track: Track = untracked,
) -> Plan:
    """Like `plan`, with a way to work in parallel and a progress display.

    A planner that says ``STARTS_WARM = True`` is given the ``previous`` plan; others start anew.
    """
    found = find_planner(planner)
    settings = found.checked_options(options)
    started, worked = time.perf_counter(), time.process_time()
    context = PlannerContext(problem, settings, parallel_map, track, previous if found.starts_warm else None)
    given = found.plan(context)
    if not isinstance(given, Plan | Policy):
        raise ScenarioError("planner", "one that returns a policy with decide(slot, seen)", f"value {given!r:.60}")
    made = given if isinstance(given, Plan) else Plan(found.name, given)
    made = replace(made, seconds=time.perf_counter() - started, process_seconds=time.process_time() - worked)
    pays_for_talk = is_paid(problem) and made.overhead.online_bytes_per_slot > 0
    if problem.battery.drains or not problem.law_is_simulated or pays_for_talk:
        made = replace(made, expected_cost=None)  # in darkness packets are lost; other harvests have another mean
    if bound and made.lower_bound is None and made.picks_actions:
        endless = isinstance(made.policy, Endless)
        made = replace(made, lower_bound=(average_bound if endless else lower_bound)(problem, track))
    for name, value in (("expected cost", made.expected_cost), ("lower bound", made.lower_bound)):
        wrong = value is not None and not math.isfinite(value)
        refuse(wrong, name, "a finite number", f"value {value}; check the scenario's numbers")
    return made


def chosen_options(planner: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a planner that are not its defaults, as plain data; raises ScenarioError."""
    return find_planner(planner).checked_options(options).model_dump(mode="json", exclude_defaults=True)


@checked
def lower_bound(problem: Problem, track: Track = untracked) -> float | None:
    """Certified lower bound on the expected cost per slot of the simulated process; computed once.

    It speaks of every policy that picks from the problem's action set, and of continuous batteries. Why it is valid
    is said in `heliomesh/bounds/dual.py` and `heliomesh/bounds/receiver_floor.py`.

    Parameters
    ----------
    problem
        What is bounded.
    track
        Shows progress: ``track(items, description, total)`` yields the items.

    Returns
    -------
    float or None
        Updates lost per slot, from 0 to the number of devices. None where harvests are replayed from a random start
        or darkened by clouds unknown to plans: planners do not know the law that is simulated.
    """
    return _bounded(problem, "lower bound", lambda: problem.wide, small_optimum, track)


@checked
def average_bound(problem: Problem, track: Track = untracked) -> float | None:
    """Certified lower bound on the average cost per slot over all time, from any batteries; computed once.

    As `lower_bound`, with prices that come again in every cycle. Raises ScenarioError where harvests never do.

    Parameters
    ----------
    problem
        What is bounded; its horizon does not matter.
    track
        Shows progress: ``track(items, description, total)`` yields the items.

    Returns
    -------
    float or None
        Updates lost per slot, from 0 to the number of devices. None where harvests are replayed from a random start.
    """
    return _bounded(problem, "average bound", lambda: cycle_of(problem.wide), small_average, track)


def _bounded(
    problem: Problem, name: str, wide: Callable[[], Problem], exact: Callable[[Problem], float | None], track: Track
) -> float | None:
    """A bound per slot, remembered: exact where the problem is small, else the larger of two."""
    if problem.law_is_simulated and name not in problem.remembered:
        bounded = wide()
        found = exact(bounded)
        if found is None:
            found = max(raise_bound(bounded, usual_effort(bounded), track), receiver_floor(bounded) or -math.inf)
        problem.remembered[name] = found / bounded.slots
    return problem.remembered.get(name)
