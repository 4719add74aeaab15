"""Write a figure of the paper: its table as Markdown and its picture as SVG."""

from pathlib import Path

from heliomesh.durable import write_text
from heliomesh.pages.figures import draw
from heliomesh.pages.tables import figure_text
from heliomesh.studies.line import BASELINE
from heliomesh.studies.reproduce import Figure


def publish(figure: Figure, folder: Path) -> str:
    """Write NAME.md and NAME.svg; returns the table."""
    text = figure_text(figure)
    write_text(folder / f"{figure.name}.md", text)
    draw(figure.results, figure.title, figure.place, _reference(figure), folder / f"{figure.name}.svg")
    return text


def _reference(figure: Figure) -> str | None:
    """The scheme over which the figure draws gains; places are compared by the table alone."""
    if isinstance(figure.against, str):
        return figure.against
    return None if isinstance(figure.against, int | float) else BASELINE
