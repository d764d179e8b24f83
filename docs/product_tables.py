"""Write the tables in reference/products.md from the code: python docs/product_tables.py.

A test compares the page with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from parenv import AsyncWorkerPool, ParallelVectorEnv, Population, WorkerOptions, evaluate
from parenv.evaluation.arguments import NOT_FOR_EVALUATIONS
from parenv.platform.limits import LIMITS
from parenv.policy.capabilities import _REFUSED
from parenv.population.arguments import _FOR_POOLS as NOT_FOR_POPULATIONS
from parenv.vector.vector_plan import _FOR_POOLS as NOT_FOR_VECTOR_ENVS

PRODUCTS: tuple[Callable[..., object], ...] = (AsyncWorkerPool, ParallelVectorEnv, Population, evaluate)
NOT_FOR_OTHERS = (NOT_FOR_VECTOR_ENVS, NOT_FOR_POPULATIONS, NOT_FOR_EVALUATIONS)
SYSTEMS = ("linux", "posix", "windows")
PAGE = Path(__file__).parent / "reference" / "products.md"


def _arguments() -> Iterator[str]:
    products = [set(inspect.signature(kind).parameters) for kind in PRODUCTS]
    yield "| argument | pool | vector env | population | evaluation |"
    yield "|---|---|---|---|---|"
    for name in sorted(set().union(*products)):
        yield f"| `{name}` | " + " | ".join("yes" if name in product else "" for product in products) + " |"


def _worker_options() -> Iterator[str]:
    yield "| option | pool | vector env | population | evaluation |"
    yield "|---|---|---|---|---|"
    for option in fields(WorkerOptions):
        others = ("no" if option.name in refused else "yes" for refused in NOT_FOR_OTHERS)
        yield f"| `{option.name}` | yes | " + " | ".join(others) + " |"


def _named_policies() -> Iterator[str]:
    yield "| feature | with named policies |"
    yield "|---|---|"
    for what, why in _REFUSED.values():
        yield f"| {what if ' ' in what else f'`{what}`'} | no: {why[0].lower()}{why[1:]} |"


def _systems() -> Iterator[str]:
    yield "| feature | Linux | macOS and other POSIX systems | Windows |"
    yield "|---|---|---|---|"
    for feature, cells in LIMITS.items():
        # A refusal is a sentence, which users see as an error.
        shown = (f"no: {cell}" if cell.endswith(".") else cell for cell in map(cells.__getitem__, SYSTEMS))
        yield f"| {feature} | " + " | ".join(shown) + " |"


def filled(page: str) -> str:
    """Return the page with each table between its markers."""
    tables = {
        "arguments": _arguments(),
        "worker options": _worker_options(),
        "named policies": _named_policies(),
        "systems": _systems(),
    }

    def written(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n" + "\n".join(tables[match[1]]) + f"\n<!-- end of {match[1]} -->"

    return re.sub(r"<!-- ([a-z ]+) -->.*?<!-- end of \1 -->", written, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
