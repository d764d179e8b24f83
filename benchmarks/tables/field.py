"""Comparisons with other libraries, from the files that ``benchmarks/peers/`` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from on_paper import about
from sections import Section, markdown, measured, read, span, table

LIBRARIES = {
    "parenv": ("parenv",),
    "Gymnasium": ("Gymnasium", "CleanRL's loop"),
    "Stable-Baselines3": ("SB3",),
    "Tianshou": ("Tianshou",),
    "TorchRL": ("TorchRL",),
    "PufferLib": ("PufferLib",),
    "RLlib and Ray": ("RLlib", "Ray"),
    "Sample Factory": ("Sample Factory",),
    "torch and multiprocessing": ("torch.distributed", "multiprocessing", "torch.multiprocessing"),
}
LIMIT = "limit"
NOT_THE_SAME = ("EnvPool", "TorchRL, one copy for all")
"""Systems that do less than the others: own environments, or shared weights that workers do not acknowledge."""


class Column(NamedTuple):
    """Column of a comparison.

    Args:
        title: Title of the column.
        values: Values by system. A text replaces a missing value.
        form: Format of a value.
        most_is_best: Whether the largest value is the best.
    """

    title: str
    values: Mapping[str, float | str]
    form: Callable[[float], str]
    most_is_best: bool


class Comparison(NamedTuple):
    """Question that several libraries answer.

    Args:
        heading: Answer.
        source: Name of the file of results.
        columns: Values of all systems.
        note: Explanation of the values.
        caption: Caption of the plot with the same name as the file, or empty without a plot.
    """

    heading: str
    source: str
    columns: list[Column]
    note: str
    caption: str = ""

    def of_systems(self) -> Section:
        """Return the section with a row for each system, and the plot."""
        picture = (
            f"\n![{self.caption}](results/{self.source}.png)\n*{self.caption}. {measured(self.source)}*"
            if self.caption
            else ""
        )
        lines = [self.note, "", *by_system(self.columns), *picture.splitlines()]
        return Section(self.heading, self.source, "\n".join(lines))


def comparisons() -> list[Comparison]:
    """Return questions 1 to 7."""
    return [stepping(), rollouts(), sleeping(), startup(), weights(), gradients(), to_475()]


def stepping() -> Comparison:
    """Return question 1, with a column for each case."""
    columns = [_share(case, found) for case, found in read("peers_stepping").items()]
    ours = [dict(_ranked(column))["parenv"] for column in columns]
    others = [max(value for name, value in _ranked(column) if name != "parenv") for column in columns]
    return Comparison(
        f"With Python environments, parenv reaches {span(ours)} of the upper bound, and the best other library "
        f"{span(others)}",
        "peers_stepping",
        columns,
        "Steps with random actions, as a share of the upper bound: two independent processes that only step. EnvPool\n"
        "steps its own environments in C++, and no environments in Python. It is a reference only.",
        "Steps with random actions, as a share of two independent processes",
    )


def rollouts() -> Comparison:
    """Return question 2."""
    column = _share("share of the upper bound", read("peers_rollouts"))
    return Comparison(
        "Rollouts reach {} of the upper bound with {}, and {} with {}".format(*_first_two(column)),
        "peers_rollouts",
        [column],
        "Rollouts of 64 CartPoles with an MLP. The upper bound is two independent processes that act and step.",
    )


def sleeping() -> Comparison:
    """Return question 3."""
    [found] = read("peers_sleeping").values()
    column = _share("share of the upper bound", found)
    return Comparison(
        "64 environments that sleep reach {} of the upper bound with {}, and {} with {}".format(*_first_two(column)),
        "peers_sleeping",
        [column],
        "Each step sleeps 2 ms on average. The upper bound is 64 independent processes.",
        "Steps of 64 environments that sleep, as a share of 64 independent processes",
    )


def startup() -> Comparison:
    """Return question 4."""
    [found] = read("peers_startup").values()
    column = _times("time to the first observation", _values(found, "seconds"), "s")
    later, first = (
        float(found[f"parenv ParallelVectorEnv, {which}"]["seconds"]) for which in ("a later one", "the first")
    )
    return Comparison(
        "8 workers start in {} with {}, and in {} with {}".format(*_first_two(column)),
        "peers_startup",
        [column],
        'Each worker has one CartPole. "fork" means that the main process is forked, which is safe only before it has\n'
        "threads or a GPU. parenv never forks the main process. Its first vector env in a process takes "
        f"{first:.2g} s, and a\nlater one {later:.2g} s.",
        "Start of 8 workers: time to the first observation, and memory",
    )


def weights() -> Comparison:
    """Return question 5."""
    columns = [_times(size, _values(found, "median"), "ms") for size, found in read("peers_weights").items()]
    return Comparison(
        "40 MB of weights reach 4 workers in {} with {}, and in {} with {}".format(*_first_two(columns[-1])),
        "peers_weights",
        columns,
        'Time until each of 4 workers has acknowledged its own copy. With "one copy for all", workers share the\n'
        "weights and do not acknowledge them.",
    )


def gradients() -> Comparison:
    """Return question 6."""
    columns = [_times(size, _values(found, "median"), "ms") for size, found in read("peers_reduction").items()]
    return Comparison(
        "The mean of 2 gradients of 40 MB takes {} with {}, and {} with {}".format(*_first_two(columns[-1])),
        "peers_reduction",
        columns,
        "Time until the learner's process has the mean of the gradients of two processes.",
    )


def to_475() -> Comparison:
    """Return question 7."""
    runs = read("peers_to_475")["runs"]
    seconds, steps = (
        {name: found[key] or "not reached" for name, found in runs.items()}
        for key in ("median_seconds", "median_env_steps")
    )
    columns = [
        Column("time", seconds, lambda value: f"{value:.3g} s", False),
        Column("env steps", steps, lambda value: f"{value:,.0f}", False),
    ]
    return Comparison(
        "PPO reaches a mean return of 475 on CartPole in {} with {}, and in {} with {}".format(*_first_two(columns[0])),
        "peers_to_475",
        columns,
        "Medians of 5 seeds, without the time to start. All libraries have the same settings, so the env steps\n"
        "compare their implementations of PPO, and not their workers.",
    )


def by_question() -> str:
    """Return a table with a row for each question, and the best variant of each library. The best one is bold."""
    rows = []
    for title, column in questions():
        best = dict(_ranked(column))
        rows.append([title, *(_cell(column, best, library) for library in LIBRARIES)])
    return table(["", *LIBRARIES], rows)


def questions() -> list[tuple[str, Column]]:
    """Return the column of each question that is shown in one line."""
    stepped, rolled, slept, started, sent, added, learned = comparisons()
    return [
        ("64 CartPoles, share of two independent processes", stepped.columns[1]),
        ("rollouts of 64 CartPoles with an MLP, share of two independent processes", rolled.columns[0]),
        ("64 environments that sleep 2 ms, share of 64 independent processes", slept.columns[0]),
        ("8 workers start in", started.columns[0]),
        ("40 MB of weights reach 4 workers in", sent.columns[-1]),
        ("2 gradients of 40 MB are averaged in", added.columns[-1]),
        ("PPO reaches 475 on CartPole in", learned.columns[0]),
    ]


def best_of_each(values: Mapping[str, float], most_is_best: bool = True) -> dict[str, float]:
    """Return the value of the best variant of each library, without variants that do less than the others."""
    found: dict[str, float] = {}
    for library, prefixes in LIBRARIES.items():
        if variants := [value for name, value in values.items() if _counts(name, prefixes)]:
            found[library] = max(variants) if most_is_best else min(variants)
    return found


def by_system(columns: list[Column]) -> list[str]:
    """Return the lines of a table with a row for each system."""
    names = list(dict.fromkeys(name for column in columns for name in column.values))
    rows = [[name, *(_written(column, column.values.get(name, "")) for column in columns)] for name in names]
    return markdown(["", *(column.title for column in columns)], rows)


def _share(title: str, found: Any) -> Column:
    return Column(title, _values(found, f"ratio_to_{LIMIT}"), lambda value: f"{value:.2f}", True)


def _times(title: str, values: Mapping[str, float | str], unit: str) -> Column:
    return Column(title, values, lambda value: f"{about(value)} {unit}", False)


def _ranked(column: Column) -> list[tuple[str, float]]:
    """Return the libraries and their values, the best first."""
    values = {name: value for name, value in column.values.items() if not isinstance(value, str)}
    best = best_of_each(values, column.most_is_best)
    return sorted(best.items(), key=lambda one: one[1], reverse=column.most_is_best)


def _first_two(column: Column) -> tuple[str, str, str, str]:
    """Return value and name of the best library, and of parenv, or of the second best library if parenv is the best."""
    ranked = _ranked(column)
    (best, value), (other, next_value) = ranked[0], ranked[1]
    if best != "parenv":
        other, next_value = "parenv", dict(ranked)["parenv"]
    return column.form(value), best, column.form(next_value), other


def _values(found: Mapping[str, Any], key: str) -> dict[str, float | str]:
    return {name: one.get("failed") or one[key] for name, one in found.items() if name != LIMIT}


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
