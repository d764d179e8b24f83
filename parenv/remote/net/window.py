"""Flow control: a limit on the unread messages of a host, counted at both ends."""

from __future__ import annotations

from collections import deque

WINDOW = 16
"""Maximum number of unread messages."""
WINDOW_BYTES = 1 << 22
"""Maximum number of unread bytes, beside one more message."""


class Window:
    """A host's count of the messages that the main process has not read yet.

    Args:
        messages: Maximum number of messages.
        nbytes: Maximum number of bytes, beside one more message.
    """

    def __init__(self, messages: int = WINDOW, nbytes: int = WINDOW_BYTES) -> None:
        self._messages, self._nbytes = messages, nbytes
        self._sizes: deque[int] = deque()

    @property
    def is_open(self) -> bool:
        """True if another message may be sent."""
        return len(self._sizes) < self._messages and sum(self._sizes) < self._nbytes

    def sent(self, nbytes: int) -> None:
        """Count a message of this size as sent."""
        self._sizes.append(nbytes)

    def read(self, messages: int) -> None:
        """Count this number of messages as read."""
        for _ in range(min(messages, len(self._sizes))):
            self._sizes.popleft()


class Receipts:
    """The main process's count of read messages that it has not reported to the host: at most half a :class:`Window`.

    Args:
        messages: Number of messages in the window.
        nbytes: Number of bytes in the window.
    """

    def __init__(self, messages: int = WINDOW, nbytes: int = WINDOW_BYTES) -> None:
        self._messages, self._nbytes = messages, nbytes
        self._read = self._read_bytes = 0

    def due(self, nbytes: int) -> int:
        """Count a message as read. Returns the number of messages to report now, or 0."""
        self._read, self._read_bytes = self._read + 1, self._read_bytes + nbytes
        if 2 * self._read < self._messages and 2 * self._read_bytes < self._nbytes:
            return 0
        due, self._read, self._read_bytes = self._read, 0, 0
        return due
