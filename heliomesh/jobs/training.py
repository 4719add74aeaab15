"""Train: `hm.run` from a scenario on; under a trace at hand `hm.train`, and `hm.train_many` runs in one stack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from heliomesh.common.arguments import Index, checked
from heliomesh.common.mistakes import ArgumentError
from heliomesh.jobs.job import Job, world_of
from heliomesh.jobs.steps import begun
from heliomesh.jobs.store import Store, opened
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.replay import Replay
from heliomesh.learning.run import Run, TrainingError
from heliomesh.learning.same_run import told_difference
from heliomesh.learning.settings import TrainJob, TrainSettings
from heliomesh.learning.trainer import Execution
from heliomesh.scenario.errors import ScenarioError
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace, TraceError
from heliomesh.tasks.dataset import Dataset


@checked
def run(
    scenario: Scenario | str | Path,
    planner: str = "receiver",
    *,
    options: Mapping[str, Any] | None = None,
    seed: Index | None = None,
    episode: Index = 0,
    changes: Sequence[str] = (),
    folder: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Plan, simulate an episode and train under it.

    Parameters
    ----------
    scenario
        A scenario, a shipped scenario's name, or the path of a ``.toml`` file.
    planner
        A name of `planner_names`.
    options
        Options of the planner.
    seed
        Draws the simulation and the training; by default the scenario's.
    episode
        Number of the episode.
    changes
        Changes of the world, such as ``"harvest=0.5@50"``.
    folder
        Where everything is saved. The same call again resumes, or returns what is finished.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    Run
        Accuracy, loss and energy by evaluated slot, and the final weights.
    """
    loaded = scenario if isinstance(scenario, Scenario) else Scenario.load(scenario)
    seed = loaded.seed if seed is None else seed
    training, work = split_settings(settings)
    job = Job(loaded, planner, options or {}, seed, episode, tuple(changes), training_seed=seed, training=training)
    with opened(folder, single=True) as store:
        return run_in(store, job, work)


def run_in(store: Store, job: Job, work: Execution, watch: Callable[[Trace], Execution] | None = None) -> Run:
    """Plan, simulate and train in a store; what cannot be trained is refused before anything is planned.

    ``watch`` gives the work of the training, once its trace is there.
    """
    with store.alone(), store.unclaimed():
        if not store.has(job):
            here = work.make_stack is Replay
            check_trainable(job.scenario, job.training, job.training_seed, here=here)
        if watch is not None:
            work = watch(store.trace(job, work))
        return store.run(job, work)


@checked
def train(
    scenario: Scenario,
    trace: Trace,
    episode: int = 0,
    *,
    seed: int | None = None,
    dataset: Dataset | None = None,
    folder: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Train every device of the scenario under one episode of a trace.

    Parameters
    ----------
    scenario
        Its ``[learning]`` says what is trained, and how data are split.
    trace
        Who trained in which slot, and what arrived.
    episode
        Which episode of the trace.
    seed
        Draws the partition, the first weights, the minibatches and the test samples of the devices; by default the
        scenario's.
    dataset
        Replaces the one that the scenario names.
    folder
        Where the run is saved, with checkpoints on the way. The same call again goes on, or returns what is finished.
    **settings
        Fields of `TrainSettings` and of `Execution`, such as ``device``, ``track`` or ``observer``.

    Returns
    -------
    Run
        Accuracy, loss and energy by evaluated slot, and the final weights.

    Raises
    ------
    ScenarioError, TraceError, DatasetError, TooLargeError, TrainingError
        Where the inputs do not fit each other or the memory, or losses are no numbers.
    """
    own, work = split_settings(settings)
    job = given_job(TrainJob(scenario, trace, episode, seed), own, dataset)
    if folder is None:
        return begun([job], [trace], work).to_the_end(work.track)[0]
    store = Store(Path(folder), single=True)
    with store.alone():
        return store.run(job, work)


@checked
def train_many(
    jobs: Sequence[TrainJob],
    settings: TrainSettings | None = None,
    *,
    dataset: Dataset | None = None,
    **work: Any,
) -> list[Run]:
    """Train several runs in one stack: planners, seeds, partitions or aggregation rules on one dataset and model.

    Each run gives what `train` gives for it.

    Parameters
    ----------
    jobs
        What to train.
    settings
        How to train and what to measure.
    dataset
        Replaces the one that the scenarios name.
    **work
        Fields of `Execution`.

    Returns
    -------
    list of Run
        In the order of the jobs.
    """
    TrainingError.when(not jobs, "jobs", "at least one", "number 0")
    how = Execution(**work)
    whole = [given_job(job, settings or TrainSettings(), dataset) for job in jobs]
    return begun(whole, [job.trace for job in jobs], how).to_the_end(how.track)


def split_settings(settings: Mapping[str, Any]) -> tuple[TrainSettings, Execution]:
    """Keyword arguments sorted into what decides a training and how it is carried out."""
    own, work = split_fields(settings, TrainSettings, Execution)
    return TrainSettings(**own), Execution(**work)


def split_fields(given: Mapping[str, Any], first: type, second: type) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments sorted into the fields of two dataclasses; raises ArgumentError for what neither has."""
    of_first, of_second = ({part.name for part in fields(kind)} for kind in (first, second))
    known = ", ".join(sorted(of_first | of_second))
    for name in given:
        ArgumentError.when(name not in of_first | of_second, name, f"one of {known}", f"name {name!r}")
    own, work = ({name: given[name] for name in given if name in part} for part in (of_first - of_second, of_second))
    return own, work


def given_job(task: TrainJob, settings: TrainSettings, dataset: Dataset | None = None) -> Job:
    """The job of a training under a trace that is at hand.

    Raises TraceError where that was simulated under another scenario; only what is learned may differ.
    """
    try:
        simulated = Scenario.from_toml(task.trace.scenario_toml)
    except ScenarioError as error:
        raise TraceError("trace", "a scenario of this version", f": {error}") from None
    before, now = (world_of(one, one.as_dict()) for one in (simulated, task.scenario))
    found = told_difference(before, now)
    if found is not None:
        field, expected, actual = found
        raise TraceError(f"trace: {field}", f"{expected} as it was simulated with", actual)
    return Job(
        task.scenario,
        task.trace.planner,
        episode=task.episode,
        training_seed=task.seed,
        training=settings,
        trace=task.trace,
        dataset=dataset,
    )
