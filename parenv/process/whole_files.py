"""Atomic replacement of files, and locks on files."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from parenv.errors import ConfigurationError

_log = logging.getLogger("parenv")


def make_folder_of(path: Path) -> None:
    """Make the folder of a file, if it is missing.

    Raises:
        ConfigurationError: The folder cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the folder of {path} cannot be made: {error.strerror}. Name another file."
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a draft, which replaces the file if the block ends without an error."""
    # The name is drawn for each call, because several threads, or processes of several machines, may write one file.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        yield draft
        _sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    # The new name is on the disk only once the folder is. Some network file systems refuse to sync a folder.
    with contextlib.suppress(OSError):
        _sync(path.parent)


def lock(descriptor: int, path: Path, use: str) -> bool:
    """Lock a file without waiting for it.

    On a file system without locks, such as some network file systems, a warning is logged and the file is used.

    Args:
        descriptor: Descriptor of the file.
        path: Path for the warning.
        use: Use that must be the only one, such as ``"run"``.

    Returns:
        ``False`` if another process or another descriptor has the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        _log.warning("%s is on a file system without locks: a second %s there would not be noticed", path, use)
    return True


def unlock(descriptor: int) -> None:
    """Remove the lock of a file.

    Closing the file does not suffice, because a child that the user or native code has forked has the file too.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
