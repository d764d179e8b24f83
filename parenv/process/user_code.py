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


def _code(make: Callable[..., CodeType], arguments: Any, filename: str, first: int, lines: Sequence[str]) -> CodeType:
    """Rebuild a code object with its file name, and register its source lines for tracebacks."""
    known, begin = linecache.getlines(filename), max(0, first - 1)
    if known[begin : begin + len(lines)] != lines:
        known = known + ["\n"] * (begin - len(known))
        known[begin : begin + len(lines)] = lines
        # An entry without a modification time is not replaced by a file of the same name on this machine.
        linecache.cache[filename] = (sum(map(len, known)), None, known, filename)
    return make(*arguments).replace(co_filename=filename)
