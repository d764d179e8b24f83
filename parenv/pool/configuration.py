"""From the arguments of a pool to a plan that has been checked, before any process starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from parenv.envs.factories import Factories, Spaces, as_factories, given_spaces
from parenv.errors import ConfigurationError
from parenv.experience.gradient import GradientLayout
from parenv.memory.layout import WHOLE_EPISODES
from parenv.options import GradientOptions, Mode, OnStale, Parallelism, Placing, WorkerOptions
from parenv.policy.devices import check_device
from parenv.policy.policy import as_policy
from parenv.policy.snapshots import module_of
from parenv.pool.journal import Script
from parenv.process.cores import own_file, this_learner
from parenv.supervision.partition import at_least, instance_of, one_of, part_of, placed_workers
from parenv.worker.job import GradientJob


@dataclass(frozen=True)
class Plan:
    """What a pool is to be.

    Args:
        factories: make the sub-environments.
        policy: what the user gave.
        shares: sub-environments of each worker.
        first_worker: workers that the learners before this one have.
        first_env_id: sub-environments that they have.
        num_envs_is_given: whether the user said how many there are in all.
        inline: whether the only worker runs in this process.
        mode: ``"sync"`` or ``"async"``.
        rollout_length: ``T``, or :data:`~parenv.memory.layout.WHOLE_EPISODES`.
        gradient: how gradients become one; ``None`` for experience.
        gradient_job: how workers compute them, likewise.
        postprocess: the user's, or ``None``.
        infos: names of infos that come along.
        prefetch: rollouts a worker may run ahead.
        max_policy_lag: in publishes, or ``None``.
        on_stale: ``"pace"`` or ``"drop"``.
        seed: root of all seeds.
        settings: of version 0, beside those that the policy has.
        options: of the workers.
        record: where to write the journal, or ``None``.
        replay: the journal to follow, or ``None``.
        placement: where workers run; ``None``: on this machine.
        spaces: of a sub-environment, where the user gives them.
    """

    factories: Factories
    policy: Any
    shares: tuple[int, ...]
    first_worker: int
    first_env_id: int
    num_envs_is_given: bool
    inline: bool
    mode: Mode
    rollout_length: int
    gradient: GradientOptions | None
    gradient_job: GradientJob | None
    postprocess: Callable[[Any, Any], Any] | None
    infos: tuple[str, ...]
    prefetch: int
    max_policy_lag: int | None
    on_stale: OnStale
    seed: int
    settings: Mapping[str, Any]
    options: WorkerOptions
    record: str | os.PathLike[str] | None
    replay: Script | None
    placement: Placing = None
    spaces: Spaces | None = None

    @property
    def about(self) -> dict[str, Any]:
        """What a journal says of the pool that it is of."""
        return {
            "seed": self.seed,
            "mode": self.mode,
            "parallelism": "experience" if self.gradient is None else "gradient",
            "rollout_length": self.rollout_length,
            "sub-environments of each worker": list(self.shares),
            "first env_id": self.first_env_id,
            "prefetch": self.prefetch,
            "max_policy_lag": self.max_policy_lag,
            "on_stale": self.on_stale,
        }


def make_plan(
    env_fn: Any,
    policy: Any,
    *,
    num_envs: int | None,
    num_workers: int | None,
    mode: Mode,
    parallelism: Parallelism,
    rollout_length: int | Literal["episode"],
    loss_fn: Callable[[Any, Any], Any] | None,
    gradient: GradientOptions | None,
    postprocess: Callable[[Any, Any], Any] | None,
    prefetch: int,
    max_policy_lag: int | None,
    on_stale: OnStale,
    seed: int | None,
    options: WorkerOptions,
    infos: Any = (),
    settings: Any = None,
    record: str | os.PathLike[str] | None = None,
    replay: str | os.PathLike[str] | None = None,
    placement: Placing = None,
    spaces: Any = None,
) -> Plan:
    """Check the arguments of a pool.

    Raises:
        ConfigurationError: one of them is wrong; the message says what would be right.
    """
    instance_of("workers", options, WorkerOptions)
    one_of("mode", mode, ("sync", "async"))
    one_of("parallelism", parallelism, ("experience", "gradient"))
    one_of("on_stale", on_stale, ("pace", "drop"))
    length = _rows(rollout_length, mode, parallelism, postprocess)
    at_least("prefetch", prefetch, 0)
    for name, value, least in (
        ("num_envs", num_envs, 1),
        ("num_workers", num_workers, 0),
        ("max_policy_lag", max_policy_lag, 0),
    ):
        if value is not None:
            at_least(name, value, least)
    if mode == "sync" and max_policy_lag is not None:
        raise ConfigurationError(
            'max_policy_lag is for mode="async": with mode="sync" every batch is by the newest version'
        )
    if postprocess is not None and not callable(postprocess):
        raise ConfigurationError(f"postprocess must be a callable (policy, rollout) -> dict, got {postprocess!r}")
    as_policy(policy)
    if placement is None:  # A host may have other devices than this machine.
        check_device(options.device)
    if parallelism == "gradient":
        gradient = GradientOptions() if gradient is None else gradient
        instance_of("gradient", gradient, GradientOptions)
        job = _gradient_job(policy, loss_fn, gradient, mode)
    else:
        job = None
        if loss_fn is not None:
            raise ConfigurationError('loss_fn is for parallelism="gradient"; with experience, the driver has the loss')
        if gradient is not None:
            raise ConfigurationError('GradientOptions are for parallelism="gradient"')
    factories = as_factories(env_fn)
    if num_envs is not None and factories.count not in (None, num_envs):
        raise ConfigurationError(f"env_fn is a sequence of {factories.count} factories, but num_envs={num_envs}")
    if num_workers == 0 and options.on_env_error == "restart_worker":
        raise ConfigurationError('on_env_error="restart_worker" needs worker processes: use "restart_env" here')
    if length == WHOLE_EPISODES and options.on_env_error == "restart_env":
        raise ConfigurationError(
            'on_env_error="restart_env" would cut an episode short, and rollout_length="episode" is for whole ones: '
            'use "restart_worker"'
        )
    num_workers = placed_workers(placement, num_workers)
    part = part_of(this_learner(), factories.count or num_envs, num_workers, parallelism)
    if seed is not None:
        at_least("seed", seed, 0)
    if record is not None and replay is not None:
        raise ConfigurationError("a run is recorded or replayed, not both")
    script = None if replay is None else Script(own_file(replay))
    if script is not None and seed is None:
        seed = script.about["seed"]
    plan = Plan(
        factories=factories,
        policy=policy,
        shares=part.shares,
        first_worker=part.first_worker,
        first_env_id=part.first_env_id,
        num_envs_is_given=(factories.count or num_envs) is not None,
        inline=num_workers == 0,
        mode=mode,
        rollout_length=length,
        gradient=gradient,
        gradient_job=job,
        postprocess=postprocess,
        infos=_names(infos),
        prefetch=prefetch,
        max_policy_lag=max_policy_lag,
        on_stale=on_stale,
        seed=int(np.random.SeedSequence().entropy) % 2**63 if seed is None else int(seed),  # type: ignore[arg-type]
        settings=_settings(settings),
        options=options,
        record=None if record is None else own_file(record),
        replay=script,
        placement=placement,
        spaces=given_spaces(spaces, factories),
    )
    if script is not None:
        script.check(plan.about)
    return plan


def _rows(rollout_length: int | Literal["episode"], mode: Mode, parallelism: Parallelism, postprocess: Any) -> int:
    """Check the length of a rollout; ``T``, or :data:`~parenv.memory.layout.WHOLE_EPISODES`."""
    if isinstance(rollout_length, str):
        if rollout_length != "episode":
            raise ConfigurationError(f'rollout_length must be an integer or "episode", got {rollout_length!r}')
        if parallelism != "gradient":
            raise ConfigurationError('rollout_length="episode": whole episodes are for parallelism="gradient"')
        if mode == "async":
            raise ConfigurationError(
                'Monte-Carlo policy gradient is on-policy: a gradient over whole episodes (rollout_length="episode") '
                "is only right for the version that played them, and in an asynchronous pool there is a newer one by "
                'the time it arrives. Use mode="sync", or a rollout_length with a critic (A3C)'
            )
        if postprocess is not None:
            raise ConfigurationError('rollout_length="episode" leaves postprocess nothing to do: put it into loss_fn')
        return WHOLE_EPISODES
    at_least("rollout_length", rollout_length, 1)
    return int(rollout_length)


def _settings(settings: Any) -> Mapping[str, Any]:
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)):
        raise ConfigurationError(f'settings must be a dict by name, such as {{"epsilon": 1.0}}, got {settings!r}')
    return dict(settings or {})


def _names(infos: Any) -> tuple[str, ...]:
    is_sequence = isinstance(infos, Sequence) and not isinstance(infos, str)
    if not is_sequence or not all(isinstance(name, str) for name in infos):
        raise ConfigurationError(f'infos must be names of infos, such as ("is_success", "action_mask"), got {infos!r}')
    if len({part for name in infos for part in (name, f"_{name}")}) < 2 * len(infos):
        raise ConfigurationError(f"infos must be different names, of which none is another with _ before it: {infos!r}")
    return tuple(infos)


def _gradient_job(policy: Any, loss_fn: Any, options: GradientOptions, mode: Mode) -> GradientJob:
    if loss_fn is None:
        raise ConfigurationError('parallelism="gradient" needs loss_fn=(policy, rollout) -> loss | (loss, metrics)')
    if not callable(loss_fn):
        raise ConfigurationError(f"loss_fn must be a callable (policy, rollout) -> loss, got {loss_fn!r}")
    module = module_of(policy)
    if module is None:
        raise ConfigurationError(
            'parallelism="gradient" needs a policy with a torch module: an nn.Module, a TorchPolicy, or a Policy with '
            f"a module attribute; got {policy!r}"
        )
    if mode == "sync" and options.num_arrivals != 1:
        raise ConfigurationError(
            'num_arrivals is for mode="async": with mode="sync" a gradient is reduced over all workers; use batch_size'
        )
    return GradientJob(loss_fn, GradientLayout.of(module), options.worker_max_norm)
