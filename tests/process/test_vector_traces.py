"""Check that ``ParallelVectorEnv`` and ``SyncVectorEnv`` return bitwise identical results for real environments."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
import pytest
from comparison import assert_same
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from sampling import one_in

from parenv import ParallelVectorEnv

N = 4
WITH_CALLER = -1
"""Value in place of a number of workers, which means one worker and ``caller_steps=True``."""
CLOCK = ("t",)
"""Infos that RecordEpisodeStatistics reads from the clock."""


def limited(name: str, steps: int, **kwargs: Any) -> Any:
    return gym.make(name, max_episode_steps=steps, **kwargs)


def recorded(name: str, steps: int) -> Any:
    return gym.wrappers.RecordEpisodeStatistics(limited(name, steps))


def pong() -> Any:
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84)
    return gym.wrappers.TimeLimit(gym.wrappers.FrameStackObservation(env, 4), 6)


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "CartPole": partial(limited, "CartPole-v1", 7),
    "CartPole recorded": partial(recorded, "CartPole-v1", 5),
    "Acrobot": partial(limited, "Acrobot-v1", 5),
    "MountainCarContinuous": partial(limited, "MountainCarContinuous-v0", 3),
    "Pendulum": partial(limited, "Pendulum-v1", 1),
    "FrozenLake": partial(limited, "FrozenLake-v1", 6),
    "Taxi": partial(limited, "Taxi-v4", 4),
    "Blackjack": partial(gym.make, "Blackjack-v1"),
    "Blackjack recorded": partial(recorded, "Blackjack-v1", 4),
    "CliffWalking": partial(limited, "CliffWalking-v1", 5),
    "HalfCheetah": partial(limited, "HalfCheetah-v5", 4),
    "Hopper": partial(recorded, "Hopper-v5", 6),
    "Pong": pong,
}
if find_spec("Box2D"):  # Box2D has no wheel for Python 3.14.
    ENVIRONMENTS |= {
        "LunarLander": partial(limited, "LunarLander-v3", 6),
        "BipedalWalker": partial(limited, "BipedalWalker-v3", 6),
    }

SEEDS = st.integers(0, 1000) | st.lists(st.none() | st.integers(0, 1000), min_size=N, max_size=N) | st.none()
RESETS = st.tuples(st.just("reset"), SEEDS)
MASKS = st.lists(st.booleans(), min_size=N, max_size=N).filter(any)
MASKED_RESETS = st.tuples(st.just("reset some"), SEEDS, MASKS, st.sampled_from([{}, {"unused": "option"}]))
STEPS = st.tuples(st.just("step"), st.integers(1, 8))
CALLS = st.lists(STEPS | STEPS | MASKED_RESETS | RESETS, min_size=3, max_size=7)


def layout(num_workers: int) -> dict[str, Any]:
    return {"num_workers": 1, "caller_steps": True} if num_workers == WITH_CALLER else {"num_workers": num_workers}


class Both:
    """Pair of vector envs that get the same calls and must return the same results."""

    def __init__(self, envs: ParallelVectorEnv, reference: SyncVectorEnv) -> None:
        self.envs, self.reference = envs, reference

    def reset(self, seed: Any, options: Any = None) -> None:
        kept = copy.deepcopy(options)
        got = self.envs.reset(seed=seed, options=options)
        assert_same(options, kept)
        assert_same(got, self.reference.reset(seed=seed, options=options), CLOCK, "reset")

    def step(self) -> None:
        actions = self.reference.action_space.sample()
        wanted = self.reference.step(actions)
        assert_same(self.envs.step(actions), wanted, CLOCK, "step")
        ended = wanted[2] | wanted[3]
        if self.envs.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            self.reset(None, {"reset_mask": ended})

    def run(self, seed: int, calls: list[Any]) -> None:
        self.reference.action_space.seed(seed)
        self.reset(seed)
        for what, *how in calls:
            if what == "step":
                for _ in range(how[0]):
                    self.step()
            elif what == "reset":
                self.reset(how[0])
            else:
                self.reset(how[0], {**how[2], "reset_mask": np.array(how[1])})


CASES = [(name, mode, (row + i) % 4) for row, name in enumerate(ENVIRONMENTS) for i, mode in enumerate(AutoresetMode)]
CASES += [("Taxi", mode, num_workers) for mode in AutoresetMode for num_workers in range(4)]
CASES += [("Taxi", mode, WITH_CALLER) for mode in AutoresetMode]
CASES += [(name, list(AutoresetMode)[row % 3], WITH_CALLER) for row, name in enumerate(ENVIRONMENTS)]
CASES = one_in(2, dict.fromkeys(CASES))
# Each reset of the emulator takes as long as a hundred steps of another environment.
LONG = [pytest.param(*case.values, marks=(pytest.mark.more, *case.marks)) for case in CASES if "Pong" in case.values]
CASES = [case for case in CASES if "Pong" not in case.values] + LONG


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("name", "mode", "num_workers"), CASES)
def test_any_sequence_of_calls_has_the_results_of_sync_vector_env(
    name: str, mode: AutoresetMode, num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log file into the working directory.
    makers = [ENVIRONMENTS[name]] * N
    with (
        contextlib.closing(ParallelVectorEnv(makers, autoreset_mode=mode, **layout(num_workers))) as envs,
        contextlib.closing(SyncVectorEnv(makers, autoreset_mode=mode)) as reference,
    ):
        both = Both(envs, reference)
        assert (envs.action_space, envs.observation_space) == (reference.action_space, reference.observation_space)
        assert (envs.metadata, envs.render_mode) == (reference.metadata, reference.render_mode)

        @given(st.integers(0, 1000), CALLS)
        @settings(max_examples=2 if name == "Pong" else 6, derandomize=True, suppress_health_check=list(HealthCheck))
        def compare(seed: int, calls: list[Any]) -> None:
            both.run(seed, calls)

        compare()
