"""A device's own part of a finished plan, as what decides its actions: tables, or what it needs to bid."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import Field

from heliomesh.field.fleet.bidder import OwnBids
from heliomesh.interop.export_tables import DeviceTables, PlanTables, tabulate
from heliomesh.model.endless import one_cycle
from heliomesh.model.factor import Variable, energy, site
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import TOLERANCE
from heliomesh.physics.topology import Topology
from heliomesh.planners.bids.accounts import Accountants

OwnPlan = Annotated[PlanTables | OwnBids, Field(discriminator="format")]  # of one device


def parts_of(plan: Plan) -> list[PlanTables | OwnBids]:
    """The parts of all devices; raises ScenarioError for a plan whose devices neither look up nor bid."""
    policy = one_cycle(plan.policy)
    if isinstance(policy, Accountants):
        return [*OwnBids.all_of(policy)]
    tables = tabulate(plan)
    return [tables.model_copy(update={"devices": (own,)}) for own in tables.devices]


@dataclass(frozen=True)
class OwnTables:
    """The device's part of an exported plan; see `interop/export_tables.py` for its form."""

    plan: PlanTables  # with the tables of one device
    coordinated: bool  # whether devices tell each other what they measure

    @property
    def _own(self) -> DeviceTables:
        return self.plan.devices[0]

    @cached_property
    def sizes(self) -> dict[Variable, int]:
        """How many values each variable of the table has."""
        return {seen.variable: seen.size for seen in self._own.scope}

    def energy_state(self, weather: int, battery_joule: float) -> int:
        """Weather × cells + cell; the cell is the number of cuts that the battery reaches."""
        cuts = self._own.reports.battery_cuts_joule
        return weather * (len(cuts) + 1) + bisect_right(cuts, battery_joule * (1 + TOLERANCE))

    def action(self, slot: int, seen: Mapping[Variable, int], battery_joule: float, uniform: float) -> int:
        """The tabulated action for what is seen; what was never heard is 0."""
        own = self._own
        return int(own.in_slot(slot, self.plan.period)[tuple(seen.get(one.variable, 0) for one in own.scope)])


def fits(plan: OwnPlan, problem: Problem, device: int, before: OwnPlan | None = None) -> bool:
    """Whether a plan is the part of one device, has an action for all that it can see, and can follow another."""
    if isinstance(plan, OwnBids):
        return plan.fits(problem, device, before if isinstance(before, OwnBids) else None)
    if [own.device for own in plan.devices] != [device] or len(plan.step_joule) != problem.num_devices:
        return False
    own, states = plan.devices[0], math.prod(seen.size for seen in plan.devices[0].scope)
    measured = dict.fromkeys(map(site, problem.sites_into(device)), problem.channel.levels)
    measured[energy(device)] = problem.harvest.law.num_weather * (len(own.reports.battery_cuts_joule) + 1)
    return (
        all(seen.size >= measured.get(seen.variable, 1) for seen in own.scope)
        and all(len(table) == states and max(table) < len(problem.actions) for table in own.tables)
        and 0 <= max(own.table_of_slot, default=-1) < len(own.tables)
    )


def hops_of(parts: Sequence[PlanTables | OwnBids], topology: Topology) -> int:
    """How far measurements travel: the largest distance from a device to the owner of what its table sees."""
    devices = [own for part in parts if isinstance(part, PlanTables) for own in part.devices]
    owner_of_site = {site: own.device for own in devices for site in own.reports.sites}
    furthest = 0.0
    for own in devices:
        distance = topology.within(own.device, topology.num_devices)
        for seen in own.scope:
            owner = seen.owner if seen.kind == "energy" else owner_of_site[seen.owner]
            furthest = max(furthest, distance.get(owner, math.inf))
    return int(furthest)
