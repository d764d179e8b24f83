"""Check the contract of ``ParallelVectorEnv`` in every place: all that a user sees equals ``SyncVectorEnv``."""

from __future__ import annotations

import builtins
import contextlib
import copy
import datetime
import enum
import functools
import inspect
import multiprocessing
import os
import re
import threading
import traceback
import warnings
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from comparison import assert_same
from contract_envs import (
    BOX,
    CUSTOM,
    EMPTY,
    FIXED,
    INFOS,
    MISFITS,
    OBSERVED,
    ODD_INFOS,
    SPACES,
    VARYING,
    Talker,
)
from envs import ledgers
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from placements import ELSEWHERE, IN_PROCESS, Place, can, named
from sampling import one_in

import parenv
from parenv import ConfigurationError, ParallelVectorEnv, SubEnvironmentError, WorkerDiedError
from parenv.errors import NotDataError, ObservationError
from parenv.testing.ledger import ledger_reward

pytestmark = pytest.mark.timeout(300)
N = 3
NOOPS = np.zeros(N, np.int64)
MODES = list(AutoresetMode)
ALL_MODES = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
NEEDS_FUNCTIONS = pytest.mark.needs("functions")


def talkers(count: int = N, **arguments: Any) -> list[Any]:
    """Return factories of talkers, by name unless an argument belongs to this interpreter."""
    if all(isinstance(value, str) and value not in CUSTOM for value in arguments.values()):
        return named("Talker", count, **arguments)
    return [functools.partial(Talker, env_id, **arguments) for env_id in range(count)]


def sync(env_fns: Any, **kwargs: Any) -> Any:
    return contextlib.closing(SyncVectorEnv(env_fns, **kwargs))


def assert_as_sync(place: Place, env_fns: Any, mode: Any = "NextStep", steps: int = 7, **kwargs: Any) -> None:
    """Check that the same calls return the same results as with ``SyncVectorEnv``."""
    with (
        place(env_fns, autoreset_mode=mode, **kwargs) as envs,
        sync(env_fns, autoreset_mode=mode, **kwargs) as reference,
    ):
        assert repr(envs.observation_space) == repr(reference.observation_space)
        assert repr(envs.action_space) == repr(reference.action_space)
        assert (envs.metadata, envs.render_mode) == (reference.metadata, reference.render_mode)
        reference.action_space.seed(5)
        assert_same(envs.reset(seed=3), reference.reset(seed=3), where="reset")
        for _ in range(steps):
            actions = reference.action_space.sample()
            wanted = reference.step(actions)
            assert_same(envs.step(actions), wanted, where="step")
            ended = wanted[2] | wanted[3]
            if envs.autoreset_mode is AutoresetMode.DISABLED and ended.any():
                wanted = reference.reset(options={"reset_mask": ended})
                assert_same(envs.reset(options={"reset_mask": ended}), wanted, where="masked reset")
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"), where="actions")


# Spaces.


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("name", "mode"), one_in(2, FIXED, MODES))
def test_observations_of_every_space_are_batched_as_by_sync_vector_env(
    name: str, mode: AutoresetMode, place: Place
) -> None:
    assert_as_sync(place, talkers(observed=name), mode)


@pytest.mark.one_in(7)
@pytest.mark.needs("all spaces")
@pytest.mark.parametrize(("name", "mode"), one_in(2, {**VARYING, **EMPTY}, MODES))
def test_observations_without_a_fixed_size_are_batched_as_by_sync_vector_env(
    name: str, mode: AutoresetMode, place: Place
) -> None:
    assert_as_sync(place, talkers(observed=name), mode)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", FIXED)
def test_actions_of_every_space_reach_the_environments_as_by_sync_vector_env(name: str, place: Place) -> None:
    assert_as_sync(place, talkers(acted=name))


@pytest.mark.one_in(4)
@pytest.mark.needs("all spaces")
@pytest.mark.parametrize("name", VARYING)
def test_actions_without_a_fixed_size_reach_the_environments_as_by_sync_vector_env(name: str, place: Place) -> None:
    assert_as_sync(place, talkers(acted=name))


@pytest.mark.needs("shared memory")
@pytest.mark.parametrize("name", ["no elements", "parts without elements"])
def test_spaces_without_elements_are_stepped_with_views_and_in_any_order(name: str, place: Place) -> None:
    with place(talkers(observed=name, acted=name, says="no elements"), copy=False, batch_size=2) as envs:
        observations, infos = envs.reset(seed=0)
        assert observations in envs.observation_space
        assert infos["x"].shape == (N, 3, 0)
        every = envs.action_space.sample()
        envs.send(every, [2, 0, 1])
        received = [envs.recv(batch_size=1)[4]["env_id"].tolist() for _ in range(N)]
        assert sorted(received) == [[0], [1], [2]]


@pytest.mark.needs("all spaces")
def test_received_rows_have_empty_parts(place: Place) -> None:
    with place(talkers(observed="Dict in a Dict"), batch_size=2) as envs:
        envs.reset(seed=0)
        envs.send(NOOPS)
        observations = envs.recv()[0]
        assert (observations["a"].shape, observations["b"]) == ((2, 2, 3), {})


@NEEDS_FUNCTIONS
@pytest.mark.parametrize("role", ["observed", "acted"])
def test_keys_of_dict_spaces_that_are_not_strings_are_refused(role: str, place: Place) -> None:
    spoken: Any = {role: spaces.Dict({1: BOX, 2: spaces.Discrete(3)})}
    with pytest.raises(ConfigurationError, match=r"keys of a Dict space must be strings, got 1. Rename the key in"):
        place(talkers(**spoken))


def test_without_workers_the_spaces_are_those_of_the_environments() -> None:
    with ParallelVectorEnv(talkers(acted="custom"), num_workers=0) as envs:
        assert envs.single_action_space is envs._session.backend.envs[0].action_space


@pytest.mark.one_in(4)
@pytest.mark.needs("custom spaces")
@pytest.mark.parametrize("name", CUSTOM)
def test_a_custom_space_has_its_class_and_is_sampled_as_by_sync_vector_env(name: str, place: Place) -> None:
    makers = talkers(observed=name, acted=name)
    with place(makers) as envs, sync(makers) as reference:
        if name != "a subclass":
            assert envs.single_action_space == CUSTOM[name] == envs.single_observation_space
        if place.name == IN_PROCESS:
            assert type(envs.single_action_space) is type(CUSTOM[name])
        if place.name == IN_PROCESS or name != "a subclass":
            for each in (envs, reference):
                each.action_space.seed(5)
                actions = [each.action_space.sample() for _ in range(3)]
                each.last = [each.reset(seed=1), each.step(actions[0])]
            assert_same(envs.last, reference.last)
            assert_same(envs.get_attr("actions"), reference.get_attr("actions"))


@pytest.mark.parametrize("name", ["custom", "in a dict", "in a tuple"])
def test_sampling_a_custom_space_that_this_process_cannot_make_is_an_error_with_a_remedy(name: str) -> None:
    main, makers = os.getpid(), talkers(acted=name)

    def make(env_id: int) -> Any:
        if os.getpid() == main:
            raise RuntimeError("no simulator here")
        return makers[env_id]()

    away = [functools.partial(make, env_id) for env_id in range(N)]
    with ParallelVectorEnv(away, num_workers=2) as envs, sync(makers) as reference:
        envs.action_space.seed(5)
        with pytest.raises(NotImplementedError, match=r"Custom\(\) cannot be sampled .*spaces=\"make\""):
            envs.action_space.sample()
        actions = reference.action_space.sample()
        for each in (envs, reference):
            each.reset(seed=1)
            each.step(actions)
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"))


