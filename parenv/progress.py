"""Figures of a running pool: a live display, lines of text or JSON, and curves for TensorBoard.

The display in a terminal needs the extra ``progress``, the curves need ``tensorboard``.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from typing import IO, Any

from parenv.bench import display
from parenv.experience.metrics import POOL
from parenv.libraries import require
from parenv.options import Stop
from parenv.pool.pool import AsyncWorkerPool
from parenv.pool.statistics import PoolStatistics
from parenv.process.cores import this_learner


class ProgressDisplay:
    """Display of a pool's figures: a table in a terminal if ``rich`` is installed, and lines of text in other files.

    Call :meth:`update` once per rollout. With several learners, only rank 0 writes.

    Args:
        pool: Pool to display.
        stop: Criteria of the stream, which are shown as targets. Default: no targets.
        title: Heading. Default: ``"parenv"``.
        file: File to write to. Default: standard error.
        as_json: Whether to write lines of JSON with the names of
            :meth:`parenv.AsyncWorkerPool.metrics`, and ``null`` for unknown values. Default: ``False``.

    >>> import io
    >>> shown = io.StringIO()
    >>> with AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0, num_workers=0) as pool:
    ...     with ProgressDisplay(pool, file=shown) as display:
    ...         for rollout in pool.rollouts(Stop(env_steps=256)):
    ...             display.update()
    >>> "env steps 256" in shown.getvalue()
    True
    """

    def __init__(
        self,
        pool: AsyncWorkerPool[Any],
        stop: Stop | None = None,
        *,
        title: str = "parenv",
        file: IO[str] | None = None,
        as_json: bool = False,
    ) -> None:
        self._pool, self._stop, self._title, self._as_json = pool, stop or Stop(), title, as_json
        self._is_quiet = this_learner().rank > 0
        self._display = display.Display(file or sys.stderr, plain=as_json or self._is_quiet)
        self._began = time.monotonic()
        self._recent = (self._began, 0)

    def __enter__(self) -> ProgressDisplay:
        self._began = time.monotonic()
        self._recent = (self._began, self._pool.statistics().env_steps)
        self._display.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._show()
        finally:
            self._display.stop()

    def update(self) -> None:
        """Show the present figures, at most ten times per second in a terminal and every 5 s in other files."""
        if self._display.is_due():
            self._show()

    def _show(self) -> None:
        if self._is_quiet:
            return
        if self._as_json:
            statistics = self._pool.statistics()
            unknown = dict.fromkeys(metric.name for metric in POOL)
            found = {"env_steps": statistics.env_steps, **unknown, **statistics.metrics()}
            self._display.write(json.dumps(found))
            return
        figures = self._figures(time.monotonic())
        line = "  ".join(f"{name} {value}" for name, value in figures.items())
        self._display.show(display.Table(self._title, ("", ""), list(figures.items())), line)

    def _figures(self, now: float) -> dict[str, str]:
        statistics = self._pool.statistics()
        stop = self._stop
        before, steps_before = self._recent
        rate = (statistics.env_steps - steps_before) / (now - before) if now > before else 0.0
        if now - before > 2.0:
            self._recent = (now, statistics.env_steps)
        wanted = f" / {stop.mean_return:g}" if math.isfinite(stop.mean_return) else ""
        limit = f" of {stop.seconds:.0f} s" if math.isfinite(stop.seconds) else ""
        lags = statistics.policy_lag
        return {
            "env steps": f"{statistics.env_steps:,}",
            "env steps/s": f"{rate:,.0f}",
            "episodes": f"{statistics.episodes:,}",
            "mean return": f"{statistics.mean_return:.1f}{wanted}",
            "policy lag": f"{mean_lag(statistics):.1f} (max {max(lags)})" if lags else "none yet",
            "workers alive": f"{statistics.workers_alive} / {self._pool.num_workers}",
            "time": f"{now - self._began:.0f} s{limit}",
        }


class TensorBoardWriter:
    """Writer of a pool's :meth:`~parenv.AsyncWorkerPool.metrics` for TensorBoard, as curves over env steps.

    Call :meth:`update` once per rollout. With several learners, only rank 0 writes.

    Args:
        pool: Pool whose figures are written.
        log_dir: Directory for ``tensorboard --logdir``.
        every_s: Minimum time between two points, in seconds. Default: 1.

    Raises:
        ConfigurationError: ``tensorboard`` is not installed.

    >>> import tempfile
    >>> with (
    ...     tempfile.TemporaryDirectory() as folder,
    ...     AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0, num_workers=0) as pool,
    ...     TensorBoardWriter(pool, folder) as writer,
    ... ):
    ...     for rollout in pool.rollouts(Stop(env_steps=256)):
    ...         writer.update()
    """

    def __init__(self, pool: AsyncWorkerPool[Any], log_dir: str | os.PathLike[str], every_s: float = 1.0) -> None:
        require("torch.utils.tensorboard", "TensorBoardWriter", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._pool, self._every_s, self._written = pool, every_s, -math.inf
        self._writer = SummaryWriter(os.fspath(log_dir)) if this_learner().rank == 0 else None  # type: ignore[no-untyped-call,unused-ignore]

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def update(self) -> None:
        """Write a point if ``every_s`` has passed since the last one."""
        now = time.monotonic()
        if now - self._written >= self._every_s:
            self._written = now
            self._write()

    def close(self) -> None:
        """Write the last point, and flush all points to disk."""
        self._write()
        if self._writer is not None:
            self._writer.close()  # type: ignore[no-untyped-call,unused-ignore]

    def _write(self) -> None:
        statistics = self._pool.statistics()
        for name, value in statistics.metrics().items() if self._writer is not None else ():
            self._writer.add_scalar(name, value, statistics.env_steps)  # type: ignore[no-untyped-call,union-attr,unused-ignore]


_FORMER_NAMES = {
    "rollout/ep_rew_mean": "rollout/mean_return",
    "rollout/ep_len_mean": "rollout/mean_length",
    "rollout/episodes": "rollout/episodes",
    "rollout/policy_lag_mean": "policy/lag_mean",
    "rollout/policy_version": "policy/version",
    "eval/mean_reward": "eval/mean_return",
    "eval/mean_ep_length": "eval/mean_length",
    "time/env_steps_per_second": "rollout/env_steps_per_second",
    "time/time_elapsed": "time/seconds",
    "time/iterations": "rollout/rollouts",
    **{name: name for name in ("workers/alive", "workers/restarts", "workers/env_restarts")},
    **{name: name for name in (f"workers/{part}_share" for part in ("environment", "acting", "learning", "waiting"))},
}


def scalars(statistics: PoolStatistics) -> dict[str, float]:
    """Return a pool's figures by their former names. Unknown figures are NaN.

    .. deprecated:: 0.3
        Use :meth:`parenv.AsyncWorkerPool.metrics`.
    """
    warnings.warn("scalars(statistics) is now pool.metrics(), with other names", DeprecationWarning, stacklevel=2)
    found = statistics.metrics()
    return {former: found.get(name, math.nan) for former, name in _FORMER_NAMES.items()}


def mean_lag(statistics: PoolStatistics) -> float:
    """Return the mean policy lag in publishes, or NaN before the first rollout."""
    return statistics.metrics().get("policy/lag_mean", math.nan)
