"""Check that ``ParallelVectorEnv`` and ``SyncVectorEnv`` return bitwise identical results for real environments."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import real_envs
from comparison import assert_same
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import HealthCheck, given, settings
from placements import Place
from real_envs import ENVIRONMENTS
from sampling import one_in

from parenv import ParallelVectorEnv, entry_point

N = 4
CLOCK = ("t",)
"""Infos that RecordEpisodeStatistics reads from the clock."""
SEEDS = st.integers(0, 1000) | st.lists(st.none() | st.integers(0, 1000), min_size=N, max_size=N) | st.none()
RESETS = st.tuples(st.just("reset"), SEEDS)
MASKS = st.lists(st.booleans(), min_size=N, max_size=N).filter(any)
MASKED_RESETS = st.tuples(st.just("reset some"), SEEDS, MASKS, st.sampled_from([{}, {"unused": "option"}]))
STEPS = st.tuples(st.just("step"), st.integers(1, 8))
CALLS = st.lists(STEPS | STEPS | MASKED_RESETS | RESETS, min_size=3, max_size=7)


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


MODES = list(AutoresetMode)
CASES = [*one_in(3, ENVIRONMENTS, MODES), *(("Taxi", mode) for mode in MODES)]


@pytest.mark.one_in(13)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_any_sequence_of_calls_has_the_results_of_sync_vector_env(
    name: str, mode: AutoresetMode, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log file into the working directory.
    made, arguments = ENVIRONMENTS[name]
    makers = [entry_point(f"{real_envs.__file__}:{made}", **arguments)] * N
    with (
        place(makers, autoreset_mode=mode) as envs,
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
