"""A plan as plain tables, one set per device, and as a JSON file.

A plan can be exported if each device looks its action up from what it sees: channel levels and energies of some
devices near it. How a device is planned does not matter; it is asked for its action in every state it can see.
A battery enters only through its *cell*: cuts are the levels of the planning grid and the energies of actions, less
those at which no table changes. An energy is ``weather × cells + cell``.

File format (version 1): one object, described by the JSON schema beside it.
The action of device i in slot t is ``tables[table_of_slot[t]][s]``; s counts the scope's values, last one fastest.
With a ``period`` the plan has no end, and t counts modulo the length of ``table_of_slot``. Without one it ends with
its slots; whoever goes on keeps the last table, in which energy has no future.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, ValidationError
from torch import Tensor

from heliomesh.common.durable import alone_in, write_json, write_text
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.model.factor import Variable, energy
from heliomesh.model.policy import ActionPolicy, Observation, Plan, Remembers, Sight, Track, untracked
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import PAID, TOLERANCE
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.section import Section

_BATCH_STATES = 1 << 16  # asked at a time
_CHECKED_STATES, _CHECKED_SLOTS = 256, 8  # random ones, on which tables and policy must agree

Levels = npt.NDArray[np.int8]
Index = Annotated[int, Field(ge=0)]


class Seen(Section):
    """A variable that a device sees: the level of a channel site, or the energy of a device."""

    kind: Literal["site", "energy"]
    owner: Index  # number of the site or device
    size: Annotated[int, Field(ge=1)]

    @property
    def variable(self) -> Variable:
        """As planners name it."""
        return Variable(self.kind, self.owner)


class Reports(Section):
    """What a device measures and tells others, in this order: channel levels of its incoming sites, its energy."""

    sites: tuple[Index, ...]
    battery_cuts_joule: tuple[float, ...]  # rising; the cell is the number of cuts reached


class DeviceTables(Section):
    """The tables of one device."""

    device: Index
    neighbours: tuple[Index, ...]
    reports: Reports
    scope: tuple[Seen, ...]
    table_of_slot: tuple[Index, ...]  # one entry: the same table in every slot
    tables: tuple[tuple[Annotated[int, Field(ge=0, le=127)], ...], ...]  # (table, state)

    @cached_property
    def array(self) -> Levels:
        """The tables with one axis per variable seen; (table, state...)."""
        shape = [seen.size for seen in self.scope]
        return np.array(self.tables, dtype=np.int8).reshape(-1, *shape)

    def in_slot(self, slot: int, period: int | None) -> Levels:
        """The table of a slot; (state...)."""
        rows = len(self.table_of_slot)
        found: Levels = self.array[self.table_of_slot[min(slot, rows - 1) if period is None else slot % rows]]
        return found


class Action(Section):
    """What an action index means."""

    power_watt: float
    trained: bool


class PlanTables(Section):
    """A whole plan."""

    format: Literal["heliomesh-plan"] = "heliomesh-plan"
    version: Literal[1] = 1
    planner: str
    scenario: str
    scenario_sha256: str
    slots: Annotated[int, Field(ge=1)]
    period: Annotated[int, Field(ge=1)] | None = Field(
        None, description="slots after which the plan repeats for ever; none: beyond its slots the last table is kept"
    )
    num_weather: Annotated[int, Field(ge=1)]
    channel_levels: Annotated[int, Field(ge=1)]
    actions: tuple[Action, ...]
    capacity_joule: tuple[float, ...]  # (device,)
    step_joule: tuple[float, ...]  # (device,) of the planning grid
    devices: tuple[DeviceTables, ...]


@dataclass(frozen=True)
class Tabulated(ActionPolicy):
    """Exported tables as a policy again."""

    problem: Problem
    plan: PlanTables
    looks_back = False

    def action(self, slot: int, seen: Observation) -> Tensor:
        """Look up; (batch, device)."""
        state = {"site": seen.channel_level, "energy": self.energy_state(seen)}
        found = []
        for device in self.plan.devices:
            table = torch.from_numpy(device.in_slot(slot, self.plan.period)).to(self.problem.device)
            index = tuple(state[s.kind][:, s.owner] for s in device.scope)
            found.append(table[index].expand(len(seen.battery_joule)))
        return torch.stack(found, dim=1).long()

    def energy_state(self, seen: Observation) -> Tensor:
        """Energies in cells, weather × cells + cell; (batch, device)."""
        joule, cells = seen.battery_joule * (1 + TOLERANCE), []
        for number, device in enumerate(self.plan.devices):
            cuts = torch.tensor(device.reports.battery_cuts_joule, dtype=torch.float64, device=self.problem.device)
            cell = torch.searchsorted(cuts, joule[:, number].contiguous(), right=True)
            cells.append(seen.weather[:, number] * (len(cuts) + 1) + cell)
        return torch.stack(cells, dim=1)

    def visible(self, device: int) -> Sight:
        """The scope of its tables."""
        return Sight(seen.variable for seen in self.plan.devices[device].scope)


def tabulate(plan: Plan, memory_gib: float = DEFAULT_LIMIT_GIB, track: Track = untracked) -> PlanTables:
    """The plan's tables; raises ScenarioError for a plan whose devices do not look their actions up."""
    policy = plan.policy
    if not isinstance(policy, ActionPolicy):
        raise refused(plan.planner, _JOINT)
    if isinstance(policy, Remembers):
        raise refused(plan.planner, "remembers earlier slots")
    problem, asking = policy.problem, _Asking(policy, plan.planner)
    states = [float(entries(sizes)) for sizes in asking.sizes]
    largest = asking.slots * max(states) + 8.0 * sum(states) * len(states)
    check_fits("export", largest, memory_gib, "lower hops, energy.battery_levels or channel.levels")
    numbers = range(problem.num_devices)
    whole = [asking.answers(device) for device in track(numbers, f"export {plan.planner}", len(numbers))]
    kept = [asking.needed_cuts(device, whole) for device in numbers]
    powers, trained = problem.actions.power_watt.tolist(), problem.actions.trained.tolist()
    tables = PlanTables(
        planner=plan.planner,
        scenario=problem.scenario.name,
        scenario_sha256=problem.scenario.content_hash,
        slots=problem.slots,
        period=policy.period,
        num_weather=problem.harvest.law.num_weather,
        channel_levels=problem.channel.levels,
        actions=tuple(Action(power_watt=p, trained=t) for p, t in zip(powers, trained, strict=True)),
        capacity_joule=tuple(problem.battery.capacity_joule.tolist()),
        step_joule=tuple(problem.battery.step_joule.tolist()),
        devices=tuple(asking.packed(device, kept, whole[device]) for device in numbers),
    )
    return _checked(problem, policy, tables)


