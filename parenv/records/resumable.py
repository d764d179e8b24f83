"""Runs that save their state, leave on a signal of the scheduler, and continue at the next start."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from parenv.argument_checks import at_least, positive
from parenv.envs.seeding import random_state, set_random_state
from parenv.errors import ConfigurationError, WorkerError
from parenv.experience.summary import Summarized
from parenv.platform import system
from parenv.policy.assignment import UNNAMED
from parenv.policy.snapshots import module_of
from parenv.pool.state import pool_state, resume_pool
from parenv.pool.stream_counts import StreamCounts, StreamLog
from parenv.process.cores import this_learner
from parenv.records.noted_signals import NotedSignals
from parenv.records.run_folder import RunFolder

if TYPE_CHECKING:
    from parenv.pool.pool import AsyncWorkerPool
    from parenv.pool.pool_session import PoolSession

FORMAT = 1
MAX_EXIT_CODE = 255
EX_TEMPFAIL = 75
"""Exit code of ``sysexits.h`` for a failure that passes, as ``os.EX_TEMPFAIL``, which Windows lacks."""
_KIND = "parenv run"
_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"), ("getstate", "setstate"))
_log = logging.getLogger("parenv")


def resumable(
    folder: str | os.PathLike[str],
    *,
    pool: AsyncWorkerPool[Any] | None = None,
    state: Mapping[str, Any] | None = None,
    every_s: float = 600.0,
    keep: int = 3,
    signals: Collection[int] = system.PREEMPTION_SIGNALS,
    exit_code: int = EX_TEMPFAIL,
) -> ResumableRun:
    """Return a run that survives preemption: it saves itself, and the next start of the same program continues it.

    Enter the run with ``with``, and call :meth:`ResumableRun.step` at the end of each iteration. The random states of
    Python, numpy and torch are saved too. With ``mode="sync"`` the continued run is bitwise identical to a run without
    interruption, if the environments have ``get_state`` and ``set_state``.

    Args:
        folder: Folder for the checkpoints of this run. A missing folder is made.
        pool: New pool with a ``seed``. It continues with its newest policy version. The criteria of its streams count
            from the beginning of the whole run.
        state: Objects to save and restore, by name: modules, optimizers and others with ``state_dict`` and
            ``load_state_dict``, random generators, and dicts of plain data.
        every_s: Seconds between two checkpoints. Default: 10 minutes.
        keep: Number of checkpoints to keep.
        signals: Signals that make the run save and exit at its next step. Default: SIGTERM and SIGUSR1.
        exit_code: Exit code after such a signal, from 1 to 255. Default: 75, ``os.EX_TEMPFAIL``.

    Raises:
        ConfigurationError: An argument is wrong.

    >>> import tempfile
    >>> from parenv import AsyncWorkerPool, Stop
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> def train(folder, env_steps):
    ...     counts = {"updates": 0}
    ...     with (
    ...         AsyncWorkerPool("CartPole-v1", lean, num_workers=0, rollout_length=100, seed=1) as pool,
    ...         resumable(folder, pool=pool, state={"counts": counts}) as run,
    ...     ):
    ...         for rollout in pool.rollouts(Stop(env_steps=env_steps)):
    ...             counts["updates"] += 1
    ...             run.step()
    ...     return counts["updates"], run.steps
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     train(folder, 300), train(folder, 500)
    ((3, 3), (5, 5))
    """
    _check_learners()
    positive("every_s", every_s, " seconds")
    _check_pool(pool)
    return ResumableRun(
        RunFolder(Path(folder), at_least("keep", keep, 1)),
        pool,
        _checked_state(state),
        float(every_s),
        NotedSignals(signals),
        _checked_exit_code(exit_code),
    )


class ResumableRun(Summarized):
    """Run of :func:`resumable`, to enter with ``with``.

    Args:
        folder: Folder of the checkpoints.
        pool: Pool, or ``None``.
        state: Objects to save by name.
        every_s: Seconds between two checkpoints.
        signals: Signals that make the run exit.
        exit_code: Exit code after a signal.

    Attributes:
        steps: Number of calls of :meth:`step` since the beginning of the whole run.
        missing: Sentences about everything that could not be restored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with resumable(folder) as run:
    ...         run.step()
    ...     with resumable(folder) as run:
    ...         run.step()
    >>> run.steps
    2
    """

    def __init__(
        self,
        folder: RunFolder,
        pool: AsyncWorkerPool[Any] | None,
        state: Mapping[str, Any],
        every_s: float,
        signals: NotedSignals,
        exit_code: int,
    ) -> None:
        self._folder, self._pool, self._state = folder, pool, state
        self._every_s, self._signals, self._exit_code = every_s, signals, exit_code
        self._due_s = 0.0
        self.steps = 0
        self.missing: list[str] = []

    def step(self) -> None:
        """End an iteration. Save the run if it is time, and save it and exit if a signal has arrived.

        Call it when the policy of this iteration has been published, in the thread that iterates over the pool.

        Raises:
            SystemExit: A signal has arrived. The run is saved.
            ConfigurationError: The run is not entered.
            NotDataError: The state contains something else than plain data, arrays and tensors.
            OSError: The checkpoint cannot be written. All earlier ones are as they were.
        """
        if not self._folder.is_locked:
            raise ConfigurationError("run.step() must be called inside `with resumable(...) as run`. Move it there.")
        self.steps += 1
        if self._signals.first is not None:
            self._leave()
        if time.monotonic() >= self._due_s:
            self._save()

    def __enter__(self) -> Self:
        """Lock the folder, and continue from its newest checkpoint, or save the state at the beginning."""
        self._signals.check_thread()
        if self._pool is not None and self._pool._session.log is not None:
            raise ConfigurationError(
                "pool must belong to one run at a time, got the pool of another run. Make another pool."
            )
        try:
            self._folder.lock()
            found = self._folder.newest()
            if found is None:
                self._keep_log(StreamLog())
                self._save()
            else:
                self._restore(found)
            self._due_s = time.monotonic() + self._every_s
            self._signals.__enter__()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save the end of the run, unless an exception ends it."""
        try:
            if error is not None and self._signals.first is not None and _are_lost_workers(error):
                # A scheduler may send its signal to the workers too. That is no fault of the run.
                self._exit(f"not saved, so that its last checkpoint stays ({error})")
            if kind is None and self._folder.is_locked and not (self._pool is not None and self._pool.closed):
                if self._signals.first is not None:
                    self._leave()
                self._save()
        finally:
            self._end()

    def _facts(self) -> dict[str, Any]:
        return {"folder": repr(str(self._folder.path)), "steps": self.steps, "missing": len(self.missing)}

    def _leave(self) -> None:
        """Save the run and exit, because a signal has arrived."""
        try:
            saved = f"saved in {self._save()}"
        except Exception as error:
            if not _are_lost_workers(error):
                raise
            saved = f"not saved, so that its last checkpoint stays ({error})"
        self._exit(saved)

    def _exit(self, saved: str) -> None:
        name = getattr(self._signals.first, "name", "a signal")
        _log.warning("%s has arrived: the run is %s, and this process exits with code %d", name, saved, self._exit_code)
        raise SystemExit(self._exit_code)

    def _save(self) -> Path:
        data: dict[str, Any] = {
            _KIND: FORMAT,
            "steps": self.steps,
            "state": {name: _state_of(value) for name, value in self._state.items()},
            "random": [random_state(), _cuda_random_states()],
            "pool": None,
        }
        if self._pool is not None:
            with self._pool._using() as session:
                assert session.log is not None
                policies = session.versions.weights_of(session.versions.newest)
                data["pool"] = {"state": pool_state(session), "policies": policies, "streams": session.log.state()}
        path = self._folder.save(self.steps, data)
        self._due_s = time.monotonic() + self._every_s
        return path

    def _restore(self, found: Any) -> None:
        self._check(found)
        for name, value in self._state.items():
            _set_state(value, found["state"][name])
        if self._pool is not None:
            with self._pool._using() as session:
                policies, self.missing = _policies(session, found["pool"], list(self._state.values()))
                self.missing += resume_pool(session, found["pool"]["state"], policies)
            self._keep_log(StreamLog(map(StreamCounts.from_state, found["pool"]["streams"])))
        self.steps = found["steps"]
        _set_random_states(*found["random"])

    def _check(self, found: Any) -> None:
        folder = self._folder.path
        if not isinstance(found, Mapping) or found.get(_KIND) != FORMAT:
            raise ConfigurationError(f"{folder} contains checkpoints of another kind of run. Choose another folder.")
        if self._state.keys() != found["state"].keys():
            raise ConfigurationError(
                f"state must have the names of the run in {folder}, {list(found['state'])}, got {list(self._state)}. "
                "Pass the same state, or choose another folder."
            )
        if (self._pool is None) != (found["pool"] is None):
            had = "no pool" if found["pool"] is None else "a pool"
            raise ConfigurationError(f"the run in {folder} was saved with {had}. Pass the same pool= as then.")

    def _keep_log(self, log: StreamLog | None) -> None:
        if self._pool is not None:
            self._pool._session.log = log

    def _end(self) -> None:
        self._signals.__exit__()
        self._keep_log(None)
        self._folder.unlock()


