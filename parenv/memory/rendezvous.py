"""Rendezvous: the last of several processes that finish something notifies the main process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.memory.order import fence, full_fence


class Rendezvous:
    """Numbers in shared memory: what each place must finish, and what it has finished last.

    A place is a row of a vector env or a worker of a pool. Only its worker writes its finished number. The main
    process waits until enough places have finished what is due.

    A worker writes its data, a fence, its number, and a full fence. Then it looks at all numbers. If enough places have
    finished, it notifies the main process. The main process writes what is due and how many places it waits for, then a
    full fence. Then it looks at all numbers, and sleeps if they are not enough. It looks again after each notification.

    **No notification is lost.** All full fences have one order. After its own fence, a process sees everything that
    other processes have written before theirs. Consider the last fence of those processes whose numbers are enough
    together, and of the main process. If the last fence is a worker's, that worker sees enough numbers and notifies. If
    it is the main process's, the main process sees enough numbers and does not sleep. Without full fences, each of the
    last two workers could miss the number of the other, and neither would notify.

    **Needless notifications are harmless.** Two workers that finish at the same moment may both notify. The main
    process looks at the numbers after each notification, and trusts only the numbers.

    **A worker may die at any point.** Data without their number are not read. If a worker dies between its number and
    its notification, the end of its process wakes the main process.

    Args:
        due: Numbers that are due, int64 ``[n]``, or int64 ``[1]`` for all places. The main process writes them.
        done: Numbers that were finished last, int64 ``[n]``.
    """

    def __init__(self, due: Any, done: Any) -> None:
        self._due, self._done = np.broadcast_to(np.asarray(due), done.shape), done

    def finish(self, places: Any, numbers: Any) -> None:
        """Write that places have finished these numbers, after their data."""
        # The main process may read the number when another worker wakes it, so the data must be written first.
        fence()
        self._done[places] = numbers

    def is_enough(self, wanted: Sequence[int], notified: Sequence[int] = (0,)) -> bool:
        """Return whether a worker that has called :meth:`finish` must notify the main process.

        Both items are read after the fence.

        Args:
            wanted: One item, the number of places for which the main process waits.
            notified: One item, whether a worker has notified the main process, which will look at the numbers after it
                has cleared this. Default: no.
        """
        full_fence()
        return not notified[0] and self.has(wanted[0])

    def has(self, wanted: int) -> bool:
        """Return whether at least so many places have finished what is due."""
        if wanted == len(self._done):
            return bool(self._done.tobytes() == self._due.tobytes())
        return int(np.count_nonzero(self._done == self._due)) >= wanted
