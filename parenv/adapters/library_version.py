"""Whether a library is there in a version that an adapter was made for."""

from __future__ import annotations

import importlib.metadata
import re


def check_version(package: str, least: str, install: str) -> None:
    """Check the version of a library that is installed.

    Args:
        package: its name.
        least: the lowest version that will do, such as ``"0.9"``.
        install: how to install one that does.

    Raises:
        ImportError: it is older.
    """
    found = importlib.metadata.version(package)
    if _numbers(found) < _numbers(least):
        raise ImportError(f"parenv needs {package} {least} or later, but {found} is installed: {install}")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]
