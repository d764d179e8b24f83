"""Scripted environments, and rollouts that are collected from them without a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from parenv.envs.make import Stepper
from parenv.envs.stepping import EnvStepper
from parenv.experience.assembly import assemble
from parenv.experience.rollout import Rollout
from parenv.memory.layout import RolloutSpec
from parenv.memory.spaces import leaves
from parenv.memory.status_slot import StatusSlot
from parenv.testing import check_ledger
from parenv.worker.single_agent_collector import private_writer, reset
from parenv.worker.writing import RolloutWriter

TWO = spaces.Discrete(2)


class Scripted(gym.Env[Any, Any]):
    """Environment that returns the given observations in order and ends its episode every ``length`` steps.

    If an observation is an exception, the environment raises it. Actions and seeds are recorded.
    """

    def __init__(self, space: Any, shown: Sequence[Any], length: int = 1 << 30, action_space: Any = TWO) -> None:
        self.observation_space, self.action_space = space, action_space
        self.shown, self.length, self.steps = list(shown), length, 0
        self.actions: list[Any] = []
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return self._show(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.steps += 1
        return self._show(), self.steps / 2, self.steps % self.length == 0, False, {}

    def _show(self) -> Any:
        shown = self.shown.pop(0)
        if isinstance(shown, Exception):
            raise shown
        return shown


def quiet() -> StatusSlot:
    """Return a status slot that no other process reads."""
    return StatusSlot(np.zeros(256, np.uint8), 0)


class Run:
    """Collector of rollouts from a stepper, which it resets when it is created."""

    def __init__(self, stepper: Stepper, length: int) -> None:
        self.stepper = stepper
        self.spec = RolloutSpec(length, leaves(stepper.observation_space), leaves(stepper.action_space))
        self.writer: RolloutWriter = private_writer(self.spec, stepper.num_envs)
        self._rows, _ = reset(stepper, self.spec.observations, range(stepper.num_envs))

    def rollout(self, actions: Sequence[Any] | None = None) -> Rollout:
        """Collect the next rollout.

        Args:
            actions: One array or list per leaf, used in every step. Default: zeros.
        """
        writer, batch, length = self.writer, self.stepper.num_envs, self.spec.rollout_length
        writer.begin(self._rows)
        writer.plain["resetting"][:] = self.stepper.resetting
        for step in range(length):
            written = writer.write_actions(step, [np.zeros(batch, np.int64)] if actions is None else actions, {})
            self.stepper.step(written, writer.observations[step + 1], step, writer)
        writer.write_ends(*self.stepper.count(writer.rewards, writer.ends))
        self._rows = [row.copy() for row in writer.observations[length]]
        about: dict[str, Any] = {"env_ids": np.arange(batch), "worker": 0, "policy_version": 0, "policy_lag": 0}
        return assemble(self.spec, writer.arrays, [writer.columns], extras=(), **about)


def stepped(env: Scripted, steps: int) -> RolloutWriter:
    """Step a single environment and return the writer of its rollout."""
    run = Run(EnvStepper([env], 0, quiet()), steps)
    run.rollout()
    return run.writer


def audit(stepper: Stepper, rollouts: int) -> int:
    """Check every step in rollouts of ledger environments, and return the number of episodes that ended."""
    run, expected, ends = Run(stepper, 11), dict[int, tuple[int, ...]](), 0
    for _ in range(rollouts):
        rollout = run.rollout()
        check_ledger(rollout, expected)
        ends += len(rollout.episodes)
    return ends
