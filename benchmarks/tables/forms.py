"""Results and their forms in Markdown: tables, and a line with machine, date and command."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
Cell = Callable[[Any], str]


def read(name: str) -> Any:
    """Return the results in ``results/NAME.json``."""
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def measured(name: str, form: str = "{cpu}, {cores} cores, {gpu}Python {python}, torch {torch}, {date}") -> str:
    """Return hardware, versions, date and command of the results in ``results/NAME.json``."""
    found = json.loads((RESULTS / f"{name}.json").read_text())
    facts = found["machine"]
    return form.format(**{**facts, "gpu": f"{facts['gpu']}, " if "gpu" in facts else ""}) + f", `{found['command']}`"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], source: str = "") -> str:
    """Return a table as Markdown, after a line with machine, date and command of its source."""
    lines = ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(["", *([f"*{measured(source)}*", ""] if source else []), *lines, ""])


def cell(form: str, *path: Any) -> Cell:
    """Return a function that finds a value in a result and writes it. A missing value is an empty text.

    Args:
        form: Format of the value.
        *path: Keys, one inside the other, and functions of the value so far.
    """

    def write(found: Any) -> str:
        for step in path:
            if found is not None:
                found = step(found) if callable(step) else found.get(step)
        return "" if found is None else form.format(found)

    return write


def values(source: str, heads: Sequence[str], rows: Mapping[str, Sequence[Cell]]) -> str:
    """Return a table of values of one file, with a row for each title."""
    found = read(source)
    return table(["", *heads], [[title, *(write(found) for write in cells)] for title, cells in rows.items()], source)


def by_case(source: str, found: Mapping[str, Any], columns: Mapping[str, Cell]) -> str:
    """Return a table with a row for each case, and a cell for each title of a column."""
    rows = [[case, *(write(one) for write in columns.values())] for case, one in found.items()]
    return table(["", *columns], rows, source)


def by_system(source: str, columns: Mapping[str, Mapping[str, Any]], write: Cell, first: str = "") -> str:
    """Return a table with a row for each system but the upper bound. A system that failed has the reason."""
    systems = dict.fromkeys(system for found in columns.values() for system in found if system != "limit")
    failed = cell("{}", "failed", lambda reason: reason.replace("|", "/"))
    rows = []
    for name in systems:
        found = [one.get(name) for one in columns.values()]
        rows.append([name, *(failed(one) or (write(one) if one else "") for one in found)])
    return table([first, *columns], rows, source)


def about(number: float, significant: int = 2) -> str:
    """Return a number with this many significant digits.

    >>> about(1786.0), about(0.0734), about(1786.0, 3)
    ('1,800', '0.073', '1,790')
    """
    digits = significant - 1 - math.floor(math.log10(abs(number)))
    return f"{round(number, digits):,.{max(digits, 0)}f}"
