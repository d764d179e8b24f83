"""Make, step and close instances of an environment on a worker, and describe all that they return as text."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from parenv.envs.agents import acts_in_turns
from parenv.errors import NotDataError
from parenv.protocol.digests import new_digest
from parenv.protocol.plain import as_data

RAISED = "exception"
"""Name of the only value of a call that has raised an exception."""
OVERWRITTEN = "overwritten "
"""Beginning of the name of a value that has changed after the instance returned it."""
OPAQUE = "not plain data"
"""Text of a value that cannot be compared."""
_SHORT = 8
_STEPPED = ("observation", "reward", "terminated", "truncated", "info")
Outcome = dict[str, str]
"""The values that a call of an instance returned, as text by name."""


class SharingProbe(gym.Env[Any, Any]):
    """Sub-environment of a worker that has instances of the checked environment. It makes them on request.

    Args:
        make: Functions of the instances, which take turns.
        seed: Seed of instance 0. Instance ``i`` has ``seed + i``.
        only: Number of the only instance of this probe, or ``None`` if it has all of them.
    """

    observation_space = action_space = gym.spaces.Discrete(1)

    def __init__(self, make: Sequence[Callable[[], Any]], seed: int, only: int | None) -> None:
        self._make, self._seed, self._only = make, seed, only
        self._instances: dict[int, _Instance] = {}

    def serve(self, orders: Sequence[tuple[int, str]]) -> list[Outcome | None]:
        """Call instances, each as ``(number, method)``. The outcome of an instance of another probe is ``None``."""
        return [self._outcome(*order) if self._only in (None, order[0]) else None for order in orders]

    def close(self) -> None:
        """Close the instances that the orders have not closed."""
        for instance in self._instances.values():
            with contextlib.suppress(Exception):
                instance.close()

    def _outcome(self, number: int, method: str) -> Outcome:
        try:
            if method == "make":
                made = self._make[number % len(self._make)]()
                self._instances[number] = _Instance(made, self._seed + number)
                return {}
            found = getattr(self._instances[number], method)()
            if method == "close":
                del self._instances[number]
            return dict(found)
        except BaseException as error:  # A simulator may call sys.exit, which ends only its own script.
            return {RAISED: f"{type(error).__name__}: {error}"}


class _Instance:
    """An environment with random actions: of Gymnasium, a ``VectorEnv``, or of PettingZoo.

    Args:
        env: Environment.
        seed: Seed of resets and actions.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self._env, self._seed = env, seed
        self._spaces: dict[str | None, Any] = {}
        self._is_over = True
        self._kept: list[tuple[str, Any]] = []
        self._shown: Outcome = {}

    def reset(self) -> Outcome:
        """Begin an episode with the seed."""
        return self._look(lambda: self._begin(seed=self._seed))

    def step(self) -> Outcome:
        """Step with random actions, or reset without a seed after the end of an episode."""
        return self._look(self._begin if self._is_over else self._step)

    def render(self) -> Outcome:
        """Render, if that returns frames."""
        mode = getattr(self._env, "render_mode", None)
        return self._look(lambda: [] if mode in (None, "human") else [("frame", self._env.render())])

    def close(self) -> Outcome:
        """Close the environment."""
        self._env.close()
        return {}

    def _look(self, call: Callable[[], list[tuple[str, Any]]]) -> Outcome:
        """Call the environment, and describe what it returns, and what has changed since the last call.

        A worker reads observations when it has stepped all its sub-environments, so they must not change until then.
        """
        now = _described(self._kept)
        changed = {OVERWRITTEN + name: text for name, text in now.items() if text != self._shown[name]}
        self._kept = call()
        self._shown = _described(self._kept)
        return self._shown | changed

    def _begin(self, **seed: int) -> list[tuple[str, Any]]:
        returned = self._env.reset(**seed)
        self._is_over = False
        return [] if returned is None else list(zip(("observation", "info"), returned, strict=True))

    def _step(self) -> list[tuple[str, Any]]:
        env = self._env
        if acts_in_turns(env):
            seen = env.last()
            env.step(None if seen[2] or seen[3] else self._action(env.agent_selection))
            self._is_over = not env.agents
            return list(zip(_STEPPED, seen, strict=True))
        if callable(env.action_space):
            stepped = env.step({agent: self._action(agent) for agent in env.agents})
            self._is_over = not env.agents
        else:
            stepped = env.step(self._action(None))
            self._is_over = bool(np.any(stepped[2]) or np.any(stepped[3]))
        return list(zip(_STEPPED, stepped, strict=True))

    def _action(self, agent: str | None) -> Any:
        if agent not in self._spaces:
            # Instances can have one space object in common. Each must draw its own actions.
            space = copy.deepcopy(self._env.action_space if agent is None else self._env.action_space(agent))
            space.seed(self._seed + 1000 * len(self._spaces))
            self._spaces[agent] = space
        return self._spaces[agent].sample()


def _described(values: Sequence[tuple[str, Any]]) -> Outcome:
    return {name: text for whole, value in values for name, text in _leaves(whole, value)}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each array, number or text in a value."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(f"{name}[{number}]", item)
    else:
        yield name, _text(value)


def _text(value: Any) -> str:
    """Return a text that is the same only for the same bits."""
    try:
        value = as_data(value)
    except NotDataError:
        return OPAQUE
    if not hasattr(value, "dtype") or not value.shape:
        return repr(value.item() if hasattr(value, "item") else value)
    array = np.asarray(value)
    if array.size <= _SHORT:
        return repr(array.tolist())
    return f"{array.dtype} {array.shape} {new_digest(np.ascontiguousarray(array).tobytes()).hexdigest()}"
