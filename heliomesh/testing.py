"""Contract tests that code from outside can run on its own planner, source, dataset, model, rule or optimiser.

Each check takes what the catalogs take: a module, a function or a name. It uses it on a small scenario and raises
`ContractError` with one sentence where the contract is broken. The contracts are in docs/extend.md.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from heliomesh.common import catalog
from heliomesh.common.memory_limit import TooLargeError
from heliomesh.learning.aggregation import Arrived
from heliomesh.learning.stacked import Samples
from heliomesh.learning.strategy import choose_for
from heliomesh.model.policy import Observation, Policy, check_sight
from heliomesh.model.problem import Problem, build
from heliomesh.planning import find_planner, make_plan
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import AGGREGATION_CATALOG, CHANNEL_CATALOG, HARVEST_CATALOG, Learning
from heliomesh.scenario.section import Section
from heliomesh.simulation.ledger import energy_ledger
from heliomesh.simulation.trace import simulate
from heliomesh.tasks.dataset import DATASET_CATALOG, Dataset
from heliomesh.tasks.model import InputShape, build_model

_SCENARIO = "tiny"
_EPISODES = 64
_STATES = 32  # in which devices are asked what they look at
_SURE = 6.0  # standard errors between a sampled and an exact mean


class ContractError(AssertionError):
    """What a contract expects and what was found, in one sentence."""


def check_planner(planner: object, problem: Problem | None = None, **options: Any) -> None:
    """A planner plans for a small network, twice the same; devices see what it says, and overdraw no battery."""
    problem = problem or build(Scenario.load(_SCENARIO))
    found = _without_error("planner", lambda: find_planner(planner))
    _takes(1, "planner", found.plan, "a function plan(context)")
    _check_section("planner", "Options", found.options)
    _without_error("planner", found.options, "defaults for all options")
    made = partial(make_plan, problem, planner, options, bound=False)
    plans = [_without_error("planner", made, "a plan") for _ in range(2)]
    expected = "decisions that batteries pay for"
    first, second = (_without_error("planner", partial(simulate, problem, plan, 4), expected) for plan in plans)
    _without_error("planner", partial(_check_sights, problem, plans[0].policy), "devices that see what it says")
    _expect(bool((first.cost == second.cost).all()), "planner", "the same plan for the same seed", "another")
    imbalance = float(np.abs(energy_ledger(first).imbalance_joule).max())
    _expect(imbalance < 1e-6, "planner", "energy that balances", f"{imbalance:g} J unexplained")


def _check_sights(problem: Problem, policy: Policy) -> None:
    """In random states and slots, no device looks beyond its sight."""
    rng, shape = np.random.default_rng(0), (1, problem.num_devices)
    for slot in rng.integers(problem.slots, size=_STATES).tolist():
        seen = Observation.nothing(problem, 1)
        seen.channel_level.copy_(
            torch.from_numpy(rng.integers(problem.channel.levels, size=seen.channel_level.shape))
        )
        seen.weather.copy_(torch.from_numpy(rng.integers(problem.harvest.law.num_weather, size=shape)))
        seen.uniform.copy_(torch.from_numpy(rng.random(shape)))
        seen.battery_joule.copy_(torch.from_numpy(rng.random(shape)) * problem.battery.lacking(seen.battery_joule))
        check_sight(policy, slot, seen, range(problem.num_devices))


def check_harvest(source: object, **settings: Any) -> None:
    """A harvest source builds a law for a small network, and what it draws has the mean that the law says."""
    scenario = _with_source("harvest", HARVEST_CATALOG, source, settings)
    problem = _without_error("harvest", lambda: build(scenario), "a law")
    law = problem.harvest.law
    _expect(len(law.scale) == problem.num_devices, "harvest", "one scale for each device", tuple(law.scale.shape))
    slots = np.asarray(law.phase_of_slot)
    _expect(slots.shape == (scenario.slots,), "harvest", "one phase for each slot", slots.shape)
    _expect(int(slots.max()) < len(law.joule), "harvest", f"phases below {len(law.joule)}", int(slots.max()))
    trace = simulate(problem, make_plan(problem, "uncoordinated", {}, bound=False), _EPISODES)
    by_episode = trace.harvested_joule.mean(1)  # (episode, device)
    error = by_episode.std(0) / math.sqrt(_EPISODES) + 1e-9 * (1 + by_episode.mean(0))
    off = np.abs(by_episode.mean(0) - law.mean_joule().cpu().numpy()) / error
    _expect(bool((off < _SURE).all()), "harvest", "draws with the law's mean", f"{off.max():.1f} standard errors off")


def check_channel(source: object, **settings: Any) -> None:
    """A channel source builds rising gains and a stochastic kernel, and plans and simulations run on it."""
    scenario = _with_source("channel", CHANNEL_CATALOG, source, settings)
    problem = _without_error("channel", lambda: build(scenario), "gains (level,) and a kernel (level, level)")
    simulate(problem, make_plan(problem, "uncoordinated", {}, bound=False), 2)


def check_dataset(dataset: object, settings: Learning | None = None) -> None:
    """A dataset loads samples of one shape, finite, labelled 0 … num_classes − 1, and the same each time."""
    load = _function("dataset", DATASET_CATALOG, dataset, "load")
    first, second = (_without_error("dataset", lambda: load(settings or Learning()), "a Dataset") for _ in range(2))
    _expect(isinstance(first, Dataset), "dataset", "a Dataset, as dataset_from_arrays makes it", type(first))
    for part in ("train", "test"):
        inputs, labels = getattr(first, f"{part}_inputs"), getattr(first, f"{part}_labels")
        _expect(inputs.dtype == torch.float32, "dataset", f"{part}_inputs of float32", inputs.dtype)
        _expect(inputs.ndim in (2, 4), "dataset", "images or feature vectors", f"{part}_inputs {tuple(inputs.shape)}")
        _expect(bool(inputs.isfinite().all()), "dataset", f"finite {part}_inputs", "NaN or infinity")
        _expect(labels.dtype == torch.int64, "dataset", f"{part}_labels of int64", labels.dtype)
        _expect(len(labels) == len(inputs), "dataset", f"one of {part}_labels for each input", len(labels))
        inside = bool(((labels >= 0) & (labels < first.num_classes)).all())
        _expect(inside, "dataset", f"{part}_labels below {first.num_classes}", f"{labels.min()} to {labels.max()}")
        _expect(torch.equal(inputs, getattr(second, f"{part}_inputs")), "dataset", "the same data twice", "others")


def check_model(model: object, input_shape: InputShape = (1, 8, 8), num_classes: int = 10) -> None:
    """A model can be averaged and replayed: no buffers that change, no randomness, (batch, class) outputs."""
    built = partial(build_model, _named("model", model), input_shape, num_classes, seed=0)
    first, second = (_without_error("model", built) for _ in range(2))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        _expect(torch.equal(one, other), "model", "first weights from the default generator alone", "others")


def check_aggregation(rule: object) -> None:
    """A rule keeps shape and type, leaves its inputs alone, and keeps a model on which all agree."""
    mix = _function("aggregation", AGGREGATION_CATALOG, rule, "mix")
    generator = torch.Generator().manual_seed(0)
    for packets in (1, 2, 5):
        models = torch.randn(packets + 1, 7, generator=generator)
        weight = torch.full((packets,), 1 / (packets + 2))
        kept = models.clone()
        mixed = mix(Arrived(models[0], models[1:], weight, 1 / (packets + 2)))
        _expect(isinstance(mixed, torch.Tensor), "aggregation", "a tensor", type(mixed))
        _expect(mixed.shape == (7,), "aggregation", "weights of shape (7,)", tuple(mixed.shape))
        _expect(mixed.dtype == models.dtype, "aggregation", f"weights of {models.dtype}", mixed.dtype)
        _expect(torch.equal(models, kept), "aggregation", "inputs left alone", "changed inputs")
        _expect(bool(mixed.isfinite().all()), "aggregation", "finite weights", "NaN or infinity")
        same = models[:1].expand(packets, -1)
        agreed = mix(Arrived(models[0], same, weight, 1 / (packets + 2)))
        close = torch.allclose(agreed, models[0], rtol=1e-4, atol=1e-5)
        _expect(close, "aggregation", "a model on which all agree to be kept", "another")


def check_optimiser(optimiser: object) -> None:
    """An optimiser is PyTorch's kind, and its steps move weights to finite values."""
    model = torch.nn.Linear(4, 3)
    samples = Samples(torch.linspace(-1, 1, 32).view(8, 4), torch.arange(8) % 3)
    settings = Learning(optimizer=_named("optimiser", optimiser))
    strategy = _without_error("optimiser", lambda: choose_for(settings, model, samples, "fp32", "loop"))
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).unsqueeze(0)
    before = weights.clone()
    strategy.train(weights, torch.tensor([0]), torch.arange(8).view(1, 2, 4), samples, 0.01)
    _expect(bool(weights.isfinite().all()), "optimiser", "finite weights", "NaN or infinity")
    _expect(not torch.equal(weights, before), "optimiser", "weights that move", "none that did")


