"""Hand-written vector env and rollouts: shared arrays and pipes, without infos, checks, restarts or supervision."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parenv.platform.linux import end_with_leader

OBSERVATION = 4


class Rollouts:
    """Rollouts of processes that step one sub-environment each, with two blocks of shared memory per process.

    A process writes its number and the number of each filled block to a common pipe. It reads the number of the block
    to fill next from a pipe of its own. The constructor forks, so the calling process must not have threads yet.

    Args:
        make_env: Function that makes an environment with observations of shape ``[4]`` in float32.
        act: Policy, from observations ``[1, 4]`` to actions ``[1]``.
        count: Number of processes.
        rollout_length: Number of rows in a block, in env steps.
    """

    def __init__(self, make_env: Callable[[], Any], act: Callable[[Any], Any], count: int, rollout_length: int) -> None:
        self._rows = rollout_length
        self._blocks = [[_Block(rollout_length) for _ in range(2)] for _ in range(count)]
        self._answers, answer = os.pipe()
        self._orders, self.pids = [], list[int]()
        for worker, blocks in enumerate(self._blocks):
            read, write = os.pipe()
            self._orders.append(write)
            self.pids.append(_forked(lambda w=worker, b=blocks, r=read: _fill(w, make_env(), act, b, r, answer)))
            os.write(write, b"\0\1")

    def run(self, seconds: float) -> int:
        """Take rollouts for a time in seconds. Return the number of their env steps."""
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            answers = np.frombuffer(os.read(self._answers, 4096), np.uint8)
            for worker, block in answers.reshape(-1, 2).tolist():
                float(self._blocks[worker][block].rewards[-1])
                os.write(self._orders[worker], bytes([block]))
                steps += self._rows
        return steps

    def close(self) -> None:
        """Kill the processes."""
        _end(self.pids)


class Steps:
    """Vector env of processes that step equal shares of the sub-environments.

    The main process requests a step through one pipe per process. All processes answer through a common pipe. The
    constructor forks, so the calling process must not have threads yet.

    Args:
        make_env: Function that makes an environment. Observations and actions must be arrays or numbers.
        num_envs: Number of sub-environments.
        count: Number of processes.
    """

    def __init__(self, make_env: Callable[[], Any], num_envs: int, count: int) -> None:
        env = make_env()
        space, action = env.observation_space, np.asarray(env.action_space.sample())
        env.close()
        self._observations = shared((num_envs, *space.shape), space.dtype)
        self._rewards, self._flags = shared((num_envs,), "f8"), shared((2, num_envs), "?")
        self._actions = shared((num_envs, *action.shape), action.dtype)
        self._answers, self._answer = os.pipe()
        self._orders, self.pids = [], list[int]()
        self._rows = [slice(rows[0], rows[-1] + 1) for rows in np.array_split(np.arange(num_envs), count)]
        for worker, rows in enumerate(self._rows):
            read, write = os.pipe()
            self._orders.append(write)
            self.pids.append(_forked(lambda w=worker, o=rows, r=read: self._serve(w, make_env, o, r)))

    def reset(self) -> None:
        """Do nothing, because each process resets its sub-environments when it starts."""

    def step(self, actions: Any) -> Any:
        """Step all sub-environments. Return copies of observations, rewards, terminated and truncated."""
        self._actions[:] = actions
        for orders in self._orders:
            os.write(orders, b"\0")
        answered = 0
        while answered < len(self.pids):
            answered += len(os.read(self._answers, 4096))
        return self._observations.copy(), self._rewards.copy(), *self._flags.copy()

    def run(self, seconds: float) -> int:
        """Step each process again as soon as it answers, for a time in seconds. Return the number of env steps."""
        steps, running, began = 0, len(self.pids), time.perf_counter()
        for orders in self._orders:
            os.write(orders, b"\0")
        while running:
            for worker in os.read(self._answers, 4096):
                rows = self._rows[worker]
                self._observations[rows].copy(), self._rewards[rows].copy()
                steps += rows.stop - rows.start
                if time.perf_counter() - began < seconds:
                    self._actions[rows] = steps % 2
                    os.write(self._orders[worker], b"\0")
                else:
                    running -= 1
        return steps

    def close(self) -> None:
        """Kill the processes."""
        _end(self.pids)

    def _serve(self, worker: int, make_env: Callable[[], Any], own: slice, orders: int) -> None:
        envs = [make_env() for _ in range(own.start, own.stop)]
        for row, env in enumerate(envs, own.start):
            env.reset(seed=row)
        while os.read(orders, 1):
            observations, rewards, ends, truncations = [], [], [], []
            for env, action in zip(envs, self._actions[own], strict=True):
                observation, reward, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    observation, _ = env.reset()
                observations.append(observation)
                rewards.append(reward)
                ends.append(terminated)
                truncations.append(truncated)
            np.stack(observations, out=self._observations[own], casting="same_kind")
            self._rewards[own], self._flags[0, own], self._flags[1, own] = rewards, ends, truncations
            os.write(self._answer, bytes([worker]))


def shared(shape: Sequence[int], dtype: Any) -> Any:
    """Make an array of zeros in memory that is shared with processes that are forked later."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(1, nbytes)))


class _Block:
    def __init__(self, rows: int) -> None:
        self.observations, self.actions = shared((rows, OBSERVATION), np.float32), shared((rows,), np.int64)
        self.rewards, self.ends = shared((rows,), np.float32), shared((rows, 2), bool)


def _fill(
    worker: int, env: Any, act: Callable[[Any], Any], blocks: Sequence[_Block], orders: int, answers: int
) -> None:
    observation, step = env.reset(seed=worker)[0], env.step
    while order := os.read(orders, 1):
        block = blocks[order[0]]
        observations, actions, rewards, ends = block.observations, block.actions, block.rewards, block.ends
        for row in range(len(rewards)):
            observations[row] = observation
            action = int(act(observations[row : row + 1])[0])
            actions[row] = action
            observation, rewards[row], terminated, truncated, _ = step(action)
            ends[row] = terminated, truncated
            if terminated or truncated:
                observation, _ = env.reset()
        os.write(answers, bytes([worker, order[0]]))


def _forked(run: Callable[[], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            end_with_leader(parent, [])
            run()
        finally:
            os._exit(0)
    return pid


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
