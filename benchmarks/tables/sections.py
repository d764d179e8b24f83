"""Sections of the generated pages: a heading that answers one question, the measurement, and a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[1] / "results"


class Section(NamedTuple):
    """Section about one question, measured on one machine.

    Args:
        heading: Answer to the question.
        source: Name of the file of results.
        text: Table and its explanation.
    """

    heading: str
    source: str
    text: str


def content(name: str) -> Any:
    """Return the command, the machine and the results in ``results/NAME.json``."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def read(name: str) -> Any:
    """Return the results in ``results/NAME.json``."""
    return content(name)["results"]


def measured(name: str) -> str:
    """Return hardware, versions, date and command of the results in ``results/NAME.json``."""
    found = content(name)
    facts = found["machine"]
    hardware = [facts["cpu"], f"{facts['cores']} cores", *([facts["gpu"]] if "gpu" in facts else [])]
    versions = [f"Python {facts['python']}", f"torch {facts['torch']}"]
    return f"{', '.join([*hardware, *versions, facts['date']])}, `{found['command']}`"


def written(sections: Iterable[Section]) -> str:
    """Return sections as Markdown."""
    return "\n\n".join(f"### {one.heading}\n\n*{measured(one.source)}*\n\n{one.text}" for one in sections)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows)]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    return "\n".join(markdown(heads, rows))


def span(values: Sequence[float], decimals: int = 2) -> str:
    """Return the smallest and the largest value.

    >>> span([0.3, 0.25]), span([0.3, 0.3])
    ('0.25 to 0.30', '0.30')
    """
    ends = [f"{value:.{decimals}f}" for value in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))
