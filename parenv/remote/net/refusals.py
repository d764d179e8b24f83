"""Counts of what the main process refuses. The first refusal of each kind is logged."""

from __future__ import annotations

import logging
import math
from collections import Counter

_log = logging.getLogger("parenv")


class Refusals:
    """Counts refusals by reason, and limits what they write to the log.

    Args:
        most_logged: Maximum number of log entries. Default: no limit.

    Attributes:
        counts: Number of refusals by reason.
    """

    def __init__(self, most_logged: float = math.inf) -> None:
        self.counts: Counter[str] = Counter()
        self._most_logged = most_logged
        self._logged: set[tuple[str, str]] = set()

    def note(self, reason: str, peer: str, text: str) -> None:
        """Log a refusal if it is the first for this reason and peer, then count it."""
        self.log_once(reason, peer, logging.WARNING, f"{text}; more like it are only counted")
        self.counts[reason] += 1

    def log_once(self, reason: str, peer: str, level: int, text: str) -> None:
        """Log a text if it is the first for this reason and peer, and the log has space for it."""
        if (reason, peer) not in self._logged and len(self._logged) < self._most_logged:
            self._logged.add((reason, peer))
            _log.log(level, "%s", text)
