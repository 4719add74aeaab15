"""Differences between schemes, pair by pair.

Runs with the same seeds have common random numbers, data and first weights, so their difference varies far less than
either of them, and tells schemes apart whose own intervals overlap. Costs are paired over all episodes that a
comparison simulated, where it noted them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heliomesh.pages.headline import mean_and_half, shared_episodes
from heliomesh.pages.intervals import LEAST_PAIRS
from heliomesh.pages.run_folder import RunFolder

Seeds = tuple[str, int, int | None, int]  # scenario with its seed, seeds of training and simulation, episode


def differences(schemes: Sequence[Sequence[RunFolder]]) -> list[list[dict[str, Any] | None]]:
    """By reference and scheme: means and 95 % half-widths of scheme less reference, and numbers of pairs.

    None where a scheme is its own reference or they have neither a finished run of the same seed nor an episode in
    common.
    """
    return [[None if one is other else _compared(one, other) for one in schemes] for other in schemes]


def is_told(fact: Mapping[str, float], pairs: int) -> bool:
    """Whether a difference is told from zero; pairs that agree to the digit are no evidence."""
    return pairs >= LEAST_PAIRS and 0 < fact["half"] < abs(fact["mean"])


def seeds_of(run: RunFolder) -> Seeds:
    """What decides a run's random numbers: equal ones make a pair."""
    return run.scenario.content_hash, run.seed, None if run.trace is None else run.trace.seed, run.episode


def _compared(own: Sequence[RunFolder], reference: Sequence[RunFolder]) -> dict[str, Any] | None:
    theirs = {seeds_of(run): run for run in reference if run.finished}
    pairs = [(run, theirs[seeds_of(run)]) for run in own if run.finished and seeds_of(run) in theirs]
    rows = [_difference(*pair) for pair in pairs]
    names = ("accuracy", "accuracy_over_run", "cost")
    samples = {name: [row[name] for row in rows] or [np.nan] for name in names}
    episodes = _episode_costs(own, reference)
    if episodes is not None:
        samples["cost"] = episodes
    elif not pairs:
        return None
    facts = {name: mean_and_half(np.array(values)) for name, values in samples.items()}
    return {"seeds": len(pairs), "episodes": len(pairs if episodes is None else episodes), **facts}


def _episode_costs(own: Sequence[RunFolder], reference: Sequence[RunFolder]) -> list[float] | None:
    """Differences by episode, of one scenario under one seed; None where not all of it is known."""
    mine, theirs = shared_episodes(own), shared_episodes(reference)
    scenarios = {run.scenario.content_hash for run in (*own, *reference)}
    if mine is None or theirs is None or len(scenarios) > 1 or mine.seed != theirs.seed:
        return None
    return [one - other for one, other in zip(mine.cost, theirs.cost, strict=False)]


def _difference(own: RunFolder, reference: RunFolder) -> dict[str, float]:
    """Accuracies at the end and over the evaluations of both, as shares; update loss per slot. NaN where unknown."""
    mine, theirs = own.curves.metrics, reference.curves.metrics
    _, here, there = np.intersect1d(mine["slot"], theirs["slot"], return_indices=True)
    gain = np.asarray(mine["accuracy_mean"])[here] - np.asarray(theirs["accuracy_mean"])[there]
    costs = [np.nan if run.trace is None else run.trace.cost[run.episode] for run in (own, reference)]
    return {
        "accuracy": float(gain[-1]) if len(gain) else np.nan,
        "accuracy_over_run": float(gain.mean()) if len(gain) else np.nan,
        "cost": float(costs[0] - costs[1]),
    }
