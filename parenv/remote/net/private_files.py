"""Files that only their owner can access. A file that other users can access is not read."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from enum import IntFlag
from pathlib import Path

from parenv.errors import ConfigurationError

MAX_FILE_BYTES = 1 << 20


class Others(IntFlag):
    """Permission bits that the mode of a file must not have."""

    CANNOT_READ = stat.S_IRWXG | stat.S_IRWXO
    CANNOT_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_new(folder: Path, texts: Mapping[Path, str]) -> None:
    """Create files that only their owner can read: all of them, or none.

    Args:
        folder: Directory of the files. It is created if it is missing, for its owner only.
        texts: Content of the files by path.

    Raises:
        ConfigurationError: A file exists already or cannot be written.
    """
    for path in texts:
        if os.path.lexists(path):
            raise ConfigurationError(f"{path} exists already, and keys are never overwritten: choose another directory")
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, text in texts.items():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            written.append(path)
            with open(descriptor, "w") as file:
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigurationError(f"cannot write keys to {folder}: {error.strerror}") from None


def replace(path: Path, text: str) -> None:
    """Replace the content of a file. A reader gets the old content or the new content, never a mixture.

    Raises:
        ConfigurationError: The file cannot be written. It is unchanged.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file against changes by other processes and threads that use this lock.

    Raises:
        ConfigurationError: The file cannot be opened for writing.
    """
    with contextlib.ExitStack() as stack:
        try:
            while True:
                file = stack.enter_context(open(path, "rb+", buffering=0))
                fcntl.flock(file, fcntl.LOCK_EX)
                # During the wait for the lock, another process may have replaced the file.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    break
                stack.close()
        except OSError as error:
            raise ConfigurationError(
                f"cannot change {path}: {error.strerror}; the command parenv keys create makes such files"
            ) from None
        yield


def read_private(path: Path, others: Others) -> str:
    """Read a text file that other users cannot access.

    Raises:
        ConfigurationError: The file is missing, not text, too large, or other users can access it.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe in place of the file would block forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check(path, os.fstat(descriptor), others)
            return os.read(descriptor, MAX_FILE_BYTES).decode()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {path}: {error.strerror}; the command parenv keys create makes such files"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not text") from None


def _check(path: Path, status: os.stat_result, others: Others) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{path} is not a file")
    if status.st_size > MAX_FILE_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(f"{path} belongs to another user, so that it cannot be trusted: make it your own")
    if status.st_mode & others:
        can = "read or write" if others == Others.CANNOT_READ else "write"
        raise ConfigurationError(
            f"{path}: others may {can} it (mode {stat.S_IMODE(status.st_mode):04o}), so that it cannot be trusted; "
            f"if no other user has done so: chmod 600 {path}"
        )
