"""The errors parenv raises, in one tree.

::

    ParenvError
    ├── ConfigurationError (ValueError)      yours: an argument is wrong, nothing has started
    │   ├── NotPicklableError                yours: an object cannot travel to a worker
    │   └── PolicyOutputError                yours: what the policy returns does not fit
    ├── GradientError                        yours: a loss or a gradient cannot be learned from
    ├── SubEnvironmentError                  yours: where in which sub-environment an exception began
    │   └── ObservationError                 yours: an observation does not fit its space
    ├── WorkerError                          the world's: a process did not do what it should
    │   ├── WorkerDiedError                  it is gone, with exit code or signal
    │   │   └── HostLostError                its machine is gone, or the connection to it
    │   ├── WorkerTimeoutError               it did not answer in time
    │   ├── WorkerMemoryError                it has likely reached its limit of memory
    │   └── RestartLimitError                it died more often than ``RestartPolicy`` allows
    ├── PolicyLagError                       yours: a publish would break ``max_policy_lag``
    ├── ReplayError                          yours: a replayed run does not do what was recorded
    ├── NotDataError (TypeError)             yours: a value is not plain data
    ├── ProtocolError                        ours: a message that may not be said now, or is malformed
    ├── PoolBusyError                        another thread is using the pool
    └── PoolClosedError                      the pool was closed before

An exception raised inside a sub-environment is raised again in the driver in its own type; its
``__cause__`` is the :class:`SubEnvironmentError` or :class:`WorkerError` that says where it happened and
carries the remote traceback.
"""

from __future__ import annotations

import signal as _signal
from collections.abc import Sequence
from itertools import takewhile
from types import TracebackType


class ParenvError(Exception):
    """Base class of every error that parenv itself raises.

    >>> issubclass(ConfigurationError, ParenvError)
    True
    """


class ConfigurationError(ParenvError, ValueError):
    """An argument is wrong; nothing has been started and nothing is lost.

    >>> from parenv import Stop
    >>> Stop(env_steps=0)
    Traceback (most recent call last):
    parenv.errors.ConfigurationError: Stop.env_steps must be positive, got 0
    """


class NotPicklableError(ConfigurationError):
    """An object that must travel to the workers cannot be pickled; the message names the offending part.

    >>> import threading
    >>> from parenv import AsyncWorkerPool
    >>> lock = threading.Lock()
    >>> AsyncWorkerPool("CartPole-v1", lambda observations: (lock, observations)[1], num_workers=1)
    Traceback (most recent call last):
    parenv.errors.NotPicklableError: ...
    """


class PolicyOutputError(ConfigurationError):
    """What the policy returned does not fit the action space or the layout of the rollout.

    >>> from parenv import AsyncWorkerPool
    >>> AsyncWorkerPool("CartPole-v1", lambda observations: observations, num_workers=0)
    Traceback (most recent call last):
    parenv.errors.PolicyOutputError: ...
    """


class GradientError(ParenvError):
    """A ``loss_fn`` returned nothing that has a gradient, or the gradient is not finite.

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
    """Where an exception in a worker happened.

    Attributes:
        worker: index of the worker.
        env_id: index of the sub-environment in the whole pool, or ``None`` where none was at work.
        doing: what it was doing, such as ``"step"``.
        remote_traceback: the traceback in the worker, as text.

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
        return f"{message}\n\n{_without_message(self.remote_traceback)}" if self.remote_traceback else message


class ObservationError(SubEnvironmentError):
    """A sub-environment returned an observation whose shape, dtype or structure is not that of its space.

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
    """A worker process failed.

    Attributes:
        worker: index of the worker.
        env_ids: the sub-environments it was stepping.
        pid: its process id.
        doing: what it was doing, as far as shared memory tells.

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
    """A worker process ended without being asked to.

    Attributes:
        exit_code: its exit code, or ``None`` where a signal ended it.
        signal: the number of the signal that ended it, or ``None``.

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
    """A worker on another machine is gone with its host: the host ended, or the connection to it.

    >>> print(HostLostError("the connection to node1 ended", worker=1, env_ids=[2, 3], pid=4321, doing="step"))
    worker 1 (pid 4321, env_ids 2-3) is lost during env.step(): the connection to node1 ended.
    """

    def __init__(self, host: str, *, worker: int, env_ids: Sequence[int], pid: int, doing: str) -> None:
        super().__init__(worker=worker, env_ids=env_ids, pid=pid, doing=doing)
        self.args = (f"worker {worker} (pid {pid}, env_ids {span(env_ids)}) is lost {during(doing)}: {host}.",)


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker did not answer within its limit.

    >>> issubclass(WorkerTimeoutError, TimeoutError)
    True
    """


class WorkerMemoryError(WorkerError, MemoryError):
    """A worker has likely reached ``WorkerOptions.max_memory_bytes``.

    >>> issubclass(WorkerMemoryError, MemoryError)
    True
    """


