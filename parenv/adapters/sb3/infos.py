"""Infos of many steps as a few arrays: workers record them, and the main process restores them."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Wrapper

from parenv.memory.trees import own_copy
from parenv.protocol.plain import plain_info
from parenv.worker.pickled_env import PickledEnv
from parenv.worker.task import ENV_METHODS

Info = dict[str, Any]
RecordedInfos = tuple[list[tuple[list[Any], list[str], Any, Any, list[Any]]], list[tuple[int, int, Info]]]
"""Tables of infos with the same keys and types (keys, names of types, steps, env_ids, columns), and single infos.

If an info has a dict, as the info of a Monitor has at the end of an episode, the table has a key for each value in it:
a list of the dict's key and the value's key.
"""

_PYTHON: dict[type[Any], Any] = {float: np.float64, int: np.int64, bool: np.bool_}
_NUMPY: tuple[type[Any], ...] = (np.float64, np.float32, np.int64, np.int32, np.bool_)
_NAMES = {kind: kind.__name__ for kind in _PYTHON} | {kind: f"numpy {kind.__name__}" for kind in _NUMPY}
_ITEM_LISTS = {_NAMES[kind]: np.ndarray.tolist for kind in _PYTHON} | {_NAMES[kind]: list for kind in _NUMPY}


class InfoLog:
    """Keeps infos of several sub-environments until they are taken.

    >>> log = InfoLog()
    >>> log.add(0, 4, {"speed": 0.5, "stuck": False})
    >>> log.add(0, 5, {"speed": 0.25, "stuck": True})
    >>> log.add(1, 4, {"speed": 1.0, "stuck": False, "episode": {"r": 3.0, "l": 7}})
    >>> infos = infos_of([log.take()])
    >>> infos[0][5], infos[1][4]["episode"]
    ({'speed': 0.25, 'stuck': True}, {'r': 3.0, 'l': 7})
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        self._single: list[tuple[int, int, Info]] = []

    def add(self, step: int, env_id: int, info: Info) -> None:
        """Keep a copy of the info of a step."""
        if not (self._adds(step, env_id, info) or self._adds(step, env_id, _opened(info))):
            self._single.append((step, env_id, own_copy(info)))

    def _adds(self, step: int, env_id: int, info: Info) -> bool:
        """Keep an info if all its values are numbers, and return whether they are."""
        kinds = tuple(map(type, info.values()))
        if not _NAMES.keys() >= set(kinds):
            return False
        self._tables.setdefault((tuple(info), kinds), []).append((step, env_id, *info.values()))
        return True

    def take(self) -> RecordedInfos:
        """Return all infos since the last call, as plain data."""
        tables, single = [], [(step, env_id, plain_info(info)[0]) for step, env_id, info in self._single]
        for (among, kinds), rows in self._tables.items():
            keys = [[key.outer, key.inner] if type(key) is _Inner else key for key in among]
            try:
                steps, env_ids, *columns = (
                    np.array(values, _PYTHON.get(kind, kind))
                    for kind, values in zip((int, int, *kinds), zip(*rows, strict=True), strict=True)
                )
                tables.append((keys, [_NAMES[kind] for kind in kinds], steps, env_ids, columns))
            except OverflowError:  # An integer of more than 64 bits.
                single += [(step, env_id, _info(keys, values)) for step, env_id, *values in rows]
        self._tables, self._single = {}, []
        return tables, single


