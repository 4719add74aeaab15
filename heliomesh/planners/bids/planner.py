"""Plan for learning, and speak little: a bid and a grant a slot, a few dozen bytes, or nothing at all.

Devices value training and packets as `contributions` does, and energy by V_i(t, b) from practice
(`simulation/practice.py`). Instead of rounds of messages there are two short ones (`messages.py`), or none where even
these are dear (`silent.py`). Where batteries pay for messages the plan decides how much to talk: both forms practise,
paying for what they say, and the one is taken of which the learning model expects more.
"""

from dataclasses import replace
from typing import Literal

from pydantic import Field

from heliomesh.common.memory_limit import check_fits
from heliomesh.model.endless import EndlessOptions, endless_plan
from heliomesh.model.overhead import Overhead, is_paid, online_overhead, paid_talk
from heliomesh.model.planner_context import PlannerContext
from heliomesh.model.policy import Plan
from heliomesh.planners.bids.accounts import Accountants, held_entries
from heliomesh.planners.bids.messages import Bidders
from heliomesh.planners.bids.silent import Silent
from heliomesh.scenario.errors import ScenarioError, refuse
from heliomesh.simulation import practice
from heliomesh.slot import energy_table
from heliomesh.slot.bids import NOBODY, message_bytes
from heliomesh.slot.frame import FRAME_SLOTS
from heliomesh.slot.learning_model import PERIOD_SLOTS


class Options(practice.PracticeOptions, EndlessOptions):
    """Options of the planner."""

    leans: Literal["devices", "labels"] = Field(
        "labels", description="directions in which training moves models: one per device, or its label shares"
    )
    talk: Literal["auto", "messages", "silent"] = Field(
        "auto",
        description="a bid and a grant a slot, or nothing; auto: messages where they are free, else what the plan "
        "itself expects more of",
    )


def plan(context: PlannerContext[Options]) -> Plan:
    """A plan for the horizon, or for a cycle with its deadlines, and as many of them as a frame has slots."""
    if not context.options.endless:
        return _plan(context)
    deadline = context.problem.scenario.cost.deadline
    least = {"end": FRAME_SLOTS, "always": PERIOD_SLOTS}[deadline] if isinstance(deadline, str) else max(deadline)
    return endless_plan(context, _plan, least)


def _plan(context: PlannerContext[Options]) -> Plan:
    """Practise at a guessed price of energy, then plan the values of energy, and practise again."""
    start, options = practice.prepared(context), context.options
    talking, silent = (
        kind(problem=start.problem, bias_weight=start.bias_weights(), values=None, directions=start.leans.directions)
        for kind in (Bidders, Silent)
    )
    _check_size(talking, options)
    notes: tuple[str, ...]
    if options.talk == "auto" and is_paid(start.problem):
        policy, notes = _worth_more(context, start, talking, silent)
    else:
        policy, note = practice.practised(context, start, silent if options.talk == "silent" else talking)
        notes = (note,)
    notes = (_told(policy), *notes, *_coarse(policy), *start.leans.notes, *policy.model.assumptions)
    return Plan("bids", policy, rounds=options.passes, overhead=_overhead(policy), notes=notes)


def _worth_more(
    context: PlannerContext[Options], start: practice.Preparation, talking: Accountants, silent: Accountants
) -> tuple[Accountants, tuple[str, ...]]:
    """The form of which practice expects more, and what was expected of both."""
    # each from the same random numbers, so that the form chosen is the plan that asking for it gives
    policy, note = practice.practised(replace(context), start, silent)
    try:
        paid_talk(start.problem, talking)
    except ScenarioError as too_long:  # the band's share of airtime forbids messages
        return policy, (note, f"devices are silent ({too_long})")
    spoken, note_of_spoken = practice.practised(replace(context), start, talking)
    expected = practice.forecast(context, spoken), practice.forecast(context, policy)
    if expected[0] > expected[1]:
        policy, note = spoken, note_of_spoken
    text = f"expected of messages {expected[0]:.1f}, of silence {expected[1]:.1f} slots of training"
    return policy, (note, text)


def _sizes(policy: Accountants) -> tuple[int, int]:
    """Directions and powers, which messages tell."""
    return policy.model.directions.shape[1], len(policy.model.network.power_watt)


def _told(policy: Accountants) -> str:
    """What devices say."""
    if policy.talk is None:
        return "devices exchange no messages"
    bid_bytes, grant_bytes = message_bytes(*_sizes(policy))
    return f"a bid has {bid_bytes} bytes and a grant {grant_bytes}"


def _coarse(policy: Accountants) -> tuple[str, ...]:
    """A remark where devices can hardly tell how full their batteries are."""
    capacity = policy.problem.battery.capacity_joule
    units = energy_table.battery_units(policy.problem, capacity)[capacity > 0]
    least = int(units.min()) if len(units) else _FEW_UNITS
    return () if least >= _FEW_UNITS else (f"devices count whole microjoules: a full battery has only {least}",)


def _overhead(policy: Accountants) -> Overhead:
    entries = policy.problem.slots * policy.problem.num_energy
    return Overhead(entries) if policy.talk is None else online_overhead(policy.problem, policy.talk, entries)


def _check_size(policy: Accountants, options: Options) -> None:
    """Refuse what a byte does not count, and what memory does not hold."""
    problem, (num_directions, num_powers) = policy.problem, _sizes(policy)
    degree = max(map(len, problem.topology.neighbours), default=0)
    refuse(degree > NOBODY, "network", f"at most {NOBODY} neighbours, which a byte counts", f"degree {degree}")
    refuse(num_powers > _BYTE, "energy.powers_watt", f"at most {_BYTE}, which a byte counts", f"number {num_powers}")
    points = problem.harvest.law.num_weather * energy_table.num_points(problem)
    held = 8 * options.practice * held_entries(problem, num_directions)
    held += 24 * problem.slots * problem.num_devices * points
    check_fits("bids and grants", held, options.memory_gib, "lower practice, or use the planner 'news'")


_BYTE = 256
_FEW_UNITS = 1000

VERSION = 2  # longer memory, and receivers that agree on whom they name
OBJECTIVE = "learning"
READS_LEARNING = ("aggregation", "partition", "alpha", "shards_per_device")
