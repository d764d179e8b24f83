"""Sub-environments of a worker that acts for all of them while other processes step them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode

from parenv.crew.partition import split
from parenv.envs.factories import Factories
from parenv.errors import ConfigurationError
from parenv.options import WorkerOptions
from parenv.vector.env import ParallelVectorEnv
from parenv.vector.vector_state import StepResults


@dataclass(frozen=True)
class StepWorkersFactories(Factories):
    """Factories of one vector env for each worker of a pool.

    Args:
        options: Options of the workers.
        shares: Number of sub-environments of each worker.
        first_env_id: env_id of the first sub-environment.
    """

    options: WorkerOptions
    shares: tuple[int, ...]
    first_env_id: int

    @classmethod
    def of(cls, factories: Factories, options: WorkerOptions, shares: tuple[int, ...], first_env_id: int) -> Self:
        """Wrap factories of single environments.

        Raises:
            ConfigurationError: A worker has fewer sub-environments than step workers.
        """
        if min(shares) < (options.step_workers or 1):
            raise ConfigurationError(
                f"step_workers must be at most the number of sub-environments of a worker, {min(shares)}, got "
                f"{options.step_workers}. Raise num_envs, or lower step_workers or num_workers."
            )
        return cls(factories.functions, factories.count, factories.registered, options, shares, first_env_id)

    def make(self, env_id: int) -> StepWorkersEnv:
        """Make the vector env whose first sub-environment has this env_id."""
        firsts = self.first_env_id + np.cumsum([0, *self.shares[:-1]])
        count = self.shares[firsts.tolist().index(env_id)] if env_id in firsts else min(self.shares)
        makers = [self.function(one) for one in range(env_id, env_id + count)]
        return StepWorkersEnv(makers, self.options)


class StepWorkersEnv(ParallelVectorEnv):
    """The vector env of a worker that acts, with a view of each half for double buffering.

    Args:
        env_fns: One factory for each sub-environment.
        options: Options of the worker that acts.

    Attributes:
        halves: Views of the sub-environments of each half of the processes; one view if there is one process.
    """

    def __init__(self, env_fns: Sequence[Any], options: WorkerOptions) -> None:
        limit = options.step_timeout_s
        # Half the limit: a step worker that hangs is restarted before the main process kills the worker that acts.
        inner = replace(
            options,
            device="cpu",
            rollout_device=None,
            step_workers=None,
            setup_fn=None,
            cleanup_fn=None,
            on_env_error="raise",
            recycle_episodes=None,  # The factories make such sub-environments already, also in another interpreter.
            python=None,
            step_timeout_s=None if limit is None else limit / 2,
        )
        processes = options.step_workers or 1
        super().__init__(
            env_fns,
            autoreset_mode=AutoresetMode.SAME_STEP,
            num_workers=processes,
            on_worker_death="raise" if options.restart is None else "restart",
            workers=inner,
        )
        # The process that acts reports the exception to the main process.
        self._session.logs_errors = False
        middle = sum(split(self.num_envs, processes)[: processes // 2])
        bounds = itertools.pairwise(sorted({0, middle, self.num_envs}))
        self.halves = [HalfOfEnvs(self, np.arange(*both)) for both in bounds]

    @property
    def step_worker_restarts(self) -> int:
        """Number of processes that were replaced so far."""
        return self._session.backend.worker_restarts

    def send_to(self, env_ids: Any, actions: Any) -> None:
        """Begin a step of these sub-environments. None of them may already have a step in progress."""
        with self._one_thread:
            self._check_idle("send")
            self._session.send(actions, env_ids)

    def recv_from(self, env_ids: Any) -> StepResults:
        """Return the results of these sub-environments. All of them must have a step in progress."""
        with self._one_thread:
            self._check_idle("recv")
            return self._session.recv_from(env_ids)


class HalfOfEnvs:
    """Some sub-environments of a vector env, with the methods that :class:`~parenv.envs.VectorStepper` calls.

    Args:
        whole: The vector env.
        env_ids: Sub-environments, int64 ``[num_envs]``.
    """

    def __init__(self, whole: StepWorkersEnv, env_ids: Any) -> None:
        self._whole, self._env_ids, self.num_envs = whole, env_ids, len(env_ids)
        self.metadata = whole.metadata
        self.single_observation_space = whole.single_observation_space
        self.single_action_space = whole.single_action_space

    def step_async(self, actions: Any) -> None:
        """Begin a step."""
        self._whole.send_to(self._env_ids, actions)

    def step_wait(self) -> StepResults:
        """Wait for the results of the step."""
        return self._whole.recv_from(self._env_ids)
