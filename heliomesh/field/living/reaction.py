"""How devices react to changes of the world.

- *stale*: not at all; the plan of the first slot holds to the end.
- *re-planned*: they watch what they notice, and plan anew after an alarm.
- *fresh*: they are told the truth, and follow a plan for it from the very slot of each change on.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from heliomesh.field.living.change import Era
from heliomesh.field.living.conditional_plan import Answering, ConditionalPlan, Switching
from heliomesh.field.living.conditions import Conditions
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.replanning import Replanning
from heliomesh.model.policy import Plan
from heliomesh.scenario.errors import ScenarioError

Reaction = Literal["stale", "re-planned", "fresh"]
REACTIONS: tuple[Reaction, ...] = get_args(Reaction)


def first_answer(answering: Answering, truth: Sequence[Era], plan: Plan) -> ConditionalPlan:
    """The answer to the first slot's truth, of which ``plan`` is one where that is the scenario as it is."""
    conditions = truth[0].conditions
    return answering.with_plan(conditions, plan) if conditions == Conditions() else answering.answer_to(conditions)


def reacting(
    answering: Answering, truth: Sequence[Era], first: ConditionalPlan, reaction: str, watch: Watch
) -> Switching | Replanning:
    """A policy that reacts to a truth in one of the three ways."""
    match reaction:
        case "stale":
            return Switching(answering.problem, ((0, first),))
        case "re-planned":
            return Replanning(answering, first, watch)
        case "fresh":
            told = ((era.first_slot, answering.answer_to(era.conditions, first.plan)) for era in truth[1:])
            return Switching(answering.problem, ((0, first), *told))
    raise ScenarioError("reaction", f"one of {', '.join(REACTIONS)}", f"value {reaction!r}")
