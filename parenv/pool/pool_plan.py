"""Plan of a pool: its arguments, checked before any process starts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import Space

from parenv.argument_checks import at_least, is_callable, one_of, options_of
from parenv.envs.factories import EnvFn, Factories, Spaces, as_factories, given_spaces
from parenv.envs.seeding import root_seed
from parenv.errors import ConfigurationError
from parenv.experience.gradient import GradientLayout
from parenv.memory.device_memory import check_memory
from parenv.memory.layout import WHOLE_EPISODES
from parenv.options import GradientOptions, Mode, OnStale, Parallelism, Placing, WorkerOptions
from parenv.policy.assignment import UNNAMED, PolicyOf
from parenv.policy.capabilities import refuse
from parenv.policy.devices import check_devices
from parenv.policy.policy import PolicyLike
from parenv.policy.snapshots import modules_of
from parenv.pool.arena import weights_places
from parenv.pool.events import Observer
from parenv.pool.policies import check_policies, policies_for
from parenv.process.cores import own_file, this_learner
from parenv.supervision.partition import Part, part_of, placed_workers
from parenv.worker.job import AgentsJob, GradientJob, Job

_OPTIONS_OF_PUBLISH = ("min_kl", "on", "settings")


@dataclass(frozen=True, kw_only=True)
class PoolArguments:
    """Arguments that the user passed, as :class:`~parenv.AsyncWorkerPool` documents them. Nothing is checked yet."""

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


@dataclass(frozen=True)
class Plan:
    """Checked arguments of a pool, and the job of its workers.

    Args:
        job: Job of the workers.
        policies: Policies by name, on the CPU. A single policy has the name
            :data:`~parenv.policy.assignment.UNNAMED`.
        places: Number of versions of each policy that fit into shared memory.
        settings: Settings of version 0, by policy.
        inline: Whether the only worker runs in this process.
        mode: ``"sync"`` or ``"async"``.
        gradient: How gradients of workers are reduced. ``None`` for experience.
        prefetch: Number of rollouts that a worker may run ahead.
        max_policy_lag: Bound on the lag, in publishes, or ``None``.
        on_stale: ``"pace"`` or ``"drop"``.
        recorder: Observer that records the run or has it repeat another one.
        placement: Where workers run. ``None``: on this machine.
        spaces: Spaces of a sub-environment that the user gave, or ``None``.
        max_frozen: Maximum number of frozen versions.
    """

    job: Job
    policies: Mapping[str, Any]
    places: int
    settings: Mapping[str, Mapping[str, Any]]
    inline: bool
    mode: Mode
    gradient: GradientOptions | None
    prefetch: int
    max_policy_lag: int | None
    on_stale: OnStale
    recorder: Observer
    placement: Placing
    spaces: Spaces | None
    max_frozen: int

    @property
    def is_named(self) -> bool:
        """Whether the policies have names."""
        return UNNAMED not in self.policies

    @property
    def credits(self) -> int:
        """Maximum number of rollouts of one worker that are in progress at once."""
        return _credits(self.mode, self.prefetch)

    @property
    def about(self) -> dict[str, Any]:
        """Description of the pool for a recording."""
        return {
            "seed": self.job.seed,
            "mode": self.mode,
            "parallelism": "experience" if self.gradient is None else "gradient",
            "rollout_length": self.job.rollout_length,
            "sub-environments of each worker": list(self.job.shares),
            "first env_id": self.job.first_env_id,
            "prefetch": self.prefetch,
            "max_policy_lag": self.max_policy_lag,
            "on_stale": self.on_stale,
            **({"policies": list(self.policies)} if self.is_named else {}),
        }


def make_plan(given: PoolArguments) -> Plan:
    """Check the arguments of a pool.

    Raises:
        ConfigurationError: An argument is wrong. The message has a correct one.
    """
    one_of("mode", given.mode, get_args(Mode))
    one_of("parallelism", given.parallelism, get_args(Parallelism))
    is_callable("postprocess", given.postprocess, "a callable (policy, rollout) -> dict")
    named = given.named_policies
    check_policies(named, given.policy_of, given.parallelism)
    if named is not None and given.rollout_length == "episode":
        refuse("whole episodes")
    if named is not None and given.spaces is not None:
        refuse("given spaces")
    options = _options(given)
    gradient = _gradient(given)
    recorder = _recorder(given)
    prefetch, max_frozen = at_least("prefetch", given.prefetch, 0), at_least("max_frozen", given.max_frozen, 0)
    factories, num_envs = _factories(given)
    part = _part(given, options, num_envs)
    infos, settings = _infos(given.infos), _settings(given.settings)
    policies, is_named = policies_for(named or {UNNAMED: given.policy}, tuple(infos)), named is not None
    all_settings = dict.fromkeys(policies, settings) if settings else {}
    in_use = len(part.shares) * _credits(given.mode, prefetch) + 2
    places = weights_places(modules_of(policies).values(), in_use) + (max_frozen if is_named else 0)
    kind = partial(AgentsJob, policy_of=given.policy_of, places=places) if is_named else Job
    job = kind(
        factories=_stepped(factories, options, part.shares, part.first_env_id),
        policy=policies if is_named else policies[UNNAMED],
        postprocess=given.postprocess,
        options=options,
        rollout_length=_rows(given.rollout_length, given.mode, given.parallelism, given.postprocess),
        shares=part.shares,
        first_worker=part.first_worker,
        first_env_id=part.first_env_id,
        num_envs_is_given=num_envs is not None,
        gradient=None if gradient is None else _gradient_job(given.policy, given.loss_fn, gradient, given.mode),
        infos=infos,
        settings=all_settings if is_named else settings,
        seed=root_seed(given.seed, recorder.seed),
    )
    return Plan(
        job=job,
        policies=policies,
        places=places,
        settings=all_settings,
        inline=given.num_workers == 0,
        mode=given.mode,
        gradient=gradient,
        prefetch=prefetch,
        max_policy_lag=_max_policy_lag(given),
        on_stale=one_of("on_stale", given.on_stale, get_args(OnStale)),
        recorder=recorder,
        placement=given.placement,
        spaces=given_spaces(given.spaces, job.factories),
        max_frozen=max_frozen,
    )


def _credits(mode: Mode, prefetch: int) -> int:
    return 1 if mode == "sync" else 1 + prefetch


def _part(given: PoolArguments, options: WorkerOptions, num_envs: int | None) -> Part:
    """Return the part of all workers and sub-environments that this learner has."""
    if given.num_workers is not None:
        at_least("num_workers", given.num_workers, 0)
    is_one = options.step_workers and given.num_workers is None
    num_workers = 1 if is_one else placed_workers(given.placement, given.num_workers)
    return part_of(this_learner(), num_envs, num_workers, given.parallelism)


def _stepped(factories: Factories, options: WorkerOptions, shares: Sequence[int], first_env_id: int) -> Factories:
    """Return the factories, or factories of vector envs whose sub-environments other processes step."""
    if options.step_workers is None:
        return factories
    from parenv.vector.step_workers import StepWorkersFactories

    return StepWorkersFactories.of(factories, options, tuple(shares), first_env_id)


def _options(given: PoolArguments) -> WorkerOptions:
    options = options_of("workers", given.workers, WorkerOptions)
    if given.num_workers == 0 and options.step_workers is not None:
        raise ConfigurationError(
            f"step_workers={options.step_workers} needs a worker process that acts, but num_workers=0 keeps everything "
            "in this process. Use num_workers=1"
        )
    if given.num_workers == 0 and options.on_env_error == "restart_worker":
        raise ConfigurationError('on_env_error="restart_worker" needs worker processes: use "restart_env" here')
    if given.rollout_length == "episode" and options.on_env_error == "restart_env":
        raise ConfigurationError(
            'on_env_error="restart_env" would cut an episode short, and rollout_length="episode" is for whole ones: '
            'use "restart_worker"'
        )
    if options.rollout_device is not None:
        _check_rollout_device(given, options, options.rollout_device)
    if given.placement is None:  # A host may have other devices than this machine.
        check_devices(options.devices)
    return options


def _check_rollout_device(given: PoolArguments, options: WorkerOptions, device: str) -> None:
    if given.named_policies is not None:
        refuse("rollouts on a device")
    if given.parallelism == "gradient" or given.placement is not None:
        raise ConfigurationError(
            'rollout_device is for parallelism="experience" with workers on this machine: leave it out'
        )
    if options.on_env_error == "restart_env":
        raise ConfigurationError('with rollout_device, use on_env_error="restart_worker" and not "restart_env"')
    check_memory(device)
    check_devices([device], "rollout_device")


def _gradient(given: PoolArguments) -> GradientOptions | None:
    if given.parallelism == "gradient":
        return options_of("gradient", given.gradient, GradientOptions)
    if given.loss_fn is not None:
        raise ConfigurationError('loss_fn is for parallelism="gradient"; with experience, the driver has the loss')
    if given.gradient is not None:
        raise ConfigurationError('GradientOptions are for parallelism="gradient"')
    return None


def _recorder(given: PoolArguments) -> Observer:
    if given.record is not None and given.replay is not None:
        raise ConfigurationError("a run is recorded or replayed, not both")
    if given.record is not None:
        from parenv.records import Recorder

        return Recorder(own_file(given.record))
    if given.replay is not None:
        from parenv.records import Replayer

        return Replayer(own_file(given.replay))
    return Observer()


def _factories(given: PoolArguments) -> tuple[Factories, int | None]:
    """Return the factories, and the number of sub-environments if the user gave it."""
    factories, num_envs = as_factories(given.env_fn), given.num_envs
    if num_envs is not None:
        at_least("num_envs", num_envs, 1)
        if factories.count not in (None, num_envs):
            raise ConfigurationError(f"env_fn is a sequence of {factories.count} factories, but num_envs={num_envs}")
    return factories, factories.count or num_envs


def _max_policy_lag(given: PoolArguments) -> int | None:
    if given.max_policy_lag is None:
        return None
    if given.mode == "sync":
        raise ConfigurationError(
            'max_policy_lag is for mode="async": with mode="sync" every batch is by the newest version'
        )
    return at_least("max_policy_lag", given.max_policy_lag, 0)


def _rows(rollout_length: int | Literal["episode"], mode: Mode, parallelism: Parallelism, postprocess: Any) -> int:
    """Return the length of a rollout, ``T`` or :data:`~parenv.memory.layout.WHOLE_EPISODES`."""
    if isinstance(rollout_length, str):
        if rollout_length != "episode":
            raise ConfigurationError(f'rollout_length must be an integer or "episode", got {rollout_length!r}')
        if parallelism != "gradient":
            raise ConfigurationError('rollout_length="episode": whole episodes are for parallelism="gradient"')
        if mode == "async":
            raise ConfigurationError(
                'rollout_length="episode" must have mode="sync", because Monte-Carlo policy gradient is on-policy: a '
                "gradient over whole episodes is only right for the version that played them. In an asynchronous pool "
                'a newer version exists when the gradient arrives. Use mode="sync", or a rollout_length with a critic '
                "(A3C)"
            )
        if postprocess is not None:
            raise ConfigurationError('rollout_length="episode" leaves postprocess nothing to do: put it into loss_fn')
        return WHOLE_EPISODES
    return at_least("rollout_length", rollout_length, 1)


def _settings(settings: Any) -> Mapping[str, Any]:
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)):
        raise ConfigurationError(f'settings must be a dict by name, such as {{"epsilon": 1.0}}, got {settings!r}')
    return dict(settings or {})


def settings_of_publish(settings: Any, keywords: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """Return the settings of a publish, and warn of keywords that are probably misspelt options.

    Args:
        settings: Argument of that name.
        keywords: Other keyword arguments.
        known: Names of settings that exist already.
    """
    for name in [name for name in keywords if name not in known]:
        like = [option for option in _OPTIONS_OF_PUBLISH if {*option.split("_")} <= {*name.split("_")}]
        if like := like or get_close_matches(name, _OPTIONS_OF_PUBLISH, cutoff=0.75):
            warnings.warn(
                f"publish() has no option {name!r}, so the policy gets a setting of that name. Write {like[0]}= for "
                f"the option, or settings={{{name!r}: ...}} for the setting.",
                stacklevel=3,
            )
    return {**_settings(settings), **keywords}


def _infos(infos: Any) -> dict[str, Any]:
    """Return the default of each info, or ``None``, by its name."""
    is_collection = isinstance(infos, Sequence | Mapping) and not isinstance(infos, str)
    if not is_collection or not all(isinstance(name, str) for name in infos):
        raise ConfigurationError(
            'infos must be names of infos, such as ("action_mask",), or a dict of them with defaults, such as '
            f'{{"is_success": False}}, got {infos!r}'
        )
    if len({part for name in infos for part in (name, f"_{name}")}) < 2 * len(infos):
        raise ConfigurationError(f"infos must be different names, of which none is another with _ before it: {infos!r}")
    found = dict(infos) if isinstance(infos, Mapping) else dict.fromkeys(infos)
    for name, default in found.items():
        if default is not None and np.asarray(default).dtype.kind not in "?biuf":
            raise ConfigurationError(
                f"infos[{name!r}] must be a default, a number, a boolean or an array of those, got {default!r}. "
                "Give None for an info that has no default."
            )
    return found


def _gradient_job(policy: Any, loss_fn: Any, options: GradientOptions, mode: Mode) -> GradientJob:
    if loss_fn is None:
        raise ConfigurationError('parallelism="gradient" needs loss_fn=(policy, rollout) -> loss | (loss, metrics)')
    is_callable("loss_fn", loss_fn, "a callable (policy, rollout) -> loss")
    if not modules_of(policy if isinstance(policy, Mapping) else {"": policy}):
        raise ConfigurationError(
            'parallelism="gradient" needs a policy with a torch module: an nn.Module, a TorchPolicy, or a Policy with '
            f"a module attribute; got {policy!r}"
        )
    if mode == "sync" and options.num_arrivals != 1:
        raise ConfigurationError(
            'num_arrivals is for mode="async": with mode="sync" a gradient is reduced over all workers; use batch_size'
        )
    return GradientJob(loss_fn, GradientLayout.of(policy), options.worker_max_norm)
