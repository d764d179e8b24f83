"""Arguments of a session pool, and the plan that is made of them before any process starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parenv.argument_checks import at_least, options_of
from parenv.crew.partition import leave_to_pools, placed_workers, split
from parenv.envs.entry_point import factories_of
from parenv.envs.factories import EnvFn
from parenv.envs.recycling import with_recycling
from parenv.envs.seeding import root_seed
from parenv.errors import ConfigurationError
from parenv.options import Placing, RayPlacement, WorkerOptions
from parenv.platform.limits import possible_workers
from parenv.worker.job import SessionJob

NOT_FOR_SESSIONS = {
    "on_env_error": "a session gets the exception, and the next reset gets a new environment",
    "step_threads": "use envs_per_worker",
    "step_workers": "the workers of a session pool do not act",
    "rollout_device": "a session pool has no rollouts",
}


@dataclass(frozen=True, kw_only=True)
class SessionArguments:
    """Unchecked arguments of :class:`~parenv.SessionPool`."""

    env_fn: EnvFn
    num_envs: int
    envs_per_worker: int
    num_workers: int | None
    reset_ahead: int
    seed: int | None
    workers: WorkerOptions | None
    placement: Placing


@dataclass(frozen=True)
class SessionPlan:
    """Checked arguments of a session pool.

    Args:
        job: Job of the workers. Its options have no time limits, because each operation has one of its own.
        options: Options that the user gave.
        inline: Whether the environments are in this process.
        placement: Placement of the workers.
        num_envs: Number of environments that may be leased at the same time.
        reset_ahead: Number of further environments.
    """

    job: SessionJob
    options: WorkerOptions
    inline: bool
    placement: Placing
    num_envs: int
    reset_ahead: int


def make_plan(given: SessionArguments) -> SessionPlan:
    """Check the arguments of a session pool, and make its plan.

    Raises:
        ConfigurationError: An argument is wrong.
    """
    options = options_of("workers", given.workers, WorkerOptions)
    leave_to_pools(options, NOT_FOR_SESSIONS)
    num_envs, reset_ahead = at_least("num_envs", given.num_envs, 1), at_least("reset_ahead", given.reset_ahead, 0)
    per_worker = at_least("envs_per_worker", given.envs_per_worker, 1)
    total, count = num_envs + reset_ahead, -(-(num_envs + reset_ahead) // per_worker)
    if given.num_workers not in (None, 0):
        raise ConfigurationError(
            f"num_workers must be None or 0 for a session pool, got {given.num_workers!r}. Use envs_per_worker for "
            "environments that share a process."
        )
    if given.placement is not None:
        # On Ray, the placement has the number of workers.
        count = placed_workers(given.placement, None if isinstance(given.placement, RayPlacement) else count)
        if given.num_workers == 0:
            raise ConfigurationError("num_workers=0 cannot be used with a placement. Leave one of them out.")
    inline = given.placement is None and possible_workers(given.num_workers) == 0
    factories = factories_of(given.env_fn, options, given.placement is None)
    if factories.count is not None:
        raise ConfigurationError(
            f"env_fn must be one factory, because any session can get any environment, got {factories.count} factories."
        )
    shares = split(total, 0 if inline else count)
    job = SessionJob(
        factories=with_recycling(factories, options.recycle_episodes),
        # Each thread of a worker needs its own interpreter, see OtherPlace.
        options=replace(options, step_timeout_s=None, reset_timeout_s=None, step_threads=1 if inline else max(shares)),
        shares=shares,
        seed=root_seed(given.seed),
        at_once=not inline,
    )
    return SessionPlan(job, options, inline, given.placement, num_envs, reset_ahead)
