"""Frozen option objects for settings beyond the main arguments of a pool."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from parenv.argument_checks import at_least, is_callable, number, one_of, positive
from parenv.errors import ConfigurationError
from parenv.platform import system
from parenv.platform.limits import check_possible

Mode = Literal["sync", "async"]
Parallelism = Literal["experience", "gradient"]
OnStale = Literal["pace", "drop"]
OnEnvError = Literal["raise", "restart_env", "restart_worker"]
StartMethod = Literal["fork", "spawn"]
OnNonfinite = Literal["raise", "skip"]
NamedReduction = Literal["mean", "weighted_mean", "sum"]
Reduction = NamedReduction | Callable[[Any, Any], Any]
WeightsEncoding = Literal["exact", "bfloat16"]
_TCP = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9._*-]+):([0-9]{1,5}|\*)")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


def tcp_address(address: str, ports: range = range(65536)) -> Any:
    """Return the host of an address: a name, ``"*"``, or an ``IPv4Address`` or ``IPv6Address``.

    Other spellings of a number, such as ``0`` for ``0.0.0.0``, are refused, because a user can mean another address.

    Args:
        address: TCP address, such as ``tcp://192.0.2.7:5555``.
        ports: Allowed ports. ``*`` counts as port 0.

    Raises:
        ConfigurationError: The text is not a TCP address.

    >>> tcp_address("tcp://192.0.2.7:5555"), tcp_address("tcp://head-node:*")
    (IPv4Address('192.0.2.7'), 'head-node')
    """
    match = _TCP.fullmatch(address)
    if match is not None and (0 if match[2] == "*" else int(match[2])) in ports:
        host = match[1].strip("[]")
        if host == match[1] and not _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
            return host
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host)
    raise ConfigurationError(
        f"an address must be of the form tcp://192.0.2.7:5555 or tcp://[2001:db8::7]:5555, got {address!r}"
    )


def _check(check: Callable[..., object], options: Any, *names: str, or_none: bool = False, **more: Any) -> None:
    """Check fields of an option object. With ``or_none``, ``None`` is allowed."""
    for name in names:
        value = getattr(options, name)
        if value is not None or not or_none:
            check(f"{type(options).__name__}.{name}", value, **more)


@dataclass(frozen=True)
class RestartPolicy:
    """Limits and delays of worker restarts.

    Args:
        max_restarts: Maximum number of restarts of one worker within ``window_s``. Default: 5. One more death ends the
            pool with :class:`~parenv.errors.RestartLimitError`, which lists all deaths.
        window_s: Length of the window in seconds. Default: 60.
        backoff_s: Delay before the second restart within the window, in seconds. Default: 0.5. Each further restart
            doubles it. The first restart has no delay.
        max_backoff_s: Maximum delay in seconds. Default: 10.

    >>> WorkerOptions(restart=RestartPolicy(max_restarts=20, window_s=600.0)).restart.max_restarts
    20
    """

    max_restarts: int = 5
    window_s: float = 60.0
    backoff_s: float = 0.5
    max_backoff_s: float = 10.0

    def __post_init__(self) -> None:
        _check(at_least, self, "max_restarts", least=1, hint=". WorkerOptions(restart=None) disables restarts.")
        _check(positive, self, "window_s", "backoff_s", "max_backoff_s", unit=" seconds")


@dataclass(frozen=True)
class WorkerOptions:
    """Setup, limits and failure handling of worker processes.

    Args:
        device: Torch device on which a worker acts, computes gradients and trains its members. Workers take the
            devices of a tuple such as ``("cuda:0", "cuda:1")`` in turn. Default: ``"cpu"``, which also hides GPUs from
            workers.
        threads: Number of intra-op threads per worker (OpenMP, BLAS, torch), set before any import. Default: 1.
        step_threads: Number of threads in which a worker steps and resets its sub-environments (pools only). Threads
            help sub-environments that wait, for a socket or a clock, and that share no state. They do not help
            computation in Python. Rollouts do not depend on the number. Sub-environments are made, and called by
            ``call``, in the main thread. Recycled ones are made in their thread. Default: 1.
        step_workers: Number of processes that step the sub-environments of each worker (pools only). The worker acts
            for all of them, in two alternating halves (double buffering). Centralized inference is worth it if one
            large batch is cheaper than a small batch per worker, as on a GPU. ``num_workers`` is then 1 by default.
            Default: ``None``, each worker steps its sub-environments itself.
        setup_fn: Function that each worker calls as ``setup_fn(worker)`` before it makes its sub-environments. Worker
            indices are unique over all learners, so that ports and files can depend on them. Logging, default dtypes
            and other settings of the script apply without it. Default: ``None``.
        cleanup_fn: Function that each worker calls as ``cleanup_fn(worker)`` after it has closed its sub-environments.
            Default: ``None``.
        environment: Environment variables of workers, set before any import. Default: none.
        on_env_error: Reaction to an exception of a sub-environment after the start (pools only). ``"raise"`` (default)
            closes the pool and raises the exception. ``"restart_env"`` replaces the sub-environment and truncates its
            episode, as often as ``restart`` allows. ``"restart_worker"`` restarts the worker.
        restart: Policy for workers that die or hang. Default: ``RestartPolicy()``. With ``None``, such a worker ends
            the pool. A vector env uses it only with ``on_worker_death="restart"``.
        step_timeout_s: Time limit in seconds for an env step, for acting, for ``postprocess``, for ``loss_fn`` and for
            a call. A worker that exceeds it counts as hung. Default: 600. ``None`` sets no limit.
        reset_timeout_s: Time limit in seconds for a reset, and for a new environment after the start. Default: 600.
            ``None`` sets no limit.
        start_timeout_s: Time limit in seconds for the start of all workers, or for a restart. Default: 120.
        close_timeout_s: Time limit in seconds for the end of a worker. A slower worker is killed. Default: 5.
        max_memory_bytes: Maximum number of bytes that a worker allocates beyond those of its start. A worker that
            reaches it and dies raises :class:`~parenv.errors.WorkerMemoryError`. Default: ``None``, no limit.
        recycle_episodes: Number of episodes after which a sub-environment is closed and made again, between two
            episodes. It helps simulators that leak memory. No transition is lost. Seeds that are given to resets stay
            the same. Without such seeds, the first reset of the new environment gets a seed that follows from the first
            seed of the sub-environment and the number of its episodes. Attributes that ``set_attr`` has set are set
            again. Default: ``None``, never.
        python: Another Python interpreter (3.6 or later) in which sub-environments live: its path, or a command with
            its arguments, such as that of a container. Each worker starts one such process, or one for each of its
            ``step_threads``. Environments must be named by :func:`parenv.entry_point` or an env id. Default: ``None``,
            the interpreter of the worker.
        preload: Names of modules that are imported once for all workers. They should be slow to import and must not
            start threads. Default: none.
        start_method: ``"fork"`` forks workers within milliseconds from a small process that has imported their modules.
            ``"spawn"`` starts a new interpreter for each worker, without ``preload``. Use it for libraries that must
            not be forked after their import, such as JAX. Default: ``"fork"``, and ``"spawn"`` on macOS.
        check_finite: Whether to refuse NaN and infinity in observations and actions. The error contains the
            sub-environment and the step. Default: ``False``.
        strict_dtype: Whether to refuse observations and actions in another dtype of the same kind. Default: ``False``,
            they are cast.
        rollout_device: CUDA device of rollouts, such as the learner's (pools only). Default: ``None``, shared memory of
            the host. Rollouts on a device consist of tensors. A worker on a GPU writes observations, actions and
            extras there directly; the other fields are copied on arrival.

    >>> options = WorkerOptions(threads=2, step_timeout_s=30.0, on_env_error="restart_env", preload=("numpy.linalg",))
    >>> options.reset_timeout_s
    600.0
    """

    device: str | tuple[str, ...] = "cpu"
    rollout_device: str | None = None
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    start_method: StartMethod = "fork" if system.FORK_IS_SAFE else "spawn"
    step_workers: int | None = None
    setup_fn: Callable[[int], object] | None = None
    cleanup_fn: Callable[[int], object] | None = None
    restart: RestartPolicy | None = field(default_factory=RestartPolicy)
    on_env_error: OnEnvError = "raise"
    step_timeout_s: float | None = 600.0
    reset_timeout_s: float | None = 600.0
    start_timeout_s: float = 120.0
    close_timeout_s: float = 5.0
    max_memory_bytes: int | None = None
    strict_dtype: bool = False
    check_finite: bool = False
    step_threads: int = 1
    recycle_episodes: int | None = None
    python: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check(at_least, self, "threads", "step_threads", least=1)
        _check(at_least, self, "max_memory_bytes", "step_workers", "recycle_episodes", or_none=True, least=1)
        _check(positive, self, "start_timeout_s", "close_timeout_s", unit=" seconds")
        _check(positive, self, "step_timeout_s", "reset_timeout_s", or_none=True, unit=" seconds")
        _check(is_callable, self, "setup_fn", "cleanup_fn")
        _check(one_of, self, "on_env_error", allowed=get_args(OnEnvError))
        _check(one_of, self, "start_method", allowed=get_args(StartMethod))
        if not self.devices or not all(isinstance(device, str) for device in self.devices):
            raise ConfigurationError(
                f"WorkerOptions.device must be the name of a device or a tuple of names, got {self.device!r}"
            )
        if self.on_env_error != "raise" and self.restart is None:
            raise ConfigurationError(
                f"on_env_error={self.on_env_error!r} needs a RestartPolicy, got restart=None. Leave restart out, or "
                'use on_env_error="raise".'
            )
        if self.step_workers is not None:
            check_possible("worker processes")
        if self.step_threads > 1 and self.step_workers is not None:
            raise ConfigurationError(
                f"step_threads must be 1 with step_workers={self.step_workers}, got {self.step_threads}. Leave one of "
                "them out."
            )
        if self.on_env_error == "restart_env" and self.step_workers is not None:
            raise ConfigurationError(
                'on_env_error="restart_env" cannot be used with step_workers, because other processes step the '
                'sub-environments. Use "restart_worker".'
            )
        self._check_python()
        if self.max_memory_bytes is not None:
            check_possible("max_memory_bytes")
        if not isinstance(self.preload, tuple) or not all(isinstance(module, str) for module in self.preload):
            raise ConfigurationError(f"WorkerOptions.preload must be a tuple of module names, got {self.preload!r}")

    def _check_python(self) -> None:
        python = self.python
        if python is None:
            return
        check_possible("python")
        parts = (python,) if isinstance(python, str) else python
        if not isinstance(parts, tuple) or not parts or not all(isinstance(part, str) and part for part in parts):
            raise ConfigurationError(
                f"WorkerOptions.python must be the path of an interpreter or a tuple, got {python!r}. Pass a command "
                "as a tuple of its words."
            )

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that workers take in turn."""
        return self.device if isinstance(self.device, tuple) else (self.device,)


