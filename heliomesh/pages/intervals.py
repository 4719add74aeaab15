"""Means with their 95 % intervals, as text."""

import math

import numpy as np
import numpy.typing as npt

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
