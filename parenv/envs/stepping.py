"""Step a worker's single environments, with observations written directly to the rows of a rollout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from parenv.envs.autoreset import SAME_STEP
from parenv.envs.elsewhere import StepBatch
from parenv.envs.episode_statistics import EpisodeTally, is_recorded, recorded_in
from parenv.envs.fitting import Fit
from parenv.envs.infos import Found
from parenv.envs.returned import NOTHING, check_flags, explain_step, reset_result
from parenv.envs.state import get_state, set_state
from parenv.envs.targets import End, Target
from parenv.envs.values import Rows, action_splitter, row_writer
from parenv.errors import ConfigurationError
from parenv.experience.endings import ENVIRONMENT_ERROR, INDEX
from parenv.memory.spaces import is_single, leaves, unflatten
from parenv.memory.status_slot import StatusSlot, code
from parenv.process.served_envs import STEP_AND_RESET


class EnvStepper:
    """Single environments, stepped one after the other.

    Args:
        envs: The environments.
        first_env_id: env_id of the first one.
        status: Status slot, which contains the sub-environment at work.
        fit: Checks of observations.
    """

    resetting: Any = False
    """Whether the next step only resets a sub-environment: never."""
    autoreset = SAME_STEP
    """Autoreset mode: the step that ends an episode also resets."""
    writes_tensors = False
    """Whether the rows of observations may be tensors."""

    def __init__(self, envs: Sequence[Any], first_env_id: int, status: StatusSlot, fit: Fit | None = None) -> None:
        self.envs: list[Any] = list(envs)
        self.num_envs = len(self.envs)
        self.observation_space: Space[Any] = self.envs[0].observation_space
        self.action_space: Space[Any] = self.envs[0].action_space
        self._first = first_env_id
        self._status = status
        self._check_spaces()
        self._observation_leaves = observed = leaves(self.observation_space)
        fit = fit or Fit()
        self._write = row_writer(observed, fit)
        # An array with this dtype and shape is written without a function call. None matches no dtype.
        dtype = np.dtype(observed[0].dtype) if is_single(observed) and not fit.finite else None
        self._plain = dtype, observed[0].shape
        self._split = action_splitter(leaves(self.action_space))
        env_ids = range(first_env_id, first_env_id + self.num_envs)
        self._step_codes, self._reset_codes = ([code(doing, i) for i in env_ids] for doing in ("step", "reset"))
        codes = list(zip(self._step_codes, self._reset_codes, strict=True))
        self._elsewhere = StepBatch.of(self.envs, status, codes)
        self._steps = [env.step for env in self.envs]
        self.tally = EpisodeTally(self.num_envs, [is_recorded(env) for env in self.envs])

    def reset(self, seeds: Sequence[int | None], rows: Rows) -> Sequence[Found]:
        """Begin an episode in every sub-environment and write the first observations; return the info of each."""
        infos = []
        self.tally.begin()
        for column, seed in enumerate(seeds):
            self._status.begin("reset", self._first + column)
            observation, info = self._reset(column, seed)
            self.begin(column, observation, rows)
            infos.append(info)
        return infos

    def step(self, actions: Rows, rows: Rows, step: int, target: Target, first: int = 0) -> None:
        """Step all sub-environments. When an episode ends, keep the final observation and begin the next episode.

        Args:
            actions: One array or list ``[B, ...]`` per leaf of the action space. They stay unchanged.
            rows: Rows for the observations, one array or list ``[B, ...]`` per leaf.
            step: Row of the rollout.
            target: Object for everything else.
            first: First column that has not taken this step yet.
        """
        split = self._split(actions)
        if self._elsewhere is not None:
            columns = range(first, self.num_envs)
            self._elsewhere.begin(columns, [STEP_AND_RESET] * len(columns), split[first:])
        self._write_steps(self._steps, split, rows, step, target, first)

    def _write_steps(
        self,
        steps: Sequence[Callable[[Any], Any]],
        split: Sequence[Any],
        rows: Rows,
        step: int,
        target: Target,
        first: int,
    ) -> None:
        """Write what each function of ``steps`` returns for its part of ``split``, see :meth:`step`."""
        rewards, write, row, cell = target.rewards[step], self._write, rows[0], self._status.cell
        array, (dtype, shape), infos = np.ndarray, self._plain, target.infos
        named, codes = bool(infos), self._step_codes
        returned: Any = NOTHING
        # With one sub-environment, a zip of these lists would cost as much as a step, so index them.
        try:
            for column in range(first, self.num_envs):
                cell[0] = codes[column]
                returned = observation, reward, terminated, truncated, info = steps[column](split[column])
                if reward is None:  # numpy would store NaN.
                    raise TypeError
                rewards[column] = reward
                if named:
                    infos.write(step, column, info)
                if terminated or truncated:
                    observation = self._end(target, step, column, observation, (terminated, truncated), info)
                if type(observation) is array and observation.dtype is dtype and observation.shape == shape:
                    row[column] = observation
                else:
                    write(rows, column, observation)
        except Exception as error:
            explain_step(error, returned, self._first + column)
            raise

    @property
    def writes_arrays(self) -> bool:
        """Tell whether observations are single arrays that need no conversion."""
        return self._plain[0] is not None

    def only(self) -> tuple[Any, ...]:
        """Return the parts of a loop over the steps of the only environment.

        These are the step method, the code of a step and the action splitter. Then follow dtype and shape of an array
        that fits, the writer of other observations, and the method that ends an episode.
        """
        (step,), (step_code,) = self._steps, self._step_codes
        return step, step_code, self._split, *self._plain, self._write, self._end

    def count(self, rewards: Any, ends: Sequence[End]) -> tuple[Any, Any]:
        """Count the steps of a rollout; return the return and length of each episode that ended in it."""
        # A sum per rollout takes less time than one per step.
        return self.tally.add_rollout(rewards, ends)

    def begun(self, ends: Sequence[End], step: int) -> Sequence[int]:
        """Return the columns whose episodes begin after a step, from the ends of that step."""
        return [end.column for end in ends if end.step == step]

    def replace(self, column: int, env: Any) -> None:
        """Replace the environment of a column, and close the old one."""
        with contextlib.suppress(Exception):
            self.envs[column].close()
        self.envs[column], self._steps[column] = env, env.step
        self._check_spaces()

    def begin(self, column: int, observation: Any, rows: Rows) -> None:
        """Begin an episode with an observation."""
        self._write(rows, column, observation)
        self.tally.start(column)

    def break_off(self, column: int, rows: Rows, step: int, target: Target) -> None:
        """End a column's episode as truncated at an earlier step, with the observation in the rows."""
        last = unflatten(self._observation_leaves, [row[column] for row in rows])
        self._write(target.finals, len(target.ends), last)
        seconds, _ = self.tally.end(column, None)
        target.ends.append(End(step, column, False, True, seconds, lost_by=INDEX[ENVIRONMENT_ERROR]))

    def each(self, name: str, function: Callable[[Any], Any], columns: Sequence[int]) -> list[Any]:
        """Apply a function to some environments, for ``call``, ``get_attr`` and ``set_attr``."""
        results = []
        for column in columns:
            self._status.begin("call", self._first + column)
            results.append(function(self.envs[column]))
        return results

    def get_states(self) -> list[dict[str, Any] | None]:
        """Return the state of each sub-environment; ``None`` if it has no ``get_state``."""
        return self.each("get_state", get_state, range(self.num_envs))

    def set_states(self, states: Sequence[dict[str, Any] | None]) -> None:
        """Set the states of the sub-environments that have one."""
        for env, state in zip(self.envs, states, strict=True):
            if state is not None:
                set_state(env, state)

    def close(self) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _reset(self, column: int, seed: int | None) -> Any:
        return reset_result(self.envs[column].reset(seed=seed))

    def _end(self, target: Target, step: int, column: int, observation: Any, how: tuple[Any, Any], info: Any) -> Any:
        cell = self._status.cell
        self._keep_end(target, step, column, observation, how, info)
        cell[0] = self._reset_codes[column]
        observation, info = reset_result(self.envs[column].reset())
        target.infos.write_first(step + 1, column, info)
        cell[0] = self._step_codes[column]
        return observation

    def _keep_end(
        self, target: Target, step: int, column: int, observation: Any, how: tuple[Any, Any], info: Any
    ) -> None:
        check_flags(how)
        recorded = recorded_in(info)
        seconds, counts = self.tally.end(column, recorded)
        self._write(target.finals, len(target.ends), observation)
        # The environment may keep its flags in arrays, and clear them in the reset.
        terminated, truncated = map(bool, how)
        target.ends.append(End(step, column, terminated, truncated, seconds, recorded, counts))

    def _check_spaces(self) -> None:
        for column, env in enumerate(self.envs):
            for name in ("observation_space", "action_space"):
                if getattr(env, name) != getattr(self, name):
                    raise ConfigurationError(
                        f"all sub-environments must have the same {name}, but env_id {self._first + column} has "
                        f"{getattr(env, name)}, and env_id {self._first} has {getattr(self, name)}. Pad the spaces in "
                        "the environment, or use one pool for each space."
                    )
