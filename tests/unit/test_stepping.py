"""Check that single sub-environments are stepped into the rows of a rollout."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parenv.envs.stepping import EnvStepper
from parenv.envs.threaded_stepping import ThreadedStepper
from parenv.errors import ConfigurationError, ObservationError
from parenv.testing import LedgerEnv

from .scripted import Run, Scripted, audit, quiet, stepped

UNIT = spaces.Box(-1, 1, (2,))
X = np.zeros(2, np.float32)


@pytest.mark.parametrize("count", [1, 3])
def test_an_environment_may_reuse_and_change_its_observation_buffer(count: int) -> None:
    assert audit(EnvStepper([LedgerEnv(env_id) for env_id in range(count)], 0, quiet()), 6) > 5 * count


def test_a_nested_environment_may_reuse_and_change_its_observation_buffers() -> None:
    class Mutating(Scripted):
        def _show(self) -> Any:
            shown["a"][0][:] += 1
            return shown

    shown = {"a": (np.zeros(2, np.float32), np.int64(3))}
    space = spaces.Dict(a=spaces.Tuple([spaces.Box(0, 99, (2,)), spaces.Discrete(9)]))
    rollout = Run(EnvStepper([Mutating(space, [], length=2)], 0, quiet()), 4).rollout()
    assert rollout.observations["a"][0][:, 0, 0].tolist() == [1, 2, 4, 5]
    assert rollout.next_observations()["a"][0][:, 0, 1].tolist() == [2, 3, 5, 6]


BUFFER = np.zeros((1, 2), np.float32)


@pytest.mark.parametrize(
    ("space", "shown", "number"),
    [
        (spaces.Sequence(UNIT, stack=True), BUFFER, lambda value: value[0, 0]),
        (spaces.Sequence(UNIT), (BUFFER[0],), lambda value: value[0][0]),
        (spaces.Graph(UNIT, None), spaces.GraphInstance(BUFFER, None, None), lambda value: value.nodes[0, 0]),
        (spaces.OneOf([UNIT]), (0, BUFFER[0]), lambda value: value[1][0]),
    ],
    ids=["stacked sequence", "sequence", "graph", "one of"],
)
def test_an_environment_may_reuse_buffers_without_a_fixed_size(space: Any, shown: Any, number: Any) -> None:
    class Mutating(Scripted):
        def _show(self) -> Any:
            BUFFER[:] += 1
            return shown

    BUFFER[:] = 0
    rollout = Run(EnvStepper([Mutating(space, [], length=2)], 0, quiet()), 4).rollout()
    assert [number(row[0]) for row in rollout.observations] == [1, 2, 4, 5]
    assert [number(value) for value in rollout.final_observations] == [3, 6]


@pytest.mark.parametrize("shown_at", ["reset", "step", "end", "reset after the end"])
@pytest.mark.parametrize(
    ("space", "wrong", "message"),
    [
        (
            UNIT,
            np.zeros(3, np.float32),
            r"must have shape \(2,\) and dtype float32 like its space, got \(3,\) and float32",
        ),
        (UNIT, np.zeros(2, complex), r"got \(2,\) and complex128 \(complex128 cannot be cast to float32\). Convert it"),
        (UNIT, None, r"got \(\) and object"),
        (spaces.Discrete(3), 1.0, r"must have shape \(\) and dtype int64 like its space, got \(\) and float64"),
        (
            spaces.Dict(a=spaces.Dict(b=UNIT)),
            {"a": {"b": X[:1]}},
            r"observation\['a'\]\['b'\] must have .*, got \(1,\)",
        ),
        (spaces.Dict(a=UNIT, b=UNIT), {"a": X}, "does not have the structure of its space: KeyError 'b'"),
        (spaces.Tuple([UNIT, UNIT]), (X,), "does not have the structure of its space: IndexError"),
        (spaces.Tuple([UNIT, UNIT]), 3, "does not have the structure of its space: TypeError"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused_with_its_path(
    space: Any, wrong: Any, message: str, shown_at: str
) -> None:
    right = space.sample()
    before = {"reset": 0, "step": 2, "end": 4, "reset after the end": 5}[shown_at]
    with pytest.raises(ObservationError, match=message):
        stepped(Scripted(space, [right] * before + [wrong] + [right] * 9, length=4), 5)


@pytest.mark.parametrize(
    ("space", "shown", "kept"),
    [
        (UNIT, [0.25, -1], [0.25, -1.0]),
        (UNIT, (1, 0), [1.0, 0.0]),
        (UNIT, [np.float32(0.5), np.float32(1)], [0.5, 1.0]),
        (spaces.Box(-1, 1, ()), 0.5, 0.5),
        (spaces.Box(-1, 1, ()), np.float32(0.5), 0.5),
        (spaces.Box(-9, 9, (2,), np.int64), [3, -4], [3, -4]),
        (spaces.Box(0, 255, (2,), np.uint8), [3, 255], [3, 255]),
        (spaces.Discrete(5), 3, 3),
        (spaces.Discrete(5), np.int32(3), 3),
        (spaces.Discrete(5), np.uint8(3), 3),
        (spaces.Discrete(5), np.array(3), 3),
        (spaces.Discrete(5, dtype=np.uint8), np.int64(3), 3),
        (spaces.Discrete(5, dtype=np.uint8), 3, 3),
        (spaces.MultiBinary(3), [1, 0, 1], [1, 0, 1]),
        (spaces.MultiDiscrete([3, 3]), [1, 2], [1, 2]),
        (spaces.Text(5), "abc", "abc"),
    ],
    ids=repr,
)
def test_observations_of_other_types_that_fit_are_accepted(space: Any, shown: Any, kept: Any) -> None:
    writer = stepped(Scripted(space, [shown] * 9, length=2), 3)
    for value in (writer.observations[0][0][0], writer.observations[1][0][0], writer.finals[0][0]):
        assert np.asarray(value).tolist() == kept


@pytest.mark.parametrize(
    ("space", "wrong"),
    [(spaces.Dict(a=UNIT), {"a": [1.0, [2.0]]}), (UNIT, [1.0, [2.0]]), (UNIT, "ab"), (UNIT, {"a": X})],
)
def test_observations_that_are_not_arrays_are_refused(space: Any, wrong: Any) -> None:
    with pytest.raises(ObservationError):
        stepped(Scripted(space, [wrong]), 1)


def test_rewards_and_ends_are_stored_by_step_and_column() -> None:
    envs = [Scripted(spaces.Discrete(999), range(100 * i, 100 * i + 50), length=2 + i) for i in range(2)]
    run = Run(EnvStepper(envs, 0, quiet()), 4)
    rollout, ends = run.rollout(), run.writer.ends
    assert rollout.rewards.tolist() == [[0.5, 0.5], [1, 1], [1.5, 1.5], [2, 2]]
    assert rollout.terminated.tolist() == [[False, False], [True, False], [False, True], [True, False]]
    assert not rollout.truncated.any()
    assert [(end.step, end.column) for end in ends] == [(1, 0), (2, 1), (3, 0)]
    assert rollout.final_observations.tolist() == [2, 103, 5]
    assert (rollout.episodes.returns.tolist(), rollout.episodes.lengths.tolist()) == ([1.5, 3, 3.5], [2, 3, 2])
    assert all(end.seconds >= 0 for end in ends)


def test_seeds_go_to_the_first_reset_only() -> None:
    envs = [Scripted(spaces.Discrete(9), range(9), length=2) for _ in range(2)]
    Run(EnvStepper(envs, 0, quiet()), 4).rollout()
    assert [env.seeds for env in envs] == [[0, None, None], [1, None, None]]


@pytest.mark.parametrize(("at", "doing"), [(0, "reset"), (2, "step"), (4, "reset")])
def test_progress_names_the_sub_environment_that_raised(at: int, doing: str) -> None:
    calm, progress = Scripted(spaces.Discrete(9), [0] * 9), quiet()
    angry = Scripted(spaces.Discrete(9), [*[0] * at, ZeroDivisionError(), *[0] * 9], length=3)
    stepper = EnvStepper([calm, angry, calm], 10, progress)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        run = Run(stepper, 5)
        progress.begin("step")
        run.rollout()
    assert progress.describe() == f"{doing} of env_id 11"


def test_all_environments_must_have_the_same_spaces() -> None:
    envs = [Scripted(UNIT, []), Scripted(spaces.Discrete(3), [])]
    with pytest.raises(
        ConfigurationError, match=r"the same observation_space, but env_id 8 has Discrete\(3\), and env_id 7 has"
    ):
        EnvStepper(envs, 7, quiet())


def test_functions_can_be_called_on_chosen_sub_environments() -> None:
    stepper = EnvStepper([LedgerEnv(0), LedgerEnv(1), LedgerEnv(2)], 0, quiet())
    assert stepper.each("call", lambda env: int(env._buffer[0]), [2, 0]) == [2, 0]


@pytest.mark.parametrize(
    ("space", "batch", "single"),
    [
        (spaces.Discrete(4), [np.array([1, 3])], [np.int64(1), np.int64(3)]),
        (UNIT, [np.array([[0, 1], [1, 0]], np.float32)], [np.array([0, 1], "f4"), np.array([1, 0], "f4")]),
        (spaces.Text(3), [["a", "bc"]], ["a", "bc"]),
        (
            spaces.Dict(b=spaces.Discrete(4), a=spaces.Tuple([UNIT, spaces.Text(3)])),
            [np.array([2, 3]), np.array([[0, 1], [1, 0]], np.float32), ["x", "y"]],
            [{"a": (np.array([0, 1], "f4"), "x"), "b": 2}, {"a": (np.array([1, 0], "f4"), "y"), "b": 3}],
        ),
    ],
    ids=["discrete", "box", "text", "nested"],
)
def test_each_environment_gets_its_own_action(space: Any, batch: list[Any], single: list[Any]) -> None:
    envs = [Scripted(spaces.Discrete(9), range(9), action_space=space) for _ in range(2)]
    Run(EnvStepper(envs, 0, quiet()), 2).rollout(batch)
    for env, expected in zip(envs, single, strict=True):
        np.testing.assert_equal(env.actions, [expected, expected])
        assert space.contains(env.actions[0])
        assert type(env.actions[0]) is type(expected)


def test_an_environment_may_change_the_action_it_gets() -> None:
    class Clipping(Scripted):
        def step(self, action: Any) -> Any:
            action *= 0
            return super().step(action)

    rollout = Run(EnvStepper([Clipping(UNIT, [X] * 3, action_space=UNIT)], 0, quiet()), 2).rollout([X + 1])
    assert (rollout.actions == 1).all()


def test_threads_end_with_their_stepper_although_an_exception_was_not_taken() -> None:
    class Failing(LedgerEnv):
        def step(self, action: Any) -> Any:
            raise ValueError("dropped its cup")

    stepper: Any = ThreadedStepper([Failing(env_id) for env_id in range(2)], 0, quiet(), None, 2)
    threads, done = list(stepper._threads._threads), stepper._threads._done
    run = Run(stepper, 1)
    with pytest.raises(ValueError, match="dropped its cup"):
        run.rollout()
    done[1].acquire()  # The other environment has raised too. Its exception is not taken.
    del stepper, run
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_flags_of_an_end_survive_the_reset_of_an_environment_that_keeps_them() -> None:
    class Keeping(Scripted):
        ended = np.zeros((), bool)

        def reset(self, **options: Any) -> Any:
            self.ended[...] = False
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            observation, reward, terminated, _, info = super().step(action)
            self.ended[...] = terminated
            return observation, reward, self.ended, False, info

    writer = stepped(Keeping(UNIT, [X] * 5, length=2), 3)
    assert [(end.step, end.terminated, end.truncated) for end in writer.ends] == [(1, True, False)]
    assert writer.plain["terminated"][:, 0].tolist() == [False, True, False]
