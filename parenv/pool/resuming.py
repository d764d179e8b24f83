"""Going on where another pool was: what workers contribute to a pool's state, and what they make of it again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from parenv.errors import ConfigurationError
from parenv.supervision.supervisor import Supervisor

STATE_FORMAT = 2

_log = logging.getLogger("parenv")


def workers_state(supervisor: Supervisor, under_way: Mapping[int, int]) -> dict[str, Any]:
    """The workers' part of a state, as plain data.

    Args:
        supervisor: the workers.
        under_way: by worker, rollouts that have been asked for and not yielded.
    """
    states = supervisor.ask("get_state", dict.fromkeys(range(len(supervisor.workers.shares)), ()))
    return {
        "format": STATE_FORMAT,
        "under_way": {worker: under_way.get(worker, 0) for worker in states},
        "workers": [states[worker] for worker in sorted(states)],
    }


def check_state(state: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Refuse the state of another kind of pool.

    Args:
        state: of a pool.
        mine: ``"layout"`` and ``"seed"`` of the pool that is to have it.

    Raises:
        ConfigurationError: they differ.
    """
    if state.get("format") != STATE_FORMAT:
        raise ConfigurationError(f"this is no state of a pool: its format is {state.get('format')!r}")
    for name, value in mine["layout"].items():
        if state["layout"][name] != value:
            raise ConfigurationError(f"the state has {name} = {state['layout'][name]!r}, but this pool has {value!r}")
    if state["seed"] != mine["seed"]:
        raise ConfigurationError(
            f"the state is of a pool with seed={state['seed']}, but this one has {mine['seed']}: make it with "
            "the seed of the state"
        )


def restore_workers(supervisor: Supervisor, state: Mapping[str, Any]) -> list[str]:
    """Have workers go on where others were; what could not be restored, in words."""
    workers, missing, questions = supervisor.workers, [], {}
    for worker, found in enumerate(state["workers"]):
        under_way, env_ids = state["under_way"][worker], workers.env_ids(worker)
        generation = max(found["generation"], workers.generations_before[worker]) + 1
        workers.generations_before[worker] = generation
        questions[worker] = (found, generation, under_way > 0)
        if under_way:
            missing.append(f"{under_way} rollouts of worker {worker} that were under way and had not been taken")
        missing += [
            f"the state of the wrapper {wrapper} of env_id {env_id}: it has no get_state"
            for env_id, env in zip(env_ids, found["envs"], strict=True)
            for wrapper in (env["unknown"] if env is not None else ())
        ]
    for worker, anew in supervisor.ask("set_state", questions).items():
        first = workers.env_ids(worker).start
        missing += [
            f"the episode of env_id {first + column}: the environment has no get_state, and begins anew"
            for column in anew
        ]
    for words in missing:
        _log.warning("not restored: %s", words)
    return missing
