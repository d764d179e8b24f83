"""Arguments of a pool as :class:`~parenv.AsyncWorkerPool` documents them, and hints at misplaced ones."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, cast

from gymnasium import Space

from parenv.envs.factories import EnvFn
from parenv.options import GradientOptions, Mode, OnStale, Parallelism, Placing, Stop, WorkerOptions
from parenv.policy.assignment import PolicyOf
from parenv.policy.policy import PolicyLike

F = TypeVar("F", bound=Callable[..., Any])
_OPTION_OBJECTS: dict[str, str] = {
    "caller_steps": "It is an argument of ParallelVectorEnv; for a pool, pass workers=WorkerOptions(step_workers=...)",
    **{
        field.name: f"Pass {where}({field.name}=...)"
        for kind, where in (
            (WorkerOptions, "workers=WorkerOptions"),
            (GradientOptions, "gradient=GradientOptions"),
            (Stop, "Stop"),
        )
        for field in fields(kind)
    },
}


@dataclass(frozen=True, kw_only=True)
class PoolArguments:
    """Arguments that the user passed. :func:`~parenv.pool.pool_plan.make_plan` checks them."""

    env_fn: EnvFn
    policy: PolicyLike | Mapping[str, PolicyLike]
    policy_of: PolicyOf | None
    num_envs: int | None
    num_workers: int | None
    mode: Mode
    parallelism: Parallelism
    rollout_length: int | Literal["episode"]
    loss_fn: Callable[[Any, Any], Any] | None
    postprocess: Callable[[Any, Any], Any] | None
    infos: Sequence[str] | Mapping[str, Any]
    prefetch: int
    max_policy_lag: int | None
    on_stale: OnStale
    seed: int | None
    gradient: GradientOptions | None
    settings: Mapping[str, Any] | None
    workers: WorkerOptions | None
    record: str | os.PathLike[str] | None
    replay: str | os.PathLike[str] | None
    placement: Placing
    max_frozen: int
    spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None

    @property
    def named_policies(self) -> Mapping[str, PolicyLike] | None:
        """Policies by name, or ``None`` for a single policy without a name."""
        return self.policy if isinstance(self.policy, Mapping) else None


def names_option_objects(function: F) -> F:
    """Have the ``TypeError`` of a function name the option object that has the keyword argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in signature.parameters and name in _OPTION_OBJECTS:
                raise TypeError(
                    f"{function.__qualname__}() got an unexpected keyword argument {name!r}. {_OPTION_OBJECTS[name]}"
                )
        return function(*args, **kwargs)

    return cast(F, checked)
