"""Environments of the contract of vector envs, by name, so that any interpreter can make them."""

from __future__ import annotations

import copy
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Even(spaces.Discrete):
    """Discrete space that samples only even numbers."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return super().sample() // 2 * 2


class Custom(spaces.Space[Any]):
    """Space of a custom class."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return {"anything": int(self.np_random.integers(9))}

    def contains(self, x: Any) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom)

    def __repr__(self) -> str:
        return "Custom()"


BOX, NINE, THREE = spaces.Box(-1, 1, (2, 3), np.float64), spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(3)
FIXED: dict[str, Any] = {
    "0-d box": spaces.Box(-1, 1, (), np.float32),
    "box": BOX,
    "pixels": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi-binary": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict(a=BOX, b=THREE),
    "tuple": spaces.Tuple([THREE, BOX]),
    "no elements": spaces.Box(-1, 1, (2, 0, 3), np.float64),
    "parts without elements": spaces.Dict(a=spaces.Box(0, 1, (0, 2)), b=spaces.Tuple([spaces.Box(0, 1, (4, 0)), BOX])),
}
EMPTY: dict[str, Any] = {
    "Dict in a Dict": spaces.Dict(a=BOX, b=spaces.Dict()),
    "Tuple in a Dict": spaces.Dict(a=BOX, b=spaces.Tuple([])),
    "Dict in a Tuple": spaces.Tuple([spaces.Dict(), THREE]),
    "Tuple in a Tuple": spaces.Tuple([BOX, spaces.Tuple([])]),
    "nothing else": spaces.Dict(a=spaces.Dict(b=spaces.Dict()), c=spaces.Tuple([])),
    "Dict": spaces.Dict(),
    "Tuple": spaces.Tuple([]),
}
VARYING: dict[str, Any] = {
    "nested": spaces.Dict(x=spaces.Tuple([spaces.Dict(y=BOX, z=spaces.Text(4)), spaces.Discrete(2)]), u=BOX),
    "text": spaces.Text(5, charset="zyx"),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "stacked sequence": spaces.Sequence(BOX, stack=True),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), THREE),
    "one of": spaces.OneOf([THREE, BOX]),
}
CUSTOM: dict[str, Any] = {
    "custom": Custom(),
    "in a dict": spaces.Dict(a=Custom(), b=THREE),
    "in a tuple": spaces.Tuple([BOX, Custom()]),
    "in a sequence": spaces.Sequence(Custom()),
    "in one of two": spaces.OneOf([Custom(), spaces.Discrete(2)]),
    "a subclass": Even(9),
}
FLOATS: dict[str, Any] = {
    "three bits": spaces.MultiBinary(3),
    "two numbers": spaces.MultiDiscrete([3, 4]),
    "two bytes": spaces.Box(0, 255, (2,), np.uint8),
}
SPACES: dict[str, Any] = {
    **FIXED,
    **EMPTY,
    **VARYING,
    **CUSTOM,
    **FLOATS,
    "pair": spaces.Box(-1, 1, (2,), np.float32),
    "three": THREE,
    "dict of three": spaces.Dict(a=THREE),
    "wide": NINE,
    "dict of a pair": spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32)),
}

