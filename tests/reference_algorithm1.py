"""The paper's Algorithm 1, followed line by line on dense tables: an oracle for faster planners.

Every table of device i lists all states and all actions of its k-hop neighbourhood: axes (h, b) of each
member in rising order, then the action of each member. Policies end in one action axis, their owner's. A
``View`` names these axes, so that a line of code reads as its equation: ``view.h[l]`` is the channel level of
device l where l is a member, and the default level where it is not.

Supported: one channel level per receiver, no weather, full or half duplex, any number of hops and rounds.
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt

from heliomesh.model.factor import energy
from heliomesh.model.problem import Problem

Table = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64] | int
Bellman = Literal["closed-loop", "open-loop"]


@dataclass(frozen=True)
class Model:
    """The problem as plain numbers."""

    slots: int
    neighbours: list[list[int]]
    mixing: Table  # (device, device)
    path_gain: dict[tuple[int, int], float]  # by (receiver, sender)
    channel_gain: Table  # (channel,)
    channel_kernel: Table  # [channel now, channel next]
    harvest_kernel: list[list[Table]]  # by slot and device: [level left after spending, level next]
    noise: Table  # (device,) W
    waterfall: float
    half_duplex: bool
    idle_penalty: float
    power: Table  # (action,) W
    trained: npt.NDArray[np.bool_]  # (action,)
    steps_up: npt.NDArray[np.int64]  # (device, action)
    default_channel: int
    default_level: int
    default_action: int

    @property
    def num_devices(self) -> int:
        """Number of devices m."""
        return len(self.neighbours)

    @property
    def num_channel(self) -> int:
        """Number of channel levels."""
        return len(self.channel_gain)

    @property
    def num_level(self) -> int:
        """Number of battery levels."""
        return len(self.harvest_kernel[0][0])

    @property
    def num_action(self) -> int:
        """Number of actions."""
        return len(self.power)


@dataclass(frozen=True)
class View:
    """The network as a device sees it: one index per device, its axis or, out of sight, its default."""

    members: list[int]
    shape: tuple[int, ...]
    h: list[Index]  # by device: channel level
    b: list[Index]  # by device: battery level
    a: list[Index]  # by device: action

    def action_axis(self, member: int) -> int:
        """Axis of a member's action."""
        return 2 * len(self.members) + self.members.index(member)

    def states(self, members: list[int]) -> list[Index]:
        """Indices [s]_members: the extension operator on states."""
        return [index for member in members for index in (self.h[member], self.b[member])]

    def actions(self, members: list[int]) -> list[Index]:
        """Indices [p]_members: the extension operator on actions."""
        return [self.a[member] for member in members]


def reference_algorithm1(
    problem: Problem,
    hops: int,
    rounds: int,
    gamma: float,
    default_action: int = 0,
    bellman: Bellman = "closed-loop",
    default_battery: str = "full",
    default_gain: str = "median",
) -> tuple[list[list[Table]], list[list[int]]]:
    """Policies by slot and device, and the sorted k-hop neighbourhood of every device.

    A policy has axes (h, b) of each member of the neighbourhood, then the device's own action. Costs are the
    normalised x_i, summed over the slots that remain; ``gamma`` multiplies them as they are.
    """
    model = read_model(problem, default_action, default_battery, default_gain)
    devices = range(model.num_devices)
    views = [make_view(model, i, hops) for i in devices]
    policies: list[list[Table]] = [[] for _ in range(model.slots)]
    Q: list[Table] = []
    for slot in reversed(range(model.slots)):
        cost = [local_cost(model, views[i], i) for i in devices]
        if slot == model.slots - 1:
            Q = cost
        else:
            follow = {"closed-loop": closed_loop, "open-loop": open_loop}[bellman]
            Q = [cost[i] + follow(model, views[i], Q[i], slot) for i in devices]

        Q_round = Q
        pi = [uniform_policy(model, views[i], i) for i in devices]
        for _ in range(rounds):
            Q_round = [averaged(views, Q_round, i) for i in devices]
            pi = [improved(model, views, Q_round[i], pi, i, gamma) for i in devices]
        policies[slot] = pi
    return policies, [view.members for view in views]


