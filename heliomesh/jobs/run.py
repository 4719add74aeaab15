"""One job from its scenario to a trained model: `hm.run`, and `heliomesh run`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from heliomesh.common.arguments import Index, checked
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import Store, opened
from heliomesh.jobs.training import Settings, split_settings
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.replay import Replay
from heliomesh.learning.run import Run
from heliomesh.learning.trainer import Execution
from heliomesh.scenario.scenario import Scenario
from heliomesh.simulation.trace import Trace


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
    **settings: Unpack[Settings],
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
