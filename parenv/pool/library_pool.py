"""LibraryPool: a pool for adapters, whose library decides when episodes begin."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.pool.pool import AsyncWorkerPool


class LibraryPool(AsyncWorkerPool):
    """A pool for libraries that cast observations without a warning and reset all environments themselves.

    Args:
        *arguments: Arguments of :class:`~parenv.AsyncWorkerPool`.
        **options: Its options.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._session.workers.warn.is_silent = True

    def begin_episodes(self, seeds: Sequence[int | None]) -> list[Any]:
        """Begin an episode in every sub-environment, while no rollout is in progress.

        Args:
            seeds: One seed or ``None`` for each sub-environment.

        Returns:
            First observations, one array ``[num_envs, ...]`` for each leaf of the observation space.
        """
        with self._using() as session:
            bounds = itertools.accumulate(session.workers.shares, initial=0)
            questions = {w: (list(seeds[begin:end]),) for w, (begin, end) in enumerate(itertools.pairwise(bounds))}
            answers = session.ask_workers("restart", questions)
        return [np.concatenate(parts) for parts in zip(*(answers[w] for w in sorted(answers)), strict=True)]
