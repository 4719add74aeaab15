"""Plan, simulate and train decentralized federated learning on energy-harvesting wireless devices.

Processes may be forked at any time, as `concurrent.futures.ProcessPoolExecutor` does by default on Linux. A forked
child computes with one thread, because the parent's threads do not exist in it and waiting for them never ends.
"""

import os

# Read once, when torch loads OpenMP: threads that spin while they wait starve each other on busy or small machines
# (twelve times slower beside one busy core). Whoever sets the variable keeps their setting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from heliomesh.comparison import compare
from heliomesh.learning.dataset import Dataset, DatasetError, dataset_from_arrays
from heliomesh.learning.replay import TrainJob
from heliomesh.learning.run import Run, TrainingError
from heliomesh.learning.theorem1 import diagnose
from heliomesh.learning.trainer import TrainingInterrupted, TrainSettings, train, train_many
from heliomesh.planning import continuous_bound, lower_bound, plan, planner_names
from heliomesh.problem.evaluation import exact_cost
from heliomesh.problem.policy import Plan
from heliomesh.problem.problem import Problem, build
from heliomesh.problem.size import TooLargeError
from heliomesh.scenario import Scenario, ScenarioError
from heliomesh.simulation.costs import simulate_costs
from heliomesh.simulation.diagnostics import summarise
from heliomesh.simulation.ledger import energy_ledger
from heliomesh.simulation.trace import Trace, TraceError, simulate

if hasattr(os, "register_at_fork"):  # not on Windows, where nothing is forked
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))

__all__ = [
    "Dataset",
    "DatasetError",
    "Plan",
    "Problem",
    "Run",
    "Scenario",
    "ScenarioError",
    "TooLargeError",
    "Trace",
    "TraceError",
    "TrainJob",
    "TrainSettings",
    "TrainingError",
    "TrainingInterrupted",
    "build",
    "compare",
    "continuous_bound",
    "dataset_from_arrays",
    "diagnose",
    "energy_ledger",
    "exact_cost",
    "lower_bound",
    "plan",
    "planner_names",
    "simulate",
    "simulate_costs",
    "summarise",
    "train",
    "train_many",
]
