"""Check the arguments of a vector env, before any process starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from gymnasium import Env, Space
from gymnasium.vector import AutoresetMode

from parenv.argument_checks import at_least, one_of, options_of, positive
from parenv.crew.partition import leave_to_pools, placed_workers, split
from parenv.envs.autoreset import Autoreset
from parenv.envs.entry_point import factories_of
from parenv.envs.factories import Factories, Spaces, given_spaces
from parenv.envs.recycling import with_recycling
from parenv.envs.seeding import root_seed
from parenv.errors import ConfigurationError
from parenv.options import Placing, WorkerOptions
from parenv.platform import system
from parenv.platform.limits import possible_workers
from parenv.process.cores import own_cores, usable_cores
from parenv.process.spinning import Spinning
from parenv.vector.choice import CallerSteps, Demand
from parenv.worker.job import StepJob

OnWorkerDeath = Literal["raise", "restart"]
SpinUs = float | Literal["auto"]
MAX_SPIN_US = 10_000
ObservationMode = str | tuple[Space[Any], Space[Any]]


@dataclass(frozen=True, kw_only=True)
class VectorArguments:
    """Unchecked arguments of :class:`~parenv.ParallelVectorEnv`."""

    env_fns: Sequence[Callable[[], Env[Any, Any]]]
    context: str | None
    worker: None
    observation_mode: ObservationMode
    autoreset_mode: str | AutoresetMode
    max_concurrency: int | None
    num_workers: int | Literal["auto"] | None
    batch_size: int | Literal["auto"] | None
    step_timeout_s: float | None
    on_worker_death: OnWorkerDeath
    workers: WorkerOptions | None
    placement: Placing
    caller_steps: CallerSteps
    spin_us: SpinUs
    spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None
    strict_infos: bool
    class_name: str


@dataclass(frozen=True)
class VectorPlan:
    """Checked settings of a vector env.

    Args:
        job: Job of the workers.
        demand: What the user asks for, by which the number of workers and the share of this process are chosen.
        is_chosen: Whether both are chosen when the first sub-environment exists.
        caller_rows: Number of sub-environments that this process steps: the last share, or 0. Without workers: all.
        spin_us: Microseconds of polling before a process sleeps, or ``"auto"``.
        observation_mode: ``"same"``, ``"different"``, or the batched and the single space.
        batch_size: Number of rows that ``recv`` returns.
        chooses_batch_size: Whether a measurement decides that number.
        placement: Machines of the workers; ``None`` for this machine.
        spaces: Spaces of a sub-environment from the user, or ``None``.
        strict_infos: Whether a value in an info that has no plain form is an error.
        class_name: Class of the vector env, for messages.
    """

    job: StepJob
    demand: Demand
    is_chosen: bool
    caller_rows: int
    spin_us: SpinUs
    observation_mode: ObservationMode
    batch_size: int
    chooses_batch_size: bool
    placement: Placing
    spaces: Spaces | None
    strict_infos: bool
    class_name: str

    @property
    def inline(self) -> bool:
        """Tell whether this process steps all sub-environments."""
        return not self.worker_shares

    @property
    def worker_shares(self) -> tuple[int, ...]:
        """Number of sub-environments of each worker process."""
        return self.job.shares[:-1] if self.caller_rows else self.job.shares

    @property
    def num_envs(self) -> int:
        """Number of all sub-environments."""
        return sum(self.job.shares)


def make_vector_plan(given: VectorArguments) -> VectorPlan:
    """Check the arguments of a vector env.

    Raises:
        ConfigurationError: An argument is invalid.
        TypeError: ``observation_mode`` is a pair, but not of spaces.
    """
    given = replace(given, num_workers=possible_workers(given.num_workers))
    options = _options(given)
    factories = _factories(given, options)
    _check_as_gymnasium_has_it(given)
    num_envs = len(given.env_fns)
    batch_size = _batch_size(given.batch_size, num_envs)
    demand = _demand(given, options, num_envs)
    job = StepJob(
        factories=factories,
        options=options,
        shares=(num_envs,),
        autoreset=Autoreset.of(given.autoreset_mode),
        seed=root_seed(None),
    )
    plan = VectorPlan(
        job=job,
        demand=demand,
        is_chosen=demand.num_workers is None
        or (demand.num_workers > 0 and bool(demand.caller_steps or given.batch_size == "auto")),
        caller_rows=0,
        spin_us=_spin_us(given.spin_us),
        observation_mode=_checked(given.observation_mode),
        batch_size=batch_size,
        chooses_batch_size=given.batch_size == "auto",
        placement=given.placement,
        spaces=given_spaces(given.spaces, factories),
        strict_infos=given.strict_infos,
        class_name=given.class_name,
    )
    return plan if plan.is_chosen else shared_out(plan, demand.num_workers or 0)


def shared_out(plan: VectorPlan, workers: int, caller_rows: int = 0) -> VectorPlan:
    """Set the number of worker processes, with shares as even as possible, and the caller's sub-environments."""
    is_local, caller_rows = plan.placement is None, caller_rows if workers else plan.num_envs
    job = replace(
        plan.job,
        shares=(split(plan.num_envs - caller_rows, workers) if workers else ()) + (caller_rows,) * (caller_rows > 0),
        cores=own_cores(workers, plan.job.options.threads) if is_local else None,
        spinning=Spinning.of(plan.spin_us, workers + 1, usable_cores()) if is_local else None,
    )
    return replace(plan, job=job, caller_rows=caller_rows)


