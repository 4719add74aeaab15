"""Path loss, and who is linked where devices stand at given places: within a radius, or as a link budget allows.

A *link budget* asks for a packet error rate of at most ε in both directions, at the largest power p, the mean gain g
of the channel and without interference. By the waterfall equation that is a least ratio of signal to noise:

    1 − exp(−φ σ² / (p g)) ≤ ε    ⟺    p g / σ² ≥ φ / −ln(1 − ε)

Under fading the mean error rate of such a link differs: it is an average over gains, not that of their mean.
"""

import math

import numpy as np
import numpy.typing as npt

from heliomesh.physics.chain import Floats, mean_fading
from heliomesh.scenario.errors import refuse
from heliomesh.scenario.scenario import Scenario
from heliomesh.scenario.schema import Link
from heliomesh.scenario.section import per_device

_USUAL_ERROR = 0.1  # ε
_NEAREST_METRE = 1.0  # the far field begins beyond
MOST_LINKS = 20_000_000  # some gigabytes while a graph is built

Pairs = npt.NDArray[np.int64]  # (link, 2)


def path_gain(link: Link, metre: Floats) -> Floats:
    """Mean power gain over distances [m], of any shape: 10^(−(148 + 40 log10(d_km)) / 10), or 1 without path loss."""
    if link.path_loss == "none":
        return np.ones_like(metre)
    distance_km = np.maximum(metre, _NEAREST_METRE) / 1000
    loss_db = link.loss_at_km_db + link.loss_per_decade_db * np.log10(distance_km)
    with np.errstate(over="ignore"):  # `build` refuses what overflows
        gain: Floats = 10 ** (-loss_db / 10)
    return gain


def pairs_within(position: Floats, metre: float, field: str) -> Pairs:
    """All pairs of positions (device, 2) at most ``metre`` apart; raises ScenarioError where they are too many."""
    from scipy.spatial import cKDTree  # slow to import and needed here only

    tree = cKDTree(position)
    links = (int(tree.count_neighbors(tree, metre)) - len(position)) // 2
    refuse(links > MOST_LINKS, field, f"places with at most {MOST_LINKS} links", f"number {links}")
    pairs: Pairs = tree.query_pairs(metre, output_type="ndarray").astype(np.int64)
    return pairs


def pairs_by_budget(scenario: Scenario, position: Floats) -> Pairs:
    """All pairs that hear each other well enough."""
    link = scenario.link
    expected = "link.path_loss = 'log-distance' for a link budget"
    refuse(link.path_loss == "none", "network.links", expected, "value 'none'")
    error = scenario.network.budget_error or _USUAL_ERROR
    power, noise = _watt_and_noise(scenario, len(position))
    # (device,) least path gain at which a receiver hears its neighbours
    needed = link.waterfall / -math.log1p(-error) * noise / np.maximum(power, 1e-300)
    near = pairs_within(position, _farthest_metre(scenario, float(needed.min())), "network.links")
    length = np.linalg.norm(position[near[:, 0]] - position[near[:, 1]], axis=1)
    heard: Pairs = near[path_gain(link, length) >= needed[near].max(1)]
    return heard


def crowded_sinr(scenario: Scenario, receiver: Pairs, metre: Floats) -> Floats:
    """Signal over interference and noise of edges (edge,) of a length [m] when all send, at mean gains; (edge,)."""
    power, noise = _watt_and_noise(scenario, scenario.network.devices)
    signal = power[receiver] * path_gain(scenario.link, metre)
    everyone = np.bincount(receiver, weights=signal, minlength=len(noise))
    ratio: Floats = signal / (everyone[receiver] - signal + noise[receiver])
    return ratio


def _watt_and_noise(scenario: Scenario, devices: int) -> tuple[Floats, Floats]:
    """What receivers get of the largest power without path loss, at the mean gain, and their noise [W]; (device,)."""
    own_gain = np.array(per_device(getattr(scenario.channel, "gain", 1.0), devices))
    watt = max(scenario.energy.powers_watt) * mean_fading(scenario) * own_gain
    return watt, np.array(per_device(scenario.link.noise_watt, devices))


def _farthest_metre(scenario: Scenario, gain: float) -> float:
    """A distance beyond which no path gain reaches ``gain``; a little more than the equation says, for rounding."""
    link = scenario.link
    spare_db = -10 * math.log10(max(gain, 1e-300)) - link.loss_at_km_db
    if link.loss_per_decade_db == 0:
        return math.inf if spare_db >= 0 else 0.0
    return float(1001 * 10 ** min(spare_db / link.loss_per_decade_db, 100.0))
