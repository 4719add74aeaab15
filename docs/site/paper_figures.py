"""The reference page of experiments: which of them is which figure of the paper."""

from pathlib import Path

from heliomesh.studies.experiments import EXPERIMENTS, Experiment

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
    return _ABOUT + "".join(
        map(_row, sorted(EXPERIMENTS, key=lambda one: (one.of_paper is None, one.of_paper or "")))
    )


def _row(one: Experiment) -> str:
    stored = (RESULTS / f"{one.name}.md").exists()
    shown = f"[`{one.name}`](../results/{one.name}.md)" if stored else f"`{one.name}`"
    return f"| {one.of_paper or 'beyond it'} | {shown} | {one.place or 'slot'} | {one.question} |\n"
