"""Evaluations of versions of the policy, while the main process waits or beside the training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parenv.crew.crew import Crew
from parenv.crew.open_call import OpenCall
from parenv.experience.agent_rollouts import evaluated
from parenv.experience.episodes import EpisodeStatistics, EvaluationResult
from parenv.experience.summary import Summarized
from parenv.pool.events import Evaluated
from parenv.pool.statistics import PoolStatistics
from parenv.pool.versions import Version, Versions
from parenv.worker.evaluation import APART, BESIDE, IN_PLACE


@dataclass
class BegunEvaluation:
    """Evaluation beside the training, and its result or error when that is known.

    Args:
        call: OpenCall that workers answer.
        version: Version that is evaluated.
        env_steps: Number of env steps before it.
        began: Time of its beginning on the performance counter.
        result: Result, or ``None``.
        error: Exception that it raised, or ``None``.
    """

    call: OpenCall
    version: Version
    env_steps: int
    began: float
    result: EvaluationResult | None = None
    error: Exception | None = None


class Evaluator:
    """Has workers run episodes, in one evaluation at a time, so that at most one version is kept for it.

    Args:
        crew: Crew of the workers.
        versions: Versions of the policies.
        totals: Statistics of the pool, which have the env steps before a version.
        tell: Function that receives the event of every result.

    Attributes:
        begun: Number of evaluations begun. Each one has seeds of its own.
        last: Last result, or ``None``.
    """

    def __init__(
        self,
        crew: Crew,
        versions: Versions,
        totals: PoolStatistics,
        tell: Callable[[Evaluated], object],
    ) -> None:
        self._crew, self._versions, self._totals, self._tell = crew, versions, totals, tell
        self.begun = 0
        self.last: EvaluationResult | None = None
        self._under_way: BegunEvaluation | None = None

    def versions_in_use(self) -> set[int]:
        """Return the version that is evaluated beside the training."""
        return set() if self._under_way is None else {self._under_way.version.number}

    def run(self, episodes: int, deterministic: bool, in_place: bool) -> EpisodeStatistics:
        """Run episodes with the newest version on all workers, and wait for them."""
        began, newest = time.perf_counter(), self._versions.newest
        calls = self._calls(episodes, deterministic, IN_PLACE if in_place else APART)
        answers = self._crew.ask("evaluate", calls, newest[:2])
        return self._done(answers, newest, self._totals.env_steps, began, beside=False).episodes

    def begin(self, episodes: int, deterministic: bool) -> BegunEvaluation:
        """Begin an evaluation during the training, and return it. If another is in progress, return that one."""
        if self._under_way is None:
            newest = self._versions.newest
            calls = self._calls(episodes, deterministic, BESIDE)
            call = self._crew.calls.begin("evaluate", calls, newest[:2])
            self._under_way = BegunEvaluation(call, newest, self._totals.env_steps, time.perf_counter())
        return self._under_way

    def finish(self, listen: Callable[[], object]) -> None:
        """Wait for the evaluation in progress, and take its result as :meth:`collect` does."""
        while self._under_way is not None and not self._under_way.call.is_answered:
            listen()
        self.collect()

    def collect(self) -> None:
        """Take the result of the evaluation in progress, if it has ended.

        Raises:
            Exception: Exception of the evaluation.
        """
        found, calls = self._under_way, self._crew.calls
        if found is None or not found.call.is_answered:
            return
        self._under_way = None
        try:
            answers = calls.take(found.call)
        except Exception as error:
            found.error = error
            raise
        found.result = self._done(answers, found.version, found.env_steps, found.began, beside=True)

    def _calls(self, episodes: int, deterministic: bool, where: str) -> dict[int, tuple[Any, ...]]:
        self.begun += 1
        newest, num_workers = self._versions.newest, len(self._crew.workers.shares)
        wanted = {w: episodes // num_workers + (w < episodes % num_workers) for w in range(num_workers)}
        return {w: (n, deterministic, self.begun, where, *newest) for w, n in wanted.items() if n}

    def _done(
        self, answers: Mapping[int, Any], version: Version, env_steps: int, began: float, beside: bool
    ) -> EvaluationResult:
        episodes = evaluated([answers[worker] for worker in sorted(answers)])
        weights = self._versions.weights_of(version) if beside else {}
        self.last = EvaluationResult(version.number, env_steps, episodes, weights)
        self._tell(Evaluated(self.last, began, beside))
        return self.last


class PendingEvaluation(Summarized):
    """Evaluation beside the training, see :meth:`parenv.AsyncWorkerPool.evaluate`.

    Args:
        begun: Evaluation as the pool keeps it.
        wait: Function that waits for its end.

    >>> from parenv import AsyncWorkerPool, Stop
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=0, num_envs=2) as pool:
    ...     pending = pool.evaluate(3, wait=False)
    ...     for rollout in pool.rollouts(Stop(env_steps=1024)):
    ...         pass  # learn
    ...     found = pending.result()
    >>> found.policy_version, len(found.episodes), pending.done
    (0, 3, True)
    """

    def __init__(self, begun: BegunEvaluation, wait: Callable[[], object]) -> None:
        self._begun, self._wait = begun, wait

    def _facts(self) -> dict[str, Any]:
        return {"policy_version": self.policy_version, "done": self.done, "result": self._begun.result}

    @property
    def policy_version(self) -> int:
        """Version that is evaluated."""
        return self._begun.version.number

    @property
    def done(self) -> bool:
        """True if the result is known. The stream of the pool takes the result when it arrives."""
        return self._begun.result is not None or self._begun.error is not None

    def result(self) -> EvaluationResult:
        """Wait for the result.

        Raises:
            Exception: Exception of an environment or of the policy.
            PoolClosedError: The pool was closed before.
        """
        if not self.done:
            self._wait()
        if self._begun.error is not None:
            raise self._begun.error
        assert self._begun.result is not None
        return self._begun.result
