"""Check the contract of ``ParallelVectorEnv``: spaces, infos, actions, errors, pending calls, send and recv."""

from __future__ import annotations

import contextlib
import copy
import datetime
import enum
import functools
import inspect
import multiprocessing
import os
import threading
import warnings
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from comparison import assert_same
from envs import ledgers
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sampling import one_in

import parenv
from parenv import ConfigurationError, NotDataError, ObservationError, ParallelVectorEnv
from parenv.options import WorkerOptions
from parenv.testing import LedgerEnv
from parenv.testing.ledger import ledger_reward

N = 3
INLINE_OR_NOT = pytest.mark.parametrize("num_workers", [0, 2])
ALL_MODES = pytest.mark.parametrize("mode", list(AutoresetMode))


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


class Even(spaces.Discrete):
    """Discrete space that samples only even numbers."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return super().sample() // 2 * 2


class Talker(gym.Env[Any, Any]):
    """Environment with episodes of about four steps, and with the observations and infos of given functions.

    Args:
        env_id: Number of the environment.
        observed: Observation space.
        acted: Action space.
        says: Function ``(env_id, step) -> info``.
        observes: Function ``(env_id, step) -> observation``. Default: samples of the space.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self,
        env_id: int = 0,
        observed: Any = None,
        acted: Any = None,
        says: Callable[[int, int], Any] | None = None,
        observes: Callable[[int, int], Any] | None = None,
    ) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32) if observed is None else copy.deepcopy(observed)
        self.action_space = spaces.Discrete(3) if acted is None else acted
        self.render_mode = "rgb_array"
        self.env_id, self.steps, self.actions = env_id, 0, []
        self._says, self._observes = says, observes

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
            self.steps = 0
        self.options = options
        return self._observation(), self._info()

    def step(self, action: Any) -> Any:
        self.actions.append(repr(action))
        self.steps += 1
        ended = (self.steps + self.env_id) % 4 == 0
        return self._observation(), self.steps * 0.5, ended and self.env_id % 2 == 0, ended, self._info()

    def render(self) -> Any:
        return np.full((2, 2, 3), self.env_id, np.uint8)

    def add(self, number: int, *, more: int = 0) -> int:
        return self.env_id + number + more

    def put_back(self) -> None:
        del self.step

    def broken(self) -> None:
        raise LookupError(f"nothing in {self.env_id}")

    def secret(self) -> Any:
        return object()

    def last_options(self) -> tuple[str, dict[str, Any]]:
        return type(self.options).__name__, dict(self.options)

    def _observation(self) -> Any:
        return self._observes(self.env_id, self.steps) if self._observes else self.observation_space.sample()

    def _info(self) -> Any:
        return self._says(self.env_id, self.steps) if self._says else {}


def talkers(count: int = N, **kwargs: Any) -> list[Any]:
    return [functools.partial(Talker, env_id, **kwargs) for env_id in range(count)]


def parallel(env_fns: Any, **kwargs: Any) -> Any:
    return contextlib.closing(ParallelVectorEnv(env_fns, **kwargs))


def assert_as_sync(env_fns: Any, mode: Any = "NextStep", num_workers: int = 2, steps: int = 7, **kwargs: Any) -> None:
    """Check that the same calls return the same results as with ``SyncVectorEnv``."""
    with (
        parallel(env_fns, autoreset_mode=mode, num_workers=num_workers, **kwargs) as envs,
        contextlib.closing(SyncVectorEnv(env_fns, autoreset_mode=mode, **kwargs)) as reference,
    ):
        assert repr(envs.observation_space) == repr(reference.observation_space)
        assert repr(envs.action_space) == repr(reference.action_space)
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

BOX = spaces.Box(-1, 1, (2, 3), np.float64)
SPACES: dict[str, Any] = {
    "0-d box": spaces.Box(-1, 1, (), np.float32),
    "box": BOX,
    "pixels": spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi-binary": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict(a=BOX, b=spaces.Discrete(3)),
    "tuple": spaces.Tuple([spaces.Discrete(3), BOX]),
    "nested": spaces.Dict(x=spaces.Tuple([spaces.Dict(y=BOX, z=spaces.Text(4)), spaces.Discrete(2)]), u=BOX),
    "text": spaces.Text(5, charset="zyx"),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "stacked sequence": spaces.Sequence(BOX, stack=True),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    "one of": spaces.OneOf([spaces.Discrete(3), BOX]),
    "no elements": spaces.Box(-1, 1, (2, 0, 3), np.float64),
    "parts without elements": spaces.Dict(a=spaces.Box(0, 1, (0, 2)), b=spaces.Tuple([spaces.Box(0, 1, (4, 0)), BOX])),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "mode"), one_in(2, SPACES, AutoresetMode))
def test_observations_of_every_space_are_batched_as_by_sync_vector_env(name: str, mode: AutoresetMode) -> None:
    assert_as_sync(talkers(observed=SPACES[name]), mode, num_workers=list(AutoresetMode).index(mode))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SPACES)
def test_actions_of_every_space_reach_the_environments_as_by_sync_vector_env(name: str) -> None:
    assert_as_sync(talkers(acted=SPACES[name]))


EMPTY: dict[str, Any] = {
    "Dict in a Dict": spaces.Dict(a=BOX, b=spaces.Dict()),
    "Tuple in a Dict": spaces.Dict(a=BOX, b=spaces.Tuple([])),
    "Dict in a Tuple": spaces.Tuple([spaces.Dict(), spaces.Discrete(3)]),
    "Tuple in a Tuple": spaces.Tuple([BOX, spaces.Tuple([])]),
    "nothing else": spaces.Dict(a=spaces.Dict(b=spaces.Dict()), c=spaces.Tuple([])),
    "Dict": spaces.Dict(),
    "Tuple": spaces.Tuple([]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "num_workers"), one_in(2, EMPTY, [0, 2]))
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_empty_parts_of_observations_are_empty_as_by_sync_vector_env(
    name: str, num_workers: int, mode: AutoresetMode
) -> None:
    assert_as_sync(talkers(observed=EMPTY[name]), mode, num_workers)


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "caller_steps": True}], ids=str)
@pytest.mark.parametrize("name", ["no elements", "parts without elements"])
def test_spaces_without_elements_are_stepped_with_views_and_in_any_order(name: str, options: dict[str, Any]) -> None:
    makers = talkers(observed=SPACES[name], acted=SPACES[name], says=lambda env_id, step: {"x": np.zeros((3, 0))})
    with parallel(makers, copy=False, batch_size=2, **options) as envs:
        observations, infos = envs.reset(seed=0)
        assert observations in envs.observation_space
        assert infos["x"].shape == (N, 3, 0)
        every = envs.action_space.sample()
        envs.send(every, [2, 0, 1])
        received = [envs.recv(batch_size=1)[4]["env_id"].tolist() for _ in range(N)]
        assert sorted(received) == [[0], [1], [2]]