@NEEDS_FUNCTIONS
def test_metadata_that_are_not_plain_data_are_left_out_with_workers(place: Place) -> None:
    class Described(Talker):
        metadata: dict[str, Any] = {**Talker.metadata, "maker": Talker}  # noqa: RUF012

    with place([Described] * N) as envs:
        kept = Described.metadata if place.name == IN_PROCESS else Talker.metadata
        assert envs.metadata == {**kept, "autoreset_mode": AutoresetMode.NEXT_STEP}


# Arrays and infos that environments use again.


def test_observations_of_an_environment_that_reuses_its_arrays_are_copied(place: Place) -> None:
    with place(named("Reusing"), autoreset_mode="SameStep") as envs:
        seen = [envs.reset(seed=0)[0]]
        for step in range(1, 5):
            observations, _, _, _, infos = envs.step(NOOPS)
            seen.append(observations)
            assert ("final_obs" in infos) == (step > 1)
        assert [one["a"][0, 0] for one in seen] == [0, 1, 2, 3, 4]
        assert infos["final_obs"][0]["a"].tolist() == [4, 4]


def test_a_final_observation_survives_the_reset_of_an_environment_that_reuses_its_buffer(place: Place) -> None:
    with place(named("Resetting"), autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        for _ in range(4):
            observations, *_, infos = envs.step(NOOPS)
        assert observations.tolist() == [[-1, -1]] * N
        assert [one.tolist() for one in infos["final_obs"]] == [[4, 4]] * N


@pytest.mark.core
@pytest.mark.filterwarnings("ignore:infos")
def test_final_infos_rewards_and_flags_are_those_of_the_last_step_of_an_environment_that_keeps_them(
    place: Place,
) -> None:
    with place(named("Keeping"), autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        for _ in range(4):
            _, rewards, terminated, _, infos = envs.step(NOOPS)
        final = infos["final_info"]
        assert rewards.tolist() == [4] * N
        assert terminated.all()
        assert final["sums"].tolist() == [[4, 8]] * N
        assert final["seen"]["sums"].tolist() == [[4]] * N
        assert final["seen"]["count"].tolist() == [4] * N
        assert final["seen"]["steps"].tolist() == [[1, 2, 3, 4]] * N
        assert [list(words) for words in final["words"]] == [["3", "4"]] * N
        assert [sorted(numbers) for numbers in final["set"]] == [[1, 2, 3, 4]] * N
        assert [(list(steps), last["last"]) for steps, last in final["seen"]["pair"]] == [([1, 2, 3, 4], 4)] * N
        assert infos["steps"].tolist() == [[]] * N
        assert place.name != IN_PROCESS or list(final["env"]) == list(envs.envs)


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore:infos")
@ALL_MODES
def test_infos_stay_as_they_are_in_later_steps_of_an_environment_that_keeps_them(
    mode: AutoresetMode, place: Place
) -> None:
    with place(named("Keeping"), autoreset_mode=mode) as envs:
        kept = [envs.reset(seed=0)[1]["steps"]]
        for _ in range(3):
            infos = envs.step(NOOPS)[4]
            kept.append(infos["seen"]["steps"])
        pairs = infos["seen"]["pair"]
        envs.step(NOOPS)
        envs.reset(seed=0)
    assert [each.tolist() for each in kept] == [[list(range(1, step + 1))] * N for step in range(4)]
    assert [(list(steps), last["last"]) for steps, last in pairs] == [([1, 2, 3], 3)] * N


# Observations of another dtype or shape.


@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", OBSERVED)
def test_observations_of_another_type_are_cast_as_by_sync_vector_env(
    name: str, mode: AutoresetMode, place: Place
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert_as_sync(place, talkers(observed=name), mode, steps=4)
    ours = [str(one.message) for one in warned if "should have dtype" in str(one.message)]
    assert bool(ours) == (name in ("wider floats", "integers", "wider integers", "mixed")), ours


@pytest.mark.core
def test_final_observations_of_discrete_spaces_are_integers(place: Place) -> None:
    with place(talkers(observed="steps"), autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        infos = [envs.step(NOOPS)[4] for _ in range(4)]
        assert type(infos[3]["final_obs"][0]) is int


@pytest.mark.core
def test_step_may_return_a_list_and_reset_none_as_the_info(place: Place) -> None:
    with place(talkers(returns="list")) as envs, sync(talkers()) as reference:
        assert_same(envs.reset(seed=0), reference.reset(seed=0))
        for _ in range(6):
            assert_same(envs.step(NOOPS), reference.step(NOOPS))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", MISFITS)
def test_an_observation_that_does_not_fit_is_an_error_that_names_the_environment(name: str, place: Place) -> None:
    with place(talkers(observed=name)) as envs:
        envs.reset(seed=0)
        envs.step(NOOPS)
        with pytest.raises(ObservationError, match=r"does not fit its space|must have shape") as caught:
            envs.step(NOOPS)
        where = caught.value.__cause__
        assert getattr(where, "env_id", None) == 1 or caught.value.env_id == 1
        assert envs.step(NOOPS)[1].tolist() == [1.5, 1.5, 0.0]
        for _ in range(2):
            envs.send(NOOPS)
            envs.recv()


@NEEDS_FUNCTIONS
def test_an_observation_that_does_not_fit_is_refused_in_rows_that_are_not_adjacent(place: Place) -> None:
    space = spaces.Box(-9, 9, (2, 4))
    makers = talkers(observed=space, observes=lambda *_: np.zeros((2, 2, 2), "f4"))
    with place(makers, most=1, batch_size=2) as envs:
        with pytest.raises(ObservationError):
            envs.reset(seed=0)
        envs.send(np.zeros(2, np.int64), [0, 2])
        refused: list[BaseException] = []
        while len(refused) < 2:  # The errors may arrive together or one after the other.
            with pytest.raises(ObservationError) as caught:
                envs.recv(batch_size=1)
            refused += errors_in(caught.value)
        assert {type(error) for error in refused} == {ObservationError}


def errors_in(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors of all sub-environments, which are the cause of an error if there are several."""
    cause = error.__cause__
    return cause.exceptions if isinstance(cause, BaseExceptionGroup) else (error,)


# Infos.


@pytest.mark.one_in(11)
@pytest.mark.parametrize(("name", "mode"), one_in(2, INFOS, MODES))
def test_infos_of_every_kind_equal_those_of_sync_vector_env(name: str, mode: AutoresetMode, place: Place) -> None:
    assert_as_sync(place, talkers(says=name), mode)


ARRIVING: dict[str, Any] = {
    "complex": np.complex128(1 + 2j),
    "sets": [[1, 3], [2]],
    "memory": b"abc",
    "long text": "x" * 5_000_000,
    "many items": list(range(300_000)),
    "70 MB": ODD_INFOS["70 MB"](0, 0)["x"],
    "unshowable": np.int64(1),
    "cycle": np.int64(1),
}


@pytest.mark.one_in(3)
@pytest.mark.needs("encoding", "large messages")
@pytest.mark.filterwarnings("ignore:infos")
@pytest.mark.parametrize("name", ARRIVING)
def test_infos_that_are_odd_or_large_arrive(name: str, place: Place) -> None:
    with place(talkers(1, says=name)) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            infos = envs.step(NOOPS[:1])[4]
            got = infos["x"][0]
            assert_same(bytes(got) if name == "memory" else got, ARRIVING[name])
            assert "odd" not in infos
        assert envs.get_attr("steps") == (2,)


class Minutes(enum.Enum):
    """Enum with a value that is not a number."""

    ONE = datetime.timedelta(minutes=1)


def in_us(microseconds: int) -> Any:
    return np.timedelta64(microseconds, "us")


REFUSED: dict[str, tuple[Callable[[int], Any], Any]] = {
    "timedelta": (lambda env_id: datetime.timedelta(seconds=env_id), [in_us(10**6 * i) for i in range(N)]),
    "timedelta of numpy": (lambda env_id: np.timedelta64(env_id, "s"), [np.timedelta64(i, "s") for i in range(N)]),
    "timedelta of some": (lambda env_id: None if env_id == 1 else np.timedelta64(1, "ms"), [in_us(1000), None] * 2),
    "timedelta in an enum": (lambda env_id: Minutes.ONE, [in_us(60_000_000)] * N),
    "timedelta and number": (lambda env_id: 2 if env_id else datetime.timedelta(1), [in_us(86400 * 10**6), 2, 2]),
    "huge integers": (lambda env_id: 1 << 80, [1 << 80] * N),
    "numbers and text": (lambda env_id: "many" if env_id == 1 else env_id, [0, "many", 2]),
    "arrays of two shapes": (lambda env_id: np.arange(env_id + 1), [[0], [0, 1], [0, 1, 2]]),
    "dicts and numbers": (lambda env_id: {"a": 1} if env_id == 1 else env_id, [0, {"a": 1}, 2]),
}


@pytest.mark.one_in(4)
@NEEDS_FUNCTIONS
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_gymnasium_refuses_arrive_as_objects(name: str, place: Place, recwarn: Any) -> None:
    says, expected = REFUSED[name]

    def nested(env_id: int, step: int) -> Any:
        return {"x": says(env_id), "deep": {"x": says(env_id), "y": step}, "step": step}

    with place(talkers(says=nested)) as envs:
        here = N - envs.num_caller_envs if envs.num_workers else 0
        if name == "timedelta in an enum":
            expected = expected[:here] + [Minutes.ONE] * (N - here)
        envs.reset(seed=0)
        for step in (1, 2):
            infos = envs.step(NOOPS)[4]
            for found in (infos, infos["deep"]):
                values = [value.tolist() if isinstance(value, np.ndarray) else value for value in found["x"]]
                assert values == expected[:N]
                assert found["x"].dtype == object
                assert found["_x"].all()
            assert infos["deep"]["y"].tolist() == infos["step"].tolist() == [step] * N
            assert infos["deep"]["y"].dtype == infos["step"].dtype == np.int64
    assert not recwarn.list


class Broken(UserDict[str, int]):
    """Mapping that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("no key")


def test_a_value_whose_conversion_raises_is_left_out_with_a_warning() -> None:
    values = {"time": datetime.timedelta.max, "dict": Broken(), "digits": 10**5000, "good": 1}
    with ParallelVectorEnv(talkers(says=lambda env_id, step: values), num_workers=1) as envs:
        with pytest.warns(UserWarning, match="infos") as warned:
            infos = envs.reset(seed=0)[1]
        assert envs.step(NOOPS)[4]["good"].tolist() == [1] * N
    assert infos["good"].tolist() == [1] * N
    assert not infos.keys() & {"time", "dict", "digits"}
    assert sorted(str(one.message).partition(" (env_id 0), which")[0] for one in warned) == [
        "infos['dict'] is a test_vector_contract.Broken whose conversion raised RuntimeError: no key",
        "infos['digits'] is an integer of too many digits",
        "infos['time'] is a datetime.timedelta whose conversion raised OverflowError: int too big to convert",
    ]


@pytest.mark.core
@pytest.mark.needs("encoding")
def test_with_strict_infos_an_info_that_is_not_plain_data_is_an_error(place: Place) -> None:
    with place(talkers(says="thing"), strict_infos=True) as envs:
        envs.reset(seed=0)
        with pytest.raises(NotDataError, match=r"infos\['thing'\] is a builtins.object \(env_id 1\)"):
            envs.step(NOOPS)
        assert envs.step(NOOPS)[4]["x"].tolist() == [2] * N


def test_without_workers_an_info_may_be_any_object() -> None:
    with ParallelVectorEnv(talkers(says="thing"), num_workers=0) as envs:
        envs.reset(seed=0)
        infos = envs.step(NOOPS)[4]
        assert [type(one) for one in infos["thing"]] == [type(None), object, type(None)]


# Actions.


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("space", "actions"),
    [
        ("pair", np.linspace(0, 1, 6).reshape(3, 2)),
        ("pair", np.arange(6).reshape(3, 2)),
        ("three", np.array([0, 1, 2], np.int32)),
        ("three", np.array([0, 1, 1], np.uint8)),
        ("three", np.array([0, 1, 2], "U1")),
        ("dict of three", {"a": np.array([0, 1, 2], np.int32)}),
        ("three", [0, 1, 2]),
        ("three", torch.tensor([0, 1, 2])),
        ("three", torch.tensor([0, 1, 2], dtype=torch.int32)),
        ("three", torch.tensor([0, 1, 2], dtype=torch.uint8)),
    ],
    ids=lambda given: given if isinstance(given, str) else f"{type(given).__name__}-{getattr(given, 'dtype', '')}",
)
def test_actions_of_another_type_arrive_unchanged(space: str, actions: Any, place: Place) -> None:
    warnings.simplefilter("ignore", UserWarning)
    plain = actions.numpy() if isinstance(actions, torch.Tensor) else np.array([0, 1, 2])
    with place(talkers(acted=space)) as envs, sync(talkers(acted=space)) as reference:
        for both in (envs, reference):
            both.reset(seed=0)
            reference.action_space.seed(0)
            # Gymnasium does not iterate over lists and tensors as over arrays.
            own = actions if both is envs or isinstance(actions, np.ndarray | dict) else plain
            for one in (own, reference.action_space.sample(), own):
                both.step(one)
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"))


TENSORS = {"graph": torch.zeros(N, 2, requires_grad=True), "bfloat16": torch.zeros(N, 2, dtype=torch.bfloat16)}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_tensor_that_numpy_cannot_read_is_refused_and_nothing_is_stepped(
    tensor: torch.Tensor, nested: bool, place: Place
) -> None:
    actions: Any = {"a": tensor} if nested else tensor
    with place(talkers(acted="dict of a pair" if nested else "pair")) as envs:
        envs.reset(seed=0)
        for refused in (envs.step, envs.send):
            with pytest.raises((RuntimeError, TypeError), match=r"detach\(\)|BFloat16"):
                refused(actions)
        good = tensor.detach().float()
        assert envs.step({"a": good} if nested else good)[1].tolist() == [0.5] * N


@pytest.mark.one_in(5)
@pytest.mark.parametrize("actions", [np.zeros(2, np.int64), np.zeros(4, np.int64), [0, 1], np.zeros(4, "U1")])
def test_a_wrong_number_of_actions_is_refused_and_nothing_is_stepped(actions: Any, place: Place) -> None:
    with place(talkers()) as envs:
        envs.reset(seed=0)
        with pytest.raises(
            ValueError, match=f"actions must have one for each of 3 sub-environments, got {len(actions)}"
        ):
            envs.step(actions)
        with pytest.raises(ValueError, match="actions must have one for each"):
            envs.send(actions)
        assert envs.step(NOOPS)[1].tolist() == [0.5] * N


def test_a_single_action_for_all_is_a_type_error_as_in_gymnasium(place: Place) -> None:
    with place(talkers()) as envs, sync(talkers()) as reference:
        for one in (envs, reference):
            one.reset(seed=0)
            with pytest.raises(TypeError):
                one.step(1)
        with pytest.raises(TypeError, match=r"^the actions must be a list or an array .*, got 1\. Pass 3 actions\.$"):
            envs.send(1)
        assert envs.step(NOOPS)[1].tolist() == [0.5] * N


FLOATS: dict[str, Any] = {
    "three bits": np.ones((N, 3), np.float32),
    "two numbers": np.full((N, 2), 2.0),
    "two bytes": np.full((N, 2), 255.0, np.float32),
    "three": np.array([0.0, 1.0, 2.0]),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", FLOATS)
def test_whole_floats_for_integer_spaces_reach_environments_as_by_sync_vector_env(name: str, place: Place) -> None:
    space, actions = SPACES[name], FLOATS[name]
    with place(talkers(acted=name)) as envs, sync(talkers(acted=name)) as reference:
        for one in (envs, reference):
            one.reset(seed=0)
        with pytest.warns(
            UserWarning, match=f"the actions should have dtype {space.dtype} like their space, got {actions.dtype}"
        ):
            envs.step(actions)
        envs.step(actions)
        for _ in range(2):
            reference.step(actions)
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"), where="actions")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("wrong", [0.5, np.nan, 300.0, -1.0])
def test_floats_that_do_not_fit_integer_spaces_are_refused_and_nothing_is_stepped(wrong: float, place: Place) -> None:
    with place(talkers(acted="two bytes")) as envs:
        envs.reset(seed=0)
        with pytest.raises(ConfigurationError, match="do not fit their space: float64 cannot be cast to uint8"):
            envs.step(np.array([[0.0, 1.0], [wrong, 1.0], [2.0, 3.0]]))
        assert envs.get_attr("actions") == ([],) * N


# Combinations of spaces.


def boxes(*highs: float, dtype: Any = np.float32, shape: Any = (2,)) -> list[Any]:
    return [functools.partial(Talker, i, spaces.Box(0, high, shape, dtype)) for i, high in enumerate(highs)]


@NEEDS_FUNCTIONS
def test_spaces_that_differ_need_another_observation_mode(place: Place) -> None:
    said = (
        r"^ParallelVectorEnv\(\.\.\., observation_mode='same'\) however the sub-environments observation spaces are "
        r"not equivalent\. .*env_id 1 has .*"
        r"If this is intentional, use `observation_mode='different'` instead\.$"
    )
    with pytest.raises(RuntimeError, match=said):
        place(boxes(1, 2, 1))
    assert_as_sync(place, boxes(1, 2, 1), observation_mode="different")
    single = spaces.Box(0, 9, (2,), np.float32)
    mode = (spaces.Box(0, 9, (3, 2), np.float32), single)
    assert_as_sync(place, boxes(1, 2, 1), observation_mode=mode)
    misfits = [*boxes(1, 2), *boxes(1, shape=(3,))]
    for wrong in ("different", mode):
        with pytest.raises((RuntimeError, ValueError)) as wanted:
            SyncVectorEnv(misfits, observation_mode=wrong)
        with pytest.raises(wanted.type):
            place(misfits, observation_mode=wrong)
    with pytest.raises(RuntimeError, match="the same action space, but env_id 1 has"):
        place([Talker, lambda: Talker(acted=spaces.Discrete(2))])


def keyed(keys: str) -> Any:
    bounds = {"a": (0, 1), "b": (5, 6)}
    return spaces.Dict(OrderedDict((key, spaces.Box(*bounds[key], (1,))) for key in keys))


@pytest.mark.core
@NEEDS_FUNCTIONS
def test_the_keys_of_dict_spaces_may_have_another_order_in_each_worker(place: Place) -> None:
    env_fns = [functools.partial(Talker, i, keyed(keys)) for i, keys in enumerate(("ab", "ba", "ba"))]
    assert_as_sync(place, env_fns, observation_mode="different")


@NEEDS_FUNCTIONS
@pytest.mark.skipif("sort_keys" not in inspect.signature(spaces.Dict).parameters, reason="Dict always sorts its keys")
def test_unsorted_keys_of_dict_spaces_keep_their_order(place: Place) -> None:
    space = spaces.Dict({"b": spaces.Discrete(9), "a": BOX}, sort_keys=False)
    assert_as_sync(place, talkers(observed=space, acted=space))
    with place(talkers(observed=space)) as envs:
        assert list(envs.observation_space) == ["b", "a"]


@NEEDS_FUNCTIONS
def test_spaces_that_are_equal_in_gymnasium_can_be_combined(place: Place) -> None:
    keys = [functools.partial(Talker, i, keyed(keys), keyed(keys)) for i, keys in enumerate(("ab", "ba", "ba"))]
    assert_as_sync(place, keys)
    assert_as_sync(place, boxes(1.0, 1.0 + 1e-9, dtype=np.float64))


@pytest.mark.one_in(7)
@NEEDS_FUNCTIONS
@pytest.mark.parametrize("name", {**FIXED, **VARYING})
def test_spaces_that_are_seeded_are_sampled_as_by_sync_vector_env(name: str, place: Place) -> None:
    def make() -> Any:
        env = Talker(observed=SPACES[name], acted=copy.deepcopy(SPACES[name]))
        env.action_space.seed(3)
        env.observation_space.seed(4)
        env.action_space.sample()
        return env

    with place([make] * N) as envs, sync([make] * N) as reference:
        for space in ("action_space", "single_action_space", "observation_space", "single_observation_space"):
            for _ in range(3):
                assert_same(getattr(envs, space).sample(), getattr(reference, space).sample(), where=space)


def test_an_invalid_observation_mode_is_refused() -> None:
    said = (
        "^Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation space, "
        "actual got equal"
    )
    with pytest.raises(ConfigurationError, match=said):
        ParallelVectorEnv(talkers(), observation_mode="equal")
    with pytest.raises(TypeError, match="must be a pair of spaces"):
        ParallelVectorEnv(talkers(), observation_mode=(1, 2))  # type: ignore[arg-type]


# States.


@pytest.mark.core
def test_calls_in_the_wrong_state_raise_the_errors_of_gymnasium(place: Place) -> None:
    envs = place(talkers())
    waits = {"reset": envs.reset_wait, "step": envs.step_wait, "call": envs.call_wait}
    begins: dict[str, Any] = {
        "reset": lambda: envs.reset_async(seed=1),
        "step": lambda: envs.step_async(NOOPS),
        "call": lambda: envs.call_async("env_id"),
    }
    for pending, begin in begins.items():
        for name, wait in waits.items():
            with pytest.raises(NoAsyncCallError, match=f"`{name}_wait` without any prior call to `{name}_async`") as no:
                wait()
            assert no.value.name == name
        begin()
        for other in (*begins.values(), lambda: envs.set_attr("x", 1), lambda: envs.send(NOOPS)):
            with pytest.raises(AlreadyPendingCallError, match=f"while waiting for a pending call to `{pending}`") as al:
                other()
            assert al.value.name == pending
        waits[pending]()
    envs.close()
    envs.close()
    everything = [*begins.values(), *waits.values(), envs.render, lambda: envs.send(NOOPS), envs.recv, envs.reset]
    for call in everything:
        with pytest.raises(ClosedEnvironmentError):
            call()


class Stuck(Talker):
    """Environment that blocks once, in the given method and with env_id 1, until a named pipe is closed."""

    def __init__(self, env_id: int, event: Any, where: str) -> None:
        super().__init__(env_id)
        self._event, self._where = event, where if env_id == 1 else ""

    def wait(self, where: str) -> int:
        if where == self._where:
            self._where = ""
            with open(self._event, "rb") as pipe:
                pipe.read()
        return self.env_id

    def reset(self, **kwargs: Any) -> Any:
        if self.steps:
            self.wait("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.wait("step")
        observation, reward, *_ = super().step(action)
        return observation, reward, False, False, {}

    def _observation(self) -> Any:
        return np.array([self.steps, self.env_id], np.float32)


class StuckEnding(Stuck):
    """Environment that blocks as :class:`Stuck`, with episodes of one step. It counts the steps after an end."""

    beyond, ended = 0, False

    def reset(self, **kwargs: Any) -> Any:
        self.ended = False
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        self.beyond += self.ended
        observation, reward, *_ = super().step(action)
        self.ended = True
        return observation, reward, True, False, {}


def stuck(gate: str, where: str = "step", count: int = N, kind: Any = Stuck) -> list[Any]:
    return [functools.partial(kind, i, gate, where) for i in range(count)]


STUCK_IN_WORKERS = pytest.mark.needs("all in workers", "functions")


@pytest.fixture
def gate(tmp_path: Any) -> Any:
    """Return the path of a named pipe. A reader waits until the pipe has been opened for writing and closed."""
    path = str(tmp_path / "gate")
    os.mkfifo(path)
    return path


def open_gate(path: str) -> None:
    with open(path, "wb"):
        pass


@pytest.mark.one_in(7)
@STUCK_IN_WORKERS
@pytest.mark.parametrize("where", ["step", "reset", "call"])
@pytest.mark.parametrize("then", ["step", "reset", "reset some", "call", "send"])
def test_after_a_wait_that_timed_out_no_result_is_stale(where: str, then: str, gate: str, place: Place) -> None:
    with place(stuck(gate, where)) as envs:
        envs.reset(seed=0)
        if where != "step":
            envs.step(NOOPS)
        {
            "step": lambda: envs.step_async(NOOPS),
            "reset": lambda: envs.reset_async(seed=0),
            "call": lambda: envs.call_async("wait", "call"),
        }[where]()
        with pytest.raises(multiprocessing.TimeoutError, match=f"`{where}_wait` has timed out after 0.02 second"):
            {"step": envs.step_wait, "reset": envs.reset_wait, "call": envs.call_wait}[where](0.02)
        steps = 0 if where == "reset" else 1
        opener = threading.Timer(0.05, open_gate, [gate])
        opener.start()
        if then == "step":
            assert envs.step(NOOPS)[0][:, 0].tolist() == [steps + 1] * N
        elif then == "reset":
            assert envs.reset(seed=0)[0][:, 0].tolist() == [0] * N
        elif then == "reset some":
            mask = {"reset_mask": np.array([True, False, False])}
            assert envs.reset(seed=0, options=mask)[0][:, 0].tolist() == [0, steps, steps]
        elif then == "call":
            assert envs.call("add", 1) == (1, 2, 3)
        else:
            envs.send(NOOPS)
            observations, *_, infos = envs.recv()
            assert (observations[:, 0].tolist(), infos["env_id"].tolist()) == ([steps + 1] * N, [0, 1, 2])
        opener.join()
        before = envs.get_attr("steps")
        assert envs.step(NOOPS)[0][:, 0].tolist() == [one + 1 for one in before]


@STUCK_IN_WORKERS
def test_actions_are_copied_while_a_late_step_is_pending(gate: str, place: Place) -> None:
    actions = NOOPS.copy()
    with place(stuck(gate)) as envs:
        envs.reset(seed=0)
        envs.step_async(actions)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(0.02)
        envs.step_async(actions)
        actions[:] = 2
        open_gate(gate)
        envs.step_wait()
        assert [done[-1] for done in envs.get_attr("actions")] == [repr(np.int64(0))] * N


@pytest.mark.needs("workers")
@pytest.mark.parametrize("terminate", [False, True])
def test_closing_while_a_step_is_pending_warns_and_ends_it(terminate: bool, place: Place) -> None:
    envs = place(talkers())
    envs.reset(seed=0)
    envs.step_async(NOOPS)
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step`"):
        envs.close(terminate=terminate)
    assert envs.closed


# Calls and attributes.


@pytest.mark.core
def test_calls_and_attributes_reach_every_environment(place: Place) -> None:
    with place(talkers()) as envs:
        assert envs.call("add", 10, more=5) == (15, 16, 17)
        assert envs.get_attr("env_id") == (0, 1, 2)
        envs.set_attr("level", 7)
        assert envs.get_attr("level") == (7, 7, 7)
        envs.set_attr("level", (1, 2, [3]))
        assert envs.get_attr("level") == (1, 2, [3])
        with pytest.raises(ValueError, match="Got `2` values for 3 environments"):
            envs.set_attr("level", [1, 2])
        with pytest.raises(ValueError, match="use `step` directly"):
            envs.call("step", 0)
        assert [frame[0, 0, 0] for frame in envs.render()] == [0, 1, 2]
        with pytest.raises(LookupError, match="nothing in 0") as caught:
            envs.call("broken")
        assert [str(error.args[0]) for error in errors_in(caught.value)] == [f"nothing in {i}" for i in range(N)]
        with pytest.raises(AttributeError, match="nobody_has_this") as missing:
            envs.get_attr("nobody_has_this")
        assert [type(error) for error in errors_in(missing.value)] == [AttributeError] * N
        assert envs.call("add", 1) == (1, 2, 3)
        assert len(set(envs.call("pid"))) == envs.num_workers + bool(envs.num_caller_envs or not envs.num_workers)


@NEEDS_FUNCTIONS
def test_attributes_are_those_of_the_environment_below_wrappers(place: Place) -> None:
    with place([functools.partial(gym.wrappers.TimeLimit, Talker(i), 9) for i in range(N)]) as envs:
        assert envs.call("add", 1) == envs.call("add", 0, more=1) == (1, 2, 3)
        envs.set_attr("level", 7)
        assert envs.get_attr("level") == (7, 7, 7)


@pytest.mark.core
@pytest.mark.needs("large messages")
def test_large_arguments_and_answers_arrive(place: Place) -> None:
    with place(talkers(1)) as envs:
        for value in (
            np.arange(70_000_000, dtype=np.uint8),
            "x" * 5_000_000,
            list(range(300_000)),
            {"a": (1, None, 2.5)},
        ):
            for got in envs.call("same", value):
                assert_same(got, value)


@pytest.mark.core
@pytest.mark.needs("large messages")
def test_frames_arrive(place: Place) -> None:
    with place(named("Film", 1)) as envs:
        for frames in envs.call("render"):
            assert [(frame.shape, int(frame[0, 0, 0])) for frame in frames] == [((1080, 1920, 3), i) for i in range(12)]


@NEEDS_FUNCTIONS
def test_a_replaced_step_method_is_used_at_once(place: Place) -> None:
    def better(action: Any) -> Any:
        return np.zeros(2, np.float32), 9.0, False, False, {}

    with place(talkers()) as envs:
        envs.reset(seed=0)
        envs.set_attr("step", better)
        assert envs.step(NOOPS)[1].tolist() == [9.0] * N
        envs.reset()
        envs.call("put_back")
        assert envs.step(NOOPS)[1].tolist() == [0.5] * N


def test_a_call_does_not_affect_a_pending_autoreset(place: Place) -> None:
    with place(talkers()) as envs, sync(talkers()) as reference:
        for each in (envs, reference):
            each.reset(seed=0)
        for _ in range(6):
            assert_same(envs.step(NOOPS), reference.step(NOOPS))
            envs.get_attr("env_id")


@NEEDS_FUNCTIONS
def test_arrays_from_messages_are_writable(place: Place) -> None:
    observed = spaces.Dict(sequence=spaces.Sequence(BOX, stack=True), graph=SPACES["graph"])
    makers = talkers(observed=observed, says=lambda env_id, step: {"arrays": [np.zeros(2)]})
    with place(makers) as envs:
        observations, infos = envs.reset(seed=1)
        arrays = [envs.render()[0], infos["arrays"][0][0], observations["sequence"][0], observations["graph"][0].nodes]
        assert all(array.flags.writeable for array in arrays)


@pytest.mark.needs("all in workers")
def test_values_that_are_not_plain_data_are_refused_and_the_env_stays_usable(place: Place) -> None:
    with place(talkers()) as envs:
        with pytest.raises(NotDataError) as caught:
            envs.call("secret")
        assert {type(error) for error in errors_in(caught.value)} == {NotDataError}
        if place.name == ELSEWHERE:
            with pytest.raises(NotDataError, match="must be plain data"):
                envs.set_attr("level", [object()] * N)
        assert envs.call("add", 1) == (1, 2, 3)


@NEEDS_FUNCTIONS
def test_random_generators_and_their_seeds_are_those_of_the_environments(place: Place) -> None:
    with place(talkers()) as envs:
        envs.reset(seed=[5, None, 7])
        assert envs.np_random_seed[0::2] == (5, 7)
        assert envs.np_random[0].random() == gym.utils.seeding.np_random(5)[0].random()


# Exceptions.


def fail_in(where: str, envs: ParallelVectorEnv, mask: Any) -> None:
    """Make environments of a mask fail in a reset or a step, or all of them in a call."""
    if where == "reset":
        envs.reset(options={"fail": True, "reset_mask": mask})
    elif where == "step":
        envs.step(mask.astype(np.int64))
    else:
        envs.call("fail")


@pytest.mark.core
@pytest.mark.parametrize("where", ["reset", "step", "call"])
@pytest.mark.parametrize("raising", [(1,), (0, 1, 2)], ids=["one", "all"])
def test_an_exception_keeps_its_type_and_names_its_environment(
    raising: tuple[int, ...], where: str, place: Place
) -> None:
    kind, args = {"reset": ("OSError", [2, "gone"]), "call": ("AttributeError", ["gone"])}.get(
        where, ("KeyError", ["gone"])
    )
    makers = named("Failing", N, kind=kind, args=args)
    mask = np.isin(range(N), raising)
    with place(makers) as envs:
        envs.reset()
        for _ in range(2):
            with pytest.raises(getattr(builtins, kind), match="gone") as caught:
                fail_in(where, envs, mask)
            several = errors_in(caught.value)
            whose = range(N) if where == "call" else raising
            places = [error.__cause__ for error in several]
            assert [type(error) for error in several] == [type(caught.value)] * len(whose)
            assert [(type(one), one.env_id, one.doing) for one in places] == [
                (SubEnvironmentError, env_id, where) for env_id in whose
            ]
            assert envs.step(NOOPS)[1].tolist() == [1.0] * N


@pytest.mark.core
def test_exceptions_of_several_types_are_raised_as_a_group(place: Place) -> None:
    makers = [*named("Failing", 1, kind="KeyError"), *named("Failing", 2, kind="ValueError")]
    with place(makers) as envs:
        with pytest.raises(ExceptionGroup) as caught:
            envs.call("fail")
        assert [type(error) for error in caught.value.exceptions] == [KeyError, ValueError, ValueError]


@pytest.mark.core
def test_an_exception_that_cannot_say_what_it_is_does_not_close_the_vector_env(place: Place) -> None:
    with place(named("Unspeakable")) as envs:
        envs.reset(seed=0)
        envs.step(NOOPS)
        said = (
            "UnspeakableError, which cannot say what it is: RuntimeError" if can(place.name, "all in workers") else None
        )
        with pytest.raises(Exception, match=said):
            envs.step(NOOPS)
        assert envs.get_attr("steps") == (2, 2, 2)
        envs.reset(seed=0)
        assert envs.step(NOOPS)[1].tolist() == [0.5] * N


@pytest.mark.one_in(4)
@pytest.mark.parametrize("who", [(1,), tuple(range(N))], ids=["one", "all"])
def test_a_traceback_has_only_frames_of_the_user_and_each_of_them_once(who: tuple[int, ...], place: Place) -> None:
    with place(named("Failing", N)) as envs:
        envs.reset()
        with pytest.raises(KeyError) as raised:
            envs.step(np.isin(range(N), who).astype(np.int64))
    shown = "".join(traceback.format_exception(raised.value))
    assert "/parenv/" not in shown
    assert shown.endswith("KeyError: 'gone'\n")
    assert 1 <= shown.count(", in fail\n") <= 2, "in the group, and above the exception that is raised"
    if len(who) > 1:
        # Exceptions of the caller's share beside workers have tracebacks of their own.
        in_workers = len(who) - (envs.num_caller_envs if envs.num_workers else 0)
        assert shown.count(", with the traceback of env_id 0\n") == in_workers - 1
        causes = [error.__cause__ for error in errors_in(raised.value)][:in_workers]
        assert len({cause.remote_traceback for cause in causes}) == 1, "each exception keeps it as an attribute"


@pytest.mark.parametrize("where", ["reset", "step"])
def test_each_exception_of_several_environments_is_one_line_of_gymnasiums_logger(where: str, place: Place) -> None:
    with place(named("Failing", N)) as envs, warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        envs.reset()
        with pytest.raises(KeyError):
            fail_in(where, envs, np.array([True, False, True]))
    shown = sorted(str(line.message) for line in lines)
    assert [re.search(r"env_id (\d) \(worker \d\) raised KeyError", line)[1] for line in shown] == ["0", "2"]


@pytest.mark.core
@pytest.mark.needs("workers")
def test_the_death_of_a_worker_is_an_error_and_closes_the_vector_env(place: Place) -> None:
    with place(named("Echo")) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerDiedError, match=r"worker 0 .* by SIGKILL during env\.step\(\) of env_id 0"):
            envs.step(np.array([4, 0, 0]))
        assert envs.closed
        with pytest.raises(ClosedEnvironmentError):
            envs.reset()


@pytest.mark.core
@pytest.mark.needs("workers")
def test_a_worker_that_dies_in_a_step_is_restarted_and_the_others_continue(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with place(named("Echo"), on_worker_death="restart", autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        first, *others = envs.call("pid")
        infos = envs.step(np.array([4, 0, 0]))[4]
        lost = [True, *(pid == first for pid in others)]
        assert infos["worker_restarted"].tolist() == infos["_worker_restarted"].tolist() == lost
        assert infos["ended_by"][0] == "worker_died"
        figures = envs.statistics()
        assert figures.worker_restarts == envs.metrics()["workers/restarts"] == 1
        assert figures.lost_episodes == {"worker_died": sum(lost)}
        assert first not in envs.call("pid")
    assert any("is restarted" in record.message for record in caplog.records)


# Arguments.


@pytest.mark.needs("shared memory")
@pytest.mark.parametrize("copied", [True, False])
def test_without_copies_observations_are_overwritten(copied: bool, place: Place) -> None:
    with place(talkers(), copy=copied) as envs:
        first, _ = envs.reset(seed=0)
        kept = first.copy()
        second = envs.step(NOOPS)[0]
        assert np.shares_memory(first, second) is not copied
        assert (first == kept).all() == copied


def test_arguments_of_async_vector_env_are_accepted() -> None:
    arguments: dict[str, Any] = {"context": "spawn", "daemon": False, "shared_memory": False, "max_concurrency": 2}
    with ParallelVectorEnv(talkers(), **arguments) as envs:
        assert envs.num_workers <= 2
        assert {name: getattr(envs, name) for name in arguments} == arguments
        envs.reset(seed=0)
    with pytest.raises(ConfigurationError, match="worker must be None"):
        ParallelVectorEnv(talkers(), worker=print)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="num_workers must be at most max_concurrency=2, got 3"):
        ParallelVectorEnv(talkers(), max_concurrency=2, num_workers=3)
    with pytest.raises(ValueError, match="max_concurrency"):
        ParallelVectorEnv(talkers(), max_concurrency=0)


@pytest.mark.parametrize(
    "mask",
    [[True] * N, np.ones(2, bool), np.ones((N, 1), bool), np.ones(N, np.int64), np.zeros(N, bool)],
    ids=repr,
)
def test_a_wrong_mask_is_refused_as_by_sync_vector_env(mask: Any) -> None:
    with ParallelVectorEnv(talkers(), num_workers=0) as envs, sync(talkers()) as reference:
        envs.reset(seed=0)
        with pytest.raises(Exception) as wanted:
            reference.reset(options={"reset_mask": mask})
        with pytest.raises(wanted.type) as caught:
            envs.reset(options={"reset_mask": mask})
        assert str(caught.value) == str(wanted.value)


@pytest.mark.core
def test_options_are_one_dict_or_a_list_with_one_for_each(place: Place) -> None:
    with place(talkers()) as envs:
        envs.reset(seed=[1, None, 3], options=[{"a": 1}, None, {}])
        assert envs.get_attr("options") == ({"a": 1}, None, {})
        envs.reset(options={"b": 2, "reset_mask": np.array([False, True, True])})
        assert envs.get_attr("options") == ({"a": 1}, {"b": 2}, {"b": 2})
        envs.reset()
        assert envs.get_attr("options") == (None, None, None)
        with pytest.raises(ValueError, match="options must have one for each of 3 sub-environments, got 2"):
            envs.reset(options=[{}, {}])
        with pytest.raises(ValueError, match="the length must match num_envs=3 but got length=2"):
            envs.reset(seed=[1, 2])


@NEEDS_FUNCTIONS
@pytest.mark.parametrize("kind", [OrderedDict, UserDict])
def test_options_may_be_any_mapping(kind: Any, place: Place) -> None:
    with place(talkers()) as envs:
        envs.reset(seed=1, options=kind(a=1))
        assert envs.call("last_options") == ((kind.__name__, {"a": 1}),) * N
        options = kind(b=2, reset_mask=np.array([False, True, True]))
        envs.reset(options=options)
        assert [found for _, found in envs.call("last_options")] == [{"a": 1}, {"b": 2}, {"b": 2}]
        assert "reset_mask" in options


@pytest.mark.one_in(5)
@pytest.mark.parametrize("options", ["abc", 5, {1, 2, 3}, np.zeros(N), {"a": 1}.items()], ids=repr)
def test_options_that_are_neither_a_mapping_nor_a_list_are_refused(options: Any, place: Place) -> None:
    with place(talkers()) as envs:
        envs.reset(options={"a": 1})
        with pytest.raises(TypeError, match="options must be a dict for all sub-environments, or a list with one for"):
            envs.reset(options=options)
        assert envs.get_attr("options") == ({"a": 1},) * N


# Without autoreset.


@pytest.mark.core
def test_without_autoreset_a_step_after_the_end_of_an_episode_is_refused(place: Place) -> None:
    with place(talkers(), autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        envs.step(NOOPS)
        envs.step(NOOPS)
        with pytest.raises(ResetNeeded, match=r"env_ids \[2\] have ended"):
            envs.step(NOOPS)
        with pytest.raises(ResetNeeded, match=r"env_ids \[2\] have ended"):
            envs.send(NOOPS[:1], [2])
        envs.reset(options={"reset_mask": np.array([False, False, True])})
        envs.step(NOOPS)


@pytest.mark.one_in(3)
@STUCK_IN_WORKERS
@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("then", ["step", "send"])
def test_without_autoreset_an_end_after_a_timeout_needs_a_reset(
    is_over: bool, then: str, gate: str, place: Place
) -> None:
    with place(stuck(gate, kind=StuckEnding), autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        envs.step_async(NOOPS)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(0.02)
        opener = threading.Timer(0.05, open_gate, [gate])
        opener.start()
        if is_over:
            envs.get_attr("env_id")
        with pytest.raises(ResetNeeded, match=r"env_ids \[0, 1, 2\] have ended"):
            {"step": envs.step, "send": envs.send}[then](NOOPS)
        opener.join()
        assert envs.get_attr("beyond") == (0, 0, 0)
        envs.reset()
        assert envs.step(NOOPS)[2].all()


@pytest.mark.core
def test_recv_returns_the_remaining_rows_if_all_others_have_ended(place: Place) -> None:
    with place(named("Ending"), autoreset_mode="Disabled", batch_size=2) as envs:
        for _ in range(2):
            envs.reset()
            envs.send(NOOPS)
            first, rest = (envs.recv()[4]["env_id"].tolist() for _ in range(2))
            assert (len(first), len(rest), sorted(first + rest)) == (2, 1, [0, 1, 2])
            with pytest.raises(NoAsyncCallError, match="must return 2 rows, but only 0 are requested"):
                envs.recv()
        envs.reset()
        envs.send(NOOPS[:1], [0])
        with pytest.raises(NoAsyncCallError, match="must return 2 rows, but only 1 are requested"):
            envs.recv()


def test_without_autoreset_an_end_beside_an_exception_needs_a_reset(place: Place) -> None:
    with place(named("Ending"), autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        envs.set_attr("fails", [False, True, False])
        with pytest.raises(LookupError):
            envs.step(NOOPS)
        with pytest.raises(ResetNeeded, match=r"env_ids \[0, 2\] have ended"):
            envs.step(NOOPS)
        assert envs.get_attr("beyond") == (0, 0, 0)


# send and recv.


@pytest.mark.one_in(7)
@ALL_MODES
@pytest.mark.parametrize("most", [1, 3])
def test_each_sub_environment_is_received_once_per_action_with_its_own_trace(
    most: int, mode: AutoresetMode, place: Place
) -> None:
    count, actions = 5, np.zeros(5, np.int64)
    with (
        place(talkers(count), most=most, batch_size=1, autoreset_mode=mode) as envs,
        sync(talkers(count), autoreset_mode=mode) as reference,
    ):
        traces: list[Any] = []
        reference.reset(seed=0)
        for _ in range(12):
            traces.append(reference.step(actions))
            ended = traces[-1][2] | traces[-1][3]
            if mode is AutoresetMode.DISABLED and ended.any():
                reference.reset(options={"reset_mask": ended})
        envs.reset(seed=0)
        envs.send(actions)
        taken, under_way = np.zeros(count, int), count
        while under_way:
            observations, rewards, terminated, truncated, infos = envs.recv()
            ids = infos["env_id"]
            ended = bool(terminated[0] | truncated[0])
            wanted = traces[taken[ids[0]]]
            assert_same((observations, rewards, terminated, truncated), tuple(part[ids] for part in wanted[:4]))
            if mode is AutoresetMode.SAME_STEP and ended:
                assert_same(infos["final_obs"][0], wanted[4]["final_obs"][ids[0]])
            taken[ids] += 1
            if taken[ids[0]] == 10 or (mode is AutoresetMode.DISABLED and ended):
                under_way -= 1
            else:
                envs.send(actions[:1], ids)
        assert (taken == 10).all() or mode is AutoresetMode.DISABLED


def test_without_workers_recv_takes_sub_environments_in_turn() -> None:
    with ParallelVectorEnv(ledgers(6), num_workers=0, batch_size=2) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(6, np.int64))
        order = []
        for _ in range(9):
            ids = envs.recv()[4]["env_id"]
            order += ids.tolist()
            envs.send(np.zeros(2, np.int64), ids)
        assert order == [0, 1, 2, 3, 4, 5] * 3


@STUCK_IN_WORKERS
def test_a_straggler_does_not_delay_the_others(gate: str, place: Place) -> None:
    with place(stuck(gate, count=4), most=4, batch_size=1) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(4, np.int64))
        seen = []
        while len(seen) < 12 or len(set(seen)) < 3:
            ids = envs.recv(timeout=60)[4]["env_id"]
            seen += ids.tolist()
            envs.send(np.zeros(1, np.int64), ids)
        assert set(seen) == {0, 2, 3}
        open_gate(gate)
        while 1 not in seen:
            ids = envs.recv(timeout=60)[4]["env_id"]
            seen += ids.tolist()
            envs.send(np.zeros(1, np.int64), ids)


@STUCK_IN_WORKERS
def test_a_recv_that_timed_out_loses_nothing(gate: str, place: Place) -> None:
    with place(stuck(gate), most=3, batch_size=3) as envs:
        envs.reset(seed=0)
        envs.send(NOOPS)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.recv(timeout=0.05)
        open_gate(gate)
        observations, rewards, _, _, infos = envs.recv(timeout=60)
        assert_same(observations, np.array([[1, 0], [1, 1], [1, 2]], np.float32))
        assert (rewards.tolist(), infos["env_id"].tolist()) == ([0.5] * 3, [0, 1, 2])


@NEEDS_FUNCTIONS
def test_send_and_recv_in_the_wrong_state_are_errors(place: Place) -> None:
    with place(ledgers(N), batch_size=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(NoAsyncCallError, match="must return 2 rows, but only 0 are requested"):
            envs.recv()
        envs.send(NOOPS[:2], [2, 0])
        with pytest.raises(AlreadyPendingCallError, match=r"env_ids \[0\] cannot be sent while they step"):
            envs.send(NOOPS[:2], [0, 1])
        for call in (lambda: envs.step(NOOPS), envs.reset, lambda: envs.call("env_id")):
            with pytest.raises(AlreadyPendingCallError, match="while 2 sub-environments step"):
                call()
        for wrong in ([3], [-1], [1, 1], []):
            with pytest.raises(ValueError, match="env_ids must be one or more different integers from 0 to 2"):
                envs.send(np.zeros(len(wrong), np.int64), wrong)
        for size in (0, 1.5):
            with pytest.raises(ConfigurationError, match="batch_size must be an integer of at least 1"):
                envs.recv(batch_size=size)
        with pytest.raises(NoAsyncCallError, match=r"recv\(\) must return 3 rows, but only 2 are requested"):
            envs.recv(batch_size=3)
        assert sorted(envs.recv()[4]["env_id"].tolist()) == [0, 2]
        with pytest.raises(NoAsyncCallError, match="only 0 are requested"):
            envs.recv()
        assert envs.step(NOOPS)[1].tolist() == [0.0, ledger_reward(1, 0, 1), ledger_reward(2, 0, 2)]


@NEEDS_FUNCTIONS
def test_env_ids_must_be_integers(place: Place) -> None:
    with place(ledgers(N), batch_size=1) as envs:
        envs.reset(seed=0)
        for wrong in (1.0, [1.5], np.ones(1), [True], np.ones(1, bool), "1", [None], {1}, torch.ones(1)):
            with pytest.raises(ValueError, match="env_ids must be one or more different integers from 0 to 2, got"):
                envs.send(np.zeros(1, np.int64), wrong)
        for right in (1, np.uint8([1]), (1,), range(1, 2), torch.tensor([1])):
            envs.send(np.zeros(1, np.int64), right)
            assert envs.recv()[4]["env_id"].tolist() == [1]


@NEEDS_FUNCTIONS
def test_actions_of_several_dtypes_may_be_pending_together(place: Place) -> None:
    warnings.simplefilter("ignore", UserWarning)
    space = spaces.Box(-1, 1, (1,), np.float32)
    with place(talkers(acted=space), batch_size=3) as envs:
        envs.reset(seed=0)
        envs.send(np.array([[0.1]], np.float32), [0])
        envs.send(np.array([[0.1]]), [1])
        envs.send(np.array([[1]]), [2])
        envs.recv()
        assert envs.get_attr("actions") == (
            ["array([0.1], dtype=float32)"],
            ["array([0.1])"],
            ["array([1])"],
        )


# The life of a vector env.


def test_make_vec_makes_what_gymnasium_makes() -> None:
    arguments: dict[str, Any] = {"wrappers": [gym.wrappers.RecordEpisodeStatistics], "max_episode_steps": 3}
    envs = parenv.make_vec("CartPole-v1", num_envs=2, vector_kwargs={"num_workers": 2}, **arguments)
    reference = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync", **arguments)
    with contextlib.closing(envs), contextlib.closing(reference):
        assert repr(envs).startswith("ParallelVectorEnv(CartPole-v1, num_envs=2, choice='2 workers, because ")
        assert_same(envs.reset(seed=1), reference.reset(seed=1))
        for _ in range(4):
            actions = np.array([0, 1])
            assert_same(envs.step(actions), reference.step(actions), ignored=("t",))
        assert envs.spec.kwargs["max_episode_steps"] == 3
    with pytest.raises(ConfigurationError, match="got 'sync'"):
        parenv.make_vec("CartPole-v1", vectorization_mode="sync")


def test_make_vec_takes_an_id_with_its_module_or_without_a_version(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registers = "import gymnasium\ngymnasium.register('Here-v3', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    (tmp_path / "registers_here.py").write_text(registers)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gym.envs.registration, "registry", gym.registry.copy())
    for name in ("registers_here:Here-v3", "registers_here:Here"):
        with (
            contextlib.nullcontext() if name.endswith("3") else pytest.warns(UserWarning, match="latest .*`Here-v3`"),
            contextlib.closing(parenv.make_vec(name, 2, vector_kwargs={"num_workers": 2})) as envs,
        ):
            assert envs.spec.id == "Here-v3"
            assert envs.reset(seed=1)[0].shape == (2, 4)
    with pytest.raises(ModuleNotFoundError):
        parenv.make_vec("no_such_module:Here-v3")
    with pytest.raises(gym.error.Error, match="NoSuchEnvironment"):
        parenv.make_vec("NoSuchEnvironment")


@NEEDS_FUNCTIONS
def test_workers_are_set_up_and_cleaned_up_in_every_place(place: Place, tmp_path: Any) -> None:
    options = {
        "setup_fn": lambda worker: (tmp_path / f"up {worker}").touch(),
        "cleanup_fn": lambda worker: (tmp_path / f"down {worker}").touch(),
    }
    with place(talkers(), workers=options) as envs:
        envs.reset(seed=0)
        workers = envs.num_workers + bool(envs.num_caller_envs or not envs.num_workers)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{what} {worker}" for what in ("up", "down") for worker in range(workers)}


@pytest.mark.core
def test_a_with_statement_closes_it(place: Place) -> None:
    with place(talkers(1)) as envs:
        assert envs.reset(seed=0)[0].shape == (1, 2)
    assert envs.closed
