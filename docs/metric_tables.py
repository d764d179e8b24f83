"""Write the tables in reference/metrics.md from the code: python docs/metric_tables.py.

A test compares the page with the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from parenv.experience.metrics import POOL, POPULATION, SESSIONS, TASK, VECTOR_ENV, Metric

PAGE = Path(__file__).parent / "reference" / "metrics.md"
TABLES = {"pool": POOL, "vector env": VECTOR_ENV, "population": POPULATION, "session pool": SESSIONS, "report": TASK}


def table(metrics: tuple[Metric, ...]) -> str:
    """Return the metrics as a table."""
    rows = (f"| `{metric.name}` | {metric.meaning} |" for metric in metrics)
    return "\n".join(["| name | meaning |", "|---|---|", *rows])


def filled(page: str) -> str:
    """Return the page with each table between its markers."""

    def written(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{table(TABLES[match[1]])}\n<!-- end of {match[1]} -->"

    return re.sub(r"<!-- ([a-z ]+) -->.*?<!-- end of \1 -->", written, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