OBSERVED: dict[str, tuple[Any, Callable[[int, int], Any]]] = {
    "wider floats": (NINE, lambda env_id, step: np.array([0.1, env_id])),
    "integers": (NINE, lambda env_id, step: np.array([step, env_id])),
    "wider integers": (spaces.Box(0, 255, (2,), np.int32), lambda env_id, step: np.array([7, step], np.int64)),
    "lists": (NINE, lambda env_id, step: [step, 0.1]),
    "lists of integers": (spaces.Box(0, 255, (2,), np.int64), lambda env_id, step: [7, 8]),
    "mixed": (spaces.Box(-9, 9, (1,), np.float32), lambda env_id, step: [[step], [0.1], np.ones(1, "f8")][env_id]),
    "numbers": (spaces.Discrete(9), lambda env_id, step: [step, np.int32(1), np.array(2)][env_id]),
    "steps": (spaces.Discrete(9), lambda env_id, step: step),
    "booleans": (spaces.Discrete(9), lambda env_id, step: bool(env_id)),
    "other order": (spaces.Dict(a=BOX, b=BOX), lambda env_id, step: {"b": BOX.low, "c": 1, "a": BOX.high}),
}
MISFITS: dict[str, tuple[Any, Any, Any]] = {
    "longer": (NINE, np.zeros(2, "f4"), np.zeros(3, "f4")),
    "another dimension": (NINE, np.zeros(2, "f4"), np.zeros((2, 1), "f4")),
    "as many numbers": (spaces.Box(-9, 9, (2, 4)), np.zeros((2, 4), "f4"), np.zeros((2, 2, 2), "f4")),
    "floats for integers": (spaces.Box(0, 9, (2,), np.int64), np.zeros(2, int), np.zeros(2)),
    "integers that do not fit": (spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.uint8), [300, -1]),
    "a float for a number": (THREE, 1, 1.0),
    "none": (NINE, np.zeros(2, "f4"), None),
    "no key": (spaces.Dict(a=spaces.Discrete(2)), {"a": 1}, {}),
}

INFOS: dict[str, Callable[[int, int], Any]] = {
    "integers": lambda env_id, step: {"x": step},
    "floats and booleans": lambda env_id, step: {"x": 0.5 * step, "y": step > 2},
    "none": lambda env_id, step: {"x": None},
    "text": lambda env_id, step: {"x": f"{env_id} {step} ö"},
    "scalars": lambda env_id, step: {
        "a": np.float32(step),
        "b": np.int8(1),
        "c": np.bool_(1),
        "d": np.float16(2),
        "e": np.float64(0.5),
    },
    "arrays": lambda env_id, step: {"x": np.full((2, 2), step, np.int16), "y": np.array(step)},
    "nested": lambda env_id, step: {"x": {"y": {"z": step, "s": "a"}}, "e": {}},
    "some": lambda env_id, step: {"x": 1} if env_id == step % 3 else {},
    "different keys": lambda env_id, step: {f"k{(env_id + step) % 4}": 1.0, "x": {f"k{env_id}": step}},
    "mixed numbers": lambda env_id, step: {"x": [1, 2.7, True][(env_id + step) % 3]},
    "mixed scalars": lambda env_id, step: {"x": [None, np.float32(2.7), np.zeros(2)][env_id]},
    "mixed by message": lambda env_id, step: {"x": ["a", np.float32(2.7), np.zeros(2)][env_id]},
    "changing keys": lambda env_id, step: {f"k{step}": step},
    "huge integers": lambda env_id, step: {"x": [1 << 80]},
    "changing shapes": lambda env_id, step: {} if env_id else {"x": np.ones(1 + step)},
    "large": lambda env_id, step: {"x": np.full(400, step)},
    "lists": lambda env_id, step: {"x": [step, {"y": (1, 2)}], "b": b"ab"},
    "keys that are no strings": lambda env_id, step: {1: step, (2, 3): "x"},
    "arrays of text": lambda env_id, step: {"x": np.array(["ab", "c"])},
    "empty": lambda env_id, step: {},
}


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def cycle() -> list[Any]:
    found: list[Any] = []
    found += [found, found]
    return found


ODD_INFOS: dict[str, Callable[[int, int], Any]] = {
    "complex": lambda env_id, step: {"x": 1 + 2j},
    "sets": lambda env_id, step: {"x": [{3, 1}, {2}]},
    "memory": lambda env_id, step: {"x": memoryview(b"abc")},
    "unshowable": lambda env_id, step: {"odd": {Unshowable(), Unshowable()}, "x": 1},
    "long text": lambda env_id, step: {"x": "x" * 5_000_000},
    "many items": lambda env_id, step: {"x": list(range(300_000))},
    "70 MB": lambda env_id, step: {"x": np.arange(70_000_000, dtype=np.uint8)},
    "cycle": lambda env_id, step: {"odd": cycle(), "x": 1},
    "no elements": lambda env_id, step: {"x": np.zeros((3, 0))},
    "thing": lambda env_id, step: {"x": 1, "thing": object()} if (env_id, step) == (1, 1) else {"x": 2},
}