def test_received_rows_have_empty_parts() -> None:
    with parallel(talkers(observed=EMPTY["Dict in a Dict"]), num_workers=2, batch_size=2) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(N, np.int64))
        observations = envs.recv()[0]
        assert (observations["a"].shape, observations["b"]) == ((2, 2, 3), {})


@INLINE_OR_NOT
@pytest.mark.parametrize("role", ["observed", "acted"])
def test_keys_of_dict_spaces_that_are_not_strings_are_refused(role: str, num_workers: int) -> None:
    spoken: Any = {role: spaces.Dict({1: BOX, 2: spaces.Discrete(3)})}
    with pytest.raises(ConfigurationError, match=r"keys of a Dict space must be strings, got 1. Rename the key in"):
        ParallelVectorEnv(talkers(**spoken), num_workers=num_workers)


@INLINE_OR_NOT
def test_observations_of_a_custom_space_come_as_a_tuple(num_workers: int) -> None:
    with parallel(talkers(observed=Custom()), num_workers=num_workers) as envs:
        observations, _ = envs.reset(seed=1)
        assert [list(one) for one in observations] == [["anything"]] * N


CUSTOM: dict[str, Any] = {
    "custom": Custom(),
    "in a dict": spaces.Dict(a=Custom(), b=spaces.Discrete(3)),
    "in a tuple": spaces.Tuple([BOX, Custom()]),
    "in a sequence": spaces.Sequence(Custom()),
    "in one of two": spaces.OneOf([Custom(), spaces.Discrete(2)]),
    "a subclass": Even(9),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_without_workers_the_spaces_are_those_of_the_environments(name: str) -> None:
    makers = talkers(observed=CUSTOM[name], acted=CUSTOM[name])
    with parallel(makers, num_workers=0) as envs, contextlib.closing(SyncVectorEnv(makers)) as reference:
        for each in (envs, reference):
            assert type(each.single_action_space) is type(CUSTOM[name])
            each.action_space.seed(5)
        samples = [envs.action_space.sample() for _ in range(3)]
        assert_same(samples, [reference.action_space.sample() for _ in range(3)])
        assert envs.single_action_space is envs._session.backend.envs[0].action_space
        assert_same(envs.reset(seed=1), reference.reset(seed=1))
        assert_same(envs.step(samples[0]), reference.step(samples[0]))
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["custom", "in a dict", "in a tuple", "in a sequence", "in one of two"])
@pytest.mark.parametrize("caller_steps", [False, True])
def test_with_workers_a_custom_space_has_its_class_and_can_be_sampled(name: str, caller_steps: bool) -> None:
    makers = talkers(observed=CUSTOM[name], acted=CUSTOM[name])
    with (
        parallel(makers, num_workers=2, caller_steps=caller_steps) as envs,
        contextlib.closing(SyncVectorEnv(makers)) as reference,
    ):
        for each in (envs, reference):
            assert each.single_action_space == CUSTOM[name] == each.single_observation_space
            each.action_space.seed(5)
            each.reset(seed=1)
            each.step(each.action_space.sample())
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"))


@pytest.mark.parametrize("name", ["custom", "in a dict", "in a tuple"])
def test_sampling_a_custom_space_that_this_process_cannot_make_is_an_error_with_a_remedy(name: str) -> None:
    main, makers = os.getpid(), talkers(acted=CUSTOM[name])

    def make(env_id: int) -> Any:
        if os.getpid() == main:
            raise RuntimeError("no simulator here")
        return makers[env_id]()

    away = [functools.partial(make, env_id) for env_id in range(N)]
    with parallel(away, num_workers=2) as envs, contextlib.closing(SyncVectorEnv(makers)) as reference:
        envs.action_space.seed(5)
        with pytest.raises(NotImplementedError, match=r"Custom\(\) cannot be sampled .*spaces=\"make\""):
            envs.action_space.sample()
        actions = reference.action_space.sample()
        for each in (envs, reference):
            each.reset(seed=1)
            each.step(actions)
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"))


@INLINE_OR_NOT
def test_metadata_that_are_not_plain_data_are_left_out_with_workers(num_workers: int) -> None:
    class Described(Talker):
        metadata: dict[str, Any] = {**Talker.metadata, "maker": Talker}  # noqa: RUF012

    with parallel([Described] * N, num_workers=num_workers) as envs:
        kept = Talker.metadata if num_workers else Described.metadata
        assert envs.metadata == {**kept, "autoreset_mode": AutoresetMode.NEXT_STEP}