class InfoLoggingEnv(Wrapper[Any, Any, Any, Any]):
    """Records the infos of steps and resets in a worker until the main process asks for them.

    Args:
        env: Environment.
        env_id: Its env_id.

    >>> import gymnasium as gym
    >>> env = InfoLoggingEnv(gym.make("CartPole-v1"), 0)
    >>> for _ in range(2):
    ...     observation, info = env.reset(seed=1)
    >>> for _ in range(2):
    ...     observation, *_ = env.step(1)
    >>> env.recorded()
    (([], []), [{}], None)
    """

    def __init__(self, env: Any, env_id: int) -> None:
        super().__init__(env)
        self.env_id = env_id
        self._step = 0
        self._reset_info: Info = {}
        self._was_asked = False
        ENVS_OF_WORKER.append(self)

    def reset(self, **options: Any) -> Any:
        """Begin an episode, except in the first call."""
        if not self._was_asked:
            # The pool resets the copy at the start with a seed of its own, and the model resets it again. The original
            # environment sees only the second reset.
            self._was_asked = True
            return copy.deepcopy(self.env.observation_space).sample(), {}
        observation, info = self.env.reset(**options)
        self._reset_info = own_copy(info)
        return observation, info

    def step(self, action: Any) -> Any:
        """Take a step."""
        stepped = self.env.step(action)
        if info := stepped[4]:
            _LOG.add(self._step, self.env_id, info)
        self._step += 1
        return stepped

    def recorded(self, with_random_state: bool = False) -> Any:
        """Return what the environments of this worker have recorded since the last call.

        Args:
            with_random_state: Whether to return torch's random state.

        Returns:
            Infos with steps counted from the last call, the info of each environment's last reset, and the random
            state or ``None``. Only the worker's first environment returns them; the others return ``None``.
        """
        if self is not ENVS_OF_WORKER[0]:
            return None
        for env in ENVS_OF_WORKER:
            env._step = 0
        resets = [plain_info(env._reset_info)[0] for env in ENVS_OF_WORKER]
        return _LOG.take(), resets, random_state() if with_random_state else None

    def is_wrapped(self, module: str, name: str) -> bool:
        """Return whether the user's environment has a wrapper of this class."""
        return bool(ENV_METHODS["is_wrapped"](self.env, 0, module, name))

    def set_outermost(self, name: str, value: Any) -> None:
        """Set an attribute on the outermost wrapper of the user's environment."""
        setattr(self.env, name, value)


ENVS_OF_WORKER: list[InfoLoggingEnv] = []
"""Sub-environments of this worker."""
_LOG = InfoLog()
"""Infos of their steps."""


def info_logging_env(pickled: PickledEnv, env_id: int) -> InfoLoggingEnv:
    """Make an environment in a worker.

    Args:
        pickled: Environment to wrap.
        env_id: Its env_id.
    """
    return InfoLoggingEnv(pickled(), env_id)


def infos_of(recorded: Iterable[RecordedInfos], among: Collection[str] = ()) -> dict[int, dict[int, Info]]:
    """Restore infos, with values in their original types.

    Args:
        recorded: Infos that workers have recorded.
        among: Keys of which an info must have one. Default: all infos are restored.

    Returns:
        Infos by step and env_id.
    """
    found: defaultdict[int, dict[int, Info]] = defaultdict(dict)
    for tables, single in recorded:
        for step, env_id, info in single:
            if not among or info.keys() & among:
                found[step][env_id] = info
        for keys, kinds, steps, env_ids, columns in tables:
            if among and not {key[0] if type(key) is list else key for key in keys}.intersection(among):
                continue
            lists = [_ITEM_LISTS[kind](column) for kind, column in zip(kinds, columns, strict=True)]
            for step, env_id, *values in zip(steps.tolist(), env_ids.tolist(), *lists, strict=True):
                found[step][env_id] = _info(keys, values)
    return found


def random_state() -> bytes:
    """Return torch's random state as plain data."""
    import torch

    return bytes(torch.get_rng_state().numpy().tobytes())


def set_random_state(state: bytes) -> None:
    """Set torch's random state to one that :func:`random_state` returned."""
    import torch

    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


@dataclass(frozen=True)
class _Inner:
    """A key of a dict in an info, with the key of that dict."""

    outer: Any
    inner: Any


def _opened(info: Info) -> dict[Any, Any]:
    """Return an info with the values of its dicts in place of the dicts."""
    opened: dict[Any, Any] = {}
    for key, value in info.items():
        if type(value) is dict and value:
            opened |= {_Inner(key, inner): part for inner, part in value.items()}
        else:
            opened[key] = value
    return opened


def _info(keys: Sequence[Any], values: Sequence[Any]) -> Info:
    info: Info = {}
    for key, value in zip(keys, values, strict=True):
        if type(key) is list:
            info.setdefault(key[0], {})[key[1]] = value
        else:
            info[key] = value
    return info