@dataclass(frozen=True)
class RemotePlacement:
    """Workers on other machines, which run ``parenv worker --connect tcp://HOST:PORT --key FILE --num-workers N``.

    Hosts can join and leave at any time. A worker without a host waits for one, at the start for up to
    ``WorkerOptions.start_timeout_s``. A worker whose host is lost restarts on another host, or when a host joins. All
    traffic is encrypted and authenticated (CURVE). ``parenv keys create`` makes the keys.

    Args:
        listen: Address for hosts, ``tcp://ADDRESS:PORT``, with an address of this machine.
        key: Path of the driver's key file.
        hosts: Public keys of the hosts that may join: path of ``hosts.pub``, or the keys. The file is read again when
            it changes.
        num_local: Number of workers on this machine, which are the first ones. Default: 0.
        weights: Encoding of the policy's weights on the network. ``"exact"`` (default) sends all bits. ``"bfloat16"``
            sends half as many bytes; workers then act with float32 weights rounded by at most 0.4 %.
        any_interface: Whether to permit ``0.0.0.0``, ``[::]`` and ``*``, which listen on all networks of this machine.
            Default: ``False``.
        silence_s: Time without a sign of life after which a host counts as lost, in seconds. Default: 5. A host that
            has lost its driver looks for it again after 5 s.
        max_message_bytes: Maximum size of a message from a host, in bytes. Default: 64 MiB. Rollouts are sent in small
            pieces and can be larger.
        max_connections: Maximum number of connected hosts. Default: 256.

    >>> RemotePlacement("tcp://192.0.2.7:5555", key="keys/driver.key", hosts="keys/hosts.pub", num_local=2).silence_s
    5.0
    >>> RemotePlacement("tcp://*:5555", key="keys/driver.key", hosts="keys/hosts.pub")
    Traceback (most recent call last):
    parenv.errors.ConfigurationError: listen='tcp://*:5555' is reachable from every network of this machine. ...
    """

    listen: str
    key: str | os.PathLike[str] = field(repr=False)
    hosts: str | os.PathLike[str] | Sequence[str] = field(repr=False)
    num_local: int = 0
    weights: WeightsEncoding = "exact"
    any_interface: bool = False
    silence_s: float = 5.0
    max_message_bytes: int = 1 << 26
    max_connections: int = 256

    def __post_init__(self) -> None:
        host = tcp_address(self.listen)
        host = getattr(host, "ipv4_mapped", None) or host
        if (host == "*" or getattr(host, "is_unspecified", False)) and not self.any_interface:
            raise ConfigurationError(
                f"listen={self.listen!r} is reachable from every network of this machine. Name one address, or set "
                "any_interface=True."
            )
        _check(one_of, self, "weights", allowed=get_args(WeightsEncoding))
        for name, least in (("num_local", 0), ("max_message_bytes", 1 << 16), ("max_connections", 1)):
            _check(at_least, self, name, least=least)
        if not 0.5 <= self.silence_s <= 3600:
            raise ConfigurationError(
                f"RemotePlacement.silence_s must be between 0.5 and 3600 seconds, got {self.silence_s}"
            )

    def count_workers(self, num_workers: Any) -> int:
        """Return the number of workers on this machine and on hosts, which the user must give."""
        if not num_workers or isinstance(num_workers, str):
            raise ConfigurationError(
                f"num_workers must be the number of workers on all hosts together with a RemotePlacement, got "
                f"{num_workers!r}"
            )
        if self.num_local > num_workers:
            raise ConfigurationError(f"num_local must be at most num_workers={num_workers}, got {self.num_local}")
        return int(num_workers)


