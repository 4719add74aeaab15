"""The reference pages of the Python interface: every public name, once, in the order of the work."""

from heliomesh import _HOME_OF
from heliomesh.simulation.trace import COLUMNS, OWN_WEIGHT

PAGES = {
    "scenario": (
        "Scenario and problem",
        "Read a scenario and build the problem that planners solve.",
        ("Scenario", "ScenarioError", "MistakeError", "build", "Problem", "TooLargeError"),
    ),
    "planning": (
        "Plans and bounds",
        "Make a plan, and find out how good any plan can be.",
        (
            *("plan", "planner_names", "Plan", "lower_bound", "average_bound", "sampled_bound"),
            *("SampledBound", "exact_cost"),
        ),
    ),
    "simulation": (
        "Simulation",
        "Play a plan in a random world with continuous batteries.",
        ("simulate", "simulate_costs", "Trace", "TraceError", "summarise", "energy_ledger"),
    ),
    "training": (
        "Training",
        "Train models under a trace, on shipped data or your own.",
        (
            *("run", "train", "train_many", "Run", "TrainJob", "TrainSettings", "Execution", "Dataset"),
            *("dataset_from_arrays", "DatasetError", "TrainingError", "TrainingInterrupted"),
        ),
    ),
    "studies": (
        "Studies",
        "Compare planners, size batteries, reproduce figures, and write pages. Every command is one call.",
        (
            *("compare", "Scheme", "tune", "bench", "gap_ledger", "size", "pilot", "live", "reproduce"),
            "report",
        ),
    ),
    "jobs": (
        "Jobs and stores",
        "Name a result by all that decides it, and compute it once.",
        ("Job", "Store"),
    ),
}
CONTRACTS = (  # what code outside the package is given and gives back
    *("heliomesh.model.planner_context.PlannerContext", "heliomesh.model.policy.Observation"),
    *("heliomesh.model.policy.ActionPolicy", "heliomesh.physics.harvesting.HarvestLaw"),
    *("heliomesh.physics.harvesting.HarvestReplay", "heliomesh.learning.aggregation.Arrived"),
    "heliomesh.testing",
)


def pages() -> dict[str, str]:
    """Markdown by the page's name."""
    found = {
        name: "\n".join([f"# {title}\n", f"{about}\n", *(_entry(one) for one in names)])
        for name, (title, about, names) in PAGES.items()
    }
    about = "What code of your own gets and returns; [Add your own](../../extend.md) says how to plug it in.\n"
    contracts = (_directive(path, path.rpartition(".")[2]) for path in CONTRACTS)
    return found | {"contracts": "\n".join(["# Contracts of extensions\n", about, *contracts])}


def _entry(name: str) -> str:
    entry = _directive(f"{_HOME_OF[name]}.{name}", f"hm.{name}")
    return entry + (_columns() if name == "Trace" else "")


def _directive(path: str, heading: str) -> str:
    return f'::: {path}\n    options:\n      heading: "{heading}"\n      toc_label: "{heading}"\n'


def _columns() -> str:
    """Arrays of a trace, which are described by data."""
    rows = [
        f"| `{one.name}` | ({', '.join(one.axes)}{',' * (len(one.axes) == 1)}) | {one.unit.replace('1', '–')} | "
        f"{one.meaning} |"
        for one in (*COLUMNS, OWN_WEIGHT)
    ]
    return "\n".join(["\n| array of a trace | shape | unit | meaning |", "|---|---|---|---|", *rows, ""])
