"""Takes from every process that has this folder on its path what macOS lacks, see ``make test-portable``.

Python imports a module of this name at each start, so workers and fork servers are guarded too. The tests themselves
keep ``/proc``, by which they find processes that were left. A module of the same name in another folder runs first,
such as the one of a distribution.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib.machinery
import importlib.util
import os
import posix
import select
import selectors
import socket
import sys
from typing import Any

MISSING = {
    os: "EFD_CLOEXEC EFD_NONBLOCK MFD_CLOEXEC P_PIDFD eventfd eventfd_read eventfd_write memfd_create pidfd_open pipe2 "
    "posix_fallocate sched_getaffinity sched_setaffinity waitid",
    posix: "eventfd eventfd_read eventfd_write memfd_create pidfd_open waitid",
    fcntl: "F_GETPIPE_SZ F_SETPIPE_SZ F_SETSIG",
    select: " ".join(name for name in dir(select) if name.lower().startswith("epoll")),
    socket: "MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED",
}
FUNCTIONS_OF_LINUX = {"eventfd", "gettid", "memfd_create", "pidfd_open", "prctl", "syscall"}
MAX_PATH_BYTES = 103
"""Size of the longest path of a socket on macOS. Linux permits 107 bytes."""
_CALLERS = 8
"""Number of frames above a call in which a module of parenv makes the call one of parenv."""


def _run_hidden_module() -> None:
    """Run the module of this name that Python would import without this folder."""
    folder = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        path = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else ""
        if path.startswith(("/proc", "/sys/")) and _is_by_parenv():
            raise FileNotFoundError(errno.ENOENT, "macOS has no such file system", path)
    elif event in ("socket.bind", "socket.connect") and isinstance(arguments[1], str | bytes):
        address = os.fsencode(arguments[1])
        if address[:1] in (b"", b"\0"):
            raise OSError(errno.EINVAL, "macOS has no abstract names")
        if len(address) > MAX_PATH_BYTES:
            raise OSError(errno.EINVAL, "macOS has no paths of sockets of this length")


def _is_by_parenv() -> bool:
    frame = sys._getframe(2)
    for _ in range(_CALLERS):
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == "parenv":
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


_function_of = ctypes.CDLL.__getattr__


def _known_function(library: ctypes.CDLL, name: str) -> Any:
    if name in FUNCTIONS_OF_LINUX:
        raise AttributeError(f"macOS has no {name}")
    return _function_of(library, name)


_run_hidden_module()
for module, names in MISSING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc]
if hasattr(selectors, "EpollSelector"):
    del selectors.EpollSelector
ctypes.CDLL.__getattr__ = _known_function  # type: ignore[method-assign]
sys.addaudithook(_refuse)
