"""Battery, harvest and channel by the simulator's own random numbers: a device's column of the fleet's world."""

from dataclasses import replace

import torch

from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.field.fleet.world import World
from heliomesh.model.problem import Problem


class Simulated:
    """One device of a simulated world."""

    def __init__(
        self,
        problem: Problem,
        device: int,
        episode: int,
        seed: int,
        harvest_factor: float = 1.0,
        spending_factor: float = 1.0,
    ) -> None:
        self._world, self._device, self._factor = World(problem, episode, seed), device, harvest_factor
        self._problem, self._spending_factor = problem, spending_factor
        self.first_battery_joule = float(self._world.first_battery_joule[device])

    def open(self, slot: int) -> Sensed:
        """The device's own column."""
        return self._world.open()[self._device]

    def close(self, slot: int) -> Fate:
        """The device's own column."""
        fate = self._world.close(slot)[self._device]
        return replace(fate, harvested_joule=self._factor * fate.harvested_joule)

    def spent_joule(self, power_watt: float, trained: bool) -> float | None:
        """The device's books are right, or a meter says a multiple of what the scenario does."""
        if self._spending_factor == 1:
            return None
        used = self._problem.consumption
        drawn = used.drawn_joule(torch.tensor(power_watt, dtype=torch.float64), torch.tensor(trained))
        return self._spending_factor * float((drawn + used.drain_joule)[self._device])
