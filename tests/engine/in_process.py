"""A fleet whose devices are objects of this process."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from heliomesh.field.fleet.device import Device, Installation, perform
from heliomesh.field.fleet.messages import Outgoing


class InProcess:
    """Messages that travel by calls."""

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
