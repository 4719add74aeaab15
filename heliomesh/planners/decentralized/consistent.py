"""Algorithm 1 with policy-consistent values: still local, still only messages within the neighbourhood.

Per slot, backwards:

    Q_l = c_l + E[V_l,t+1]                          over what device l sees of its own cost
    repeat R times, in turns of devices that share no cost:
        π_i ← (1 − d) π_i + d · softmax(−γ_r Σ_l E_{others ∼ π}[Q_l])   l: devices in sight whose cost p_i enters,
                                                                      each counted once; γ_r rises
    π_i ← argmin of the same sum, in turns until nobody changes
    V_l = E_{all ∼ π}[Q_l]                          the value of what is really going to be done

Turns matter where taking turns on the air pays: equal devices that decide at once can only all send or all be silent.

What a device cannot see it averages out: channels by their stationary law, batteries by a reference law, actions of
devices out of its sight as if they behaved, on average, like itself. The reference law of the batteries is uniform in
the first sweep over the horizon and, from the second on, the forward law of the policies just found; each device
computes its own and tells its neighbourhood.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from heliomesh.planners.decentralized.literal import softmin_policy, uniform_policy
from heliomesh.planners.decentralized.neighbourhood import Neighbourhood
from heliomesh.problem.contraction import expectation, spread_action
from heliomesh.problem.factor import Factor, Variable, action, energy, total
from heliomesh.problem.policy import Track
from heliomesh.problem.problem import Problem
from heliomesh.problem.symmetry import Role

_MOST_BEST_RESPONSES = 4  # rounds of pure best responses after the soft ones


class Consistent:
    """One run of the default form; devices of one role share their tables."""

    def __init__(
        self,
        problem: Problem,
        areas: tuple[Neighbourhood, ...],
        roles: tuple[Role, ...],
        colour: Sequence[int],
        gammas: Sequence[float],
        damping: float,
        sweeps: int,
    ) -> None:
        self.problem, self.areas, self.roles = problem, areas, roles
        self.gammas, self.damping, self.sweeps = gammas, damping, sweeps
        self.representatives = sorted({role.representative for role in roles})
        self.turns = [[i for i in self.representatives if colour[i] == turn] for turn in sorted(set(colour))]
        self.scopes = {i: policy_scope(areas, i) for i in self.representatives}
        start = torch.full((problem.num_energy,), 1 / problem.num_energy, dtype=problem.dtype, device=problem.device)
        # reference law of each representative's energy, by slot
        self.energy_law = {i: [start] * problem.slots for i in self.representatives}
        # R = 0: no exchange, the first policy stays; simultaneous best responses only chase each other
        self.best_responses = min(len(gammas), _MOST_BEST_RESPONSES if len(self.turns) > 1 else 1)
        self.residual = 0.0

    def run(self, track: Track) -> tuple[list[tuple[Variable, ...]], list[list[Tensor]], float]:
        """Scopes by device, action tables [slot][device] (state...), and the last rounds' largest change."""
        for sweep in range(self.sweeps):
            description = f"decentralized, sweep {sweep + 1} of {self.sweeps}"
            policies = self._backward(track, description)
            if sweep + 1 < self.sweeps:
                self._forward(policies)
        scopes = [tuple(map(role.rename, self.scopes[role.representative])) for role in self.roles]
        tables = [[self._table(role.representative, row) for role in self.roles] for row in policies]
        return scopes, tables, self.residual

    def _table(self, device: int, policies: Mapping[int, Factor]) -> Tensor:
        """Best actions by state; with R = 0 the probabilities, as nothing was chosen."""
        scope = (*self.scopes[device], action(device))
        prob = policies[device].aligned(scope).expand(self.problem.sizes(scope))
        return prob.argmax(-1) if self.gammas else prob

    def _backward(self, track: Track, description: str) -> list[Mapping[int, Factor]]:
        """Policies [slot][representative] under the current reference laws."""
        slots = self.problem.slots
        values: dict[int, Factor] = {}
        found: list[Mapping[int, Factor]] = [{} for _ in range(slots)]
        self.residual = 0.0
        for slot in track(range(slots - 1, -1, -1), description, slots):
            futures = {i: self._future(i, values[i], slot) for i in self.representatives if values}
            policies, raw = self._rounds(slot, futures)
            found[slot] = policies
            everyone = self._for_all(policies)
            values = {i: self._value(i, raw[i], everyone, slot) for i in self.representatives}
        return found

    def _future(self, device: int, value: Factor, slot: int) -> Factor:
        """E[V_l(next) | after spending] with one action axis per actor."""
        problem, area = self.problem, self.areas[device]
        table = expectation(value.table, [problem.kernel(variable, slot) for variable in area.states])
        first = len(area.states) - len(area.actors)
        for position, actor in enumerate(area.actors):
            table = spread_action(table, first + position, problem.energy_left[actor])
        return Factor((*area.states, *map(action, area.actors)), table)

    def _rounds(self, slot: int, futures: Mapping[int, Factor]) -> tuple[dict[int, Factor], dict[int, Factor]]:
        """Policies of one slot after all rounds, and the raw Q tables they ended with."""
        policies = {i: uniform_policy(self.problem, i) for i in self.representatives}
        raw = self._raw_tables(futures, policies, slot, {})
        for gamma in self.gammas:
            _, policies = self._round(policies, raw, slot, gamma, self.damping)
            raw = self._raw_tables(futures, policies, slot, raw)
        change = 0.0
        for _ in range(self.best_responses):
            change, policies = self._round(policies, raw, slot, torch.inf, 1.0)
            raw = self._raw_tables(futures, policies, slot, raw)
            if change == 0:
                break
        self.residual = max(self.residual, change)
        return policies, raw

    def _round(
        self, policies: dict[int, Factor], raw: Mapping[int, Factor], slot: int, gamma: float, rate: float
    ) -> tuple[float, dict[int, Factor]]:
        """Every device improves its policy once, turn by turn; the largest mean change and the new policies."""
        tables, change = self._for_all(raw), 0.0
        for turn in self.turns:
            everyone = self._for_all(policies)
            improved = {i: self._improve(i, tables, everyone, slot, gamma) for i in turn}
            blended = {i: _blend(policies[i], new, rate) for i, new in improved.items()}
            change = max(change, *(_average_change(new, policies[i]) for i, new in blended.items()))
            policies = policies | blended
        return change, policies

    def _raw_tables(
        self,
        futures: Mapping[int, Factor],
        policies: Mapping[int, Factor],
        slot: int,
        known: Mapping[int, Factor],
    ) -> dict[int, Factor]:
        return {i: self._raw(i, futures, policies[i], slot, known) for i in self.representatives}

    def _raw(
        self,
        device: int,
        futures: Mapping[int, Factor],
        policy: Factor,
        slot: int,
        known: Mapping[int, Factor],
    ) -> Factor:
        """Q_l = c_l + future, with what is out of l's sight averaged."""
        area = self.areas[device]
        hidden = area.hidden(area.cost_scope)
        if device in known and not hidden:
            return known[device]  # nothing depends on the current policies
        own_law = self._action_law(policy, slot).table
        laws = [Factor((v,), own_law if v.kind == "action" else self._reference(v, slot)) for v in hidden]
        cost = area.cost(laws)
        return cost + futures[device] if device in futures else cost

    def _improve(self, device: int, raw: list[Factor], policies: list[Factor], slot: int, gamma: float) -> Factor:
        """Logit (γ finite) or best (γ = ∞) response to the others' current policies."""
        area, own = self.areas[device], action(device)
        terms = []
        for source in area.members:
            if own not in raw[source].scope:
                continue
            term = raw[source]
            for variable in raw[source].scope:
                if variable.kind == "action" and variable != own:
                    known = (*self.areas[source].states, *self.scopes[device])
                    other = self._seen_by(policies[variable.owner], known, slot)
                    term = term.average(other, over=[variable])
            terms.append(self._seen_by(term, self.scopes[device], slot))
        expected = total(terms)
        if gamma < torch.inf:
            return softmin_policy(self.problem, device, expected, gamma)
        return best_policy(self.problem, device, expected)

    def _value(self, device: int, raw: Factor, policies: list[Factor], slot: int) -> Factor:
        """V_l: the expectation of Q_l under the policies of all actors."""
        area = self.areas[device]
        for actor in area.actors:
            raw = raw.average(self._seen_by(policies[actor], area.states, slot), over=[action(actor)])
        table = raw.aligned(area.states).expand(self.problem.sizes(area.states))
        return Factor(area.states, table)

    def _seen_by(self, factor: Factor, states: Collection[Variable], slot: int) -> Factor:
        """Average out all state variables that are not among ``states``."""
        hidden = [v for v in factor.scope if v.kind != "action" and v not in states]
        laws = (Factor((variable,), self._reference(variable, slot)) for variable in hidden)
        return factor.average(*laws, over=hidden) if hidden else factor

    def _reference(self, variable: Variable, slot: int) -> Tensor:
        """Law used for a state variable out of sight."""
        if variable.kind == "site":
            return self.problem.channel.stationary.to(self.problem.dtype)
        return self.energy_law[self.roles[variable.owner].representative][slot]

    def _action_law(self, policy: Factor, slot: int) -> Factor:
        """Marginal law of a device's own action."""
        return self._seen_by(policy, (), slot)

    def _forward(self, policies: list[Mapping[int, Factor]]) -> None:
        """New reference laws: each device's own energy law under the policies just found."""
        problem = self.problem
        for device in self.representatives:
            law = problem.initial_law(energy(device))
            laws = []
            for slot in range(problem.slots):
                laws.append(law)
                act = self._seen_by(policies[slot][device], (energy(device),), slot)
                joint = law.unsqueeze(1) * act.aligned((energy(device), action(device)))
                left = torch.zeros_like(law).index_add_(0, problem.energy_left[device].flatten(), joint.flatten())
                law = left @ problem.kernel(energy(device), slot)
            self.energy_law[device] = laws

    def _for_all(self, of_representative: Mapping[int, Factor]) -> list[Factor]:
        return [of_representative[role.representative].renamed(role.rename) for role in self.roles]


