"""Write the tables of options by product, named policy and system from the code: python docs/product_tables.py.

A test compares the pages with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from parenv import WorkerOptions
from parenv.evaluation.arguments import NOT_FOR_EVALUATIONS
from parenv.platform.limits import LIMITS
from parenv.policy.capabilities import _REFUSED
from parenv.population.arguments import _FOR_POOLS as NOT_FOR_POPULATIONS
from parenv.sessions.plan import NOT_FOR_SESSIONS
from parenv.vector.vector_plan import _FOR_POOLS as NOT_FOR_VECTOR_ENVS

NOT_FOR_OTHERS = (NOT_FOR_VECTOR_ENVS, NOT_FOR_POPULATIONS, NOT_FOR_EVALUATIONS, NOT_FOR_SESSIONS)
SYSTEMS = ("linux", "posix", "windows")
DOCS = Path(__file__).parent
PAGES = [DOCS / page for page in ("installation.md", "developer/products.md", "reference/named-policies.md")]


def _worker_options() -> Iterator[str]:
    yield "| option | vector env | population | evaluation | session pool |"
    yield "|---|---|---|---|---|"
    for option in fields(WorkerOptions):
        others = ["no" if option.name in refused else "yes" for refused in NOT_FOR_OTHERS]
        if "no" in others:
            yield f"| `{option.name}` | " + " | ".join(others) + " |"


def _named_policies() -> Iterator[str]:
    yield "\n".join(f"* {what if ' ' in what else f'`{what}`'}" for what, _ in _REFUSED.values())


def _systems() -> Iterator[str]:
    yield "| feature | Linux | macOS and other POSIX systems | Windows |"
    yield "|---|---|---|---|"
    for feature, cells in LIMITS.items():
        # A refusal is a sentence, which users see as an error.
        shown = ("no" if cell.endswith(".") else cell for cell in map(cells.__getitem__, SYSTEMS))
        yield f"| {feature} | " + " | ".join(shown) + " |"


def filled(page: str) -> str:
    """Return the page with each table between its markers."""
    tables = {
        "worker options": _worker_options(),
        "named policies": _named_policies(),
        "systems": _systems(),
    }

    def written(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n" + "\n".join(tables[match[1]]) + f"\n<!-- end of {match[1]} -->"

    return re.sub(r"<!-- ([a-z ]+) -->.*?<!-- end of \1 -->", written, page, flags=re.DOTALL)


if __name__ == "__main__":
    for one in PAGES:
        one.write_text(filled(one.read_text()))
