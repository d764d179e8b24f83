"""Adapters for other libraries. Each module needs the library that it adapts to."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = ("sb3", "tianshou", "torchrl")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import an adapter at its first use."""
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
