"""Statistics of a pool, and the counters and the timer that they are made from."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from parenv.experience.episodes import EvaluationResult
from parenv.experience.failures import EnvFailures, FailureLog
from parenv.experience.metrics import POOL, metrics_of
from parenv.experience.summary import Summarized, html_table
from parenv.memory.layout import COMMIT_DTYPE
from parenv.pool.arrival import Arrival

WINDOW = 100
"""Number of episodes that the mean return and length are taken over."""


@dataclass(repr=False)
class PoolStatistics(Summarized):
    """Statistics of a pool at one moment.

    Args:
        env_steps: Number of env steps in the rollouts yielded.
        rollouts: Number of rollouts yielded.
        episodes: Number of episodes that their environments ended in them.
        lost_episodes: Number of other episodes that ended, by the reason in ``episodes.ended_by``.
        lost_episodes_by_env: The same for each sub-environment, by env_id.
        failures: Failures of sub-environments and workers, as :class:`~parenv.statistics.EnvFailures`, most often
            failing ones first.
        mean_return: Mean return of the last 100 episodes, NaN without any.
        mean_length: Mean length of the last 100 episodes in env steps, NaN without any.
        seconds: Seconds since the pool was made.
        env_steps_per_second: ``env_steps`` over the seconds since the first rollout was requested.
        policy_version: Newest version.
        policy_lag: Number of rollouts, or of gradients of workers, by their policy lag.
        copied_rollouts: Number of rollouts yielded as copies, because the user holds many others.
        gradients: Number of gradients yielded.
        skipped_gradients: Number of gradients of workers that were left out because they were not finite.
        dropped_rollouts: Number of rollouts older than ``max_policy_lag`` that ``on_stale="drop"`` has dropped.
        workers_alive: Number of workers that run.
        worker_restarts: Number of workers that were replaced, step workers of ``WorkerOptions(step_workers=...)``
            included. A step worker counts when its rollout is complete.
        env_restarts: Number of sub-environments that were replaced after an exception.
        environment_seconds: Seconds that workers spent in environments, summed over all workers.
        acting_seconds: Seconds that workers spent in the policy, summed over all workers.
        learning_seconds: Seconds that workers spent in ``loss_fn`` and backward, summed over all workers.
        committing_seconds: Seconds that workers spent on loading weights, ``postprocess`` and the rest of a rollout,
            summed over all workers.
        waiting_seconds: Seconds that workers waited for a rollout request, summed over all workers.
        processor_seconds: Processor time of all workers in seconds, without the waiting.
        sleeping_seconds: Seconds that workers waited for something outside, such as a simulator, estimated from their
            voluntary context switches.
        contended_seconds: Seconds that workers waited for a core, estimated from their involuntary context switches.
        rollout_seconds: Mean time of a worker for a rollout in seconds, NaN without any.
        rollout_seconds_spread: Standard deviation of that time in seconds.
        driver_seconds: Seconds of the main process from the first rollout on: ``"learning"`` (the loop between two
            rollouts), ``"publishing"``, ``"waiting"`` (for workers) and ``"calling"`` (evaluations and other calls).
        driver_processor_seconds: Processor time of the same parts, summed over all threads of the main process.
        messages: Number of messages that the main process has sent and received.
        hosts: Number of connected worker hosts on other machines.
        bytes_sent: Bytes sent to them, before encryption.
        bytes_received: Bytes received from them.
        refused_connections: Number of refused connections and messages from other machines, by reason.
        skipped_publishes: Number of publishes that were skipped because the policy had not moved by ``min_kl``.
        evaluations: Number of evaluations begun.
        evaluation: Result of the last evaluation that has ended, or ``None``.
        frozen_policies: Bytes that each frozen version keeps, by its name.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=0, num_envs=2, rollout_length=4) as pool:
    ...     rollout = next(pool.rollouts())
    ...     figures = pool.statistics()
    >>> figures.env_steps, figures.rollouts, figures.policy_lag, figures.workers_alive
    (8, 1, {0: 1}, 1)
    """

    env_steps: int = 0
    rollouts: int = 0
    episodes: int = 0
    lost_episodes: Mapping[str, int] = field(default_factory=dict)
    lost_episodes_by_env: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    failures: Sequence[EnvFailures] = ()
    mean_return: float = math.nan
    mean_length: float = math.nan
    seconds: float = 0.0
    env_steps_per_second: float = 0.0
    policy_version: int = 0
    policy_lag: dict[int, int] = field(default_factory=dict)
    copied_rollouts: int = 0
    gradients: int = 0
    skipped_gradients: int = 0
    dropped_rollouts: int = 0
    workers_alive: int = 0
    worker_restarts: int = 0
    env_restarts: int = 0
    environment_seconds: float = 0.0
    acting_seconds: float = 0.0
    learning_seconds: float = 0.0
    committing_seconds: float = 0.0
    waiting_seconds: float = 0.0
    processor_seconds: float = 0.0
    sleeping_seconds: float = 0.0
    contended_seconds: float = 0.0
    rollout_seconds: float = math.nan
    rollout_seconds_spread: float = math.nan
    driver_seconds: dict[str, float] = field(default_factory=dict)
    driver_processor_seconds: dict[str, float] = field(default_factory=dict)
    messages: int = 0
    hosts: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    refused_connections: Mapping[str, int] = field(default_factory=dict)
    skipped_publishes: int = 0
    evaluations: int = 0
    evaluation: EvaluationResult | None = None
    frozen_policies: Mapping[str, int] = field(default_factory=dict)

    @property
    def busy_seconds(self) -> float:
        """Seconds that workers spent on rollouts, summed over all workers: all parts without the waiting."""
        return self.environment_seconds + self.acting_seconds + self.committing_seconds + self.learning_seconds

    def metrics(self) -> dict[str, float]:
        """Return the statistics as a flat dict, see :meth:`parenv.AsyncWorkerPool.metrics`."""
        return metrics_of(POOL, self)

    def _facts(self) -> dict[str, Any]:
        counts = ("env_steps", "rollouts", "episodes", "policy_version", "workers_alive", "worker_restarts")
        means = {name: f"{getattr(self, name):.6g}" for name in ("mean_return", "env_steps_per_second")}
        return {name: getattr(self, name) for name in counts} | means

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, {name: words for name, words in _rows(self).items() if words})

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {words}" for name, words in _rows(self).items() if words)


def _rows(figures: PoolStatistics) -> dict[str, str]:
    """Return the text of each row of the table. A row without text is left out."""
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
        "lost": _lost(figures),
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


def _lost(figures: PoolStatistics) -> str:
    lost = ", ".join(f"{count:,} {reason}" for reason, count in figures.lost_episodes.items())
    often = ", ".join(f"{count} of {failing.who}" for failing in figures.failures[:3] if (count := failing.count))
    return f"{lost or 'no'} episodes; failures: {often}" if lost or often else ""


def _evaluated(found: EvaluationResult | None) -> str:
    if found is None:
        return ""
    mean, count = found.mean_return, len(found.episodes.finished)
    return f"version {found.policy_version}, of {found.env_steps:,} env steps: mean return {mean:,.2f} of {count:,}"


def _fractions(seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    return ", ".join(f"{name} {part / total:.0%}" for name, part in seconds.items() if total > 0 and part > 0)


MAX_STAMPS = 256
"""Number of rollouts whose times are added up at once."""
_FORMER_NAMES = {
    "copied": "copied_rollouts",
    "dropped": "dropped_rollouts",
    "skipped": "skipped_gradients",
    "lag": "policy_lag",
}


class Counters:
    """Counters of a pool, which go up as rollouts arrive.

    Attributes:
        totals: Statistics so far, as far as they are sums.
        failures: Failures and lost episodes so far.
    """

    def __init__(self) -> None:
        self.totals, self.failures = PoolStatistics(), FailureLog()
        self._returns, self._lengths = deque[float](maxlen=WINDOW), deque[int](maxlen=WINDOW)
        self._commits, self._squared_busy_s = 0, 0.0
        self._stamps, self._adding = deque[bytes](), threading.RLock()

    def add(self, arrival: Arrival) -> None:
        """Count a rollout that is yielded, or whose gradients are yielded."""
        totals, rollout = self.totals, arrival.rollout
        totals.env_steps += sum(arrival.samples)
        totals.rollouts += 1
        totals.env_restarts += sum(map(len, arrival.replaced))
        totals.policy_lag[rollout.policy_lag] = totals.policy_lag.get(rollout.policy_lag, 0) + 1
        for _, failure in arrival.failures():
            self.failures.add(failure)
        if len(rollout.episodes):
            finished = rollout.episodes.finished
            if len(finished) < len(rollout.episodes):
                lost = rollout.episodes.lost
                self.failures.add_lost(zip(lost.env_ids.tolist(), lost.ended_by.tolist(), strict=True))
            totals.episodes += len(finished)
            self._returns.extend(finished.returns[-WINDOW:].tolist())
            self._lengths.extend(finished.lengths[-WINDOW:].tolist())
        self._stamps.append(arrival.commits.tobytes())
        if len(self._stamps) >= MAX_STAMPS:
            self._add_times()

    def statistics(self, worker_restarts: int = 0, **more: Any) -> PoolStatistics:
        """Return the statistics so far, with these values for what is not counted here.

        Args:
            worker_restarts: Number of workers that were replaced, without step workers.
            **more: Further statistics.
        """
        self._add_times()
        totals = self.totals
        busy_s = totals.environment_seconds + totals.acting_seconds
        busy_s += totals.learning_seconds + totals.committing_seconds
        average_s = _mean(busy_s, self._commits)
        variance = _mean(self._squared_busy_s, self._commits) - average_s**2
        return replace(
            totals,
            lost_episodes=self.failures.lost_by_reason(),
            lost_episodes_by_env=self.failures.lost_by_env(),
            failures=self.failures.failures(),
            mean_return=_mean(sum(self._returns), len(self._returns)),
            mean_length=_mean(sum(self._lengths), len(self._lengths)),
            policy_lag=dict(sorted(totals.policy_lag.items())),
            rollout_seconds=average_s,
            rollout_seconds_spread=math.sqrt(max(variance, 0.0)) if self._commits else math.nan,
            worker_restarts=totals.worker_restarts + worker_restarts,
            driver_seconds=dict(totals.driver_seconds),
            driver_processor_seconds=dict(totals.driver_processor_seconds),
            **more,
        )

    def state(self) -> dict[str, Any]:
        """Return all counters as plain data."""
        self._add_times()
        return {
            **{name: copy(value) for name, value in vars(self.totals).items()},
            "returns": list(self._returns),
            "lengths": list(self._lengths),
            "commits": self._commits,
            "squared_busy_seconds": self._squared_busy_s,
            "lost_episodes_by_env": self.failures.lost_by_env(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, which may be from an older version of parenv with fewer counters or other names."""
        found = {_FORMER_NAMES.get(name) or _in_seconds(name): value for name, value in state.items()}
        for name, mine in vars(self.totals).items():
            if isinstance(mine, dict):  # The timer of the main process keeps these.
                mine.update(found.get(name, {}))
            else:
                setattr(self.totals, name, found.get(name, mine))
        if "busy_seconds" in found:
            parts = (found[f"{part}_seconds"] for part in ("environment", "acting", "learning"))
            self.totals.committing_seconds = found["busy_seconds"] - sum(parts)
        self._returns.extend(found["returns"])
        self._lengths.extend(found["lengths"])
        for env_id, reasons in found.get("lost_episodes_by_env", {}).items():
            self.failures.lost_episodes[int(env_id)].update(reasons)
        self._commits, self._squared_busy_s = found.get("commits", 0), found.get("squared_busy_seconds", 0.0)

    def _add_times(self) -> None:
        """Add up the times of the rollouts so far. Once for many rollouts, this takes less time than for each."""
        # Any thread may ask for statistics while another one iterates over the pool.
        with self._adding:
            found = [self._stamps.popleft() for _ in range(len(self._stamps))]
            if found:
                self._add(np.frombuffer(b"".join(found), COMMIT_DTYPE))

    def _add(self, stamps: Any) -> None:
        totals = self.totals
        busy_s = stamps["ended_s"] - stamps["began_s"]
        parts_s = {name: float(stamps[f"{name}_s"].sum()) for name in ("environment", "acting", "learning")}
        voluntary, involuntary = stamps["voluntary_switches"], stamps["involuntary_switches"]
        off_s = np.maximum(busy_s - stamps["processor_s"], 0.0) / np.maximum(voluntary + involuntary, 1)
        totals.environment_seconds += parts_s["environment"]
        totals.acting_seconds += parts_s["acting"]
        totals.learning_seconds += parts_s["learning"]
        totals.committing_seconds += float(busy_s.sum()) - sum(parts_s.values())
        totals.waiting_seconds += float(stamps["waiting_s"].sum())
        totals.processor_seconds += float(stamps["processor_s"].sum())
        totals.sleeping_seconds += float((off_s * voluntary).sum())
        totals.contended_seconds += float((off_s * involuntary).sum())
        totals.worker_restarts += int(stamps["step_worker_restarts"].sum())
        self._commits += len(stamps)
        self._squared_busy_s += float((busy_s * busy_s).sum())