def _expect(holds: bool, kind: str, expected: str, actual: object) -> None:
    if not holds:
        raise ContractError(f"{kind}: expected {expected}, actual {actual}")


def _without_error(kind: str, work: Callable[[], Any], expected: str = "to be usable") -> Any:
    """The work's result; errors that tell of a wrong input become one sentence, bugs keep their traceback."""
    try:
        return work()
    except (ValueError, LookupError, AssertionError, TooLargeError) as error:
        raise ContractError(f"{kind}: expected {expected}, actual: {error}") from error


def _named(kind: str, variant: object) -> str:
    """The text that means a variant, which the caller names."""
    text = str(_without_error(kind, lambda: catalog.spelled(variant), "an importable object"))
    catalog.vouch(text)
    return text


def _function(kind: str, package: str, variant: object, name: str) -> Callable[[Any], Any]:
    """The function that a contract asks for, with its one parameter."""
    found = variant
    if isinstance(variant, str):
        found = _without_error(kind, partial(catalog.find, package, _named(kind, variant)), "a known name")
    function: Callable[[Any], Any] = catalog.function(found, name)
    _expect(callable(function), kind, f"a function {name} or its module", repr(variant)[:80])
    _takes(1, kind, function, f"{name} to take one argument")
    return function


def _takes(number: int, kind: str, function: Callable[..., Any], expected: str) -> None:
    names = list(inspect.signature(function).parameters)
    _expect(len(names) == number, kind, expected, f"parameters ({', '.join(names)})")


def _check_section(kind: str, name: str, settings: object) -> None:
    right = isinstance(settings, type) and issubclass(settings, Section)
    _expect(right, kind, f"{name} to be a subclass of heliomesh.scenario.section.Section", settings)


def _with_source(section: str, package: str, source: object, settings: dict[str, Any]) -> Scenario:
    """A small scenario on a source."""
    name = _named(section, source)
    found = _without_error(section, lambda: catalog.find(package, name), "a known name")
    if hasattr(found, "Settings"):
        _check_section(section, "Settings", found.Settings)
        _expect("source" in found.Settings.model_fields, section, "Settings to have a field source", "none")
    build_function = catalog.function(found, "build")
    _expect(callable(build_function), section, "a function build(settings, scenario) or its module", repr(found)[:80])
    _takes(2, section, build_function, "build(settings, scenario)")
    changes = {f"{section}.source": name, **{f"{section}.{field}": value for field, value in settings.items()}}
    scenario: Scenario = _without_error(section, lambda: Scenario.load(_SCENARIO).override(changes), "valid settings")
    return scenario
