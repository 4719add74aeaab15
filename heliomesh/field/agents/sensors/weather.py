"""The weather level that a panel sees, from the joules it delivers.

The harvest law says what a slot gives at each level w, and by which chain levels follow one another. A Bayesian
filter of that chain weighs both:

    P(w) ← P(w) p(u | w),    and from slot to slot    P(w') ← Σ_w P(w) K[w, w']

A real panel never gives exactly a law's joules. p(u | w) is the law with a Cauchy density around each of its values:
even far from all of them the nearest level is the likeliest, and no reading excludes a level for good.
"""

import torch

from heliomesh.physics.harvesting import HarvestLaw

_WIDTH = 0.1  # of the density around a value, as a share of it
_LEAST_WIDTH = 0.01  # of the largest value of all slots: at dusk all levels look alike
_LEAST_PROB = 1e-6  # of a level, whatever was seen


class WeatherFilter:
    """What one device knows of its weather."""

    def __init__(self, law: HarvestLaw, device: int) -> None:
        self._law, self._scale = law, law.scale[device]
        self._prob = law.stationary
        self._least_width = _LEAST_WIDTH * float(self._scale * law.joule.max())

    @property
    def level(self) -> int:
        """The likeliest level."""
        return int(self._prob.argmax())

    def see(self, slot: int, joule: float) -> None:
        """A panel that delivers so much in a slot [J]."""
        if not self._least_width > 0:
            return
        phase = int(self._law.phase_of_slot[slot])
        value = self._scale * self._law.joule[phase]  # (weather, atom)
        width = _WIDTH * value + self._least_width
        density = self._law.prob[phase] * width / (width**2 + (joule - value) ** 2)
        self._believe(self._prob * density.sum(-1))

    def move(self) -> None:
        """A slot passes."""
        self._believe(self._prob @ self._law.kernel)

    def _believe(self, weight: torch.Tensor) -> None:
        prob = (weight / weight.sum()).clamp_min(_LEAST_PROB)
        self._prob = prob / prob.sum()
