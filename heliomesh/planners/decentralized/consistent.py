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

from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from heliomesh.model.factor import Factor, Variable, action, energy
from heliomesh.model.policy import Track
from heliomesh.model.problem import Problem
from heliomesh.model.symmetry import Role
from heliomesh.model.threads import fitting_threads
from heliomesh.planners.decentralized.device_step import DeviceStep, action_table, average_change
from heliomesh.planners.decentralized.literal import uniform_policy
from heliomesh.planners.decentralized.neighbourhood import Neighbourhood
from heliomesh.planners.decentralized.shares import Stacks
from heliomesh.planners.decentralized.turn import Network, Shares, Turn

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
        self.steps = [DeviceStep(problem, area, self._reference) for area in areas]
        self.scopes = {i: policy_scope(areas, i) for i in self.representatives}
        start = torch.full((problem.num_energy,), 1 / problem.num_energy, dtype=problem.dtype, device=problem.device)
        # reference law of each representative's energy, by slot
        self.energy_law = {i: [start] * problem.slots for i in self.representatives}
        # R = 0: no exchange, the first policy stays; simultaneous best responses only chase each other
        self.best_responses = num_best_responses(len(gammas), len(self.turns))
        self.residual = 0.0
        self._network = Network(
            problem, roles, [area.states for area in areas], self.scopes, [tuple(area.members) for area in areas]
        )
        self._prepared: dict[Hashable, Turn] = {}  # turns, by the scopes of all tables
        self._last: dict[int, tuple[list[tuple[Variable, ...]], Turn]] = {}  # by turn, what served last
        self._prepared_values: dict[Hashable, Shares] = {}
        self._stacks = Stacks()

    def run(self, track: Track) -> tuple[list[tuple[Variable, ...]], list[list[Tensor]], float]:
        """Scopes by device, action tables [slot][device] (state...), and the last rounds' largest change."""
        with fitting_threads(self.problem), torch.inference_mode():  # many small operations
            return self._run(track)

    def _run(self, track: Track) -> tuple[list[tuple[Variable, ...]], list[list[Tensor]], float]:
        for sweep in range(self.sweeps):
            description = f"decentralized, sweep {sweep + 1} of {self.sweeps}"
            policies = self._backward(track, description)
            if sweep + 1 < self.sweeps:
                self._forward(policies)
        scopes = [tuple(map(role.rename, self.scopes[role.representative])) for role in self.roles]
        found = [
            {i: action_table(self.problem, self.scopes[i], row[i], bool(self.gammas)) for i in self.representatives}
            for row in policies
        ]
        tables = [[row[role.representative] for role in self.roles] for row in found]
        return scopes, tables, self.residual

    def _backward(self, track: Track, description: str) -> list[Mapping[int, Factor]]:
        """Policies [slot][representative] under the current reference laws."""
        slots = self.problem.slots
        values: dict[int, Factor] = {}
        found: list[Mapping[int, Factor]] = [{} for _ in range(slots)]
        self.residual = 0.0
        self._prepared.clear()  # they hold the laws of the sweep before
        self._prepared_values.clear()
        self._last.clear()
        unrolled = self.problem.unrolled_slots
        for number in track(range(unrolled - 1, -1, -1), description, unrolled):
            slot = number % slots
            futures = {i: self.steps[i].future(values[i], slot) for i in self.representatives if values}
            policies, raw = self._rounds(slot, futures)
            found[slot] = policies
            values = self._values(raw, policies, slot)
        return found

    def _rounds(self, slot: int, futures: Mapping[int, Factor]) -> tuple[dict[int, Factor], dict[int, Factor]]:
        """Policies of one slot after all rounds, and the raw Q tables they ended with."""
        policies = {i: uniform_policy(self.problem, i) for i in self.representatives}
        raw = self._raw_tables(futures, policies, slot, {})
        for gamma in self.gammas:
            policies = self._round(policies, raw, slot, gamma, self.damping)
            raw = self._raw_tables(futures, policies, slot, raw)
        change = 0.0
        for _ in range(self.best_responses):
            before, policies = policies, self._round(policies, raw, slot, torch.inf, 1.0)
            change = max(average_change(policies[i], before[i]) for i in self.representatives)
            raw = self._raw_tables(futures, policies, slot, raw)
            if change == 0:
                break
        self.residual = max(self.residual, change)
        return policies, raw

    def _round(
        self, policies: dict[int, Factor], raw: Mapping[int, Factor], slot: int, gamma: float, rate: float
    ) -> dict[int, Factor]:
        """Every device improves its policy once, turn by turn; the new policies."""
        for number, movers in enumerate(self.turns):
            turn = self._turn(number, movers, raw, policies)
            policies = {**policies, **turn.improved(raw, policies, (self._reference, slot), (gamma, rate))}
        return policies

    def _turn(
        self, number: int, movers: list[int], raw: Mapping[int, Factor], policies: Mapping[int, Factor]
    ) -> Turn:
        """The turn prepared for these scopes; mostly they are the very objects of the round before."""
        scopes = [*_scopes(raw), *_scopes(policies)]
        known, last = self._last.get(number, (scopes, None))
        if last is not None and all(a is b for a, b in zip(known, scopes, strict=True)):
            return last
        key = (number, *scopes)
        if key not in self._prepared:
            self._prepared[key] = Turn(self._network, movers, raw, policies, self._stacks)
        self._last[number] = scopes, self._prepared[key]
        return self._prepared[key]

    def _values(self, raw: Mapping[int, Factor], policies: Mapping[int, Factor], slot: int) -> dict[int, Factor]:
        """V_l of every representative under the policies of all."""
        scopes = (*_scopes(raw), *_scopes(policies))
        if scopes not in self._prepared_values:  # every one's share for itself, over all that it sees
            own = [self._network.pair(i, i, self._network.own_states[i], raw, policies) for i in policies]
            self._prepared_values[scopes] = Shares(self._network, own, policies, self._stacks)
        prepared, values = self._prepared_values[scopes], {}
        for pairs, shares in prepared.run(raw, prepared.in_line(policies), self._reference, slot):
            for pair, row in zip(pairs, shares, strict=True):
                share = Factor(pair.scope, row.view(self.problem.sizes(pair.scope)))
                values[pair.source] = self.steps[pair.source].value_of(share, policies[pair.source], slot)
        return {i: values[i] for i in self.representatives}

    def _raw_tables(
        self,
        futures: Mapping[int, Factor],
        policies: Mapping[int, Factor],
        slot: int,
        known: Mapping[int, Factor],
    ) -> dict[int, Factor]:
        return {i: self.steps[i].raw(futures.get(i), policies[i], slot, known.get(i)) for i in self.representatives}

    def _reference(self, variable: Variable, slot: int) -> Tensor:
        """Law used for a state variable out of sight."""
        if variable.kind == "site":
            return self.problem.channel.stationary.to(self.problem.dtype)
        return self.energy_law[self.roles[variable.owner].representative][slot]

    def _forward(self, policies: list[Mapping[int, Factor]]) -> None:
        """New reference laws: each device's own energy law under the policies just found."""
        problem = self.problem
        for device in self.representatives:
            law = problem.initial_law(energy(device))
            laws = [law] * problem.slots
            for slot in (number % problem.slots for number in range(problem.unrolled_slots)):
                laws[slot] = law
                act = self.steps[device].seen_by(policies[slot][device], (energy(device),), slot)
                joint = law.unsqueeze(1) * act.aligned((energy(device), action(device)))
                left = torch.zeros_like(law).index_add_(0, problem.energy_left[device].flatten(), joint.flatten())
                law = left @ problem.kernel(energy(device), slot)
            self.energy_law[device] = laws


def _scopes(tables: Mapping[int, Factor]) -> Iterator[tuple[Variable, ...]]:
    return (table.scope for table in tables.values())


def policy_scope(areas: Sequence[Neighbourhood], device: int) -> tuple[Variable, ...]:
    """State variables of a device's policy: what it sees of all costs that its action enters."""
    area, own = areas[device], action(device)
    sources = [source for source in area.members if own in areas[source].cost_scope]
    seen = [v for source in sources for v in areas[source].states if v in area.visible]
    return tuple(dict.fromkeys([*seen, energy(device)]))


def share_scope(
    areas: Sequence[Neighbourhood], scopes: Sequence[tuple[Variable, ...]], source: int, mover: int
) -> tuple[Variable, ...]:
    """State variables that a source's share for a mover can depend on."""
    actors = (actor for actor in areas[source].actors if actor != mover)
    met = {*areas[source].states, *(variable for actor in actors for variable in scopes[actor])}
    return tuple(variable for variable in scopes[mover] if variable in met)


def num_best_responses(rounds: int, turns: int) -> int:
    """Most rounds of pure best responses after the soft ones."""
    return min(rounds, _MOST_BEST_RESPONSES if turns > 1 else 1)
