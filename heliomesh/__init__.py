"""Plan, simulate and train decentralized federated learning on energy-harvesting wireless devices.

Public names are imported when they are first used: `import heliomesh` itself loads neither PyTorch nor NumPy.

Processes may be forked at any time, as `concurrent.futures.ProcessPoolExecutor` does by default on Linux. A forked
child computes with one thread, because the parent's threads do not exist in it and waiting for them never ends.
"""

import os
import sys
from importlib import import_module
from typing import Any

# Read once, when torch loads OpenMP: threads that spin while they wait starve each other on busy or small machines
# (twelve times slower beside one busy core). Whoever sets the variable keeps their setting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _compute_alone() -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing is forked
    os.register_at_fork(after_in_child=_compute_alone)

# Where each public name lives; `__init__.pyi` says the same to type checkers, and a test compares the two.
_HOMES = {
    "heliomesh.jobs.job": ("Job",),
    "heliomesh.jobs.scheme": ("Scheme",),
    "heliomesh.jobs.store": ("Store",),
    "heliomesh.jobs.training": ("run", "train", "train_many"),
    "heliomesh.tasks.dataset": ("Dataset", "DatasetError", "dataset_from_arrays"),
    "heliomesh.learning.run": ("Run", "TrainingError"),
    "heliomesh.learning.settings": ("TrainJob", "TrainSettings"),
    "heliomesh.learning.theorem1": ("diagnose",),
    "heliomesh.learning.trainer": ("Execution", "TrainingInterrupted"),
    "heliomesh.common.mistakes": ("MistakeError",),
    "heliomesh.pages.page": ("report",),
    "heliomesh.planning": ("average_bound", "lower_bound", "plan", "planner_names"),
    "heliomesh.grid.evaluation": ("exact_cost",),
    "heliomesh.model.policy": ("Plan",),
    "heliomesh.model.problem": ("Problem", "build"),
    "heliomesh.bounds.sampled_bound": ("SampledBound", "sampled_bound"),
    "heliomesh.common.memory_limit": ("TooLargeError",),
    "heliomesh.scenario.scenario": ("Scenario", "ScenarioError"),
    "heliomesh.simulation.costs": ("simulate_costs",),
    "heliomesh.simulation.diagnostics": ("summarise",),
    "heliomesh.simulation.ledger": ("energy_ledger",),
    "heliomesh.simulation.trace": ("Trace", "TraceError", "simulate"),
    "heliomesh.studies.bench.bench": ("bench",),
    "heliomesh.studies.compare": ("compare",),
    "heliomesh.studies.gain": ("gain",),
    "heliomesh.studies.gap_ledger": ("gap_ledger",),
    "heliomesh.studies.live": ("live",),
    "heliomesh.studies.pilot": ("pilot",),
    "heliomesh.studies.reproduce": ("reproduce",),
    "heliomesh.studies.sizing": ("size",),
    "heliomesh.studies.tuning": ("tune",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("heliomesh")
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'heliomesh' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
