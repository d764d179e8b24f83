"""What a pool has done so far, in figures."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from parenv.experience.episodes import EvaluationResult
from parenv.experience.rollout import Rollout
from parenv.experience.summary import Summarized, html_table
from parenv.memory.layout import COMMIT_DTYPE

WINDOW = 100
"""Episodes over which the mean return and length are taken."""


@dataclass(frozen=True, repr=False)
class PoolStatistics(Summarized):
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
        committing_seconds: the same loading weights, in ``postprocess`` and writing down what is left.
        waiting_seconds: the same waiting for a credit.
        processor_seconds: processor time of workers, without the waiting.
        sleeping_seconds: time that they spent waiting for something outside, such as a simulator, by their voluntary
            context switches.
        contended_seconds: time that they spent waiting for a core, by their involuntary context switches.
        rollout_seconds: mean time of a worker for a rollout, NaN if there is none.
        rollout_seconds_spread: standard deviation of that time.
        driver_seconds: seconds of the driver from the first rollout on: ``"learning"`` (what the loop does between two
            rollouts), ``"publishing"``, ``"waiting"`` (for workers) and ``"calling"`` (evaluating and so on).
        driver_processor_seconds: processor time of the same, all threads of the driver together.
        messages: messages sent and received by the driver.
        hosts: worker hosts on other machines that are there.
        bytes_sent: bytes sent to them, before encryption.
        bytes_received: bytes that came from them.
        refused_connections: connections and messages from other machines that were refused, by reason.
        skipped_publishes: not done, because the policy had not moved by ``min_kl``.
        evaluations: how many were begun.
        evaluation: what the last one that is done has found, or ``None``.
        frozen_policies: frozen versions of policies, and the bytes that each keeps.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=0, num_envs=2, rollout_length=4) as pool:
    ...     rollout = next(pool.rollouts())
    ...     figures = pool.statistics()
    >>> figures.env_steps, figures.rollouts, figures.policy_lag, figures.workers_alive
    (8, 1, {0: 1}, 1)
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
    committing_seconds: float
    waiting_seconds: float
    processor_seconds: float
    sleeping_seconds: float
    contended_seconds: float
    rollout_seconds: float
    rollout_seconds_spread: float
    driver_seconds: Mapping[str, float]
    driver_processor_seconds: Mapping[str, float]
    messages: int
    hosts: int
    bytes_sent: int
    bytes_received: int
    refused_connections: Mapping[str, int]
    skipped_publishes: int
    evaluations: int
    evaluation: EvaluationResult | None
    frozen_policies: Mapping[str, int]

    def _facts(self) -> dict[str, Any]:
        counts = ("env_steps", "rollouts", "episodes", "policy_version", "workers_alive", "worker_restarts")
        means = {name: f"{getattr(self, name):.6g}" for name in ("mean_return", "env_steps_per_second")}
        return {name: getattr(self, name) for name in counts} | means

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, {name: words for name, words in _rows(self).items() if words})

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {words}" for name, words in _rows(self).items() if words)


def _rows(figures: PoolStatistics) -> dict[str, str]:
    """A pool's figures in a few words each; none where there is nothing to say."""
    lags = ", ".join(f"{count} of lag {lag}" for lag, count in figures.policy_lag.items())
    odd = {name: getattr(figures, f"{name}_rollouts") for name in ("copied", "dropped")}
    odd["gradients skipped"] = figures.skipped_gradients
    odd["publishes skipped"] = figures.skipped_publishes
    workers = ("environment", "acting", "learning", "committing", "waiting")
    speed = f"{figures.env_steps_per_second:,.0f} a second"
    return {
        "env steps": f"{figures.env_steps:,} in {figures.rollouts:,} rollouts, {speed}, {figures.seconds:,.1f} s",
        "episodes": f"{figures.episodes:,}, of the last {WINDOW} mean return {figures.mean_return:,.2f}, mean length "
        f"{figures.mean_length:,.1f}",
        "policy": f"version {figures.policy_version}" + (f"; {lags}" if lags else ""),
        "evaluated": _evaluated(figures.evaluation),
        "gradients": f"{figures.gradients:,}" if figures.gradients else "",
        "left out": ", ".join(f"{count} {name}" for name, count in odd.items() if count),
        "workers": f"{figures.workers_alive} alive, {figures.worker_restarts} restarts; {figures.env_restarts} "
        "sub-environments replaced",
        "hosts": f"{figures.hosts}, {figures.bytes_received / 1e6:,.1f} MB received" if figures.hosts else "",
        "their time": _fractions({name: getattr(figures, f"{name}_seconds") for name in workers}),
        "driver's": _fractions(figures.driver_seconds),
    }


def _evaluated(found: EvaluationResult | None) -> str:
    if found is None:
        return ""
    mean, count = found.mean_return, len(found.episodes)
    return f"version {found.policy_version}, of {found.env_steps:,} env steps: mean return {mean:,.2f} of {count:,}"


