"""Atomic replacement of files, drafts that a killed process leaves, and locks on files."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from parenv.errors import ConfigurationError
from parenv.platform import system

_log = logging.getLogger("parenv")
_LOCK = "lock"
BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag with which Windows does not change the ends of lines."""


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
    remove_left_drafts(path.parent, re.escape(path.name))
    with draft_folder(path) as folder:
        draft = folder / path.name
        yield draft
        replace(draft, path)


def replace(draft: Path, path: Path) -> None:
    """Replace a file by a draft, so that a reader finds one of both also after a power failure."""
    _sync(draft)
    draft.replace(path)
    # The new name is on the disk only once the folder is. Some network file systems refuse to sync a folder.
    with contextlib.suppress(OSError):
        _sync(path.parent)


@contextlib.contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Make a folder ``.NAME.HEX`` beside a file or folder for its drafts, and remove it at the end of the block.

    A process that is killed leaves it, and :func:`remove_left_drafts` removes it later.
    """
    folder, descriptor = _locked_folder(path)
    try:
        yield folder
    finally:
        _remove_content(folder)
        system.unlock(descriptor)
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder as far as that is possible."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_left_drafts(folder: Path, names: str) -> None:
    """Remove the drafts of processes that have ended. A process that lives has the lock of its drafts.

    Args:
        folder: Folder in which the drafts are.
        names: Regular expression for the names of files and folders whose drafts are removed.
    """
    wanted = re.compile(rf"\.({names})\.[0-9a-f]{{16}}")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for draft in [Path(entry.path) for entry in entries if wanted.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_if_left(draft)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """Make a folder with a locked file, and return it with the descriptor of the lock."""
    while True:
        # The name is drawn, because several threads, or processes of several machines, may write one file.
        folder = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        folder.mkdir()
        # Until the lock is taken, another process can remove the folder.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            if _taken(descriptor) is not False and (folder / _LOCK).exists():
                return folder, descriptor
            os.close(descriptor)


def _remove_if_left(draft: Path) -> None:
    try:
        descriptor = os.open(draft / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        draft.rmdir()  # It is empty, and its owner, if it lives, makes another one.
        return
    try:
        if _taken(descriptor):
            _remove_content(draft)
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        os.close(descriptor)


def _remove_content(folder: Path) -> None:
    """Remove everything but the lock, so that a process that is killed meanwhile leaves a folder with a lock."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name != _LOCK:
                remove(path)


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
    taken = _taken(descriptor)
    if taken is None:
        _log.warning("%s is on a file system without locks: a second %s there would not be noticed", path, use)
    return taken is not False


def _taken(descriptor: int) -> bool | None:
    """Try to take a lock, and return whether that was possible; ``None`` on a file system without locks."""
    try:
        return system.take_lock(descriptor)
    except OSError:
        return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
