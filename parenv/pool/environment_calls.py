"""Calls on sub-environments by env_id: call, get_attr, set_attr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from parenv.errors import ConfigurationError
from parenv.supervision.partition import each_worker
from parenv.supervision.supervisor import Supervisor
from parenv.supervision.workers import Workers


def call_environments(
    supervisor: Supervisor,
    method: str,
    env_ids: Sequence[int] | None,
    arguments: Sequence[Any],
    before: Callable[[], object],
) -> tuple[Any, ...]:
    """Call a method of some sub-environments, and return the answers in the order of their env_ids.

    Args:
        supervisor: Supervisor of the workers.
        method: ``"call"``, ``"get_attr"`` or ``"set_attr"``. The second argument of ``"set_attr"`` is one value for all
            sub-environments, or a list or tuple with one value for each.
        env_ids: Sub-environments to call. ``None``: all.
        arguments: Arguments of the method.
        before: Function that is called when the arguments are checked, before any worker is called.

    Raises:
        ConfigurationError: There is no such env_id, or the number of values is not that of the env_ids.
    """
    workers = supervisor.workers
    chosen = _checked(workers, env_ids)
    each: list[dict[int, Any]] = []
    if method == "set_attr":
        *arguments, values = arguments
        each = [dict(zip(chosen, _one_for_each(values, len(chosen)), strict=True))]
    calls = each_worker(chosen, workers.shares, each, arguments, workers.first_env_id)
    before()
    answers = supervisor.ask(method, calls)
    by_env_id = {
        workers.env_ids(worker)[column]: answer
        for worker, (columns, *_) in calls.items()
        for column, answer in zip(columns, answers[worker] or [None] * len(columns), strict=True)
    }
    return tuple(by_env_id[env_id] for env_id in chosen)


def _checked(workers: Workers, env_ids: Sequence[int] | None) -> list[int]:
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
