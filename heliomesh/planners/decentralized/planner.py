"""Options, policy object and overhead of the decentralised planner; the two forms are in their own files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from heliomesh.common.memory_limit import check_fits, entries
from heliomesh.model.endless import TURN_SLOTS, EndlessOptions, endless_plan
from heliomesh.model.factor import Scope, action
from heliomesh.model.overhead import Overhead, control_joule
from heliomesh.model.planner_context import GridOptions, PlannerContext
from heliomesh.model.policy import ActionPolicy, Observation, Plan, Sight
from heliomesh.model.problem import Problem, with_levels
from heliomesh.model.symmetry import Role, roles, turns
from heliomesh.physics.chain import draw
from heliomesh.planners.decentralized import literal
from heliomesh.planners.decentralized.consistent import Consistent, num_best_responses, policy_scope, share_scope
from heliomesh.planners.decentralized.gamma import searched_gamma
from heliomesh.planners.decentralized.neighbourhood import Areas, Neighbourhood
from heliomesh.planners.decentralized.shares import BATCHED_ENTRIES, KEPT_ENTRIES
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.scenario.section import Positive

BYTES_ON_AIR = 4  # table entries travel as 32-bit floats


class Options(GridOptions, EndlessOptions):
    """Options of Algorithm 1."""

    form: Literal["default", "literal"] = Field("default", description="'literal' follows the paper's lines")
    hops: Annotated[int, Field(ge=0, le=8)] = Field(2, description="k of the k-hop neighbourhood")
    rounds: Annotated[int, Field(ge=0, le=100_000)] | None = Field(
        None, description="R; default 12, literal 20 as in the paper"
    )
    gamma: Positive | Literal["theorem", "searched"] | None = Field(
        None,
        description="literal: the fixed γ (default 100), Theorem 2's largest, or one searched for; "
        "default form: last of the rising γ",
    )
    order: Literal["turns", "simultaneous"] = Field("turns", description="default form: who updates together")
    default_action: Annotated[int, Field(ge=0)] = Field(0, description="literal: action of devices out of sight")
    default_battery: Literal["full", "empty"] = Field("full", description="literal: battery of devices out of sight")
    default_gain: Literal["worst", "median", "best"] = Field(
        "median", description="literal: channel of devices out of sight"
    )
    bellman: Literal["closed-loop", "open-loop"] = Field(
        "closed-loop", description="literal: minimum inside or, as printed, outside the expectation"
    )
    share_tables: bool = Field(True, description="devices of equal role share one table")


@dataclass(frozen=True)
class LocalTables(ActionPolicy):
    """Each device looks its own k-hop state up.

    Per device, ``tables[i]`` is (slot, state...) with action indices, or (slot, state..., action) with probabilities.
    """

    problem: Problem
    scopes: tuple[Scope, ...]
    tables: tuple[Tensor, ...]
    randomised: bool
    looks_back = False

    def _look_up(self, slot: int, seen: Observation) -> list[Tensor]:
        everything = dict.fromkeys(variable for scope in self.scopes for variable in scope)
        assignment = seen.assignment(self.problem, everything)
        return [
            table[slot][tuple(assignment[v] for v in scope)]
            for scope, table in zip(self.scopes, self.tables, strict=True)
        ]

    def action(self, slot: int, seen: Observation) -> Tensor:
        """The tabulated action, or one drawn from the tabulated law."""
        found = torch.stack(self._look_up(slot, seen), dim=1)
        return draw(found, seen.uniform) if self.randomised else found.long()

    def action_prob(self, slot: int, seen: Observation) -> Tensor:
        """The tabulated law."""
        if not self.randomised:
            return super().action_prob(slot, seen)
        return torch.stack(self._look_up(slot, seen), dim=1)

    def visible(self, device: int) -> Sight:
        """The scope of its table."""
        return Sight(self.scopes[device])


def plan(context: PlannerContext[Options]) -> Plan:
    """Run Algorithm 1 in the chosen form."""
    return endless_plan(context, _plan, TURN_SLOTS) if context.options.endless else _plan(context)


def _plan(context: PlannerContext[Options]) -> Plan:
    options = context.options
    both = options.endless and options.form == "literal"
    refuse(both, "decentralized option.endless", "false with form = literal", "value true")
    needless = options.gamma == "searched" and options.form == "default"
    refuse(needless, "decentralized option.gamma", "a number with form = default", "value 'searched'")
    problem = with_levels(context.problem, options.levels)
    areas = tuple(Neighbourhood(problem, device, options.hops) for device in range(problem.num_devices))
    default = options.form == "default"
    default_values = _defaults(problem, options)
    rounds = num_rounds(options)
    scopes = _policy_scopes(areas, default)
    # the search for symmetries is cheap only beside the tables it saves, so the memory check comes first
    what, needed = f"decentralized plan with hops = {options.hops}", estimate_bytes(problem, areas, scopes, default)
    remedy = "lower hops, battery or channel levels or the degree, raise memory_gib, or use the planner 'receiver'"
    check_fits(what, needed, options.memory_gib, remedy)
    in_turns = default and options.order == "turns"
    colour = turns(problem) if in_turns else (0,) * problem.num_devices
    alone = tuple(Role(device, lambda variable: variable) for device in range(problem.num_devices))
    role = roles(problem, colour) if options.share_tables else alone
    tables: Sequence[Mapping[int, Tensor] | Sequence[Tensor]]  # [slot][representative]
    if default:
        gammas = rising_gammas(options, rounds)
        form = Consistent(problem, areas, role, colour, gammas)
        scopes, tables, residual = form.run(context.track)
    else:
        gamma = _literal_gamma(context)
        open_loop = options.bellman == "open-loop"
        literally = literal.Literal(problem, areas, role, rounds, gamma, default_values, open_loop)
        scopes, tables, residual = literally.run(context.track)
    randomised = not default or rounds == 0
    kind = problem.dtype if randomised else problem.actions.index_type
    stacked = {i: torch.stack([row[i] for row in tables]).to(kind) for i in {r.representative for r in role}}
    return Plan(
        "decentralized" if default else "decentralized literal",
        LocalTables(problem, tuple(scopes), tuple(stacked[r.representative] for r in role), randomised),
        converged=residual < 1e-3,
        rounds=rounds,
        residual=residual,
        overhead=local_overhead(problem, areas, scopes, rounds, len(set(colour)), options),
    )


def _literal_gamma(context: PlannerContext[Options]) -> float:
    options = context.options
    if options.gamma == "theorem":
        return theorem_gamma(context.problem)
    if options.gamma != "searched":
        return options.gamma or 100.0

    def plan_at(problem: Problem, gamma: float) -> Plan:
        return _plan(PlannerContext(problem, options.model_copy(update={"gamma": gamma})))

    return searched_gamma(context.problem, plan_at)


def _defaults(problem: Problem, options: Options) -> literal.Default:
    """State and action of devices out of sight; of two middle gains the lower."""
    top = problem.channel.levels - 1
    level = {"worst": 0, "median": top // 2, "best": top}[options.default_gain]
    full, chosen = options.default_battery == "full", options.default_action
    state = problem.num_energy - 1 if full else 0
    payable = problem.feasible[:, state].all(0).nonzero().flatten().tolist()
    if chosen not in payable:
        expected = f"one of {payable}, which a battery that is {options.default_battery} pays for,"
        raise ScenarioError("decentralized option.default_action", expected, f"value {chosen}")
    return {"site": level, "energy": state, "action": chosen}


def theorem_gamma(problem: Problem) -> float:
    """Largest γ that Theorem 2 allows, in normalised units with its L → ∞: 1 / (8 m T |P|²)."""
    return 1 / (8 * problem.num_devices * problem.slots * len(problem.actions) ** 2)


def num_rounds(options: Options) -> int:
    """R, as asked for or by default."""
    return options.rounds if options.rounds is not None else (12 if options.form == "default" else 20)


def rising_gammas(options: Options, rounds: int) -> list[float]:
    """Geometric schedule of the default form's γ."""
    last = options.gamma if isinstance(options.gamma, float) else 3000.0
    if rounds <= 1:
        return [last] * rounds
    return [_FIRST_GAMMA * (last / _FIRST_GAMMA) ** (r / (rounds - 1)) for r in range(rounds)]


