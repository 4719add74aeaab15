"""Write a figure of the paper: its table as Markdown and its picture as SVG."""

from pathlib import Path

from heliomesh.common.durable import make_folder, write_text
from heliomesh.pages.figures import draw
from heliomesh.pages.tables import figure_text
from heliomesh.studies.line import BASELINE
from heliomesh.studies.reproduce import Figure


def publish(figure: Figure, folder: Path) -> str:
    """Write NAME.md and NAME.svg, or take away an old picture where nothing is there to draw; returns the table."""
    text, picture = figure_text(figure), folder / f"{figure.name}.svg"
    make_folder(folder)
    write_text(folder / f"{figure.name}.md", text)
    if not figure.results:
        picture.unlink(missing_ok=True)
        return text
    absent = list(dict.fromkeys(line.scheme.label for line in figure.absent))
    title = f"{figure.title}\nnot run yet: {', '.join(absent)}" if absent else figure.title
    draw(figure.results, title, figure.place, _reference(figure), picture)
    return text


def _reference(figure: Figure) -> str | None:
    """The scheme over which the figure draws gains; places are compared by the table alone."""
    if isinstance(figure.against, str):
        return figure.against
    return None if isinstance(figure.against, int | float) else BASELINE
