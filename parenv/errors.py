"""Errors that parenv raises, in one tree.

::

    ParenvError
    ├── ConfigurationError (ValueError)      an argument is wrong
    │   ├── NotPicklableError                an object cannot be sent to a worker
    │   └── PolicyOutputError                the policy's output does not fit
    ├── GradientError                        a loss or a gradient cannot be used
    ├── SubEnvironmentError                  origin of an exception in a worker
    │   └── ObservationError                 an observation does not fit its space
    ├── WorkerError                          a worker process failed
    │   ├── WorkerDiedError                  the process ended
    │   │   └── HostLostError                its machine or the connection is lost
    │   ├── WorkerTimeoutError               the process did not answer in time
    │   ├── WorkerMemoryError                the process has reached its memory limit
    │   └── RestartLimitError                a worker died too often
    ├── SessionLostError                     a session of a SessionPool has lost its environment
    ├── PolicyLagError                       a publish would exceed max_policy_lag
    ├── ReplayError                          a replayed run differs from the recorded one
    ├── NotDataError (TypeError)             a value is not plain data
    ├── ProtocolError                        a message is malformed or not allowed
    ├── PoolBusyError                        another thread uses the pool
    └── PoolClosedError                      the pool is closed

parenv raises an exception of a sub-environment again in the main process, in its own type. Its ``__cause__`` is a
:class:`SubEnvironmentError` or a :class:`WorkerError`, which contains its origin and the remote traceback.
"""

from __future__ import annotations

import signal as _signal
from collections.abc import Sequence
from itertools import takewhile
from traceback import extract_tb
from types import TracebackType
from typing import Any


class ParenvError(Exception):
    """Base class of all errors of parenv.

    >>> issubclass(ConfigurationError, ParenvError)
    True
    """


class ConfigurationError(ParenvError, ValueError):
    """Raised if an argument is wrong. Nothing has been started or lost.

    The message contains the argument, its value and the fix.

    >>> from parenv import Stop
    >>> Stop(env_steps=0)
    Traceback (most recent call last):
    parenv.errors.ConfigurationError: Stop.env_steps must be positive, got 0
    """


class NotPicklableError(ConfigurationError):
    """Raised if an object that must be sent to workers cannot be pickled.

    The message names the part. Create it in the worker, for example in the environment's constructor.

    >>> import threading
    >>> from parenv import AsyncWorkerPool
    >>> lock = threading.Lock()
    >>> AsyncWorkerPool("CartPole-v1", lambda observations: (lock, observations)[1], num_workers=1)
    Traceback (most recent call last):
    parenv.errors.NotPicklableError: ...
    """


class PolicyOutputError(ConfigurationError):
    """Raised if the policy's output does not fit the action space or the layout of the rollout.

    The message contains shape and dtype of both. Change the policy's return value.

    >>> from parenv import AsyncWorkerPool
    >>> AsyncWorkerPool("CartPole-v1", lambda observations: observations, num_workers=0)
    Traceback (most recent call last):
    parenv.errors.PolicyOutputError: ...
    """


class GradientError(ParenvError):
    """Raised if the result of ``loss_fn`` has no gradient, or if the gradient is not finite.

    Return a loss that depends on the policy's parameters. ``GradientOptions(on_nonfinite="skip")`` leaves out gradients
    with NaN or infinity.

    >>> import torch
    >>> from parenv import AsyncWorkerPool, TorchPolicy
    >>> class Network(torch.nn.Linear):
    ...     def act(self, observations):
    ...         return self(observations).argmax(-1)
    >>> def loss_fn(policy, rollout):
    ...     return torch.zeros(())
    >>> policy, kind = TorchPolicy(Network(4, 2), "act", ("actions",)), {"mode": "sync", "parallelism": "gradient"}
    >>> with AsyncWorkerPool("CartPole-v1", policy, num_workers=0, loss_fn=loss_fn, **kind) as pool:
    ...     next(pool.gradients())
    Traceback (most recent call last):
    parenv.errors.GradientError: ...
    """