_FIRST_GAMMA = 10.0


def _policy_scopes(areas: Areas, default: bool) -> list[Scope]:
    """State variables of every policy, found without any table.

    In the literal form a policy also inherits what the policies it averages over depend on, as far as it sees.
    """
    scopes = [policy_scope(areas, device) for device in range(len(areas))]
    if default:
        return scopes
    while True:
        grown = []
        for device, area in enumerate(areas):
            own = action(device)
            sources = [s for s in area.members if own in areas[s].cost_scope]
            others = {a for s in sources for a in areas[s].actors if a in area.members}
            inherited = [v for other in sorted(others) for v in scopes[other] if v in area.visible]
            grown.append(tuple(dict.fromkeys([*scopes[device], *inherited])))
        if grown == scopes:
            return scopes
        scopes = grown


def estimate_bytes(problem: Problem, areas: Areas, scopes: Sequence[Scope], default: bool) -> float:
    """Peak memory: the largest Q table with temporaries, plus all policies over the horizon."""
    width = torch.empty((), dtype=problem.dtype).element_size()
    count = len(problem.actions)
    raw = [float(entries(problem.sizes(a.states))) * float(count) ** len(a.actors) for a in areas]
    in_sight = [tuple({*a.cost_scope}.difference(a.hidden(a.cost_scope))) for a in areas]
    cost = max(float(entries(problem.sizes(scope))) for scope in in_sight)
    policy = [float(entries(problem.sizes(scope))) * count for scope in scopes]
    stored = sum(policy) * problem.slots * width  # an upper bound: roles share
    actors = max(len(a.actors) for a in areas)
    widest = max(policy) * (1.0 if default else float(count) ** max(actors - 1, 0))
    for area, own_raw, own_policy in zip(areas, raw, policy, strict=True) if default else ():
        # what a round's shares take besides: all in line, and of small tables copies and positions
        kept = own_raw if own_raw <= KEPT_ENTRIES else 0.0
        sources = len(area.actors) + 1  # and once for its value
        stored += width * sources * (2 * own_policy + 4 * min(own_policy, BATCHED_ENTRIES) + kept)
    return width * (4 * max(max(raw), widest) + 2 * sum(raw) + cost) + stored


