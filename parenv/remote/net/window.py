"""How much of a host may wait to be read: both ends count it, and the driver says what it has read."""

from __future__ import annotations

from collections import deque

WINDOW = 16
"""How many messages."""
WINDOW_BYTES = 1 << 22
"""How many bytes, beside one more message."""


class Window:
    """What a host has sent that its driver has not read yet, as far as the host knows.

    Args:
        messages: how many there may be.
        nbytes: how much may be there beside one more message.
    """

    def __init__(self, messages: int = WINDOW, nbytes: int = WINDOW_BYTES) -> None:
        self._messages, self._nbytes = messages, nbytes
        self._sizes: deque[int] = deque()

    @property
    def is_open(self) -> bool:
        """Whether there is room for another message."""
        return len(self._sizes) < self._messages and sum(self._sizes) < self._nbytes

    def sent(self, nbytes: int) -> None:
        """A message is on its way."""
        self._sizes.append(nbytes)

    def read(self, messages: int) -> None:
        """The driver says that it has read so many."""
        for _ in range(min(messages, len(self._sizes))):
            self._sizes.popleft()


class Receipts:
    """What a driver has read of a host and not told it yet: half of a :class:`Window` at most.

    Args:
        messages: of the window.
        nbytes: of the window.
    """

    def __init__(self, messages: int = WINDOW, nbytes: int = WINDOW_BYTES) -> None:
        self._messages, self._nbytes = messages, nbytes
        self._read = self._read_bytes = 0

    def due(self, nbytes: int) -> int:
        """A message has been read; how many to tell the host of now, or 0."""
        self._read, self._read_bytes = self._read + 1, self._read_bytes + nbytes
        if 2 * self._read < self._messages and 2 * self._read_bytes < self._nbytes:
            return 0
        due, self._read, self._read_bytes = self._read, 0, 0
        return due