def refused(planner: str, actual: str) -> ScenarioError:
    """The sentence for plans that are no tables."""
    examples = "decentralized, prices with coordinate=false, battery_threshold or uncoordinated"
    expected = (
        f"a plan whose devices look their actions up, such as {examples}, or bids with talk=messages and --format c"
    )
    return ScenarioError("planner", expected, f"plan {planner!r} {actual}")


_JOINT = "decides for several devices together in every slot"


class _Asking:
    """A policy that is asked for the action of every device in every state that it sees."""

    def __init__(self, policy: ActionPolicy, planner: str) -> None:
        problem, numbers = policy.problem, range(policy.problem.num_devices)
        self.policy, self.planner, self.problem = policy, planner, problem
        self.slots = policy.period or problem.slots  # that differ
        self.weathers = problem.harvest.law.num_weather
        self.scopes = [self._scope(device) for device in numbers]
        self.cuts = [_cuts(problem, device) for device in numbers]  # batteries [J] at which the policy may change
        self.sizes = [[self._size(seen) for seen in scope] for scope in self.scopes]

    def _scope(self, device: int) -> list[Variable]:
        """What a device sees: sites, then energies, each in rising order."""
        seen = self.policy.visible(device)
        if seen is None:
            raise refused(self.planner, _JOINT)
        return sorted(seen, key=lambda variable: (variable.kind == "energy", variable.owner))

    def _size(self, seen: Variable) -> int:
        """Values of a variable."""
        if seen.kind == "site":
            return self.problem.channel.levels
        return self.weathers * (len(self.cuts[seen.owner]) + 1)

    def answers(self, device: int) -> Levels:
        """The device's action in every slot and state it sees; (slot, state...)."""
        count = entries(self.sizes[device])
        actions = np.empty((self.slots, count), dtype=np.int8)
        for start in range(0, count, _BATCH_STATES):
            stop = min(start + _BATCH_STATES, count)
            seen = self._observed(device, torch.arange(start, stop))
            for slot in range(self.slots):
                law = self.policy.checked_prob(slot, seen)[:, device]
                if not bool((law.amax(-1) == 1).all()):
                    raise refused(self.planner, "draws actions at random")
                actions[slot, start:stop] = law.argmax(-1).cpu().numpy()
        return actions.reshape(self.slots, *self.sizes[device])

    def _observed(self, device: int, states: Tensor) -> Observation:
        """States of a scope as observations with zeros elsewhere; a battery is in the middle of its cell."""
        problem, seen = self.problem, Observation.nothing(self.problem, len(states))
        states = states.to(problem.device)
        for variable, size in zip(reversed(self.scopes[device]), reversed(self.sizes[device]), strict=True):
            value, states = states % size, states // size
            if variable.kind == "site":
                seen.channel_level[:, variable.owner] = value
                continue
            ends = [0.0, *self.cuts[variable.owner], float(problem.battery.capacity_joule[variable.owner])]
            middle = seen.battery_joule.new_tensor([(low + high) / 2 for low, high in pairwise(ends)])
            seen.weather[:, variable.owner] = value // len(middle)
            seen.battery_joule[:, variable.owner] = middle[value % len(middle)]
        return seen

    def needed_cuts(self, device: int, whole: list[Levels]) -> list[int]:
        """Numbers of the cuts of a device's battery at which some table changes."""
        cells = len(self.cuts[device]) + 1
        changes = np.zeros(cells - 1, dtype=np.bool_)
        for scope, table in zip(self.scopes, whole, strict=True):
            if energy(device) in scope:
                axis = 1 + scope.index(energy(device))
                by_cell = np.moveaxis(table, axis, 0).reshape(self.weathers, cells, -1)
                changes |= (by_cell[:, 1:] != by_cell[:, :-1]).any((0, 2))
        return np.flatnonzero(changes).tolist()

    def packed(self, device: int, kept: list[list[int]], table: Levels) -> DeviceTables:
        """Tables with needed cells only, each different one once."""
        scope = self.scopes[device]
        for axis, variable in enumerate(scope, 1):
            if variable.kind == "energy":
                cells = len(self.cuts[variable.owner]) + 1
                first = np.array([0, *(cut + 1 for cut in kept[variable.owner])])  # a cell of each that stays
                table = table.take((np.arange(self.weathers)[:, None] * cells + first).reshape(-1), axis=axis)
        rows = [row.tobytes() for row in table.reshape(len(table), -1)]
        different = list(dict.fromkeys(rows))
        own_cuts = tuple(self.cuts[device][cut] for cut in kept[device])
        return DeviceTables(
            device=device,
            neighbours=self.problem.topology.neighbours[device],
            reports=Reports(sites=self.problem.sites_into(device), battery_cuts_joule=own_cuts),
            scope=tuple(
                Seen(kind=v.kind, owner=v.owner, size=size)  # type: ignore[arg-type]
                for v, size in zip(scope, table.shape[1:], strict=True)
            ),
            table_of_slot=tuple(map(different.index, rows)) if len(different) > 1 else (0,),
            tables=tuple(tuple(np.frombuffer(one, dtype=np.int8).tolist()) for one in different),
        )


