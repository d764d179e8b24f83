"""Statistics of a session pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parenv.experience.metrics import SESSIONS, metrics_of


@dataclass(frozen=True)
class SessionStatistics:
    """Statistics of a :class:`~parenv.SessionPool` so far.

    Args:
        num_envs: Number of environments, with those that are reset ahead.
        waiting: Number of sessions that wait for an environment.
        leased: Number of environments that sessions have.
        free: Number of environments that no session has.
        ahead: Number of environments that are reset ahead, or are being reset.
        busy: Number of environments that finish the last operation of a session that has ended.
        away: Number of environments whose process is being replaced.
        begun: Number of sessions that have asked for an environment.
        ended: Number of sessions that have ended without a loss.
        lost: Number of sessions that have lost their environment, by reason.
        resets_ahead: Number of resets ahead that a session has used.
        wasted_resets: Number of resets ahead that no session could use.
        operations: Number of operations of environments that were answered.
        worker_restarts: Number of processes that were replaced.
        waiting_seconds: Seconds for which sessions have waited for an environment.
        reset_seconds: Seconds for which environments were reset, as seen from the main process.
        step_seconds: Seconds for which environments stepped, as seen from the main process.
    """

    num_envs: int = 0
    waiting: int = 0
    leased: int = 0
    free: int = 0
    ahead: int = 0
    busy: int = 0
    away: int = 0
    begun: int = 0
    ended: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    resets_ahead: int = 0
    wasted_resets: int = 0
    operations: int = 0
    worker_restarts: int = 0
    waiting_seconds: float = 0.0
    reset_seconds: float = 0.0
    step_seconds: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Return the statistics as a flat dict for a logger, see :meth:`parenv.AsyncWorkerPool.metrics`."""
        return metrics_of(SESSIONS, self)
