"""Plan of a pool: its arguments, their checks, and the job of its workers, before any process starts."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from gymnasium import Space

from parenv.argument_checks import at_least, is_callable, one_of, options_of
from parenv.crew.partition import LearnerPart, part_of, placed_workers
from parenv.envs.entry_point import factories_of
from parenv.envs.episode_seeds import EPISODE_SEED, with_episode_seeds
from parenv.envs.factories import EnvFn, Factories, Spaces, given_spaces
from parenv.envs.recycling import with_recycling
from parenv.envs.seeding import root_seed
from parenv.errors import ConfigurationError
from parenv.experience.gradient import GradientLayout
from parenv.memory.device_memory import check_memory
from parenv.memory.layout import WHOLE_EPISODES
from parenv.options import GradientOptions, Mode, OnStale, Parallelism, Placing, Stop, WorkerOptions
from parenv.platform.limits import possible_workers
from parenv.policy.assignment import UNNAMED, PolicyOf
from parenv.policy.capabilities import refuse
from parenv.policy.copies import copied
from parenv.policy.devices import check_devices, on_device
from parenv.policy.made_policies import MadePolicies, made
from parenv.policy.policy import PolicyFactory, PolicyLike, as_policy, infos_needed
from parenv.policy.snapshots import flat_layout, module_of, modules_of, tensors_of
from parenv.pool.events import Observer
from parenv.pool.prefetch_choice import MAX_PREFETCH
from parenv.process.cores import own_cores, own_file, this_learner
from parenv.worker.job import GradientJob, Job

_OPTIONS_OF_PUBLISH = ("min_kl", "on", "settings")
F = TypeVar("F", bound=Callable[..., Any])
_OPTION_OBJECTS: dict[str, str] = {
    "caller_steps": "It is an argument of ParallelVectorEnv. For a pool, pass workers=WorkerOptions(step_workers=...)",
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
    prefetch: int | Literal["auto"]
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
    episode_seeds: bool

    @property
    def is_named(self) -> bool:
        """True if the policies have names."""
        return isinstance(self.policy, Mapping)

    @property
    def policies(self) -> Mapping[str, PolicyLike]:
        """Policies by name. A single policy has the name :data:`~parenv.policy.assignment.UNNAMED`."""
        return self.policy if isinstance(self.policy, Mapping) else {UNNAMED: self.policy}


def check_arguments(given: PoolArguments) -> None:
    """Check the arguments of a pool. They must also be checked together, since some exclude others.

    Raises:
        ConfigurationError: An argument is wrong.
    """
    one_of("mode", given.mode, get_args(Mode))
    one_of("parallelism", given.parallelism, get_args(Parallelism))
    one_of("on_stale", given.on_stale, get_args(OnStale))
    is_callable("postprocess", given.postprocess, "a callable (policy, rollout) -> dict")
    at_least("max_frozen", given.max_frozen, 0)
    _check_prefetch(given)
    if given.num_workers is not None:
        at_least("num_workers", given.num_workers, 0)
    if given.record is not None and given.replay is not None:
        raise ConfigurationError("record and replay cannot be used together. Leave one of them out.")
    if given.is_named and given.rollout_length == "episode":
        refuse("whole episodes")
    if given.is_named and given.spaces is not None:
        refuse("given spaces")
    if given.is_named and given.episode_seeds:
        refuse("episode seeds")
    _check_policies(given)
    _check_workers(given, options_of("workers", given.workers, WorkerOptions))
    _check_gradient(given)
    _check_num_envs(given)
    _check_rollout_length(given)
    _check_max_policy_lag(given)
    _check_infos(given)
    check_settings(given.settings)


def _check_policies(given: PoolArguments) -> None:
    if not given.is_named:
        if given.policy_of is not None:
            raise ConfigurationError(
                'policy_of needs named policies. Pass AsyncWorkerPool(env_fn, {"runner": policy, ...}), or leave '
                "policy_of out."
            )
        return
    if not given.policies:
        raise ConfigurationError("policies must contain at least one policy by name, got {}")
    for name, policy in given.policies.items():
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"names of policies must be non-empty strings, got {name!r}")
        if "@" in name:
            raise ConfigurationError(
                f'names of policies must not contain "@", which marks frozen versions, got {name!r}'
            )
        try:
            as_policy(policy)
        except ConfigurationError as error:
            raise ConfigurationError(f"policy {name!r}: {error}") from None
    if given.policy_of is None and len(given.policies) > 1:
        raise ConfigurationError(
            f"{len(given.policies)} policies need policy_of, a function (agent, episode) -> name of the agent's "
            "policy, got None. Pass one."
        )
    is_callable("policy_of", given.policy_of, "a callable (agent, episode) -> name")
    if given.parallelism == "gradient":
        _check_parameters(given.policies)


def _check_parameters(policies: Mapping[str, Any]) -> None:
    owners: dict[int, str] = {}
    for name, module in modules_of(policies).items():
        for parameter in module.parameters():
            other = owners.setdefault(id(parameter), name)
            if parameter.requires_grad and other != name:
                raise ConfigurationError(
                    f'policies must not share parameters with parallelism="gradient", but {other!r} and {name!r} do. '
                    f"Let policy_of return one of them for the agents of both, or give {name!r} a copy of its own."
                )


def _check_prefetch(given: PoolArguments) -> None:
    prefetch: Any = given.prefetch
    if prefetch != "auto":
        if isinstance(prefetch, str):
            raise ConfigurationError(
                f'prefetch must be an integer of at least 0 or "auto", got {prefetch!r}. Pass one of these'
            )
        at_least("prefetch", prefetch, 0)
    elif given.record is not None or given.replay is not None:
        raise ConfigurationError(
            'prefetch="auto" cannot be combined with record or replay, because measured times differ. Pass a number'
        )


def _check_workers(given: PoolArguments, options: WorkerOptions) -> None:
    if given.num_workers == 0 and options.step_workers is not None:
        raise ConfigurationError(
            f"num_workers must be at least 1 with step_workers={options.step_workers}, because a worker process acts, "
            "got 0. Use num_workers=1."
        )
    if options.python is not None and given.is_named:
        refuse("another interpreter")
    if given.is_named and options.step_threads > 1:
        refuse("threads")
    if given.num_workers == 0 and options.on_env_error == "restart_worker":
        raise ConfigurationError(
            'on_env_error="restart_worker" needs worker processes, got num_workers=0. Use "restart_env".'
        )
    if given.rollout_length == "episode" and options.on_env_error == "restart_env":
        raise ConfigurationError(
            'on_env_error="restart_env" cannot be used with rollout_length="episode", because it cuts an episode '
            'short. Use "restart_worker".'
        )
    if options.rollout_device is not None:
        _check_rollout_device(given, options, options.rollout_device)
    if given.placement is None:  # A host may have other devices than this machine.
        check_devices(options.devices)


def _check_rollout_device(given: PoolArguments, options: WorkerOptions, device: str) -> None:
    if given.is_named:
        refuse("rollouts on a device")
    if given.parallelism == "gradient" or given.placement is not None:
        raise ConfigurationError(
            'rollout_device needs parallelism="experience" and workers on this machine. Leave it out.'
        )
    if options.on_env_error == "restart_env":
        raise ConfigurationError('on_env_error="restart_env" cannot be used with rollout_device. Use "restart_worker".')
    check_memory(device)
    check_devices([device], "rollout_device")


def _check_gradient(given: PoolArguments) -> None:
    if given.parallelism == "experience":
        if given.loss_fn is not None:
            raise ConfigurationError('loss_fn needs parallelism="gradient". Leave it out, or set parallelism.')
        if given.gradient is not None:
            raise ConfigurationError(
                'gradient options need parallelism="gradient". Leave them out, or set parallelism.'
            )
        return
    options = options_of("gradient", given.gradient, GradientOptions)
    if given.loss_fn is None:
        raise ConfigurationError(
            'parallelism="gradient" needs loss_fn, a function (policy, rollout) -> loss, or -> (loss, metrics), got '
            "None. Pass one."
        )
    is_callable("loss_fn", given.loss_fn, "a callable (policy, rollout) -> loss")
    if not modules_of(given.policies):
        raise ConfigurationError(
            'parallelism="gradient" needs a policy with a torch module (an nn.Module, a TorchPolicy, or a Policy with '
            f"the attribute module), got {given.policy!r}"
        )
    if given.mode == "sync" and options.num_arrivals != 1:
        raise ConfigurationError(
            f'num_arrivals must be 1 with mode="sync", which reduces over all workers, got {options.num_arrivals}. Use '
            "batch_size."
        )


def _check_num_envs(given: PoolArguments) -> None:
    count = _factories(given).count
    if given.num_envs is None:
        return
    at_least("num_envs", given.num_envs, 1)
    if count not in (None, given.num_envs):
        raise ConfigurationError(
            f"num_envs must be the number of factories in env_fn, {count}, got {given.num_envs}. Leave it out."
        )


def _factories(given: PoolArguments) -> Factories:
    factories = factories_of(given.env_fn, given.workers, given.placement is None)
    factories = with_recycling(factories, None if given.workers is None else given.workers.recycle_episodes)
    return factories.wrapped(with_episode_seeds) if given.episode_seeds else factories


def _infos(given: PoolArguments) -> dict[str, Any]:
    """Return the named infos with their defaults, and the info of ``episode_seeds``."""
    infos = dict(given.infos) if isinstance(given.infos, Mapping) else dict.fromkeys(given.infos)
    return {**infos, EPISODE_SEED: 0} if given.episode_seeds else infos


def _check_max_policy_lag(given: PoolArguments) -> None:
    if given.max_policy_lag is None:
        return
    if given.mode == "sync":
        raise ConfigurationError(
            'max_policy_lag needs mode="async", because with mode="sync" the newest version always acts. Leave it out.'
        )
    at_least("max_policy_lag", given.max_policy_lag, 0)


def _check_rollout_length(given: PoolArguments) -> None:
    if not isinstance(given.rollout_length, str):
        at_least("rollout_length", given.rollout_length, 1)
    elif given.rollout_length != "episode":
        raise ConfigurationError(f'rollout_length must be an integer or "episode", got {given.rollout_length!r}')
    elif given.parallelism == "experience":
        _check_episodes(given)
    elif given.mode == "async":
        raise ConfigurationError(
            'rollout_length="episode" must have mode="sync", because Monte-Carlo policy gradient is on-policy. In an '
            "asynchronous pool a newer version exists when the gradient of an episode arrives. "
            'Use mode="sync", or a number as rollout_length and a critic (A3C).'
        )
    elif given.postprocess is not None:
        raise ConfigurationError('postprocess cannot be used with rollout_length="episode". Move its code to loss_fn.')


def _check_episodes(given: PoolArguments) -> None:
    if given.mode == "sync":
        raise ConfigurationError(
            'rollout_length="episode" with parallelism="experience" must have mode="async", because an episode is '
            'yielded as soon as it ends, got mode="sync". Pass mode="async".'
        )
    if given.record is not None or given.replay is not None:
        name = "record" if given.replay is None else "replay"
        raise ConfigurationError(
            f'rollout_length="episode" cannot be used with {name}=, because episodes end at different times in every '
            "run. Pass the number of steps of a rollout."
        )
    if options_of("workers", given.workers, WorkerOptions).rollout_device is not None:
        raise ConfigurationError(
            'rollout_length="episode" cannot be used with rollout_device, because episodes come in parts. Move each '
            "with rollout.to(device)."
        )


def _check_infos(given: PoolArguments) -> None:
    infos: Any = given.infos
    is_collection = isinstance(infos, Sequence | Mapping) and not isinstance(infos, str)
    if not is_collection or not all(isinstance(name, str) for name in infos):
        raise ConfigurationError(
            'infos must be names of infos, such as ("action_mask",), or a dict with defaults by name, such as '
            f'{{"is_success": False}}, got {infos!r}'
        )
    if len({part for name in infos for part in (name, f"_{name}")}) < 2 * len(infos):
        raise ConfigurationError(
            'infos must be unique, and none may be another with the prefix "_", which is reserved for presence masks, '
            f"got {infos!r}"
        )
    for name, default in infos.items() if isinstance(infos, Mapping) else ():
        if default is not None and np.asarray(default).dtype.kind not in "?biuf":
            raise ConfigurationError(
                f"infos[{name!r}] must be a number, a boolean or an array of them as the default, got {default!r}. "
                "Use None for an info without a default."
            )
    for policy in given.policies.values():
        if absent := sorted(infos_needed(as_policy(policy)) - set(infos)):
            names = tuple(infos)
            raise ConfigurationError(
                f"infos must name {absent}, which the policy takes without a default, got {names!r}. "
                f"Pass infos={(*names, *absent)!r}, or give the parameters defaults."
            )


def check_settings(settings: Any) -> None:
    """Check settings of policies.

    Raises:
        ConfigurationError: They are not a dict by name.
    """
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)):
        raise ConfigurationError(f'settings must be a dict by name, such as {{"epsilon": 1.0}}, got {settings!r}')


def settings_of_publish(settings: Any, keywords: Mapping[str, Any], known: Collection[str]) -> Mapping[str, Any]:
    """Return the settings of a publish, and warn of keywords that are probably misspelt options."""
    for name in [name for name in keywords if name not in known]:
        like = [option for option in _OPTIONS_OF_PUBLISH if {*option.split("_")} <= {*name.split("_")}]
        if like := like or get_close_matches(name, _OPTIONS_OF_PUBLISH, cutoff=0.75):
            warnings.warn(
                f"publish() has no option {name!r}, so the policy gets a setting of that name. Write {like[0]}= for "
                f"the option, or settings={{{name!r}: ...}} for the setting.",
                stacklevel=3,
            )
    check_settings(settings)
    return {**(settings or {}), **keywords}


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


MAX_WEIGHTS_BYTES = 1 << 30
MIN_WEIGHTS_PLACES = 4


@dataclass(frozen=True)
class Plan:
    """Checked arguments of a pool, and the job of its workers.

    Args:
        given: The arguments, with the policies that factories have made.
        job: Job of the workers.
        gradient: How gradients of workers are reduced. ``None`` for experience.
        prefetch: Maximum number of rollouts that a worker may run ahead.
        recorder: Observer that records the run or has it repeat another one.
        spaces: Spaces of a sub-environment that the user gave, or ``None``.
        chooses_workers: Whether the user gave no number of workers or step workers, and all of them are on this machine
            and belong to this learner.
    """

    given: PoolArguments
    job: Job
    gradient: GradientOptions | None
    prefetch: int
    recorder: Observer
    spaces: Spaces | None
    chooses_workers: bool

    @property
    def inline(self) -> bool:
        """True if the only worker runs in this process."""
        return self.given.num_workers == 0

    @property
    def chooses_prefetch(self) -> bool:
        """True if a measurement decides how far workers run ahead."""
        return self.given.prefetch == "auto" and self.given.mode == "async"

    @property
    def credits(self) -> int:
        """Maximum number of rollouts of one worker that are in progress at once."""
        return _credits(self.given.mode, self.prefetch)

    @property
    def about(self) -> dict[str, Any]:
        """Description of the pool for a recording."""
        return {
            "seed": self.job.seed,
            "mode": self.given.mode,
            "parallelism": "experience" if self.gradient is None else "gradient",
            "rollout_length": self.job.rollout_length,
            "sub-environments of each worker": list(self.job.shares),
            "first env_id": self.job.first_env_id,
            "prefetch": self.prefetch,
            "max_policy_lag": self.given.max_policy_lag,
            "on_stale": self.given.on_stale,
            **({"policies": list(self.job.policies)} if self.job.is_named else {}),
        }


def make_plan(given: PoolArguments) -> Plan:
    """Check the arguments of a pool, and make its plan.

    Raises:
        ConfigurationError: An argument is wrong, or a file or the spaces cannot be used.
    """
    given, policy_factories = _made(replace(given, num_workers=possible_workers(given.num_workers)))
    check_arguments(given)
    lag = given.max_policy_lag
    # Users may pass integers of numpy, which a recording cannot keep.
    given = replace(given, max_frozen=int(given.max_frozen), max_policy_lag=None if lag is None else int(lag))
    options = options_of("workers", given.workers, WorkerOptions)
    gradient = options_of("gradient", given.gradient, GradientOptions) if given.parallelism == "gradient" else None
    recorder, factories = _recorder(given), _factories(given)
    prefetch = MAX_PREFETCH if given.prefetch == "auto" else int(given.prefetch)
    num_envs = factories.count or given.num_envs
    is_one = options.step_workers and given.num_workers is None
    num_workers = 1 if is_one else placed_workers(given.placement, given.num_workers)
    part = part_of(this_learner(), num_envs, num_workers, given.parallelism, given.mode)
    policies = _apart({name: on_device(policy, "cpu") for name, policy in given.policies.items()})
    in_use = len(part.shares) * _credits(given.mode, prefetch) + 2
    whole_episodes = given.rollout_length == "episode"
    job = Job(
        factories=_stepped(factories, options, part),
        policies=MadePolicies(policies, policy_factories),
        policy_of=given.policy_of,
        places=_places(policies, in_use) + (given.max_frozen if given.is_named else 0),
        postprocess=given.postprocess,
        options=options,
        rollout_length=WHOLE_EPISODES if whole_episodes else int(given.rollout_length),
        shares=part.shares,
        first_worker=part.first_worker,
        first_env_id=part.first_env_id,
        num_envs_is_given=num_envs is not None,
        gradient=None if gradient is None else _gradient_job(given, gradient),
        infos=_infos(given),
        settings={name: dict(given.settings) for name in policies} if given.settings else {},
        seed=root_seed(given.seed, recorder.seed),
        # The workers of a worker need cores too, and hosts have others than this machine.
        cores=None if options.step_workers or given.placement else own_cores(len(part.shares), options.threads),
        keeps=_keeps(given, len(part.shares) * _credits(given.mode, prefetch)) if whole_episodes else None,
    )
    chooses_workers = given.num_workers is None and given.placement is None and this_learner().world_size == 1
    return Plan(
        given=given,
        job=job,
        gradient=gradient,
        prefetch=prefetch,
        recorder=recorder,
        spaces=given_spaces(given.spaces, job.factories),
        chooses_workers=chooses_workers and not is_one,
    )


def _made(given: PoolArguments) -> tuple[PoolArguments, dict[str, PolicyFactory]]:
    """Return the arguments with what the factories of policies make, and the factories by name."""
    factories = {name: one for name, one in given.policies.items() if isinstance(one, PolicyFactory)}
    policies = {name: made(one) for name, one in given.policies.items()}
    return replace(given, policy=policies if given.is_named else policies[UNNAMED]), factories


def _credits(mode: Mode, prefetch: int) -> int:
    return 1 if mode == "sync" else 1 + prefetch


def _keeps(given: PoolArguments, num_credits: int) -> int | None:
    """Return how many publishes the version of an episode may be behind when a part of the episode is requested.

    The rows arrive within ``max_policy_lag`` publishes from then, of which ``num_credits - 1`` are kept for the time
    until the part is taken.

    >>> from types import SimpleNamespace as Given
    >>> [_keeps(Given(max_policy_lag=lag, on_stale="pace"), 4) for lag in (None, 0, 3, 10)]
    [None, 0, 0, 7]
    """
    if given.max_policy_lag is None or given.on_stale == "drop":
        return None
    return max(0, given.max_policy_lag - (num_credits - 1))


def _places(policies: Mapping[str, Any], versions: int) -> int:
    """Return the number of versions of each policy to reserve memory for, given the maximum that is in use at once.

    If they would take too much memory, there are fewer places, and publishes wait.
    """
    nbytes = sum(flat_layout(module)[1] for module in modules_of(policies).values())
    return max(MIN_WEIGHTS_PLACES, min(versions, MAX_WEIGHTS_BYTES // nbytes if nbytes else versions))


def _gradient_job(given: PoolArguments, options: GradientOptions) -> GradientJob:
    assert given.loss_fn is not None
    return GradientJob(given.loss_fn, GradientLayout.of(given.policy), options.worker_max_norm)


def _stepped(factories: Factories, options: WorkerOptions, part: LearnerPart) -> Factories:
    """Return the factories, or factories of vector envs whose sub-environments other processes step."""
    if options.step_workers is None:
        return factories
    from parenv.vector.step_workers import StepWorkersFactories

    return StepWorkersFactories.of(factories, options, tuple(part.shares), part.first_env_id)


def _recorder(given: PoolArguments) -> Observer:
    if given.record is not None:
        from parenv.records import Recorder

        return Recorder(own_file(given.record))
    if given.replay is not None:
        from parenv.records import Replayer

        return Replayer(own_file(given.replay))
    return Observer()


def _apart(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policies, with copies of what several of them share: workers write versions of each into it."""
    seen: set[int] = set()
    apart = {}
    for name, policy in policies.items():
        module = module_of(policy)
        mine = {id(policy), *map(id, () if module is None else tensors_of(module).values())}
        apart[name] = copied(policy) if mine & seen else policy
        seen |= mine
    return apart
