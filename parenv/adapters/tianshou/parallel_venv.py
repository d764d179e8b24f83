"""ParallelVenv: parallel environments for Tianshou's collectors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import Env, Space
from gymnasium.spaces import Tuple
from gymnasium.vector import AutoresetMode

from parenv.adapters.library_version import check_version, needed
from parenv.envs.step_buffer_stepper import NO_OPTIONS
from parenv.errors import ConfigurationError
from parenv.options import WorkerOptions
from parenv.vector.arguments import each_seed
from parenv.vector.library_vector_env import LibraryVectorEnv

with needed("tianshou", "Tianshou", "pip install tianshou"):
    from tianshou.env import BaseVectorEnv

check_version("tianshou", "1.0", "pip install --upgrade tianshou")


class ParallelVenv(BaseVectorEnv):  # type: ignore[misc,unused-ignore]
    """Tianshou's ``SubprocVectorEnv`` with many environments per worker, for its collectors and trainers.

    Tianshou resets environments itself, one by one, and steps only some. This uses ``AutoresetMode.DISABLED`` with
    ``send`` and ``recv``. Results are the same as with ``DummyVectorEnv`` for the same seeds and actions.

    Args:
        env_fns: One factory for each environment.
        num_workers: Number of worker processes, at most one per environment. 0: all environments run in this process.
            Default: ``"auto"``, chosen as in :class:`~parenv.ParallelVectorEnv`.
        workers: Options of workers, such as time limits for start and close.
        spaces: Spaces of one environment, or how to get them, as in :class:`~parenv.ParallelVectorEnv`.

    Raises:
        ConfigurationError: An argument is wrong, or the observation space is a ``Tuple``, which Tianshou does not
            support.

    >>> import gymnasium as gym
    >>> envs = ParallelVenv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
    >>> seeds = envs.seed(1)
    >>> observations, infos = envs.reset()
    >>> observations, rewards, terminated, truncated, infos = envs.step(np.zeros(2, int), id=[3, 1])
    >>> observations.shape, infos.tolist()
    ((2, 4), [{'env_id': 3}, {'env_id': 1}])
    >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        *,
        num_workers: int | Literal["auto"] | None = "auto",
        workers: WorkerOptions | None = None,
        spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None = None,
    ) -> None:
        # The constructor of the base class would make one worker of its own for each environment.
        self.is_closed, self.is_async = False, False
        self.env_num = self.wait_num = len(env_fns)
        self.ready_id, self.waiting_id = list(range(self.env_num)), list[int]()
        self.workers = list[Any]()
        self._envs = LibraryVectorEnv(
            env_fns,
            autoreset_mode=AutoresetMode.DISABLED,
            num_workers=min(num_workers, self.env_num) if isinstance(num_workers, int) else num_workers,
            workers=workers,
            spaces=spaces,
        )
        if isinstance(self._envs.single_observation_space, Tuple):
            self._envs.close()
            raise ConfigurationError(
                "observations must not be a Tuple, which Tianshou does not support. Wrap the environment so that they "
                "are a Dict."
            )
        # Tianshou samples random actions from one action space for each environment.
        self._action_spaces = [copy.deepcopy(self._envs.single_action_space) for _ in range(self.env_num)]
        for space in self._action_spaces[1:]:
            space.seed()

    def reset(self, env_id: Any = None, **kwargs: Any) -> tuple[Any, Any]:
        """Begin episodes.

        Args:
            env_id: env_ids. Default: all.
            **kwargs: ``seed``, one integer or ``None`` for all environments, and ``options``, as for ``Env.reset``.

        Returns:
            Observations, and an array of infos.
        """
        ids = self._ids(env_id)
        if unknown := kwargs.keys() - {"seed", "options"}:
            raise ConfigurationError(f"keywords of reset must be seed and options, got {', '.join(sorted(unknown))}")
        seeds = [kwargs.get("seed")] * self.env_num
        observations, infos = self._envs.reset_some(ids, seeds, kwargs.get("options", NO_OPTIONS))
        each = self._envs.each_info(infos)
        return _rows(observations, ids), np.array([each[one] for one in ids])

    def step(self, action: Any, id: Any = None) -> tuple[Any, Any, Any, Any, Any]:
        """Have environments take a step. Tianshou resets them when an episode ends.

        Args:
            action: One action for each environment.
            id: env_ids. Default: all.

        Returns:
            Observations, rewards, terminated, truncated and an array of infos, in the order of ``id``.
        """
        ids = self._ids(id)
        if action is None or len(action) != len(ids):
            got = 0 if action is None else len(action)
            raise ValueError(f"actions must have one for each of {len(ids)} environments, got {got}")
        self._envs.send(np.asarray(action), np.array(ids))
        observations, rewards, terminated, truncated, infos = self._envs.recv(batch_size=len(ids))
        at = {one: row for row, one in enumerate(infos["env_id"].tolist())}
        order = [at[one] for one in ids]
        each = self._envs.each_info(infos)
        about = np.array([{**each[one], "env_id": one} for one in ids])
        return _rows(observations, order), rewards[order], terminated[order], truncated[order], about

    def seed(self, seed: Any = None) -> Any:
        """Seed environments and action spaces, with ``seed + i`` for environment ``i``, or with one seed for each.

        As in Tianshou, this resets the environments with their seeds, so that the next ``reset`` is the second one.
        """
        ids, seeds = self._ids(None), each_seed(seed, self.env_num)
        for space, one in zip(self._action_spaces, seeds, strict=True):
            space.seed(one)
        self._envs.reset_some(ids, seeds, NO_OPTIONS)
        return [[one] for one in seeds]

    def get_env_attr(self, key: str, id: Any = None) -> list[Any]:
        """Return an attribute of some environments, found through their wrappers: plain data or a space."""
        ids = self._ids(id)
        if key == "action_space":
            return [self._action_spaces[one] for one in ids]
        if key == "observation_space":
            return [self._envs.single_observation_space] * len(ids)
        values = self._envs.get_attr(key)
        return [values[one] for one in ids]

    def set_env_attr(self, key: str, value: Any, id: Any = None) -> None:
        """Set an attribute of some environments, on the wrapper that has it."""
        ids = self._ids(id)
        values = list(self._envs.get_attr(key)) if len(ids) < self.env_num else [value] * self.env_num
        for one in ids:
            values[one] = value
        self._envs.set_attr(key, values)

    def render(self, **kwargs: Any) -> list[Any]:
        """Render each environment."""
        return list(self._envs.call("render", **kwargs))

    def close(self) -> None:
        """End the workers. Idempotent."""
        self.is_closed = True
        self._envs.close()

    def _ids(self, id: Any) -> list[int]:
        self._assert_is_not_closed()
        return list(range(self.env_num)) if id is None else np.atleast_1d(np.asarray(id, np.int64)).tolist()


def _rows(observations: Any, order: Sequence[int]) -> Any:
    """Return rows of a batch as an array, or as an array of dicts."""
    if not isinstance(observations, dict):
        return observations[np.asarray(order, np.int64)]
    return np.array([{key: _rows(value, [row])[0] for key, value in observations.items()} for row in order])
