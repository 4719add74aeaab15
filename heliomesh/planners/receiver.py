"""Receiver-centric planning: near-optimal, local, with a certificate.

The cost is a sum of terms, one per receiver: c_t = Σ_i (f_i(h_i, p_{N_i}) + a share of the idle cost of each
device heard). Let V_i be the optimum of receiver i's own term, as if all devices it hears acted for it alone: a
dynamic program over the few variables (h_i, b_{N_i}) that the term depends on. Each slot is decided jointly, by
neighbour messages, as

    p = argmin  Σ_i [ f_i(h_i, p_{N_i}) + W_i(h_i, b_{N_i} − e(p)) ]    (W_i: expected next V_i after spending)

W_i is a table over a battery grid, and values between its points are interpolated. Receivers with equal surroundings
share one table. Far from the horizon a slot only adds a constant to V_i; the recursion stops there. A plan without an
end keeps what it has found there, the tables of one cycle. Where tables would have to be coarse, every device's own
value, as the planner `prices` has it, takes their place.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.bounds.minorant import plan_grid
from heliomesh.bounds.receiver_classes import receiver_terms, surroundings
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.grid.after_spending import EnergyAfterAction, Floats, Ints, JointTable, NumpyEnergyLookup
from heliomesh.grid.best_response import descend, starting_laws
from heliomesh.grid.cycle_fixed_point import most_rounds
from heliomesh.grid.exact import backward_induction, induction_bytes
from heliomesh.grid.joint_choice import JointChoice, RoundsOptions, TablesAhead
from heliomesh.model.endless import TURN_SLOTS, cycle_of, endless_plan
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Observation, Plan
from heliomesh.model.problem import Part, Problem, interpolated
from heliomesh.scenario.section import Levels, Positive
from heliomesh.slot.coordination import Coordination, Group, Tables
from heliomesh.slot.enumerated_cost import cost_form

_REMEDY = "lower the degree, levels or channel.levels, raise memory_gib, or use the planner 'prices'"


class Options(RoundsOptions):
    """Options of the receiver planner."""

    levels: Levels | None = Field(
        None,
        description="points of every table's battery grid; default: the fewer, the more devices a receiver hears",
    )
    interpolate: bool = Field(
        True,
        description="read values between grid points; false: one grid for all, spending rounded up, as exports do",
    )
    largest_table: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="most states × joint actions of a receiver's table; devices' own values take the place of tables "
        "where one is larger; default: what a few seconds allow",
    )
    tolerance: Positive = Field(
        1e-4, description="stop the recursion once slots differ by a constant to within this cost"
    )
    memory_gib: float = Field(
        DEFAULT_LIMIT_GIB, gt=0, description="most memory by estimate [GiB]; no tables where they do not fit"
    )


class Stored(NamedTuple):
    """The tables of a group's receivers, and how they are read."""

    table: JointTable  # by kind, stored slot and channel state
    first_row: Tensor  # (stored slot, receiver) rows of channels at their lowest levels
    sites: list[Tensor]  # the sites into every receiver, one after the other; (receiver,) each


