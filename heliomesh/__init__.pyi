from heliomesh.bounds.sampled_bound import SampledBound as SampledBound
from heliomesh.bounds.sampled_bound import sampled_bound as sampled_bound
from heliomesh.common.memory_limit import TooLargeError as TooLargeError
from heliomesh.common.mistakes import MistakeError as MistakeError
from heliomesh.grid.evaluation import exact_cost as exact_cost
from heliomesh.jobs.job import Job as Job
from heliomesh.jobs.scheme import Scheme as Scheme
from heliomesh.jobs.store import Store as Store
from heliomesh.jobs.training import run as run
from heliomesh.jobs.training import train as train
from heliomesh.jobs.training import train_many as train_many
from heliomesh.learning.run import Run as Run
from heliomesh.learning.run import TrainingError as TrainingError
from heliomesh.learning.settings import TrainJob as TrainJob
from heliomesh.learning.settings import TrainSettings as TrainSettings
from heliomesh.learning.trainer import (
    Execution as Execution,
)
from heliomesh.learning.trainer import (
    TrainingInterrupted as TrainingInterrupted,
)
from heliomesh.model.policy import Plan as Plan
from heliomesh.model.problem import Problem as Problem
from heliomesh.model.problem import build as build
from heliomesh.pages.page import report as report
from heliomesh.planning import (
    average_bound as average_bound,
)
from heliomesh.planning import (
    lower_bound as lower_bound,
)
from heliomesh.planning import (
    plan as plan,
)
from heliomesh.planning import (
    planner_names as planner_names,
)
from heliomesh.scenario.errors import ScenarioError as ScenarioError
from heliomesh.scenario.scenario import Scenario as Scenario
from heliomesh.simulation.costs import simulate_costs as simulate_costs
from heliomesh.simulation.diagnostics import summarise as summarise
from heliomesh.simulation.ledger import energy_ledger as energy_ledger
from heliomesh.simulation.trace import Trace as Trace
from heliomesh.simulation.trace import TraceError as TraceError
from heliomesh.simulation.trace import simulate as simulate
from heliomesh.studies.bench.bench import bench as bench
from heliomesh.studies.compare import compare as compare
from heliomesh.studies.gap_ledger import gap_ledger as gap_ledger
from heliomesh.studies.live import live as live
from heliomesh.studies.pilot import pilot as pilot
from heliomesh.studies.reproduce import reproduce as reproduce
from heliomesh.studies.sizing import size as size
from heliomesh.studies.tuning import tune as tune
from heliomesh.tasks.dataset import (
    Dataset as Dataset,
)
from heliomesh.tasks.dataset import (
    DatasetError as DatasetError,
)
from heliomesh.tasks.dataset import (
    dataset_from_arrays as dataset_from_arrays,
)

__version__: str
