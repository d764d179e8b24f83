"""One line for each question that several libraries answer, with the best variant of each library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from forms import about, read, table

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
NOT_THE_SAME = ("EnvPool", "TorchRL, one copy for all")
"""Systems that do less than the others: own environments, or shared weights that workers do not acknowledge."""


class Question(NamedTuple):
    """Question with one value for each system.

    Args:
        title: Title of the row.
        found: Results by system.
        key: Key of the value in a result.
        form: Function that writes a value.
        best: ``max`` or ``min``.
    """

    title: str
    found: Mapping[str, Any]
    key: str
    form: Callable[[float], str]
    best: Callable[..., Any] = min


# fmt: off
def questions() -> list[Question]:
    """Return all questions."""
    share, seconds, ms = "{:.2f}".format, lambda value: f"{about(value)} s", lambda value: f"{about(value)} ms"
    stepping, sleeping = (read(f"peers_{name}") for name in ("stepping", "sleeping"))
    return [
        Question("64 CartPoles, share of two independent processes",
                 stepping["cartpole-64"], "ratio_to_limit", share, max),
        Question("rollouts of 64 CartPoles with an MLP, share of two independent processes",
                 read("peers_rollouts"), "ratio_to_limit", share, max),
        Question("64 environments that sleep 2 ms, share of 64 independent processes",
                 sleeping["64 environments that sleep"], "ratio_to_limit", share, max),
        Question("8 workers start in", read("peers_startup")["8 workers"], "seconds", seconds),
        Question("40 MB of weights reach 4 workers in", read("peers_weights")["40 MB"], "median", ms),
        Question("2 gradients of 40 MB are averaged in", read("peers_reduction")["40 MB"], "median", ms),
        Question("PPO reaches 475 on CartPole in", read("peers_to_475")["runs"], "median_seconds", "{:.3g} s".format),
    ]
# fmt: on


def by_question() -> str:
    """Return a table with a row for each question. The best value and its ties are bold."""
    rows = []
    for question in questions():
        found = [best_variant(question, prefixes) for prefixes in LIBRARIES.values()]
        texts = ["" if value is None else question.form(value) for value in found]
        best = question.form(question.best(value for value in found if value is not None))
        rows.append([question.title, *(f"**{text}**" if text == best else text for text in texts)])
    return table(["", *LIBRARIES], rows)


def best_variant(question: Question, prefixes: tuple[str, ...]) -> float | None:
    """Return the best value of the systems whose names begin so, or ``None``."""
    values = [
        one[question.key]
        for name, one in question.found.items()
        if name.startswith(prefixes) and not name.startswith(NOT_THE_SAME) and one.get(question.key) is not None
    ]
    return question.best(values, default=None)
