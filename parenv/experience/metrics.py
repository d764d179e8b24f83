"""Metrics for loggers: flat dicts of numbers from the statistics of pools, vector envs, populations and evaluations.

Each kind of statistics has a table of its metrics. The names are stable. The tables are also the reference page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

Value = Callable[[Any], float]
_PARTS = {
    "environment": "environments",
    "acting": "acting",
    "learning": "`loss_fn` and backward",
    "committing": "the rest of a rollout",
    "waiting": "waiting",
}


class Metric(NamedTuple):
    """One metric.

    Args:
        name: Name, such as ``"rollout/mean_return"``.
        value: Function of the statistics that returns the value. NaN means that it is unknown.
        meaning: Meaning for the reference page, with the unit.
    """

    name: str
    value: Value
    meaning: str


def metrics_of(table: tuple[Metric, ...], statistics: Any, prefix: str = "") -> dict[str, float]:
    """Return the values of all metrics of a table that are known, with a prefix before their names.

    >>> from types import SimpleNamespace
    >>> result = SimpleNamespace(policy_version=3, env_steps=math.nan)
    >>> metrics_of(EVALUATION[-2:], result)
    {'eval/policy_version': 3.0}
    """
    values = ((prefix + metric.name, float(metric.value(statistics))) for metric in table)
    return {name: value for name, value in values if math.isfinite(value)}


def _lag_mean(statistics: Any) -> float:
    lags: Mapping[int, int] = statistics.policy_lag
    return sum(lag * count for lag, count in lags.items()) / sum(lags.values()) if lags else math.nan


def _lag_max(statistics: Any) -> float:
    return max(statistics.policy_lag, default=math.nan)


def _share(part: str) -> Value:
    """Return the function of the share of a part in the time of all workers."""

    def share(statistics: Any) -> float:
        total = sum(getattr(statistics, f"{one}_seconds") for one in _PARTS)
        return float(getattr(statistics, f"{part}_seconds") / total) if total else math.nan

    return share


def _driver(part: str) -> Value:
    return lambda statistics: statistics.driver_seconds.get(part, 0.0)


def _refused(statistics: Any) -> float:
    return float(sum(statistics.refused_connections.values()))


def _lost_episodes(statistics: Any) -> float:
    return float(sum(statistics.lost_episodes.values()))


def _frozen(statistics: Any) -> float:
    return len(statistics.frozen_policies)


TASK = (
    Metric("mean_return", attrgetter("mean_return"), "Mean return. For several tasks, the mean of the tasks' means."),
    Metric("iqm_return", attrgetter("iqm_return"), "Interquartile mean of the returns."),
    Metric("success_rate", attrgetter("success_rate"), "Share of successes, from 0 to 1."),
    Metric("mean_length", attrgetter("mean_length"), "Mean length in env steps."),
    Metric("episodes", attrgetter("episodes"), "Number of episodes that were not lost."),
    Metric("lost_episodes", lambda report: sum(report.failures.values()), "Number of lost episodes."),
    Metric("seconds", attrgetter("seconds"), "Sum of the seconds of all episodes."),
)
"""Metrics of a task of an :class:`~parenv.evaluation.EvaluationReport`, and of all tasks together.

