"""Stepping a VectorEnv of the user's into the rows of a rollout."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenv.envs.fitting import Fit
from parenv.envs.stepping import EnvStepper, VectorStepper, make_stepper
from parenv.errors import ConfigurationError, ObservationError
from parenv.memory.spaces import flatten, leaves
from parenv.testing import LedgerEnv

from .scripted import Run, Scripted, audit, quiet

UNIT = spaces.Box(-1, 1, (2,))
USABLE = [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


class Copies(gym.ObservationWrapper[Any, Any, Any]):
    """Gymnasium's vector environments keep the final observation itself, not a copy."""

    def observation(self, observation: Any) -> Any:
        return observation.copy()


class OwnVectorEnv(SyncVectorEnv):
    """Not the bare one that is unwrapped."""


def ledgers(count: int, mode: AutoresetMode, kind: type[SyncVectorEnv] = OwnVectorEnv, copy: bool = True) -> Any:
    makers = [lambda env_id=env_id: Copies(LedgerEnv(env_id)) for env_id in range(count)]
    return kind(makers, autoreset_mode=mode, copy=copy)


@pytest.mark.parametrize("mode", USABLE)
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "no copy"])
def test_every_transition_is_real_and_every_final_observation_true(mode: AutoresetMode, copy: bool) -> None:
    stepper = make_stepper([ledgers(3, mode, copy=copy)], 0, quiet())
    assert isinstance(stepper, VectorStepper)
    assert audit(stepper, 6) > 15


@pytest.mark.parametrize("mode", USABLE)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(b=UNIT, a=spaces.Tuple([spaces.Discrete(9), spaces.MultiBinary(3)])),
        spaces.Text(5),
        spaces.Tuple([spaces.Text(5), UNIT]),
    ],
    ids=["nested", "text", "text and box"],
)
def test_final_observations_of_any_space_are_true(space: Any, mode: AutoresetMode) -> None:
    space.seed(0)
    shown, of = [space.sample() for _ in range(9)], leaves(space)
    vector_env = OwnVectorEnv([lambda: Scripted(space, shown, length=2)], autoreset_mode=mode)
    transitions = Run(make_stepper([vector_env], 0, quiet()), 4).rollout().transitions()
    for i, (before, after) in enumerate([(0, 1), (1, 2), (3, 4), (4, 5)]):
        for got, wanted in ((transitions.observations, before), (transitions.next_observations, after)):
            np.testing.assert_equal([part[i] for part in flatten(of, got)], flatten(of, shown[wanted]))


def test_one_that_resets_in_the_next_step_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"NEXT_STEP.*real transitions.*autoreset_mode=AutoresetMode.SAME"):
        make_stepper([ledgers(2, AutoresetMode.NEXT_STEP)], 0, quiet())


def test_one_that_does_not_say_when_it_resets_is_refused() -> None:
    vector_env = ledgers(2, AutoresetMode.SAME_STEP)
    vector_env.metadata = {}
    with pytest.raises(ConfigurationError, match="has the autoreset mode None"):
        make_stepper([vector_env], 0, quiet())


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_bare_sync_vector_env_is_stepped_by_its_parts(mode: AutoresetMode) -> None:
    vector_env = ledgers(2, mode, SyncVectorEnv)
    stepper = make_stepper([vector_env], 0, quiet())
    assert isinstance(stepper, EnvStepper)
    assert stepper.envs == list(vector_env.envs)
    assert audit(stepper, 3) > 4


def test_its_parts_cannot_be_asked_one_by_one() -> None:
    stepper = make_stepper([ledgers(2, AutoresetMode.SAME_STEP)], 0, quiet())
    with pytest.raises(ConfigurationError, match=r"call needs single sub-environments.* makes a OwnVectorEnv"):
        stepper.each("call", id, [0])


def test_seeds_are_given_to_all_or_none() -> None:
    envs = [Scripted(spaces.Discrete(9), range(9)) for _ in range(2)]
    vector_env = OwnVectorEnv([lambda: envs[0], lambda: envs[1]], autoreset_mode=AutoresetMode.SAME_STEP)
    stepper = make_stepper([vector_env], 0, quiet())
    rows = [np.zeros(2, np.int64)]
    stepper.reset([5, 3], rows)
    stepper.reset([None, None], rows)
    assert [env.seeds for env in envs] == [[5, None], [3, None]]


class Wrong(SyncVectorEnv):
    def reset(self, **options: Any) -> Any:
        observations, infos = super().reset(**options)
        return observations.astype(np.float64), infos


def test_observations_that_do_not_fit_the_space_are_refused() -> None:
    vector_env = Wrong([lambda: Scripted(UNIT, [np.zeros(2, np.float32)])], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ObservationError, match=r"shape \(1, 2\) and dtype float64; its space says \(1, 2\) and float3"):
        Run(make_stepper([vector_env], 0, quiet(), Fit(strict=True)), 1)


class Native(gym.vector.VectorEnv[Any, Any, Any]):
    """Takes what ``VectorEnv.reset`` documents, an integer that fits into C's ``int``, and nothing else."""

    def __init__(self) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs, self.single_observation_space, self.single_action_space = 2, UNIT, spaces.Discrete(2)
        self.seeds: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        return np.zeros((2, 2), np.float32), {}


@pytest.mark.parametrize("wrap", [lambda env: env, gym.wrappers.vector.RecordEpisodeStatistics])
def test_a_vector_env_of_another_kind_is_seeded_with_one_integer(wrap: Any) -> None:
    native = Native()
    stepper = make_stepper([wrap(native)], 0, quiet())
    rows = [np.zeros((2, 2), np.float32)]
    stepper.reset([7, 8], rows)
    stepper.reset([2**31 + 9, 2**32 - 1], rows)
    stepper.reset([None, None], rows)
    assert native.seeds == [7, 9, None]
    assert [type(seed) for seed in native.seeds] == [int, int, type(None)]
