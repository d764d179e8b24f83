"""Lazy imports of modules that take seconds to load, which would slow down every process that collects tests."""

from __future__ import annotations

import importlib
from typing import Any


class Late:
    """Module that is imported when one of its attributes is used.

    Args:
        name: Name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest looks for its own attributes in all objects of a test module.
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
