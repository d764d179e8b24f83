"""Features that a system lacks: one table for the checks, the documentation and the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parenv.errors import ConfigurationError
from parenv.platform import system

YES = "yes"
_NEED_WORKERS = "cannot be used on Windows, because parenv starts no processes there. Leave it out, or run in WSL 2."
LIMITS: Mapping[str, Mapping[str, str]] = {
    "worker processes": {
        "linux": YES,
        "posix": YES,
        "windows": "worker processes cannot be started on Windows. Use num_workers=0, or run in WSL 2.",
    },
    "max_memory_bytes": {
        "linux": YES,
        "posix": "max_memory_bytes cannot be used, because only Linux limits the memory of a process. Leave it out.",
        "windows": f"max_memory_bytes {_NEED_WORKERS}",
    },
    "python": {"linux": YES, "posix": YES, "windows": f"python {_NEED_WORKERS}"},
    "hosts": {"linux": YES, "posix": YES, "windows": f"placement {_NEED_WORKERS}"},
    "start_method": {
        "linux": '"fork" by default',
        "posix": '"fork" by default, and "spawn" on macOS, where system libraries fail in a process that was forked',
        "windows": "without an effect",
    },
    "processes of environments": {
        "linux": "killed with their worker",
        "posix": "killed with their worker, without those in a session of their own",
        "windows": "without an effect",
    },
    "stacks of hung workers": {
        "linux": YES,
        "posix": "yes, complete after a second without output",
        "windows": "without stacks",
    },
    "NUMA nodes": {"linux": YES, "posix": "without pinning", "windows": "without pinning"},
    "free memory": {"linux": "checked", "posix": "without a check", "windows": "without a check"},
    "measured number of workers": {
        "linux": YES,
        "posix": "yes, and without a measurement on macOS",
        "windows": "without a measurement",
    },
}
"""Features by name, each with a cell per system: ``"yes"``, a difference, or the sentence of the refusal."""


def possible_workers(num_workers: Any) -> Any:
    """Return the number of workers that the user gave; 0 for a default if this system has no worker processes.

    Raises:
        ConfigurationError: This system has no worker processes, and they are required.
    """
    if system.HAS_PROCESSES:
        return num_workers
    if num_workers is None or num_workers == "auto":
        return 0
    if num_workers != 0:
        check_possible("worker processes")
    return num_workers


def check_possible(feature: str) -> None:
    """Check that this system has a feature of :data:`LIMITS`.

    Raises:
        ConfigurationError: It does not.
    """
    if (cell := LIMITS[feature][system.NAME]).endswith("."):
        raise ConfigurationError(cell)
