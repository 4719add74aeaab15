"""Exact expected cost of a policy on the planning grid, by backward values over all joint states.

Where every device's action depends only on its own independent part of the network, parts are evaluated one by one;
otherwise the whole network is one part.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import torch
from torch import Tensor

from heliomesh.common.arguments import checked
from heliomesh.common.memory_limit import DEFAULT_LIMIT_GIB, check_fits, entries
from heliomesh.common.mistakes import ArgumentError
from heliomesh.grid.exact import expected_first
from heliomesh.grid.shared_sky import expected_next
from heliomesh.model.cost import part_factors
from heliomesh.model.endless import check_size
from heliomesh.model.factor import Factor, Variable, action, energy, site
from heliomesh.model.overhead import is_paid
from heliomesh.model.policy import ActionPolicy, Observation, Plan, as_plan, refuse_memory
from heliomesh.model.problem import Part, Problem
from heliomesh.scenario.errors import ScenarioError, refuse

State = dict[Variable, Tensor]  # indices (state,) of variables in every joint state


@checked
def exact_cost(problem: Problem, plan: Plan | ActionPolicy, memory_gib: float = DEFAULT_LIMIT_GIB) -> float:
    """Expected cost per slot of the grid process under a plan.

    Parameters
    ----------
    problem
        The problem with its battery grid.
    plan
        A plan, or a policy that picks from the action set and remembers nothing.
    memory_gib
        Largest table that may be allocated [GiB].

    Returns
    -------
    float
        Updates lost per slot, from 0 to the number of devices.

    Raises
    ------
    TooLargeError
        Where the state space is beyond the memory limit.
    ScenarioError
        Where harvests are simulated by another law than planners know: a random replay, or clouds unknown to plans;
        and where batteries pay for the messages of a plan that talks.
    """
    plan = as_plan(plan)
    policy = plan.policy
    if not isinstance(policy, ActionPolicy):
        raise ArgumentError("plan", "one that chooses among the scenario's actions", f"value {type(policy).__name__}")
    check_size(problem, policy)
    if is_paid(problem) and (policy.talk is not None or plan.overhead.online_bytes_per_slot > 0):
        expected = "'free' for exact evaluation of a plan that talks, since its states count no messages"
        raise ScenarioError("energy.control", expected, "value 'paid'")
    refuse_memory(policy, plan.planner, "exact evaluation")
    cloudy = problem.harvest.law.clouds is not None
    other = "clouds unknown to plans" if cloudy else "a replay from a random start"
    expected = "the law that plans know, as exact evaluation needs,"
    refuse(not problem.law_is_simulated, "harvest", expected, other)
    parts = (_whole(problem),) if problem.battery.drains else _separable_parts(problem, policy)
    largest = max(entries(problem.sizes(part.states)) for part in parts)
    # the law of actions twice, as the policy gives it and as the part takes it; the state as indices and as seen, the
    # actions and the energies they leave
    per_state = 8.0 * (8 * problem.num_devices + 2 * len(problem.actions) * problem.num_devices + 8)
    remedy = "lower the levels or the devices, or use hm.simulate"
    check_fits("exact evaluation", largest * per_state, memory_gib, remedy)
    return sum(_part_cost(problem, policy, part) for part in parts) / problem.slots


def _separable_parts(problem: Problem, policy: ActionPolicy) -> tuple[Part, ...]:
    for part in problem.parts:
        for device in part.devices:
            seen = policy.visible(device)
            if seen is None or not set(seen) <= set(part.states):
                return (_whole(problem),)
    return problem.parts


def _whole(problem: Problem) -> Part:
    """The network as one part; where batteries drain, receivers' own batteries decide what they hear."""
    sites = tuple(range(problem.channel.num_sites))
    receivers = tuple(i for i in range(problem.num_devices) if problem.topology.neighbours[i])
    return Part(tuple(range(problem.num_devices)), sites, receivers)


def _part_cost(problem: Problem, policy: ActionPolicy, part: Part) -> float:
    """Total expected cost of one part over the horizon."""
    seen, state = _all_states(problem, part)
    shape = problem.sizes(part.states)
    factors = part_factors(problem, part.devices, part.receivers)
    value = torch.zeros(shape, dtype=problem.dtype, device=problem.device)
    for slot in range(problem.slots - 1, -1, -1):
        future = Factor(part.states, expected_next(problem, part.states, value, slot))
        if slot == problem.slots - 1 or not policy.stationary:
            prob = policy.checked_prob(slot, seen)[:, list(part.devices)]  # (state, device, action)
            for device, chosen in zip(part.devices, prob.unbind(1), strict=True):
                if bool((chosen * ~problem.feasible[device][state[energy(device)]]).any()):
                    expected, actual = "actions that batteries pay for", f": overdrew the battery of device {device}"
                    raise ScenarioError(type(policy).__name__, expected, actual)
        value = _expected(problem, part, factors, future, state, prob).reshape(shape)
    return expected_first(problem, part.states, value)


