"""What waits to be written to one reader: bounded, in order, answers never dropped."""

from __future__ import annotations

import enum
from collections import deque

MOST_FRAMES = 256
"""Notifications that may wait for a slow reader; the oldest progress is dropped first."""
MOST_BYTES = 4 << 20
"""Bytes that may wait before notifications are dropped."""

PROGRESS = "notifications/progress"


class Weight(enum.IntEnum):
    """What is dropped first when a reader is too slow: the lower goes before the higher."""

    PROGRESS = 0
    NOTICE = 1
    ANSWER = 2


class Frames:
    """A queue of frames. Over its bounds the oldest of the lowest weight goes, never an answer."""

    __slots__ = ("_frames", "dropped", "size")

    def __init__(self) -> None:
        self._frames: deque[tuple[Weight, bytes]] = deque()
        self.size = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, frame: bytes, weight: Weight) -> None:
        """Add one at the end. A single frame is kept, however large."""
        self._frames.append((weight, frame))
        self.size += len(frame)
        while len(self._frames) > 1 and (len(self._frames) > MOST_FRAMES or self.size > MOST_BYTES):
            oldest = self._to_drop()
            if oldest is None:
                break
            self.size -= len(self._frames[oldest][1])
            del self._frames[oldest]
            self.dropped += 1

    def take(self) -> list[bytes]:
        """All of it, in order."""
        frames = [frame for _, frame in self._frames]
        self._frames.clear()
        self.size = 0
        return frames

    def pop(self) -> bytes:
        """The oldest."""
        _, frame = self._frames.popleft()
        self.size -= len(frame)
        return frame

    def _to_drop(self) -> int | None:
        notice: int | None = None
        for index, (weight, _) in enumerate(self._frames):
            if weight is Weight.PROGRESS:
                return index
            if weight is Weight.NOTICE and notice is None:
                notice = index
        return notice


def weight_of(method: str) -> Weight:
    """The weight of a notification."""
    return Weight.PROGRESS if method == PROGRESS else Weight.NOTICE
