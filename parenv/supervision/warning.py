"""Warnings of workers, given to the user once, as of the line of the user's that led to them."""

from __future__ import annotations

import sys
import warnings

MAX_WARNINGS = 100
"""Different ones in all, since a host may say anything."""


class Warner:
    """Warns once of the same thing, whichever worker says it.

    Attributes:
        is_silent: whether it never warns, for a library that casts observations without a warning.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()
        self.is_silent = False

    def __call__(self, text: str, about: str = "") -> None:
        """Warn, unless that was said before, or something else about the same."""
        if not self.is_silent and (about or text) not in self._said and len(self._said) < MAX_WARNINGS:
            self._said.add(about or text)
            warnings.warn(text, UserWarning, stacklevel=_frames_of_ours())


def _frames_of_ours() -> int:
    """How many frames to go up from a call of ``warn`` in our caller to the first that is not of this package."""
    count, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "parenv":
        count, frame = count + 1, frame.f_back
    return count
