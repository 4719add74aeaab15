"""From what a board measures to the levels that a plan knows, as constants of a table file.

A packet's loss is the power sent less the power received, in hundredths of a decibel. The cut of a level is the loss
of the mean path at the least fading gain of that level. The weather is told by the harvest of a slot: cuts lie midway
between the mean harvests of neighbouring weathers at that time of the day. Where these are equal, as at night, no
harvest tells, and the last weather stays.

Energies are whole numbers of a unit in 32 bits: microjoules up to 4,295 J, then millijoules, joules and so on.
"""

import math
from collections.abc import Mapping

import numpy as np

from heliomesh.interop.c_kit import Constants, bits_of
from heliomesh.model.problem import Problem
from heliomesh.physics.chain import Floats, level_cuts
from heliomesh.slot.energy_table import unit_of

_MOST = 2**32 - 1
_LOSS_ZERO = 1 << 15  # stored for 0 dB, so that no stored number is negative
_NOTHING_TELLS = _MOST  # first cut of a slot whose harvest is the same in any weather
_SAME = 1e-9  # of the mean harvest: weathers that differ by less are not told apart


class Measuring:
    """Units and thresholds of one device."""

    def __init__(self, problem: Problem, device: int) -> None:
        law = problem.harvest.law
        self._problem, self._device = problem, device
        self._degree = len(problem.topology.neighbours[device])
        self._num_channel_cuts = problem.channel.levels - 1 if self._degree else 0
        told = getattr(problem.scenario.harvest, "forecast", None) is not None  # by nothing that can be measured
        self._num_weathers = math.isqrt(law.num_weather) if told else law.num_weather
        self._num_forecasts = law.num_weather // self._num_weathers  # that go with each weather
        mean_joule = (law.scale[device] * (law.joule * law.prob).sum(-1)).cpu().numpy()[:, :: self._num_forecasts]
        self._phase_of_slot = law.phase_of_slot[: law.period or (1 if len(mean_joule) == 1 else None)]
        self._weather_by_rank = np.argsort(mean_joule[self._phase_of_slot].mean(0), kind="stable")
        self._harvest_cuts = _between(mean_joule[:, self._weather_by_rank])
        finite = self._harvest_cuts[np.isfinite(self._harvest_cuts)]
        # of ten, of the unit of energy [J]: the finest that holds the battery and every cut of the harvest
        self.unit_exponent, full_joule = unit_of(problem, device, float(finite.max(initial=0.0)))
        self.unit_joule = f"1e{self.unit_exponent}"  # as C and people write it
        self._capacity = self.units(full_joule)

    def units(self, joule: float) -> int:
        """The smallest whole number of units that is not less."""
        exponent = self.unit_exponent
        exact = joule * 10.0**-exponent if exponent < 0 else joule / 10.0**exponent  # by a power that floats hold
        return max(math.ceil(exact), 0)

    @property
    def constants(self) -> list[Constants]:
        """Cuts of channel levels by neighbour, and of weather levels by slot; each only where there are levels."""
        channels = self._channel_constants() if self._num_channel_cuts else []
        return channels + (self._weather_constants() if self._num_weathers > 1 else [])

    def _channel_constants(self) -> list[Constants]:
        """A level's largest loss, from the second level on, and the levels' places among those of the device."""
        problem, edges = self._problem, self._problem.topology.edges_into(self._device)
        gain: Floats = np.outer(problem.link.path_gain[edges].cpu().numpy(), level_cuts(problem.scenario))
        hundredths = np.floor(100 * (-10 * np.log10(np.maximum(gain, 1e-300)))).clip(-_LOSS_ZERO, _LOSS_ZERO - 1)
        losses = (hundredths.astype(int) + _LOSS_ZERO).ravel().tolist()
        own = problem.sites_into(self._device)
        sites = [own.index(one) for one in problem.site_of_neighbour(self._device)]
        return [
            Constants("loss_cut", 16, losses, "channel levels by neighbour: 32768 + loss in 0.01 dB"),
            Constants(
                "neighbour", 16, problem.topology.neighbours[self._device], "neighbours, in the order of their losses"
            ),
            Constants("neighbour_site", 8, sites, "which of the levels a neighbour's loss tells"),
        ]

    def _weather_constants(self) -> list[Constants]:
        all_cuts, phases = self._harvest_cuts.ravel().tolist(), self._phase_of_slot.tolist()
        cuts = [_NOTHING_TELLS if math.isinf(cut) else self.units(cut) for cut in all_cuts]
        by_rank = (self._num_forecasts * self._weather_by_rank).tolist()
        width = max(bits_of(max(phases) + 1), 8)
        by_slot = [Constants("phase", width, phases, "time of the day of each slot")] if len(phases) > 1 else []
        return [
            *by_slot,
            Constants("harvest_cut", 32, cuts, "weathers by time of the day, in units of energy"),
            Constants("weather_of_rank", 8, by_rank, "weathers, that of the least harvest first"),
        ]

    @property
    def macros(self) -> Mapping[str, int | str]:
        """Numbers by name."""
        found: dict[str, int | str] = {
            "CAPACITY": self._capacity,
            "CHANNEL_CUTS": self._num_channel_cuts,
            "WEATHER_CUTS": self._num_weathers - 1,
        }
        if self._num_channel_cuts:
            found["NEIGHBOURS"] = self._degree
        if self._num_weathers > 1:
            found |= {"WEATHER_SLOTS": len(self._phase_of_slot), "FORECASTS": self._num_forecasts}
        return found


def _between(ranked_joule: Floats) -> Floats:
    """Least harvest [J] of each rank but the first, infinite where no harvest tells; (phase, rank) → (phase, cut)."""
    middle = np.maximum.accumulate((ranked_joule[:, 1:] + ranked_joule[:, :-1]) / 2, axis=1)
    same = np.ptp(ranked_joule, axis=1) <= _SAME * ranked_joule.max(1)
    return np.where(same[:, None], np.inf, middle)
