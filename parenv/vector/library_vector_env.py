"""LibraryVectorEnv: a vector env for adapters, which gives infos one by one and serves some sub-environments alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parenv.vector.env import ParallelVectorEnv

_EACH = "each"


class LibraryVectorEnv(ParallelVectorEnv):
    """A vector env for libraries whose vector envs pass values between the caller and each single environment.

    Observations of any kind are cast to the space. Infos come as one dict per sub-environment, because Gymnasium's
    form merges the values of a key and rejects values that do not fit together.

    Args:
        env_fns: One factory for each sub-environment.
        is_silent: Whether to drop warnings of workers, for a library that casts observations without a warning.
        **options: Options of :class:`~parenv.ParallelVectorEnv`.
    """

    def __init__(self, env_fns: Sequence[Any], *, is_silent: bool = False, **options: Any) -> None:
        super().__init__(env_fns, **options)
        self._session.serve_library(_EACH)
        self._session.backend.warn.is_silent = is_silent

    def each_info(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the infos of a step or reset as a list with one dict for each sub-environment."""
        return infos.get(_EACH) or [{} for _ in range(self.num_envs)]

    def reset_some(self, env_ids: Sequence[int], seeds: Sequence[int | None], options: Any) -> tuple[Any, Any]:
        """Begin episodes in some sub-environments.

        Args:
            env_ids: Sub-environments to reset.
            seeds: One seed or ``None`` for each of all sub-environments.
            options: Options for all, or a list with one entry for each of all sub-environments.

        Returns:
            Observations of all sub-environments, and infos for :meth:`each_info`.
        """
        self._check_free("reset")
        self._session.begin_reset(sorted(set(env_ids)), seeds, options)
        return self._session.end_reset(None, "reset")

    def ask_some(self, env_ids: Sequence[int], method: str, *arguments: Any) -> list[Any]:
        """Have workers call a method of some sub-environments.

        Args:
            env_ids: Sub-environments to ask, in any order, repetitions included.
            method: Name in :data:`~parenv.worker.task.ENV_METHODS`.
            *arguments: Arguments of the method.

        Returns:
            One answer for each of ``env_ids``.
        """
        self._check_free(method)
        asked = sorted(set(env_ids))
        self._session.begin_call(method, (), *arguments, env_ids=asked)
        answers = dict(zip(asked, self._session.end_call(None, method), strict=True))
        return [answers[env_id] for env_id in env_ids]
