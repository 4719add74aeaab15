"""Exact optimum: heliomesh against QuantEcon's backward induction, in one run.

The largest ring whose joint state-action-state table QuantEcon can hold in 8 GB has m = 4 devices with two channel,
four battery and three power levels. Both solvers get the same numbers; QuantEcon's time includes building its sparse
transition matrix, as ours includes building our tables. Prints the ratio last.
"""

import argparse
import resource
import time
import warnings
from typing import Any

import numpy as np
import quantecon
import scipy.sparse

import heliomesh as hm
from heliomesh.grid.exact import backward_induction, expected_first, part_terms
from heliomesh.model.cost import part_factors
from heliomesh.model.factor import action, energy, site, total
from heliomesh.model.problem import Part


def quantecon_optimum(problem: hm.Problem) -> float:
    """Mean cost per slot by QuantEcon on the whole joint problem."""
    devices, sites = range(problem.num_devices), range(problem.channel.num_sites)
    levels, energies, actions = problem.channel.levels, problem.num_energy, len(problem.actions)
    scope = (*map(site, sites), *map(action, devices))
    factors = part_factors(problem, tuple(devices), tuple(devices))
    cost = total(factors).aligned(scope).expand(problem.sizes(scope)).numpy()
    channel = scipy.sparse.csr_matrix(np.ones((1, 1)))
    for _ in sites:
        channel = scipy.sparse.kron(channel, problem.channel.kernel.numpy(), format="csr")
    fill = [scipy.sparse.csr_matrix(problem.kernel(energy(j), 0).numpy()) for j in devices]
    states_h = np.array(np.unravel_index(np.arange(levels ** len(sites)), (levels,) * len(sites))).T
    states_b = np.array(np.unravel_index(np.arange(energies ** len(devices)), (energies,) * len(devices))).T
    rows, rewards, state_index, action_index = [], [], [], []
    for joint in range(actions ** len(devices)):
        choice = np.unravel_index(joint, (actions,) * len(devices))
        spent = [int(problem.actions.steps_up[j, a]) for j, a in enumerate(choice)]
        allowed = np.flatnonzero((states_b >= spent).all(axis=1))
        after = scipy.sparse.csr_matrix(np.ones((len(allowed), 1)))
        for j in devices:  # row-wise Kronecker product of the devices' next-level laws
            after = _rowwise(after, fill[j][states_b[allowed, j] - spent[j]])
        rows.append(scipy.sparse.kron(channel, after, format="csr"))
        rewards.append(np.repeat(-cost[(*states_h.T, *choice)], len(allowed)))
        state_index.append((np.arange(len(states_h))[:, None] * len(states_b) + allowed).ravel())
        action_index.append(np.full(len(states_h) * len(allowed), joint))
    states, chosen = np.concatenate(state_index), np.concatenate(action_index)
    order = np.lexsort((chosen, states))
    kernel = scipy.sparse.vstack(rows, format="csr")[order]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that infinite horizons need a discount
        process = quantecon.markov.DiscreteDP(
            np.concatenate(rewards)[order], kernel, 1.0, states[order], chosen[order]
        )
        values, _ = quantecon.markov.backward_induction(
            process, problem.slots, np.zeros(len(states_h) * len(states_b))
        )
    initial = np.ones(1)
    for variable in (*map(site, sites), *map(energy, devices)):
        initial = np.multiply.outer(initial, problem.initial_law(variable).numpy()).ravel()
    return float(-(initial @ values[0]) / problem.slots)


def _rowwise(left: Any, right: Any) -> Any:
    """Row-wise Kronecker product of two sparse matrices with equally many rows."""
    selectors = [scipy.sparse.csr_matrix(np.ones((1, m.shape[1]))) for m in (left, right)]
    return scipy.sparse.csr_matrix(
        scipy.sparse.kron(left, selectors[1], format="csr").multiply(
            scipy.sparse.kron(selectors[0], right, format="csr")
        )
    )


def unsplit_optimum(problem: hm.Problem) -> float:
    """Our solver on the joint problem without its split into two halves."""
    everyone = tuple(range(problem.num_devices))
    whole = Part(everyone, tuple(range(problem.channel.num_sites)), everyone)
    *_, first = backward_induction(problem, whole, part_terms(whole))
    return expected_first(problem, whole.states, first.value) / problem.slots


def main() -> None:
    """Print sizes, seconds and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--large", action="store_true", help="also the 10-ring with 4 × 5 levels, T = 50")
    options = parser.parse_args()
    scenario = hm.Scenario.load("tiny").override({"network.devices": options.devices})
    hm.plan(hm.build(scenario.override({"slots": 2})), "centralized", bound=False)  # warm up
    seconds, optimum = {}, {}
    for name, solve in {
        "heliomesh, whole": unsplit_optimum,
        "heliomesh": lambda problem: hm.plan(problem, "centralized", bound=False).expected_cost,
        "quantecon": quantecon_optimum,
    }.items():
        problem = hm.build(scenario)
        started = time.perf_counter()
        optimum[name] = solve(problem)
        seconds[name] = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{name:18s} {seconds[name]:9.3f} s   optimum {optimum[name]:.9f}   peak so far {peak:.2f} GiB")
    assert max(optimum.values()) - min(optimum.values()) < 1e-9
    if options.large:
        changes = {
            "network.devices": 10,
            "slots": 50,
            "channel.source": "rayleigh",
            "channel.levels": 4,
            "energy.battery_levels": 5,
            "energy.capacity_joule": 4.0,
        }
        problem = hm.build(scenario.override(changes))
        started = time.perf_counter()
        cost = hm.plan(problem, "centralized", bound=False).expected_cost
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"10-ring, 4 channel, 5 battery, 3 power levels, T = 50: {time.perf_counter() - started:.1f} s, "
            f"optimum {cost:.6f}, peak so far {peak:.2f} GiB"
        )
    print(f"without the split: {seconds['quantecon'] / seconds['heliomesh, whole']:.0f} times faster than QuantEcon")
    print(f"{seconds['quantecon'] / seconds['heliomesh']:.0f} times faster than QuantEcon (m = {options.devices})")


if __name__ == "__main__":
    main()
