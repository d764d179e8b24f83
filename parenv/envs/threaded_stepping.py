"""Step sub-environments that wait for a socket or a clock, in threads of one worker."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from parenv.envs.fitting import Fit
from parenv.envs.infos import Found
from parenv.envs.returned import reset_result
from parenv.envs.stepping import EnvStepper
from parenv.envs.targets import Target
from parenv.envs.values import Rows
from parenv.memory.status_slot import StatusSlot

CLOSE_TIMEOUT_S = 5.0
_Task = Callable[[int], Any]


class ColumnThreads:
    """Threads that run tasks of several columns at once, started in the order of the columns.

    Args:
        num_threads: Number of threads.
        num_columns: Number of columns.
    """

    def __init__(self, num_threads: int, num_columns: int) -> None:
        self._tasks: SimpleQueue[tuple[_Task, int] | None] = SimpleQueue()
        self._results: list[Any] = [None] * num_columns
        self._errors: list[BaseException | None] = [None] * num_columns
        # A lock is free from the end of its column's task until the result is taken.
        self._done = [threading.Lock() for _ in range(num_columns)]
        for lock in self._done:
            lock.acquire()
        # The threads hold no reference to this object, so that its finalizer can end them.
        # numpy keeps the reaction to floating-point errors for each thread.
        parts = (self._tasks, self._results, self._errors, self._done, np.geterr())
        self._threads = [
            threading.Thread(target=_serve, args=parts, name=f"parenv step {i}", daemon=True)
            for i in range(num_threads)
        ]
        self._end = weakref.finalize(self, _end, self._tasks, num_threads)
        for thread in self._threads:
            thread.start()

    def begin(self, columns: Iterable[int], task: _Task) -> None:
        """Start a task for each of these columns."""
        for column in columns:
            self._tasks.put((task, column))

    def take(self, column: int) -> Any:
        """Wait for the result of a column's task.

        Raises:
            BaseException: The task raised it.
        """
        self._done[column].acquire()
        error, self._errors[column] = self._errors[column], None
        if error is None:
            return self._results[column]
        try:
            raise error
        finally:
            del error  # Its traceback refers to this frame, which refers to it.

    def close(self) -> bool:
        """End the threads; return whether all have ended within the limit. Idempotent."""
        self._end()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


def _serve(
    tasks: SimpleQueue[tuple[_Task, int] | None],
    results: list[Any],
    errors: list[Any],
    done: Sequence[threading.Lock],
    numpy_errors: Any,
) -> None:
    np.seterr(**numpy_errors)
    while (asked := tasks.get()) is not None:
        task, column = asked
        try:
            results[column] = task(column)
        except BaseException as error:
            errors[column] = error
        del task, asked
        done[column].release()


def _end(tasks: SimpleQueue[tuple[_Task, int] | None], num_threads: int) -> None:
    for _ in range(num_threads):
        tasks.put(None)


class ThreadedStepper(EnvStepper):
    """Single environments, stepped and reset in threads.

    The stepper takes results in the order of the columns, so rollouts, errors and time limits equal those of
    :class:`EnvStepper`.

    Args:
        envs: The environments, which share no state.
        first_env_id: env_id of the first one.
        status: Status slot, which contains the sub-environment whose result is awaited.
        fit: Checks of observations.
        num_threads: Number of threads.
    """

    def __init__(
        self, envs: Sequence[Any], first_env_id: int, status: StatusSlot, fit: Fit | None, num_threads: int
    ) -> None:
        super().__init__(envs, first_env_id, status, fit)
        self._num_threads = num_threads
        self._threads = ColumnThreads(num_threads, self.num_envs)
        self._is_stepping = False
        """Whether steps have begun and are not all written yet."""
        self._resetting: deque[int] = deque()
        """Columns whose reset is not written yet, because an episode ended in this step."""

    def reset(self, seeds: Sequence[int | None], rows: Rows) -> Sequence[Found]:
        """Begin an episode in every sub-environment and write the first observations; return the info of each."""
        self._leave()
        columns, envs = range(self.num_envs), self.envs
        self._threads.begin(columns, lambda column: reset_result(envs[column].reset(seed=seeds[column])))
        self._resetting.extend(columns)
        return super().reset(seeds, rows)

    def step(self, actions: Rows, rows: Rows, step: int, target: Target, first: int = 0) -> None:
        """Step all sub-environments, and then reset those whose episode ended, as :meth:`EnvStepper.step`.

        A second call after an exception continues the step that raised.
        """
        columns, envs = range(self.num_envs), self.envs
        if self._is_stepping:  # The environment of the column `first` has raised and was replaced.
            self._begin_steps([first], actions)
        elif not first and not self._resetting:
            # If the last reset has raised, only `first` shows that the step is still in progress.
            self._is_stepping = True
            self._begin_steps(columns, actions)
        if self._is_stepping:
            self._write_steps([self._threads.take] * self.num_envs, columns, rows, step, target, first)
            self._is_stepping = False
            self._threads.begin(self._resetting, lambda column: reset_result(envs[column].reset()))
        while self._resetting:
            self._write_reset(self._resetting.popleft(), rows, step, target)

    def close(self) -> None:
        """Close all environments, unless a thread still uses one."""
        if self._threads.close():
            super().close()

    def _reset(self, column: int, seed: int | None) -> Any:
        self._resetting.popleft()
        return self._threads.take(column)

    def _begin_steps(self, columns: Iterable[int], actions: Rows) -> None:
        # A task must not refer to this object. An exception that is never taken keeps the frame of its task, and so
        # would keep this object and its threads, which end when this object is gone.
        steps, split = self._steps, self._split(actions)
        self._threads.begin(columns, lambda column: steps[column](split[column]))

    def _end(self, target: Target, step: int, column: int, observation: Any, how: tuple[Any, Any], info: Any) -> Any:
        # The reset begins after the other steps, so that the resets of this step run at once. Its observation then
        # replaces the final one in the row.
        self._keep_end(target, step, column, observation, how, info)
        self._resetting.append(column)
        return observation

    def _write_reset(self, column: int, rows: Rows, step: int, target: Target) -> None:
        self._status.cell[0] = self._reset_codes[column]
        observation, info = self._threads.take(column)
        target.infos.write_first(step + 1, column, info)
        self._write(rows, column, observation)

    def _leave(self) -> None:
        """Drop a step that was given up with an exception."""
        if self._is_stepping or self._resetting:
            self._is_stepping = False
            self._resetting.clear()
            self._threads.close()
            self._threads = ColumnThreads(self._num_threads, self.num_envs)
