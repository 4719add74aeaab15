"""Algorithm 1 line by line: default substitution, averaging of Q tables, optimistic recursion, fixed γ.

    Q_i,T = c_i                                                                 (line 4)
    Q_i,t = c_i + E[min over feasible p' of Q_i,t+1(s', p')]                    (line 6; "open-loop": min E)
    Q_i^{r+1} = mean over j within k hops of Q_j^r([s]_{N_j}, [p]_{N_j})        (line 10)
    π_i^{r+1} ∝ exp(−γ E_{p_j ∼ π_j^r} Q_i^{r+1})                               (line 11)

[·] replaces whatever is out of sight by a default state and action. Averaging is linear, so Q_i^r is kept as weights
over (source table Q_l, devices still visible in it); dense averages of whole neighbourhoods are never built, and
terms without p_i, which cancel in line 11, are skipped. The result is the same to rounding.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from heliomesh.grid.after_spending import spread_actions
from heliomesh.grid.contraction import expectation
from heliomesh.model.factor import Factor, Scope, Variable, action, energy
from heliomesh.model.policy import Track, state_variables
from heliomesh.model.problem import Problem
from heliomesh.model.symmetry import Role
from heliomesh.planners.decentralized.device_step import DeviceStep, action_table
from heliomesh.planners.decentralized.neighbourhood import Areas

# Q_i^r: weight of each (source device l, devices not replaced by defaults in Q_l)
Blend = Mapping[tuple[int, frozenset[int]], float]
Default = Mapping[str, int]  # by kind of variable: what a device out of sight is taken to be and to do, as an index


class Literal:
    """One run of the literal algorithm; devices of one role share their tables."""

    def __init__(
        self,
        problem: Problem,
        areas: Areas,
        roles: Sequence[Role],
        rounds: int,
        gamma: float,
        default: Default,
        open_loop: bool,
    ) -> None:
        self.problem, self.areas, self.roles = problem, areas, roles
        self.rounds, self.gamma, self.open_loop = rounds, gamma, open_loop
        self.representatives = sorted({role.representative for role in roles})
        self.default = default
        self._costs = {i: self._cost(i) for i in self.representatives}
        self._defaults: dict[tuple[Scope, frozenset[int]], dict[Variable, int]] = {}
        self.blends = self._consensus()

    def run(self, track: Track) -> tuple[list[Scope], list[list[Tensor]], float]:
        """Scopes by device, policy tables [slot][device] (state..., action), and the last rounds' largest change."""
        slots = self.problem.slots
        tables: list[list[Factor]] = [[] for _ in range(slots)]
        residual = 0.0
        raw = self._costs
        for slot in track(range(slots - 1, -1, -1), "decentralized, literal", slots):
            if slot < slots - 1:
                raw = {i: self._bellman(i, raw[i], slot) for i in self.representatives}
            policies, change = self._rounds(self._for_all(raw))
            residual = max(residual, change)
            tables[slot] = policies
        scopes = [policy.scope[:-1] for policy in tables[0]]  # the first slot has seen the most variables
        full = [[*map(partial(action_table, self.problem, chosen=False), scopes, row)] for row in tables]
        return scopes, full, residual

    def _for_all(self, of_representative: Mapping[int, Factor]) -> list[Factor]:
        return [of_representative[role.representative].renamed(role.rename) for role in self.roles]

    def _cost(self, device: int) -> Factor:
        """c_i, with defaults for what is out of sight."""
        area = self.areas[device]
        laws = []
        for variable in area.hidden(area.cost_scope):
            law = torch.zeros(self.problem.size(variable), dtype=self.problem.dtype, device=self.problem.device)
            law[self.default[variable.kind]] = 1
            laws.append(Factor((variable,), law))
        return area.cost(laws)

    def _bellman(self, device: int, following: Factor, slot: int) -> Factor:
        """Lines 4 and 6: raw Q_i of this slot from that of the next."""
        problem, area = self.problem, self.areas[device]
        scope = (*area.states, *map(action, area.actors))
        shape = problem.sizes(scope)
        table = following.aligned(scope).expand(shape)
        states = len(area.states)
        kernels = [problem.kernel(variable, slot) for variable in area.states]
        feasible = torch.ones((1,) * len(scope), dtype=torch.bool, device=problem.device)
        for actor in area.actors:
            feasible = feasible & Factor((energy(actor), action(actor)), problem.feasible[actor]).aligned(scope)
        axes = tuple(range(states, len(scope)))
        if self.open_loop:
            mean = expectation(table, kernels)
            blocked = expectation((~feasible).expand(shape).to(problem.dtype), kernels) > 0
            future = mean.masked_fill(blocked, torch.inf).amin(axes)
        else:
            future = expectation(table.masked_fill(~feasible, torch.inf).amin(axes), kernels)
        return Factor(scope, spread_actions(problem, future, area.actors)) + self._costs[device]

    def _consensus(self) -> list[list[Blend]]:
        """Q_i^{r+1} of line 10 for r = 1 … R and every device, as blends of raw tables."""
        relevant = [
            {v.owner for v in area.cost_scope if v.kind == "action"}
            | {j for j in range(self.problem.num_devices) if set(state_variables(self.problem, j)) & set(area.states)}
            for area in self.areas
        ]
        current: list[Blend] = [
            {(i, frozenset(area.members) & frozenset(relevant[i])): 1.0} for i, area in enumerate(self.areas)
        ]
        history = []
        for _ in range(self.rounds):
            following: list[Blend] = []
            for area in self.areas:
                blend: defaultdict[tuple[int, frozenset[int]], float] = defaultdict(float)
                for member in area.members:
                    for (source, seen), weight in current[member].items():
                        blend[source, seen & frozenset(area.members)] += weight / len(area.members)
                following.append(dict(blend))
            current = following
            history.append(current)
        return history

    def _rounds(self, raw: list[Factor]) -> tuple[list[Factor], float]:
        """Lines 8–13: policies after R rounds and the largest change of the last one."""
        policies = self._for_all({i: uniform_policy(self.problem, i) for i in self.representatives})
        change = 0.0
        for blends in self.blends:
            improved = {i: self._improve(i, blends[i], raw, policies) for i in self.representatives}
            change = max(_distance(improved[i], policies[i]) for i in self.representatives)
            policies = self._for_all(improved)
        return policies, change

    def _improve(self, device: int, blend: Blend, raw: list[Factor], policies: list[Factor]) -> Factor:
        """Line 11: masked softmax of −γ E[Q_i^{r+1}] over the other members' current policies."""
        members, own = frozenset(self.areas[device].members), action(device)
        laws: dict[int, Factor] = {}  # other members' policies, as far as the device sees what they depend on
        terms = []
        for (source, seen), weight in blend.items():
            if device not in seen or own not in raw[source].scope:
                continue
            term = raw[source].restrict(self._defaults_outside(raw[source].scope, seen))
            for variable in term.scope:
                if variable.kind == "action" and variable != own:
                    if variable.owner not in laws:
                        law = policies[variable.owner]
                        laws[variable.owner] = law.restrict(self._defaults_outside(law.scope[:-1], members))
                    term = term.average(laws[variable.owner], over=[variable])
            terms.append(term.scaled(weight))
        return DeviceStep(self.problem, self.areas[device]).improved(terms, self.gamma)

    def _defaults_outside(self, scope: Scope, seen: frozenset[int]) -> dict[Variable, int]:
        """Default values of all variables of a scope that belong to no device in ``seen``."""
        if (scope, seen) not in self._defaults:
            visible = {v for device in seen for v in (*state_variables(self.problem, device), action(device))}
            self._defaults[scope, seen] = {v: self.default[v.kind] for v in scope if v not in visible}
        return self._defaults[scope, seen]


def uniform_policy(problem: Problem, device: int) -> Factor:
    """π¹: uniform over feasible actions; scope (own energy, own action)."""
    feasible = problem.feasible[device].to(problem.dtype)
    return Factor((energy(device), action(device)), feasible / feasible.sum(-1, keepdim=True))


def _distance(first: Factor, second: Factor) -> float:
    """Largest total-variation distance of two policies over all states."""
    scope = (*dict.fromkeys((*first.scope[:-1], *second.scope[:-1])), first.scope[-1])
    difference = first.aligned(scope) - second.aligned(scope)
    return float(difference.abs().sum(-1).max()) / 2
