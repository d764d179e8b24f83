"""Step one ``VectorEnv`` of the user, with results written to the rows of a rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from parenv.envs.autoreset import Autoreset, Resets, check_reset_with_mask
from parenv.envs.env_arrays import EnvArrays
from parenv.envs.episode_statistics import EpisodeTally, is_recorded
from parenv.envs.final_observations import FinalObservations
from parenv.envs.fitting import Fit
from parenv.envs.infos import Found, row_of
from parenv.envs.targets import End, Target
from parenv.envs.values import Rows
from parenv.errors import ConfigurationError, ObservationError
from parenv.experience.endings import INDEX, RESTARTED
from parenv.memory.kinds import ENDED_BY, WORKER_RESTARTED
from parenv.memory.spaces import flatten, is_single, leaves
from parenv.memory.status_slot import StatusSlot
from parenv.memory.trees import ALL, as_tensor, assign, deep_copy

_UNKNOWN = INDEX[RESTARTED]


class VectorStepper:
    """One ``VectorEnv``, stepped as a whole.

    Args:
        env: The environment.
        first_env_id: env_id of the first sub-environment.
        status: Status slot of the worker.
        fit: Checks of observations.

    Attributes:
        autoreset: Autoreset mode that the environment declares.
    """

    writes_tensors = True
    """Whether the rows of observations may be tensors."""

    def __init__(self, env: Any, first_env_id: int, status: StatusSlot, fit: Fit | None = None) -> None:
        self._env, self.autoreset = env, Autoreset.declared_by(env)
        self.num_envs: int = env.num_envs
        self.observation_space: Space[Any] = env.single_observation_space
        self.action_space: Space[Any] = env.single_action_space
        self._leaves = leaves(self.observation_space)
        self._first, self._fit, self._status = first_env_id, fit or Fit(), status
        self._is_plain = is_single(self._leaves) and not self._fit.finite
        self._finals = FinalObservations(env, self.autoreset, self._leaves, self._fit)
        self._arrays = EnvArrays(env, leaves(self.action_space))
        self._resets = Resets(env, first_env_id, self.autoreset.spends_step)
        self.tally = EpisodeTally(self.num_envs, is_recorded(env))

    @property
    def envs(self) -> list[Any]:
        """List with the ``VectorEnv``."""
        return [self._env]

    @property
    def resetting(self) -> Any:
        """Flags of the sub-environments that only reset in the next step, bool ``[B]``."""
        return self._resets.pending

    def reset(self, seeds: Sequence[int | None], rows: Rows) -> Sequence[Found]:
        """Begin an episode in every sub-environment and write the first observations; return the info of each."""
        self._status.begin("reset")
        observations, infos = self._env.reset(seed=_seed_of(self._env, seeds))
        self._arrays.settle(flatten(self._leaves, observations))
        self._write(rows, observations)
        self._resets.clear()
        self.tally.begin()
        return [row_of(infos, column) for column in range(self.num_envs)]

    def step(self, actions: Rows, rows: Rows, step: int, target: Target) -> None:
        """Step all sub-environments, and reset those that the caller must reset because their episode ended."""
        self._status.begin("step")
        self._take(self._env.step(self._arrays.actions(actions)), rows, step, target)

    def send(self, actions: Rows) -> None:
        """Begin a step with ``step_async`` of the environment."""
        self._status.begin("step")
        self._env.step_async(self._arrays.actions(actions))

    def receive(self, rows: Rows, step: int, target: Target) -> None:
        """Wait for the step, and write its results."""
        self._take(self._env.step_wait(), rows, step, target)

    def _take(self, stepped: Any, rows: Rows, step: int, target: Target) -> None:
        observations, rewards, terminated, truncated, infos = stepped
        per_env, read = (self.num_envs,), self._arrays.read
        terminated, truncated = read("terminated", terminated, per_env), read("truncated", truncated, per_env)
        row = target.rewards[step]
        row[:] = read("rewards", rewards, per_env)
        target.plain["terminated"][step], target.plain["truncated"][step] = terminated, truncated
        if target.infos:
            target.infos.write_batch(step, infos, np.arange(self.num_envs))
        ended = np.logical_or(terminated, truncated)
        columns = ended.nonzero()[0]
        if len(spent := self._resets.take_step(ended, columns)):
            row[spent] = 0
        self.tally.add(row)
        if len(columns):
            observations = self._end(target, step, columns, terminated[columns], observations, infos)
        self._write(rows, observations)

    def count(self, rewards: Any, ends: Sequence[End]) -> tuple[Any, Any]:
        """Return nothing, because the steps have been counted, and the ends have been written."""
        return (), ()

    def begun(self, ends: Sequence[End], step: int) -> Any:
        """Return the columns whose episodes begin after the last step."""
        return self._resets.begun

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Raise an error, because single sub-environments of a ``VectorEnv`` cannot be called."""
        if hasattr(self._env, "halves"):
            raise ConfigurationError(
                f"{name} cannot be used with step_workers, because other processes step the sub-environments. Leave "
                "step_workers out."
            )
        raise ConfigurationError(
            f"{name} needs single sub-environments, but the factory makes a {type(self._env).__name__}. "
            "Pass a factory of single environments."
        )

    def get_states(self) -> list[dict[str, Any] | None]:
        """Return ``None`` for each sub-environment of the ``VectorEnv``."""
        return [None] * self.num_envs

    def set_states(self, states: Sequence[dict[str, Any] | None]) -> None:
        """Do nothing, because a ``VectorEnv`` has no states."""

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _end(self, target: Target, step: int, columns: Any, terminated: Any, observations: Any, infos: Any) -> Any:
        """Write the ends of episodes; return the observations that the next step begins with."""
        known = self._finals.write(target, columns, observations, infos)
        resets_next = self.autoreset.spends_step
        records = target.add_ends(columns)
        records["step"], records["known"], records["resets_next"] = step, known, resets_next
        records["ended_by"] = ~terminated
        if WORKER_RESTARTED in infos:
            records["void"] = lost = infos[WORKER_RESTARTED][columns]
            records["ended_by"][lost] = [INDEX.get(ending, _UNKNOWN) for ending in infos[ENDED_BY][columns[lost]]]
        self.tally.end_some(columns, infos, records, later=resets_next)
        if self.autoreset.caller_resets:
            return self._reset(target, step, columns, observations)
        if self.autoreset.resets_in_step and target.infos:
            target.infos.write_batch(step, infos.get("final_info", {}), columns, seen=False)
        return observations

    def _reset(self, target: Target, step: int, columns: Any, observations: Any) -> Any:
        mask = np.zeros(self.num_envs, bool)
        mask[columns] = True
        before = self._finals.first_time and [deep_copy(part) for part in flatten(self._leaves, observations)]
        fresh, infos = self._env.reset(options={"reset_mask": mask})
        if before:
            check_reset_with_mask(self._env, before, flatten(self._leaves, fresh), ~mask)
            self._finals.first_time = False
        if target.infos:
            target.infos.write_batch(step, infos, columns, own=False)
        return fresh

    def _write(self, rows: Rows, observations: Any) -> None:
        if self._is_plain and type(observations) is type(rows[0]) is np.ndarray:
            row = rows[0]
            if observations.dtype is row.dtype and observations.shape == row.shape:
                if observations.ndim == 2 and len(row) > row.shape[1] and not observations.flags.c_contiguous:
                    # NumPy copies column-major arrays, as in Gymnasium's CartPole, by short rows, which is slower.
                    for column in range(row.shape[1]):
                        row[:, column] = observations[:, column]
                else:
                    row[:] = observations
                return
        for row, leaf, values in zip(rows, self._leaves, flatten(self._leaves, observations), strict=True):
            if leaf.dtype is None:
                row[:] = [deep_copy(value) for value in values]
                continue
            name = f"observations{leaf.name}"
            if not self._fit.finite and self._arrays.stay(name, values, row):
                row.copy_(as_tensor(values))
                continue
            array = self._arrays.read(name, values, row.shape)
            if (problem := self._fit.problem("observation", leaf, array)) is not None:
                raise ObservationError(
                    f"the observations{leaf.name} of the VectorEnv must have shape {row.shape} and dtype {row.dtype}, "
                    f"got {array.shape} and {array.dtype} ({problem}). Correct the environment or its space."
                )
            for column, value in enumerate(array if self._fit.finite else ()):
                self._status.begin("step", self._first + column)
                self._fit.check_finite(leaf, value)
            assign(row, ALL, array)


def _seed_of(env: VectorEnv[Any, Any, Any], seeds: Sequence[int | None]) -> Any:
    """Return the seed argument of ``reset``. Only Gymnasium's own two classes document a list."""
    if None in seeds:
        return None
    if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) or hasattr(env.unwrapped, "halves"):
        return list(seeds)
    return int(seeds[0] or 0) % 2**31
