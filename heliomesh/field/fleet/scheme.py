"""Which planners a fleet can run, and what each of its devices is given for that.

A planner fits if a device can act with what its neighbourhood tells it, and can make its part of the plan so too.
Plans of `bids` are made for the whole network before devices are installed, and each is given its own part of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heliomesh.common.memory_limit import check_fits
from heliomesh.field.fleet.bidder import OwnBids
from heliomesh.field.fleet.device import Decider, OwnPolicy
from heliomesh.field.fleet.planning import Partners, Timetable, partners_of, timetable
from heliomesh.field.fleet.view import View
from heliomesh.jobs.job import Job
from heliomesh.model.endless import TURN_SLOTS, cycle_of, one_cycle, repeated
from heliomesh.model.overhead import Overhead, is_paid, paid_talk, refuse_uncounted
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.planners.bids.accounts import Accountants
from heliomesh.planners.decentralized.neighbourhood import Neighbourhood
from heliomesh.planners.decentralized.planner import LocalTables, Options, estimate_bytes, local_overhead, num_rounds
from heliomesh.planners.turns import Options as TurnsOptions
from heliomesh.planners.turns import turns_of
from heliomesh.planning import find_planner, make_plan
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.section import validated

BIDS = "bids"
WITH_OTHERS = "decentralized"
ALONE = ("fixed_fraction", "skiptrain", "uncoordinated")  # a device's part of the plan follows from its own settings
IN_TURN = "turns"  # alone too, once a device is told its turn


@dataclass(frozen=True)
class FleetScheme:
    """A planner as a fleet runs it."""

    problem: Problem
    planned: Problem  # the same, or that of a cycle in a plan without an end
    planner: str
    options: dict[str, Any]  # as they are, so that `heliomesh run` with them gives the same
    hops: int  # how far messages about planning and states travel
    timetable: Timetable | None = None  # of those who plan with others
    partners: tuple[Partners, ...] = ()  # (device,)
    predicted: Overhead = field(default_factory=Overhead)
    made: Plan | None = None  # before devices are installed
    parts: Sequence[OwnBids] = ()  # of that plan, by device

    @property
    def talk(self) -> tuple[str, ...]:
        """Steps of a slot between measuring and acting, in which devices say something."""
        return () if getattr(self.made and self.made.policy, "talk", None) is None else ("bid", "grant")

    @property
    def pays(self) -> bool:
        """Whether batteries pay for messages."""
        return bool(self.talk) and is_paid(self.problem)

    def decider(self, view: View) -> Decider | Partners | OwnBids:
        """How a device acts: with its partners, by its part of a plan, or by a policy that it makes from its view."""
        if self.parts:
            return self.parts[view.device]
        if self.timetable is not None:
            return self.partners[view.device]
        if self.planner == IN_TURN:
            # a device is told its own turn and their number; the others' turns never come
            colour, turn = self.problem.colour, torch.full((self.problem.num_devices,), -1)
            turn[view.device] = colour[view.device]
            settings = TurnsOptions(**self.options)
            return OwnPolicy(turns_of(view.problem, settings, turn, max(colour) + 1), view.device)
        policy: Any = make_plan(view.problem, self.planner, self.options).policy  # all in ALONE choose actions
        return OwnPolicy(policy, view.device)

    def plan(self, planned: Mapping[int, tuple[Tensor, float]]) -> Plan:
        """What the devices found, put together by an observer: table and last change of each."""
        if self.made is not None:
            return self.made
        if self.timetable is None:
            return make_plan(self.problem, self.planner, self.options)
        residual = max(change for _, change in planned.values())
        policy = LocalTables(
            self.planned,
            tuple(partner.scope for partner in self.partners),
            tuple(planned[device][0] for device in range(self.problem.num_devices)),
            randomised=not self.timetable.rounds,
        )
        made = Plan(
            self.planner,
            policy,
            converged=residual < 1e-3,
            rounds=num_rounds(Options(**self.options)),
            residual=residual,
            overhead=self.predicted,
        )
        return repeated(self.problem, made) if self.planned.endless else made


def device_options(problem: Problem, planner: str, options: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """A planner's options where devices act: it reads the labels of the samples they train on."""
    return dict(Job(problem.scenario, planner, options, training_seed=seed).planner_options)


def scheme_of(problem: Problem, planner: str, options: Mapping[str, Any]) -> FleetScheme:
    """The scheme of a planner; raises ScenarioError for those whose devices would need more than they can be told."""
    if planner == BIDS:
        made = make_plan(problem, planner, options, bound=False)
        paid_talk(problem, made.policy)  # refuses what the radio may not send
        policy = one_cycle(made.policy)
        parts = OwnBids.all_of(policy) if isinstance(policy, Accountants) else []
        return FleetScheme(
            problem, problem, planner, dict(options), 0, predicted=made.overhead, made=made, parts=parts
        )
    if planner in (*ALONE, IN_TURN):
        find_planner(planner).checked_options(options)
        return FleetScheme(problem, problem, planner, dict(options), hops=0)
    fitting = sorted((BIDS, WITH_OTHERS, IN_TURN, *ALONE))
    expected = f"one of {', '.join(fitting)}, whose devices need no more than neighbours can tell them"
    refuse(planner not in fitting, "planner", expected, f"value {planner!r}")
    settings = _checked(options)
    planned = cycle_of(problem, TURN_SLOTS) if settings.endless else problem
    table = timetable(planned, settings)
    areas = tuple(Neighbourhood(planned, device, settings.hops) for device in range(problem.num_devices))
    partners = tuple(partners_of(planned, areas, table))
    scopes = [partner.scope for partner in partners]
    check_fits(
        f"fleet that plans with hops = {settings.hops}",
        estimate_bytes(planned, areas, scopes, True),
        settings.memory_gib,
        "lower hops, energy.battery_levels, channel.levels or the degree, or raise memory_gib",
    )
    predicted = local_overhead(planned, areas, scopes, num_rounds(settings), table.num_turns, settings)
    refuse_uncounted(problem, None, predicted, planner)
    own = {**options, "share_tables": False}
    return FleetScheme(problem, planned, planner, own, settings.hops, table, partners, predicted)


def _checked(options: Mapping[str, Any]) -> Options:
    settings = validated(Options, options, f"{WITH_OTHERS} option")
    for name, expected, reason in (
        ("form", "default", "whose steps devices take by messages"),
        ("levels", None, "whose devices share the scenario's grid"),
    ):
        actual, place = getattr(settings, name), f"{WITH_OTHERS} option.{name}"
        refuse(actual != expected, place, f"{expected!r} in a fleet, {reason}", f"value {actual!r}")
    alone = "false in a fleet, where every device computes its own table"
    refuse(options.get("share_tables"), f"{WITH_OTHERS} option.share_tables", alone, "value true")
    return settings
