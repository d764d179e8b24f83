"""Check that environments in ordinary workers and in another interpreter return what Gymnasium's SyncVectorEnv does."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import assert_same
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from odd_envs import INFOS

from parenv import ObservationError, ParallelVectorEnv, WorkerOptions, entry_point
from parenv.process.served_envs import decode, encode, foreign

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.parametrize("python", [None, sys.executable], ids=["ordinary", "elsewhere"]),
]
FILE = str(Path(__file__).with_name("odd_envs.py"))


def odd(name: str = "", kind: str = "Odd") -> Any:
    return entry_point(f"{FILE}:{kind}", name=name) if kind == "Odd" else entry_point(f"{FILE}:{kind}")


def vector_env(made: Any, python: Any, count: int = 2, **more: Any) -> ParallelVectorEnv:
    more = {"num_workers": 1, **more}
    return ParallelVectorEnv([made] * count, workers=WorkerOptions(python=python), **more)


def results(envs: Any, steps: int = 5) -> list[Any]:
    with contextlib.closing(envs):
        return [envs.reset(seed=3), *(envs.step(np.zeros(envs.num_envs, int)) for _ in range(steps))]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", ["", "list", "step returns a list", "scalars"])
def test_results_equal_those_of_gymnasium(python: Any, name: str, mode: AutoresetMode) -> None:
    theirs = results(SyncVectorEnv([odd(name)] * 2, autoreset_mode=mode))
    assert_same(results(vector_env(odd(name), python, autoreset_mode=mode)), theirs)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_discrete_observations_and_final_observations_are_integers(python: Any, mode: AutoresetMode) -> None:
    made = odd(kind="Rolling")
    ours = results(vector_env(made, python, autoreset_mode=mode))
    assert_same(ours, results(SyncVectorEnv([made] * 2, autoreset_mode=mode)))
    if mode is AutoresetMode.SAME_STEP:
        assert type(ours[3][4]["final_obs"][0]) is int


def test_a_reset_may_return_none_as_the_info(python: Any) -> None:
    found = results(vector_env(odd("reset without info"), python))
    assert found[0][1] == {}
    assert found[2][1].tolist() == [2, 2]


def test_integers_that_do_not_fit_raise(python: Any) -> None:
    message = r"env_id 0.*must have shape \(2,\) and dtype uint8"
    with vector_env(odd("beyond"), python) as envs, pytest.raises(ObservationError, match=message):
        envs.reset()


@pytest.mark.parametrize("name", ["wide", "other dtype"])
def test_casts_have_the_values_of_gymnasium_and_a_warning(python: Any, name: str) -> None:
    wanted = results(SyncVectorEnv([odd(name)] * 2), 2)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert_same(results(vector_env(odd(name), python), 2), wanted)
    assert any("should have dtype float32" in str(one.message) for one in warned) == (name == "other dtype")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("complex", "z", np.complex128(1 + 2j)),
        ("sets", "seen", [[1, 3], [2]]),
        ("memory", "raw", b"abc"),
        ("text", "text", "x" * 5_000_000),
        ("items", "items", list(range(300_000))),
        ("array", "big", INFOS["array"]()["big"]),
        ("unshowable", "kept", np.int64(1)),
        ("cycle", "kept", np.int64(1)),
    ],
)
@pytest.mark.filterwarnings("ignore:infos")
def test_infos_of_every_kind_and_size_arrive(python: Any, name: str, key: str, value: Any) -> None:
    with vector_env(odd(name), python, 1) as envs:
        envs.reset()
        for _ in range(2):
            infos = envs.step([0])[4]
            got = infos[key][0]
            assert_same(bytes(got) if name == "memory" else got, value)
            assert "odd" not in infos
        assert envs.get_attr("t") == (2,)


def test_frames_arrive(python: Any) -> None:
    with vector_env(odd(), python) as envs:
        envs.reset()
        for frames in envs.call("render"):
            assert [(frame.shape, int(frame[0, 0, 0])) for frame in frames] == [((1080, 1920, 3), i) for i in range(12)]


def test_large_arguments_and_answers_arrive(python: Any) -> None:
    with vector_env(odd(), python, 1) as envs:
        values = [np.arange(70_000_000, dtype=np.uint8), "x" * 5_000_000, list(range(300_000)), {"a": (1, None, 2.5)}]
        for value in values:
            assert_same(envs.call("same", value)[0], value)


def test_an_exception_that_cannot_say_what_it_is_does_not_close_the_vector_env(python: Any) -> None:
    with vector_env(odd("unspeakable"), python) as envs:
        envs.reset()
        envs.step([0, 0])
        with pytest.raises(Exception, match="UnspeakableError, which cannot say what it is: RuntimeError"):
            envs.step([0, 0])
        assert envs.get_attr("t") == (2, 2)
        envs.reset()
        assert envs.step([0, 0])[1].tolist() == [1, 1]


def test_the_encoding_keeps_values_and_types(python: Any) -> None:
    values = [
        {
            "a": np.arange(6).reshape(2, 3),
            "b": (np.float32(1), np.bool_(True), np.str_("x")),
            3: [set(), frozenset({1})],
        },
        np.array(["a", "bc"]),
        np.array("2020-01-01", "M8[s]"),
        np.timedelta64(3, "ns"),
        np.zeros((0, 2)),
        np.array(2.5),
        (),
        -0.0,
        10**400,
        "\ud800",
    ]
    for value in values:
        assert_same(decode(encode(value, foreign)), value)
