"""Backward induction over a joint state, with the minimum over joint actions taken one device at a time.

Only the post-decision table W, the value V and the best action per state exist; Q(s, p) is never stored.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import torch
from torch import Tensor

from heliomesh.common.memory_limit import TooLargeError, entries
from heliomesh.grid.after_spending import narrowed
from heliomesh.grid.cycle_fixed_point import VALUE_TOLERANCE
from heliomesh.grid.shared_sky import expected_next, shared_first
from heliomesh.model.cost import part_factors
from heliomesh.model.factor import Factor, Variable, action, site, total
from heliomesh.model.problem import Part, Problem
from heliomesh.slot.ties import tie

Devices = frozenset[int]
MOST_AXES = 64  # of a torch tensor; a device has two for its energy
_BLOCK_ENTRIES = 1 << 18  # entries of a block's largest table: it stays in the cache


def code_type(problem: Problem, part: Part) -> torch.dtype:
    """Smallest type that holds every joint action of a part."""
    joint = entries([len(problem.actions)] * len(part.devices))
    sizes = ((256, torch.uint8), (2**15, torch.int16), (2**31, torch.int32))
    return next((dtype for most, dtype in sizes if joint <= most), torch.int64)


def decode(code: Tensor, devices: int, actions: int) -> Tensor:
    """Actions of each device from joint codes in base ``actions``, first device most significant; (..., device)."""
    weight = actions ** torch.arange(devices - 1, -1, -1, device=code.device)
    return code.unsqueeze(-1) // weight % actions


@dataclass(frozen=True)
class Step:
    """One slot of backward induction."""

    slot: int
    future: Tensor  # E[value of the next slot | state after spending]; axes: sites, energies
    value: Tensor  # least expected cost from this slot on; same axes
    code: Tensor  # the joint action that attains it, in base |P| with the first device most significant; or empty


Terms = Callable[[Problem], list[Factor]]  # cost terms of a slot, from the problem during it


def backward_induction(problem: Problem, part: Part, terms: Terms, with_code: bool = True) -> Iterator[Step]:
    """Exact optimal values of a set of devices and sites under a sum of cost terms, from the last slot to the first.

        V_t(s) = min over feasible p of  c_t(h, p) + W_t(h, b − e(p)),   W_t = E[V_{t+1} | state after spending]

    Without codes the minimum alone is computed, in about half the time. Around a cycle it goes on for ever.
    """
    _check_axes(problem, part)
    shape = problem.sizes(part.states)
    channel_states = entries(shape[: len(part.sites)])
    value = torch.zeros(shape, dtype=problem.dtype, device=problem.device)
    stages = elimination_stages(problem, part, terms(problem))
    widest = max(entries(stage.cost.shape[1:-1]) for stage in stages)
    rows = _rows_at_once(value.numel() // channel_states * widest)
    backwards = range(problem.slots - 1, -1, -1)
    for number, slot in enumerate(cycle(backwards) if problem.endless else backwards):
        if number:  # nothing follows the last slot
            value = expected_next(problem, part.states, value, slot)
        future = value.reshape(channel_states, -1)
        value = torch.empty_like(future)
        equal = float(tie(future.abs().amax())) if with_code else None
        code = torch.zeros(future.shape if with_code else (0,), dtype=code_type(problem, part), device=problem.device)
        for start in range(0, channel_states, rows):
            block = slice(start, start + rows)
            value[block], found = minimise(problem, stages, future, block, equal)
            if found is not None:
                code[block] = found
        value = value.reshape(shape)
        yield Step(slot, future.reshape(shape), value, code.reshape(shape) if with_code else code)


def small_optimum(problem: Problem) -> float | None:
    """Least expected total cost where batteries never leave the grid and it takes about a second; else None."""
    states = sum(entries(problem.sizes(part.states)) for part in problem.parts)  # beyond what a float holds, perhaps
    if not problem.grid_is_exact or states * problem.slots > _SMALL_WORK:
        return None
    total = 0.0
    for part in problem.parts:
        *_, first = backward_induction(problem, part, part_terms(part), with_code=False)
        total += expected_first(problem, part.states, first.value)
    return total


_SMALL_WORK = 1_000_000  # states × slots
_CYCLE_WORK = 4_000_000  # the same of recursions around a cycle
_FEWEST_CYCLES = 40


def small_average(problem: Problem) -> float | None:
    """Bound on the mean cost of a cycle where batteries never leave the grid and it takes seconds; else None.

    It is the optimum once values have settled, and below it before.
    """
    cycles = _CYCLE_WORK // (max(entries(problem.sizes(part.states)) for part in problem.parts) * problem.slots)
    if not problem.grid_is_exact or cycles < _FEWEST_CYCLES:
        return None
    return sum(_least_rise(problem, part, cycles) for part in problem.parts)


def _least_rise(problem: Problem, part: Part, cycles: int) -> float:
    """What a cycle adds at least to the optimal values of a part."""
    best, before = -torch.inf, torch.empty(0)
    for step in islice(backward_induction(problem, part, part_terms(part), with_code=False), cycles * problem.slots):
        if step.slot == 0 and before.numel():
            rise = step.value - before
            best = max(best, float(rise.min()))
            if float(rise.max()) - best <= VALUE_TOLERANCE:
                break
        if step.slot == 0:
            before = step.value
    return best


def part_terms(part: Part) -> Terms:
    """All cost terms of an independent part of the network, by the problem during a slot."""
    return lambda problem: part_factors(problem, part.devices, part.receivers)


def _check_axes(problem: Problem, part: Part) -> None:
    """Refuse tables of more axes than torch has, and joint actions that no whole number holds."""
    devices, actions = len(part.devices), len(problem.actions)
    axes = max(len(part.states), 2 + 2 * devices)
    if axes > MOST_AXES or entries([actions] * devices) > 2**63:
        raise TooLargeError(
            f"exact tables: expected at most {MOST_AXES} axes and 2^63 joint actions, actual number of axes {axes} "
            f"and of joint actions {actions}^{devices}; use another planner"
        )


def expected_first(problem: Problem, states: tuple[Variable, ...], value: Tensor) -> float:
    """Mean of a table over the law of the first state."""
    if problem.harvest.law.sky != "independent":
        return float(shared_first(problem, states, value))
    for variable in states:
        value = torch.tensordot(problem.initial_law(variable), value, dims=([0], [0]))
    return float(value)


@dataclass(frozen=True)
class Stage:
    """Elimination of one device's action.

    ``cost`` (channel state, actions of ``frontier``..., own action) sums the cost terms that are complete once the
    frontier's actions are given.
    """

    position: int  # of the device within its part
    device: int
    weight: int  # of its action in the joint code
    steps_up: tuple[int, ...]  # battery steps that each action spends, rounded up
    needed: tuple[int, ...]  # battery steps from which on it is affordable
    overshoot: tuple[float, ...]  # what that is too much
    frontier: tuple[int, ...]  # devices whose actions stay open after this stage
    cost: Tensor


def elimination_stages(problem: Problem, part: Part, factors: list[Factor]) -> list[Stage]:
    """Eliminate the action with the fewest open neighbours first, as in nonserial dynamic programming.

    A joint minimum over |P|^n actions becomes n small ones: the future couples all batteries, but it is read at the
    state after spending, one axis per device, so spending can be settled device by device.
    """
    pending, stages = factors, []
    sites = tuple(map(site, part.sites))
    touched = [frozenset(v.owner for v in factor.scope if v.kind == "action") for factor in factors]
    for device, frontier in elimination_order(part.devices, touched):
        complete = [factor for factor in pending if action(device) in factor.scope]
        pending = [factor for factor in pending if action(device) not in factor.scope]
        scope = (*sites, *map(action, sorted(frontier)), action(device))
        zero = Factor((), torch.zeros((), dtype=problem.dtype, device=problem.device))
        cost = total([*complete, zero]).aligned(scope).expand(problem.sizes(scope))
        position = part.devices.index(device)
        stages.append(
            Stage(
                position=position,
                device=device,
                weight=len(problem.actions) ** (len(part.devices) - 1 - position),
                steps_up=tuple(problem.actions.steps_up[device].tolist()),
                needed=tuple(problem.actions.needed_steps_up[device].tolist()),
                overshoot=tuple(problem.actions.overshoot[device].tolist()),
                frontier=tuple(sorted(frontier)),
                cost=cost.reshape(-1, *cost.shape[len(sites) :]),
            )
        )
    return stages


def elimination_order(devices: Sequence[int], touched: Sequence[Devices]) -> list[tuple[int, Devices]]:
    """Devices in the order of their elimination, each with those whose actions stay open then.

    ``touched`` has for each cost term the devices whose actions it depends on.
    """
    pending, remaining, frontier, order = list(touched), list(devices), frozenset[int](), []
    while remaining:
        opened = {j: frontier.union(*(term for term in pending if j in term)) - {j} for j in remaining}
        device = min(remaining, key=lambda j: len(opened[j]))
        frontier = opened[device]
        remaining.remove(device)
        pending = [term for term in pending if device not in term]
        order.append((device, frontier))
    return order


def _rows_at_once(row_entries: int) -> int:
    """Channel states of a block, given the entries of the widest stage for one of them."""
    return max(1, _BLOCK_ENTRIES // row_entries)


def induction_bytes(problem: Problem, part: Part, with_code: bool = True) -> float:
    """Peak memory of `backward_induction`, found without any table; of what it yields only the last step is counted.

    While the next expectation is taken in two tables, the last step holds its future, its value and its codes. Costs
    of all stages are there throughout, and a stage has its block twice, best and candidate.
    """
    if 2 * len(part.devices) >= MOST_AXES:
        return 0.0  # refused for its axes
    states, actions = entries(problem.sizes(part.states)), len(problem.actions)
    channel_states = entries(problem.sizes(part.states[: len(part.sites)]))
    touched = [frozenset(problem.heard_by(receiver)) for receiver in part.receivers]
    open_actions = [len(frontier) for _, frontier in elimination_order(part.devices, touched)]
    costs = channel_states * sum(entries([actions] * (1 + count)) for count in open_actions)
    row = states // channel_states * entries([actions] * max(open_actions))
    block = row * min(_rows_at_once(row), channel_states)
    width = torch.empty((), dtype=problem.dtype).element_size()
    coded = torch.int32.itemsize * (2.0 * states + 2.0 * block) + width * block if with_code else 0.0
    return width * (5.0 * states + 2.0 * costs + 2.0 * block) + coded


def minimise(
    problem: Problem, stages: list[Stage], future: Tensor, block: slice, equal: float | None
) -> tuple[Tensor, Tensor | None]:
    """Least cost and its joint action code for a block of channel states, from the post-decision table ``future``.

    Tables have axes (channel state, frontier actions..., [weather, battery] per device). An action that spends q
    reads the battery axis at b − q; it is open to levels that pay for it and the slot's drain. Codes of devices
    eliminated before are those of the level at or below b − q. Of actions whose costs differ by ``equal`` at most the
    first is taken; None asks for no codes.
    """
    levels, count = problem.battery.levels, len(problem.actions)
    axes = (problem.harvest.law.num_weather, levels) * len(stages)
    value = future[block].reshape(-1, *axes)
    dtype = torch.int32 if count ** len(stages) <= 2**31 else torch.int64  # joint actions, in which codes count
    code = torch.zeros((1,) * value.ndim, dtype=dtype, device=future.device) if equal is not None else None
    frontier: tuple[int, ...] = ()
    for stage in stages:
        cost = stage.cost[block]
        cost = cost.reshape(*cost.shape, *(1,) * len(axes))
        own = 1 + len(stage.frontier)  # axis of the own action in cost
        shape = (len(value), *(count,) * len(stage.frontier), *axes)
        best = torch.empty(shape, dtype=value.dtype, device=value.device)
        best_code = None if code is None else torch.empty(shape, dtype=code.dtype, device=value.device)
        battery = own + 2 * stage.position + 1  # axis of the own battery once the own action axis is gone
        for choice in range(count):
            needed = stage.needed[choice]
            if needed >= levels:
                continue
            first, length = needed - stage.steps_up[choice], levels - needed
            future_of = _aligned(value, frontier, stage, choice)
            reached = narrowed(future_of, battery, first, length, stage.overshoot[choice])
            candidate = reached + cost.select(own, choice)
            known = best.narrow(battery, needed, length)
            if code is not None and best_code is not None and equal is not None:
                inherited = _aligned(code, frontier, stage, choice)
                if inherited.shape[battery] > 1:
                    inherited = inherited.narrow(battery, first, length)
                known_code = best_code.narrow(battery, needed, length)
                own_code = inherited + choice * stage.weight
                # idle comes first and spends nothing, so it sets everything
                kept = torch.where(candidate < known - equal, own_code, known_code) if choice else own_code
                known_code.copy_(kept.expand_as(known_code))
            torch.minimum(candidate, known if choice else candidate, out=known)
        value, code, frontier = best, best_code, stage.frontier
    return value.reshape(len(value), -1), None if code is None else code.reshape(len(value), -1)


def _aligned(table: Tensor, frontier: tuple[int, ...], stage: Stage, choice: int) -> Tensor:
    """Fix the eliminated device's action and give the table the axes of the stage's frontier."""
    if stage.device in frontier:
        axis = 1 + frontier.index(stage.device)
        table = table.select(axis, choice) if table.shape[axis] > 1 else table.squeeze(axis)
    kept = [device for device in frontier if device != stage.device]
    for position, device in enumerate(stage.frontier):
        if device not in kept:
            table = table.unsqueeze(1 + position)
    return table
