"""Values of attributes that calls have set in sub-environments, which a restarted worker needs again."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Sequence
from typing import Any

_SETTERS = ("__setattr__", "set_wrapper_attr")
"""Methods of environments that set an attribute, given its name and its value."""

ValueCall = tuple[str, str, tuple[Any, ...]]
"""Name of an attribute, and the method and the arguments of the call that sets it."""


class SetValues:
    """Last value of each attribute of each sub-environment of a worker, in the order in which they were set."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[int, Any]] = {}

    def note(self, method: str, arguments: Sequence[Any], failed: Collection[int]) -> None:
        """Keep a copy of the values of a call, if it sets attributes.

        Args:
            method: Method as in :class:`~parenv.protocol.messages.Call`.
            arguments: Arguments of the worker.
            failed: Columns whose environment has raised an exception.
        """
        if method not in ("set_attr", "call"):
            return
        columns, *rest = arguments
        if method == "set_attr":
            values, name = rest
            copies: dict[int, Any] = {}
            given = [copies.setdefault(id(value), _copy(value)) for value in values]
        elif rest[0] in _SETTERS and len(rest[1]) > 1:
            name, given = rest[1][0], [_copy(rest)] * len(columns)
        else:
            return
        kept = {column: value for column, value in zip(columns, given, strict=True) if column not in failed}
        self._values[method, name] = self._values.pop((method, name), {}) | kept

    def calls(self) -> list[ValueCall]:
        """Return the calls that set the values again."""
        calls: list[ValueCall] = []
        for (method, name), values in self._values.items():
            if method == "set_attr":
                calls.append((name, method, (list(values), list(values.values()), name)))
                continue
            groups: dict[int, list[int]] = {}
            for column, rest in values.items():
                groups.setdefault(id(rest), []).append(column)
            calls += [(name, method, (columns, *values[columns[0]])) for columns in groups.values()]
        return calls


def _copy(value: Any) -> Any:
    """Copy a value, which the user may change later. A value that cannot be copied is kept as it is."""
    with contextlib.suppress(Exception):
        return copy.deepcopy(value)
    return value