def _in_seconds(name: str) -> str:
    return name.removesuffix("_s") + "_seconds" * name.endswith("_s")


def _mean(total: float, count: int) -> float:
    return total / count if count else math.nan


Activity = Literal["learning", "publishing", "waiting", "calling"]


class DriverTimer:
    """Adds up wall-clock and processor seconds by part.

    Between two rollouts the main process learns, unless it publishes or calls. The time before the first rollout
    belongs to no part.

    Args:
        seconds: Wall-clock seconds by part, added to.
        processor_seconds: Processor seconds of all threads of this process by part, added to.
    """

    def __init__(self, seconds: dict[str, float], processor_seconds: dict[str, float]) -> None:
        self._seconds, self._processor_seconds = seconds, processor_seconds
        self._part: Activity | None = None
        self._since = (0.0, 0.0)
        self._began = time.monotonic()
        self._first_asked = math.nan
        self._collected_before_s = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the pool was made, plus the seconds of the run that this one resumes."""
        return time.monotonic() - self._began

    @property
    def collecting_s(self) -> float:
        """Seconds since the first rollout was requested, plus the run before. NaN before the first request."""
        return time.monotonic() - self._first_asked

    def resume(self, seconds: float, collecting_s: float) -> None:
        """Continue from the seconds of another run."""
        self._began -= seconds
        self._collected_before_s = collecting_s

    def asked(self) -> None:
        """Note that a rollout is requested."""
        if math.isnan(self._first_asked):
            self._first_asked = time.monotonic() - self._collected_before_s

    def during(self, part: Activity) -> During:
        """Return a context of this part. After waiting for a rollout comes learning from it."""
        return During(self, part, "learning" if part == "waiting" else self._part)

    def begin(self, part: Activity | None) -> None:
        """End the present part and begin this one."""
        now = (time.perf_counter(), time.process_time())
        if self._part is not None:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now[0] - self._since[0]
            before = self._processor_seconds.get(self._part, 0.0)
            self._processor_seconds[self._part] = before + now[1] - self._since[1]
        self._part, self._since = part, now


class During:
    """Part of the time of the main process, as a context manager."""

    def __init__(self, timer: DriverTimer, part: Activity, after: Activity | None) -> None:
        self._timer, self._part, self._after = timer, part, after

    def __enter__(self) -> None:
        self._timer.begin(self._part)

    def __exit__(self, *raised: object) -> None:
        self._timer.begin(self._after)
