"""Check that vector envs of the user are stepped into the rows of a rollout."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Copied, OwnVectorEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenv.envs.fitting import Fit
from parenv.envs.make import make_stepper
from parenv.envs.stepping import EnvStepper
from parenv.envs.vector_stepping import VectorStepper
from parenv.errors import ConfigurationError, ObservationError
from parenv.memory.spaces import flatten, leaves
from parenv.testing import LedgerEnv

from .scripted import Run, Scripted, audit, quiet

UNIT = spaces.Box(-1, 1, (2,))
MODES = list(AutoresetMode)


class ByColumns(OwnVectorEnv):
    """Vector env with column-major observations, as in the native CartPole of Gymnasium."""

    def step(self, actions: Any) -> Any:
        observations, *rest = super().step(actions)
        return np.asfortranarray(observations), *rest


def ledgers(count: int, mode: AutoresetMode, kind: type[SyncVectorEnv] = OwnVectorEnv, copy: bool = True) -> Any:
    makers = [lambda env_id=env_id: Copied(LedgerEnv(env_id)) for env_id in range(count)]
    return kind(makers, autoreset_mode=mode, copy=copy)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copy", [True, False], ids=["copy", "no copy"])
def test_transitions_and_final_observations_are_correct(mode: AutoresetMode, copy: bool) -> None:
    stepper = make_stepper([ledgers(3, mode, copy=copy)], 0, quiet())
    assert isinstance(stepper, VectorStepper)
    assert audit(stepper, 6) > 15


@pytest.mark.parametrize("mode", MODES)
def test_transitions_of_column_major_observations_are_correct(mode: AutoresetMode) -> None:
    assert audit(make_stepper([ledgers(8, mode, ByColumns)], 0, quiet()), 6) > 40


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(b=UNIT, a=spaces.Tuple([spaces.Discrete(9), spaces.MultiBinary(3)])),
        spaces.Text(5),
        spaces.Tuple([spaces.Text(5), UNIT]),
    ],
    ids=["nested", "text", "text and box"],
)
def test_final_observations_of_any_space_are_correct(space: Any, mode: AutoresetMode) -> None:
    space.seed(0)
    shown, of = [space.sample() for _ in range(9)], leaves(space)
    vector_env = OwnVectorEnv([lambda: Scripted(space, shown, length=2)], autoreset_mode=mode)
    steps = 5 if mode is AutoresetMode.NEXT_STEP else 4
    transitions = Run(make_stepper([vector_env], 0, quiet()), steps).rollout().transitions()
    for i, (before, after) in enumerate([(0, 1), (1, 2), (3, 4), (4, 5)]):
        for got, wanted in ((transitions.observations, before), (transitions.next_observations, after)):
            np.testing.assert_equal([part[i] for part in flatten(of, got)], flatten(of, shown[wanted]))


def test_a_vector_env_that_declares_no_autoreset_mode_is_refused() -> None:
    vector_env = ledgers(2, AutoresetMode.SAME_STEP)
    vector_env.metadata = {}
    with pytest.raises(ConfigurationError, match=r"must declare metadata\[.*got None.*check_vector_env"):
        make_stepper([vector_env], 0, quiet())


def test_the_autoreset_mode_may_be_declared_by_its_name() -> None:
    vector_env = ledgers(2, AutoresetMode.NEXT_STEP)
    vector_env.metadata = {"autoreset_mode": "NextStep"}
    assert audit(make_stepper([vector_env], 0, quiet()), 4) > 4


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_environments_of_a_plain_sync_vector_env_are_stepped_directly(mode: AutoresetMode) -> None:
    vector_env = ledgers(2, mode, SyncVectorEnv)
    stepper = make_stepper([vector_env], 0, quiet())
    assert isinstance(stepper, EnvStepper)
    assert stepper.envs == list(vector_env.envs)
    assert audit(stepper, 3) > 4


def test_steps_that_only_reset_are_not_transitions() -> None:
    vector_env = OwnVectorEnv([lambda: Scripted(spaces.Discrete(99), range(99), length=2)] * 1)
    run = Run(make_stepper([vector_env], 0, quiet()), 4)
    first, second = run.rollout().copy(), run.rollout()
    assert first.valid.T.tolist() == [[True, True, False, True]]
    assert second.valid.T.tolist() == [[True, False, True, True]]
    assert first.observations.T.tolist() == [[0, 1, 2, 3]]
    assert first.next_observations() is first.shifted_observations
    assert first.final_observations.tolist() == [2]
    assert first.rewards.T.tolist() == [[0.5, 1.0, 0.0, 1.5]]
    assert (first.num_steps, second.num_steps) == (3, 3)
    assert first.episodes.lengths.tolist() == [2]
    assert second.episodes.lengths.tolist() == [2, 2]
    assert second.episodes.returns.tolist() == [1.5 + 2.0, 2.5 + 3.0]
    flat = second.transitions()
    assert flat.observations.tolist() == [4, 6, 7]
    assert flat.next_observations.tolist() == [5, 7, 8]
    assert flat.env_ids.tolist() == [0, 0, 0]
    assert second.to("cpu").valid.T.tolist() == [[True, False, True, True]]
    assert second.to("cpu").transitions().observations.tolist() == [4, 6, 7]


def test_an_end_in_the_last_row_makes_the_first_row_of_the_next_rollout_a_reset() -> None:
    vector_env = OwnVectorEnv([lambda: Scripted(spaces.Discrete(99), range(99), length=2)])
    run = Run(make_stepper([vector_env], 0, quiet()), 2)
    first, second = run.rollout().copy(), run.rollout()
    assert first.valid.all()
    assert second.valid.T.tolist() == [[False, True]]
    assert second.resetting.tolist() == [True]
    assert second.num_steps == 1
    assert first.last_observations.tolist() == second.observations[0].tolist() == [2]


@pytest.mark.parametrize("mode", MODES)
def test_the_mask_takes_no_memory_if_every_step_is_valid(mode: AutoresetMode) -> None:
    rollout = Run(make_stepper([ledgers(3, mode, SyncVectorEnv)], 0, quiet()), 8).rollout()
    assert rollout.valid.all()
    assert rollout.valid.shape == rollout.rewards.shape
    assert rollout.valid.strides == rollout.next_known.strides == (0, 0)
    assert rollout.to("cpu").valid.stride() == (0, 0)
    assert len(rollout.transitions()) == rollout.num_steps == 24


class Forgetful(OwnVectorEnv):
    """Vector env that resets in the same step and does not return final observations, like many JAX environments."""

    def step(self, actions: Any) -> Any:
        *stepped, infos = super().step(actions)
        return *stepped, {name: value for name, value in infos.items() if "final" not in name}


def test_a_missing_final_observation_is_marked_as_unknown() -> None:
    warned: list[str] = []
    shown = [np.full(2, i, np.float32) for i in range(9)]
    space = spaces.Dict(a=spaces.Box(0, 9, (2,)), b=spaces.Discrete(9))
    pairs = [{"a": one, "b": i} for i, one in enumerate(shown)]
    vector_env = Forgetful([lambda: Scripted(space, pairs, length=2)], autoreset_mode=AutoresetMode.SAME_STEP)
    run = Run(make_stepper([vector_env], 0, quiet(), Fit(warn=warned.append)), 4)
    rollout = run.rollout()
    assert rollout.valid.all()
    assert rollout.next_known.T.tolist() == [[True, False, True, False]]
    assert rollout.next_observations()["a"][:, 0, 0].tolist()[::2] == [1, 4]
    assert np.isnan(rollout.next_observations()["a"][[1, 3]]).all()
    assert rollout.next_observations()["b"].T.tolist() == [[1, 0, 4, 0]]
    assert rollout.transitions().next_known.tolist() == [True, False, True, False]
    values = np.arange(4.0).reshape(4, 1)
    following = rollout.next_values(values, lambda observations: np.ones(len(observations["b"])))
    assert np.isnan(following[[1, 3]]).all()
    assert following[[0, 2], 0].tolist() == [1.0, 3.0]
    run.stepper.close()
    assert len(warned) == 1
    assert "Forgetful" in warned[0]
    assert "next_known" in warned[0]


class Batched(OwnVectorEnv):
    """Vector env that returns final observations as a batch and under their former name."""

    def step(self, actions: Any) -> Any:
        *stepped, infos = super().step(actions)
        if "final_obs" in infos:
            given, there = infos.pop("final_obs"), infos.pop("_final_obs")
            rows = [np.zeros(3, np.int64) if one is None else one for one in given]
            infos |= {"final_observation": np.stack(rows), "_final_observation": there}
        return *stepped, infos


def test_final_observations_may_come_as_a_batch() -> None:
    makers = [lambda env_id=env_id: Copied(LedgerEnv(env_id)) for env_id in range(3)]
    assert audit(make_stepper([Batched(makers, autoreset_mode=AutoresetMode.SAME_STEP)], 0, quiet()), 6) > 15


class Relabelled(OwnVectorEnv):
    """Vector env that declares one autoreset mode and follows another."""

    def __init__(self, says: AutoresetMode, does: AutoresetMode, count: int = 2) -> None:
        makers = [lambda env_id=env_id: Copied(LedgerEnv(env_id)) for env_id in range(count)]
        super().__init__(makers, autoreset_mode=does)
        self.metadata = {"autoreset_mode": says}


def test_an_undeclared_reset_in_the_same_step_is_detected_at_the_first_end() -> None:
    stepper = make_stepper([Relabelled(AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)], 0, quiet())
    with pytest.raises(ConfigurationError, match=r"declares the autoreset mode NEXT_STEP.*as in SAME_STEP"):
        audit(stepper, 2)


class ResetsAll(OwnVectorEnv):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


def test_a_reset_that_ignores_the_mask_is_detected_at_the_first_end() -> None:
    makers = [lambda env_id=env_id: Copied(LedgerEnv(env_id)) for env_id in range(3)]
    stepper = make_stepper([ResetsAll(makers, autoreset_mode=AutoresetMode.DISABLED)], 0, quiet())
    with pytest.raises(ConfigurationError, match=r"DISABLED.*also changed sub-environment"):
        audit(stepper, 2)


class Ending(gym.vector.VectorEnv[Any, Any, Any]):
    """Vector env in which every step ends every episode, even a step that must only reset."""

    def __init__(self) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs, self.single_observation_space, self.single_action_space = 2, UNIT, spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        return np.zeros((2, 2), np.float32), np.ones(2), np.ones(2, bool), np.zeros(2, bool), {}


def test_a_reset_that_ends_an_episode_is_detected() -> None:
    stepper = make_stepper([Ending()], 4, quiet())
    with pytest.raises(ConfigurationError, match=r"must only reset, but this step of env_id 4 ended an episode again"):
        Run(stepper, 2).rollout()


class Odd(Ending):
    """Vector env that returns the given observations and rewards and ends no episode."""

    def __init__(self, *returned: Any) -> None:
        super().__init__()
        self.returned = list(returned)

    def step(self, actions: Any) -> Any:
        observations, rewards = self.returned.pop(0)
        return observations, rewards, np.zeros(2, bool), np.zeros(2, bool), {}


RIGHT = np.zeros((2, 2), np.float32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            (RIGHT[:1], np.zeros(2)),
            r"the observations of .* must have shape \(2, 2\) for 2 sub-environments, got \(1, 2\)",
        ),
        ((RIGHT, np.zeros((2, 1))), r"the rewards of .* must have shape \(2,\) for 2 sub-environments, got \(2, 1\)"),
    ],
)
def test_arrays_that_change_their_shape_are_named(wrong: Any, message: str) -> None:
    stepper = make_stepper([Odd((RIGHT, np.zeros(2)), wrong)], 0, quiet())
    with pytest.raises(ObservationError, match=message):
        Run(stepper, 2).rollout()


def test_arrays_that_move_to_another_device_are_named() -> None:
    here, there = torch.zeros((2, 2)), torch.zeros((2, 2), device="meta")
    stepper = make_stepper([Odd((here, np.zeros(2)), (there, np.zeros(2)))], 0, quiet())
    with pytest.raises(ObservationError, match=r"the observations of .*Odd.* must stay on the device cpu, got meta"):
        Run(stepper, 2).rollout()


class OnlyDlpack:
    """Array that supports only DLPack, which numpy does not convert by itself."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **more: Any) -> Any:
        return self._array.__dlpack__(**more)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Foreign(Batched):
    """Vector env with arrays of another library. It records the actions that it gets."""

    def __init__(self, convert: Any) -> None:
        makers = [lambda env_id=env_id: Copied(LedgerEnv(env_id)) for env_id in range(3)]
        super().__init__(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        self.convert, self.acted = convert, list[Any]()

    def reset(self, **more: Any) -> Any:
        observations, infos = super().reset(**more)
        return self.convert(observations), infos

    def step(self, actions: Any) -> Any:
        self.acted.append(actions)
        *arrays, infos = super().step(np.asarray(actions))
        arrays_in_infos = {name: self.convert(value) for name, value in infos.items() if "observation" in name}
        return *map(self.convert, arrays), arrays_in_infos


def test_tensors_are_read_in_place_and_actions_are_tensors() -> None:
    env = Foreign(torch.from_numpy)
    assert audit(make_stepper([env], 0, quiet()), 6) > 15
    assert {type(actions) for actions in env.acted} == {torch.Tensor}


def test_arrays_that_support_dlpack_are_read_in_place() -> None:
    assert audit(make_stepper([Foreign(OnlyDlpack)], 0, quiet()), 6) > 15


def test_functions_cannot_be_called_on_single_sub_environments() -> None:
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
    with pytest.raises(ObservationError, match=r"must have shape \(1, 2\) and dtype float32, got \(1, 2\) and float64"):
        Run(make_stepper([vector_env], 0, quiet(), Fit(strict=True)), 1)


class Native(gym.vector.VectorEnv[Any, Any, Any]):
    """Vector env that records its seeds, each of which must be one C ``int``, as ``VectorEnv.reset`` documents."""

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
