"""Modules that take seconds to import, which every process that collects tests or is started by one would do."""

from __future__ import annotations

import importlib
from typing import Any


class Late:
    """A module that is imported when something of it is used.

    Args:
        name: Name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest looks for marks of its own at everything that a module of tests has.
        if name.startswith(("_", "pytest")):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
