"""Runs a script as on macOS or Windows: what those lack is taken away before the script begins.

The simulation covers the modules of the standard library that parenv uses. Other libraries are loaded before, because
they are those of this system.
"""

from __future__ import annotations

import builtins
import fcntl
import importlib
import os
import platform
import select
import shutil
import signal
import socket
import sys
import sysconfig
import types
from typing import Any

import pytest

LOADED = """
    asyncio concurrent.futures cloudpickle ctypes faulthandler gymnasium.envs.classic_control
    multiprocessing.shared_memory scipy.stats stable_baselines3 subprocess tempfile torch xml.dom.minidom zmq
"""
NOT_ON_MACOS = {
    os: "memfd_create eventfd eventfd_read eventfd_write pidfd_open sched_getaffinity sched_setaffinity "
    "posix_fallocate waitid MFD_CLOEXEC EFD_NONBLOCK EFD_CLOEXEC",
    select: "epoll EPOLLIN EPOLLOUT",
    socket: "MSG_CMSG_CLOEXEC SO_PEERCRED",
    fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ",
}
NOT_ON_WINDOWS = {
    os: "fork register_at_fork uname getuid geteuid getpgid setpgid killpg setsid getpgrp pread pwrite readv writev "
    "WNOHANG P_ALL sched_yield mkfifo wait3 wait4 sysconf getloadavg EX_TEMPFAIL O_CLOEXEC O_NONBLOCK",
    select: "poll POLLIN POLLOUT",
    socket: "AF_UNIX CMSG_SPACE CMSG_LEN send_fds recv_fds MSG_DONTWAIT",
    signal: "SIGKILL SIGUSR1 SIGUSR2 SIGSTOP SIGCONT SIGCHLD SIGHUP SIGBUS SIGQUIT SIGALRM SIGPIPE pthread_sigmask "
    "pthread_kill sigwait setitimer siginterrupt",
}
MODULES_NOT_ON_WINDOWS = ("fcntl", "resource", "pwd", "grp", "termios")


def imitate(name: str) -> None:
    """Make this process look like one on ``"darwin"`` or ``"win32"``."""
    for module in LOADED.split():
        importlib.import_module(module)
    sysconfig.get_paths()  # It looks at the variables of the system at its first call.
    _take(NOT_ON_MACOS)
    if name == "win32":
        imitate_windows_locks(pytest.MonkeyPatch())
        _take(NOT_ON_WINDOWS)
        # On Windows, shutil.rmtree has no descriptors of folders. Since Python 3.13 they need os.O_NONBLOCK.
        shutil._use_fd_functions = shutil.rmtree.avoids_symlink_attacks = False  # type: ignore[attr-defined]
        for module in MODULES_NOT_ON_WINDOWS:
            sys.modules[module] = None  # type: ignore[assignment]  # An import of it raises ModuleNotFoundError.
    # The workers of a simulated macOS are processes of this system.
    os.environ["PARENV_PLATFORM"] = "posix"
    sys.platform = name
    platform.machine = lambda: {"darwin": "arm64", "win32": "AMD64"}[name]
    platform.system = lambda: {"darwin": "Darwin", "win32": "Windows"}[name]


def _take(missing: dict[types.ModuleType, str]) -> None:
    for module, names in missing.items():
        for one in names.split():
            if hasattr(module, one):
                delattr(module, one)


def imitate_windows_locks(patch: pytest.MonkeyPatch) -> None:
    """Make ``msvcrt`` with the locks of Windows, of which each process can have one on a byte."""
    made: Any = types.ModuleType("msvcrt")
    made.LK_LOCK, made.LK_NBLCK, made.LK_UNLCK = fcntl.LOCK_EX, fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN
    lockf, current = fcntl.lockf, os.SEEK_CUR
    made.locking = lambda descriptor, mode, nbytes: lockf(descriptor, mode, nbytes, 0, current)
    patch.setitem(sys.modules, "msvcrt", made)


if __name__ == "__main__":
    _, system, script, *rest = sys.argv
    sys.argv = [script, *rest]
    if system != "linux":
        imitate(system)
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__", "__builtins__": builtins})
