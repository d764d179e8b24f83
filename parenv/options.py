"""Frozen option objects: what a user may set beyond the few arguments that matter most."""

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
    """The host of an address: a name, ``"*"``, or an ``IPv4Address`` or ``IPv6Address``.

    Other ways to write a number, such as ``0`` for ``0.0.0.0``, are refused, so that nobody means one address and gets
    another.

    Args:
        address: such as ``tcp://192.0.2.7:5555``.
        ports: that it may have; ``*`` is port 0.

    Raises:
        ConfigurationError: it is not an address of TCP.

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
    raise ConfigurationError(f"{address!r} is not an address such as tcp://192.0.2.7:5555 or tcp://[2001:db8::7]:5555")


def _check(check: Callable[..., object], options: Any, *names: str, or_none: bool = False, **more: Any) -> None:
    """Check some fields, of which ``None`` means something where that is said."""
    for name in names:
        value = getattr(options, name)
        if value is not None or not or_none:
            check(f"{type(options).__name__}.{name}", value, **more)


@dataclass(frozen=True)
class RestartPolicy:
    """How often, and how soon, another process takes the place of a worker that is gone.

    Args:
        max_restarts: of one worker within ``window_s``; one death more ends the pool with all of them in the error.
        window_s: seconds.
        backoff_s: seconds before the second restart within the window, doubled for each further one; the first is
            made at once.
        max_backoff_s: the longest of these.

    >>> WorkerOptions(restart=RestartPolicy(max_restarts=20, window_s=600.0)).restart.max_restarts
    20
    """

    max_restarts: int = 5
    window_s: float = 60.0
    backoff_s: float = 0.5
    max_backoff_s: float = 10.0

    def __post_init__(self) -> None:
        _check(at_least, self, "max_restarts", least=1, hint="; WorkerOptions(restart=None) restarts nobody")
        _check(positive, self, "window_s", "backoff_s", "max_backoff_s", unit=" seconds")


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker process is set up and how long it may take.

    Args:
        device: torch device on which a worker acts, and computes its gradients or has its members learn; of several,
            as in ``("cuda:0", "cuda:1")``, each worker has one, in turns. With ``"cpu"`` GPUs are hidden from workers.
        rollout_device: for pools: where rollouts lie: in shared memory of the host (``None``), or on a CUDA device,
            such as the learner's. Then they are of tensors there: observations, actions and extras are written there
            by the worker, without a way through the host where it has them on a GPU; the rest is copied on arrival.
        threads: intra-op threads per worker (OpenMP, BLAS, torch), set before anything is imported.
        environment: environment variables, set before anything is imported.
        preload: modules imported once and shared by all workers: slow ones, that start no threads of their own.
        start_method: ``"fork"``: workers are forked, in milliseconds, from a small process that has imported what all
            need; ``"spawn"``: each is a fresh interpreter that imports everything for itself, ``preload`` or not: for
            what must not be forked once it is loaded, such as JAX.
        step_workers: for pools: processes that step the sub-environments of each worker, which acts for all of them, in
            two half batches that take turns; ``None``: it steps them itself. For policies of which one forward for all
            costs less than one in every worker, as on a GPU. ``num_workers`` is 1 by default.
        setup_fn: called as ``setup_fn(worker)`` in each worker before its sub-environments are made; workers are
            counted over all learners, so that ports and files chosen by them are different.
        cleanup_fn: called as ``cleanup_fn(worker)`` in each worker after its sub-environments are closed.
        restart: what happens when a worker dies or hangs; ``None``: that ends the pool. A vector env restarts its
            workers so only with ``on_worker_death="restart"``.
        on_env_error: for pools: what happens when a sub-environment raises after the start. ``"raise"``: the pool is
            closed and raises it; ``"restart_env"``: another one takes its place, as often as ``restart`` allows, and
            its episode ends as truncated; ``"restart_worker"``: as if the worker had died.
        step_timeout_s: seconds that a worker may take for an env step, for acting, for ``postprocess``, for
            ``loss_fn``, or for a call, before it counts as hung; ``None``: no limit.
        reset_timeout_s: the same for a reset, or for making an environment after the start.
        start_timeout_s: seconds that all workers together, or one that is restarted, may take until they are ready.
        close_timeout_s: seconds that a worker may take to end by itself before it is killed.
        max_memory_bytes: bytes that a worker process may allocate beyond what it began with; ``None``: no limit. One
            that dies of it does so by :class:`~parenv.WorkerMemoryError`. Linux only.
        strict_dtype: whether observations and actions in another dtype of the same kind are errors, and not cast.
        check_finite: whether NaN or infinity in an observation or action is an error, which says whose and when.
        step_threads: for pools: how many sub-environments a worker steps and resets at once, in threads. For those
            that wait, for a socket or a clock, and share nothing; what computes in Python gains nothing. Rollouts are
            the same whatever the number. They are made, and called by ``call``, in the main thread.

    >>> options = WorkerOptions(threads=2, step_timeout_s=30.0, on_env_error="restart_env", preload=("numpy.linalg",))
    >>> options.reset_timeout_s
    600.0
    """

    device: str | tuple[str, ...] = "cpu"
    rollout_device: str | None = None
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    start_method: StartMethod = "fork"
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

    def __post_init__(self) -> None:
        _check(at_least, self, "threads", "step_threads", least=1)
        _check(at_least, self, "max_memory_bytes", "step_workers", or_none=True, least=1)
        _check(positive, self, "start_timeout_s", "close_timeout_s", unit=" seconds")
        _check(positive, self, "step_timeout_s", "reset_timeout_s", or_none=True, unit=" seconds")
        _check(is_callable, self, "setup_fn", "cleanup_fn")
        _check(one_of, self, "on_env_error", allowed=get_args(OnEnvError))
        _check(one_of, self, "start_method", allowed=get_args(StartMethod))
        if not self.devices or not all(isinstance(device, str) for device in self.devices):
            raise ConfigurationError(f"WorkerOptions.device must be a device, or a tuple of them, got {self.device!r}")
        if self.on_env_error != "raise" and self.restart is None:
            raise ConfigurationError(f"on_env_error={self.on_env_error!r} needs a RestartPolicy, but restart=None")
        if self.step_threads > 1 and self.step_workers is not None:
            raise ConfigurationError("sub-environments are stepped by step_threads or by step_workers, not by both")
        if self.on_env_error == "restart_env" and self.step_workers is not None:
            raise ConfigurationError(
                'on_env_error="restart_env" needs sub-environments that the worker steps itself: with step_workers, '
                'use "restart_worker"'
            )
        if not isinstance(self.preload, tuple) or not all(isinstance(module, str) for module in self.preload):
            raise ConfigurationError(f"WorkerOptions.preload must be a tuple of module names, got {self.preload!r}")

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that workers have in turns."""
        return self.device if isinstance(self.device, tuple) else (self.device,)


@dataclass(frozen=True)
class RemotePlacement:
    """Workers on other machines, where ``parenv worker --connect tcp://HOST:PORT --key FILE --num-workers N`` runs.

    Hosts may come and go at any time. A worker that has no place waits for one, up to ``WorkerOptions.start_timeout_s``
    at the start; one whose host is gone is started again on another, or when one comes. All traffic is encrypted and
    authenticated (CURVE); keys are made by ``parenv keys create``.

    Args:
        listen: where hosts connect to, ``tcp://ADDRESS:PORT`` with an address of this machine.
        key: the driver's key file.
        hosts: public keys of the hosts that may join: the file ``hosts.pub``, which is read again when it changes, or
            the keys themselves.
        num_local: how many of the workers, the first ones, run on this machine.
        weights: how the policy's weights cross: ``"exact"``, or ``"bfloat16"``, half as many bytes, by which workers
            act on float32 weights rounded by at most 0.4 % each.
        any_interface: has to be true for ``0.0.0.0``, ``[::]`` and ``*``, which are all networks of this machine.
        silence_s: seconds without a sign of life after which a host counts as lost. A host looks for its driver anew
            after 5 s.
        max_message_bytes: what a host may send in one message, and a sixteenth of it beside arrays and bytes; rollouts
            are sent in small pieces and may be larger.
        max_connections: how many hosts may be connected at once; by one key half as many, where several are listed.

    >>> RemotePlacement("tcp://192.0.2.7:5555", key="keys/driver.key", hosts="keys/hosts.pub", num_local=2).silence_s
    5.0
    >>> RemotePlacement("tcp://*:5555", key="keys/driver.key", hosts="keys/hosts.pub")
    Traceback (most recent call last):
    parenv.errors.ConfigurationError: listen='tcp://*:5555' is reachable from every network that this machine is on: ...
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
                f"listen={self.listen!r} is reachable from every network that this machine is on: name one address, or "
                "say any_interface=True"
            )
        _check(one_of, self, "weights", allowed=get_args(WeightsEncoding))
        for name, least in (("num_local", 0), ("max_message_bytes", 1 << 16), ("max_connections", 1)):
            _check(at_least, self, name, least=least)
        if not 0.5 <= self.silence_s <= 3600:
            raise ConfigurationError(f"RemotePlacement.silence_s must be 0.5 to 3600 seconds, got {self.silence_s}")

    def count_workers(self, num_workers: Any) -> int:
        """How many workers there are, here and on hosts: as many as the user says."""
        if not num_workers or isinstance(num_workers, str):
            raise ConfigurationError(
                f"with a RemotePlacement, num_workers says how many workers there are on all hosts, got {num_workers!r}"
            )
        if self.num_local > num_workers:
            raise ConfigurationError(f"num_local={self.num_local} is more than num_workers={num_workers}")
        return int(num_workers)


