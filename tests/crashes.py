"""Crashes of a forked process at its n-th operation on files: a kill, an error, or a power failure."""

from __future__ import annotations

import errno
import io
import os
import secrets
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

How = Literal["kill", "error", "power failure"]
HOWS: tuple[How, ...] = ("kill", "error", "power failure")
CHANGES = ("mkdir", "replace", "rename", "unlink", "rmdir", "fsync", "ftruncate", "write", "pwrite")
"""Functions of ``os`` whose calls are operations. Opening a file is one too, and so is each write to an open file."""


def status_of(act: Callable[[], object]) -> int:
    """Call a function in a forked process. Return its exit status, or minus the number of the signal that killed it."""
    if not (pid := os.fork()):
        try:
            act()
            os._exit(0)
        except SystemExit as error:
            os._exit(int(error.code or 0))
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Crash:
    """Crash of the calling process at its n-th operation on files.

    A kill comes before the operation, or in the middle of a write. After a power failure, files have the size of their
    last sync, and files that were replaced are back unless their folder was synced. An error is raised once instead of
    the operation.

    Args:
        point: Number of the operation, from 1.
        how: Kind of the crash.
        folder: Folder with the files that a power failure changes.
    """

    def __init__(self, point: int, how: How, folder: Path) -> None:
        self._left, self._how, self._folder = point, how, folder
        self._real = {name: getattr(os, name) for name in CHANGES} | {"open": os.open, "io": io.open}
        before = [path.lstat() for path in folder.rglob("*")]
        self._synced_sizes = {found.st_ino: found.st_size for found in before}
        self._replaced: list[tuple[Path, Path | None]] = []

    @property
    def has_happened(self) -> bool:
        return self._left <= 0

    def install(self) -> None:
        """Replace the functions for files in this process, for good."""
        for name in CHANGES:
            setattr(os, name, partial(self._change, name))
        os.open = self._open
        io.open = self._opened  # type: ignore[assignment]

    def _point(self, half: Callable[[], object] = lambda: None) -> None:
        self._left -= 1
        if self._left:
            return
        if self._how == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        half()
        if self._how == "power failure":
            self._lose_what_is_not_synced()
        os.kill(os.getpid(), signal.SIGKILL)

    def _change(self, name: str, *given: Any, **more: Any) -> Any:
        writes = name in ("write", "pwrite")
        self._point(lambda: writes and self._real[name](given[0], given[1][: len(given[1]) // 2], *given[2:]))
        if name in ("replace", "rename"):
            self._note_replaced(Path(given[1]))
        done = self._real[name](*given, **more)
        if name == "fsync":
            self._note_synced(given[0])
        return done

    def _open(self, path: Any, flags: int, *given: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            self._point()
        descriptor: int = self._real["open"](path, flags, *given, **more)
        return descriptor

    def _opened(self, path: Any, mode: str = "r", *given: Any, **more: Any) -> Any:
        if not set(mode) & set("wax+"):
            return self._real["io"](path, mode, *given, **more)
        self._point()
        return _Unbuffered(path, mode.replace("b", ""), self._point)

    def _note_synced(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._synced_sizes[found.st_ino] = found.st_size
        self._replaced = [one for one in self._replaced if not os.path.samestat(one[0].parent.stat(), found)]

    def _note_replaced(self, path: Path) -> None:
        before = None
        if path.exists():
            before = self._folder.with_name(f"{self._folder.name} before {secrets.token_hex(8)}")
            os.link(path, before)
        self._replaced.append((path.resolve(), before))

    def _lose_what_is_not_synced(self) -> None:
        for path in self._folder.rglob("*"):
            found = path.lstat()
            if path.is_file() and found.st_size > (size := self._synced_sizes.get(found.st_ino, 0)):
                os.truncate(path, size)
        for path, before in reversed(self._replaced):
            self._real["unlink"](path)
            if before is not None:
                os.link(before, path)


class _Unbuffered(io.FileIO):
    """File whose writes reach the disk at once, so that a crash can leave any part of it."""

    def __init__(self, path: Any, mode: str, point: Callable[..., None]) -> None:
        super().__init__(path, mode)
        self._point = point

    def write(self, data: Any) -> int:
        content = bytes(data)
        self._point(lambda: io.FileIO.write(self, content[: len(content) // 2]))
        return super().write(content)
