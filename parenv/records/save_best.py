"""Keeping the agent that is best for sure, and not the one that was luckiest."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from parenv.argument_checks import at_least
from parenv.errors import ConfigurationError
from parenv.experience.agent_rollouts import AgentEpisodes
from parenv.experience.episodes import EvaluationResult
from parenv.experience.summary import Summarized
from parenv.policy.snapshots import module_of
from parenv.process.cores import own_file
from parenv.protocol.data import pack
from parenv.records.checkpoint import load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from parenv.pool.evaluation import PendingEvaluation
    from parenv.pool.pool import AsyncWorkerPool

FORMAT = 1
MIN_EPISODES = 5
_KIND = "parenv best agent"


class SaveBest(Summarized):
    """Evaluates versions of the policy beside the training, and keeps the best in a file.

    The best is the one whose return is highest for sure: by the lower bound of a one-sided confidence interval of its
    mean, so that one of few lucky episodes does not count for more than one that is good. Call :meth:`update` once per
    rollout, and :meth:`finish` behind the loop.

    Args:
        path: of the file, for :func:`~parenv.load_checkpoint`: ``weights``, ``policy_version``, ``env_steps``,
            ``returns``, ``lengths``, ``lower_bound``, ``confidence``, ``pool`` and ``arguments``. It is replaced at
            once or not at all, so that it is whole whenever the run is killed; one that is there already only by a
            better one: delete it to begin anew. Rank 1 writes to ``best-rank1.ckpt`` for ``best.ckpt``.
        episodes: of each evaluation, at least 5: the bound of fewer says nothing.
        every: env steps from the beginning of one evaluation to that of the next, at least.
        confidence: that the mean return is above the bound.
        deterministic: as in :meth:`~parenv.AsyncWorkerPool.evaluate`.
        policy: where policies have names, that of the one to keep. The return of an episode is then the mean of those
            of its agents that acted by it, and ``policy_version`` in the file that of all together.
        arguments: of your script, plain data such as ``vars(arguments)``; kept in the file.

    Attributes:
        lower_bound: that of the agent in the file; minus infinity where there is none.

    Raises:
        ConfigurationError: an argument is wrong, or there is another file.
        NotDataError: ``arguments`` are not plain data.

    >>> import tempfile, torch
    >>> from parenv import AsyncWorkerPool, Stop, TorchPolicy, load_checkpoint
    >>> class Agent(torch.nn.Linear):
    ...     def forward(self, observations):
    ...         return super().forward(observations).argmax(-1)
    >>> agent = Agent(4, 2)
    >>> with (
    ...     tempfile.TemporaryDirectory() as folder,
    ...     AsyncWorkerPool("CartPole-v1", agent, num_workers=0, num_envs=4, rollout_length=32) as pool,
    ... ):
    ...     best = SaveBest(f"{folder}/best.ckpt", episodes=5, every=1000, arguments={"lr": 0.1})
    ...     for rollout in pool.rollouts(Stop(env_steps=2000, evaluation_return=475)):
    ...         version = pool.publish(agent)
    ...         best.update(pool)
    ...     best.finish(pool)
    ...     found = load_checkpoint(f"{folder}/best.ckpt")
    >>> len(found["returns"]), found["lower_bound"] == best.lower_bound, sorted(found["weights"]), found["arguments"]
    (5, True, ['bias', 'weight'], {'lr': 0.1})
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        episodes: int = 20,
        every: int = 50_000,
        *,
        confidence: float = 0.95,
        deterministic: bool = True,
        policy: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = Path(own_file(path))
        self._episodes, self._every = at_least("episodes", episodes, MIN_EPISODES), at_least("every", every, 1)
        if not 0.5 <= confidence < 1:
            raise ConfigurationError(f"confidence must be at least 0.5 and below 1, got {confidence}")
        self._confidence, self._deterministic, self._policy = confidence, deterministic, policy
        self._arguments = dict(arguments or {})
        pack(self._arguments)
        self._kept = _kept(self._path)
        self.lower_bound: float = self._kept.get("lower_bound", -math.inf)
        self._pending: PendingEvaluation | None = None
        self._due, self._evaluated = -math.inf, -1

    def update(self, pool: AsyncWorkerPool[Any]) -> None:
        """Look at the evaluation under way, and begin one if it is time.

        Raises:
            ConfigurationError: the pool's policy has no torch module, or the file is of another agent.
            Exception: what an environment raised in the evaluation.
        """
        self._look(pool)
        env_steps = pool.statistics().env_steps
        if self._pending is None and env_steps >= self._due and pool.policy_version != self._evaluated:
            self._begin(pool, env_steps)

    def finish(self, pool: AsyncWorkerPool[Any]) -> None:
        """Wait for the evaluation under way, and evaluate the newest version. Raises what :meth:`update` does."""
        if self._pending is not None:
            self._pending.result()
            self._look(pool)
        while pool.policy_version != self._evaluated:
            self._begin(pool, pool.statistics().env_steps).result()
            self._look(pool)

    def _facts(self) -> dict[str, Any]:
        kept = {name: self._kept.get(name) for name in ("policy_version", "env_steps")}
        return {"path": repr(str(self._path)), "lower_bound": f"{self.lower_bound:.6g}", **kept}

    def _begin(self, pool: AsyncWorkerPool[Any], env_steps: float) -> PendingEvaluation:
        if module_of(self._chosen(pool._session.plan.job.policy)) is None:
            raise ConfigurationError(
                "SaveBest keeps the weights of a policy with a torch module: an nn.Module, a TorchPolicy, or a Policy "
                "with a module attribute, which this pool does not have"
            )
        self._due = env_steps + self._every
        self._pending = pool.evaluate(self._episodes, self._deterministic, wait=False)
        return self._pending

    def _chosen(self, policies: Any) -> Any:
        """The policy to keep, of a pool's."""
        if not isinstance(policies, Mapping):
            if self._policy is not None:
                raise ConfigurationError(
                    f"the pool's policy has no name: leave policy={self._policy!r} out of SaveBest"
                )
            return policies
        if self._policy not in policies:
            raise ConfigurationError(
                f"the pool has the policies {list(policies)}: say which one to keep, "
                f"SaveBest(path, policy={next(iter(policies))!r}); got policy={self._policy!r}"
            )
        return policies[self._policy]

    def _look(self, pool: AsyncWorkerPool[Any]) -> None:
        pending = self._pending
        if pending is None or not pending.done:
            return
        self._pending = None
        found = pending.result()
        if len(found.episodes) < self._episodes:  # Somebody else's, that was under way.
            self._due = -math.inf
            return
        self._evaluated = found.policy_version
        returns = found.episodes.returns if self._policy is None else _returns_by(self._policy, found.episodes)
        bound = lower_bound(returns.tolist(), self._confidence)
        if bound > self.lower_bound:
            self._keep(pool, found, returns, bound)

    def _keep(self, pool: AsyncWorkerPool[Any], found: EvaluationResult, returns: Any, bound: float) -> None:
        weights = found.weights if self._policy is None else found.weights[self._policy]
        _check_same_agent(self._path, self._kept, weights)
        data = {
            _KIND: FORMAT,
            "weights": weights,
            "policy_version": found.policy_version,
            "env_steps": found.env_steps,
            "returns": returns,
            "lengths": found.episodes.lengths,
            "lower_bound": bound,
            "confidence": self._confidence,
            "pool": {"about": repr(pool), "seed": pool.seed},
            "arguments": self._arguments,
        }
        save_checkpoint(self._path, data)
        self._kept, self.lower_bound = data, bound