def read_model(problem: Problem, default_action: int, default_battery: str, default_gain: str) -> Model:
    """Raw numbers of a problem; refuses what the tables here cannot express."""
    topology, link, channel = problem.topology, problem.link, problem.channel
    if problem.scenario.channel.state != "receiver":
        raise ValueError(f"expected channel.state 'receiver', actual value {problem.scenario.channel.state!r}")
    if problem.harvest.law.num_weather != 1:
        raise ValueError(f"expected one weather level, actual number {problem.harvest.law.num_weather}")
    devices = range(problem.num_devices)
    neighbours = [list(topology.neighbours[i]) for i in devices]
    model = Model(
        slots=problem.slots,
        neighbours=neighbours,
        mixing=topology.mixing,
        path_gain={(i, j): float(link.path_gain[topology.edge(i, j)]) for i in devices for j in neighbours[i]},
        channel_gain=channel.gain.double().cpu().numpy(),
        channel_kernel=channel.kernel.double().cpu().numpy(),
        harvest_kernel=[
            [problem.kernel(energy(j), slot).double().cpu().numpy() for j in devices] for slot in range(problem.slots)
        ],
        noise=link.noise_watt.double().cpu().numpy(),
        waterfall=link.waterfall,
        half_duplex=link.half_duplex,
        idle_penalty=problem.scenario.cost.idle_penalty,
        power=problem.actions.power_watt.double().cpu().numpy(),
        trained=problem.actions.trained.cpu().numpy(),
        steps_up=problem.actions.steps_up.cpu().numpy(),
        default_channel={"worst": 0, "median": (channel.levels - 1) // 2, "best": channel.levels - 1}[default_gain],
        default_level={"full": problem.battery.levels - 1, "empty": 0}[default_battery],
        default_action=default_action,
    )
    if (model.steps_up[:, default_action] > model.default_level).any():
        raise ValueError(f"expected a default action that the default battery pays for, actual {default_action}")
    return model


def k_hop(neighbours: list[list[int]], device: int, hops: int) -> list[int]:
    """Devices at most ``hops`` links away, the device itself included, in rising order."""
    reached = {device}
    for _ in range(hops):
        reached = reached | {j for i in reached for j in neighbours[i]}
    return sorted(reached)


def make_view(model: Model, device: int, hops: int) -> View:
    """Axes of a device's tables, and defaults for everyone out of its sight."""
    members = k_hop(model.neighbours, device, hops)
    shape = (model.num_channel, model.num_level) * len(members) + (model.num_action,) * len(members)
    axes = np.indices(shape, sparse=True)
    h: list[Index] = [model.default_channel] * model.num_devices
    b: list[Index] = [model.default_level] * model.num_devices
    a: list[Index] = [model.default_action] * model.num_devices
    for place, member in enumerate(members):
        h[member] = axes[2 * place]
        b[member] = axes[2 * place + 1]
        a[member] = axes[2 * len(members) + place]
    return View(members, shape, h, b, a)


def local_cost(model: Model, view: View, i: int) -> Table:
    """c_i = Σ_{l∈N_i} a_li q_li + idle_penalty · a_ii · 1{i does not train}; out of sight, defaults."""
    cost = np.zeros(view.shape)
    for receiver in model.neighbours[i]:
        cost += model.mixing[receiver, i] * error_rate(model, view, receiver, i)
    cost += model.idle_penalty * model.mixing[i, i] * ~model.trained[view.a[i]]
    return cost


def error_rate(model: Model, view: View, receiver: int, sender: int) -> Table:
    """q from sender to receiver: 1 − exp(−φ (interference + noise) / signal), 1 without a signal."""

    def received(j: int) -> Table:
        gain = model.path_gain[receiver, j] * model.channel_gain[view.h[receiver]]
        return np.asarray(model.power[view.a[j]] * gain)

    signal = received(sender)
    disturbance = model.noise[receiver] + sum(received(j) for j in model.neighbours[receiver] if j != sender)
    heard = signal > 0
    error = np.where(heard, 1 - np.exp(-model.waterfall * disturbance / np.where(heard, signal, 1.0)), 1.0)
    if model.half_duplex:
        error = np.where(model.power[view.a[receiver]] > 0, 1.0, error)
    return error


def feasible(model: Model, view: View, device: int) -> npt.NDArray[np.bool_]:
    """Whether the device's level pays for its action."""
    return np.asarray(model.steps_up[device][view.a[device]] <= view.b[device])


def left_after_spending(model: Model, device: int) -> npt.NDArray[np.int64]:
    """Battery level after an action, (level, action); an action that cannot be paid spends nothing."""
    left = np.zeros((model.num_level, model.num_action), dtype=np.int64)
    for b, a in product(range(model.num_level), range(model.num_action)):
        spent = model.steps_up[device, a]
        left[b, a] = b - spent if spent <= b else b
    return left


def closed_loop(model: Model, view: View, Q_next: Table, slot: int) -> Table:
    """E[ min over feasible p' of Q_{t+1}(s', p') | s, p ]."""
    Q_allowed = Q_next
    for member in view.members:
        Q_allowed = np.where(feasible(model, view, member), Q_allowed, np.inf)
    value = Q_allowed.min(axis=tuple(view.action_axis(member) for member in view.members))
    return expected_next(model, view, value, slot)


def open_loop(model: Model, view: View, Q_next: Table, slot: int) -> Table:
    """Min over p' of E[ Q_{t+1}(s', p') | s, p ], where p' must be feasible in every s' that can follow."""
    best = np.full(view.shape, np.inf)
    for p_next in product(range(model.num_action), repeat=len(view.members)):
        every_state: list[slice | int] = [slice(None)] * (2 * len(view.members))
        expected = expected_next(model, view, Q_next[(*every_state, *p_next)], slot)
        for member, action in zip(view.members, p_next, strict=True):
            too_low = np.arange(model.num_level) < model.steps_up[member, action]
            reaches_too_low = model.harvest_kernel[slot][member][:, too_low].max(axis=1, initial=0.0) > 0
            left = left_after_spending(model, member)[view.b[member], view.a[member]]
            expected = np.where(reaches_too_low[left], np.inf, expected)
        best = np.minimum(best, expected)
    return best


def expected_next(model: Model, view: View, value: Table, slot: int) -> Table:
    """E[ value(s') | s, p ] over independent members; value has axes (h', b') of each member."""
    for member in view.members:
        # the first member not yet averaged leaves at the front as (h', b') and comes back last as (h, b, a)
        value = np.tensordot(value, member_kernel(model, member, slot), axes=([0, 1], [3, 4]))
    places = range(len(view.members))
    states = [axis for place in places for axis in (3 * place, 3 * place + 1)]
    actions = [3 * place + 2 for place in places]
    return value.transpose(states + actions)


def member_kernel(model: Model, member: int, slot: int) -> Table:
    """Law of a device's next state (h', b') given its state and action; axes (h, b, a, h', b')."""
    H, B, A = model.num_channel, model.num_level, model.num_action
    left = left_after_spending(model, member)
    kernel = np.zeros((H, B, A, H, B))
    for h, b, a, h_next, b_next in product(range(H), range(B), range(A), range(H), range(B)):
        harvest = model.harvest_kernel[slot][member][left[b, a], b_next]
        kernel[h, b, a, h_next, b_next] = model.channel_kernel[h, h_next] * harvest
    return kernel


def uniform_policy(model: Model, view: View, i: int) -> Table:
    """π_i^1: uniform over the actions that the own battery pays for."""
    return masked(model, view, i, np.ones(policy_shape(model, view)))


def averaged(views: list[View], Q: list[Table], i: int) -> Table:
    """Q_i^{r+1}(s, p) = 1/|N_i| Σ_{j∈N_i} Q_j^r([s]_{N_j}, [p]_{N_j})."""
    view = views[i]
    total = np.zeros(view.shape)
    for j in view.members:
        members = views[j].members
        total += Q[j][(*view.states(members), *view.actions(members))]
    return total / len(view.members)


def improved(model: Model, views: list[View], Q: Table, pi: list[Table], i: int, gamma: float) -> Table:
    """π_i^{r+1}(p_i | s) ∝ exp(−γ E[Q_i^{r+1}(s, p)]), the others drawn from π_j^r([s]_{N_j})."""
    view = views[i]
    others = [j for j in view.members if j != i]
    weight = np.ones(view.shape)
    for j in others:
        weight = weight * pi[j][(*view.states(views[j].members), view.a[j])]
    expected = (weight * Q).sum(axis=tuple(view.action_axis(j) for j in others))
    allowed = allowed_actions(model, view, i)
    lowest = np.where(allowed, expected, np.inf).min(axis=-1, keepdims=True)
    # a shift of the exponent cancels in the ratio; infeasible entries may lie lower and are masked afterwards
    return masked(model, view, i, np.exp(-gamma * np.maximum(expected - lowest, 0.0)))


def policy_shape(model: Model, view: View) -> tuple[int, ...]:
    """Axes (h, b) of each member, then the own action."""
    return (model.num_channel, model.num_level) * len(view.members) + (model.num_action,)


def allowed_actions(model: Model, view: View, i: int) -> npt.NDArray[np.bool_]:
    """Which own actions the own battery pays for, over the axes of a policy."""
    axes = np.indices(policy_shape(model, view), sparse=True)
    level, action = axes[2 * view.members.index(i) + 1], axes[-1]
    return np.asarray(model.steps_up[i][action] <= level)


def masked(model: Model, view: View, i: int, weight: Table) -> Table:
    """Normalise over feasible own actions; zero for the others."""
    weight = np.where(allowed_actions(model, view, i), weight, 0.0)
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True))
