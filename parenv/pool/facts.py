"""What a pool says of itself."""

from __future__ import annotations

from gymnasium import Space

from parenv.pool.advice import Advice
from parenv.pool.session import Session
from parenv.pool.statistics import PoolStatistics


class Facts:
    """The part of a pool that only reads."""

    _session: Session
    closed: bool

    @property
    def num_envs(self) -> int:
        """Sub-environments in all workers."""
        return sum(self._session.workers.shares)

    @property
    def num_workers(self) -> int:
        """Workers; 1 where the only one runs in this process."""
        return len(self._session.workers.shares)

    @property
    def single_observation_space(self) -> Space[object]:
        """Observation space of one sub-environment."""
        return self._session.observation_space

    @property
    def single_action_space(self) -> Space[object]:
        """Action space of one sub-environment."""
        return self._session.action_space

    @property
    def seed(self) -> int:
        """The root of all seeds: give it to another pool of the same layout to repeat this one."""
        return self._session.plan.seed

    @property
    def policy_version(self) -> int:
        """The newest version; 0 is the policy the pool was made with."""
        return self._session.version

    def statistics(self) -> PoolStatistics:
        """The figures so far."""
        return self._session.statistics()

    def advice(self) -> Advice:
        """What the run so far spent its time on, and how to set it, as figures and, printed, in words.

        Raises:
            ConfigurationError: no rollout has been yielded yet.
        """
        return self._session.advice()

    def __repr__(self) -> str:
        plan, about = self._session.plan, self._session.plan.about
        where = "in this process" if plan.inline else f"on {self.num_workers} workers"
        return (
            f"<{type(self).__name__} of {self.num_envs} sub-environments {where}: {plan.mode}, {about['parallelism']}, "
            f"rollouts of {about['rollout_length'] or 'whole episodes'}, policy version {self.policy_version}"
            f"{', closed' if self.closed else ''}>"
        )
