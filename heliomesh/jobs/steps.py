"""The three steps of a job as pure functions: plan, simulate, train."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from heliomesh.field.living.change import eras
from heliomesh.field.living.conditional_plan import Answering
from heliomesh.field.living.conditions import world_under
from heliomesh.field.living.detector import Watch
from heliomesh.field.living.reaction import first_answer, reacting
from heliomesh.jobs.job import IDEAL, Job
from heliomesh.learning.checkpoint import Checkpoints
from heliomesh.learning.trainer import Execution, Training
from heliomesh.model.endless import Endless
from heliomesh.model.policy import Plan
from heliomesh.model.problem import Problem, build
from heliomesh.planning import make_plan
from heliomesh.simulation.costs import EpisodeMeans, simulate_means
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.trace import RECORDED, Trace, axis_sizes, simulate
from heliomesh.slot.agreement import agreed
from heliomesh.slot.learning_model import slots_to_deadline
from heliomesh.tasks.dataset import given_or_loaded


def problem_of(job: Job) -> Problem:
    """What the job's planner decides about."""
    return build(job.scenario, job.plan_device, job.plan_dtype)


def planned(job: Job, work: Execution, problem: Problem | None = None) -> Plan:
    """Step 1, for the job's problem where that is built already."""
    problem = problem or problem_of(job)
    made = make_plan(problem, job.planner, job.planner_options, parallel_map=work.parallel_map, track=work.track)
    return agreed(problem, made, job.agree)


def job_of(problem: Problem, planner: Any, options: Mapping[str, Any]) -> Job:
    """A job that plans as the problem is computed."""
    dtype = str(problem.dtype).removeprefix("torch.")
    return Job(problem.scenario, planner, options, plan_device=str(problem.device), plan_dtype=dtype)


def simulated_means(jobs: Sequence[Job], plan: Plan, work: Execution) -> EpisodeMeans:
    """Cost and darkness of jobs that differ by their episodes only, without their traces; (job,) each."""
    plan = _acting(jobs[0], plan)
    (problem, truth), numbers = _world(jobs[0], plan), [job.episode for job in jobs]
    return simulate_means(problem, plan, numbers, jobs[0].seed, truth, work.track, at_once=64)


def simulated(jobs: Sequence[Job], plan: Plan | None, work: Execution) -> list[Trace]:
    """Step 2, for jobs that differ by their episodes only."""
    plan = plan and _acting(jobs[0], plan)
    (problem, truth), numbers = _world(jobs[0], plan), [job.episode for job in jobs]
    if plan is None:
        trace = lossless(problem, len(jobs), jobs[0].agree)
    else:
        trace = simulate(problem, plan, numbers, jobs[0].seed, truth=truth, track=work.track)
    return [trace.episode(position) for position in range(len(jobs))]


def _acting(job: Job, plan: Plan) -> Plan:
    """What devices follow: the plan, or a policy that begins with it and reacts to changes."""
    if job.reaction is None:
        return plan
    problem = problem_of(job)
    truth, answering = eras(problem, job.changes), Answering(problem, job.planner, job.planner_options)
    watch = Watch(job.false_alarm_prob, seed=job.seed)
    policy = reacting(answering, truth, first_answer(answering, truth, plan), job.reaction, watch)
    return Plan(f"{plan.planner}, {job.reaction}", policy)


def _world(job: Job, plan: Plan | None) -> tuple[Problem, dict[int, Problem]]:
    """The job's problem, which a policy may have built, and the world from every slot on in which it changes."""
    problem: Problem = getattr(plan and plan.policy, "problem", None) or problem_of(job)
    return problem, {slot: world_under(problem, now) for slot, now in eras(problem, job.changes).items()}


def begun(
    jobs: Sequence[Job], traces: Sequence[Trace], work: Execution, checkpoints: Sequence[Checkpoints] = ()
) -> Training:
    """Step 3, for jobs of one dataset, model and horizon: their training in one stack."""
    first = jobs[0]
    dataset = given_or_loaded(first.dataset, first.scenario.learning)
    tasks = [job.train_job(trace) for job, trace in zip(jobs, traces, strict=True)]
    origins = [origin(job, trace) for job, trace in zip(jobs, traces, strict=True)]
    return Training(tasks, dataset, first.training, origins, work, checkpoints)


def origin(job: Job, trace: Trace) -> dict[str, Any]:
    """What a run notes of the steps before it."""
    own = trace if job.trace is None else trace.episode(job.episode)
    summary = summarise(own)
    facts = {"cost": float(own.cost[0]), "participation": summary.participation, "delivery": summary.delivery}
    return {"key": job.key(), "identity": job.identity(), **facts}


def network_facts(problem: Problem) -> dict[str, Any]:
    """What a scenario amounts to."""
    facts = {
        "scenario": problem.scenario.name,
        "hash": problem.scenario.content_hash[:12],
        "devices": problem.num_devices,
        "diameter": problem.topology.diameter,
        "scarcity": float(problem.scarcity().mean()),
    }
    if problem.scenario.energy.battery_levels is None:  # planners choose their own grids
        return facts
    return facts | {"spending rounded up by at most": f"{max(problem.rounding_excess(), 0.0):.0%}"}


def plan_facts(made: Plan) -> dict[str, Any]:
    """What is known about a plan; costs and bound of one without an end are averages over all time."""
    endless = {"repeats after [slots]": made.policy.period} if isinstance(made.policy, Endless) else {}
    return {
        "planner": made.planner,
        **endless,
        "expected cost (grid)": made.expected_cost,
        "lower bound": made.lower_bound,
        "converged": made.converged,
        "rounds": made.rounds,
        "fixed-point residual": made.residual,
        "seconds": made.seconds,
    } | {f"overhead: {name.replace('_', ' ')}": value for name, value in asdict(made.overhead).items()}


def lossless(problem: Problem, episodes: int, agree: int = 0) -> Trace:
    """A trace in which everyone trains and sends at the largest power, energy is no matter and all arrives.

    In the last ``agree`` slots before each deadline nobody trains.
    """
    sizes, topology = axis_sizes(problem, episodes), problem.topology
    arrays = {column.name: np.zeros(column.shape(sizes), column.dtype) for column in RECORDED}
    arrays |= {name: np.ones_like(arrays[name]) for name in ("scheduled", "delivered")}
    arrays["scheduled"][:, slots_to_deadline(problem) < agree] = False
    arrays["power_watt"] += float(problem.actions.power_watt.max())
    ends = {"edge_receiver": topology.edge_receiver, "edge_sender": topology.edge_sender}
    return Trace(problem.scenario.to_toml(), IDEAL, 0, **arrays, **ends)
