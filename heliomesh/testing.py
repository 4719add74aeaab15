"""Contract tests that code from outside can run on its own planner, harvest, dataset, model or aggregation rule.

Each check takes what the catalogs take: a module, a function or a name. It uses it on a small scenario and raises
`ContractError` with one sentence where the contract is broken. The contracts are in docs/extend.md.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from heliomesh.common import catalog
from heliomesh.common.memory_limit import TooLargeError
from heliomesh.interop.export_tables import random_states
from heliomesh.learning.aggregation import Arrived
from heliomesh.model.policy import Policy, check_sight
from heliomesh.model.problem import Problem, build
from heliomesh.planning import find_planner, make_plan
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import AGGREGATION_CATALOG, Learning
from heliomesh.scenario.section import Section
from heliomesh.simulation.trace import simulate
from heliomesh.tasks.dataset import dataset_from_arrays, load_dataset
from heliomesh.tasks.model import InputShape, build_model

_EPISODES = 64
_STATES = 8  # of every slot in which devices are asked what they look at
_SURE = 6.0  # standard errors between a sampled and an exact mean


class ContractError(AssertionError):
    """What a contract expects and what was found, in one sentence."""


def check_planner(planner: object, problem: Problem | None = None, **options: Any) -> None:
    """A planner plans for a small network, twice the same; devices see what it says, and overdraw no battery."""
    problem, found = problem or build(Scenario.load("tiny")), _usable("planner", partial(find_planner, planner))
    right = issubclass(found.options, Section)
    _expect(right, "planner", "Options to be a subclass of heliomesh.scenario.section.Section", found.options)
    made = partial(make_plan, problem, planner, options, bound=False)
    plans = [_usable("planner", made, "a plan") for _ in range(2)]
    paid = "decisions that batteries pay for"
    first, second = (_usable("planner", partial(simulate, problem, plan, 4), paid) for plan in plans)
    _usable("planner", partial(_check_sights, problem, plans[0].policy), "devices that see what it says")
    _expect(np.array_equal(first.cost, second.cost), "planner", "the same plan for the same seed", "another")


def _check_sights(problem: Problem, policy: Policy) -> None:
    """In random states of every slot, no device looks beyond its sight."""
    rng = np.random.default_rng(0)
    for slot in range(problem.slots):
        check_sight(policy, slot, random_states(problem, rng, _STATES), range(problem.num_devices))


def check_harvest(source: object, **settings: Any) -> None:
    """A harvest source builds a law for a small network, and what it draws has the mean that the law says."""
    changes = {"harvest.source": source} | {f"harvest.{field}": value for field, value in settings.items()}
    problem = _usable("harvest", lambda: build(Scenario.load("tiny").override(changes)), "a law")
    law, devices, slots = problem.harvest.law, problem.num_devices, problem.slots
    right = len(law.scale) == devices and np.shape(law.phase_of_slot) == (slots,)
    _expect(
        right, "harvest", f"one scale for each of {devices} devices and a phase for each of {slots} slots", "others"
    )
    trace = simulate(problem, make_plan(problem, "uncoordinated", {}, bound=False), _EPISODES)
    by_episode = trace.harvested_joule.mean(1)  # (episode, device)
    error = by_episode.std(0) / math.sqrt(_EPISODES) + 1e-9 * (1 + by_episode.mean(0))
    off = np.abs(by_episode.mean(0) - law.mean_joule().cpu().numpy()) / error
    _expect(bool((off < _SURE).all()), "harvest", "draws with the law's mean", f"{off.max():.1f} standard errors off")


def check_dataset(dataset: object, settings: Learning | None = None) -> None:
    """A dataset loads samples of one shape, finite, labelled 0 … num_classes − 1, and the same each time."""
    asked = (settings or Learning()).model_copy(update={"dataset": _named("dataset", dataset)})
    first, second = (_usable("dataset", partial(load_dataset, asked)) for _ in range(2))
    parts = (first.train_inputs, first.train_labels, first.test_inputs, first.test_labels)
    right = _usable("dataset", partial(dataset_from_arrays, first.name, *parts, first.num_classes))
    kinds = f"types {', '.join(str(part.dtype) for part in parts)}"
    _expect(first.sha256 == right.sha256, "dataset", "what dataset_from_arrays makes, float32 and int64", kinds)
    _expect(first.sha256 == second.sha256, "dataset", "the same data twice", "others")


def check_model(model: object, input_shape: InputShape = (1, 8, 8), num_classes: int = 10) -> None:
    """A model can be averaged and replayed: no buffers that change, no randomness, (batch, class) outputs."""
    built = partial(build_model, _named("model", model), input_shape, num_classes, seed=0)
    first, second = (_usable("model", built).parameters() for _ in range(2))
    same = all(map(torch.equal, first, second))
    _expect(same, "model", "first weights from the default generator alone", "others")


def check_aggregation(rule: object) -> None:
    """A rule keeps shape and type, leaves its inputs alone, and keeps a model on which all agree."""
    found = partial(catalog.find, AGGREGATION_CATALOG, _named("aggregation", rule))
    mix = catalog.function(_usable("aggregation", found, "a known name"), "mix")
    generator = torch.Generator().manual_seed(0)
    for packets in (1, 2, 5):
        models, share = torch.randn(packets + 1, 7, generator=generator), 1 / (packets + 2)
        kept, weight = models.clone(), torch.full((packets,), share)
        mixed = mix(Arrived(models[0], models[1:], weight, share))
        right = mixed.shape == (7,) and mixed.dtype == models.dtype and bool(mixed.isfinite().all())
        _expect(right, "aggregation", f"finite weights of shape (7,) and {models.dtype}", mixed)
        _expect(torch.equal(models, kept), "aggregation", "inputs left alone", "changed inputs")
        agreed = mix(Arrived(models[0], models[:1].expand(packets, -1), weight, share))
        close = torch.allclose(agreed, models[0], rtol=1e-4, atol=1e-5)
        _expect(close, "aggregation", "a model on which all agree to be kept", "another")


def _expect(holds: bool, kind: str, expected: str, actual: object) -> None:
    if not holds:
        raise ContractError(f"{kind}: expected {expected}, actual {actual!s:.80}")


def _usable(kind: str, work: Callable[[], Any], expected: str = "to be usable") -> Any:
    """The work's result; errors that tell of a wrong input become one sentence, bugs keep their traceback."""
    try:
        return work()
    except (ValueError, LookupError, AssertionError, TooLargeError) as error:
        raise ContractError(f"{kind}: expected {expected}, actual: {error}") from error


def _named(kind: str, variant: object) -> str:
    """The text that means a variant, which the caller names."""
    text = str(_usable(kind, partial(catalog.spelled, variant), "an importable object"))
    catalog.vouch(text)
    return text