def policy_scope(areas: Sequence[Neighbourhood], device: int) -> tuple[Variable, ...]:
    """State variables of a device's policy: what it sees of all costs that its action enters."""
    area, own = areas[device], action(device)
    sources = [source for source in area.members if own in areas[source].cost_scope]
    seen = [v for source in sources for v in areas[source].states if v in area.visible]
    return tuple(dict.fromkeys([*seen, energy(device)]))


def best_policy(problem: Problem, device: int, expected: Factor) -> Factor:
    """The feasible action of least expected cost, the first of equals; the own action is the last axis."""
    own = action(device)
    states = tuple(dict.fromkeys([*(v for v in expected.scope if v != own), energy(device)]))
    scope = (*states, own)
    feasible = Factor((energy(device), own), problem.feasible[device]).aligned(scope)
    best = expected.aligned(scope).masked_fill(~feasible, torch.inf).argmin(-1)
    return Factor(scope, torch.nn.functional.one_hot(best, len(problem.actions)).to(problem.dtype))


def _blend(old: Factor, new: Factor, rate: float) -> Factor:
    if rate == 1:
        return new
    scope = new.scope
    return Factor(scope, (1 - rate) * old.aligned(scope) + rate * new.table)


def _average_change(first: Factor, second: Factor) -> float:
    """Mean total-variation distance of two policies over their states."""
    difference = first.table - second.aligned(first.scope)  # a policy's scope only grows
    return float(difference.abs().sum(-1).mean()) / 2
