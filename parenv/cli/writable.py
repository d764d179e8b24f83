"""Finding out early whether what is found can be written."""

from __future__ import annotations

import os
from pathlib import Path

from parenv.errors import ConfigurationError


def check_writable(path: Path) -> None:
    """Check that a file can be written, without writing it.

    Raises:
        ConfigurationError: it cannot; the message says why.
    """
    if not path.parent.is_dir():
        raise ConfigurationError(f"cannot write {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise ConfigurationError(f"cannot write {path}: it is a directory")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigurationError(f"cannot write {path}: it may not be written")
