"""Questions to sub-environments by env_id: call, get_attr, set_attr."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parenv.errors import ConfigurationError
from parenv.supervision.partition import each_worker
from parenv.supervision.supervisor import Supervisor
from parenv.supervision.workers import Workers


class EnvQuestion:
    """A question that has been checked and not been asked yet.

    Args:
        workers: the workers.
        method: ``"call"``, ``"get_attr"``, or ``"set_attr"``, whose second argument is one value for all, or a list or
            tuple with one for each.
        env_ids: which sub-environments; ``None``: all.
        arguments: of the method.

    Raises:
        ConfigurationError: there is no such env_id, or the number of values is another one.
    """

    def __init__(self, workers: Workers, method: str, env_ids: Sequence[int] | None, arguments: Sequence[Any]) -> None:
        self._method, self._places = method, _places(workers, env_ids)
        each: list[dict[int, Any]] = []
        if method == "set_attr":
            *arguments, values = arguments
            each = [dict(zip(self._places, _one_for_each(values, len(self._places)), strict=True))]
        self._questions = each_worker(self._places, workers.shares, each, arguments, workers.first_env_id)

    def ask(self, supervisor: Supervisor) -> tuple[Any, ...]:
        """The answers, in the order of the env_ids."""
        answers = supervisor.ask(self._method, self._questions)
        by_env_id = {
            supervisor.workers.env_ids(worker)[column]: answer
            for worker, (columns, *_) in self._questions.items()
            for column, answer in zip(columns, answers[worker] or [None] * len(columns), strict=True)
        }
        return tuple(by_env_id[env_id] for env_id in self._places)


def _places(workers: Workers, env_ids: Sequence[int] | None) -> list[int]:
    first, total = workers.first_env_id, sum(workers.shares)
    there = range(first, first + total)
    chosen = list(there) if env_ids is None else [int(env_id) for env_id in env_ids]
    for env_id in chosen:
        if env_id not in there:
            raise ConfigurationError(f"there is no env_id {env_id}: the pool has {first} to {there[-1]}")
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError(f"env_ids names a sub-environment twice: {chosen}")
    return chosen


def _one_for_each(values: Any, count: int) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise ConfigurationError(f"set_attr got {len(values)} values for {count} sub-environments")
    return values