class Reusing(Talker):
    """Environment that returns the same arrays in every step."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id, spaces.Dict(a=spaces.Box(0, 9, (2,), np.int64), b=spaces.Box(0, 9, (), np.float32)))
        self._arrays = {"a": np.zeros(2, np.int64), "b": np.zeros((), np.float32)}

    def _observation(self) -> Any:
        self._arrays["a"][:] = self.steps
        self._arrays["b"][...] = self.steps
        return self._arrays


@INLINE_OR_NOT
def test_observations_of_an_environment_that_reuses_its_arrays_are_copied(num_workers: int) -> None:
    with parallel([lambda: Reusing(0)] * N, num_workers=num_workers, autoreset_mode="SameStep") as envs:
        seen = [envs.reset(seed=0)[0]]
        for step in range(1, 5):
            observations, _, _, _, infos = envs.step(np.zeros(N, np.int64))
            seen.append(observations)
            assert ("final_obs" in infos) == (step == 4)
        assert [one["a"][0, 0] for one in seen] == [0, 1, 2, 3, 4]
        assert [one["a"].tolist() for one in infos["final_obs"]] == [[4, 4]] * N


class Resetting(Talker):
    """Environment that returns one buffer, filled with -1 by a reset and with the step number by a step."""

    def __init__(self) -> None:
        super().__init__(0)
        self._buffer = np.zeros(2, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        self._buffer[:] = -1
        return self._buffer, {}

    def _observation(self) -> Any:
        self._buffer[:] = self.steps
        return self._buffer


@INLINE_OR_NOT
def test_a_final_observation_survives_the_reset_of_an_environment_that_reuses_its_buffer(num_workers: int) -> None:
    with parallel([Resetting] * N, num_workers=num_workers, autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        for _ in range(4):
            observations, *_, infos = envs.step(np.zeros(N, np.int64))
        assert observations.tolist() == [[-1, -1]] * N
        assert [one.tolist() for one in infos["final_obs"]] == [[4, 4]] * N


class Keeping(Talker):
    """Environment that keeps its infos, reward and flag in objects of its own, and clears them in a reset."""

    def __init__(self) -> None:
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


CALLER_OR_NOT = pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 1, "caller_steps": True}], ids=str
)


@pytest.mark.filterwarnings("ignore:infos")
@CALLER_OR_NOT
def test_final_infos_rewards_and_flags_are_those_of_the_last_step_of_an_environment_that_keeps_them(
    options: dict[str, Any],
) -> None:
    with parallel([Keeping] * N, autoreset_mode="SameStep", **options) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            _, rewards, terminated, _, infos = envs.step(np.zeros(N, np.int64))
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


@pytest.mark.filterwarnings("ignore:infos")
@ALL_MODES
@CALLER_OR_NOT
def test_infos_stay_as_they_are_in_later_steps_of_an_environment_that_keeps_them(
    options: dict[str, Any], mode: AutoresetMode
) -> None:
    with parallel([Keeping] * N, autoreset_mode=mode, **options) as envs:
        kept = [envs.reset(seed=0)[1]["steps"]]
        for _ in range(3):
            infos = envs.step(np.zeros(N, np.int64))[4]
            kept.append(infos["seen"]["steps"])
        pairs = infos["seen"]["pair"]
        envs.step(np.zeros(N, np.int64))
        envs.reset(seed=0)
    assert [each.tolist() for each in kept] == [[list(range(1, step + 1))] * N for step in range(4)]
    assert [(list(steps), last["last"]) for steps, last in pairs] == [([1, 2, 3], 3)] * N


def test_without_workers_objects_in_infos_are_those_of_the_environment() -> None:
    with parallel([Keeping] * N, num_workers=0, autoreset_mode="SameStep") as envs:
        envs.reset(seed=0)
        for _ in range(4):
            infos = envs.step(np.zeros(N, np.int64))[4]
        assert list(infos["final_info"]["env"]) == list(envs.envs)


CASTS: dict[str, tuple[Any, Callable[[int, int], Any]]] = {
    "wider floats": (spaces.Box(-9, 9, (2,), np.float32), lambda env_id, step: np.array([0.1, env_id])),
    "integers": (spaces.Box(-9, 9, (2,), np.float32), lambda env_id, step: np.array([step, env_id])),
    "lists": (spaces.Box(-9, 9, (2,), np.float32), lambda env_id, step: [step, 0.1]),
    "mixed": (spaces.Box(-9, 9, (1,), np.float32), lambda env_id, step: [[step], [0.1], np.ones(1, "f8")][env_id]),
    "numbers": (spaces.Discrete(9), lambda env_id, step: [step, np.int32(1), np.array(2)][env_id]),
    "booleans": (spaces.Discrete(9), lambda env_id, step: bool(env_id)),
    "other order": (spaces.Dict(a=BOX, b=BOX), lambda env_id, step: {"b": BOX.low, "c": 1, "a": BOX.high}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASTS)
def test_observations_of_another_dtype_are_cast_as_by_sync_vector_env(name: str) -> None:
    space, observes = CASTS[name]
    # There is a warning if a dtype has only its kind in common with the space.
    warnings.simplefilter("ignore", UserWarning)
    assert_as_sync(talkers(observed=space, observes=observes), steps=3)


MISFITS: dict[str, tuple[Any, Any, Any]] = {
    "longer": (spaces.Box(-9, 9, (2,)), np.zeros(2, "f4"), np.zeros(3, "f4")),
    "another dimension": (spaces.Box(-9, 9, (2,)), np.zeros(2, "f4"), np.zeros((2, 1), "f4")),
    "as many numbers": (spaces.Box(-9, 9, (2, 4)), np.zeros((2, 4), "f4"), np.zeros((2, 2, 2), "f4")),
    "floats for integers": (spaces.Box(0, 9, (2,), np.int64), np.zeros(2, int), np.zeros(2)),
    "a float for a number": (spaces.Discrete(3), 1, 1.0),
    "none": (spaces.Box(-9, 9, (2,)), np.zeros(2, "f4"), None),
    "no key": (spaces.Dict(a=spaces.Discrete(2)), {"a": 1}, {}),
}


@pytest.mark.one_in(3)
@INLINE_OR_NOT
@pytest.mark.parametrize("name", MISFITS)
def test_an_observation_that_does_not_fit_is_an_error_that_names_the_environment(name: str, num_workers: int) -> None:
    space, good, bad = MISFITS[name]

    def observes(env_id: int, step: int) -> Any:
        return bad if (env_id, step) == (1, 2) else good

    actions = np.zeros(N, np.int64)
    with parallel(talkers(observed=space, observes=observes), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        envs.step(actions)
        with pytest.raises(ObservationError, match="does not fit its space") as caught:
            envs.step(actions)
        where = caught.value.__cause__
        assert getattr(where, "env_id", None) == 1 or caught.value.env_id == 1
        assert envs.step(actions)[1].tolist() == [1.5, 1.5, 0.0]
        for _ in range(2):
            envs.send(actions)
            envs.recv()


def test_an_observation_that_does_not_fit_is_refused_in_rows_that_are_not_adjacent() -> None:
    space = spaces.Box(-9, 9, (2, 4))
    with parallel(
        talkers(observed=space, observes=lambda *_: np.zeros((2, 2, 2), "f4")), num_workers=1, batch_size=2
    ) as envs:
        with pytest.raises(ObservationError):
            envs.reset(seed=0)
        envs.send(np.zeros(2, np.int64), [0, 2])
        refused: list[BaseException] = []
        while len(refused) < 2:  # The errors may arrive together or one after the other.
            with pytest.raises(ObservationError) as caught:
                envs.recv(batch_size=1)
            cause = caught.value.__cause__
            refused += cause.exceptions if isinstance(cause, BaseExceptionGroup) else [caught.value]
        assert {type(error) for error in refused} == {ObservationError}


def group_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the errors of all sub-environments, which are the cause of an error."""
    assert isinstance(error.__cause__, BaseExceptionGroup)
    return error.__cause__.exceptions


