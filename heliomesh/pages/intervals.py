"""Numbers as text: means with their 95 % intervals, shares in percent, bytes; and tables of them in Markdown."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from heliomesh.common.memory_limit import readable
from heliomesh.simulation.diagnostics import Interval, interval

LEAST_PAIRS = 4  # fewer prove nothing: their intervals rest on one or two degrees of freedom


def interval_text(value: Interval, form: str = ".4f", factor: float = 1.0) -> str:
    """A mean and the half-width of its interval, both times ``factor``; the form's sign is for the mean only."""
    width = format(factor * value.half_width, form.lstrip("+")) if math.isfinite(value.half_width) else "?"
    return f"{factor * value.mean:{form}} ± {width}"


def seeds_text(samples: npt.NDArray[np.float64], form: str, factor: float = 1.0) -> str:
    """Mean of paired seeds with its interval, or the mean alone where seeds are too few to tell anything."""
    told = interval(samples)
    return interval_text(told, form, factor) if len(samples) >= LEAST_PAIRS else f"{factor * told.mean:{form}}"


def seeds_title(text: str, seeds: int) -> str:
    """A table's title, which speaks of intervals where `seeds_text` gives some."""
    return f"{text}, 95 % intervals" if seeds >= LEAST_PAIRS else f"{text}, means"


def cell(value: Any, form: str) -> str:
    """A value in a table: an `Interval` or the values of seeds with a half-width; None and NaN are left empty.

    The form ``.1%`` writes shares in percent without the sign, ``B`` writes bytes.
    """
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, float | np.ndarray) and np.isnan(value).any():
        return ""
    if form == "B":
        return readable(value)
    factor, form = (100.0, f"{form[:-1]}f") if form.endswith("%") else (1.0, form)
    if isinstance(value, np.ndarray):
        return seeds_text(value, form, factor)
    return interval_text(value, form, factor) if isinstance(value, Interval) else f"{factor * value:{form}}"


def markdown_table(head: str, rows: Iterable[Sequence[str]], rule: str = "---") -> list[str]:
    """Lines of a table, whose head names columns between bars, and an empty one."""
    count = len(head.split(" | "))
    return [f"| {head} |", f"|{f'{rule}|' * count}", *(f"| {' | '.join(cells)} |" for cells in rows), ""]
