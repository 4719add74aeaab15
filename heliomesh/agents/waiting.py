"""Frames that wait to be read: a queue for each member, read in turn, so that who sends too much waits alone."""

import threading
from collections import deque
from collections.abc import Iterable

from heliomesh.agents.wire import claimed_signer

_FRAME_BYTES = 1024  # that a frame counts for beside its length


class Waiting:
    """Queues by the member that a frame names; whose signature it has is found out when it is read."""

    def __init__(self, members: Iterable[int], share_bytes: int) -> None:
        self._queues: dict[int | None, deque[bytes]] = {member: deque() for member in (None, *members)}
        self._bytes = dict.fromkeys(self._queues, 0)
        self._turns: deque[int | None] = deque()  # members of whom something waits
        self._share_bytes, self._changed = share_bytes, threading.Condition()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, frame: bytes, timeout_second: float) -> bool:
        """Queue a frame as soon as its member's share has room for it; False where it has none in time.

        What names no member is dropped where there is no room.
        """
        signer, size = claimed_signer(frame), len(frame) + _FRAME_BYTES
        member = signer if signer in self._queues else None
        with self._changed:
            timeout = 0.0 if member is None else timeout_second
            if not self._changed.wait_for(lambda: self._bytes[member] + size <= self._share_bytes, timeout):
                return member is None
            if not self._queues[member]:
                self._turns.append(member)
            self._queues[member].append(frame)
            self._bytes[member] += size
            self._changed.notify_all()
        return True

    def get(self, timeout_second: float) -> bytes | None:
        """The next frame of the member whose turn it is; None where there is none in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._turns), timeout_second):
                return None
            member = self._turns.popleft()
            frame = self._queues[member].popleft()
            if self._queues[member]:
                self._turns.append(member)
            self._bytes[member] -= len(frame) + _FRAME_BYTES
            self._changed.notify_all()
        return frame