def _cuts(problem: Problem, device: int) -> list[float]:
    step, capacity = float(problem.battery.step_joule[device]), float(problem.battery.capacity_joule[device])
    values = [step * level for level in range(1, problem.battery.levels)]
    values += [joule for joule in problem.actions.needed_joule[device].tolist() if 0 < joule <= capacity]
    cuts: list[float] = []
    for value in sorted(values):
        if not cuts or value * PAID > cuts[-1]:  # else the same up to rounding
            cuts.append(value)
    return cuts


def _checked(problem: Problem, policy: ActionPolicy, plan: PlanTables) -> PlanTables:
    """Refuse tables that are not the policy: it may look at more of a battery than its cell."""
    rng, copy = np.random.default_rng(0), Tabulated(problem, plan)
    for slot in rng.integers(problem.slots, size=_CHECKED_SLOTS).tolist():
        seen = random_states(problem, rng, _CHECKED_STATES)
        if not torch.equal(policy.checked_action(slot, seen), copy.action(slot, seen)):
            raise refused(plan.planner, "looks at more than tables hold")
    return plan


def random_states(problem: Problem, rng: np.random.Generator, count: int) -> Observation:
    """So many states of the network, each as likely as any other."""
    place, shape = problem.device, (count, problem.num_devices)
    level = rng.integers(problem.channel.levels, size=(count, problem.channel.num_sites))
    return Observation(
        torch.from_numpy(level).to(place),
        torch.from_numpy(rng.random(shape)).to(place) * problem.battery.capacity_joule,
        torch.from_numpy(rng.integers(problem.harvest.law.num_weather, size=shape)).to(place),
        torch.from_numpy(rng.random(shape)).to(place),
    )


def write_tables(plan: PlanTables, folder: Path) -> list[Path]:
    """Write ``plan.json`` and its schema; returns the files."""
    target, schema = folder / "plan.json", folder / "plan.schema.json"
    with alone_in(folder):
        write_json(schema, PlanTables.model_json_schema())
        write_text(target, plan.model_dump_json() + "\n")
    return [target, schema]


def read_tables(path: str | Path) -> PlanTables:
    """Read ``plan.json``; raises ScenarioError for anything else."""
    try:
        return PlanTables.model_validate_json(Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"
        raise ScenarioError(str(path), f"expected a plan of format heliomesh-plan 1, {wrong}") from None
