"""State of a pool as plain data, from which another pool continues."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
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


def resume_pool(
    session: PoolSession, state: Mapping[str, Any], policies: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Have a new pool continue from a state, and return sentences about everything that could not be restored.

    Args:
        session: Session of the new pool.
        state: State of the former pool.
        policies: State dicts by name of policies with a module, and policies without a module. Default for each: the
            policy that the new pool was made with.

    Raises:
        ConfigurationError: The state is from another kind of pool, or the pool is not new.
    """
    _check(state, session.identity)
    session.resume(state, policies)
    missing = _restore_workers(session, state)
    for words in missing:
        _log.warning("not restored: %s", words)
    return missing


def _check(state: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    if state.get("format") != STATE_FORMAT:
        raise ConfigurationError(
            f"the state of a pool must have format {STATE_FORMAT}, got {state.get('format')!r}. Pass the result of "
            "pool.state_dict()."
        )
    for name, value in mine["layout"].items():
        if state["layout"][name] != value:
            raise ConfigurationError(
                f"{name} must be {state['layout'][name]!r} as in the state, but the pool has {value!r}. Make the pool "
                "with the same arguments."
            )
    if state["seed"] != mine["seed"]:
        raise ConfigurationError(
            f"seed must be {state['seed']} as in the state, but the pool has {mine['seed']}. Pass "
            'AsyncWorkerPool(..., seed=state["seed"]).'
        )


def _restore_workers(session: PoolSession, state: Mapping[str, Any]) -> list[str]:
    workers, missing, calls = session.workers, [], {}
    for worker, found in enumerate(state["workers"]):
        under_way, env_ids = state["under_way"][worker], workers.env_ids(worker)
        generation = workers.skip_generations(worker, found["generation"])
        calls[worker] = (found, generation, under_way > 0)
        if under_way:
            missing.append(f"{under_way} rollouts of worker {worker}, which were in progress or not yet delivered")
        missing += [
            f"the state of the wrapper {wrapper} of env_id {env_id}, which has no get_state"
            for env_id, env in zip(env_ids, found["envs"], strict=True)
            for wrapper in (env["unknown"] if env is not None else ())
        ]
    why = "whose environment has no get_state and begins a new episode"
    if session.plan.job.in_parts:
        why = "because a state has no part of an episode, and a new one begins"
    for worker, anew in session.ask_workers("set_state", calls).items():
        first = workers.env_ids(worker).start
        missing += [f"the episode of env_id {first + column}, {why}" for column in anew]
    return missing
