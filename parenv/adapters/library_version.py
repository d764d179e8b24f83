"""Whether a library is there, in a version that an adapter was made for."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections.abc import Iterator


@contextlib.contextmanager
def needed(adapter: str, library: str, install: str) -> Iterator[None]:
    """While an adapter imports its library: where that cannot be imported, the error says how to install it.

    Args:
        adapter: name of its module.
        library: as it calls itself.
        install: what pip takes.

    Raises:
        ImportError: it cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        what = f"parenv.adapters.{adapter} needs {library}, which is not installed"
        raise ImportError(f"{what}: pip install {install}") from error


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
