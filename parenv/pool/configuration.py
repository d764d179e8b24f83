"""From the arguments of a pool to a plan that has been checked, before any process starts."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np

from parenv.envs.factories import Factories, as_factories
from parenv.errors import ConfigurationError, NotPicklableError
from parenv.options import Mode, OnStale, Parallelism, WorkerOptions
from parenv.policy.policy import as_policy
from parenv.process.cores import recommended_num_workers

MAX_DEPTH = 6


@dataclass(frozen=True)
class Plan:
    """What a pool is to be.

    Args:
        factories: make the sub-environments.
        policy: what the user gave.
        shares: sub-environments of each worker.
        num_envs_is_given: whether the user said how many there are in all.
        inline: whether the only worker runs in this process.
        mode: ``"sync"`` or ``"async"``.
        rollout_length: ``T``.
        postprocess: the user's, or ``None``.
        prefetch: rollouts a worker may run ahead.
        max_policy_lag: in publishes, or ``None``.
        on_stale: ``"pace"`` or ``"drop"``.
        seed: root of all seeds.
        options: of the workers.
    """

    factories: Factories
    policy: Any
    shares: tuple[int, ...]
    num_envs_is_given: bool
    inline: bool
    mode: Mode
    rollout_length: int
    postprocess: Callable[[Any, Any], Any] | None
    prefetch: int
    max_policy_lag: int | None
    on_stale: OnStale
    seed: int
    options: WorkerOptions


def make_plan(
    env_fn: Any,
    policy: Any,
    *,
    num_envs: int | None,
    num_workers: int | None,
    mode: Mode,
    parallelism: Parallelism,
    rollout_length: int,
    postprocess: Callable[[Any, Any], Any] | None,
    prefetch: int,
    max_policy_lag: int | None,
    on_stale: OnStale,
    seed: int | None,
    options: WorkerOptions,
) -> Plan:
    """Check the arguments of a pool.

    Raises:
        ConfigurationError: one of them is wrong; the message says what would be right.
    """
    _one_of("mode", mode, ("sync", "async"))
    _one_of("parallelism", parallelism, ("experience", "gradient"))
    _one_of("on_stale", on_stale, ("pace", "drop"))
    if parallelism == "gradient":
        raise ConfigurationError('parallelism="gradient" is not there yet; workers can only send experience')
    _at_least("rollout_length", rollout_length, 1)
    _at_least("prefetch", prefetch, 0)
    for name, value, least in (
        ("num_envs", num_envs, 1),
        ("num_workers", num_workers, 0),
        ("max_policy_lag", max_policy_lag, 0),
    ):
        if value is not None:
            _at_least(name, value, least)
    if mode == "sync" and max_policy_lag is not None:
        raise ConfigurationError(
            'max_policy_lag is for mode="async": with mode="sync" every batch is by the newest version'
        )
    if postprocess is not None and not callable(postprocess):
        raise ConfigurationError(f"postprocess must be a callable (policy, rollout) -> dict, got {postprocess!r}")
    as_policy(policy)
    factories = as_factories(env_fn)
    if num_envs is not None and factories.count not in (None, num_envs):
        raise ConfigurationError(f"env_fn is a sequence of {factories.count} factories, but num_envs={num_envs}")
    shares = split(factories.count or num_envs, num_workers)
    if seed is not None:
        _at_least("seed", seed, 0)
    return Plan(
        factories=factories,
        policy=policy,
        shares=shares,
        num_envs_is_given=(factories.count or num_envs) is not None,
        inline=num_workers == 0,
        mode=mode,
        rollout_length=rollout_length,
        postprocess=postprocess,
        prefetch=prefetch,
        max_policy_lag=max_policy_lag,
        on_stale=on_stale,
        seed=int(np.random.SeedSequence().entropy) % 2**63 if seed is None else int(seed),  # type: ignore[arg-type]
        options=options,
    )


def split(num_envs: int | None, num_workers: int | None) -> tuple[int, ...]:
    """Sub-environments of each worker, as even as can be.

    Raises:
        ConfigurationError: fewer sub-environments than workers.

    >>> split(7, 3), split(None, 2), split(5, 0)
    ((3, 2, 2), (1, 1), (5,))
    """
    if num_workers is None:
        num_workers = min(recommended_num_workers("experience"), num_envs or 1 << 30)
    num_workers = max(1, num_workers)
    num_envs = num_workers if num_envs is None else num_envs
    if num_envs < num_workers:
        raise ConfigurationError(
            f"num_envs={num_envs} is fewer than num_workers={num_workers}, so some workers would have nothing to step: "
            f"use num_workers={num_envs} or num_envs={num_workers}"
        )
    return tuple(num_envs // num_workers + (worker < num_envs % num_workers) for worker in range(num_workers))


def pickled(named: Mapping[str, Any], whole: Any) -> bytes:
    """Pickle a whole whose parts have these names.

    Raises:
        NotPicklableError: the message names the part, and the object in it, that cannot be pickled.
    """
    try:
        return bytes(cloudpickle.dumps(whole))
    except Exception as error:
        for name, part in named.items():
            where = find_unpicklable(part, name)
            if where is not None:
                raise NotPicklableError(
                    f"{where} cannot travel to a worker process: {error}. Make it inside the factory or the setup_fn "
                    "instead of capturing it, or use num_workers=0"
                ) from error
        raise NotPicklableError(f"the pool's arguments cannot travel to a worker process: {error}") from error


def find_unpicklable(value: Any, where: str, above: tuple[Any, ...] = ()) -> str | None:
    """The deepest named part of a value that cannot be pickled, such as ``env_fn, variable 'lock' (_thread.lock)``."""
    try:
        cloudpickle.dumps(value)
        return None
    except Exception:
        pass
    if len(above) < MAX_DEPTH:
        for name, part in _parts(value).items():
            if not any(part is one for one in (*above, value)):
                found = find_unpicklable(part, f"{where}, {name}", (*above, value))
                if found is not None:
                    return found
    return f"{where} ({type(value).__module__}.{type(value).__qualname__})"


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, functools.partial):
        return {"function": value.func, **_parts(list(value.args)), **_parts(value.keywords)}
    if isinstance(value, types.MethodType):
        return {"self": value.__self__}
    if isinstance(value, types.FunctionType):
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=False))
        parts = {f"variable {name!r}": cell.cell_contents for name, cell in cells.items() if cell != types.CellType()}
        names = [name for name in value.__code__.co_names if name in value.__globals__]
        return parts | {f"global {name!r}": value.__globals__[name] for name in names}
    if isinstance(value, dict):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, list | tuple):
        return {f"[{i}]": part for i, part in enumerate(value)}
    return {f"attribute {name!r}": part for name, part in getattr(value, "__dict__", {}).items()}


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}")
