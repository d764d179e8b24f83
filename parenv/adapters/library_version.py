"""Checks that a library is installed in a version that an adapter supports."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections.abc import Iterator


@contextlib.contextmanager
def needed(adapter: str, library: str, install: str) -> Iterator[None]:
    """Add the install command to the error if an adapter cannot import its library in the block.

    Args:
        adapter: Name of the adapter's module.
        library: Name of the library.
        install: Command that installs the library.

    Raises:
        ImportError: The library cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        what = f"parenv.adapters.{adapter} needs {library}, which is not installed"
        raise ImportError(f"{what}. Run: {install}") from error


def check_version(package: str, least: str, install: str) -> None:
    """Check the version of an installed library.

    Args:
        package: Name of the package.
        least: Lowest supported version, such as ``"0.9"``.
        install: Command that installs a supported version.

    Raises:
        ImportError: The installed version is older.
    """
    found = importlib.metadata.version(package)
    if _numbers(found) < _numbers(least):
        raise ImportError(f"parenv needs {package} {least} or later, got {found}. Run: {install}")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