class RestartLimitError(WorkerError):
    """A worker has died, or had to be ended, more often than its ``RestartPolicy`` allows.

    Attributes:
        deaths: why, each time, in order; of thousands the last.

    >>> deaths = [WorkerDiedError(worker=1, env_ids=[2, 3], pid=pid, doing="step", signal=9) for pid in (4321, 4330)]
    >>> error = RestartLimitError(1, [2, 3], deaths)
    >>> error.worker, len(error.deaths)
    (1, 2)
    """

    def __init__(self, worker: int, env_ids: Sequence[int], deaths: Sequence[Exception]) -> None:
        listed = "\n".join(f"{number}. {_named(death)}" for number, death in enumerate(deaths, 1))
        super().__init__(
            f"worker {worker} (env_ids {span(env_ids)}) has died {len(deaths)} times, more often than RestartPolicy "
            f"allows:\n{listed}",
            worker=worker,
            env_ids=env_ids,
        )
        self.deaths = tuple(deaths)


class PolicyLagError(ParenvError):
    """Publishing now would make rollouts that are under way older than ``max_policy_lag`` allows.

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
    """A run with ``replay`` does something else than the recorded one.

    Attributes:
        rollout: number of the first rollout that differs, counted from 0, or of the one that was to come.

    >>> ReplayError("rollout 3 has other rewards than were recorded", rollout=3).rollout
    3
    """

    def __init__(self, message: str, *, rollout: int = -1) -> None:
        super().__init__(message)
        self.rollout = rollout


class NotDataError(ParenvError, TypeError):
    """A value is not plain data, so that it can neither travel from a worker nor be saved in a checkpoint.

    Nothing that a worker sends, and nothing in a file, is ever unpickled.

    >>> from parenv import save_checkpoint
    >>> save_checkpoint("run.ckpt", {"agent": object()})
    Traceback (most recent call last):
    parenv.errors.NotDataError: value['agent'] is a builtins.object, which is not plain data. ...
    """


class ProtocolError(ParenvError):
    """A message was malformed, of another protocol version, or not allowed in the present state.

    >>> issubclass(ProtocolError, ParenvError)
    True
    """


class PoolBusyError(ParenvError):
    """Another thread is using the pool: one pool, one thread.

    >>> issubclass(PoolBusyError, ParenvError)
    True
    """


class PoolClosedError(ParenvError):
    """The pool is closed.

    >>> from parenv import AsyncWorkerPool
    >>> pool = AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0, num_workers=0)
    >>> pool.close()
    >>> next(pool.rollouts())
    Traceback (most recent call last):
    parenv.errors.PoolClosedError: the pool is closed
    """


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this package, which say nothing of what the user has done."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    kept = None
    for one in reversed(frames):
        if str(one.tb_frame.f_globals.get("__name__", "")).partition(".")[0] != "parenv":
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


def _without_message(trace: str) -> str:
    """A traceback as text up to its last frame: the exception that it belongs to repeats type and message."""
    before, header, last = trace.rpartition("Traceback (most recent call last):\n")
    frames = takewhile(lambda line: line.startswith(" "), last.splitlines(keepends=True))
    return f"{before}{header}{''.join(frames).rstrip()}" if header else trace


def span(env_ids: Sequence[int]) -> str:
    """Write sorted, adjacent env_ids as a range.

    >>> span([4, 5, 6]), span([7]), span([])
    ('4-6', '7', 'none')
    """
    if not env_ids:
        return "none"
    return str(env_ids[0]) if len(env_ids) == 1 else f"{env_ids[0]}-{env_ids[-1]}"


def _named(error: Exception) -> str:
    """An error as text, with its type where its text does not say what happened."""
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
    """Say in a sentence what a worker was doing, given as its status is: a code, perhaps with an env_id.

    >>> during("step of env_id 3"), during("loss_fn")
    ('during env.step() of env_id 3', 'in loss_fn')
    """
    code, of, env_id = doing.partition(" of env_id ")
    return _PHRASES.get(code, f"while doing: {code}") + of + env_id


def describe_exit(exit_code: int | None, signal: int | None) -> str:
    """Say in words how a process ended.

    >>> describe_exit(3, None), describe_exit(None, 9)
    ('exited with code 3', 'was killed by SIGKILL')
    """
    if signal is None:
        return "is gone" if exit_code is None else f"exited with code {exit_code}"
    try:
        name = _signal.Signals(signal).name
    except ValueError:
        name = f"signal {signal}"
    return f"was killed by {name}"


def _likely_cause(exit_code: int | None, signal: int | None) -> str:
    if signal == _signal.SIGKILL:
        return "SIGKILL usually means the kernel ran out of memory (see dmesg), or somebody's kill -9."
    if signal in (_signal.SIGSEGV, _signal.SIGBUS, _signal.SIGABRT, _signal.SIGILL, _signal.SIGFPE):
        return "Native code crashed: run with num_workers=0 under a debugger to find where."
    if signal is None and exit_code is not None:
        return "Something called os._exit or sys.exit: look in the environment and the libraries under it."
    return "Run with num_workers=0 to see it happen in this process."