def _check_learners() -> None:
    learners = this_learner().world_size
    if learners > 1:
        raise ConfigurationError(
            f"resumable must be used with one learner, got {learners} learners. Save and load the state of each "
            "learner with save_checkpoint and load_checkpoint."
        )


def _checked_exit_code(exit_code: Any) -> int:
    if at_least("exit_code", exit_code, 1) > MAX_EXIT_CODE:
        raise ConfigurationError(f"exit_code must be at most {MAX_EXIT_CODE}, got {exit_code}. Leave it out for 75.")
    return int(exit_code)


def _check_pool(pool: Any) -> None:
    if pool is None:
        return
    if not hasattr(pool, "rollouts"):
        raise ConfigurationError(f"pool must be an AsyncWorkerPool, got {pool!r}. Pass other objects in state=.")
    if pool._session.plan.given.seed is None:
        raise ConfigurationError(
            "pool must have a seed, so that the next start makes the same pool, got seed=None. Pass "
            "AsyncWorkerPool(..., seed=0)."
        )
    if pool._session.plan.recorder.orders:
        raise ConfigurationError(
            "pool must not record or replay the run, because a recording has only a part of a continued run. Leave out "
            "record= and replay=, or resumable."
        )


def _checked_state(state: Any) -> dict[str, Any]:
    if not isinstance(state, Mapping | None):
        raise ConfigurationError(f'state must be a dict such as {{"agent": agent}}, got {state!r}.')
    for name, value in (state or {}).items():
        if not isinstance(name, str):
            raise ConfigurationError(f'state must have strings as keys, got {name!r}. Write {{"agent": agent}}.')
        if hasattr(value, "rollouts"):
            raise ConfigurationError(f"state[{name!r}] must not be a pool. Pass it as pool=.")
        if not isinstance(value, dict | np.random.Generator) and _methods(value) is None:
            raise ConfigurationError(
                f"state[{name!r}] must have state_dict() and load_state_dict(), got {value!r}. "
                f'Put plain values into a dict: state={{"values": {{{name!r}: ...}}}}.'
            )
    return dict(state or {})


