"""Free memory, checked before memory is reserved, because the kernel kills a process that exceeds its limit."""

from __future__ import annotations

import logging

from parenv.errors import ConfigurationError
from parenv.platform import system

WARNING_SHARE = 0.5
"""Share of the free memory above which a warning is logged."""
_log = logging.getLogger("parenv")


def check_fits(what: str, needed: int, of: str, remedy: str) -> None:
    """Check that enough memory is free, and warn if more than half of it is needed.

    Args:
        what: Name of the object that needs the memory, for messages.
        needed: Number of bytes.
        of: Description of their parts, for messages.
        remedy: Changes that need less memory, for messages.

    Raises:
        ConfigurationError: Less memory is free.
    """
    free = system.free_bytes()
    if needed <= WARNING_SHARE * free:
        return
    message = f"{what} needs {in_words(needed)} of memory, but {in_words(free)} are free: {of}. Use {remedy}."
    if needed > free:
        raise ConfigurationError(message)
    _log.warning("%s", message)


def in_words(nbytes: float) -> str:
    """Format a number of bytes with a unit.

    >>> in_words(13_200_000_000), in_words(4_096)
    ('13.2 GB', '0.0041 MB')
    """
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
