"""Writing what was found, and finding out early whether that is possible."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from parenv.errors import ConfigurationError, ParenvError


def check_writable(*paths: Path | None) -> None:
    """Check that files can be written, without writing them; ``None`` is one that nobody wants.

    Raises:
        ConfigurationError: one cannot; the message says why.
    """
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise ConfigurationError(f"cannot write {path}: there is no directory {path.parent}")
        if path.is_dir():
            raise ConfigurationError(f"cannot write {path}: it is a directory")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigurationError(f"cannot write {path}: it may not be written")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within it a file is written, after all.

    Raises:
        ParenvError: it cannot be written any more, such as on a full disk.
    """
    try:
        yield
    except OSError as error:
        raise ParenvError(f"cannot write {path}: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text; raises as :func:`writing` does."""
    with writing(path):
        path.write_text(text, encoding="utf-8")