@dataclass(frozen=True)
class ReceiverTables(JointChoice):
    """Joint decisions on the receivers' tables, or at the devices' own values."""

    problem: Problem
    coordination: Coordination
    grids: Mapping[int, Problem]  # by number of devices heard: the problem on its tables' grid
    tables: tuple[Tensor, ...]  # per kind of surroundings: (stored slot, state), counted from the horizon
    kind_of: Mapping[int, Tensor]  # per group offset: (receiver,) kind of surroundings, −1 for no table
    futures: Tensor | None  # (slot, device, energy): value of the energy left, instead of tables
    rounds: int
    messages: int
    first_bytes = 2  # its energy state

    @property
    def own_values(self) -> Tensor | None:
        """Values of the energy left, instead of tables."""
        return self.futures

    def slot_tables(self, slot: int, seen: Observation, price: Tensor) -> Tables:
        """f_i + W_i, or f_i alone."""
        if self.futures is not None:
            return super().slot_tables(slot, seen, price)
        coordination, level = self.coordination, seen.channel_level
        costs = (coordination.observed(g, level) + self.values_left(slot, g, seen) for g in coordination.groups)
        return Tables(coordination.flat(costs, price))

    def values_left(self, slot: int, group: Group, seen: Observation) -> Tensor:
        """W_i for all joint actions of a group; (batch, receiver, joint action)."""
        row = self._rows([slot], group, seen.channel_level.unsqueeze(0))[0]
        table = self._stored[group.offset].table
        return EnergyAfterAction(self.grids[group.heard], seen).joint_values(table.values, row, group.actors)

    def _rows(self, slots: Sequence[int], group: Group, channel_level: Tensor) -> Tensor:
        """Rows of receivers' tables, by channels (slot, batch, site); (slot, batch, receiver)."""
        _, first_row, (first, *others) = self._stored[group.offset]
        state = channel_level[..., first]
        for sites in others:
            state = state * self.problem.channel.levels + channel_level[..., sites]
        last = self.grids[group.heard].slots - 1
        return first_row[[min(last - slot, len(first_row) - 1) for slot in slots]].unsqueeze(1) + state

    def tables_ahead(self, slots: Sequence[int], channel_level: Tensor, weather: Tensor) -> TablesAhead:
        """The same by NumPy."""
        missed, groups = super().tables_ahead(slots, channel_level, weather), self.coordination.groups
        if self.futures is not None:
            return missed
        lookups = {heard: NumpyEnergyLookup(grid) for heard, grid in self.grids.items()}
        tables = [self._stored[group.offset].table for group in groups]
        entries = [self._first_entries(slots, group, channel_level, weather) for group in groups]

        def costs(number: int, battery_joule: Floats) -> list[Floats]:
            places = {heard: lookup.place(battery_joule) for heard, lookup in lookups.items()}
            lost = zip(missed(number, battery_joule), groups, tables, entries, strict=True)
            return [one + table.at(entry[number], places[group.heard]) for one, group, table, entry in lost]

        return costs

    def _first_entries(self, slots: Sequence[int], group: Group, channel_level: Tensor, weather: Tensor) -> Ints:
        """Where a group's tables are read in several slots, as `JointTable` has them."""
        row = self._rows(slots, group, channel_level)
        return self._stored[group.offset].table.first_entries(row, weather * self.grids[group.heard].battery.levels)

    @cached_property
    def _stored(self) -> dict[int, Stored]:
        """Tables per group offset; those with fewer slots than others of the group are continued."""
        channel, found = self.problem.channel, {}
        one = self.problem.scenario.channel.state == "receiver"
        for group in self.coordination.groups:
            used, kinds = torch.unique(self.kind_of[group.offset], return_inverse=True)
            tables = [self.tables[kind] for kind in used.tolist()]
            longest, grid = max(map(len, tables)), self.grids[group.heard]
            whole = [torch.cat([table, table[-1:].expand(longest - len(table), -1)]) for table in tables]
            values = torch.stack(whole).reshape(-1, grid.num_energy**group.heard)
            sites = channel.site_of_edge[group.edges[:, :1] if one else group.edges].T.contiguous()
            slot = torch.arange(longest, device=kinds.device).unsqueeze(1)
            table = JointTable(values, group.actors, grid.num_energy, len(grid.actions))
            first_row = (kinds * longest + slot) * channel.levels ** len(sites)
            found[group.offset] = Stored(table, first_row, list(sites))
        return found

    @cached_property
    def batch(self) -> int:
        """Episodes to handle at a time: the widest look-up is that of one action over all levels."""
        if self.futures is not None:
            return super().batch
        count, groups = len(self.problem.actions), self.coordination.groups
        widest = [len(g.receivers) * count * self.grids[g.heard].num_energy ** (g.heard - 1) for g in groups]
        return max(1, min(self.coordination.batch(), _LOOKED_UP // max(widest, default=1)))


_LOOKED_UP = 1 << 22  # values interpolated at a time


def plan(context: PlannerContext[Options]) -> Plan:
    """One dynamic program per kind of surroundings, or one per device."""
    return endless_plan(context, _plan) if context.options.endless else _plan(context)


def _plan(context: PlannerContext[Options]) -> Plan:
    coordination = Coordination(context.problem)
    coordination.check_fits(context.options.memory_gib)
    messages = coordination.message_rounds(context.options.messages)
    made = _by_tables(context, coordination, messages) if context.options.largest_table != 0 else None
    return made if made is not None else _by_values(context, coordination, messages)


def _by_tables(context: PlannerContext[Options], coordination: Coordination, messages: int) -> Plan | None:
    """A dynamic program per kind of surroundings; None where tables would be coarse or larger than asked for."""
    problem, options = context.problem, context.options
    clusters, kind_of = surroundings(problem, coordination)
    grids = _grids(problem, clusters, options)
    if grids is None:
        return None
    check_fits("receiver tables", _table_bytes(grids, clusters), options.memory_gib, _REMEDY)
    solving = context.parallel_map(partial(_futures, options, grids), clusters)
    solved = list(context.track(solving, "receiver tables", len(clusters)))
    tables, own = tuple(table for table, _ in solved), next(iter(grids.values()), problem)
    policy = ReceiverTables(own, coordination, grids, tables, kind_of, None, options.rounds, messages)
    levels = ", ".join(f"{grid.battery.levels} for {heard}" for heard, grid in sorted(grids.items()))
    note = f"{len(tables)} different tables; battery levels by devices heard: {levels or 'none'}"
    largest, settled = max((table.numel() for table in tables), default=0), all(settled for _, settled in solved)
    return _as_plan(policy, note, largest, settled)


def _as_plan(policy: ReceiverTables, note: str, table_entries: int, settled: bool) -> Plan:
    overhead = policy.overhead(table_entries)
    return Plan("receiver", policy, converged=settled, rounds=policy.rounds, overhead=overhead, notes=(note,))


def _by_values(context: PlannerContext[Options], coordination: Coordination, messages: int) -> Plan:
    """Devices' values under zero-hop best responses, as the planner `prices` has them."""
    options, asked = context.options, context.problem
    if asked.endless:
        asked = cycle_of(asked, TURN_SLOTS)
        coordination = Coordination(asked)
    problem = plan_grid(asked, options.levels, options.interpolate, _OWN_LEVELS)
    form, start = cost_form(problem), starting_laws(problem)
    found = descend(problem, form, start, options.sweeps, context.track, "best responses")
    none = {group.offset: torch.full_like(group.receivers, -1) for group in coordination.groups}
    policy = ReceiverTables(problem, coordination, {}, (), none, found.futures, options.rounds, messages)
    note = f"no tables: devices' own values, {problem.battery.levels} battery levels"
    settled = found.converged or not problem.endless
    return _as_plan(policy, note, found.futures.shape[0] * found.futures.shape[2], settled)


_OWN_LEVELS = 41


def _grids(problem: Problem, clusters: list[Part], options: Options) -> dict[int, Problem] | None:
    """Problems by number of devices heard, on grids as fine as work and memory allow; None as `_by_tables`."""
    named = options.levels or problem.scenario.energy.battery_levels or not options.interpolate
    grids: dict[int, Problem] = {}
    for cluster in clusters:
        heard = len(cluster.devices)
        if heard not in grids:
            most = _most_levels(problem, cluster, _TABLE_WORK // len(clusters))
            if most < _FEWEST_LEVELS and not named and options.largest_table is None:
                return None
            grids[heard] = plan_grid(problem, options.levels, options.interpolate, most)
    sizes = [table_size(grids[len(cluster.devices)], cluster) for cluster in clusters]
    if options.largest_table is not None:
        return grids if max(sizes, default=0) <= options.largest_table else None
    fits = sum(sizes) <= _NAMED_WORK and _table_bytes(grids, clusters) <= options.memory_gib * 2**30
    return grids if fits else None


_TABLE_WORK = 20_000_000  # states × joint actions of all tables
_NAMED_WORK = 600_000_000  # the same where levels are named
_MOST_LEVELS, _FEWEST_LEVELS = 25, 9  # coarser tables decide no better than devices' own values


def _most_levels(problem: Problem, cluster: Part, largest: int) -> int:
    """Levels with which a cluster's table stays below a size, within sensible limits."""
    fixed = table_size(interpolated(problem, 1), cluster) / 2 ** len(cluster.devices)
    affordable = int((largest / fixed) ** (1 / max(len(cluster.devices), 1)))
    return min(max(affordable, 2), _MOST_LEVELS)


def _table_bytes(grids: Mapping[int, Problem], clusters: list[Part]) -> float:
    """Peak memory: tables of all kinds over the horizon, twice while they are stacked, and the widest search."""
    stored = search = 0.0
    for cluster in clusters:
        grid = grids[len(cluster.devices)]
        stored += grid.dtype.itemsize * grid.slots * float(entries(grid.sizes(cluster.states)))
        search = max(search, induction_bytes(grid.wide, cluster, with_code=False))
    return 2 * stored + search


def table_size(problem: Problem, cluster: Part) -> int:
    """States × joint actions of a receiver's dynamic program; single values count double, since axes are few too."""
    sizes = (*problem.sizes(cluster.states), *[len(problem.actions)] * len(cluster.devices))
    return entries(max(size, 2) for size in sizes)


def _futures(options: Options, grids: Mapping[int, Problem], cluster: Part) -> tuple[Tensor, bool]:
    """Values W of one receiver's term, down to where further slots only add a constant; (stored slot, state).

    Around a cycle they are those of its slots, the last one first. Also whether they have settled, if they must.
    """
    problem = grids[len(cluster.devices)]
    compares = problem.endless or problem.is_steady
    period = 1 if problem.is_steady else problem.slots
    futures: deque[Tensor] = deque(maxlen=problem.slots)
    values: deque[Tensor] = deque(maxlen=period)  # of a cycle, the latest last
    terms = partial(receiver_terms, cluster=cluster)
    steps = backward_induction(problem, cluster, terms, with_code=False)
    settled = not problem.endless
    for step in islice(steps, problem.slots * most_rounds(problem.slots)):
        futures.append(step.future.flatten())
        if compares and step.slot % period == 0 and len(values) == period:
            rise = step.value - values[0]
            if float(rise.max() - rise.min()) <= options.tolerance:
                settled = True
                break
        if compares:
            values.append(step.value)
    return torch.stack(list(futures)), settled
