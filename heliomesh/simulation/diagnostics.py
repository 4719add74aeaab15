"""Numbers that describe a trace: intervals, participation, delivery, and the paper's two bounds as diagnostics."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from heliomesh.common.arguments import checked
from heliomesh.model.problem import Problem
from heliomesh.physics.topology import spectral_gap
from heliomesh.simulation.trace import Trace


@dataclass(frozen=True)
class Interval:
    """A mean with the half-width of its 95 % confidence interval; NaN where one sample gives none."""

    mean: float
    half_width: float

    def facts(self, name: str) -> dict[str, float]:
        """Both numbers by name, as commands print them."""
        return {name: self.mean, f"{name}, 95 % half-width": self.half_width}


def interval(samples: npt.NDArray[np.float64]) -> Interval:
    """Student's t interval of independent samples."""
    count = len(samples)
    if count < 2:
        return Interval(float(samples.mean()), math.nan)
    spread = float(samples.std(ddof=1)) / math.sqrt(count)
    return Interval(float(samples.mean()), float(stdtrit(count - 1, 0.975)) * spread)


def columns(**found: Interval | None) -> dict[str, Any]:
    """Cells of a table: each mean under its name, and its 95 % half-width under ``<name>_half_width``."""
    cells: dict[str, Any] = {}
    for name, value in found.items():
        cells |= {name: value and value.mean, f"{name}_half_width": value and value.half_width}
    return cells


def ratio_interval(numerator: npt.NDArray[np.float64], denominator: npt.NDArray[np.float64]) -> Interval:
    """Ratio of means of paired samples (sample,) with its 95 % half-width, by the delta method."""
    base = float(denominator.mean())
    ratio = float(numerator.mean()) / base if base else math.nan
    if not math.isfinite(ratio):
        return Interval(ratio, math.nan)
    return Interval(ratio, interval(numerator - ratio * denominator).half_width / abs(base))


@dataclass(frozen=True)
class Summary:
    """What a trace says about a plan."""

    cost: Interval
    participation: float  # share of device-slots that train
    sending: float  # share of device-slots that send
    delivery: float  # share of sent packets that arrive; NaN where nothing is sent
    update_loss: npt.NDArray[np.float64]  # (device,) mean x_j
    overflow_share: float  # share of the harvest that finds the battery full
    mean_battery_joule: float
    spent_joule: npt.NDArray[np.float64]  # (episode,) drawn from storage by all devices in all slots

    @property
    def update_loss_spread(self) -> float:
        """Largest minus smallest mean x_j of the devices."""
        return float(np.ptp(self.update_loss))

    def facts(self) -> dict[str, Any]:
        """The same by name, as commands print it; one episode has no interval."""
        cost = self.cost
        return {
            **({"cost": cost.mean} if math.isnan(cost.half_width) else cost.facts("cost")),
            "participation": self.participation,
            "sending": self.sending,
            "delivery": self.delivery,
            "update loss per device": self.update_loss.tolist(),
            "update loss spread": self.update_loss_spread,
            "overflow share": self.overflow_share,
            "mean battery [J]": self.mean_battery_joule,
        }


@checked
def summarise(trace: Trace) -> Summary:
    """Describe a trace in a few numbers.

    Parameters
    ----------
    trace
        One or more episodes.

    Returns
    -------
    Summary
        Cost with its 95 % interval, and shares of slots trained and of packets that arrive.
    """
    sends = trace.power_watt > 0  # (episode, slot, device)
    sent = sends[:, :, trace.edge_sender]
    harvested = float(trace.harvested_joule.sum())
    return Summary(
        cost=interval(trace.cost),
        participation=float(trace.scheduled.mean()),
        sending=float(sends.mean()),
        delivery=float(trace.delivered[sent].mean()) if sent.any() else math.nan,
        update_loss=trace.update_loss.mean(axis=(0, 1)),
        overflow_share=float(trace.overflow_joule.sum()) / harvested if harvested > 0 else 0.0,
        mean_battery_joule=float(trace.battery_joule.mean()),
        spent_joule=trace.spent_joule.sum(axis=(1, 2)),
    )


@dataclass(frozen=True)
class LearningConstants:
    """Constants of the loss that the paper's bounds assume known."""

    smoothness: float  # L
    gradient_bound: float  # G, so that E‖∇f‖² ≤ G²
    local_variance: float  # σ_l²
    global_variance: float  # σ_g²
    initial_gap: float  # F(w̄_1) − F(w*)


def theorem1_cost(trace: Trace, episode: int = 0) -> float:
    """Mean per slot of Σ_j [β_j Σ_i a_ij q_ij + 1 − β_j] as in Theorem 1, whatever ``cost.idle_penalty`` is.

    A device that trains pays Σ_i a_ij q_ij. Any other pays 1, even if it sends: its
    packet brings weights that were known before, and no update.
    """
    charged = np.where(trace.scheduled[episode], trace.update_loss[episode], 1.0)
    return float(charged.sum(-1).mean())


def theorem1_terms(problem: Problem, mean_cost: float, constants: LearningConstants) -> dict[str, float]:
    """The six terms of Theorem 1's bound on the mean squared gradient; a diagnostic, not a guarantee.

    ``mean_cost`` is the cost per slot that `theorem1_cost` gives; the last term is 4 (KL + √K) G² / K times it.
    Compare with the trivial bound G²: at practical constants the sum is far larger.
    """
    m, slots, steps = problem.num_devices, problem.slots, problem.scenario.learning.local_steps
    lipschitz, squared = constants.smoothness, constants.gradient_bound**2
    noise = constants.local_variance + 4 * steps * constants.global_variance  # C_1
    gap = spectral_gap(problem.topology.mixing)
    drift = (noise + 4 * steps * squared) / steps
    drift = drift / gap if gap > 1e-12 else math.inf  # parts that never meet never agree
    return {
        "initial error": 256 * lipschitz * constants.initial_gap / math.sqrt(m * slots),
        "gradient noise": math.sqrt(m) * noise / (2 * steps * math.sqrt(slots)),
        "gradient noise, second order": m * noise / (256 * steps * slots),
        "disagreement": math.sqrt(m) * drift / (128 * slots**1.5),
        "disagreement, second order": m * drift / (128**2 * slots**2),
        "lost updates": cost_factor(problem, constants) * mean_cost,
    }


def cost_factor(problem: Problem, constants: LearningConstants) -> float:
    """4 (KL + √K) G² / K: what the normalised mean cost per slot is multiplied by in the paper."""
    steps = problem.scenario.learning.local_steps
    return 4 * (steps * constants.smoothness + math.sqrt(steps)) * constants.gradient_bound**2 / steps


def theorem2_bound(problem: Problem, gamma: float, rounds: int) -> float:
    """Theorem 2's bound on the gap to the optimum, in normalised cost per slot; a diagnostic, not a guarantee.

    With normalised γ and L → ∞, D = 8 γ m T |P|² must be below 1, and the gap is claimed to be at most
    m² T D^R (1 − 1/|P|), the last factor bounding the total variation of the uniform first policy to the optimum.
    """
    m, slots, actions = problem.num_devices, problem.slots, len(problem.actions)
    contraction = 8 * gamma * m * slots * actions**2
    if contraction > 1:
        return math.inf
    return m**2 * slots * contraction**rounds * (1 - 1 / actions)
