"""Optional libraries: their installed version, and the error with the command that installs them."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from parenv.errors import ConfigurationError


def installed_version(package: str) -> str | None:
    """Return the version of a package, or ``None`` if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_command(extra: str, upgrade: bool = False) -> str:
    """Return the command that installs an extra of parenv, which is installed from a clone.

    >>> print(install_command("bench"))
    pip install ".[bench]" (in a clone of parenv)
    """
    return f'pip install {"--upgrade " * upgrade}".[{extra}]" (in a clone of parenv)'


def require(module: str, by: str, extra: str) -> Any:
    """Import a module of a library that an extra of parenv installs.

    Args:
        module: Full name of the module.
        by: Feature that needs the module, as the subject of the error message.
        extra: Name of the extra, such as ``"bench"``.

    Raises:
        ConfigurationError: The library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ConfigurationError(
            f"{by} needs {library}, which is not installed. Run: {install_command(extra)}"
        ) from error
