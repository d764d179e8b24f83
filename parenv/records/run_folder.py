"""Folder with the checkpoints of one run, which only one process may use at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from pathlib import Path
from typing import Any

from parenv.errors import ConfigurationError
from parenv.platform import system
from parenv.process.whole_files import lock, remove
from parenv.records.checkpoint import load_checkpoint, save_checkpoint

_log = logging.getLogger("parenv")
_locked: set[RunFolder] = set()
_CHECKPOINTS, _DRAFTS = "step-*.ckpt", ".step-*.ckpt.*"


class RunFolder:
    """Folder with the newest checkpoints of one run.

    Args:
        path: Path of the folder, which is made if it is missing.
        keep: Number of checkpoints to keep.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self._keep = path, keep
        self._lock: int | None = None

    @property
    def is_locked(self) -> bool:
        """True if this process uses the folder. It is false in a forked child."""
        return self._lock is not None

    def lock(self) -> None:
        """Begin to use the folder.

        Raises:
            ConfigurationError: Another run uses the folder, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {self.path} cannot be used: {error.strerror}. Choose another folder."
            ) from None
        _locked.add(self)
        if not lock(self._lock, self.path, "run"):
            holder = os.read(self._lock, 1000).decode(errors="replace").strip()
            self._close()
            raise ConfigurationError(
                f"the folder {self.path} is used by another run, {holder or 'which has just begun'}. "
                "Wait for the end of that run, or choose another folder."
            )
        with contextlib.suppress(OSError):  # On a full disk, the lock holds without the words.
            os.ftruncate(self._lock, 0)
            os.write(self._lock, f"pid {os.getpid()} on {platform.node()}\n".encode())
        # A process that was killed while it wrote a checkpoint leaves a draft. Version 0.2 left files.
        for draft in self.path.glob(_DRAFTS):
            remove(draft)

    def unlock(self) -> None:
        """End the use of the folder. Idempotent."""
        if self._lock is not None:
            system.unlock(self._lock)
            self._close()

    def newest(self) -> Any:
        """Return the content of the newest checkpoint that is not damaged, or ``None`` if there is no checkpoint.

        Raises:
            ConfigurationError: All checkpoints are damaged.
        """
        damaged: list[tuple[Path, ConfigurationError]] = []
        for path in reversed(self._checkpoints()):
            try:
                found = load_checkpoint(path)
            except ConfigurationError as error:
                damaged.append((path, error))
                continue
            for other, reason in damaged:
                _log.warning("the run continues from %s, because %s", path.name, reason)
                other.rename(f"{other}.damaged")
            return found
        if damaged:
            raise ConfigurationError(
                f"none of the {len(damaged)} checkpoints in {self.path} can be read. The error of the newest: "
                f"{damaged[0][1]} Move the folder away to begin again."
            )
        return None

    def save(self, steps: int, data: Any) -> Path:
        """Write a checkpoint, delete the oldest ones, and return the path of the new one.

        Raises:
            NotDataError: The data contains something else than plain data, arrays and tensors.
            OSError: The file cannot be written. All earlier checkpoints are as they were.
        """
        path = self.path / f"step-{steps:012d}.ckpt"
        save_checkpoint(path, data)
        for old in self._checkpoints()[: -self._keep]:
            old.unlink(missing_ok=True)
        return path

    def _checkpoints(self) -> list[Path]:
        return sorted(self.path.glob(_CHECKPOINTS))

    def _close(self) -> None:
        _locked.discard(self)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


def _after_fork_in_child() -> None:
    """Leave the locks to the parent. Otherwise a child that outlives a killed parent would keep them."""
    for folder in list(_locked):
        folder._close()


system.after_fork_in_child(_after_fork_in_child)
