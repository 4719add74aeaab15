"""The files of stored results: the last one is sealed, says what decided a result and has the sums of the others."""

from pathlib import Path
from typing import Any

from heliomesh.common.durable import Sealed
from heliomesh.jobs.job import Step
from heliomesh.learning.run import MANIFEST, TrainingError, check_sum, read_manifest

PLAN, PLAN_TABLES, SCENARIO = "plan.json", "plan.safetensors", "scenario.toml"
TRACE, TRACE_ARRAYS = "trace.json", "trace.npz"
BEFORE_TRAINING = (PLAN, PLAN_TABLES, TRACE, TRACE_ARRAYS, SCENARIO)
LAST_FILE: dict[Step, str] = {"plan": PLAN, "trace": TRACE, "run": MANIFEST}
RESULT: dict[Step, Sealed] = {
    step: Sealed(f"the {step} of a job", 1, (("key", str), ("identity", dict), ("sha256", dict), ("facts", dict)))
    for step in ("plan", "trace")
}
COST = Sealed("the cost of an episode", 1, (("key", str), ("cost", float)))


def _last_file(place: Path, step: Step) -> dict[str, Any]:
    """The sealed file of a result, without a look at those beside it; raises TrainingError where it is damaged."""
    return read_manifest(place, ()) if step == "run" else RESULT[step].read(place / LAST_FILE[step], TrainingError)


def identity_of(place: Path, step: Step) -> dict[str, Any]:
    """What decided a result; raises TrainingError where its sealed file is damaged."""
    content = _last_file(place, step)
    return dict(content["provenance"].get("identity", {}) if step == "run" else content["identity"])


def is_whole(place: Path, step: Step) -> bool:
    """Whether a result has its sealed file and all that this names."""
    try:
        return all((place / name).exists() for name in _last_file(place, step)["sha256"])
    except TrainingError:
        return False


def read_result(place: Path, step: Step) -> dict[str, Any]:
    """A plan's or trace's sealed file, after the sums of the files beside it; raises TrainingError."""
    content = _last_file(place, step)
    for name, expected in content["sha256"].items():
        check_sum(place / name, expected)
    return content


def read_cost(place: Path) -> dict[str, Any]:
    """A stored cost and what is noted with it; raises TrainingError where it is damaged or another's."""
    content = COST.read(place, TrainingError)
    TrainingError.when(content["key"] != place.stem, place, f"the cost of job {place.stem}", f"{content['key']}")
    return content


def read_means(place: Path) -> tuple[float, float] | None:
    """A stored cost and darkness; None where there is nothing, or a cost of versions that noted no darkness."""
    content = read_cost(place) if place.exists() else {}
    return (content["cost"], content["dark"]) if "dark" in content else None
