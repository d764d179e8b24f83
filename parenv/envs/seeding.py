"""Seeds that depend on the purpose of a random stream, never on the number of workers."""

from __future__ import annotations

import functools
import hashlib
import random
import secrets
import struct
import sys
from typing import Any

import numpy as np

from parenv.argument_checks import at_least

_SUB_ENVIRONMENT, _WORKER, _EVALUATION, _EPISODE, _RESET = 0, 1, 2, 3, 4
_MEMBER, _EVOLUTION, _TASK, _SESSION = 100, 101, 102, 103
_ODD = 0x9E3779B1
"""Odd distance of the seeds of a task: its multiples modulo 2**32 are all different."""


def root_seed(seed: Any, recorded: int | None = None) -> int:
    """Return the root of all seeds: the given seed, else the seed of a recorded run, else a random one."""
    if seed is not None:
        return at_least("seed", seed, 0)
    return secrets.randbits(63) if recorded is None else recorded


def environment_seed(seed: int, env_id: int, generation: int = 0, replaced: int = 0) -> int:
    """Return the seed of a sub-environment's first reset.

    Args:
        seed: Root of all seeds.
        env_id: Index of the sub-environment.
        generation: Number of restarts of its worker.
        replaced: Number of replacements by that worker since the last restart.
    """
    return _spawned(seed, _SUB_ENVIRONMENT, env_id, generation, *([replaced] if replaced else []))


def worker_seed(seed: int, worker: int, generation: int = 0) -> int:
    """Return the seed of the random state with which a worker's policy samples."""
    return _spawned(seed, _WORKER, worker, generation)


def evaluation_seed(seed: int, worker: int, evaluation: int) -> int:
    """Return the seed of one worker's part of one evaluation."""
    return _spawned(seed, _EVALUATION, worker, evaluation)


def member_seed(seed: int, member: int, turn: int) -> int:
    """Return the seed of one training round of a member of a population. It does not depend on the worker."""
    return _spawned(seed, _MEMBER, member, turn)


def evolution_seed(seed: int, member: int, turn: int) -> int:
    """Return the seed of the selection that follows a member's training round in a population."""
    return _spawned(seed, _EVOLUTION, member, turn)


def episode_seed(seed: int, env_id: int, generation: int, number: int) -> int:
    """Return the seed of random choices for an episode of a sub-environment, such as the policies of its agents."""
    return _spawned(seed, _EPISODE, env_id, generation, number)


def reset_seed(first: int, number: int) -> int:
    """Return the seed of a reset of a sub-environment, from the seed of its first reset and the number of later ones.

    >>> reset_seed(7, 0), reset_seed(7, 1) != reset_seed(7, 2)
    (7, True)
    """
    return _spawned(first, _RESET, number) if number else first


def task_episode_seed(seed: int, task: str, index: int) -> int:
    """Return the seed of an episode of a task in an evaluation. The seeds of one task are all different.

    Args:
        seed: Root of all seeds.
        task: Name of the task.
        index: Index of the episode.

    >>> task_episode_seed(0, "reach", 0), task_episode_seed(0, "reach", 1)
    (2346132854, 705601319)
    """
    return (_first_task_seed(seed, task) + index * _ODD) % 2**32


def session_seed(seed: int, number: int) -> int:
    """Return the seed of the first reset in a session of a ``SessionPool``."""
    return _spawned(seed, _SESSION, number)


@functools.lru_cache
def _first_task_seed(seed: int, task: str) -> int:
    name = hashlib.blake2b(task.encode(), digest_size=16).digest()
    return _spawned(seed, _TASK, *struct.unpack("<4I", name))


def _spawned(seed: int, *key: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0])


class RandomState:
    """A separate random state of ``random``, ``numpy`` and, if it is loaded, torch.

    A ``with`` block replaces the global states by it, and restores them at its end.

    Args:
        seed: Seed of the state.
    """

    def __init__(self, seed: int) -> None:
        outer = _global_state()
        random.seed(seed)
        np.random.seed(seed)
        if (torch := sys.modules.get("torch")) is not None:
            torch.default_generator.manual_seed(seed)
        self._inner = _global_state()
        _set_global_state(outer)
        self._outer: list[Any] = []

    def __enter__(self) -> RandomState:
        self._outer.append(_global_state())
        _set_global_state(self._inner)
        return self

    def __exit__(self, *exc: object) -> None:
        self._inner = _global_state()
        _set_global_state(self._outer.pop())


def random_state() -> list[Any]:
    """Return the global random states as plain data."""
    numbers, arrays, torch = _global_state()
    return [numbers, arrays, None if torch is None else torch.numpy()]


def set_random_state(state: list[Any]) -> None:
    """Set the global random states to a result of :func:`random_state`."""
    numbers, arrays, torch = state
    tensor = sys.modules["torch"].tensor(torch) if torch is not None and "torch" in sys.modules else None
    _set_global_state((numbers, arrays, tensor))


def _global_state() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()


def _set_global_state(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    if state[2] is not None:
        sys.modules["torch"].set_rng_state(state[2])
