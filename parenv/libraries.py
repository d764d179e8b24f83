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

    >>> print(install_command("eval"))
    pip install ".[eval]" (in a clone of parenv)
    """
    return f'pip install {"--upgrade " * upgrade}".[{extra}]" (in a clone of parenv)'


def require(module: str, by: str, extra: str | None) -> Any:
    """Import a module of a library that parenv does not depend on.

    Args:
        module: Full name of the module.
        by: Feature that needs the module, as the subject of the error message.
        extra: Name of the extra that installs the library, such as ``"eval"``, or ``None`` if no extra does.

    Raises:
        ConfigurationError: The library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        command = install_command(extra) if extra else f"pip install {library}"
        raise ConfigurationError(f"{by} needs {library}, which is not installed. Run: {command}") from error
