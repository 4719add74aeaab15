"""Results of the experiments as Markdown: every line with 95 % intervals, and the comparisons paired by seed.

`publish` writes them with their picture.
"""

from pathlib import Path
from statistics import fmean

import numpy as np

from heliomesh.common.durable import make_folder, write_text
from heliomesh.pages.figures import draw
from heliomesh.pages.intervals import cell, markdown_table
from heliomesh.simulation.diagnostics import interval
from heliomesh.studies.line import BASELINE, Line
from heliomesh.studies.reproduce import Figure
from heliomesh.studies.results import Estimate, Paired


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
    named = isinstance(figure.against, str | int | float)
    reference = figure.against if isinstance(figure.against, str) else None if named else BASELINE
    draw(figure.results, title, figure.place, reference, picture)  # places are compared by the table alone
    return text


def figure_text(figure: Figure) -> str:
    """An experiment's page: its lines, then what they are compared by."""
    lines = [f"## {figure.title}", ""]
    if figure.absent:
        of_all = len(figure.results) + len(figure.absent)
        lines += [f"{len(figure.absent)} of {of_all} lines are not there yet.", ""]
    lines += [*_table(figure), *_comparisons(figure), *_radio(figure), *_shares(figure)]
    outdated = sorted({one.label for one in figure.results if one.is_outdated})
    lines += [f"Planned by earlier versions of their planners: {', '.join(outdated)}.", ""] if outdated else []
    made = sorted({result.computed_with for result in figure.results} - {""})
    # in letters that no page obeys
    plain = ["".join(letter for letter in one if letter.isalnum() or letter in " .,+-_") for one in made]
    lines += [f"Computed with {'; '.join(plain)}.", ""] if plain else []
    return "\n".join(lines) + "\n"


_COLUMNS = (
    "setting | scheme | at | accuracy % | over the run % | average model % | update loss | trains % | arrived % |"
    " joule | seeds"
)


def _table(figure: Figure) -> list[str]:
    rows = []
    for one in figure.results:
        cells = [cell(interval(of), ".2f") for of in (one.accuracy, one.accuracy_over_run, one.average_accuracy)]
        cells += [cell(interval(one.cost), ".3f")]
        cells += [cell(fmean(one.noted(name)), ".1%") for name in ("participation", "delivery")]
        rows.append([*_words(one.line), *cells, f"{one.final('spent_joule').mean():.0f}", str(len(one.runs))])
    rows += [[*_words(line), "not run yet", *[""] * 7] for line in figure.absent]
    return markdown_table(_COLUMNS, rows)


def _words(line: Line) -> tuple[str, str, str]:
    """Setting, scheme and place."""
    return line.setting, line.scheme.label, cell(line.place, "g")


def _comparisons(figure: Figure) -> list[str]:
    """What the figure is about, paired by seed; bold where the interval, as printed, excludes zero."""
    rows = [(_where(pair), pair.at_end, pair.over_run) for pair in figure.comparisons]
    for one in figure.trends:
        name = one.first if one.second is None else f"{one.first} against {one.second}"
        where = f"{one.setting}: {name}" if one.setting else name
        rows.append((f"{where}, per unit of {figure.place}", one.at_end, one.over_run))
    cells = [[where, *_tested(at_end), *_tested(over_run)] for where, at_end, over_run in rows]
    return markdown_table("points, paired by seed | at the end | p | over the run | p", cells) if rows else []


def _radio(figure: Figure) -> list[str]:
    """Joules spent on sending and accuracy per joule of them, also against that of the figure's reference."""
    joules = [(one, joule) for one in figure.results if (joule := one.radio_joule) is not None]
    if not (figure.radio and joules):
        return []
    rows = []
    per_joule = {(one.line.setting, one.label): one.accuracy / joule for one, joule in joules}
    for one, joule in joules:
        own = per_joule[one.line.setting, one.label]
        reference = per_joule.get((one.line.setting, str(figure.against)))
        times = "" if reference is None else f"{cell(interval(own / reference), '.2f')} times"
        rows.append([one.line.setting, one.label, cell(interval(joule), ".1f"), cell(interval(own), ".3f"), times])
    head = f"setting | scheme | joule on radio | accuracy % per joule on radio | against {figure.against}"
    return markdown_table(head, rows)


def _shares(figure: Figure) -> list[str]:
    """What each of several changes is worth, averaged over all orders in which they can be made."""
    found = {
        setting: {**worth, "all together": np.sum(list(worth.values()), axis=0)}
        for setting, worth in figure.shares.items()
    }
    rows = [[setting, *(cell(interval(one), "+.2f") for one in worth.values())] for setting, worth in found.items()]
    heads = ["points by change (Shapley)", *next(iter(found.values()), {})]
    return markdown_table(" | ".join(heads), rows) if rows else []


def _tested(estimate: Estimate) -> tuple[str, str]:
    """An estimate and its p-value, as two cells."""
    text = cell(estimate.points, "+.2f")
    touches_zero = round(abs(estimate.points.mean), 2) <= round(estimate.points.half_width, 2)  # as printed
    return f"**{text}**" if estimate.sign and not touches_zero else text, f"{estimate.p_value:.2g}"


def _where(pair: Paired) -> str:
    """The two lines that a comparison names, and the panel they share."""
    (setting, first, place), (_, second, other_place) = _words(pair.first), _words(pair.second)
    shared = (setting, place)
    if first == second:
        shared, first, second = (setting, first), place, other_place
    where = ", ".join(word for word in shared if word)
    return f"{where}: {first} against {second}" if where else f"{first} against {second}"
