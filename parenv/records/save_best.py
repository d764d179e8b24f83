"""SaveBest, which keeps the agent with the highest lower bound of its return."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parenv.argument_checks import at_least
from parenv.errors import ConfigurationError
from parenv.experience.agent_rollouts import AgentEpisodes
from parenv.experience.episode_figures import student_t
from parenv.experience.episodes import EvaluationResult
from parenv.experience.summary import Summarized
from parenv.policy.assignment import UNNAMED
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
    """Evaluates versions of the policy beside the training, and keeps the best one in a file.

    The best version has the highest lower bound of a one-sided confidence interval of its mean return. A few lucky
    episodes therefore do not make a version the best. Call :meth:`update` once per rollout, and :meth:`finish` after
    the loop.

    Args:
        path: Path of the file, for :func:`~parenv.load_checkpoint`. It has ``weights``, ``policy_version``,
            ``env_steps``, ``returns``, ``lengths``, ``lower_bound``, ``confidence``, ``pool`` and ``arguments``. A
            version is written completely or not at all, even if the run is killed. Only a better version replaces an
            existing file; delete it to start again. Rank 1 writes to ``best-rank1.ckpt`` for ``best.ckpt``.
        episodes: Number of episodes of each evaluation, at least 5.
        every: Minimum number of env steps between the beginnings of two evaluations.
        confidence: Confidence that the mean return is above the bound.
        deterministic: As in :meth:`~parenv.AsyncWorkerPool.evaluate`.
        policy: Name of the policy to keep, with named policies. The return of an episode is then the mean over its
            agents with this policy, and ``policy_version`` in the file is the number of publishes.
        arguments: Arguments of your script to store in the file, plain data such as ``vars(arguments)``.

    Attributes:
        lower_bound: Lower bound of the agent in the file. Minus infinity without a file.

    Raises:
        ConfigurationError: An argument is wrong, or the file is of another kind.
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
        """Take the result of the pending evaluation, and begin another one if it is time.

        Raises:
            ConfigurationError: The policy of the pool has no torch module, or the file has another agent.
            Exception: Exception of an environment in the evaluation.
        """
        self._look(pool)
        env_steps = pool.statistics().env_steps
        if self._pending is None and env_steps >= self._due and pool.policy_version != self._evaluated:
            self._begin(pool, env_steps)

    def finish(self, pool: AsyncWorkerPool[Any]) -> None:
        """Wait for the pending evaluation, and evaluate the newest version. It raises the errors of :meth:`update`."""
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
        if module_of(self._chosen(pool._session.plan.job.policies)) is None:
            raise ConfigurationError(
                "SaveBest needs a pool whose policy has a torch module. Use an nn.Module, a TorchPolicy, or a Policy "
                "with the attribute module."
            )
        self._due = env_steps + self._every
        self._pending = pool.evaluate(self._episodes, self._deterministic, wait=False)
        return self._pending

    def _chosen(self, policies: Mapping[str, Any]) -> Any:
        """Return the policy to keep."""
        name = UNNAMED if self._policy is None else self._policy
        if name in policies:
            return policies[name]
        if UNNAMED in policies:
            raise ConfigurationError(
                f"SaveBest.policy must be None for a pool whose policy has no name, got {self._policy!r}. Leave it out."
            )
        raise ConfigurationError(
            f"SaveBest.policy must be one of the pool's policies {list(policies)}, got {self._policy!r}. Pass "
            f"SaveBest(path, policy={next(iter(policies))!r})."
        )

    def _look(self, pool: AsyncWorkerPool[Any]) -> None:
        pending = self._pending
        if pending is None or not pending.done:
            return
        self._pending = None
        found = pending.result()
        if len(found.episodes) < self._episodes:  # Another part of the program began this evaluation.
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
        returns: Returns of ``n`` episodes.
        confidence: Confidence that the mean is above the bound, if returns are normally distributed.

    >>> lower_bound([9.0, 10.0, 11.0, 10.0, 10.0], 0.95)
    9.3258...
    >>> lower_bound([500.0] * 20, 0.95)
    500.0
    """
    count = len(returns)
    return float(np.mean(returns) - student_t(confidence, count - 1) * np.std(returns, ddof=1) / math.sqrt(count))


def _kept(path: Path) -> Mapping[str, Any]:
    """Return the content of the file, empty if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        found = load_checkpoint(path) if path.exists() else {}
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read or written: {error.strerror}. Name another file.") from error
    if path.exists() and not (isinstance(found, Mapping) and found.get(_KIND) == FORMAT):
        raise ConfigurationError(f"{path} exists already, and is not a file of SaveBest. Name another file.")
    return found


def _returns_by(policy: str, episodes: Any) -> Any:
    """Return the mean return of the agents with a policy, of each episode in which there were any, float64 ``[n]``."""
    parts = episodes.by_policy.get(policy, AgentEpisodes.together([[[]] * 6]))
    ids = np.stack([np.asarray(parts.env_ids, np.int64), parts.numbers])
    found, which = np.unique(ids, axis=1, return_inverse=True)
    if found.shape[1] < MIN_EPISODES:
        raise ConfigurationError(
            f"policy {policy!r} must act in at least {MIN_EPISODES} episodes of an evaluation, but acted in "
            f"{found.shape[1]} of {len(episodes)}. Let policy_of return it more often, or raise SaveBest's episodes."
        )
    return np.bincount(which.reshape(-1), parts.returns) / np.bincount(which.reshape(-1))


def _check_same_agent(path: Path, kept: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    shapes = [{name: tuple(one.shape) for name, one in weights.items()} for weights in (kept.get("weights", {}), found)]
    if kept and shapes[0] != shapes[1]:
        differing = sorted(name for name in {*shapes[0], *shapes[1]} if shapes[0].get(name) != shapes[1].get(name))
        raise ConfigurationError(
            f"{path} must contain the same agent, but it differs in {', '.join(differing)}. Delete the file, or name "
            "another one."
        )
