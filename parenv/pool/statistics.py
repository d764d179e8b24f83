"""What a pool has done so far, in figures."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenv.experience.rollout import Rollout

WINDOW = 100
"""Episodes over which the mean return and length are taken."""


@dataclass(frozen=True)
class PoolStatistics:
    """A pool's figures at one moment.

    Args:
        env_steps: env steps in the rollouts yielded.
        rollouts: rollouts yielded.
        episodes: episodes that ended in them.
        mean_return: mean return of the last 100 episodes, NaN if there are none.
        mean_length: their mean length in env steps, NaN if there are none.
        seconds: since the pool was made.
        env_steps_per_second: ``env_steps`` over the seconds since the first rollout was asked for.
        policy_version: the newest version.
        policy_lag: how many rollouts, or gradients of workers, arrived with which lag.
        copied_rollouts: yielded as copies, because the user holds so many others.
        gradients: gradients yielded.
        skipped_gradients: workers' gradients that were left out, because they were not finite.
        dropped_rollouts: not yielded, because they were older than ``max_policy_lag`` with ``on_stale="drop"``.
        workers_alive: workers that run.
        worker_restarts: how often another process took the place of one that was gone.
        env_restarts: how often another sub-environment took the place of one that raised.
        environment_seconds: seconds that workers spent in environments, all workers together.
        acting_seconds: the same in the policy.
        learning_seconds: the same in ``loss_fn`` and backward.
        waiting_seconds: the same waiting for a credit.
        messages: messages sent and received by the driver.
    """

    env_steps: int
    rollouts: int
    episodes: int
    mean_return: float
    mean_length: float
    seconds: float
    env_steps_per_second: float
    policy_version: int
    policy_lag: Mapping[int, int]
    copied_rollouts: int
    gradients: int
    skipped_gradients: int
    dropped_rollouts: int
    workers_alive: int
    worker_restarts: int
    env_restarts: int
    environment_seconds: float
    acting_seconds: float
    learning_seconds: float
    waiting_seconds: float
    messages: int


class Tally:
    """Counts what is yielded."""

    def __init__(self) -> None:
        self.env_steps = self.rollouts = self.episodes = self.copied = self.dropped = 0
        self.gradients = self.skipped = self.env_restarts = 0
        self.lag: Counter[int] = Counter()
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.environment_s = self.acting_s = self.learning_s = self.waiting_s = 0.0

    def add(self, rollout: Rollout, env_steps: int) -> None:
        """Count a rollout that is yielded, or whose gradients are."""
        self.env_steps += env_steps
        self.rollouts += 1
        self.episodes += len(rollout.episodes)
        self.lag[rollout.policy_lag] += 1
        self.returns.extend(rollout.episodes.returns.tolist())
        self.lengths.extend(rollout.episodes.lengths.tolist())

    def state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {name: list(value) if isinstance(value, deque) else copy(value) for name, value in vars(self).items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on counting from here."""
        for name, mine in vars(self).items():
            value = state[name]
            if isinstance(mine, deque):
                mine.extend(value)
            elif isinstance(mine, Counter):
                mine.update(value)
            else:
                setattr(self, name, value)

    def add_seconds(self, commits: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        """Count what the workers of a slot say of their time, given as :data:`~parenv.memory.layout.COMMIT_DTYPE`."""
        self.environment_s += float(commits["environment_s"].sum())
        self.acting_s += float(commits["acting_s"].sum())
        self.learning_s += float(commits["learning_s"].sum())
        self.waiting_s += float(commits["waiting_s"].sum())


def mean(values: deque[float] | deque[int]) -> float:
    """Mean, NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")
