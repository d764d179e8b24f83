"""Forms of the fields of messages, and the check of a value from another machine against its form.

A form looks like the values that it admits:

* A type admits values of exactly this type. An integer has at most 64 bits. ``object`` admits every value, and
  ``int | None`` admits both.
* ``[form]`` admits a list of any length. ``(form, form)`` admits a list of this length. A tuple counts as a list.
* ``{str: form}`` admits a dict with such keys and values. ``{"name": form}`` admits a dict with exactly these keys.
* A function of a value and its name returns the value, or raises :class:`~parenv.errors.ProtocolError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, NoReturn

from parenv.errors import ProtocolError

Form = Any
Check = Callable[[Any, str], Any]
LEAST_INTEGER, LARGEST_INTEGER = -(1 << 63), (1 << 63) - 1


def of(form: Form) -> dict[str, Form]:
    """Return the metadata of a dataclass field with this form."""
    return {"form": form}


def fit(form: Form, value: Any, where: str) -> Any:
    """Check a value against a form.

    Args:
        form: Form of the value.
        value: Plain data, as decoded.
        where: Name of the value in errors.

    Returns:
        The value, with lists in place of tuples.

    Raises:
        ProtocolError: The value does not have the form.

    >>> fit({str: [(int, str)]}, {"a": [(1, "x")]}, "it")
    {'a': [[1, 'x']]}
    """
    if isinstance(form, type | UnionType):
        return _of_type(form, value, where)
    if isinstance(form, list):
        return _items(form[0], _listed(value, where), where)
    if isinstance(form, tuple):
        values = sized(list, len(form), len(form))(_listed(value, where), where)
        return [fit(each, one, where) for each, one in zip(form, values, strict=True)]
    if isinstance(form, dict):
        return _dict(form, _of_type(dict, value, where), where)
    return form(value, where)


def between(least: int, most: int = LARGEST_INTEGER) -> Check:
    """Return the form of an integer with bounds."""

    def check(value: Any, where: str) -> Any:
        if not least <= _of_type(int, value, where) <= most:
            refuse(where, f"from {least:,} to {most:,}", f"{value:,}")
        return value

    return check


def sized(form: Form, least: int, most: int) -> Check:
    """Return the form of something with this form and a length within bounds."""

    def check(value: Any, where: str) -> Any:
        value = fit(form, value, where)
        if not least <= len(value) <= most:
            refuse(where, f"of length {least:,} to {most:,}", f"length {len(value):,}")
        return value

    return check


def refuse(where: str, wanted: str, got: str) -> NoReturn:
    """Raise the error of a value without its form."""
    raise ProtocolError(f"{where} must be {wanted}, got {got}")


def _of_type(kind: type | UnionType, value: Any, where: str) -> Any:
    kinds = kind.__args__ if isinstance(kind, UnionType) else (kind,)
    if object not in kinds and type(value) not in kinds:
        refuse(where, getattr(kind, "__name__", str(kind)), type(value).__name__)
    if type(value) is int and int in kinds and not LEAST_INTEGER <= value <= LARGEST_INTEGER:
        raise ProtocolError(f"{where} must be an integer of at most 64 bits")
    return value


def _listed(value: Any, where: str) -> Sequence[Any]:
    if type(value) not in (list, tuple):
        refuse(where, "list", type(value).__name__)
    return list(value)


def _items(form: Form, values: Sequence[Any], where: str) -> Any:
    # Integers are checked together: there may be one for each row of a step buffer.
    if form is int and set(map(type, values)) == {int}:
        for value in (min(values), max(values)):
            _of_type(int, value, where)
        return values
    return [fit(form, value, where) for value in values]


def _dict(form: dict[Any, Form], value: dict[Any, Any], where: str) -> Any:
    if len(form) == 1 and isinstance(key := next(iter(form)), type):
        return {fit(key, name, where): fit(form[key], one, where) for name, one in value.items()}
    if value.keys() != form.keys():
        refuse(where, f"dict of {', '.join(map(str, form)) or 'nothing'}", f"{len(value):,} keys")
    return {name: fit(form[name], one, f"{where}[{name!r}]") for name, one in value.items()}