class Talker(gym.Env[Any, Any]):
    """Environment with episodes of about four steps, and with the observations and infos of given names.

    Args:
        env_id: Number of the environment.
        observed: Observation space: a space, its name in :data:`SPACES`, or a name in :data:`OBSERVED` or
            :data:`MISFITS`. A misfit is observed by env_id 1 in step 2.
        acted: Action space, or its name in :data:`SPACES`.
        says: Function ``(env_id, step) -> info``, or its name in :data:`INFOS` or :data:`ODD_INFOS`.
        observes: Function ``(env_id, step) -> observation``. Default: that of the name, or samples of the space.
        returns: Kind of the results: ``"list"``: a list from ``step``, and no info from ``reset``.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self, env_id: int = 0, observed: Any = "pair", acted: Any = "three", says: Any = "empty", observes: Any = None,
        returns: str = "",
    ) -> None:  # fmt: skip
        if isinstance(observed, str) and observed in OBSERVED:
            observed, observes = OBSERVED[observed]
        elif isinstance(observed, str) and observed in MISFITS:
            observed, good, bad = MISFITS[observed]
            observes = lambda env_id, step: bad if (env_id, step) == (1, 2) else good  # noqa: E731
        self.observation_space = copy.deepcopy(SPACES[observed] if isinstance(observed, str) else observed)
        self.action_space = SPACES[acted] if isinstance(acted, str) else acted
        self.render_mode, self.returns = "rgb_array", returns
        self.env_id, self.steps, self.actions = env_id, 0, []
        self._says, self._observes = says if callable(says) else {**INFOS, **ODD_INFOS}[says], observes

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.steps = 0
        self.options = options
        return self._observation(), None if self.returns == "list" else self._info()

    def step(self, action: Any) -> Any:
        self.actions.append(repr(action))
        self.steps += 1
        ended = (self.steps + self.env_id) % 4 == 0
        found = self._observation(), self.steps * 0.5, ended and self.env_id % 2 == 0, ended, self._info()
        return list(found) if self.returns == "list" else found

    def render(self) -> Any:
        return np.full((2, 2, 3), self.env_id, np.uint8)

    def add(self, number: int, *, more: int = 0) -> int:
        return self.env_id + number + more

    def same(self, value: Any) -> Any:
        return value

    def pid(self) -> int:
        return os.getpid()

    def put_back(self) -> None:
        del self.step

    def broken(self) -> None:
        raise LookupError(f"nothing in {self.env_id}")

    def unspeakable(self) -> None:
        raise UnspeakableError

    def secret(self) -> Any:
        return object()

    def last_options(self) -> tuple[str, dict[str, Any]]:
        return type(self.options).__name__, dict(self.options)

    def _observation(self) -> Any:
        return self._observes(self.env_id, self.steps) if self._observes else self.observation_space.sample()

    def _info(self) -> Any:
        return self._says(self.env_id, self.steps)


class Film(Talker):
    """Talker whose frames are twelve pictures in Full HD."""

    def render(self) -> Any:
        return [np.full((1080, 1920, 3), i, np.uint8) for i in range(12)]


class Unspeakable(Talker):
    """Talker whose second step raises an exception without words."""

    def step(self, action: Any) -> Any:
        if self.steps == 1:
            self.steps = 2
            raise UnspeakableError
        return super().step(action)


class Reusing(Talker):
    """Environment that returns the same arrays in every step."""

    def __init__(self, env_id: int = 0) -> None:
        super().__init__(env_id, spaces.Dict(a=spaces.Box(0, 9, (2,), np.int64), b=spaces.Box(0, 9, (), np.float32)))
        self._arrays = {"a": np.zeros(2, np.int64), "b": np.zeros((), np.float32)}

    def _observation(self) -> Any:
        self._arrays["a"][:] = self.steps
        self._arrays["b"][...] = self.steps
        return self._arrays


class Resetting(Talker):
    """Environment that returns one buffer, filled with -1 by a reset and with the step number by a step."""

    def __init__(self, env_id: int = 0) -> None:
        super().__init__(0)
        self._buffer = np.zeros(2, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        self._buffer[:] = -1
        return self._buffer, {}

    def _observation(self) -> Any:
        self._buffer[:] = self.steps
        return self._buffer


class Keeping(Talker):
    """Environment that keeps its infos, reward and flag in objects of its own, and clears them in a reset."""

    def __init__(self, env_id: int = 0) -> None:
        super().__init__(0)
        self._sums, self._reward, self._ended = np.zeros(2), np.zeros(()), np.zeros((), bool)
        self._seen: dict[str, Any] = {"sums": np.zeros(1), "count": 0, "steps": [], "pair": ([], {"last": 0})}
        self._words, self._set = deque[str](maxlen=2), set[int]()

    def reset(self, **kwargs: Any) -> Any:
        found, _ = super().reset(**kwargs)
        self._sums[:], self._reward[...], self._ended[...] = 0, 0, False
        self._seen["sums"][:], self._seen["count"] = 0, 0
        for kept in (self._seen["steps"], self._seen["pair"][0], self._words, self._set):
            kept.clear()
        self._seen["pair"][1]["last"] = 0
        return found, {"steps": self._seen["steps"]}

    def step(self, action: Any) -> Any:
        found = super().step(action)[0]
        self._sums += [1, 2]
        self._reward += 1
        self._ended[...] = self.steps == 4
        self._seen["sums"] += 1
        self._seen["count"] = self._seen["pair"][1]["last"] = self.steps
        self._seen["steps"].append(self.steps)
        self._seen["pair"][0].append(self.steps)
        self._words.append(f"{self.steps}")
        self._set.add(self.steps)
        info = {"sums": self._sums, "seen": self._seen, "words": self._words, "set": self._set, "env": self}
        return found, self._reward, self._ended, False, info


class Ending(Talker):
    """Environment with episodes of one step, which may fail. It counts the steps after the end of an episode."""

    fails, beyond = False, 0

    def reset(self, **kwargs: Any) -> Any:
        self.ended = False
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.beyond += self.ended
        observation, reward, *_ = super().step(action)
        if self.fails:
            raise LookupError("fails")
        self.ended = True
        return observation, reward, True, False, {}


class Failing(gym.Env[Any, Any]):
    """Environment that raises an exception in steps with action 1, calls, and resets with options.

    Args:
        kind: Name of the class of the exception.
        args: Its arguments.
    """

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, kind: str = "KeyError", args: Any = ("gone",)) -> None:
        self.kind, self.args = kind, tuple(args)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if options:
            self.fail()
        return 0, {}

    def step(self, action: Any) -> Any:
        if action:
            self.fail()
        return 0, 1.0, False, False, {}

    def fail(self) -> None:
        raise getattr(__import__("builtins"), self.kind)(*self.args)


class Echo(gym.Env[Any, Any]):
    """Ledger that also observes its last action and its level. It raises an exception at action 3 and dies at 4.

    It is like ``parenv.testing.LedgerEnv``, and another interpreter makes it without the import of parenv.
    """

    level = 0

    def __init__(self, env_id: int = 0) -> None:
        self.observation_space = spaces.Box(-1, 1 << 40, (5,), np.int64)
        self.action_space = spaces.Discrete(5)
        self._row = np.array([env_id, -1, 0, -1, 0], np.int64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._row[1:] = self._row[1] + 1, 0, -1, self.level
        return self._row.copy(), {}

    def step(self, action: Any) -> Any:
        if action == 3:
            raise ValueError("the motor is hot")
        if action == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        self._row[2:] = self._row[2] + 1, action, self.level
        env_id, episode, step, *_ = self._row.tolist()
        ended = step >= 1 + (env_id * 5 + episode * 3) % 7
        terminated = ended and episode % 2 == 0
        return self._row.copy(), float(env_id + 10 * episode + step), terminated, ended and not terminated, {}

    def pid(self) -> int:
        return os.getpid()
