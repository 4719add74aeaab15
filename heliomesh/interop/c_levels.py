"""From what a board measures to the levels that a plan knows, as constants of a table file.

A packet's loss is the power sent less the power received, in hundredths of a decibel. The cut of a level is the loss
of the mean path at the least fading gain of that level. The weather is told by the harvest of a slot: cuts lie midway
between the mean harvests of neighbouring weathers at that time of the day. Where these are equal, as at night, no
harvest tells, and the last weather stays.

Energies are whole numbers of a unit in 32 bits: microjoules up to 4,295 J, then millijoules, joules and so on.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heliomesh.interop.c_kit import Constants, bits_of
from heliomesh.model.problem import Problem
from heliomesh.physics.chain import Floats, level_cuts

_MOST = 2**32 - 1
_FINEST_EXPONENT = -6  # microjoules
_LOSS_ZERO = 1 << 15  # stored for 0 dB, so that no stored number is negative
_NOTHING_TELLS = _MOST  # first cut of a slot whose harvest is the same in any weather


@dataclass(frozen=True)
class Measuring:
    """Units and thresholds of one device."""

    problem: Problem
    device: int

    @cached_property
    def unit_exponent(self) -> int:
        """Of ten, of the unit of energy [J]: the finest that holds the battery and every cut of the harvest."""
        cuts = self._harvest_cuts[np.isfinite(self._harvest_cuts)]
        largest = max(float(self.problem.battery.capacity_joule[self.device]), float(cuts.max(initial=0.0)))
        exponent = _FINEST_EXPONENT
        while largest * 10.0**-exponent > _MOST:
            exponent += 3
        return exponent

    @property
    def unit_joule(self) -> str:
        """The unit of energy, as C and people write it."""
        return f"1e{self.unit_exponent}"

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
        losses = [_stored_loss(loss) for loss in self._loss_db.ravel().tolist()]
        return [
            Constants("loss_cut", 16, losses, "channel levels by neighbour: 32768 + loss in 0.01 dB"),
            Constants("neighbour", 16, self._neighbours, "neighbours, in the order of their losses"),
            Constants("neighbour_site", 8, self._sites, "which of the levels a neighbour's loss tells"),
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
            "CAPACITY": self.units(float(self.problem.battery.capacity_joule[self.device])),
            "CHANNEL_CUTS": self._num_channel_cuts,
            "WEATHER_CUTS": self._num_weathers - 1,
        }
        if self._num_channel_cuts:
            found["NEIGHBOURS"] = len(self._edges)
        if self._num_weathers > 1:
            found |= {"WEATHER_SLOTS": len(self._phase_of_slot), "FORECASTS": self._num_forecasts}
        return found

    @property
    def _edges(self) -> range:
        """Links into the device."""
        start, stop = self.problem.topology.edge_start[self.device : self.device + 2]
        return range(int(start), int(stop))

    @property
    def _neighbours(self) -> list[int]:
        return [int(self.problem.topology.edge_sender[edge]) for edge in self._edges]

    @property
    def _sites(self) -> list[int]:
        """Place of each link's site among the levels that the device measures."""
        own = self.problem.sites_into(self.device)
        return [own.index(int(self.problem.channel.site_of_edge[edge])) for edge in self._edges]

    @property
    def _num_channel_cuts(self) -> int:
        return self.problem.channel.levels - 1 if self._edges else 0

    @property
    def _loss_db(self) -> Floats:
        """Largest loss of a level, from the second on; (neighbour, cut)."""
        path_gain = self.problem.link.path_gain.cpu().numpy()[list(self._edges)]
        gain: Floats = np.outer(path_gain, level_cuts(self.problem.scenario))
        return -10 * np.log10(np.maximum(gain, 1e-300))

    @cached_property
    def _num_weathers(self) -> int:
        """Weathers that a harvest can tell: a forecast is told by nothing."""
        weathers = self.problem.harvest.law.num_weather
        forecast = getattr(self.problem.scenario.harvest, "forecast", None) is not None
        return math.isqrt(weathers) if forecast else weathers

    @property
    def _num_forecasts(self) -> int:
        """Forecasts that go with each weather."""
        return self.problem.harvest.law.num_weather // self._num_weathers

    @cached_property
    def _mean_joule(self) -> Floats:
        """Mean harvest by time of the day and weather; (phase, weather)."""
        law = self.problem.harvest.law
        mean = law.scale[self.device] * (law.joule * law.prob).sum(-1)
        found: Floats = mean[:, :: self._num_forecasts].cpu().numpy()
        return found

    @property
    def _phase_of_slot(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Row of the harvest's cuts in each slot, as far as they do not repeat."""
        law = self.problem.harvest.law
        if self._num_weathers == 1:
            return np.zeros(1, dtype=np.int64)
        return law.phase_of_slot[: law.period or (1 if len(self._mean_joule) == 1 else None)]

    @property
    def _weather_by_rank(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Weathers by rising mean harvest."""
        return np.argsort(self._mean_joule[self._phase_of_slot].mean(0), kind="stable")

    @cached_property
    def _harvest_cuts(self) -> Floats:
        """Least harvest [J] of each rank but the first; infinite where no harvest tells; (phase, cut)."""
        if self._num_weathers == 1:
            return np.zeros((0, 0))
        ranked = self._mean_joule[:, self._weather_by_rank]
        middle = np.maximum.accumulate((ranked[:, 1:] + ranked[:, :-1]) / 2, axis=1)
        same = np.ptp(ranked, axis=1) <= _SAME * ranked.max(1)
        return np.where(same[:, None], np.inf, middle)


_SAME = 1e-9  # of the mean harvest: weathers that differ by less are not told apart


def _stored_loss(loss_db: float) -> int:
    return min(max(math.floor(100 * loss_db) + _LOSS_ZERO, 0), (1 << 16) - 1)