@dataclass(frozen=True)
class GradientOptions:
    """Reduction of the workers' gradients to one, for ``parallelism="gradient"``.

    Args:
        reduction: ``"weighted_mean"`` (default) weights each gradient by its samples, for a loss that is a mean over
            env steps. ``"mean"`` weights all gradients alike, for a loss that is a mean over something else, such as
            episodes. ``"sum"`` is for a loss that is a sum. A function of tensors
            ``(gradients [K, P], weights [K]) -> gradient [P]`` gets samples times ``lag_weight`` as weights.
        num_arrivals: Number of gradients, in the order of arrival, in one reduction (async only). Default: 1.
        batch_size: Number of samples (env steps) to accumulate over rounds or arrivals before a gradient is yielded.
            Default: ``None``, one round or ``num_arrivals``.
        worker_max_norm: Maximum 2-norm of each worker's gradient, which the worker clips. Default: ``None``.
        max_norm: Maximum 2-norm of the yielded gradient. With a single arrival, the smaller of both limits applies.
            Default: ``None``.
        lag_weight: Weight of a gradient by its policy lag in publishes, such as ``lambda lag: 0.9**lag``. Weight 0
            leaves a gradient out. If all are left out, the result is zero. Default: ``None``, no weighting.
        keep_rollouts: Whether ``Gradient.rollouts`` contains the samples, as views. Not available for whole episodes.
            Default: ``False``.
        on_nonfinite: Reaction to NaN or infinity in a gradient. ``"raise"`` (default) raises
            :class:`~parenv.errors.GradientError`. ``"skip"`` leaves the gradient out and counts it.

    >>> GradientOptions(batch_size=2048, max_norm=0.5, lag_weight=lambda lag: 0.9**lag).reduction
    'weighted_mean'
    """

    reduction: Reduction = "weighted_mean"
    num_arrivals: int = 1
    batch_size: int | None = None
    worker_max_norm: float | None = None
    max_norm: float | None = None
    lag_weight: Callable[[int], float] | None = None
    keep_rollouts: bool = False
    on_nonfinite: OnNonfinite = "raise"

    def __post_init__(self) -> None:
        if not callable(self.reduction):
            _check(one_of, self, "reduction", allowed=get_args(NamedReduction), hint=". A function is allowed too.")
        _check(one_of, self, "on_nonfinite", allowed=get_args(OnNonfinite))
        _check(at_least, self, "num_arrivals", least=1)
        _check(at_least, self, "batch_size", or_none=True, least=1)
        _check(positive, self, "worker_max_norm", "max_norm", or_none=True)


