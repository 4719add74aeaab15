"""The world around the fleet: channels, weather, harvests and the random numbers of packets.

It draws the streams that the simulator draws, in the same shapes and order, and hands every device its own column
only: the levels of its incoming channels, its weather, its harvest and the losses of the packets that it hears. None
of that depends on what devices do. Where devices drew the streams themselves, each would hold everybody's random
numbers.
"""

from heliomesh.field.fleet.device import Fate, Sensed
from heliomesh.model.problem import Problem
from heliomesh.physics.battery import initial_battery
from heliomesh.simulation.slot_loop import RandomNumbers


class World:
    """One episode, slot by slot."""

    def __init__(self, problem: Problem, episode: int, seed: int) -> None:
        self._problem, self._numbers = problem, RandomNumbers(problem, [episode], seed)
        first = self._numbers.first()
        self.channel_level = problem.channel.initial(first.channel)  # (1, site)
        self.first_battery_joule = initial_battery(problem.scenario, problem.battery, first.harvest[..., 1])[0]
        self._hidden = problem.harvest.start(first.harvest[..., 0])
        self.weather = problem.harvest.weather(self._hidden)  # (1, device)
        self._now = first

    def open(self) -> list[Sensed]:
        """What every device measures in the next slot."""
        problem, loss = self._problem, self._problem.scenario.energy.control_loss
        start, self._now = problem.topology.edge_start, self._numbers.next()
        self.weather = problem.harvest.weather(self._hidden)
        heard = (self._now.control[0] >= loss).numpy() if loss else None
        return [
            Sensed(
                channel_level={number: int(self.channel_level[0, number]) for number in problem.sites_into(device)},
                weather=int(self.weather[0, device]),
                uniform=float(self._now.policy[0, device]),
                heard=None if heard is None else heard[start[device] : start[device + 1]],
            )
            for device in range(problem.num_devices)
        ]

    def close(self, slot: int) -> list[Fate]:
        """What happens to every device in the slot; the world moves on."""
        problem, start = self._problem, self._problem.topology.edge_start
        harvested, self._hidden = problem.harvest.step(slot, self._hidden, self._now.harvest)
        link = self._now.link[0].numpy()
        self.channel_level = problem.channel.step(self.channel_level, self._now.channel)
        return [
            Fate(link[start[device] : start[device + 1]], float(harvested[0, device]))
            for device in range(problem.num_devices)
        ]