@dataclass(frozen=True)
class GradientOptions:
    """How the gradients of the workers become one, for ``parallelism="gradient"``.

    Args:
        reduction: ``"weighted_mean"`` weights each gradient by its samples, which is right for a loss that is a mean
            over env steps. ``"mean"`` weights all gradients alike, for a loss that is a mean over something else, such
            as episodes. ``"sum"`` is for a loss that is a sum. Or a function of tensors
            ``(gradients [K, P], weights [K]) -> gradient [P]``, whose weights are samples times ``lag_weight``.
        num_arrivals: async: how many gradients, in the order of arrival, are reduced to one.
        batch_size: samples (env steps) to accumulate before a gradient is yielded, over as many rounds or arrivals as
            that takes; ``None``: one round, or ``num_arrivals``.
        worker_max_norm: bound on the 2-norm of each worker's gradient, clipped on the worker.
        max_norm: bound on the 2-norm of what is yielded; of a single arrival, the smaller of the two decides.
        lag_weight: weight of a gradient by its policy lag in publishes, such as ``lambda lag: 0.9**lag``. A weight of 0
            leaves a gradient out; if all are left out, the result is zeros.
        keep_rollouts: whether ``Gradient.rollouts`` holds the samples, in place; not for whole episodes.
        on_nonfinite: what to do with a gradient that holds NaN or infinity: ``"raise"``
            :class:`~parenv.GradientError`, or ``"skip"`` it and count it.

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
            _check(one_of, self, "reduction", allowed=get_args(NamedReduction), hint="; or a function")
        _check(one_of, self, "on_nonfinite", allowed=get_args(OnNonfinite))
        _check(at_least, self, "num_arrivals", least=1)
        _check(at_least, self, "batch_size", or_none=True, least=1)
        _check(positive, self, "worker_max_norm", "max_norm", or_none=True)


@dataclass(frozen=True)
class RayPlacement:
    """Workers where a Ray cluster has room for them: Ray decides which node, and finds another when one is lost.

    The cluster is the one that ``ray.init(...)`` has connected this process to, or else the one that a plain
    ``ray.init()`` finds or starts. Each worker host is a Ray actor. Rollouts and weights do not pass through Ray: they
    are encrypted and go through parenv's own connections, with keys made anew for each pool. These keys reach the nodes
    as an argument of the actors and are as safe as the Ray cluster: whoever may run code in it, or read its memory or
    where it stores its state, has them; so has whoever listens to its network, unless Ray is set up with
    ``RAY_USE_TLS=1``.

    The same version of parenv must be installed on every node. Actors, and the workers with them, run at low priority
    (nice 15) unless the nodes were started with ``RAY_worker_niceness=0``.

    Args:
        num_workers: how many workers.
        workers_per_host: how many of them share an actor, and with it a node, the imports and one copy of the weights.
        resources: what a worker takes, as Ray counts it: ``"CPU"``, ``"GPU"``, ``"memory"`` in bytes, or a name of your
            own. An actor asks for that of all its workers.

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
                    f"RayPlacement.resources must be names with amounts of at least 0, got {name!r}: {amount!r}"
                )

    def count_workers(self, num_workers: Any) -> int:
        """How many workers there are: it says so itself."""
        if num_workers not in (None, self.num_workers):
            raise ConfigurationError(
                f"num_workers={num_workers}, but RayPlacement has num_workers={self.num_workers}: leave one out"
            )
        return self.num_workers

    @property
    def shares(self) -> tuple[int, ...]:
        """How many workers each host has."""
        full, rest = divmod(self.num_workers, self.workers_per_host)
        return (self.workers_per_host,) * full + ((rest,) if rest else ())

    def needed(self, share: int) -> dict[str, float]:
        """What a host with so many workers takes."""
        # Ray counts in ten-thousandths.
        return {name: round(float(amount) * share, 4) for name, amount in self.resources.items()}


Placing = RemotePlacement | RayPlacement | None


@dataclass(frozen=True)
class Stop:
    """When a stream ends: at the first criterion that holds. Counted from the start of that stream.

    Args:
        env_steps: env steps delivered.
        episodes: episodes ended.
        mean_return: mean return of the last ``window`` episodes, once there are that many.
        window: episodes over which the mean return is taken.
        seconds: wall-clock seconds.
        evaluation_return: mean return of an evaluation. The stream evaluates nothing itself: call
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
        """Name the first criterion that holds, or ``None``.

        Args:
            env_steps: env steps so far.
            episodes: episodes so far.
            mean_return: mean return over the window, NaN while there are fewer than ``window`` episodes.
            seconds: seconds so far.
            evaluation_return: mean return of the last evaluation, NaN while there is none.
        """
        reached = {
            "env_steps": env_steps >= self.env_steps,
            "episodes": episodes >= self.episodes,
            "mean_return": mean_return >= self.mean_return,
            "seconds": seconds >= self.seconds,
            "evaluation_return": evaluation_return >= self.evaluation_return,
        }
        return next((name for name, holds in reached.items() if holds), None)