def _demand(given: VectorArguments, options: WorkerOptions, num_envs: int) -> Demand:
    """Check the numbers of workers, and return what the user asks for."""
    is_elsewhere = given.placement is not None or options.python is not None
    # With a placement, the default means that its number counts.
    wanted = None if given.num_workers == "auto" else given.num_workers
    num_workers, most = _workers(placed_workers(given.placement, wanted), num_envs, given.max_concurrency)
    if num_workers is None and is_elsewhere:
        num_workers = min(usable_cores(), most)
    return Demand(
        num_envs=num_envs,
        num_workers=num_workers,
        most_workers=most,
        caller_steps=_caller_steps(given, num_workers, num_envs),
        isolated_by=_isolated_by(given),
        cores=usable_cores(),
        free_bytes=system.free_bytes(),
        spins=given.spin_us != 0,
    )


_OF_A_PROCESS = (
    "device",
    "threads",
    "environment",
    "preload",
    "start_method",
    "setup_fn",
    "cleanup_fn",
    "step_timeout_s",
    "reset_timeout_s",
    "max_memory_bytes",
)


def _isolated_by(given: VectorArguments) -> str:
    """Return an argument that only has an effect on sub-environments in processes of their own, or an empty text."""
    if given.on_worker_death == "restart":
        return 'on_worker_death="restart"'
    for name in ("step_timeout_s", "batch_size"):
        if getattr(given, name) is not None:
            return name
    options, default = given.workers or WorkerOptions(), WorkerOptions()
    changed = [name for name in _OF_A_PROCESS if getattr(options, name) != getattr(default, name)]
    return f"WorkerOptions({changed[0]}=...)" if changed else ""


def _caller_steps(given: VectorArguments, num_workers: int | None, num_envs: int) -> CallerSteps:
    wanted = one_of("caller_steps", given.caller_steps, (True, False, "auto", None))
    if given.workers is not None and given.workers.python is not None and not wanted:
        return False
    if given.placement is not None:
        if wanted is True:
            raise ConfigurationError(
                "caller_steps=True cannot be used with a placement, because the caller would wait for the network. "
                "Leave one of them out."
            )
        return False
    if wanted is True and num_workers is not None and num_workers >= num_envs:
        raise ConfigurationError(
            f"num_workers must be less than num_envs={num_envs} with caller_steps=True, got {num_workers}. Use "
            "fewer workers, or caller_steps=False."
        )
    return wanted


def _spin_us(spin_us: Any) -> SpinUs:
    if spin_us != "auto" and (isinstance(spin_us, bool) or not isinstance(spin_us, int | float) or not spin_us >= 0):
        raise ConfigurationError(f'spin_us must be a number of at least 0 microseconds or "auto", got {spin_us!r}')
    if spin_us != "auto" and spin_us > MAX_SPIN_US:
        raise ConfigurationError(
            f"spin_us must be at most {MAX_SPIN_US}, so that processes sleep in long waits, got {spin_us}"
        )
    return cast("SpinUs", spin_us)