def _methods(value: Any) -> tuple[str, str] | None:
    """Return the names of the methods that get and set the state of an object, or ``None``."""
    return next((pair for pair in _METHODS if all(callable(getattr(value, name, None)) for name in pair)), None)


def _state_of(value: Any) -> Any:
    methods = _methods(value)
    # Dicts and generators of numpy are plain data.
    return value if methods is None else getattr(value, methods[0])()


def _set_state(value: Any, found: Any) -> None:
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = found.bit_generator.state
    elif (methods := _methods(value)) is not None:
        getattr(value, methods[1])(found)
    else:
        value.clear()
        value.update(found)


def _policies(session: PoolSession, found: Mapping[str, Any], states: list[Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the policies of the newest version by name, and sentences about those that cannot be restored.

    A policy without a module is not saved, because it would be pickled. If the user restores it, it is sent again.
    """
    job, weights, missing = session.plan.job, found["policies"], list[str]()
    given = dict(weights) if job.is_named else {UNNAMED: weights} if weights else {}
    for name, policy in job.policies.items():
        if module_of(policy) is None:
            if any(policy is one for one in states):
                given[name] = policy
            elif _version_of(name, found["state"]) > 0:
                missing.append(
                    f"the published version of {f'policy {name!r}' if name else 'the policy'}, which has no torch "
                    "module. Put the policy into state=, or publish it before the loop."
                )
    for words in missing:
        _log.warning("not restored: %s", words)
    return given, missing


def _version_of(policy: str, state: Mapping[str, Any]) -> int:
    """Return the newest version of a policy in the state of a pool."""
    number: int = state["settings"]["policies"][policy][0] if policy else state["policy_version"]
    return number


def _are_lost_workers(error: BaseException) -> bool:
    """Return whether an exception only means that workers have ended."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_are_lost_workers, error.exceptions))
    return isinstance(error, WorkerError)


def _cuda_random_states() -> list[Any]:
    torch = sys.modules.get("torch")
    return torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else []


def _set_random_states(common: list[Any], cuda: list[Any]) -> None:
    if common[2] is not None:
        import torch

        if torch.cuda.is_available():
            for device, state in enumerate(cuda[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state, device)
    set_random_state(common)
