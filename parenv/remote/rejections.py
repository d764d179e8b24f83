"""What hosts were refused, counted; each kind is logged once for each key."""

from __future__ import annotations

import logging
from collections import Counter

from parenv.remote.validation import harmless

MAX_OFFENCES = 3
"""So often a key may send what it may not; then no host joins by it any more."""
MAX_CHARACTERS = 300
_log = logging.getLogger("parenv")


class Rejections:
    """What the driver refused of hosts that have a key.

    Attributes:
        counts: by reason.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._logged: set[tuple[str, str]] = set()
        self._offences: Counter[str] = Counter()

    def note(self, reason: str, key: str, why: str) -> None:
        """Count one.

        Args:
            reason: in a word or two.
            key: the name of the host's key.
            why: a sentence, which may quote what the host has sent.
        """
        self.counts[reason] += 1
        if (reason, key) not in self._logged:
            self._logged.add((reason, key))
            shown = harmless(" ".join(why[: 2 * MAX_CHARACTERS].split()))[:MAX_CHARACTERS]
            _log.warning("host %s %s; more like it are only counted", key, shown)

    def offence(self, reason: str, key: str, why: str) -> None:
        """Count one of a host that has sent what no host sends."""
        self.note(reason, key, why)
        self._offences[key] += 1

    def bar(self, key: str) -> str:
        """Why no host may join by this key any more; nothing while one may."""
        barred = self._offences[key] >= MAX_OFFENCES
        return f"hosts with this key have sent what they may not {MAX_OFFENCES} times" if barred else ""
