"""State of a pool as plain data, and its restoration in another pool."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parenv.errors import ConfigurationError

if TYPE_CHECKING:
    from parenv.pool.pool_session import PoolSession

STATE_FORMAT = 2

_log = logging.getLogger("parenv")


def pool_state(session: PoolSession) -> dict[str, Any]:
    """Return everything but the policy that a resumed run needs, as plain data."""
    everybody = dict.fromkeys(range(len(session.workers.shares)), ())
    states, under_way = session.ask_workers("get_state", everybody), session.under_way()
    return {
        **session.identity,
        **session.state(),
        "format": STATE_FORMAT,
        "under_way": {worker: under_way.get(worker, 0) for worker in states},
        "workers": [states[worker] for worker in sorted(states)],
    }


def resume_pool(session: PoolSession, state: Mapping[str, Any]) -> list[str]:
    """Have a new pool continue from a state, and return sentences about everything that could not be restored.

    Raises:
        ConfigurationError: The state is from another kind of pool, or the pool is not new.
    """
    _check(state, session.identity)
    session.resume(state)
    missing = _restore_workers(session, state)
    for words in missing:
        _log.warning("not restored: %s", words)
    return missing


def _check(state: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    if state.get("format") != STATE_FORMAT:
        raise ConfigurationError(
            f"this is no state of a pool: its format is {state.get('format')!r}. Give what state_dict() has returned"
        )
    for name, value in mine["layout"].items():
        if state["layout"][name] != value:
            raise ConfigurationError(
                f"the state has {name} = {state['layout'][name]!r}, but this pool has {value!r}: make it like that"
            )
    if state["seed"] != mine["seed"]:
        raise ConfigurationError(
            f"the state is of a pool with seed={state['seed']}, but this one has {mine['seed']}: make it with "
            'the seed of the state, AsyncWorkerPool(..., seed=state["seed"])'
        )


def _restore_workers(session: PoolSession, state: Mapping[str, Any]) -> list[str]:
    workers, missing, questions = session.workers, [], {}
    for worker, found in enumerate(state["workers"]):
        under_way, env_ids = state["under_way"][worker], workers.env_ids(worker)
        generation = workers.skip_generations(worker, found["generation"])
        questions[worker] = (found, generation, under_way > 0)
        if under_way:
            missing.append(f"{under_way} rollouts of worker {worker} that were under way and had not been taken")
        missing += [
            f"the state of the wrapper {wrapper} of env_id {env_id}: it has no get_state"
            for env_id, env in zip(env_ids, found["envs"], strict=True)
            for wrapper in (env["unknown"] if env is not None else ())
        ]
    for worker, anew in session.ask_workers("set_state", questions).items():
        first = workers.env_ids(worker).start
        missing += [
            f"the episode of env_id {first + column}: the environment has no get_state, and begins anew"
            for column in anew
        ]
    return missing
