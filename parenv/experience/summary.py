"""Short representations of objects with large arrays: one line in a console, a table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from parenv.memory.trees import Tree


class Summarized:
    """Gives a class a short ``repr``, and its ``_repr_html_`` for notebooks."""

    def _facts(self) -> Mapping[str, Any]:
        """Return the facts to show, by name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, self._facts())


def html_table(title: str, facts: Mapping[str, Any]) -> str:
    """Return an HTML table with a row for each fact.

    >>> html_table("Rollout", {"worker": None})
    '<table><caption>Rollout</caption><tr><th>worker</th><td>None</td></tr></table>'
    """
    rows = (f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>"


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with columns of equal width. The first column is aligned to the left.

    >>> text_table([("", "head"), ("a", "1"), ("long", "12")])
    ['      head', 'a        1', 'long    12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join((first.ljust(widths[0]), *numbers)).rstrip())
    return lines


def shapes_of(tree: Tree) -> str:
    """Return the dtypes and shapes of nested arrays and tensors as text.

    >>> import numpy as np
    >>> shapes_of({"camera": np.zeros((4, 2), np.uint8), "state": (np.zeros(3), [[1, 2]])})
    '{camera: uint8[4, 2], state: (float64[3], list[1])}'
    """
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{name}: {shapes_of(part)}' for name, part in tree.items())}}}"
    if isinstance(tree, tuple):
        return f"({', '.join(map(shapes_of, tree))})"
    if isinstance(tree, list):
        return f"list[{len(tree)}]"
    return f"{str(tree.dtype).removeprefix('torch.')}{list(tree.shape)}" if hasattr(tree, "dtype") else repr(tree)