@dataclass(frozen=True)
class RayPlacement:
    """Workers on the nodes of a Ray cluster. Ray chooses the node, and another one if a node is lost.

    parenv uses the cluster to which ``ray.init(...)`` has connected this process, or the cluster that a plain
    ``ray.init()`` finds or starts. Each worker host is a Ray actor.

    Rollouts and weights go through parenv's own encrypted connections and not through Ray. Each pool makes new keys,
    which reach the nodes as an argument of the actors. The keys are as safe as the Ray cluster. A person who can run
    code in the cluster, or read its memory or its stored state, can read them. So can a person who can read its network
    traffic, unless Ray uses ``RAY_USE_TLS=1``.

    All nodes need the same version of parenv. Actors and their workers run at low priority (nice 15) unless the nodes
    were started with ``RAY_worker_niceness=0``.

    Args:
        num_workers: Number of workers.
        workers_per_host: Number of workers in one actor. They share a node, the imports and one copy of the weights.
            Default: 1.
        resources: Resources of one worker, as Ray counts them: ``"CPU"``, ``"GPU"``, ``"memory"`` in bytes, or a custom
            name. An actor requests the resources of all its workers. Default: one CPU.

    >>> RayPlacement(num_workers=5, workers_per_host=2).shares
    (2, 2, 1)
    >>> RayPlacement(num_workers=8, workers_per_host=4, resources={"CPU": 1, "GPU": 0.25}).needed(4)
    {'CPU': 4.0, 'GPU': 1.0}
    """

    num_workers: int
    workers_per_host: int = 1
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})

    def __post_init__(self) -> None:
        _check(at_least, self, "num_workers", "workers_per_host", least=1)
        for name, amount in self.resources.items():
            is_amount = isinstance(amount, int | float) and 0 <= amount < math.inf
            if not name or not isinstance(name, str) or not is_amount:
                raise ConfigurationError(
                    f"RayPlacement.resources must map names to amounts of at least 0, got {name!r}: {amount!r}"
                )

    def count_workers(self, num_workers: Any) -> int:
        """Return the number of workers, and check that the argument of a pool agrees."""
        if num_workers not in (None, self.num_workers):
            raise ConfigurationError(
                f"num_workers must be equal to RayPlacement's num_workers={self.num_workers}, got {num_workers}. "
                "Leave it out."
            )
        return self.num_workers

    @property
    def shares(self) -> tuple[int, ...]:
        """Number of workers of each host."""
        full, rest = divmod(self.num_workers, self.workers_per_host)
        return (self.workers_per_host,) * full + ((rest,) if rest else ())

    def needed(self, share: int) -> dict[str, float]:
        """Return the resources of a host with a number of workers."""
        # Ray rounds amounts to ten-thousandths.
        return {name: round(float(amount) * share, 4) for name, amount in self.resources.items()}


