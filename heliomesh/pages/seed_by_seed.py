"""Differences between schemes, seed by seed.

Runs with the same seeds have common random numbers, data and first weights, so their difference varies far less than
either of them, and tells schemes apart whose own intervals overlap.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from heliomesh.pages.run_folder import RunFolder
from heliomesh.simulation.diagnostics import interval

Seeds = tuple[str, int, int | None, int]  # scenario with its seed, seeds of training and simulation, episode


def differences(schemes: Sequence[Sequence[RunFolder]]) -> list[list[dict[str, Any] | None]]:
    """By reference and scheme: means and 95 % half-widths of scheme less reference over their common seeds.

    None where a scheme is its own reference or they have no finished run of the same seed in common.
    """
    known = [{_seeds(run): run for run in runs if run.finished} for runs in schemes]
    return [[None if one is other else _compared(one, other) for one in known] for other in known]


def _seeds(run: RunFolder) -> Seeds:
    return run.scenario.content_hash, run.seed, None if run.trace is None else run.trace.seed, run.episode


def _compared(own: dict[Seeds, RunFolder], reference: dict[Seeds, RunFolder]) -> dict[str, Any] | None:
    common = [seeds for seeds in own if seeds in reference]
    if not common:
        return None
    rows = [_difference(own[seeds], reference[seeds]) for seeds in common]
    found = {name: interval(np.array([row[name] for row in rows])) for name in rows[0]}
    return {"seeds": len(common)} | {
        name: {"mean": value.mean, "half": value.half_width} for name, value in found.items()
    }


def _difference(own: RunFolder, reference: RunFolder) -> dict[str, float]:
    """Accuracies at the end and over the evaluations of both, as shares; update loss per slot. NaN where unknown."""
    mine, theirs = own.curves.metrics, reference.curves.metrics
    _, here, there = np.intersect1d(mine["slot"], theirs["slot"], return_indices=True)
    gain = np.asarray(mine["accuracy_mean"])[here] - np.asarray(theirs["accuracy_mean"])[there]
    return {
        "accuracy": float(gain[-1]) if len(gain) else np.nan,
        "accuracy_over_run": float(gain.mean()) if len(gain) else np.nan,
        "cost": _cost(own) - _cost(reference),
    }


def _cost(run: RunFolder) -> float:
    return np.nan if run.trace is None else float(run.trace.cost[run.episode])
