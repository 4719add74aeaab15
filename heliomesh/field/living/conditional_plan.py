"""An answer to conditions: a plan for them, with the mixing weights of the links that it counts on.

The plan knows the remaining links only. What devices notice and remember is of all links of the network, so that
another answer can take over in any slot: an answer hands its plan the part that is about its own links, and puts what
the plan remembers back in its place. Links that it does not count on keep what was remembered of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from heliomesh.field.living.conditions import Conditions, edges_kept, problem_under, weights_under
from heliomesh.model.overhead import refuse_uncounted
from heliomesh.model.policy import Decision, Observation, Plan, Remembers, Weights, decided, refuse_memory
from heliomesh.model.problem import Problem
from heliomesh.planning import make_plan


@dataclass(frozen=True)
class ConditionalPlan:
    """What is done under a belief."""

    conditions: Conditions
    plan: Plan
    weights: Weights  # (edge,) and (device,)
    edge_lost: Tensor  # (edge,) bool: nothing is expected over it

    @property
    def memory_axes(self) -> tuple[str, ...]:
        """What each tensor of the plan's memory has as its second axis: devices or edges."""
        return tuple(getattr(self.plan.policy, "memory_axes", ()))

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """What the plan remembers, of all edges of the network; nothing where it has no memory."""
        policy = self.plan.policy
        if not isinstance(policy, Remembers):
            return ()
        parts = policy.recall(self._own(seen))
        before = seen.memory or (None,) * len(parts)
        triples = zip(parts, self.memory_axes, before, strict=True)
        return tuple(self._among_all(part, axis, old) for part, axis, old in triples)

    def decide(self, problem: Problem, slot: int, seen: Observation) -> Decision:
        """What the plan decides, with the answer's own weights."""
        followed, batch = decided(problem, self.plan.policy, slot, self._own(seen)), len(seen.battery_joule)
        weights = Weights(self.weights.edge.expand(batch, -1), self.weights.own.expand(batch, -1))
        return Decision(followed.power_watt, followed.trained, weights)

    def _own(self, seen: Observation) -> Observation:
        """What is noticed, heard and remembered of the plan's own links."""
        if not bool(self.edge_lost.any()):
            return seen
        kept = ~self.edge_lost
        parts = zip(seen.memory, self.memory_axes, strict=False)  # there is no memory in the first slot
        memory = tuple(part[:, kept] if axis == "edge" else part for part, axis in parts)
        return replace(seen.on_links(kept), memory=memory)

    def _among_all(self, part: Tensor, axis: str, before: Tensor | None) -> Tensor:
        """A part of the plan's memory with all edges, those lost as they were before."""
        if axis != "edge":
            return part
        shape = (len(part), len(self.edge_lost), *part.shape[2:])
        whole = part.new_zeros(shape) if before is None else before.clone()
        whole[:, ~self.edge_lost] = part
        return whole


@dataclass(frozen=True)
class Answering:
    """Who answers: a planner with its options, for one network."""

    problem: Problem
    planner: object  # a name, function or module
    options: Mapping[str, Any] = field(default_factory=dict)

    def answer_to(self, conditions: Conditions, previous: Plan | None = None) -> ConditionalPlan:
        """Plan for given conditions, from an earlier plan where the planner allows."""
        smaller = problem_under(self.problem, conditions)
        return self.with_plan(conditions, make_plan(smaller, self.planner, self.options, previous=previous))

    def with_plan(self, conditions: Conditions, plan: Plan) -> ConditionalPlan:
        """The answer that follows a plan; raises ScenarioError where memory or paid messages fit one network only."""
        if not getattr(plan.policy, "memory_axes", ()):
            refuse_memory(plan.policy, plan.planner, "a change of plans")
        refuse_uncounted(self.problem, None, plan.overhead, plan.planner, "would change with the plan")
        lost = ~edges_kept(self.problem, conditions)
        return ConditionalPlan(conditions, plan, weights_under(self.problem, conditions), lost)


@dataclass(frozen=True)
class Switching:
    """Given answers, each from its slot on; its memory is the number of the slot, and then the answers' own."""

    problem: Problem
    answers: Sequence[tuple[int, ConditionalPlan]]  # by rising first slot, the first being 0

    @property
    def continuous_powers(self) -> bool:
        """Whether a plan has them."""
        return any(getattr(answer.plan.policy, "continuous_powers", False) for _, answer in self.answers)

    def recall(self, seen: Observation) -> tuple[Tensor, ...]:
        """What was noticed in a slot is remembered by the answer of that slot, whose weights were in force."""
        if not seen.memory:
            start = torch.zeros(len(seen.battery_joule), dtype=torch.long, device=self.problem.device)
            return start, *self._in_force(0).recall(seen)
        slot, *own = seen.memory
        return slot + 1, *self._in_force(int(slot[0])).recall(replace(seen, memory=tuple(own)))

    def decide(self, slot: int, seen: Observation) -> Decision:
        """As the answer in force decides."""
        return self._in_force(slot).decide(self.problem, slot, replace(seen, memory=seen.memory[1:]))

    def _in_force(self, slot: int) -> ConditionalPlan:
        return [answer for first, answer in self.answers if first <= slot][-1]
