"""The devices of a fleet as objects of one process, and the messages between them.

A device is called by the name of a part of a slot, and knows nothing of others but what they send to it. A message to
a dead device is lost.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from heliomesh.field.fleet.device import Device, Installation
from heliomesh.field.fleet.messages import Outgoing

_SENDING = ("tell", "move", "open", "bid", "grant", "act")  # methods of devices that return messages


class Post:
    """Carries messages from neighbour to neighbour."""

    def __init__(self, given: Sequence[Installation]) -> None:
        self._devices = {one.view.device: Device(one) for one in given}

    def call(self, name: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Let devices do their part, then carry messages until there are none; what the living return."""
        returned = {
            number: getattr(self._devices[number], name)(*values)
            for number, values in arguments.items()
            if number in self._devices
        }
        travelling: deque[tuple[int, Outgoing]] = deque(returned.items() if name in _SENDING else ())
        while travelling:
            sender, outgoing = travelling.popleft()
            for receiver, messages in outgoing.items():
                if receiver in self._devices:
                    travelling.append((receiver, self._devices[receiver].deliver(sender, messages)))
        return returned

    def kill(self, device: int) -> None:
        """End a device at once."""
        del self._devices[device]