def _fractions(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    return ", ".join(f"{name} {part / total:.0%}" for name, part in seconds.items() if total > 0 and part > 0)


_SAME_NAMES = ("env_steps", "rollouts", "episodes", "gradients", "env_restarts", "skipped_publishes")
_PARTS = ("environment", "acting", "learning", "waiting", "processor", "sleeping", "contended")
_MEASURED = (
    *("environment_s", "acting_s", "learning_s", "waiting_s", "processor_s"),
    *("voluntary_switches", "involuntary_switches", "began_s", "ended_s"),
)
_TIMES = itemgetter(*map((COMMIT_DTYPE.names or ()).index, _MEASURED))


@dataclass
class Counters:
    """What has been yielded so far, and what it took, in figures."""

    env_steps: int = 0
    rollouts: int = 0
    episodes: int = 0
    copied: int = 0
    dropped: int = 0
    gradients: int = 0
    skipped: int = 0
    skipped_publishes: int = 0
    env_restarts: int = 0
    lag: Counter[int] = field(default_factory=Counter)
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=WINDOW))
    environment_s: float = 0.0
    acting_s: float = 0.0
    learning_s: float = 0.0
    waiting_s: float = 0.0
    processor_s: float = 0.0
    sleeping_s: float = 0.0
    contended_s: float = 0.0
    commits: int = 0
    busy_s: float = 0.0
    squared_busy_s: float = 0.0
    driver_s: dict[str, float] = field(default_factory=dict)
    driver_processor_s: dict[str, float] = field(default_factory=dict)

    def add(self, rollout: Rollout, env_steps: int) -> None:
        """Count a rollout that is yielded, or whose gradients are."""
        self.env_steps += env_steps
        self.rollouts += 1
        self.lag[rollout.policy_lag] += 1
        if ended := len(rollout.episodes):
            self.episodes += ended
            self.returns.extend(rollout.episodes.returns[-WINDOW:].tolist())
            self.lengths.extend(rollout.episodes.lengths[-WINDOW:].tolist())

    def state(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {name: list(value) if isinstance(value, deque) else copy(value) for name, value in vars(self).items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on counting from here."""
        for name, mine in vars(self).items():
            value = state.get(name, mine)  # A state may be older than one of the counts.
            if isinstance(mine, deque):
                mine.extend(value)
            elif isinstance(mine, dict):
                mine.update(value)
            else:
                setattr(self, name, value)

    def add_seconds(self, commits: np.ndarray[tuple[int], np.dtype[np.void]]) -> None:
        """Count what the workers of a slot say of their time, given as :data:`~parenv.memory.layout.COMMIT_DTYPE`."""
        self.commits += len(commits)
        # As Python's numbers: to add up an array of so few takes longer than all of this.
        for said in map(_TIMES, commits.tolist()):
            environment_s, acting_s, learning_s, waiting_s, processor_s, voluntary, involuntary, began_s, ended_s = said
            self.environment_s += environment_s
            self.acting_s += acting_s
            self.learning_s += learning_s
            self.waiting_s += waiting_s
            self.processor_s += processor_s
            busy_s = ended_s - began_s
            off_s = max(busy_s - processor_s, 0.0) / max(voluntary + involuntary, 1)
            self.sleeping_s += off_s * voluntary
            self.contended_s += off_s * involuntary
            self.busy_s += busy_s
            self.squared_busy_s += busy_s * busy_s

    def figures(self) -> dict[str, Any]:
        """What :class:`PoolStatistics` says of all this, by the names there."""
        return {
            **{name: getattr(self, name) for name in _SAME_NAMES},
            **{f"{part}_seconds": getattr(self, f"{part}_s") for part in _PARTS},
            "mean_return": mean(self.returns),
            "mean_length": mean(self.lengths),
            "policy_lag": dict(sorted(self.lag.items())),
            "copied_rollouts": self.copied,
            "dropped_rollouts": self.dropped,
            "skipped_gradients": self.skipped,
            "committing_seconds": self.busy_s - self.environment_s - self.acting_s - self.learning_s,
            "driver_seconds": dict(self.driver_s),
            "driver_processor_seconds": dict(self.driver_processor_s),
            **dict(zip(("rollout_seconds", "rollout_seconds_spread"), self._rollout_seconds(), strict=True)),
        }

    def _rollout_seconds(self) -> tuple[float, float]:
        """Mean and standard deviation of the time that a worker takes for a rollout; NaN of nothing."""
        if not self.commits:
            return math.nan, math.nan
        average = self.busy_s / self.commits
        return average, math.sqrt(max(0.0, self.squared_busy_s / self.commits - average**2))


def mean(values: deque[float] | deque[int]) -> float:
    """Mean, NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")
