"""Check that each vector wrapper of Gymnasium works on ``ParallelVectorEnv`` as on ``SyncVectorEnv``."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from comparison import assert_same
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from videos import keep_frames, videos_in

from parenv import ParallelVectorEnv

N, STEPS = 3, 9
CLOCK = ("t",)
"""Infos that RecordEpisodeStatistics reads from the clock."""
NUMBERS = spaces.Box(-1, 1, (6,), np.float32)
PICTURE = spaces.Box(0, 255, (6, 8, 3), np.uint8)
PARTS = spaces.Dict(numbers=NUMBERS, picture=PICTURE, count=spaces.Discrete(4))


class Drawn(gym.Env[Any, Any]):
    """Environment with random observations and episode lengths, whose frames show the number of the step."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10_000}  # noqa: RUF012
    render_mode = "rgb_array"
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, observed: Any) -> None:
        self.observation_space = copy.deepcopy(observed)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps, self.length = 0, int(self.np_random.integers(2, 5))
        return self.observation_space.sample(), {"length": self.length}

    def step(self, action: Any) -> Any:
        self.steps += 1
        ended = self.steps == self.length
        info = {"steps": self.steps} if self.steps % 2 else {}
        return self.observation_space.sample(), 3 * float(action.sum()), ended, False, info

    def render(self) -> Any:
        return np.full((12, 16, 3), 20 * self.length + self.steps, np.uint8)


def negative(values: Any) -> Any:
    return -values


class Case(NamedTuple):
    """Parameters of the test of a wrapper.

    Attributes:
        wrap: Function that wraps a vector env.
        observed: Observation space of the environments.
        needs: Modules without which the test is skipped.
        as_action: Function that converts a sampled action.
    """

    wrap: Callable[[Any], Any]
    observed: Any = NUMBERS
    needs: tuple[str, ...] = ()
    as_action: Callable[[Any], Any] = copy.copy


CASES: dict[str, Case] = {
    "VectorizeTransformObservation": Case(
        lambda envs: wrappers.VectorizeTransformObservation(
            envs, gym.wrappers.TransformObservation, func=negative, observation_space=NUMBERS
        )
    ),
    "VectorizeTransformAction": Case(
        lambda envs: wrappers.VectorizeTransformAction(
            envs, gym.wrappers.TransformAction, func=negative, action_space=envs.single_action_space
        )
    ),
    "VectorizeTransformReward": Case(
        lambda envs: wrappers.VectorizeTransformReward(envs, gym.wrappers.TransformReward, func=negative)
    ),
    "DictInfoToList": Case(lambda envs: wrappers.DictInfoToList(wrappers.RecordEpisodeStatistics(envs))),
    "TransformObservation": Case(lambda envs: wrappers.TransformObservation(envs, negative)),
    "FilterObservation": Case(lambda envs: wrappers.FilterObservation(envs, ["picture", "count"]), PARTS),
    "FlattenObservation": Case(wrappers.FlattenObservation, PARTS),
    "GrayscaleObservation": Case(wrappers.GrayscaleObservation, PICTURE),
    "ResizeObservation": Case(lambda envs: wrappers.ResizeObservation(envs, (3, 4)), PICTURE, ("cv2",)),
    "ReshapeObservation": Case(lambda envs: wrappers.ReshapeObservation(envs, (3, 2))),
    "RescaleObservation": Case(lambda envs: wrappers.RescaleObservation(envs, 0.0, 9.0)),
    "DtypeObservation": Case(lambda envs: wrappers.DtypeObservation(envs, np.float64)),
    "NormalizeObservation": Case(wrappers.NormalizeObservation),
    "TransformAction": Case(lambda envs: wrappers.TransformAction(envs, negative)),
    "ClipAction": Case(wrappers.ClipAction),
    "RescaleAction": Case(lambda envs: wrappers.RescaleAction(envs, -5.0, 5.0)),
    "TransformReward": Case(lambda envs: wrappers.TransformReward(envs, negative)),
    "ClipReward": Case(lambda envs: wrappers.ClipReward(envs, -1, 1)),
    "NormalizeReward": Case(wrappers.NormalizeReward),
    "RecordEpisodeStatistics": Case(wrappers.RecordEpisodeStatistics),
    "RecordVideo": Case(lambda envs: wrappers.RecordVideo(envs, "videos", episode_trigger=lambda _: True), PICTURE),
    "HumanRendering": Case(wrappers.HumanRendering, PICTURE, ("pygame", "cv2")),
    "ArrayConversion": Case(
        lambda envs: wrappers.ArrayConversion(envs, np, torch), PARTS, ("array_api_compat",), torch.tensor
    ),
    "JaxToNumpy": Case(lambda envs: wrappers.JaxToNumpy(envs), PARTS, ("array_api_compat", "jax")),
    "JaxToTorch": Case(lambda envs: wrappers.JaxToTorch(envs), PARTS, ("array_api_compat", "jax"), torch.tensor),
    "NumpyToTorch": Case(lambda envs: wrappers.NumpyToTorch(envs), PARTS, ("array_api_compat",), torch.tensor),
}
LOOKS_AT_ENDS = ("RecordEpisodeStatistics", "DictInfoToList", "RecordVideo", "NormalizeReward")
"""Wrappers to test with ``SAME_STEP``, which wrappers that transform observations refuse."""


def trace(envs: Any, as_action: Callable[[Any], Any]) -> list[Any]:
    """Step a wrapped vector env with fixed seeds, and close it. Return all results and rendered frames."""
    envs.action_space.seed(0)
    found = [repr(envs.observation_space), repr(envs.action_space), copy.deepcopy(envs.reset(seed=0))]
    for _ in range(STEPS):
        found.append(copy.deepcopy(envs.step(as_action(envs.action_space.sample()))))
        if isinstance(envs, wrappers.HumanRendering):
            import pygame

            found.append(pygame.surfarray.array3d(envs.window))
    envs.close()
    return found


@pytest.mark.one_in(5)
@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::UserWarning"
)  # Wrappers warn of casts and in RecordVideo.
@pytest.mark.parametrize(
    ("name", "num_workers", "mode"),
    [(name, num_workers, AutoresetMode.NEXT_STEP) for name in wrappers.__all__ for num_workers in (0, 2)]
    + [(name, 2, AutoresetMode.SAME_STEP) for name in LOOKS_AT_ENDS],
)
def test_a_vector_wrapper_works_as_on_sync_vector_env(
    name: str, num_workers: int, mode: AutoresetMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    for module in case.needs:
        pytest.importorskip(module)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    keep_frames(monkeypatch)
    env_fns = [functools.partial(Drawn, case.observed)] * N
    traces, videos = [], []
    for make in (functools.partial(ParallelVectorEnv, num_workers=num_workers), SyncVectorEnv):
        folder = tmp_path / str(len(traces))
        folder.mkdir()
        monkeypatch.chdir(folder)
        with contextlib.closing(make(env_fns, autoreset_mode=mode)) as envs:
            traces.append(trace(case.wrap(envs), case.as_action))
        videos.append(videos_in(folder))
    assert_same(traces[0], traces[1], CLOCK)
    assert_same(videos[0], videos[1])
    assert bool(videos[0]) == (name == "RecordVideo")
