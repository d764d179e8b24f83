"""From the arguments of a vector env to a plan that has been checked, before any process starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode

from parenv.envs.factories import Factories, Spaces, as_factories, given_spaces
from parenv.errors import ConfigurationError
from parenv.options import Placing, WorkerOptions
from parenv.process.cores import own_cores, usable_cores
from parenv.supervision.partition import at_least, instance_of, one_of, placed_workers, split

OnWorkerDeath = Literal["raise", "restart"]
ObservationMode = str | tuple[Space[Any], Space[Any]]


@dataclass(frozen=True)
class VectorPlan:
    """What a vector env is to be.

    Args:
        factories: make the sub-environments, one each.
        shares: sub-environments of each worker.
        inline: whether they are stepped in this process.
        measured: whether a measurement decides that.
        mode: what happens where an episode ends.
        observation_mode: ``"same"``, ``"different"``, or batched and single space.
        batch_size: rows that ``recv`` returns.
        step_timeout_s: seconds in which a request must be answered, or ``None``.
        on_worker_death: ``"raise"`` or ``"restart"``.
        options: of the workers.
        seed: root of the seeds that nobody gives.
        cores: one for each worker to keep to, or ``None``.
        placement: where workers run; ``None``: on this machine.
        spaces: of a sub-environment, where the user gives them.
        strict_infos: whether a value in an info that has no plain form is an error.
    """

    factories: Factories
    shares: tuple[int, ...]
    inline: bool
    measured: bool
    mode: AutoresetMode
    observation_mode: ObservationMode
    batch_size: int
    step_timeout_s: float | None
    on_worker_death: OnWorkerDeath
    options: WorkerOptions
    seed: int
    cores: tuple[int, ...] | None
    placement: Placing = None
    spaces: Spaces | None = None
    strict_infos: bool = False

    @property
    def num_envs(self) -> int:
        """Sub-environments in all."""
        return sum(self.shares)


def make_vector_plan(
    env_fns: Any,
    *,
    context: str | None,
    worker: Any,
    observation_mode: ObservationMode,
    autoreset_mode: str | AutoresetMode,
    max_concurrency: int | None,
    num_workers: int | Literal["auto"] | None,
    batch_size: int | None,
    step_timeout_s: float | None,
    on_worker_death: OnWorkerDeath,
    options: WorkerOptions,
    placement: Placing = None,
    spaces: Any = None,
    strict_infos: bool = False,
) -> VectorPlan:
    """Check the arguments of a vector env.

    Raises:
        ConfigurationError: one of them is wrong; the message says what would be right.
        TypeError: ``observation_mode`` is a pair, but not of spaces.
    """
    if isinstance(env_fns, str) or not isinstance(env_fns, Sequence):
        raise ConfigurationError(
            "env_fns must be a sequence with one factory for each sub-environment, such as "
            f"[make_env] * 64, got {env_fns!r}; parenv.make_vec takes an env id and num_envs"
        )
    factories = as_factories(env_fns)
    num_envs = len(env_fns)
    if worker is not None:
        raise ConfigurationError(
            "a custom worker function cannot be honoured: workers step many sub-environments each, over shared memory. "
            "Put what it does into an environment wrapper, or into WorkerOptions(setup_fn=...)"
        )
    if context not in (None, "fork", "spawn", "forkserver"):
        raise ConfigurationError(
            f"context must be a start method of multiprocessing, got {context!r}. All mean the same here: workers are "
            "forked from a helper process, as safe as spawn and as fast as fork"
        )
    instance_of("workers", options, WorkerOptions)
    if options.on_env_error != "raise":
        raise ConfigurationError(
            "WorkerOptions.on_env_error is for pools: in a vector env the exception is raised, and the env goes on"
        )
    one_of("on_worker_death", on_worker_death, ("raise", "restart"))
    if max_concurrency is not None:
        at_least("max_concurrency", max_concurrency, 1)
    if step_timeout_s is not None and not step_timeout_s > 0:
        raise ConfigurationError(f"step_timeout_s must be positive seconds or None, got {step_timeout_s}")
    batch_size = num_envs if batch_size is None else batch_size
    at_least("batch_size", batch_size, 1)
    if batch_size > num_envs:
        raise ConfigurationError(f"batch_size={batch_size} is more than the {num_envs} sub-environments there are")
    num_workers = placed_workers(placement, num_workers)
    workers = _workers(num_workers, num_envs, max_concurrency)
    return VectorPlan(
        factories=factories,
        shares=split(num_envs, workers),
        inline=workers == 0,
        measured=num_workers == "auto" and workers > 0,
        mode=AutoresetMode(autoreset_mode),
        observation_mode=_checked(observation_mode),
        batch_size=batch_size,
        step_timeout_s=step_timeout_s,
        on_worker_death=on_worker_death,
        options=options,
        seed=int(np.random.SeedSequence().entropy) % 2**63,  # type: ignore[arg-type]
        cores=own_cores(workers) if options.threads == 1 and placement is None else None,
        placement=placement,
        spaces=given_spaces(spaces, factories),
        strict_infos=strict_infos,
    )


def _workers(num_workers: int | str | None, num_envs: int, max_concurrency: int | None) -> int:
    most = min(num_envs, max_concurrency or num_envs)
    if num_workers is None:
        return min(usable_cores(), most)
    if num_workers == "auto":
        return 0 if usable_cores() == 1 else min(usable_cores(), most)
    if isinstance(num_workers, str):
        raise ConfigurationError(f'num_workers must be an integer, None or "auto", got {num_workers!r}')
    at_least("num_workers", num_workers, 0)
    if num_workers > most:
        limit = f"max_concurrency={max_concurrency}" if most < num_envs else f"the {num_envs} sub-environments"
        raise ConfigurationError(f"num_workers={num_workers} is more than {limit}: use num_workers={most}")
    return num_workers


def _checked(mode: Any) -> ObservationMode:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(f"observation_mode must be a pair of spaces, got {type(mode[0])} and {type(mode[1])}")
        return mode
    if mode not in ("same", "different"):
        raise ConfigurationError(
            "observation_mode must be 'same', 'different' or a tuple of batched and single observation space, "
            f"got {mode!r}"
        )
    return str(mode)
