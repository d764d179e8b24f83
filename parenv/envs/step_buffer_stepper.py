"""Step a worker's sub-environments for a vector env, with actions and results in the step buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from parenv.envs.autoreset import Autoreset
from parenv.envs.elsewhere import StepBatch
from parenv.envs.returned import NOTHING, check_flags, explain_step, reset_result
from parenv.envs.step_buffer_rows import ActionRows, ObservationRows, SideChannel, Where, is_like
from parenv.memory.kinds import FINAL_OBSERVATION
from parenv.memory.status_slot import StatusSlot, code
from parenv.memory.step_buffer import KINDS, RESET, StepBuffer
from parenv.memory.trees import own_copy
from parenv.process import served_envs

NO_OPTIONS = False
"""Value of ``options`` with which ``reset`` is called without that keyword, as some libraries do."""


class StepBufferStepper:
    """Single environments that serve the requests in the step buffer.

    An exception of one environment does not affect the others. It goes to the side channel, and the row keeps its
    observation. The results of a request are written with one call per array, so this loop shares only
    :mod:`~parenv.envs.fitting` and :mod:`~parenv.envs.returned` with :class:`~parenv.envs.stepping.EnvStepper`, which
    writes row by row into a rollout.

    Args:
        envs: The sub-environments.
        own: Their rows.
        step_buffer: Step buffer with requests and results.
        autoreset: Autoreset mode.
        observations: Writer of observations.
        side: Side channel for infos and exceptions.
        status: Status slot, which contains the sub-environment at work.
        seeds: Seeds of the first resets without another seed, or ``None``.

    Attributes:
        actions: Reader of actions.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        own: slice,
        step_buffer: StepBuffer,
        autoreset: Autoreset,
        observations: ObservationRows,
        side: SideChannel,
        status: StatusSlot,
        seeds: Sequence[int] | None = None,
    ) -> None:
        self._envs, self._own, self._step_buffer, self._autoreset = list(envs), own, step_buffer, autoreset
        self._observations, self._side, self._status = observations, side, status
        self.actions = ActionRows(step_buffer, own)
        env_ids = range(own.start, own.stop)
        self._codes = tuple([code(doing, env_id) for env_id in env_ids] for doing in ("step", "reset"))
        self._seeds = dict(enumerate(seeds or ()))
        self._fresh = [partial(self._begin_next, column) for column in range(len(envs))]
        self._elsewhere = StepBatch.of(self._envs, status, list(zip(*self._codes, strict=True)))
        # The first step of a process that replaces another one begins an episode, because the main process ends the
        # lost one.
        begins_with_reset = seeds is not None and not autoreset.caller_resets
        self._steps = self._fresh.copy() if begins_with_reset else [env.step for env in self._envs]
        self._answered: tuple[Where, Any] = own, 0

    def serve(self, number: int, columns: Sequence[int]) -> None:
        """Serve a request to some rows."""
        if number % KINDS == RESET:
            where = self._where(columns)
            self._begin_episodes(columns, where, [None] * len(columns), {})
        elif len(columns) == len(self._envs):
            where = self._own
            self._status.has_infos[0] = False
            self._run(columns, where, self._steps)
        else:
            where = self._where(columns)
            self._run(columns, where, [self._steps[column] for column in columns])
        self._answered = where, number

    def reset(self, columns: Sequence[int], seeds: Sequence[int | None], options: Any) -> None:
        """Begin an episode in some sub-environments, as a message asks for it.

        Args:
            columns: Columns, counted from the first of this worker.
            seeds: One seed for each.
            options: Options for all, or a list with one entry for each. :data:`NO_OPTIONS` leaves the keyword out.
        """
        where = self._where(columns)
        numbers = self._step_buffer.requested[where].copy()
        self._begin_episodes(columns, where, seeds, options)
        self._answered = where, numbers

    def find_steps(self, columns: Sequence[int]) -> None:
        """Read the ``step`` methods again, because a call may have replaced them."""
        for column in columns:
            if self._steps[column] is not self._fresh[column]:
                self._steps[column] = self._envs[column].step

    def stamp(self) -> None:
        """Mark the last request as finished. Side data must have been sent before."""
        self._step_buffer.rendezvous.finish(*self._answered)

    def _begin_episodes(self, columns: Sequence[int], where: Where, seeds: Sequence[int | None], options: Any) -> None:
        observations: list[Any] = []
        self._begin(where)
        each = options if isinstance(options, list) else [options] * len(columns)
        for column, seed, options_of_one in zip(columns, seeds, each, strict=True):
            try:
                given = {} if options_of_one is NO_OPTIONS else {"options": options_of_one}
                observation, info = self._reset(column, seed, **given)
                self._steps[column] = self._envs[column].step
                if info:
                    self._side.note(self._own.start + column, info)
            except BaseException as error:
                observation = self._fail(column, error)
            observations.append(observation)
        self._write(columns, where, observations, False)

    def _run(self, columns: Sequence[int], where: Where, steps: Sequence[Callable[[Any], Any]]) -> None:
        self._begin(where)
        actions = self.actions.read(where)
        step = self._step if self._elsewhere is None else self._step_elsewhere
        observations, rewards = step(columns, steps, actions)
        self._write_rewards(columns, where, rewards)
        self._write(columns, where, observations, True)

    def _step(
        self, columns: Sequence[int], steps: Sequence[Callable[[Any], Any]], actions: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Take the steps; return the observations and the rewards."""
        cell, every = self._status.cell, self._codes[0]
        observations: list[Any] = []
        rewards: list[Any] = []
        keep, pay = observations.append, rewards.append
        codes = every if type(columns) is range else [every[column] for column in columns]
        for column, at, step, action in zip(columns, codes, steps, actions, strict=True):
            cell[0], returned = at, NOTHING
            try:
                returned = observation, reward, terminated, truncated, info = step(action)
                if reward is None:  # numpy would store NaN.
                    raise TypeError
                if terminated or truncated:
                    reward = own_copy(reward)
                    observation, info = self._end(column, observation, terminated, truncated, info)
                if info:
                    self._side.note(self._own.start + column, info)
            except BaseException as error:
                explain_step(error, returned, self._own.start + column)
                observation, reward = self._fail(column, error), 0.0
            keep(observation)
            pay(reward)
        return observations, rewards

    def _step_elsewhere(
        self, columns: Sequence[int], steps: Sequence[Callable[[Any], Any]], actions: Sequence[Any]
    ) -> tuple[Any, list[Any]]:
        """Take the steps, those in other interpreters with one message. Only some need more than their reward."""
        assert self._elsewhere is not None
        begins = self._autoreset.resets_in_step and not self._seeds
        of_step = served_envs.STEP_AND_RESET if begins else served_envs.STEP
        orders = [
            of_step if step is not self._fresh[column] else None if column in self._seeds else served_envs.RESET
            for column, step in zip(columns, steps, strict=True)
        ]
        taken = self._elsewhere.run(columns, orders, actions)
        if taken is None:
            return self._step(columns, steps, actions)
        observations, rewards = taken
        left = [position for position, reward in enumerate(rewards) if reward is None]
        if left:
            chosen = itemgetter(*left, left[0])  # With one more, the result is always a tuple.
            others = self._step(chosen(columns)[:-1], chosen(steps)[:-1], chosen(actions)[:-1])
            # They stay one array if all others are such arrays too.
            if type(observations) is np.ndarray and not all(is_like(one, observations[0]) for one in others[0]):
                observations = list(observations)
            for position, observation, reward in zip(left, *others, strict=True):
                observations[position], rewards[position] = observation, reward
        return observations, rewards

    def _begin(self, where: Where) -> None:
        """Clear the rows."""
        step_buffer = self._step_buffer
        step_buffer.terminated[where] = False
        step_buffer.truncated[where] = False
        if self._side.any_infos:
            step_buffer.info_kinds[where] = 0

    def _begin_next(self, column: int, action: Any) -> Any:
        """Reset in the place of a step."""
        observation, info = self._reset(column, None)
        self._steps[column] = self._envs[column].step
        return observation, 0.0, False, False, info

    def _end(self, column: int, observation: Any, terminated: Any, truncated: Any, info: Any) -> tuple[Any, Any]:
        check_flags((terminated, truncated))
        env_id = self._own.start + column
        self._step_buffer.terminated[env_id], self._step_buffer.truncated[env_id] = bool(terminated), bool(truncated)
        if self._autoreset.spends_step:
            self._steps[column] = self._fresh[column]
        if self._autoreset.resets_in_step:
            # The environment may keep its info, and clear it in the reset.
            final, info = self._observations.kept(observation), own_copy(info)
            observation, reset_info = self._reset(column, None)
            info = {FINAL_OBSERVATION: final, "final_info": info, **reset_info}
        return observation, info

    def _reset(self, column: int, seed: int | None, **options: Any) -> Any:
        self._status.cell[0] = self._codes[1][column]
        self._status.heartbeat[0] += 1
        own_seed = self._seeds.pop(column, None)
        seed = own_seed if seed is None else seed
        if seed is not None or options:
            options["seed"] = seed
        return reset_result(self._envs[column].reset(**options))

    def _fail(self, column: int, error: BaseException) -> Any:
        """Keep an exception; return the observation in the row."""
        env_id = self._own.start + column
        self._side.fail(env_id, self._status.doing, error)
        return self._observations.read(env_id)

    def _where(self, columns: Sequence[int]) -> Where:
        first, n = columns[0], len(columns)
        if list(columns) == list(range(first, first + n)):
            return slice(self._own.start + first, self._own.start + first + n)
        return np.array(columns) + self._own.start

    def _write_rewards(self, columns: Sequence[int], where: Where, rewards: list[Any]) -> None:
        try:
            self._step_buffer.rewards[where] = rewards
        except Exception:
            for column, reward in zip(columns, rewards, strict=True):
                env_id = self._own.start + column
                try:
                    self._step_buffer.rewards[env_id] = reward
                except Exception as error:
                    explain_step(error, (None, reward, False, False, None), env_id)
                    self._fail(column, error)

    def _write(self, columns: Sequence[int], where: Where, observations: Sequence[Any], stepped: bool) -> None:
        rows = self._observations
        try:
            rows.write(columns, where, observations, stepped)
        except Exception:
            for column, observation in zip(columns, observations, strict=True):
                env_id = self._own.start + column
                try:
                    rows.write([column], slice(env_id, env_id + 1), [observation], False)
                except Exception as error:
                    self._fail(column, rows.refusal(observation, error))
