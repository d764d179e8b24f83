"""A pipe to which worker processes write their stacks when they are asked for them."""

from __future__ import annotations

import os
import select
import time

STACK_TIMEOUT_S = 1.0
"""What a worker is given to write its stack."""
PAUSE_S = 0.1
"""Who has written nothing for so long has written all, unless it was in the midst of a line."""


class StackPipe:
    """Both ends of it.

    Attributes:
        descriptor: the end that workers write to.
    """

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        os.set_blocking(self._read, False)
        self._poll = select.poll()
        self._poll.register(self._read, select.POLLIN)

    def read(self, timeout_s: float) -> str:
        """A stack, or what there is of it by then."""
        text, deadline, patience_s = b"", time.monotonic() + timeout_s, timeout_s
        while self._poll.poll(patience_s * 1000.0):
            text += os.read(self._read, 1 << 16)
            left = deadline - time.monotonic()
            if left <= 0.0:
                break
            patience_s = min(left, PAUSE_S) if text.endswith(b"\n") else left
        return text.decode(errors="replace")

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read)
        os.close(self.descriptor)
