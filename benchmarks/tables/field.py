"""Tables of the comparisons with peers, from the files that ``benchmarks/peers/`` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[1] / "results"
LIBRARIES = {
    "parenv": ("parenv",),
    "Gymnasium": ("Gymnasium", "CleanRL's loop"),
    "Stable-Baselines3": ("SB3",),
    "Tianshou": ("Tianshou",),
    "TorchRL": ("TorchRL",),
    "PufferLib": ("PufferLib",),
    "RLlib, Ray": ("RLlib", "Ray"),
    "Sample Factory": ("Sample Factory",),
    "torch, multiprocessing": ("torch.distributed", "multiprocessing", "torch.multiprocessing"),
}
LIMIT = "limit"
OWN_ENVIRONMENTS = "EnvPool, own C++ environments"
NOT_THE_SAME = ("EnvPool", "TorchRL, one copy for all")
"""Does less than is asked: environments of its own, or weights that workers share and do not acknowledge."""


class Column(NamedTuple):
    """One figure of every system.

    Args:
        title: Title of the figure.
        values: Values by system, with a text for a missing value.
        form: Format of a value.
        most_is_best: Whether the largest value is the best.
    """

    title: str
    values: Mapping[str, float | str]
    form: Callable[[float], str]
    most_is_best: bool


def read(name: str) -> Any:
    """One file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def stepping() -> list[Column]:
    """Question 1, a column for each case."""
    return [_share(case, found) for case, found in read("peers_stepping").items()]


def others() -> list[Column]:
    """Questions 2 to 7."""
    [sleeping], [start] = read("peers_sleeping").values(), read("peers_startup").values()
    weights, gradients = read("peers_weights"), read("peers_reduction")
    runs = read("peers_to_475")["runs"]
    seconds, steps = (
        {name: found[key] or "not reached" for name, found in runs.items()}
        for key in ("median_seconds", "median_env_steps")
    )
    return [
        _share("64 CartPoles with an MLP, rollouts", read("peers_rollouts")),
        _share("64 that sleep 2 ms", sleeping),
        Column("8 workers ready", _values(start, "seconds"), lambda value: f"{value:.2g} s", False),
        *(_milliseconds(f"{size} of weights to 4 workers", found) for size, found in weights.items()),
        *(_milliseconds(f"mean of 2 gradients of {size}", found) for size, found in gradients.items()),
        Column("PPO, CartPole to 475, start-up apart", seconds, lambda value: f"{value:.3g} s", False),
        Column("PPO, CartPole to 475", steps, lambda value: f"{value:,.0f} env steps", False),
    ]


def start_s(name: str) -> float:
    """Seconds that one of the systems of question 4 takes to start."""
    [found] = read("peers_startup").values()
    return float(found[name]["seconds"])


def by_library(columns: list[Column]) -> list[str]:
    """Lines of Markdown: a row for each library with the best of its variants, the best of all, and ties, in bold."""
    best = [_best(column) for column in columns]
    rows = [
        [library, *(_cell(column, found, library) for column, found in zip(columns, best, strict=True))]
        for library in (OWN_ENVIRONMENTS, *LIBRARIES)
        if any(library in found for found in best)
    ]
    return markdown(["", *(column.title for column in columns)], rows)


def best_of_each(values: Mapping[str, float], most_is_best: bool = True) -> dict[str, float]:
    """The best of the variants of each library, of those that do what is asked."""
    found: dict[str, float] = {}
    for library, prefixes in LIBRARIES.items():
        if variants := [value for name, value in values.items() if _counts(name, prefixes)]:
            found[library] = max(variants) if most_is_best else min(variants)
    return found


def by_system(columns: list[Column]) -> list[str]:
    """Lines of Markdown: a row for each system."""
    names = list(dict.fromkeys(name for column in columns for name in column.values))
    rows = [[name, *(_written(column, column.values.get(name, "")) for column in columns)] for name in names]
    return markdown(["", *(column.title for column in columns)], rows)


def _share(title: str, found: Any) -> Column:
    return Column(title, _values(found, f"ratio_to_{LIMIT}"), lambda value: f"{value:.2f}", True)


def _milliseconds(title: str, found: Any) -> Column:
    return Column(title, _values(found, "median"), lambda value: f"{value:.2g} ms", False)


def _values(found: Mapping[str, Any], key: str) -> dict[str, float | str]:
    return {name: one.get("failed") or one[key] for name, one in found.items() if name != LIMIT}


def _best(column: Column) -> dict[str, float]:
    values = {name: value for name, value in column.values.items() if not isinstance(value, str)}
    own = [value for name, value in values.items() if name.startswith("EnvPool")]
    return best_of_each(values, column.most_is_best) | ({OWN_ENVIRONMENTS: max(own)} if own else {})


def _counts(name: str, prefixes: tuple[str, ...]) -> bool:
    return name.startswith(prefixes) and not name.startswith(NOT_THE_SAME)


def _cell(column: Column, found: Mapping[str, float], library: str) -> str:
    if library not in found:
        return ""
    best = (max if column.most_is_best else min)(found.values())
    text = column.form(found[library])
    return f"**{text}**" if text == column.form(best) else text


def _written(column: Column, value: float | str) -> str:
    return value.replace("|", "/") if isinstance(value, str) else column.form(value)


def markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]
