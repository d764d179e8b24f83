"""Libraries that need not be there: which version is, or what to install for what is asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from parenv.errors import ConfigurationError


def installed_version(package: str) -> str | None:
    """Its version, or ``None`` where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def require(module: str, by: str, extra: str) -> Any:
    """Import a module of a library that an extra of parenv brings.

    Args:
        module: its whole name.
        by: what needs it, as the beginning of a sentence.
        extra: such as ``"bench"``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ConfigurationError(
            f'{by} needs {library}, which is not installed: pip install "parenv[{extra}]"'
        ) from error