Placing = RemotePlacement | RayPlacement | None


@dataclass(frozen=True)
class Stop:
    """Criteria for the end of a stream of rollouts. The first criterion that is met ends it.

    Counts begin at the start of the stream, or of the whole run in :func:`~parenv.resumable`. By default, no criterion
    is set.

    Args:
        env_steps: Number of delivered env steps.
        episodes: Number of finished episodes.
        mean_return: Mean return of the last ``window`` episodes. It is not met before so many episodes have finished.
        window: Number of episodes in the mean return. Default: 100.
        seconds: Wall-clock time in seconds.
        evaluation_return: Mean return of an evaluation. The stream does not evaluate by itself: call
            ``pool.evaluate(...)`` or :meth:`SaveBest.update() <parenv.SaveBest.update>` in the loop.

    >>> Stop(env_steps=1000).reason(env_steps=1024, episodes=3, mean_return=9.5, seconds=0.1)
    'env_steps'
    """

    env_steps: float = math.inf
    episodes: float = math.inf
    mean_return: float = math.inf
    window: int = 100
    seconds: float = math.inf
    evaluation_return: float = math.inf

    def __post_init__(self) -> None:
        at_least("Stop.window", self.window, 1)
        _check(positive, self, "env_steps", "episodes", "seconds")
        _check(number, self, "mean_return", "evaluation_return")

    def reason(
        self,
        *,
        env_steps: int,
        episodes: int,
        mean_return: float,
        seconds: float,
        evaluation_return: float = math.nan,
    ) -> str | None:
        """Return the name of the first criterion that is met, or ``None``.

        Args:
            env_steps: Env steps so far.
            episodes: Episodes so far.
            mean_return: Mean return of the window, or NaN if fewer than ``window`` episodes have finished.
            seconds: Seconds so far.
            evaluation_return: Mean return of the last evaluation, or NaN before the first.
        """
        if env_steps >= self.env_steps:
            return "env_steps"
        if episodes >= self.episodes:
            return "episodes"
        if mean_return >= self.mean_return:
            return "mean_return"
        if seconds >= self.seconds:
            return "seconds"
        return "evaluation_return" if evaluation_return >= self.evaluation_return else None
