"""Digests that tell policies, tasks and functions apart, and that are equal in every process."""

from __future__ import annotations

import functools
import hashlib
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from parenv.memory.trees import as_array
from parenv.policy.policy import is_module
from parenv.policy.snapshots import tensors_of
from parenv.protocol.digests import new_digest

_LIBRARIES = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def identity_of(value: Any) -> str:
    """Return a digest of a value, which is equal if the value is made by the same code with the same data.

    A function counts by its code, its defaults, the variables that it has captured and the global values that it names.
    A torch module counts by its parameters and buffers. An object counts by its class and its attributes. Classes, and
    functions of installed libraries, count by their names.

    >>> identity_of(lambda: 1) == identity_of(lambda: 1), identity_of(lambda: 1) == identity_of(lambda: 2)
    (True, False)
    """
    digest = new_digest()
    _add(value, digest, set())
    return digest.hexdigest()


def _add(value: Any, digest: hashlib.blake2b, above: set[int]) -> None:
    digest.update(f"<{type(value).__module__}.{type(value).__qualname__}".encode())
    if isinstance(value, _PLAIN):
        digest.update(repr(value).encode())
    elif isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach"):
        array = as_array(value.float() if "bfloat16" in str(getattr(value, "dtype", "")) else value)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes())
    elif id(value) not in above:
        for part in _parts(value, {*above, id(value)}):
            _add(part, digest, {*above, id(value)})
    digest.update(b">")


def _parts(value: Any, above: set[int]) -> Iterator[Any]:
    match value:
        case Mapping():
            for key in sorted(value, key=repr):
                yield from (key, value[key])
        case list() | tuple():
            yield from value
        case set() | frozenset():
            yield from sorted(value, key=repr)
        case PurePath():
            yield str(value)
        case type() | types.BuiltinFunctionType() | np.ufunc():
            yield from (str(getattr(value, "__module__", "")), getattr(value, "__qualname__", value.__name__))
        case types.ModuleType():
            yield value.__name__
        case functools.partial():
            yield from (value.func, value.args, value.keywords)
        case types.MethodType():
            yield from (value.__self__, value.__func__)
        case types.FunctionType():
            yield from _parts_of_function(value)
        case types.CodeType():
            yield from (value.co_name, value.co_code, value.co_names, value.co_varnames, value.co_consts)
        case _ if is_module(value):
            yield from (tensors_of(value), [(name, type(part), part.extra_repr()) for name, part in _modules(value)])
        case _:
            yield getattr(value, "__dict__", {})


def _parts_of_function(function: types.FunctionType) -> Iterator[Any]:
    if function.__code__.co_filename.startswith(_LIBRARIES):
        yield from (function.__module__, function.__qualname__)
        return
    yield from (function.__module__, function.__code__, function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        yield cell.cell_contents if cell != types.CellType() else None
    for name in _names_in(function.__code__):
        found = function.__globals__.get(name)
        is_of_same_file = isinstance(found, types.FunctionType) and found.__module__ == function.__module__
        if is_of_same_file or isinstance(found, (*_PLAIN, list, tuple)):
            yield from (name, found)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _modules(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_modules()
