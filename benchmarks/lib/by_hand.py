"""What somebody would write by hand: shared arrays and two pipes. No infos, no checks, no restarts, nobody watched."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parenv.process.zygote import die_with_parent

OBSERVATION = 4


class Rollouts:
    """Each process steps one sub-environment, fills one of two blocks of shared memory and says so over one pipe.

    Over the other it is told which block it may fill next. Made before there are threads, because it forks.

    Args:
        make_env: its observations are float32 ``[4]``.
        act: what the processes act with.
        count: processes.
        rollout_length: rows of a block.
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
        """Take rollouts for so long; their env steps."""
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            said = np.frombuffer(os.read(self._answers, 4096), np.uint8)
            for worker, block in said.reshape(-1, 2).tolist():
                float(self._blocks[worker][block].rewards[-1])
                os.write(self._orders[worker], bytes([block]))
                steps += self._rows
        return steps

    def close(self) -> None:
        """End the processes."""
        _end(self.pids)


class Steps:
    """Each process steps its share of the sub-environments when a pipe tells it to, and says so over another one.

    Args:
        make_env: its observations are float32 ``[4]``, its actions whole numbers.
        num_envs: sub-environments.
        count: processes.
    """

    def __init__(self, make_env: Callable[[], Any], num_envs: int, count: int) -> None:
        self._share = num_envs // count
        self._block = _Block(num_envs)
        self._answers, answer = os.pipe()
        self._orders, self.pids = [], list[int]()
        for worker in range(count):
            read, write = os.pipe()
            own = range(worker * self._share, (worker + 1) * self._share)
            self._orders.append(write)
            self.pids.append(_forked(lambda o=own, w=worker, r=read: _serve(w, make_env, o, self._block, r, answer)))
            os.write(write, b"\0")

    def run(self, seconds: float) -> int:
        """Send those that are ready on at once, for so long; env steps."""
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            for worker in os.read(self._answers, 4096):
                first = worker * self._share
                rows = slice(first, first + self._share)
                self._block.observations[rows].copy(), self._block.rewards[rows].copy()
                self._block.actions[rows] = steps % 2
                os.write(self._orders[worker], b"\0")
                steps += self._share
        return steps

    def close(self) -> None:
        """End the processes."""
        _end(self.pids)


class _Block:
    def __init__(self, rows: int) -> None:
        memory = mmap.mmap(-1, rows * (4 * OBSERVATION + 8 + 4 + 2))
        self.observations = np.ndarray((rows, OBSERVATION), np.float32, memory)
        self.actions = np.ndarray(rows, np.int64, memory, rows * 4 * OBSERVATION)
        self.rewards = np.ndarray(rows, np.float32, memory, rows * (4 * OBSERVATION + 8))
        self.ends = np.ndarray((rows, 2), bool, memory, rows * (4 * OBSERVATION + 12))


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


def _serve(
    worker: int, make_env: Callable[[], Any], own: Sequence[int], block: _Block, orders: int, answers: int
) -> None:
    envs = [make_env() for _ in own]
    for row, env in zip(own, envs, strict=True):
        env.reset(seed=row)
    steps = [env.step for env in envs]
    said = bytes([worker])
    while os.read(orders, 1):
        for row, env, step in zip(own, envs, steps, strict=True):
            observation, block.rewards[row], terminated, truncated, _ = step(int(block.actions[row]))
            block.ends[row] = terminated, truncated
            block.observations[row] = env.reset()[0] if terminated or truncated else observation
        os.write(answers, said)


def _forked(run: Callable[[], None]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            run()
        finally:
            os._exit(0)
    return pid


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
