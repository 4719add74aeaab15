"""The fleet over Ray: every device is an actor, which has the addresses of its neighbours and of nobody else.

A call of an actor returns once its messages are on their way, with a receipt for each neighbour they went to;
neighbours that pass messages on return receipts in turn. The clock collects receipts until there are none: then all
has arrived. A message to a dead device is lost. Actors compute with as many threads as the driver, since sums depend
on it in the last bit; with one thread (OMP_NUM_THREADS=1) actors do not stand in each other's way.
"""

from heliomesh.engine import ray as _engine  # noqa: F401  # isort: skip  # it sets what Ray reads on import

from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError, RayTaskError

from heliomesh.field.fleet.device import Device, Installation, perform
from heliomesh.field.fleet.messages import Message, Outgoing


class DeviceActor:
    """A device in a process of its own."""

    def __init__(self, given: Installation, threads: int) -> None:
        torch.set_num_threads(threads)
        self._number = given.view.device
        self._device = Device(given)
        self._neighbours: dict[int, Any] = {}

    def meet(self, neighbours: dict[int, Any]) -> None:
        """Learn the addresses of the neighbours."""
        self._neighbours = neighbours

    def perform(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """The device's part of a phase: its result, and a receipt for each neighbour to whom it sent."""
        outgoing, result = perform(self._device, name, arguments)
        return result, self._send(outgoing)

    def deliver(self, sender: int, messages: Sequence[Message]) -> list[Any]:
        """Take what a neighbour sent; receipts for what was passed on."""
        return self._send(self._device.deliver(sender, messages))

    def _send(self, outgoing: Outgoing) -> list[Any]:
        return [
            self._neighbours[neighbour].deliver.remote(self._number, messages)
            for neighbour, messages in outgoing.items()
        ]


class RayPost:
    """Devices as actors."""

    def __init__(self, given: Sequence[Installation]) -> None:
        # an actor mostly waits for others, so it reserves no core; on a cluster they go everywhere
        make: Any = ray.remote(DeviceActor).options(num_cpus=0, scheduling_strategy="SPREAD")
        threads, cores = torch.get_num_threads(), max(1, int(ray.cluster_resources().get("CPU", 1)))  # type: ignore[no-untyped-call]
        self._actors: dict[int, Any] = {}
        self._dead: set[int] = set()
        for first in range(0, len(given), cores):  # as many at once as can start without disturbing one another
            wave = {one.view.device: make.remote(one, threads) for one in given[first : first + cores]}
            ray.get([actor.meet.remote({}) for actor in wave.values()])
            self._actors |= wave
        addresses = {one.view.device: {n: self._actors[n] for n in one.view.neighbours} for one in given}
        ray.get([self._actors[device].meet.remote(known) for device, known in addresses.items()])

    def call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call all at once and wait for their messages; the result of a device that dies in it is missing."""
        called = {
            device: self._actors[device].perform.remote(name, values)
            for device, values in arguments.items()
            if device not in self._dead
        }
        results, receipts = {}, []
        for device, future in called.items():
            answer = _answer(future)
            if answer is None:
                self._dead.add(device)
            else:
                results[device], sent = answer
                receipts += sent
        while receipts:
            receipts = [further for receipt in receipts for further in _answer(receipt) or []]
        return results

    def kill(self, device: int) -> None:
        """End an actor's process."""
        ray.kill(self._actors[device])
        self._dead.add(device)


def _answer(future: Any) -> Any:
    """What an actor returned; None if it is dead. An error of the device is raised as it is."""
    try:
        return ray.get(future)
    except RayActorError:
        return None
    except RayTaskError as error:
        raise error.cause from None
