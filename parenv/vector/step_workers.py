"""Sub-environments of a worker that acts for all of them and has other processes step them, in two halves."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parenv.envs.factories import Factories
from parenv.errors import ConfigurationError
from parenv.memory.spaces import flatten, leaves, unflatten
from parenv.options import WorkerOptions
from parenv.vector.env import ParallelVectorEnv


@dataclass(frozen=True)
class SteppedFactories(Factories):
    """Makes, for each worker of a pool, one vector env of all its sub-environments.

    Args:
        options: of the workers.
        shares: sub-environments of each worker.
        first_env_id: of the first.
    """

    options: WorkerOptions
    shares: tuple[int, ...]
    first_env_id: int

    @classmethod
    def of(cls, factories: Factories, options: WorkerOptions, shares: tuple[int, ...], first_env_id: int) -> Self:
        """Of factories of single environments.

        Raises:
            ConfigurationError: there are more processes than sub-environments.
        """
        if min(shares) < (options.step_workers or 1):
            raise ConfigurationError(
                f"step_workers={options.step_workers} processes have nothing to step in a worker with {min(shares)} "
                "sub-environments: give more num_envs, or fewer step_workers or num_workers"
            )
        return cls(factories.functions, factories.count, factories.registered, options, shares, first_env_id)

    def make(self, env_id: int) -> StepWorkersEnv:
        """Make the vector env whose first sub-environment this is."""
        firsts = self.first_env_id + np.cumsum([0, *self.shares[:-1]])
        count = self.shares[firsts.tolist().index(env_id)] if env_id in firsts else min(self.shares)
        makers = [partial(Factories.make, self, one) for one in range(env_id, env_id + count)]
        return StepWorkersEnv(makers, self.options)


class StepWorkersEnv(VectorEnv[Any, Any, Any]):
    """Vector envs side by side, each with its part of the processes.

    Args:
        env_fns: one factory for each sub-environment.
        options: of the worker that acts.

    Attributes:
        parts: the vector envs; one where there is a single process.
    """

    def __init__(self, env_fns: Sequence[Any], options: WorkerOptions) -> None:
        count, processes = len(env_fns), options.step_workers or 1
        halves = min(2, processes)
        middle = [count * i // halves for i in range(halves + 1)]
        limit = options.step_timeout_s
        # It restarts those that are gone before the driver thinks that this worker hangs.
        inner = replace(
            options,
            device="cpu",
            rollout_device=None,
            step_workers=None,
            setup_fn=None,
            cleanup_fn=None,
            on_env_error="raise",
            step_timeout_s=None if limit is None else limit / 2,
        )
        self._columns = [slice(*both) for both in itertools.pairwise(middle)]
        self.parts = [
            ParallelVectorEnv(
                env_fns[mine],
                autoreset_mode=AutoresetMode.SAME_STEP,
                num_workers=(processes + i) // halves,
                on_worker_death="raise" if options.restart is None else "restart",
                workers=inner,
            )
            for i, mine in enumerate(self._columns)
        ]
        self._sizes = [part.num_envs for part in self.parts]
        self.num_envs, first = count, self.parts[0]
        self.metadata, self.render_mode = first.metadata, first.render_mode
        self.single_observation_space = first.single_observation_space
        self.single_action_space = first.single_action_space
        self._observed, self._acted = leaves(self.single_observation_space), leaves(self.single_action_space)
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all; ``seed`` is a list with one for each, or ``None``."""
        results = [
            part.reset(seed=None if seed is None else seed[mine], options=options)
            for part, mine in zip(self.parts, self._columns, strict=True)
        ]
        observations, infos = zip(*results, strict=True)
        return self._joined(observations), _joined_infos(infos, self._sizes)

    def step(self, actions: Any) -> Any:
        """Step all at the same time."""
        for part, mine in zip(self.parts, self._columns, strict=True):
            part.step_async(unflatten(self._acted, [values[mine] for values in flatten(self._acted, actions)]))
        observations, *columns, infos = zip(*(part.step_wait() for part in self.parts), strict=True)
        return self._joined(observations), *map(np.concatenate, columns), _joined_infos(infos, self._sizes)

    def close_extras(self, **more: Any) -> None:
        """Close the parts."""
        for part in self.parts:
            # The end of the pool may have cut a step short, of which nobody wants to hear any more.
            with contextlib.suppress(Exception):
                part.step_wait(timeout=0)
            part.close()

    def _joined(self, parts: Sequence[Any]) -> Any:
        """Observations of all, of which those without a fixed size are tuples."""
        by_leaf = zip(*(flatten(self._observed, part) for part in parts), strict=True)
        joined = [
            tuple(itertools.chain(*values)) if leaf.dtype is None else np.concatenate(values)
            for leaf, values in zip(self._observed, by_leaf, strict=True)
        ]
        return unflatten(self._observed, joined)


def _joined_infos(parts: Sequence[dict[str, Any]], sizes: Sequence[int]) -> dict[str, Any]:
    """Infos of all, with where each is there, as Gymnasium has them."""
    joined: dict[str, Any] = {}
    for name in {name: None for part in parts for name in part if not (name[:1] == "_" and name[1:] in part)}:
        found = [part.get(name) for part in parts]
        like = next(value for value in found if value is not None)
        if isinstance(like, dict):
            joined[name] = _joined_infos([value or {} for value in found], sizes)
        else:
            blank = None if like.dtype == object else 0
            shapes = [(size, *like.shape[1:]) for size in sizes]
            blocks = zip(found, shapes, strict=True)
            joined[name] = np.concatenate([np.full(s, blank, like.dtype) if v is None else v for v, s in blocks])
        there = zip(parts, sizes, strict=True)
        joined[f"_{name}"] = np.concatenate([part.get(f"_{name}", np.full(n, name in part)) for part, n in there])
    return joined
