"""Pickles of the user's functions and classes, with their source lines.

cloudpickle names the file of a function that it pickles by value ``<dynamic-code>``, so that a traceback in a worker
would show neither its file nor its lines. Here the function keeps the name of its file and brings its own lines along.
They are needed for the cells of a notebook, and on hosts that do not have the file.
"""

from __future__ import annotations

import io
import linecache
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, ClassVar

import cloudpickle
import numpy as np

from parenv.process.script_names import MentionedNames
from parenv.process.torch_modules import reduced

_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
_MAX_ITEMS, _MAX_DEPTH = 64, 8


def dumps(value: Any) -> bytes:
    """Pickle a value for workers, as ``cloudpickle.dumps`` does, with names of the script that it needs."""
    if is_plain(value):
        # An action of a session, for example. The pickler below takes fifty times as long.
        return pickle.dumps(value)
    if getattr(sys.modules.get("__mp_main__"), "__name__", "") == "__mp_main__":
        # This process is a child that multiprocessing has spawned. Workers do not have the script under this name.
        cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])
    with io.BytesIO() as file:
        names = MentionedNames(_problem)
        _Pickler(file, names).dump(_WithNames(value, names))
        return file.getvalue()


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a value consists of numbers, texts, bytes, arrays, and small tuples, lists and dicts of these.

    >>> is_plain((0, "step", {"move": [1, None]})), is_plain([print])
    (True, False)
    """
    kind = type(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        return len(value) <= _MAX_ITEMS and depth < _MAX_DEPTH and is_plain([*value, *value.values()], depth + 1)
    if kind is tuple or kind is list:
        return len(value) <= 2 * _MAX_ITEMS and depth < _MAX_DEPTH and all(is_plain(one, depth + 1) for one in value)
    return isinstance(value, np.ndarray | np.generic) and kind.__module__ == "numpy" and not value.dtype.hasobject


def _problem(value: Any) -> str:
    try:
        with io.BytesIO() as file:
            _Pickler(file, MentionedNames(_problem)).dump(value)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class _WithNames:
    def __init__(self, value: Any, names: MentionedNames) -> None:
        self._parts = value, names

    def __reduce__(self) -> Any:
        return _first, self._parts


def _first(value: Any, _: None) -> Any:
    return value


def _reduce(code: CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    first, last = code.co_firstlineno, max((end or 0 for _, end, *_ in code.co_positions()), default=0)
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[max(0, first - 1) : last]
    return _code, (make, arguments, code.co_filename, first, lines)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap({CodeType: _reduce}, cloudpickle.Pickler.dispatch_table)

    def __init__(self, file: io.BytesIO, names: MentionedNames) -> None:
        super().__init__(file)
        self._names = names

    def reducer_override(self, obj: Any) -> Any:
        """Pickle as cloudpickle does, except for modules of torch. Note names of the script, refuse ends of pipes."""
        if type(obj).__module__ == "multiprocessing.connection":
            # It could be pickled as a number, which would be another descriptor in the worker.
            raise TypeError(f"{type(obj).__name__} objects should only be shared between processes through inheritance")
        reduction = reduced(obj)
        if reduction is NotImplemented:
            reduction = super().reducer_override(obj)
            self._names.note(obj, reduction)
        return reduction


_SHARED_BY_INHERITANCE = {f"multiprocessing.{name}" for name in ("connection", "queues", "sharedctypes", "synchronize")}


def is_shared_by_inheritance(value: Any) -> bool:
    """Return whether an object of :mod:`multiprocessing` can only be given to a child that multiprocessing starts."""
    is_raw = type(value).__module__ == "ctypes" and hasattr(value, "_wrapper")
    return is_raw or type(value).__module__ in _SHARED_BY_INHERITANCE


def _code(make: Callable[..., CodeType], arguments: Any, filename: str, first: int, lines: Sequence[str]) -> CodeType:
    """Rebuild a code object with its file name, and register its source lines for tracebacks."""
    known, begin = linecache.getlines(filename), max(0, first - 1)
    if known[begin : begin + len(lines)] != lines:
        known = known + ["\n"] * (begin - len(known))
        known[begin : begin + len(lines)] = lines
        # An entry without a modification time is not replaced by a file of the same name on this machine.
        linecache.cache[filename] = (sum(map(len, known)), None, known, filename)
    return make(*arguments).replace(co_filename=filename)