Their names get a prefix.
"""


def _of_figures(metric: Metric) -> Metric:
    """Return a metric of a task as a metric of an evaluation by a pool."""
    return metric._replace(name=f"eval/{metric.name}", value=lambda result: metric.value(result.episodes.figures))


EVALUATION = (
    *(_of_figures(metric) for metric in TASK if metric.name != "success_rate"),
    Metric("eval/policy_version", attrgetter("policy_version"), "Version that was evaluated."),
    Metric("eval/env_steps", attrgetter("env_steps"), "Env steps of the training when the evaluation began."),
)
"""Metrics of an :class:`~parenv.evaluation.EvaluationResult`. A pool has those of its last evaluation."""


def _evaluated(metric: Metric) -> Metric:
    """Return the metric of the last evaluation of a pool."""

    def value(statistics: Any) -> float:
        return math.nan if statistics.evaluation is None else metric.value(statistics.evaluation)

    return metric._replace(value=value)


POOL = (
    Metric("rollout/env_steps", attrgetter("env_steps"), "Env steps in the rollouts yielded."),
    Metric("rollout/env_steps_per_second", attrgetter("env_steps_per_second"), "Env steps per second since the start."),
    Metric("rollout/rollouts", attrgetter("rollouts"), "Number of rollouts yielded."),
    Metric("rollout/episodes", attrgetter("episodes"), "Number of finished episodes."),
    Metric("rollout/lost_episodes", _lost_episodes, "Episodes lost with a worker or an environment that failed."),
    Metric("rollout/mean_return", attrgetter("mean_return"), "Mean return of the last 100 episodes."),
    Metric("rollout/mean_length", attrgetter("mean_length"), "Mean length of the last 100 episodes in env steps."),
    Metric("rollout/seconds", attrgetter("rollout_seconds"), "Mean time of a worker for a rollout in seconds."),
    Metric("rollout/copied", attrgetter("copied_rollouts"), "Rollouts yielded as copies, because others are held."),
    Metric("rollout/dropped", attrgetter("dropped_rollouts"), "Rollouts dropped because they were too old."),
    Metric("gradient/gradients", attrgetter("gradients"), "Number of gradients yielded."),
    Metric("gradient/skipped", attrgetter("skipped_gradients"), "Gradients left out because they were not finite."),
    Metric("policy/version", attrgetter("policy_version"), "Newest version."),
    Metric("policy/lag_mean", _lag_mean, "Mean policy lag of all rollouts in publishes."),
    Metric("policy/lag_max", _lag_max, "Largest policy lag of all rollouts in publishes."),
    Metric("policy/skipped_publishes", attrgetter("skipped_publishes"), "Publishes skipped because of `min_kl`."),
    Metric("policy/frozen", _frozen, "Number of frozen versions."),
    *map(_evaluated, EVALUATION),
    Metric("workers/alive", attrgetter("workers_alive"), "Workers that run."),
    Metric("workers/restarts", attrgetter("worker_restarts"), "Workers and step workers that were replaced."),
    Metric("workers/env_restarts", attrgetter("env_restarts"), "Sub-environments replaced after an exception."),
    *(
        Metric(f"workers/{part}_share", _share(part), f"Share of the workers' time for {what}, from 0 to 1.")
        for part, what in _PARTS.items()
    ),
    Metric("time/seconds", attrgetter("seconds"), "Seconds since the start."),
    Metric("time/learning_seconds", _driver("learning"), "Seconds of the main process between two rollouts."),
    Metric("time/waiting_seconds", _driver("waiting"), "Seconds that the main process waited for workers."),
    Metric("time/publishing_seconds", _driver("publishing"), "Seconds of the main process in `publish`."),
    Metric("time/calling_seconds", _driver("calling"), "Seconds of the main process in evaluations and other calls."),
    Metric("hosts/connected", attrgetter("hosts"), "Connected worker hosts on other machines."),
    Metric("hosts/bytes_sent", attrgetter("bytes_sent"), "Bytes sent to hosts."),
    Metric("hosts/bytes_received", attrgetter("bytes_received"), "Bytes received from hosts."),
    Metric("hosts/refused", _refused, "Refused connections and messages from other machines."),
)
"""Metrics of :class:`~parenv.statistics.PoolStatistics`."""

VECTOR_ENV = (
    Metric("workers/restarts", attrgetter("worker_restarts"), "Workers that were replaced."),
    Metric("rollout/lost_episodes", _lost_episodes, "Episodes lost with a worker."),
    Metric("time/spinning_seconds", attrgetter("spinning_seconds"), "Seconds that this process polled for results."),
    Metric(
        "workers/spinning_seconds",
        attrgetter("workers_spinning_seconds"),
        "Seconds that workers polled for requests, summed over workers.",
    ),
)
"""Metrics of :class:`~parenv.statistics.VectorStatistics`."""

SESSIONS = (
    Metric("sessions/begun", attrgetter("begun"), "Sessions that have asked for an environment."),
    Metric("sessions/ended", attrgetter("ended"), "Sessions that have ended without a loss."),
    Metric("sessions/lost", lambda statistics: sum(statistics.lost.values()), "Sessions that lost their environment."),
    Metric("sessions/waiting", attrgetter("waiting"), "Sessions that wait for an environment."),
    Metric("sessions/leased", attrgetter("leased"), "Environments that sessions have."),
    Metric("sessions/operations", attrgetter("operations"), "Operations of environments that were answered."),
    Metric("sessions/resets_ahead", attrgetter("resets_ahead"), "Resets ahead that a session has used."),
    Metric("sessions/wasted_resets", attrgetter("wasted_resets"), "Resets ahead that no session could use."),
    Metric("workers/restarts", attrgetter("worker_restarts"), "Workers that were replaced."),
    Metric("time/waiting_seconds", attrgetter("waiting_seconds"), "Seconds that sessions waited for an environment."),
    Metric("time/reset_seconds", attrgetter("reset_seconds"), "Seconds of all resets."),
    Metric("time/step_seconds", attrgetter("step_seconds"), "Seconds of all steps."),
)
"""Metrics of :class:`~parenv.statistics.SessionStatistics`."""

POPULATION = (
    Metric("rollout/env_steps", attrgetter("env_steps"), "Env steps that members have learned from."),
    Metric("population/rounds", attrgetter("turns"), "Finished training rounds."),
    Metric("population/copies", attrgetter("copies"), "Members replaced by a copy of another."),
    Metric("population/deaths", attrgetter("deaths"), "Training rounds in which the member died."),
    Metric("population/lost_rounds", attrgetter("lost_turns"), "Training rounds lost with their worker, and repeated."),
    Metric("population/best_score", attrgetter("best_score"), "Highest score of a member."),
    Metric("population/mean_score", attrgetter("mean_score"), "Mean score of the members that have one."),
    Metric("workers/restarts", attrgetter("worker_restarts"), "Workers that were replaced."),
    Metric("time/evolving_seconds", attrgetter("evolving_seconds"), "Seconds of the main process for selection."),
    *(
        Metric(f"workers/{part}_seconds", attrgetter(f"{part}_seconds"), f"Seconds of the workers for {what}.")
        for part, what in {
            "switching": "making members and storing their states",
            "learning": "acting, stepping and `learn`",
            "fitness": "measuring",
        }.items()
    ),
)
"""Metrics of :class:`~parenv.statistics.PopulationStatistics`."""