def _factories(given: VectorArguments, options: WorkerOptions) -> Factories:
    env_fns: Any = given.env_fns
    if isinstance(env_fns, str) or not isinstance(env_fns, Sequence):
        raise ConfigurationError(
            "env_fns must be a sequence with one factory for each sub-environment, such as [make_env] * 64, got "
            f"{env_fns!r}. For an env id, use parenv.make_vec(env_id, num_envs=64)."
        )
    factories = factories_of(env_fns, options, given.placement is None)
    return with_recycling(factories, options.recycle_episodes)


def _check_as_gymnasium_has_it(given: VectorArguments) -> None:
    """Check the arguments of Gymnasium's class that have no effect."""
    if given.worker is not None:
        raise ConfigurationError(
            "worker must be None, because workers of parenv step many sub-environments over shared memory, got "
            f"{given.worker!r}. Move its code to an environment wrapper or to WorkerOptions(setup_fn=...)."
        )
    if given.context not in (None, "fork", "spawn", "forkserver"):
        raise ConfigurationError(
            f"context must be a start method of multiprocessing, got {given.context!r}. Leave it out: parenv always "
            "forks workers from a fork server."
        )


_FOR_POOLS = {
    "on_env_error": "a vector env raises the exception, and can be used afterwards",
    "step_threads": "a vector env steps the sub-environments that are ready with send and recv",
    "step_workers": "the workers of a vector env do not act",
    "rollout_device": "a vector env has no rollouts",
}


def _options(given: VectorArguments) -> WorkerOptions:
    """Merge the arguments that override worker options; ``restart=None`` if workers are not restarted."""
    options = options_of("workers", given.workers, WorkerOptions)
    leave_to_pools(options, _FOR_POOLS)
    restarts = one_of("on_worker_death", given.on_worker_death, get_args(OnWorkerDeath)) == "restart"
    if restarts and options.restart is None:
        raise ConfigurationError(
            'on_worker_death="restart" needs a RestartPolicy, got WorkerOptions(restart=None). Leave restart out.'
        )
    if given.step_timeout_s is not None:
        positive("step_timeout_s", given.step_timeout_s, " seconds or None")
    return replace(
        options,
        restart=options.restart if restarts else None,
        step_timeout_s=options.step_timeout_s if given.step_timeout_s is None else given.step_timeout_s,
    )


def _batch_size(batch_size: int | str | None, num_envs: int) -> int:
    if batch_size is None or batch_size == "auto":
        return num_envs
    if isinstance(batch_size, str):
        raise ConfigurationError(
            f'batch_size must be an integer, None or "auto", got {batch_size!r}. Pass one of these.'
        )
    if at_least("batch_size", batch_size, 1) > num_envs:
        raise ConfigurationError(f"batch_size must be at most num_envs={num_envs}, got {batch_size}")
    return batch_size


def _workers(num_workers: Any, num_envs: int, max_concurrency: int | None) -> tuple[int | None, int]:
    """Return the number of workers, or ``None`` if it is to be chosen, and its maximum."""
    if max_concurrency is not None:
        at_least("max_concurrency", max_concurrency, 1)
    most = min(num_envs, max_concurrency or num_envs)
    if num_workers is None or num_workers == "auto":
        return None, most
    if isinstance(num_workers, str):
        raise ConfigurationError(f'num_workers must be an integer or "auto", got {num_workers!r}')
    at_least("num_workers", num_workers, 0)
    if num_workers > most:
        limit = f"max_concurrency={max_concurrency}" if most < num_envs else f"num_envs={num_envs}"
        raise ConfigurationError(f"num_workers must be at most {limit}, got {num_workers}")
    return num_workers, most


def _checked(mode: Any) -> ObservationMode:
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(f"observation_mode must be a pair of spaces, got {type(mode[0])} and {type(mode[1])}")
        return mode
    if mode not in ("same", "different"):
        # User code matches the beginning, which is Gymnasium's text.
        raise ConfigurationError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}. In a tuple, put the batched space first"
        )
    return str(mode)
