"""What a trace says of a run, as frozen data, and the sums over it that a report shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

WINDOW = 100
"""Episodes over which the mean return is taken, as in the statistics of a pool."""
NESTED = ("publish", "evaluate")
"""What the driver does while it learns: no time of its own, but a part of that."""
UNRECORDED = "unrecorded"


@dataclass(frozen=True)
class Track:
    """What one worker, or the driver, did. Seconds are counted from where the driver first asked for a rollout.

    Args:
        name: ``"driver"`` or such as ``"worker 3"``.
        pieces: by activity, when each began and ended, float64 ``[N, 2]`` in seconds.
        env_steps: of the rollouts of a worker, int64 ``[N]``, one for each piece ``"env"``.
    """

    name: str
    pieces: Mapping[str, Any]
    env_steps: Any

    @property
    def seconds(self) -> float:
        """Until the end of the last piece."""
        return max((float(pieces[:, 1].max()) for pieces in self.pieces.values() if len(pieces)), default=0.0)

    def fractions(self) -> dict[str, float]:
        """Which part of its time went where; what is left is :data:`UNRECORDED`, such as a rollout that was lost."""
        spent = {name: float((pieces[:, 1] - pieces[:, 0]).sum()) for name, pieces in self.pieces.items()}
        if "learn" in spent:
            learned_until = self.pieces["learn"][:, 1].max(initial=0.0)
            for name in NESTED:
                pieces = self.pieces.get(name, np.zeros((0, 2)))
                pieces = pieces[pieces[:, 0] < learned_until]
                spent["learn"] -= float((pieces[:, 1] - pieces[:, 0]).sum())
        total = self.seconds
        fractions = {name: max(0.0, seconds) / total for name, seconds in spent.items()} if total else {}
        return {**fractions, UNRECORDED: max(0.0, 1.0 - sum(fractions.values()))} if total else {}

    def env_steps_until(self, seconds: Any) -> Any:
        """Env steps that had been collected at each of these times, as if they were even within a rollout, ``[N]``."""
        if not len(self.env_steps):
            return np.zeros(len(seconds))
        total = np.cumsum(self.env_steps)
        # Where a trace breaks off there may be a piece of acting without the one of stepping.
        began, ended = self.pieces["act"][: len(total), 0], self.pieces["env"][:, 1]
        times = np.stack([began, ended], 1).ravel()
        return np.interp(seconds, times, np.stack([total - self.env_steps, total], 1).ravel())


@dataclass(frozen=True)
class Loss:
    """Something was lost and replaced.

    Args:
        what: ``"worker"`` or ``"sub-environment"``.
        worker: which, or whose.
        seconds: when.
        reason: in words.
    """

    what: str
    worker: int
    seconds: float
    reason: str

    @property
    def who(self) -> str:
        """Whose loss it was, in words."""
        return f"worker {self.worker}" if self.what == "worker" else f"{self.what} of worker {self.worker}"


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended, in the order in which they arrived, ``[K]`` each.

    Args:
        returns: NaN where one is not finite.
        lengths: env steps.
        env_steps: of the whole run when they arrived.
        seconds: when they arrived.
    """

    returns: Any
    lengths: Any
    env_steps: Any
    seconds: Any

    def __len__(self) -> int:
        return len(self.returns)

    def running_mean(self, window: int = WINDOW) -> Any:
        """Mean of the last returns at every episode, ``[K]``; NaN where there is none."""
        known = np.isfinite(self.returns)
        sums = np.cumsum(np.where(known, self.returns, 0.0))
        counts = np.cumsum(known)
        sums[window:], counts[window:] = sums[window:] - sums[:-window], counts[window:] - counts[:-window]
        return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


@dataclass(frozen=True)
class Evaluations:
    """Evaluations of the policy, ``[N]`` each.

    Args:
        seconds: when each was done.
        env_steps: of the run when it began, NaN in traces of older versions of parenv.
        mean_returns: NaN where one is not finite.
    """

    seconds: Any
    env_steps: Any
    mean_returns: Any


@dataclass(frozen=True)
class Timeline:
    """A run.

    Args:
        name: of the file.
        about: what the pool was, see :class:`parenv.records.trace.TraceWriter`.
        is_finished: whether the file was closed.
        driver: what the driver did.
        workers: what the workers did.
        arrived_s: when each rollout arrived, float64 ``[N]``.
        env_steps: of each, int64 ``[N]``.
        policy_lag: of each in publishes, int64 ``[N]``.
        episodes: that ended in them.
        evaluations: of the policy.
        losses: workers and sub-environments that were lost.
    """

    name: str
    about: Mapping[str, Any]
    is_finished: bool
    driver: Track
    workers: tuple[Track, ...]
    arrived_s: Any
    env_steps: Any
    policy_lag: Any
    episodes: Episodes
    evaluations: Evaluations
    losses: tuple[Loss, ...]

    @property
    def tracks(self) -> tuple[Track, ...]:
        """The driver and the workers."""
        return (self.driver, *self.workers)

    @property
    def num_envs(self) -> int:
        """Sub-environments in all workers."""
        return sum(self.about["sub-environments of each worker"])

    @property
    def seconds(self) -> float:
        """From the first rollout that was asked for to the end."""
        return max([track.seconds for track in self.tracks])

    @property
    def total_env_steps(self) -> int:
        """Env steps in all rollouts."""
        return int(self.env_steps.sum())

    @property
    def env_steps_per_second(self) -> float:
        """Over the whole time."""
        return self.total_env_steps / self.seconds if self.seconds else 0.0

    @property
    def restarts(self) -> int:
        """How often another process took the place of a worker."""
        return sum(len(track.pieces.get("restart", ())) for track in self.workers)

    @property
    def cycle_s(self) -> float:
        """Typical seconds from one rollout of a worker to its next; all the time there is where there is no next."""
        cycles = [np.diff(track.pieces["env"][:, 1]) for track in self.workers if "env" in track.pieces]
        known = np.concatenate(cycles) if cycles else np.zeros(0)
        # What had ended before the first one was asked for says nothing.
        known = known[known > 0]
        return float(np.median(known)) if len(known) else self.seconds

    def env_steps_at(self, seconds: float) -> float:
        """Env steps of the run, those before the trace with it, that had arrived at a time."""
        before = int(np.searchsorted(self.arrived_s, seconds, "right"))
        return float(self.about["env_steps"] + self.env_steps[:before].sum())
