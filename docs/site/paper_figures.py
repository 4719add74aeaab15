"""The reference page of experiments: which of them is which figure of the paper."""

from pathlib import Path

from heliomesh import catalog
from heliomesh.studies.reproduce import EXPERIMENT_CATALOG, experiment_names

RESULTS = Path(__file__).parents[2] / "results"
_ABOUT = """# Figures of the paper

Each experiment makes one figure: `heliomesh reproduce NAME` computes its lines, or reads them where they are
stored; `--quick` makes a small version in about a minute. The paper is "Decentralized Federated Learning With Energy
Harvesting Devices"; its first figure shows the system and has no numbers.
[The paper, reproduced](../reproduction.md) sets its claims beside our numbers.

| of the paper | experiment | horizontal axis | what it asks |
|---|---|---|---|
"""


def page() -> str:
    """Markdown of the page."""
    modules = [catalog.find(EXPERIMENT_CATALOG, name) for name in experiment_names()]
    modules.sort(key=lambda module: (_place(module) == _BEYOND, _place(module)))
    return _ABOUT + "".join(_row(module) for module in modules)


_BEYOND = "beyond it"


def _place(module: object) -> str:
    return str(getattr(module, "OF_PAPER", _BEYOND))


def _row(module: object) -> str:
    name = str(module.NAME)  # type: ignore[attr-defined]
    axis = str(module.PLACE or "slot")  # type: ignore[attr-defined]
    question = (module.__doc__ or "").strip().splitlines()[0]
    shown = f"[`{name}`](../results/{name}.md)" if (RESULTS / f"{name}.md").exists() else f"`{name}`"
    return f"| {_place(module)} | {shown} | {axis} | {question} |\n"
