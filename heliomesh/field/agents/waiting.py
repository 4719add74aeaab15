"""Frames that wait to be read: a queue for each speaker, read in turn, so that who sends too much waits alone."""

import threading
import time
from collections import defaultdict, deque
from typing import NamedTuple

_FRAME_BYTES = 1024  # that a frame counts for beside its length


class ReceivedFrame(NamedTuple):
    """A frame, and when it came, in seconds of `time.monotonic`."""

    frame: bytes
    second: float


class Waiting:
    """Queues by the member that brought a frame, as its certificate says; who signed it is found out later."""

    def __init__(self, share_bytes: int) -> None:
        self._queues: defaultdict[int, deque[ReceivedFrame]] = defaultdict(deque)
        self._bytes: defaultdict[int, int] = defaultdict(int)
        self._turns: deque[int] = deque()  # speakers of whom something waits
        self._share_bytes, self._changed = share_bytes, threading.Condition()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def put(self, speaker: int, frame: bytes, timeout_second: float) -> bool:
        """Queue a frame as soon as its speaker's share has room for it; False where it has none in time."""
        size, arrived = len(frame) + _FRAME_BYTES, ReceivedFrame(frame, time.monotonic())
        with self._changed:
            if not self._changed.wait_for(lambda: self._bytes[speaker] + size <= self._share_bytes, timeout_second):
                return False
            if not self._queues[speaker]:
                self._turns.append(speaker)
            self._queues[speaker].append(arrived)
            self._bytes[speaker] += size
            self._changed.notify_all()
        return True

    def get(self, timeout_second: float) -> ReceivedFrame | None:
        """The next frame of the speaker whose turn it is; None where there is none in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._turns), timeout_second):
                return None
            speaker = self._turns.popleft()
            arrived = self._queues[speaker].popleft()
            if self._queues[speaker]:
                self._turns.append(speaker)
            self._bytes[speaker] -= len(arrived.frame) + _FRAME_BYTES
            self._changed.notify_all()
        return arrived
