"""How messages travel: the clock calls devices by name, and goes on when all they sent has arrived."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from heliomesh.engine.fleet.device import Device, Installation, perform
from heliomesh.engine.fleet.messages import Outgoing


class Post(Protocol):
    """Devices that can be called, wherever they are."""

    def call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Let devices do their part of a phase and wait until their messages have arrived; results of the living."""

    def kill(self, device: int) -> None:
        """End a device at once."""


class InProcess:
    """Devices as objects of this process, for tests and for a look without Ray."""

    def __init__(self, given: Sequence[Installation]) -> None:
        self._devices = {one.view.device: Device(one) for one in given}

    def call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call one after the other; then carry messages until there are none."""
        results: dict[int, Any] = {}
        travelling: deque[tuple[int, Outgoing]] = deque()
        for number, values in arguments.items():
            if number in self._devices:
                outgoing, results[number] = perform(self._devices[number], name, values)
                travelling.append((number, outgoing))
        while travelling:
            sender, outgoing = travelling.popleft()
            for receiver, messages in outgoing.items():
                if receiver in self._devices:
                    travelling.append((receiver, self._devices[receiver].deliver(sender, messages)))
        return results

    def kill(self, device: int) -> None:
        """Forget a device."""
        self._devices.pop(device, None)
