"""The one-slot cost as a sum of local terms.

x_j = Σ_{i∈N_j} a_ij q_ij + idle_penalty · a_jj · (1 − β_j), with q_ij = 1 where j does not send: the share of device
j's update weight that is lost. The network's cost c = Σ_j x_j is a sum of the weights f_i = Σ_{j∈N_i} a_ij q_ij that
receivers miss plus one idle term per device.
"""

import torch
from torch import Tensor

from heliomesh.model.factor import Factor, action, site, total
from heliomesh.model.policy import Weights
from heliomesh.model.problem import Problem


def edge_errors(problem: Problem, receiver: int) -> dict[int, Factor]:
    """Packet error rate q_ij into receiver i from each neighbour j, over its sites and the actions that it hears."""
    topology, link = problem.topology, problem.link
    scope = (*map(site, problem.sites_into(receiver)), *map(action, problem.heard_by(receiver)))
    received = {}
    for sender in topology.neighbours[receiver]:
        edge = topology.edge(receiver, sender)
        gain = link.path_gain[edge] * problem.channel.gain
        watt = torch.outer(gain, problem.actions.power_watt)
        variables = (site(int(problem.channel.site_of_edge[edge])), action(sender))
        received[sender] = Factor(variables, watt.to(problem.dtype)).aligned(scope)
    power_sum = sum(received.values(), torch.zeros((), dtype=problem.dtype, device=problem.device))
    errors = {}
    for sender, watt in received.items():
        # subtracting one's own power leaves rounding dust where nobody else sends
        disturbance = (power_sum - watt).clamp_min(0) + link.noise_watt[receiver].to(problem.dtype)
        error = link.packet_error(watt, disturbance)
        if link.half_duplex:
            sends = Factor((action(receiver),), problem.actions.power_watt > 0).aligned(scope)
            error = torch.where(sends, torch.ones((), dtype=error.dtype, device=error.device), error)
        errors[sender] = Factor(scope, error)
    return errors


def receiver_factor(problem: Problem, receiver: int) -> Factor:
    """f_i = Σ_{j∈N_i} a_ij q_ij: the weight that receiver i misses, and its part of the cost."""
    topology, errors = problem.topology, edge_errors(problem, receiver)
    weight = {sender: float(topology.edge_weight[topology.edge(receiver, sender)]) for sender in errors}
    return total([error.scaled(weight[sender]) for sender, error in errors.items()])


def idle_factor(problem: Problem, device: int) -> Factor:
    """idle_penalty · a_jj where device j does not train."""
    return Factor((action(device),), problem.idle_cost[device])


def part_factors(problem: Problem, devices: tuple[int, ...], receivers: tuple[int, ...]) -> list[Factor]:
    """All cost terms of an independent part of the network; their sum is its one-slot cost."""
    return [receiver_factor(problem, i) for i in receivers] + [idle_factor(problem, j) for j in devices]


def update_loss(problem: Problem, error: Tensor, trained: Tensor, mixing: Weights | None = None) -> Tensor:
    """x_j, the cost of a slot, or of several, booked on senders and on devices that do not train.

    error (..., edge) and trained (..., device) → (..., device); the mixing weights are the network's own where none
    are given.
    """
    topology = problem.topology
    arrays = (topology.edge_sender, topology.edge_weight, topology.self_weight)
    sender, edge, own = (torch.from_numpy(array).to(error.device) for array in arrays)
    mixing = mixing or Weights(edge, own)
    lost = torch.zeros(trained.shape, dtype=error.dtype, device=error.device)
    lost.index_add_(-1, sender, mixing.edge * error)
    return lost + problem.scenario.cost.idle_penalty * mixing.own * (~trained).to(error.dtype)
