"""Pickles of torch modules that torch does not pickle: TorchScript, and modules with parametrizations.

The main process makes these pickles, and workers read them.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any


def reduced(value: Any) -> Any:
    """Return the reduction of a module that torch refuses to pickle, and ``NotImplemented`` for any other value."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module | torch.jit.ScriptFunction):
        return NotImplemented
    if isinstance(value, torch.jit.ScriptFunction) or is_script(value):
        return _script, (_saved(value), is_script(value))
    parametrize = torch.nn.utils.parametrize
    if not parametrize.is_parametrized(value):
        return NotImplemented
    kind = parametrize.type_before_parametrizations(value)
    # The class of the module has a __getstate__ that raises, and its own class has the one that pickle would call.
    return _parametrized, (kind, tuple(value.parametrizations)), kind.__getstate__(value), None, None, kind.__setstate__


def is_script(module: Any) -> bool:
    """Return whether a module is one of TorchScript, so that it has no code in Python."""
    return isinstance(module, sys.modules["torch"].jit.ScriptModule)


def _saved(script: Any) -> bytes:
    import torch

    with io.BytesIO() as file:
        torch.jit.save(script, file)
        return file.getvalue()


def _script(data: bytes, is_module: bool) -> Any:
    """Rebuild a TorchScript module on the CPU, or a function as the method of such a module."""
    import torch

    load: Any = torch.jit.load  # It has no annotations.
    module = load(io.BytesIO(data), map_location="cpu")
    return module if is_module else module.forward


def _parametrized(kind: Any, names: Sequence[str]) -> Any:
    """Make a module of a class with parametrizations of these tensors, whose attributes are restored afterwards.

    A parametrization gives the module a class of its own with a property for the tensor, which cannot be pickled.
    """
    import torch

    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    for name in names:
        module.register_parameter(name, torch.nn.Parameter(torch.empty(0)))
        torch.nn.utils.parametrize.register_parametrization(module, name, torch.nn.Identity(), unsafe=True)
    return module
