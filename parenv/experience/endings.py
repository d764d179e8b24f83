"""Reasons for which episodes end."""

from __future__ import annotations

from typing import Any

import numpy as np

ENDINGS = (
    "terminated",
    "truncated",
    "environment_error",
    "step_timeout",
    "worker_died",
    "host_lost",
    "restarted",
)
"""Reasons for which an episode ends, the values of ``episodes.ended_by``:

* ``"terminated"``: The environment terminated the episode. It may have truncated the episode in the same step.
* ``"truncated"``: The environment, or a time limit around it, truncated the episode.
* ``"environment_error"``: The environment raised an exception, and ``on_env_error`` replaced it or its worker.
* ``"step_timeout"``: The worker exceeded ``step_timeout_s`` or another time limit, and was killed.
* ``"worker_died"``: The worker's process ended, for example by a signal or for lack of memory.
* ``"host_lost"``: The connection to the worker's host was lost.
* ``"restarted"``: The sub-environment began again for another reason, such as a broken protocol.
"""

TERMINATED, TRUNCATED, ENVIRONMENT_ERROR, STEP_TIMEOUT, WORKER_DIED, HOST_LOST, RESTARTED = ENDINGS
LOST = frozenset(ENDINGS[2:])
"""Reasons for which an episode is lost: the environment did not end it, so its return and length are incomplete."""

FIRST_LOST = len(ENDINGS) - len(LOST)
"""Index of the first reason in :data:`ENDINGS` for which an episode is lost."""

_TEXTS = np.array(ENDINGS)
INDEX = {ending: index for index, ending in enumerate(ENDINGS)}
"""Index of each reason in :data:`ENDINGS`, as records in shared memory and messages have it."""


def endings_of(indices: Any) -> Any:
    """Return the reasons with these indices in :data:`ENDINGS`, str ``[K]``.

    >>> endings_of([1, 0]).tolist()
    ['truncated', 'terminated']
    """
    return _TEXTS[np.asarray(indices, np.int64)]


def indices_of(ended_by: Any) -> list[int]:
    """Return the indices in :data:`ENDINGS` of reasons, for messages."""
    return [INDEX[ending] for ending in ended_by.tolist()]


def is_finished(ended_by: Any) -> Any:
    """Return whether the environment ended each episode, bool ``[K]``."""
    return (ended_by == TERMINATED) | (ended_by == TRUNCATED)
