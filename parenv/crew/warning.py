"""Warnings of workers, which the user gets once, at the line of the user that caused them."""

from __future__ import annotations

import sys
import warnings

MAX_WARNINGS = 100
"""Maximum number of different warnings, because a host may send any number."""


class Warner:
    """Gives each warning once, even if several workers send it.

    Attributes:
        is_silent: Whether all warnings are ignored, for a library that casts observations without a warning.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()
        self.is_silent = False

    def __call__(self, text: str, about: str = "") -> None:
        """Warn, unless the same text was given before, or another text about the same subject."""
        if not self.is_silent and (about or text) not in self._said and len(self._said) < MAX_WARNINGS:
            self._said.add(about or text)
            warnings.warn(text, UserWarning, stacklevel=_frames_of_ours())


def _frames_of_ours() -> int:
    """Return the stack level, for ``warn`` in the caller, of the first frame outside this package."""
    count, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "parenv":
        count, frame = count + 1, frame.f_back
    return count
