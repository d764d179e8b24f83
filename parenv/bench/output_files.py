"""Output files: early checks that they can be written, and writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from parenv.errors import ConfigurationError, ParenvError
from parenv.libraries import require


def check_writable(*paths: Path | None) -> None:
    """Check that files can be written, without writing them. ``None`` is skipped.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise ConfigurationError(f"{path} cannot be written: there is no directory {path.parent}. Make it first.")
        if path.is_dir():
            raise ConfigurationError(f"{path} cannot be written: it is a directory. Name a file.")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigurationError(f"{path} cannot be written: permission denied. Name another file.")


def check_plotting(path: Path | None = None) -> None:
    """Check that ``matplotlib`` is installed and that it can write the format of a file.

    Args:
        path: Picture file, or ``None`` if no picture is written to a file of its own.

    Raises:
        ConfigurationError: ``matplotlib`` is not installed, or does not have this format.
    """
    figure = require("matplotlib.figure", "a plot", None).Figure()
    formats = sorted(figure.canvas.get_supported_filetypes())
    if path is not None and path.suffix and path.suffix[1:].lower() not in formats:
        raise ConfigurationError(f"the format of a plot must be one of {', '.join(formats)}, got {path}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error while a checked file is written into a short message.

    Raises:
        ParenvError: The file cannot be written any more, such as on a full disk.
    """
    try:
        yield
    except OSError as error:
        raise ParenvError(f"{path} cannot be written: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text to a file.

    Raises:
        ParenvError: The file cannot be written.
    """
    with writing(path):
        path.write_text(text, encoding="utf-8")
