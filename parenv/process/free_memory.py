"""Free memory, checked before memory is reserved, because the kernel kills a process that exceeds its limit."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path

from parenv.errors import ConfigurationError
from parenv.process.cores import control_groups

WARNING_SHARE = 0.5
"""Share of the free memory above which a warning is logged."""
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
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
    free = free_bytes()
    if needed <= WARNING_SHARE * free:
        return
    message = f"{what} needs {in_words(needed)} of memory, but {in_words(free)} are free: {of}. Use {remedy}."
    if needed > free:
        raise ConfigurationError(message)
    _log.warning("%s", message)


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the number of bytes that the machine and the control groups leave to this process, or infinity.

    Args:
        proc: Folder of the proc file system.
        groups: Folder at which control groups are mounted, v2 or v1.
    """
    return min([_of_machine(proc), *_of_groups(proc, groups)])


def in_words(nbytes: float) -> str:
    """Format a number of bytes with a unit.

    >>> in_words(13_200_000_000), in_words(4_096)
    ('13.2 GB', '0.0041 MB')
    """
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"


def _of_machine(proc: Path) -> float:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def _of_groups(proc: Path, mount: Path) -> Iterator[float]:
    """Yield the bytes that each control group of this process leaves."""
    for controller, root, files in (("", mount, _V2), ("memory", mount / "memory", _V1)):
        for group in control_groups(controller, str(root), of=str(proc / "self/cgroup")):
            yield _left_in(Path(group), *files)


def _left_in(group: Path, limit: str, usage: str, reclaimable: str) -> float:
    """Return the limit minus the memory in use that is not reclaimable at once."""
    try:
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / usage).read_text()) - int(statistics.get(reclaimable, 0))
        return max(0.0, int((group / limit).read_text()) - used)
    except (OSError, ValueError):
        return math.inf  # There is no such group, or its limit is "max".