# Infos.

INFOS: dict[str, Callable[[int, int], Any]] = {
    "integers": lambda env_id, step: {"x": step},
    "floats and booleans": lambda env_id, step: {"x": 0.5 * step, "y": step > 2},
    "none": lambda env_id, step: {"x": None},
    "text": lambda env_id, step: {"x": f"{env_id} {step}"},
    "scalars": lambda env_id, step: {"a": np.float32(step), "b": np.int8(1), "c": np.bool_(1), "d": np.float16(2)},
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


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "mode"), one_in(2, INFOS, AutoresetMode))
def test_infos_of_every_kind_equal_those_of_sync_vector_env(name: str, mode: AutoresetMode) -> None:
    assert_as_sync(talkers(says=INFOS[name]), mode, num_workers=(1, 2, 0)[list(AutoresetMode).index(mode)])


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
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_gymnasium_refuses_arrive_as_objects(name: str, num_workers: int, recwarn: Any) -> None:
    says, expected = REFUSED[name]
    if name == "timedelta in an enum" and not num_workers:
        expected = [Minutes.ONE] * N

    def nested(env_id: int, step: int) -> Any:
        return {"x": says(env_id), "deep": {"x": says(env_id), "y": step}, "step": step}

    with parallel(talkers(says=nested), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        for step in (1, 2):
            infos = envs.step(np.zeros(N, np.int64))[4]
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
    with parallel(talkers(says=lambda env_id, step: values), num_workers=1) as envs:
        with pytest.warns(UserWarning, match="infos") as warned:
            infos = envs.reset(seed=0)[1]
        assert envs.step(np.zeros(N, np.int64))[4]["good"].tolist() == [1] * N
    assert infos["good"].tolist() == [1] * N
    assert not infos.keys() & {"time", "dict", "digits"}
    assert sorted(str(one.message).partition(" (env_id 0), which")[0] for one in warned) == [
        "infos['dict'] is a test_vector_contract.Broken whose conversion raised RuntimeError: no key",
        "infos['digits'] is an integer of too many digits",
        "infos['time'] is a datetime.timedelta whose conversion raised OverflowError: int too big to convert",
    ]


def thing(env_id: int, step: int) -> Any:
    return {"x": 1, "thing": object()} if (env_id, step) == (1, 1) else {"x": 2}


def test_with_strict_infos_an_info_that_is_not_plain_data_is_an_error() -> None:
    with parallel(talkers(says=thing), num_workers=2, strict_infos=True) as envs:
        envs.reset(seed=0)
        with pytest.raises(NotDataError, match=r"infos\['thing'\] is a builtins.object \(env_id 1\)"):
            envs.step(np.zeros(N, np.int64))
        assert envs.step(np.zeros(N, np.int64))[4]["x"].tolist() == [2] * N


def test_without_workers_an_info_may_be_any_object() -> None:
    with parallel(talkers(says=thing), num_workers=0) as envs:
        envs.reset(seed=0)
        infos = envs.step(np.zeros(N, np.int64))[4]
        assert [type(one) for one in infos["thing"]] == [type(None), object, type(None)]


# Actions.


@pytest.mark.one_in(5)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.linspace(0, 1, 6).reshape(3, 2)),
        (spaces.Box(-1, 1, (2,), np.float32), np.arange(6).reshape(3, 2)),
        (spaces.Discrete(3), np.array([0, 1, 2], np.int32)),
        (spaces.Discrete(3), np.array([0, 1, 1], np.uint8)),
        (spaces.Discrete(3), np.array([0, 1, 2], "U1")),
        (spaces.Dict(a=spaces.Discrete(3)), {"a": np.array([0, 1, 2], np.int32)}),
    ],
    ids=str,
)
def test_actions_of_another_dtype_arrive_unchanged(space: Any, actions: Any, num_workers: int) -> None:
    warnings.simplefilter("ignore", UserWarning)
    with (
        parallel(talkers(acted=space), num_workers=num_workers) as envs,
        contextlib.closing(SyncVectorEnv(talkers(acted=space))) as reference,
    ):
        for both in (envs, reference):
            both.reset(seed=0)
            reference.action_space.seed(0)
            for one in (actions, reference.action_space.sample(), actions):
                both.step(one)
        assert_same(envs.get_attr("actions"), reference.get_attr("actions"))


