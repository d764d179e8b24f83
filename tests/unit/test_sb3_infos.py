"""Check that infos keep their values and types when they are sent in a few arrays."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from parenv.adapters.sb3.infos import ENVS_OF_WORKER, InfoLog, InfoLoggingEnv, infos_of
from parenv.protocol.data import pack, unpack

INFOS: list[dict[str, Any]] = [
    {"x": 0.5, "n": 3, "flag": True},
    {"x": np.float64(0.25), "n": np.int32(3), "flag": np.bool_(True), "y": np.float32(0.1)},
    {"x": 1.5, "n": -4, "flag": False},
    {},
    {"n": 3, "x": 0.5, "flag": True},
    {"x": 0.5, "n": 2**70, "flag": True},
    {"episode": {"r": 1.0, "l": 3, "t": 0.1}, "text": "a", "list": [1, None], "array": np.arange(3)},
    {"x": 0.5, "episode": {"r": 1.0, "l": np.int32(3), "flag": True}, "n": 1, ("a", "b"): {("c", 1): 0.5}},
    {"x": 0.5, "episode": {"l": 2**70}},
    {"episode": {}},
    {("episode", "r"): 1.0},
    {"episode": {"inner": {"x": 1.0}}},
]


def test_infos_are_unpacked_unchanged() -> None:
    log = InfoLog()
    for step, info in enumerate(INFOS):
        log.add(step, step % 2, info)
    found = infos_of([unpack(*pack(log.take()))])
    assert repr([found[step][step % 2] for step in range(len(INFOS))]) == repr(INFOS)
    assert infos_of([log.take()]) == {}


def test_the_log_copies_infos_that_are_reused() -> None:
    log, info = InfoLog(), {"x": 0.0, "array": np.zeros(2)}
    plain = {"x": 0.0}
    for step in range(3):
        info["array"][:] = info["x"] = plain["x"] = float(step)
        log.add(step, 0, info)
        log.add(step, 1, plain)
    found = infos_of([log.take()])
    assert [[found[step][env_id]["x"] for env_id in range(2)] for step in range(3)] == [[0, 0], [1, 1], [2, 2]]
    assert [found[step][0]["array"].tolist() for step in range(3)] == [[0, 0], [1, 1], [2, 2]]


def test_the_info_of_a_reset_is_the_one_at_that_time() -> None:
    class Counting(gym.Env[Any, Any]):
        observation_space = action_space = gym.spaces.Discrete(2)
        steps: list[int] = []  # noqa: RUF012

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return 0, {"steps": self.steps}

        def step(self, action: Any) -> Any:
            self.steps.append(0)
            return 0, 0.0, False, False, {}

    ENVS_OF_WORKER.clear()
    env = InfoLoggingEnv(Counting(), 0)
    # The first reset is the start of the pool, which the environment does not see.
    env.reset()
    env.reset()
    env.step(0)
    assert env.recorded()[1] == [{"steps": []}]
    ENVS_OF_WORKER.clear()
