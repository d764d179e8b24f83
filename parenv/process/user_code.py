"""Pickles of the user's functions and classes, with their source lines.

cloudpickle names the file of a function that it pickles by value ``<dynamic-code>``, so that a traceback in a worker
would show neither its file nor its lines. Here the function keeps the name of its file and brings its own lines along.
They are needed for the cells of a notebook, and on hosts that do not have the file.
"""

from __future__ import annotations

import io
import linecache
from collections import ChainMap
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, ClassVar

import cloudpickle


def dumps(value: Any) -> bytes:
    """Pickle a value for workers, as ``cloudpickle.dumps`` does."""
    with io.BytesIO() as file:
        _Pickler(file).dump(value)
        return file.getvalue()


def _reduce(code: CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    first, last = code.co_firstlineno, max((end or 0 for _, end, *_ in code.co_positions()), default=0)
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[max(0, first - 1) : last]
    return _code, (make, arguments, code.co_filename, first, lines)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap({CodeType: _reduce}, cloudpickle.Pickler.dispatch_table)

    def reducer_override(self, obj: Any) -> Any:
        """Pickle functions and classes as cloudpickle does, and refuse the ends of pipes."""
        if type(obj).__module__ == "multiprocessing.connection":
            # It could be pickled as a number, which would be another descriptor in the worker.
            raise TypeError(f"{type(obj).__name__} objects should only be shared between processes through inheritance")
        return super().reducer_override(obj)


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