class SubEnvironmentError(ParenvError):
    """Origin of an exception in a worker, as the ``__cause__`` of this exception.

    The cause is in the code of the sub-environment, the policy or a callback. ``remote_traceback`` names the line.

    Attributes:
        worker: Index of the worker.
        env_id: Index of the sub-environment in the whole pool, or ``None`` if no sub-environment was involved.
        doing: Activity of the worker, such as ``"step"``.
        remote_traceback: Traceback in the worker, as text.

    >>> import gymnasium as gym
    >>> from parenv import AsyncWorkerPool
    >>> class Faulty(gym.Wrapper):
    ...     def step(self, action):
    ...         raise RuntimeError("no fuel")
    >>> try:
    ...     with AsyncWorkerPool(lambda: Faulty(gym.make("CartPole-v1")), lambda o: o[:, 2] > 0, num_workers=0) as pool:
    ...         next(pool.rollouts())
    ... except RuntimeError as error:
    ...     print(error, error.__cause__.env_id, error.__cause__.doing)
    no fuel 0 step
    """

    _shown_with: int | None = None

    def __init__(
        self, message: str, *, worker: int = -1, env_id: int | None = None, doing: str = "", remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.env_id = env_id
        self.doing = doing
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        message = super().__str__()
        if self._shown_with is not None:
            return f"{message}, with the traceback of env_id {self._shown_with}"
        return f"{message}\n\n{_without_message(self.remote_traceback)}" if self.remote_traceback else message


class ObservationError(SubEnvironmentError):
    """Raised if shape, dtype or structure of an observation differ from those of the observation space.

    Change the environment's observation space, or wrap the environment.

    >>> import gymnasium as gym
    >>> from parenv import AsyncWorkerPool
    >>> class Short(gym.Wrapper):
    ...     def step(self, action):
    ...         observation, *rest = self.env.step(action)
    ...         return observation[:2], *rest
    >>> with AsyncWorkerPool(lambda: Short(gym.make("CartPole-v1")), lambda o: o[:, 2] > 0, num_workers=0) as pool:
    ...     next(pool.rollouts())
    Traceback (most recent call last):
    parenv.errors.ObservationError: ...
    """


class WorkerError(ParenvError):
    """Base class of errors of worker processes.

    Attributes:
        worker: Index of the worker.
        env_ids: Indices of its sub-environments.
        pid: Process id.
        doing: Last activity that the worker has written to shared memory, such as ``"step"``.

    >>> error = WorkerError("worker 1 failed", worker=1, env_ids=[2, 3], pid=4321, doing="step")
    >>> error.worker, error.env_ids
    (1, (2, 3))
    """

    def __init__(
        self, message: str, *, worker: int = -1, env_ids: Sequence[int] = (), pid: int = -1, doing: str = ""
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.env_ids = tuple(env_ids)
        self.pid = pid
        self.doing = doing


class WorkerDiedError(WorkerError):
    """Raised if a worker process ends unexpectedly.

    The message contains the likely cause. ``RestartPolicy`` decides whether a new process replaces the worker.

    Attributes:
        exit_code: Exit code, or ``None`` if a signal ended the process.
        signal: Number of the signal that ended the process, or ``None``.

    >>> print(WorkerDiedError(worker=1, env_ids=[2, 3], pid=4321, doing="step", signal=11))
    worker 1 (pid 4321, env_ids 2-3) was killed by SIGSEGV during env.step(). Native code crashed: ...
    """

    def __init__(
        self,
        *,
        worker: int,
        env_ids: Sequence[int],
        pid: int,
        doing: str,
        exit_code: int | None = None,
        signal: int | None = None,
    ) -> None:
        message = (
            f"worker {worker} (pid {pid}, env_ids {span(env_ids)}) {describe_exit(exit_code, signal)} "
            f"{during(doing)}. "
            f"{_likely_cause(exit_code, signal)}"
        )
        super().__init__(message, worker=worker, env_ids=env_ids, pid=pid, doing=doing)
        self.exit_code = exit_code
        self.signal = signal


class HostLostError(WorkerDiedError):
    """Raised if a worker on another machine is lost because its host or the connection has ended.

    Check that ``parenv worker`` runs on the host and that the network is up.

    >>> print(HostLostError("the connection to node1 ended", worker=1, env_ids=[2, 3], pid=4321, doing="step"))
    worker 1 (pid 4321, env_ids 2-3) is lost during env.step(): the connection to node1 ended.
    """

    def __init__(self, host: str, *, worker: int, env_ids: Sequence[int], pid: int, doing: str) -> None:
        super().__init__(worker=worker, env_ids=env_ids, pid=pid, doing=doing)
        self.args = (f"worker {worker} (pid {pid}, env_ids {span(env_ids)}) is lost {during(doing)}: {host}.",)


class WorkerTimeoutError(WorkerError, TimeoutError):
    """Raised if a worker does not answer within its time limit.

    Increase the limit, such as ``WorkerOptions(step_timeout_s=...)``, if the environment or the policy is only slow.

    >>> issubclass(WorkerTimeoutError, TimeoutError)
    True
    """


class WorkerMemoryError(WorkerError, MemoryError):
    """Raised if a worker has likely reached ``WorkerOptions.max_memory_bytes``.

    Increase the limit, or look for a memory leak in the environment.

    >>> issubclass(WorkerMemoryError, MemoryError)
    True
    """


class RestartLimitError(WorkerError):
    """Raised if a worker has died or was killed more often than its ``RestartPolicy`` allows.

    Fix the cause of the deaths, or allow more of them with ``RestartPolicy(max_restarts=...)``.

    Attributes:
        deaths: Errors of the deaths, in order. Only the last ones are kept. Empty for the death of a process of
            ``step_workers``, whose errors are in the message only.

    >>> deaths = [WorkerDiedError(worker=1, env_ids=[2, 3], pid=pid, doing="step", signal=9) for pid in (4321, 4330)]
    >>> error = RestartLimitError(1, [2, 3], deaths)
    >>> error.worker, len(error.deaths)
    (1, 2)
    """

    # An error that another process has raised is made again without its constructor.
    deaths: tuple[Exception, ...] = ()

    def __init__(self, worker: int, env_ids: Sequence[int], deaths: Sequence[Exception]) -> None:
        listed = "\n".join(f"{number}. {_named(death)}" for number, death in enumerate(deaths, 1))
        super().__init__(
            f"worker {worker} (env_ids {span(env_ids)}) has died {len(deaths)} times, more often than RestartPolicy "
            f"allows:\n{listed}",
            worker=worker,
            env_ids=env_ids,
        )
        self.deaths = tuple(deaths)


class SessionLostError(ParenvError):
    """Raised in a session whose environment is lost. The pool replaces the environment, and other sessions continue.

    Begin another session to repeat the work. The ``__cause__`` is the error of the worker process, if it has ended.

    Attributes:
        session: Number of the session.
        reason: ``"worker_died"``, ``"step_timeout"``, ``"host_lost"``, ``"lease_over"``, ``"pool_closed"`` or
            ``"restarted"``.

    >>> SessionLostError("session 3 is lost", session=3, reason="lease_over").reason
    'lease_over'
    """

    def __init__(self, message: str, *, session: int = -1, reason: str = "") -> None:
        super().__init__(message)
        self.session = session
        self.reason = reason


class PolicyLagError(ParenvError):
    """Raised if a publish would make rollouts in progress older than ``max_policy_lag`` allows.

    Consume rollouts before the next publish, or increase ``max_policy_lag``.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=1, rollout_length=4, max_policy_lag=1) as pool:
    ...     rollout = next(pool.rollouts())
    ...     for _ in range(9):
    ...         version = pool.publish(lean)
    Traceback (most recent call last):
    parenv.errors.PolicyLagError: ...
    """


class ReplayError(ParenvError):
    """Raised if a run with ``replay`` differs from the recorded run.

    The environment, the policy or the arguments have changed, or one of them is not deterministic.

    Attributes:
        rollout: Number of the first rollout that differs or is missing, counted from 0.

    >>> ReplayError("rollout 3 has other rewards than were recorded", rollout=3).rollout
    3
    """

    def __init__(self, message: str, *, rollout: int = -1) -> None:
        super().__init__(message)
        self.rollout = rollout


class NotDataError(ParenvError, TypeError):
    """Raised if a value is not plain data, so that a worker cannot send it and a checkpoint cannot contain it.

    parenv never unpickles messages or files. Convert the value to numbers, texts, arrays, tensors, lists or dicts.

    >>> from parenv import save_checkpoint
    >>> save_checkpoint("run.ckpt", {"agent": object()})
    Traceback (most recent call last):
    parenv.errors.NotDataError: value['agent'] is a builtins.object, which is not plain data. ...
    """


class ProtocolError(ParenvError):
    """Raised if a message is malformed, has another protocol version, or is not allowed in the present state.

    Check that all machines have the same version of parenv. Otherwise, this is a bug in parenv.

    >>> issubclass(ProtocolError, ParenvError)
    True
    """


class PoolBusyError(ParenvError):
    """Raised if another thread uses the pool. Only one thread can use a pool at a time.

    >>> issubclass(PoolBusyError, ParenvError)
    True
    """


class PoolClosedError(ParenvError):
    """Raised if the pool is closed. Make a new pool.

    >>> from parenv import AsyncWorkerPool
    >>> pool = AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0, num_workers=0)
    >>> pool.close()
    >>> next(pool.rollouts())
    Traceback (most recent call last):
    parenv.errors.PoolClosedError: the pool is closed
    """


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of parenv, which do not help users to find their error."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = None
    for one in reversed(frames):
        if str(one.tb_frame.f_globals.get("__name__", "")).partition(".")[0] != "parenv":
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


def trace_elsewhere(error: BaseException) -> str:
    """Return the traceback of an exception that was raised in another interpreter of this worker, or an empty text."""
    cause = error.__cause__
    return cause.remote_traceback if isinstance(cause, SubEnvironmentError) and cause.worker < 0 else ""


def shorten(error: BaseException) -> None:
    """Shorten the traceback of an exception, unless it may be a bug of this package.

    Frames of the user stay, such as those of an environment in this process, and so do causes. The context is hidden,
    such as the end of a worker that was killed because of this exception.
    """
    said = (ParenvError, BaseExceptionGroup)
    if (isinstance(error, said) or isinstance(error.__cause__, said)) and not isinstance(error, ProtocolError):
        error.__suppress_context__ = True
        error.__traceback__ = without_own_frames(error.__traceback__)


def show_each_traceback_once(errors: Sequence[BaseException]) -> None:
    """Shorten the texts of exceptions that will be shown together, of which many often come from the same line."""
    shown: dict[Any, int | None] = {}
    for error in errors:
        error.__traceback__ = without_own_frames(error.__traceback__) or error.__traceback__
        cause = error.__cause__
        if not isinstance(cause, SubEnvironmentError):
            continue
        frames = _without_message(cause.remote_traceback) or [str(one) for one in extract_tb(error.__traceback__)]
        first = shown.setdefault(str(frames), cause.env_id)
        if first != cause.env_id:
            error.__traceback__, cause._shown_with = None, first


def _without_message(trace: str) -> str:
    """Return a traceback as text up to its last frame. Type and message are printed with the exception."""
    before, header, last = trace.rpartition("Traceback (most recent call last):\n")
    frames = takewhile(lambda line: line.startswith(" "), last.splitlines(keepends=True))
    return f"{before}{header}{''.join(frames).rstrip()}" if header else trace


def embedded(text: object) -> str:
    """Return a sentence of another error for use inside a sentence, without its full stop.

    >>> f"The id must be registered: {embedded(KeyError('no module.'))}. Import the package."
    "The id must be registered: 'no module.'. Import the package."
    >>> f"The id must be registered: {embedded(ValueError('it does not exist.'))}. Import the package."
    'The id must be registered: it does not exist. Import the package.'
    """
    return str(text).rstrip().rstrip(".")


def span(env_ids: Sequence[int]) -> str:
    """Return sorted, adjacent env_ids as a range.

    >>> span([4, 5, 6]), span([7]), span([])
    ('4-6', '7', 'none')
    """
    if not env_ids:
        return "none"
    return str(env_ids[0]) if len(env_ids) == 1 else f"{env_ids[0]}-{env_ids[-1]}"


def _named(error: Exception) -> str:
    """Return an error as text. A worker's error is complete without its type."""
    return str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"


_PHRASES = {
    "starting": "while starting",
    "waiting": "while waiting for work",
    "setup_fn": "in setup_fn",
    "making the environment": "while making the environment",
    "reset": "during env.reset()",
    "step": "during env.step()",
    "act": "while the policy chose actions",
    "postprocess": "in postprocess",
    "loss_fn": "in loss_fn",
    "call": "while calling a method",
    "evaluate": "during an evaluation",
    "loading the policy": "while loading weights",
    "closing": "while closing",
    "commit": "while writing a rollout",
    "waiting for a host": "while waiting for a host",
    "measuring a step": "while measuring a step",
    "learn": "in learn",
    "fitness": "in fitness",
}


def during(doing: str) -> str:
    """Return the words for an activity, given as a code with or without an env_id.

    >>> during("step of env_id 3"), during("loss_fn")
    ('during env.step() of env_id 3', 'in loss_fn')
    """
    code, of, env_id = doing.partition(" of env_id ")
    return _PHRASES.get(code, f"while doing: {code}") + of + env_id


def describe_exit(exit_code: int | None, signal: int | None) -> str:
    """Return the words for the end of a process.

    >>> describe_exit(3, None), describe_exit(None, 9)
    ('exited with code 3', 'was killed by SIGKILL')
    """
    if signal is None:
        return "is gone" if exit_code is None else f"exited with code {exit_code}"
    return f"was killed by {signal_name(signal)}"


def signal_name(signal: int) -> str:
    """Return the name of a signal, as far as this system has it.

    >>> signal_name(15), signal_name(1000)
    ('SIGTERM', 'signal 1000')
    """
    try:
        return _signal.Signals(signal).name
    except ValueError:
        return f"signal {signal}"


_CRASHES = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"}


def _likely_cause(exit_code: int | None, signal: int | None) -> str:
    name = "" if signal is None else signal_name(signal)
    if name == "SIGKILL":
        return "SIGKILL usually means that the kernel ran out of memory (see dmesg), or that a user ran kill -9."
    if name in _CRASHES:
        return "Native code crashed: run with num_workers=0 under a debugger to find where."
    if signal is None and exit_code is not None:
        return "The environment or one of its libraries has called os._exit or sys.exit."
    return "Run with num_workers=0 to find the cause in this process."
