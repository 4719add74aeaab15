"""`heliomesh device fleet`: a run in which every device is on its own but for messages between neighbours."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from heliomesh.commands import options as shared
from heliomesh.commands.facts import build_noted, print_facts
from heliomesh.commands.options import flattened, option
from heliomesh.commands.progress import training_work
from heliomesh.field.fleet.clock import run_fleet
from heliomesh.field.fleet.scheme import BIDS, WITH_OTHERS, FleetScheme, device_options, scheme_of
from heliomesh.jobs.job import Job
from heliomesh.jobs.store import PLAN
from heliomesh.learning.preflight import check_trainable
from heliomesh.learning.run import TrainingError, is_finished
from heliomesh.learning.settings import TrainSettings
from heliomesh.scenario.errors import refuse
from heliomesh.simulation.diagnostics import summarise


@dataclass(frozen=True)
class FleetOptions(shared.PlannerSettings):
    """Which run."""

    episode: shared.EpisodeOption = 0
    seed: shared.RunSeedOption = None
    evaluate_every: shared.EvaluateOption = 10
    strategy: shared.StrategyOption = "auto"
    kill: Annotated[list[str], option("A device that dies: device@slot. Repeatable.")] = field(default_factory=list)
    finite: shared.FiniteOption = False

    def job(self, scheme: FleetScheme) -> Job:
        """What is to be run; refused where it cannot be trained."""
        scenario = scheme.problem.scenario
        seed = scenario.seed if self.seed is None else self.seed
        training = TrainSettings(evaluate_every=self.evaluate_every, strategy=self.strategy)
        check_trainable(scenario, training, seed, here=False)
        own: dict[str, Any] = {"seed": seed, "episode": self.episode, "training_seed": seed, "training": training}
        return Job(scenario, scheme.planner, scheme.options, **own)


@flattened
def fleet_command(
    scenario: shared.ScenarioArgument,
    out: Annotated[Path, option("Folder for the finished run.")],
    *,
    planner: Annotated[str, option("bids, decentralized, fixed_fraction, skiptrain, turns or uncoordinated.")] = BIDS,
    asked: FleetOptions,
    output: shared.OutputOptions,
) -> None:
    """Run every device by itself; they plan, coordinate and learn by messages between neighbours."""
    problem = build_noted(asked.scenario(scenario))
    finite = asked.finite or planner not in (BIDS, WITH_OTHERS)  # others look at a battery only
    options = asked.of_planner if finite else shared.without_end(planner, asked.of_planner, finite)
    if planner == BIDS:
        options = device_options(problem, planner, options, asked.seed)
    scheme = scheme_of(problem, planner, options)
    deaths = dict(_death(text, problem.num_devices, problem.slots) for text in asked.kill)
    shared.check_folder(out)
    used = is_finished(out) or (out / PLAN).exists()
    TrainingError.when(used, "--out", "an empty folder", f": {out} holds a run")
    job = asked.job(scheme)
    found = run_fleet(scheme, job, deaths=deaths, work=training_work(problem.slots, output.silent))
    found.save(out)
    named = {"scenario": job.scenario.name, "planner": planner, "seed": job.seed}
    facts = named | found.run.final | {"folder": str(out)}
    print_facts(facts | summarise(found.trace).facts() | found.message_facts, output.as_json)


def _death(text: str, devices: int, slots: int) -> tuple[int, int]:
    """A device and the slot in which it dies."""
    device, _, slot = text.partition("@")
    fits = device.isdecimal() and slot.isdecimal() and int(device) < devices and int(slot) < slots
    expected = f"device@slot with a device below {devices} and a slot below {slots}"
    refuse(not fits, "--kill", expected, f"value {text!r}")
    return int(device), int(slot)
