"""Stepping a worker's sub-environments for a vector env: actions from the board, everything else back onto it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from parenv.envs.fitting import Fit
from parenv.envs.watching import ObservationWatch
from parenv.errors import ObservationError
from parenv.memory.board import Board
from parenv.memory.infos import InfoWriter
from parenv.memory.kinds import FINAL_OBSERVATION
from parenv.memory.order import fence
from parenv.memory.progress import Progress, code
from parenv.memory.spaces import Leaf, flatten, is_single, unflatten

Where = Any
"""Rows of the board: a slice, or an array of env_ids."""


class EnvError(NamedTuple):
    """An exception, and the sub-environment that was at work, or -1."""

    env_id: int
    doing: str
    error: BaseException


class EnvBatch:
    """Sub-environments that answer requests of the board.

    An exception of one of them disturbs no other: it is kept in :attr:`errors`, the row keeps its observation.

    Args:
        envs: the sub-environments.
        first_env_id: row of the first.
        board: where actions and results lie.
        mode: what happens where an episode ends.
        infos: writes infos that are not empty.
        progress: where to say which one is at work.
        seeds: for the first reset of each, where nobody gives another; ``None`` for none.
        fit: how observations must fit their space.

    Attributes:
        errors: exceptions since somebody emptied the list.
        infos: ``[env_id, info]`` of those that could not be written, likewise.
        observations: ``[env_id, values]`` of leaves without a fixed size, likewise.
        remarkable: whether there is anything in the three lists above, or an info of a new kind.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        first_env_id: int,
        board: Board,
        mode: AutoresetMode,
        infos: InfoWriter,
        progress: Progress,
        seeds: Sequence[int] | None = None,
        fit: Fit | None = None,
    ) -> None:
        self._envs, self._first, self._board, self._mode = list(envs), first_env_id, board, mode
        self._columns = range(len(envs))
        self._all = slice(first_env_id, first_env_id + len(envs))
        self._infos, self._progress = infos, progress
        self._cell = progress.cell
        self._step_codes = [code("step", first_env_id + i) for i in self._columns]
        self._leaves = board.spec.observations
        self._single = is_single(self._leaves)
        self._watch = ObservationWatch(self._leaves, first_env_id, len(envs), fit or Fit())
        self._whole = [
            None if rows is None or not leaf.shape else rows[self._all].reshape(-1, *leaf.shape[1:])
            for leaf, rows in zip(self._leaves, board.observations, strict=True)
        ]
        self._action_leaves = board.spec.actions
        self._seeds = dict(enumerate(seeds or ()))
        self._fresh = [self._beginning(column) for column in self._columns]
        begins_with_reset = seeds is not None and mode is AutoresetMode.NEXT_STEP
        self._steps = self._fresh.copy() if begins_with_reset else [env.step for env in self._envs]
        self._given: dict[int, Any] = {}
        self._taken = 0
        self._answered: tuple[Where, Any] = self._all, 0
        self._ever_noted = self.remarkable = False
        self.errors: list[EnvError] = []
        self.infos: list[Any] = []
        self.observations: list[Any] = []

    def give(self, actions: Mapping[int, Any]) -> None:
        """Actions by env_id that do not lie on the board; those of other workers' rows are left out."""
        mine = range(self._all.start, self._all.stop)
        self._given.update({env_id: action for env_id, action in actions.items() if env_id in mine})

    def take_beside(self) -> tuple[list[Any], list[Any], list[Any]]:
        """New kinds of infos, infos and observations that do not lie on the board, since the last time."""
        taken = [list(kind) for kind in self._infos.new], self.infos, self.observations
        self._infos.new, self.infos, self.observations, self.remarkable = [], [], [], False
        return taken

    def step_all(self) -> None:
        """Answer one request of every row."""
        self._progress.noted[0] = False
        self._run(self._columns, self._all, self._steps)

    def serve(self, most: int) -> int:
        """Answer the orders at the front of the ring that belong to one request.

        Args:
            most: how many orders there are.

        Returns:
            How many were answered.
        """
        ring, begin = self._board.orders[self._all], self._taken % len(self._envs)
        orders = ring[begin : begin + most].tolist()
        orders += ring[: most - len(orders)].tolist()
        numbers = self._board.requested[self._all][[max(order, ~order) for order in orders]].tolist()
        orders = orders[: numbers.count(numbers[0])]
        self._taken += len(orders)
        if orders[0] < 0:
            resets = [~order for order in orders]
            self.reset(resets, [None] * len(resets), {})
        else:
            self._run(orders, self._where(orders), [self._steps[column] for column in orders])
        return len(orders)

    def reset(self, columns: Sequence[int], seeds: Sequence[int | None], options: Any) -> None:
        """Begin an episode in some of them.

        Args:
            columns: counted from the first of this worker.
            seeds: one for each.
            options: for all, or a list with one for each.
        """
        where, observations = self._where(columns), []
        numbers = self._begin(where)
        each = options if isinstance(options, list) else [options] * len(columns)
        for column, seed, options_of_one in zip(columns, seeds, each, strict=True):
            try:
                observation, info = self._reset(column, seed, options=options_of_one)
                self._steps[column] = self._envs[column].step
                if info:
                    self._note(column, info)
            except BaseException as error:
                observation = self._fail(column, error)
            observations.append(observation)
        self._write(columns, where, observations)
        self._answered = where, numbers

    def find_steps(self, columns: Sequence[int]) -> None:
        """Take the steps that these have now, which something else may have put there."""
        for column in columns:
            if self._steps[column] is not self._fresh[column]:
                self._steps[column] = self._envs[column].step

    def _run(self, columns: Sequence[int], where: Where, steps: Sequence[Callable[[Any], Any]]) -> None:
        cell, codes = self._cell, self._step_codes
        observations: list[Any] = []
        rewards: list[Any] = []
        keep, pay = observations.append, rewards.append
        numbers = self._begin(where)
        for column, step, action in zip(columns, steps, self._actions(where), strict=True):
            cell[0] = codes[column]
            try:
                observation, reward, terminated, truncated, info = step(action)
                if terminated or truncated:
                    observation, info = self._end(column, observation, terminated, truncated, info)
                if info:
                    self._note(column, info)
            except BaseException as error:
                observation, reward = self._fail(column, error), 0.0
            keep(observation)
            pay(reward)
        if self._watch.on:
            self._watch.count(columns)
        self._write_rewards(columns, where, rewards)
        self._write(columns, where, observations)
        self._answered = where, numbers

    def stamp(self) -> None:
        """Say on the board that the last request is answered; what does not lie there must have been said before."""
        where, numbers = self._answered
        fence()
        self._board.finished[where] = numbers

    def _begin(self, where: Where) -> Any:
        """Clear the rows; the numbers of the requests that are answered now."""
        board = self._board
        board.terminated[where] = False
        board.truncated[where] = False
        if self._ever_noted:
            board.info_kinds[where] = 0
        return board.requested[where].copy()

    def _beginning(self, column: int) -> Callable[[Any], Any]:
        """A step that is spent on the reset, whatever the action."""

        def begin_next(action: Any) -> Any:
            observation, info = self._reset(column, None)
            self._steps[column] = self._envs[column].step
            return observation, 0.0, False, False, info

        return begin_next

    def _end(self, column: int, observation: Any, terminated: Any, truncated: Any, info: Any) -> tuple[Any, Any]:
        env_id = self._first + column
        self._board.terminated[env_id], self._board.truncated[env_id] = bool(terminated), bool(truncated)
        if self._mode is AutoresetMode.NEXT_STEP:
            self._steps[column] = self._fresh[column]
        elif self._mode is AutoresetMode.SAME_STEP:
            final = observation.copy() if type(observation) is np.ndarray else self._kept(observation)
            observation, reset_info = self._reset(column, None)
            info = {FINAL_OBSERVATION: final, "final_info": info, **reset_info}
        return observation, info

    def _kept(self, observation: Any) -> Any:
        """A copy, since the environment may reuse its buffers; arrays of other libraries as the space has them."""
        try:
            values = flatten(self._leaves, observation)
        except (KeyError, IndexError, TypeError):
            return copy.deepcopy(observation)
        if not any(map(_is_foreign, self._leaves, values)):
            return copy.deepcopy(observation)
        return unflatten(self._leaves, list(map(_kept_value, self._leaves, values)))

    def _reset(self, column: int, seed: int | None, **options: Any) -> Any:
        self._progress.begin("reset", self._first + column)
        own_seed = self._seeds.pop(column, None)
        seed = own_seed if seed is None else seed
        if seed is not None or options:
            options["seed"] = seed
        return self._envs[column].reset(**options)

    def _note(self, column: int, info: Any) -> None:
        self._ever_noted = True
        self._progress.noted[0] = True
        written = self._infos.write(self._first + column, info)
        if not written:
            self.infos.append([self._first + column, info])
        if self._infos.new or not written:
            self.remarkable = True

    def _fail(self, column: int, error: BaseException) -> Any:
        """Keep an exception; the observation that the row has."""
        self.remarkable = True
        self.errors.append(EnvError(self._first + column, self._progress.doing, error))
        rows = [None if array is None else array[self._first + column] for array in self._board.observations]
        return unflatten(self._leaves, rows)

    def _actions(self, where: Where) -> Any:
        if self._given:
            env_ids = range(where.start, where.stop) if type(where) is slice else where.tolist()
            # All rows of a request were given in the same way; those of a later request may be here already.
            if env_ids[0] in self._given:
                return [self._given.pop(env_id) for env_id in env_ids]
        # A copy, because an environment may keep or change its action, and the next one is written to the same place.
        arrays = [array[where].copy() if type(where) is slice else array[where] for array in self._board.actions]
        if len(arrays) == 1 and not self._action_leaves[0].path:
            return arrays[0]
        return [unflatten(self._action_leaves, values) for values in zip(*arrays, strict=True)]

    def _where(self, columns: Sequence[int]) -> Where:
        first, n = columns[0], len(columns)
        if list(columns) == list(range(first, first + n)):
            return slice(self._first + first, self._first + first + n)
        return np.array(columns) + self._first

    def _write_rewards(self, columns: Sequence[int], where: Where, rewards: list[Any]) -> None:
        try:
            self._board.rewards[where] = rewards
        except (TypeError, ValueError):
            for column, reward in zip(columns, rewards, strict=True):
                try:
                    self._board.rewards[self._first + column] = reward
                except (TypeError, ValueError) as error:
                    self._fail(column, error)

    def _write(self, columns: Sequence[int], where: Where, observations: list[Any]) -> None:
        try:
            if self._watch.on:
                self._watch.look(columns, observations)
            self._write_leaves(where, observations)
        except Exception:
            for column, observation in zip(columns, observations, strict=True):
                env_id = self._first + column
                try:
                    if self._watch.on:
                        self._watch.look([column], [observation])
                    self._write_leaves(slice(env_id, env_id + 1), [observation])
                except ObservationError as error:
                    self._fail(column, error)
                except Exception as error:
                    self._fail(column, _does_not_fit(observation, self._leaves, error))

    def _write_leaves(self, where: Where, observations: list[Any]) -> None:
        if self._single:
            self._write_leaf(0, where, observations)
            return
        lists = [i for i, leaf in enumerate(self._leaves) if leaf.dtype is None]
        flat = [flatten(self._leaves, observation) for observation in observations]
        for i, values in enumerate(zip(*flat, strict=True)):
            if i not in lists:
                self._write_leaf(i, where, values)
        if lists:
            env_ids = range(where.start, where.stop) if type(where) is slice else where.tolist()
            self.remarkable = True
            self.observations += [
                [env_id, [copy.deepcopy(values[i]) for i in lists]]
                for env_id, values in zip(env_ids, flat, strict=True)
            ]

    def _write_leaf(self, i: int, where: Where, values: Sequence[Any]) -> None:
        """Write a batch of values in one go, cast as ``np.stack`` casts into an array that is given."""
        leaf, rows, n = self._leaves[i], self._board.observations[i], len(values)
        assert rows is not None
        if not leaf.shape:
            array = np.array(values)
            if array.shape != (n,) or not np.can_cast(array.dtype, rows.dtype, "same_kind"):
                raise ValueError(f"shape {array.shape[1:]} and dtype {array.dtype}")
            rows[where] = array
            return
        # Together with the sum, which concatenate checks, equal lengths mean equal shapes.
        if set(map(len, values)) != {leaf.shape[0]}:
            raise ValueError(f"shape {np.shape(values[0])}")
        if where is self._all:
            np.concatenate(values, out=self._whole[i])
            return
        joined = (n * leaf.shape[0], *leaf.shape[1:])
        if type(where) is slice:
            np.concatenate(values, out=rows[where].reshape(joined))
        else:
            array = np.concatenate(values, dtype=rows.dtype)
            if array.shape != joined:
                raise ValueError(f"shape {np.shape(values[0])}")
            rows[where] = array.reshape(n, *leaf.shape)


def _is_foreign(leaf: Leaf, value: Any) -> bool:
    """Whether a value is an array of another library, to be one of numpy's."""
    return leaf.dtype is not None and hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)


def _kept_value(leaf: Leaf, value: Any) -> Any:
    return np.asarray(value).astype(leaf.dtype) if _is_foreign(leaf, value) else copy.deepcopy(value)


def _does_not_fit(observation: Any, leaves: Any, error: Exception) -> ObservationError:
    wanted = ", ".join(f"{leaf.name} {leaf.shape} {leaf.dtype}".strip() for leaf in leaves)
    text = repr(observation)
    shown = text if len(text) < 200 else text[:200] + "..."
    return ObservationError(
        f"the observation {shown} does not fit its space, which says {wanted}: {type(error).__name__} {error}. Correct "
        "the environment or its observation space"
    )