def _expected(
    problem: Problem, part: Part, factors: list[Factor], future: Factor, state: State, prob: Tensor
) -> Tensor:
    """Σ over joint actions of probability × (cost + future value) in every state; (state,)."""
    expected = torch.zeros(len(prob), dtype=problem.dtype, device=problem.device)
    if bool((prob.max(-1).values == 1).all()):  # deterministic: one joint action per state
        choices: Iterable[tuple[Tensor, ...]] = [tuple(prob.argmax(-1).unbind(1))]
    else:
        numbers = product(range(len(problem.actions)), repeat=len(part.devices))
        choices = (tuple(torch.full_like(expected, a, dtype=torch.long) for a in joint) for joint in numbers)
    for chosen in choices:
        weight = torch.ones_like(expected)
        for position, index in enumerate(chosen):
            weight = weight * prob[:, position].gather(1, index.unsqueeze(1)).squeeze(1)
        if not bool(weight.any()):
            continue
        assignment = dict(state) | {action(j): a for j, a in zip(part.devices, chosen, strict=True)}
        value = _after_spending(problem, part, future, state, chosen)
        for factor in factors:
            value = value + factor.at(assignment)
        if problem.battery.drains:
            value = value + _missed_in_darkness(problem, part, factors, assignment)
        expected = expected + weight * value
    return expected


def _after_spending(problem: Problem, part: Part, future: Factor, state: State, chosen: Sequence[Tensor]) -> Tensor:
    """The future at what joint actions leave, interpolated where spending lies between grid points; (state,)."""
    points = []
    for device, index in zip(part.devices, chosen, strict=True):
        left = problem.energy_left[device, state[energy(device)], index]
        share = problem.actions.overshoot[device][index].to(problem.dtype)
        above = (left + 1).clamp(max=problem.num_energy - 1)  # beyond the topmost energy it has no share
        points.append([(left, 1 - share), (above, share)] if bool(share.any()) else [(left, 1 - share)])
    value = torch.zeros((), dtype=problem.dtype, device=problem.device)
    for corner in product(*points):
        share = torch.stack([share for _, share in corner]).prod(0)
        left_at = {energy(j): at for j, (at, _) in zip(part.devices, corner, strict=True)}
        value = value + share * future.at(dict(state) | left_at)
    return value


def _missed_in_darkness(problem: Problem, part: Part, factors: list[Factor], assignment: State) -> Tensor:
    """What dark receivers miss of what would have arrived, Σ_j a_ij − f_i; factors begin with receivers'."""
    missed = torch.zeros((), dtype=problem.dtype, device=problem.device)
    for receiver, factor in zip(part.receivers, factors, strict=False):
        dark = problem.dark[receiver][assignment[energy(receiver)]]
        most = factor.table.max()
        missed = missed + dark * (most - factor.at(assignment))
    return missed


def _all_states(problem: Problem, part: Part) -> tuple[Observation, State]:
    """Every joint grid state of a part as one batch, as an observation and as index tensors."""
    shape = problem.sizes(part.states)
    axes = (torch.arange(size, device=problem.device) for size in shape)
    grid = torch.meshgrid(*axes, indexing="ij")  # torch.unravel_index would import SymPy, which takes a second
    state: State = {one: axis.flatten() for one, axis in zip(part.states, grid, strict=True)}
    batch, devices = entries(shape), problem.num_devices
    channel_level = torch.zeros(batch, problem.channel.num_sites, dtype=torch.long, device=problem.device)
    for index in part.sites:
        channel_level[:, index] = state[site(index)]
    energy_state = torch.zeros(batch, devices, dtype=torch.long, device=problem.device)
    for device in part.devices:
        energy_state[:, device] = state[energy(device)]
    seen = Observation(
        channel_level=channel_level,
        battery_joule=(energy_state % problem.battery.levels) * problem.battery.step_joule,
        weather=energy_state // problem.battery.levels,
        uniform=torch.zeros(batch, devices, dtype=torch.float64, device=problem.device),
    )
    return seen, state
