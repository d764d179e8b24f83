"""Command line ``parenv``. Its functions are in :mod:`parenv.bench`."""

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

_MOVED = ("bench", "lineage", "report")


class _MovedModule(ModuleType):
    """Former module, such as ``parenv.cli.bench``, whose function is now in :mod:`parenv.bench`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # The import system and inspect read such attributes, which must not warn.
            raise AttributeError(name)
        found = getattr(import_module("parenv.bench"), name)
        warnings.warn(f"{self.__name__}.{name} is now parenv.bench.{name}", DeprecationWarning, stacklevel=2)
        return found


for _name in _MOVED:
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _MovedModule(f"{__name__}.{_name}")