def lower_bound(returns: Sequence[float], confidence: float) -> float:
    """Lower bound of a one-sided confidence interval of the mean: ``mean - t * s / sqrt(n)``.

    Args:
        returns: of ``n`` episodes.
        confidence: that the mean is above the bound, if returns were normally distributed.

    >>> lower_bound([9.0, 10.0, 11.0, 10.0, 10.0], 0.95)
    9.3259...
    >>> lower_bound([500.0] * 20, 0.95)
    500.0
    """
    count = len(returns)
    return float(np.mean(returns) - _t(confidence, count - 1) * np.std(returns, ddof=1) / math.sqrt(count))


def _t(confidence: float, freedom: int) -> float:
    """Quantile of Student's t distribution: Abramowitz and Stegun 26.7.5, within 0.1 % from 4 degrees of freedom on."""
    z = NormalDist().inv_cdf(confidence)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, 1))


def _kept(path: Path) -> Mapping[str, Any]:
    """What is in the file, if there is one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = load_checkpoint(path) if path.exists() else {}
    except OSError as error:
        raise ConfigurationError(f"cannot keep an agent in {path}: {error.strerror}") from error
    if path.exists() and not (isinstance(found, Mapping) and found.get(_KIND) == FORMAT):
        raise ConfigurationError(f"{path} is there already, and no file of SaveBest: name another one")
    return found


def _returns_by(policy: str, episodes: Any) -> Any:
    """Of each episode in which somebody acted by a policy, the mean return of those who did, float64 ``[n]``."""
    parts = episodes.by_policy.get(policy, AgentEpisodes.together([[[]] * 6]))
    ids = np.stack([np.asarray(parts.env_ids, np.int64), parts.numbers])
    found, which = np.unique(ids, axis=1, return_inverse=True)
    if found.shape[1] < MIN_EPISODES:
        raise ConfigurationError(
            f"in {found.shape[1]} of {len(episodes)} episodes somebody acted by policy {policy!r}, which is too few to "
            f"judge it: have policy_of name it in at least {MIN_EPISODES} of an evaluation"
        )
    return np.bincount(which.reshape(-1), parts.returns) / np.bincount(which.reshape(-1))


def _check_same_agent(path: Path, kept: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    shapes = [{name: tuple(one.shape) for name, one in weights.items()} for weights in (kept.get("weights", {}), found)]
    if kept and shapes[0] != shapes[1]:
        differing = sorted(name for name in {*shapes[0], *shapes[1]} if shapes[0].get(name) != shapes[1].get(name))
        raise ConfigurationError(
            f"{path} keeps another agent, which differs in {', '.join(differing)}: delete it, or name another file"
        )