def local_overhead(
    problem: Problem, areas: Areas, scopes: Sequence[Scope], rounds: int, turns: int, options: Options
) -> Overhead:
    """Bytes on the air, every hop counted.

    Offline, in the literal form, each round of each slot index every device sends its Q table and its policy to its
    k-hop neighbourhood. In the default form, each round (soft or best response) of each slot index, a device is told
    a share of its Q by every device whose cost its action enters, and tells these its new policy. Every table has a
    frame of fixed length, with room for all states that it can depend on. Online, every slot each device is told one
    byte per state variable of its neighbourhood.
    """
    count, exchanges = len(problem.actions), rounds + num_best_responses(rounds, turns)
    own = 1 + (problem.harvest.law.num_weather > 1)  # bytes of a device's energy state
    offline, online, largest, paper = 0, 0.0, 0, 0
    for area, scope in zip(areas, scopes, strict=True):
        hops = sum(area.members.values())
        q_entries = entries(problem.sizes(area.states)) * count ** len(area.actors)
        policy_entries = entries(problem.sizes(scope)) * count
        if options.form == "literal":
            sent = hops * rounds * (q_entries + policy_entries)
        else:
            sent = exchanges * _entries_per_exchange(problem, areas, scopes, area, policy_entries)
        offline += sent * problem.unrolled_slots * BYTES_ON_AIR if rounds else 0
        if len(scope) > 1:  # states of its neighbourhood, a byte each over single hops
            online += sum(far * (len(problem.sites_into(member)) + own) for member, far in area.members.items())
        largest = max(largest, (q_entries + policy_entries) * problem.slots)
        seen = entries(problem.sizes(tuple(area.visible)))  # the paper's tables are over all that a device sees
        paper = max(paper, seen * (count ** len(area.members) + count) * problem.slots)
    joules = control_joule(problem, offline), control_joule(problem, online)
    return Overhead(largest, offline, online, *joules, paper)


def _entries_per_exchange(
    problem: Problem, areas: Areas, scopes: Sequence[Scope], area: Neighbourhood, policy_entries: int
) -> int:
    """Entries over single hops in a round of the default form: a device's policy, and the shares told to it."""
    sent = 0
    for source in (other for other in areas if area.device in other.actors):
        sent += source.members[area.device] * policy_entries
        if source.device in area.members:  # else the device does not see far enough to use a share
            share = share_scope(areas, scopes, source.device, area.device)
            sent += area.members[source.device] * len(problem.actions) * entries(problem.sizes(share))
    return sent


def smaller(options: dict[str, Any]) -> dict[str, Any] | None:
    """The variant to try where these options do not fit: one hop less."""
    hops = options.get("hops", Options().hops)
    return {**options, "hops": hops - 1} if hops > 0 else None


# how `compare` shows this planner
VARIANTS: tuple[dict[str, Any], ...] = ({}, {"form": "literal"})