@INLINE_OR_NOT
def test_actions_may_be_a_list(num_workers: int) -> None:
    with parallel(talkers(), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        envs.step([0, 1, 2])
        assert envs.get_attr("actions") == (["np.int64(0)"], ["np.int64(1)"], ["np.int64(2)"])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_actions_may_be_a_tensor(dtype: torch.dtype, num_workers: int) -> None:
    actions = torch.tensor([0, 1, 2], dtype=dtype)
    with parallel(talkers(), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        envs.step(actions)
        assert envs.get_attr("actions") == tuple([repr(one)] for one in actions.numpy())


TENSORS = {"graph": torch.zeros(N, 2, requires_grad=True), "bfloat16": torch.zeros(N, 2, dtype=torch.bfloat16)}


@pytest.mark.one_in(3)
@INLINE_OR_NOT
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_a_tensor_that_numpy_cannot_read_is_refused_and_nothing_is_stepped(
    tensor: torch.Tensor, nested: bool, num_workers: int
) -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    acted, actions = (spaces.Dict(a=box), {"a": tensor}) if nested else (box, tensor)
    with parallel(talkers(acted=acted), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        for refused in (envs.step, envs.send):
            with pytest.raises((RuntimeError, TypeError), match=r"detach\(\)|BFloat16"):
                refused(actions)
        good = tensor.detach().float()
        assert envs.step({"a": good} if nested else good)[1].tolist() == [0.5] * N


@pytest.mark.one_in(3)
@INLINE_OR_NOT
@pytest.mark.parametrize("actions", [np.zeros(2, np.int64), np.zeros(4, np.int64), [0, 1], np.zeros(4, "U1")])
def test_a_wrong_number_of_actions_is_refused_and_nothing_is_stepped(actions: Any, num_workers: int) -> None:
    with parallel(talkers(), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        with pytest.raises(
            ValueError, match=f"actions must have one for each of 3 sub-environments, got {len(actions)}"
        ):
            envs.step(actions)
        with pytest.raises(ValueError, match="actions must have one for each"):
            envs.send(actions)
        assert envs.step(np.zeros(N, np.int64))[1].tolist() == [0.5] * N


@INLINE_OR_NOT
def test_a_single_action_for_all_is_a_type_error_as_in_gymnasium(num_workers: int) -> None:
    with (
        parallel(talkers(), num_workers=num_workers) as envs,
        contextlib.closing(SyncVectorEnv(talkers())) as reference,
    ):
        for one in (envs, reference):
            one.reset(seed=0)
            with pytest.raises(TypeError):
                one.step(1)
        with pytest.raises(TypeError, match=r"^the actions must be a list or an array .*, got 1\. Pass 3 actions\.$"):
            envs.send(1)
        assert envs.step(np.zeros(N, np.int64))[1].tolist() == [0.5] * N


FLOATS: dict[str, tuple[Any, Any]] = {
    "multi binary": (spaces.MultiBinary(3), np.ones((N, 3), np.float32)),
    "multi discrete": (spaces.MultiDiscrete([3, 4]), np.full((N, 2), 2.0)),
    "integer box": (spaces.Box(0, 255, (2,), np.uint8), np.full((N, 2), 255.0, np.float32)),
    "discrete": (spaces.Discrete(3), np.array([0.0, 1.0, 2.0])),
}


@pytest.mark.one_in(2)
@INLINE_OR_NOT
@pytest.mark.parametrize("name", FLOATS)
def test_whole_floats_for_integer_spaces_reach_environments_as_by_sync_vector_env(name: str, num_workers: int) -> None:
    space, actions = FLOATS[name]
    with (
        parallel(talkers(acted=space), num_workers=num_workers) as envs,
        contextlib.closing(SyncVectorEnv(talkers(acted=space))) as reference,
    ):
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


@INLINE_OR_NOT
@pytest.mark.parametrize("wrong", [0.5, np.nan, 300.0, -1.0])
def test_floats_that_do_not_fit_integer_spaces_are_refused_and_nothing_is_stepped(
    wrong: float, num_workers: int
) -> None:
    with parallel(talkers(acted=FLOATS["integer box"][0]), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        with pytest.raises(ConfigurationError, match="do not fit their space: float64 cannot be cast to uint8"):
            envs.step(np.array([[0.0, 1.0], [wrong, 1.0], [2.0, 3.0]]))
        assert envs.get_attr("actions") == ([],) * N


# Combinations of spaces.


def boxes(*highs: float, dtype: Any = np.float32, shape: Any = (2,)) -> list[Any]:
    return [functools.partial(Talker, i, spaces.Box(0, high, shape, dtype)) for i, high in enumerate(highs)]


@pytest.mark.one_in(2)
@INLINE_OR_NOT
def test_spaces_that_differ_need_another_observation_mode(num_workers: int) -> None:
    said = (
        r"^ParallelVectorEnv\(\.\.\., observation_mode='same'\) however the sub-environments observation spaces are "
        r"not equivalent\. .*env_id 1 has .*"
        r"If this is intentional, use `observation_mode='different'` instead\.$"
    )
    with pytest.raises(RuntimeError, match=said):
        ParallelVectorEnv(boxes(1, 2, 1), num_workers=num_workers)
    assert_as_sync(boxes(1, 2, 1), num_workers=num_workers, observation_mode="different")
    single = spaces.Box(0, 9, (2,), np.float32)
    mode = (spaces.Box(0, 9, (3, 2), np.float32), single)
    assert_as_sync(boxes(1, 2, 1), num_workers=num_workers, observation_mode=mode)
    misfits = [*boxes(1, 2), *boxes(1, shape=(3,))]
    for wrong in ("different", mode):
        with pytest.raises((RuntimeError, ValueError)) as wanted:
            SyncVectorEnv(misfits, observation_mode=wrong)
        with pytest.raises(wanted.type):
            ParallelVectorEnv(misfits, observation_mode=wrong, num_workers=num_workers)
    with pytest.raises(RuntimeError, match="the same action space, but env_id 1 has"):
        ParallelVectorEnv([Talker, lambda: Talker(acted=spaces.Discrete(2))], num_workers=num_workers)


def keyed(keys: str) -> Any:
    bounds = {"a": (0, 1), "b": (5, 6)}
    return spaces.Dict(OrderedDict((key, spaces.Box(*bounds[key], (1,))) for key in keys))


@INLINE_OR_NOT
def test_the_keys_of_dict_spaces_may_have_another_order_in_each_worker(num_workers: int) -> None:
    env_fns = [functools.partial(Talker, i, keyed(keys)) for i, keys in enumerate(("ab", "ba", "ba"))]
    assert_as_sync(env_fns, num_workers=num_workers, observation_mode="different")


@pytest.mark.skipif("sort_keys" not in inspect.signature(spaces.Dict).parameters, reason="Dict always sorts its keys")
@INLINE_OR_NOT
def test_unsorted_keys_of_dict_spaces_keep_their_order(num_workers: int) -> None:
    space = spaces.Dict({"b": spaces.Discrete(9), "a": BOX}, sort_keys=False)
    assert_as_sync(talkers(observed=space, acted=space), num_workers=num_workers)
    with parallel(talkers(observed=space), num_workers=num_workers) as envs:
        assert list(envs.observation_space) == ["b", "a"]


@INLINE_OR_NOT
def test_spaces_that_are_equal_in_gymnasium_can_be_combined(num_workers: int) -> None:
    keys = [functools.partial(Talker, i, keyed(keys), keyed(keys)) for i, keys in enumerate(("ab", "ba", "ba"))]
    assert_as_sync(keys, num_workers=num_workers)
    assert_as_sync(boxes(1.0, 1.0 + 1e-9, dtype=np.float64), num_workers=num_workers)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SPACES)
@INLINE_OR_NOT
def test_spaces_that_are_seeded_are_sampled_as_by_sync_vector_env(name: str, num_workers: int) -> None:
    def make() -> Any:
        env = Talker(observed=SPACES[name], acted=copy.deepcopy(SPACES[name]))
        env.action_space.seed(3)
        env.observation_space.seed(4)
        env.action_space.sample()
        return env

    with (
        parallel([make] * N, num_workers=num_workers) as envs,
        contextlib.closing(SyncVectorEnv([make] * N)) as reference,
    ):
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


@INLINE_OR_NOT
def test_calls_in_the_wrong_state_raise_the_errors_of_gymnasium(num_workers: int) -> None:
    actions = np.zeros(N, np.int64)
    envs = ParallelVectorEnv(talkers(), num_workers=num_workers)
    waits = {"reset": envs.reset_wait, "step": envs.step_wait, "call": envs.call_wait}
    begins: dict[str, Any] = {
        "reset": lambda: envs.reset_async(seed=1),
        "step": lambda: envs.step_async(actions),
        "call": lambda: envs.call_async("env_id"),
    }
    for pending, begin in begins.items():
        for name, wait in waits.items():
            with pytest.raises(NoAsyncCallError, match=f"`{name}_wait` without any prior call to `{name}_async`") as no:
                wait()
            assert no.value.name == name
        begin()
        for other in (*begins.values(), lambda: envs.set_attr("x", 1), lambda: envs.send(actions)):
            with pytest.raises(AlreadyPendingCallError, match=f"while waiting for a pending call to `{pending}`") as al:
                other()
            assert al.value.name == pending
        waits[pending]()
    envs.close()
    envs.close()
    everything = [*begins.values(), *waits.values(), envs.render, lambda: envs.send(actions), envs.recv, envs.reset]
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


@pytest.fixture
def gate(tmp_path: Any) -> Any:
    """Return the path of a named pipe. A reader waits until the pipe has been opened for writing and closed."""
    path = str(tmp_path / "gate")
    os.mkfifo(path)
    return path


def open_gate(path: str) -> None:
    with open(path, "wb"):
        pass


@pytest.mark.one_in(4)
@pytest.mark.parametrize("where", ["step", "reset", "call"])
@pytest.mark.parametrize("then", ["step", "reset", "reset some", "call", "send"])
def test_after_a_wait_that_timed_out_no_result_is_stale(where: str, then: str, gate: str) -> None:
    actions = np.zeros(N, np.int64)
    with parallel([functools.partial(Stuck, i, gate, where) for i in range(N)], num_workers=2) as envs:
        envs.reset(seed=0)
        if where != "step":
            envs.step(actions)
        {
            "step": lambda: envs.step_async(actions),
            "reset": lambda: envs.reset_async(seed=0),
            "call": lambda: envs.call_async("wait", "call"),
        }[where]()
        with pytest.raises(multiprocessing.TimeoutError, match=f"`{where}_wait` has timed out after 0.02 second"):
            {"step": envs.step_wait, "reset": envs.reset_wait, "call": envs.call_wait}[where](0.02)
        steps = 0 if where == "reset" else 1
        opener = threading.Timer(0.05, open_gate, [gate])
        opener.start()
        if then == "step":
            assert envs.step(actions)[0][:, 0].tolist() == [steps + 1] * N
        elif then == "reset":
            assert envs.reset(seed=0)[0][:, 0].tolist() == [0] * N
        elif then == "reset some":
            mask = {"reset_mask": np.array([True, False, False])}
            assert envs.reset(seed=0, options=mask)[0][:, 0].tolist() == [0, steps, steps]
        elif then == "call":
            assert envs.call("add", 1) == (1, 2, 3)
        else:
            envs.send(actions)
            observations, *_, infos = envs.recv()
            assert (observations[:, 0].tolist(), infos["env_id"].tolist()) == ([steps + 1] * N, [0, 1, 2])
        opener.join()
        before = envs.get_attr("steps")
        assert envs.step(actions)[0][:, 0].tolist() == [one + 1 for one in before]


def test_actions_are_copied_while_a_late_step_is_pending(gate: str) -> None:
    actions = np.zeros(N, np.int64)
    with parallel([functools.partial(Stuck, i, gate, "step") for i in range(N)], num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step_async(actions)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(0.02)
        envs.step_async(actions)
        actions[:] = 2
        open_gate(gate)
        envs.step_wait()
        assert [done[-1] for done in envs.get_attr("actions")] == [repr(np.int64(0))] * N


@pytest.mark.parametrize("terminate", [False, True])
def test_closing_while_a_step_is_pending_warns_and_ends_it(terminate: bool) -> None:
    envs = ParallelVectorEnv(talkers(), num_workers=2)
    envs.reset(seed=0)
    envs.step_async(np.zeros(N, np.int64))
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step`"):
        envs.close(terminate=terminate)
    assert envs.closed


# Calls and attributes.


@INLINE_OR_NOT
def test_calls_and_attributes_reach_every_environment(num_workers: int) -> None:
    with parallel(
        [functools.partial(gym.wrappers.TimeLimit, Talker(i), 9) for i in range(N)], num_workers=num_workers
    ) as envs:
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
        assert [str(error.args[0]) for error in group_of(caught.value)] == [f"nothing in {i}" for i in range(N)]
        with pytest.raises(AttributeError, match="nobody_has_this") as missing:
            envs.get_attr("nobody_has_this")
        assert {type(error) for error in group_of(missing.value)} == {AttributeError}
        assert envs.call("add", 1) == (1, 2, 3)


@INLINE_OR_NOT
def test_a_replaced_step_method_is_used_at_once(num_workers: int) -> None:
    def better(action: Any) -> Any:
        return np.zeros(2, np.float32), 9.0, False, False, {}

    with parallel(talkers(), num_workers=num_workers) as envs:
        envs.reset(seed=0)
        envs.set_attr("step", better)
        assert envs.step(np.zeros(N, np.int64))[1].tolist() == [9.0] * N
        envs.reset()
        envs.call("put_back")
        assert envs.step(np.zeros(N, np.int64))[1].tolist() == [0.5] * N


@INLINE_OR_NOT
def test_a_call_does_not_affect_a_pending_autoreset(num_workers: int) -> None:
    with parallel(talkers(), num_workers=num_workers) as envs, contextlib.closing(SyncVectorEnv(talkers())) as sync:
        for each in (envs, sync):
            each.reset(seed=0)
        for _ in range(6):
            actions = np.zeros(N, np.int64)
            assert_same(envs.step(actions), sync.step(actions))
            envs.get_attr("env_id")


@INLINE_OR_NOT
def test_arrays_from_messages_are_writable(num_workers: int) -> None:
    observed = spaces.Dict(sequence=spaces.Sequence(BOX, stack=True), graph=SPACES["graph"])
    makers = talkers(observed=observed, says=lambda env_id, step: {"arrays": [np.zeros(2)]})
    with parallel(makers, num_workers=num_workers) as envs:
        observations, infos = envs.reset(seed=1)
        arrays = [envs.render()[0], infos["arrays"][0][0], observations["sequence"][0], observations["graph"][0].nodes]
        assert all(array.flags.writeable for array in arrays)


def test_a_result_that_is_not_plain_data_is_refused_and_the_env_stays_usable() -> None:
    with parallel(talkers(), num_workers=2) as envs:
        with pytest.raises(NotDataError) as caught:
            envs.call("secret")
        assert {type(error) for error in group_of(caught.value)} == {NotDataError}
        assert envs.call("add", 1) == (1, 2, 3)


@INLINE_OR_NOT
def test_random_generators_and_their_seeds_are_those_of_the_environments(num_workers: int) -> None:
    with parallel(talkers(), num_workers=num_workers) as envs:
        envs.reset(seed=[5, None, 7])
        assert envs.np_random_seed[0::2] == (5, 7)
        assert envs.np_random[0].random() == gym.utils.seeding.np_random(5)[0].random()


# Arguments.


@pytest.mark.one_in(2)
@INLINE_OR_NOT
def test_without_copies_observations_are_overwritten(num_workers: int) -> None:
    for copied in (True, False):
        with parallel(talkers(), num_workers=num_workers, copy=copied) as envs:
            first, _ = envs.reset(seed=0)
            kept = first.copy()
            second = envs.step(np.zeros(N, np.int64))[0]
            assert np.shares_memory(first, second) is not copied
            assert (first == kept).all() == copied


def test_arguments_of_async_vector_env_are_accepted() -> None:
    arguments: dict[str, Any] = {"context": "spawn", "daemon": False, "shared_memory": False, "max_concurrency": 2}
    with parallel(talkers(), **arguments) as envs:
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
    with parallel(talkers(), num_workers=0) as envs, contextlib.closing(SyncVectorEnv(talkers())) as reference:
        envs.reset(seed=0)
        with pytest.raises(Exception) as wanted:
            reference.reset(options={"reset_mask": mask})
        with pytest.raises(wanted.type) as caught:
            envs.reset(options={"reset_mask": mask})
        assert str(caught.value) == str(wanted.value)


@INLINE_OR_NOT
def test_options_are_one_dict_or_a_list_with_one_for_each(num_workers: int) -> None:
    with parallel(talkers(), num_workers=num_workers) as envs:
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


@INLINE_OR_NOT
@pytest.mark.parametrize("kind", [OrderedDict, UserDict])
def test_options_may_be_any_mapping(kind: Any, num_workers: int) -> None:
    with parallel(talkers(), num_workers=num_workers) as envs:
        envs.reset(seed=1, options=kind(a=1))
        assert envs.call("last_options") == ((kind.__name__, {"a": 1}),) * N
        options = kind(b=2, reset_mask=np.array([False, True, True]))
        envs.reset(options=options)
        assert [found for _, found in envs.call("last_options")] == [{"a": 1}, {"b": 2}, {"b": 2}]
        assert "reset_mask" in options


@pytest.mark.one_in(3)
@INLINE_OR_NOT
@pytest.mark.parametrize("options", ["abc", 5, {1, 2, 3}, np.zeros(N), {"a": 1}.items()], ids=repr)
def test_options_that_are_neither_a_mapping_nor_a_list_are_refused(options: Any, num_workers: int) -> None:
    with parallel(talkers(), num_workers=num_workers) as envs:
        envs.reset(options={"a": 1})
        with pytest.raises(TypeError, match="options must be a dict for all sub-environments, or a list with one for"):
            envs.reset(options=options)
        assert envs.get_attr("options") == ({"a": 1},) * N


@INLINE_OR_NOT
def test_without_autoreset_a_step_after_the_end_of_an_episode_is_refused(num_workers: int) -> None:
    actions = np.zeros(N, np.int64)
    with parallel(talkers(), num_workers=num_workers, autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        envs.step(actions)
        envs.step(actions)
        with pytest.raises(ResetNeeded, match=r"env_ids \[2\] have ended"):
            envs.step(actions)
        with pytest.raises(ResetNeeded, match=r"env_ids \[2\] have ended"):
            envs.send(actions[:1], [2])
        envs.reset(options={"reset_mask": np.array([False, False, True])})
        envs.step(actions)


class Ending(Stuck):
    """Environment with episodes of one step, which may fail. It counts the steps after the end of an episode."""

    fails = False
    beyond = 0

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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("then", ["step", "send"])
def test_without_autoreset_an_end_after_a_timeout_needs_a_reset(is_over: bool, then: str, gate: str) -> None:
    actions = np.zeros(N, np.int64)
    makers = [functools.partial(Ending, i, gate, "step") for i in range(N)]
    with parallel(makers, num_workers=2, autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        envs.step_async(actions)
        with pytest.raises(multiprocessing.TimeoutError):
            envs.step_wait(0.02)
        opener = threading.Timer(0.05, open_gate, [gate])
        opener.start()
        if is_over:
            envs.get_attr("env_id")
        with pytest.raises(ResetNeeded, match=r"env_ids \[0, 1, 2\] have ended"):
            {"step": envs.step, "send": envs.send}[then](actions)
        opener.join()
        assert envs.get_attr("beyond") == (0, 0, 0)
        envs.reset()
        assert envs.step(actions)[2].all()


@INLINE_OR_NOT
def test_recv_returns_the_remaining_rows_if_all_others_have_ended(num_workers: int) -> None:
    actions = np.zeros(N, np.int64)
    makers = [functools.partial(Ending, i, "", "") for i in range(N)]
    with parallel(makers, num_workers=num_workers, autoreset_mode="Disabled", batch_size=2) as envs:
        for _ in range(2):
            envs.reset()
            envs.send(actions)
            first, rest = (envs.recv()[4]["env_id"].tolist() for _ in range(2))
            assert (len(first), len(rest), sorted(first + rest)) == (2, 1, [0, 1, 2])
            with pytest.raises(NoAsyncCallError, match="must return 2 rows, but only 0 are requested"):
                envs.recv()
        envs.reset()
        envs.send(actions[:1], [0])
        with pytest.raises(NoAsyncCallError, match="must return 2 rows, but only 1 are requested"):
            envs.recv()


@INLINE_OR_NOT
def test_without_autoreset_an_end_beside_an_exception_needs_a_reset(num_workers: int) -> None:
    actions = np.zeros(N, np.int64)
    makers = [functools.partial(Ending, i, "", "") for i in range(N)]
    with parallel(makers, num_workers=num_workers, autoreset_mode="Disabled") as envs:
        envs.reset(seed=0)
        envs.set_attr("fails", [False, True, False])
        with pytest.raises(LookupError):
            envs.step(actions)
        with pytest.raises(ResetNeeded, match=r"env_ids \[0, 2\] have ended"):
            envs.step(actions)
        assert envs.get_attr("beyond") == (0, 0, 0)


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


# send and recv.


@pytest.mark.one_in(4)
@ALL_MODES
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_each_sub_environment_is_received_once_per_action_with_its_own_trace(
    num_workers: int, mode: AutoresetMode
) -> None:
    count, actions = 5, np.zeros(5, np.int64)
    with (
        parallel(talkers(count), num_workers=num_workers, batch_size=1, autoreset_mode=mode) as envs,
        contextlib.closing(SyncVectorEnv(talkers(count), autoreset_mode=mode)) as reference,
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
    with parallel(ledgers(6), num_workers=0, batch_size=2) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(6, np.int64))
        order = []
        for _ in range(9):
            ids = envs.recv()[4]["env_id"]
            order += ids.tolist()
            envs.send(np.zeros(2, np.int64), ids)
        assert order == [0, 1, 2, 3, 4, 5] * 3


def test_a_straggler_does_not_delay_the_others(gate: str) -> None:
    makers = [functools.partial(Stuck, i, gate, "step") for i in range(4)]
    with parallel(makers, num_workers=4, batch_size=1) as envs:
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


def test_a_recv_that_timed_out_loses_nothing(gate: str) -> None:
    makers = [functools.partial(Stuck, i, gate, "step") for i in range(N)]
    with parallel(makers, num_workers=3, batch_size=3) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(N, np.int64))
        with pytest.raises(multiprocessing.TimeoutError):
            envs.recv(timeout=0.05)
        open_gate(gate)
        observations, rewards, _, _, infos = envs.recv(timeout=60)
        assert_same(observations, np.array([[1, 0], [1, 1], [1, 2]], np.float32))
        assert (rewards.tolist(), infos["env_id"].tolist()) == ([0.5] * 3, [0, 1, 2])


@INLINE_OR_NOT
def test_send_and_recv_in_the_wrong_state_are_errors(num_workers: int) -> None:
    actions = np.zeros(N, np.int64)
    with parallel(ledgers(N), num_workers=num_workers, batch_size=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(NoAsyncCallError, match="must return 2 rows, but only 0 are requested"):
            envs.recv()
        envs.send(actions[:2], [2, 0])
        with pytest.raises(AlreadyPendingCallError, match=r"env_ids \[0\] cannot be sent while they step"):
            envs.send(actions[:2], [0, 1])
        for call in (lambda: envs.step(actions), envs.reset, lambda: envs.call("env_id")):
            with pytest.raises(AlreadyPendingCallError, match="while 2 sub-environments step"):
                call()
        for wrong in ([3], [-1], [1, 1], []):
            with pytest.raises(ValueError, match="env_ids must be one or more different integers from 0 to 2"):
                envs.send(np.zeros(len(wrong), np.int64), wrong)
        assert sorted(envs.recv()[4]["env_id"].tolist()) == [0, 2]
        with pytest.raises(NoAsyncCallError, match="only 0 are requested"):
            envs.recv()
        assert envs.step(actions)[1].tolist() == [0.0, ledger_reward(1, 0, 1), ledger_reward(2, 0, 2)]


@INLINE_OR_NOT
def test_env_ids_must_be_integers(num_workers: int) -> None:
    with parallel(ledgers(N), num_workers=num_workers, batch_size=1) as envs:
        envs.reset(seed=0)
        for wrong in (1.0, [1.5], np.ones(1), [True], np.ones(1, bool), "1", [None], {1}, torch.ones(1)):
            with pytest.raises(ValueError, match="env_ids must be one or more different integers from 0 to 2, got"):
                envs.send(np.zeros(1, np.int64), wrong)
        for right in (1, np.uint8([1]), (1,), range(1, 2), torch.tensor([1])):
            envs.send(np.zeros(1, np.int64), right)
            assert envs.recv()[4]["env_id"].tolist() == [1]


def test_actions_of_several_dtypes_may_be_pending_together() -> None:
    warnings.simplefilter("ignore", UserWarning)
    space = spaces.Box(-1, 1, (1,), np.float32)
    with parallel(talkers(acted=space), num_workers=2, batch_size=3) as envs:
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


def test_workers_are_set_up_and_cleaned_up_in_process_too(tmp_path: Any) -> None:
    options = WorkerOptions(
        setup_fn=lambda worker: (tmp_path / f"up {worker}").touch(),
        cleanup_fn=lambda worker: (tmp_path / f"down {worker}").touch(),
    )
    for num_workers in (0, 2):
        with parallel(talkers(), num_workers=num_workers, workers=options) as envs:
            envs.reset(seed=0)
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {f"{what} {worker}" for what in ("up", "down") for worker in range(max(1, num_workers))}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_with_statement_closes_it(num_workers: int) -> None:
    with ParallelVectorEnv([lambda: LedgerEnv(0)], num_workers=num_workers) as envs:
        assert envs.reset()[0].tolist() == [[0, 0, 0]]
    assert envs.closed
