"""Check that infos that are written as rows of bytes are read as Gymnasium merges the same infos."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from comparison import assert_same
from gymnasium.vector import VectorEnv
from hypothesis import example, given, settings

from parenv.memory import step_buffer_infos as module
from parenv.memory.kinds import is_kind
from parenv.memory.step_buffer_infos import InfoReader, InfoWriter
from parenv.protocol.data import pack, unpack
from parenv.vector.results import add_info

N, WORKERS, INFO_BYTES = 4, 2, 256
NUMBERS = st.integers(-9, 9) | st.sampled_from([2.5, -1.0]) | st.booleans()
SCALARS = st.builds(
    lambda kind, number: kind(abs(number)),
    st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.int64, np.uint16, np.bool_]),
    NUMBERS,
)
ARRAYS = st.builds(
    lambda shape, dtype, number: np.full(shape, abs(number), dtype),
    st.sampled_from([(), (2,), (2, 3), (3,), (0,)]),
    st.sampled_from(["<f4", "<f8", "<i8", "?", ">i2"]),
    NUMBERS,
)
LEAVES = st.none() | NUMBERS | SCALARS | ARRAYS | st.text(max_size=2) | st.lists(st.integers(0, 3), max_size=2)
KEYS = st.sampled_from(["a", "b", "final_obs", "final_info"])
INFOS = st.recursive(
    st.dictionaries(KEYS, LEAVES, max_size=3), lambda inner: st.dictionaries(KEYS, LEAVES | inner, max_size=3)
)
ROWS = st.lists(INFOS | st.just({}), min_size=N, max_size=N)


class Wire:
    """Info writers of two workers and the reader of the main process."""

    def __init__(self, info_bytes: int = INFO_BYTES) -> None:
        self.kinds, infos = np.zeros(N, "<i4"), np.zeros((N, info_bytes), np.uint8)
        self.writers = [
            InfoWriter(self.kinds, infos, lambda i, worker=worker: 1 + worker + i * WORKERS)
            for worker in range(WORKERS)
        ]
        self.reader = InfoReader(self.kinds, infos, add_info)
        self.by_message: dict[int, Any] = {}

    def send(self, each: list[Any]) -> None:
        self.kinds[:] = 0
        for env_id, info in enumerate(each):
            writer = self.writers[env_id * WORKERS // N]
            if info and not writer.write(env_id, info):
                self.by_message[env_id] = copy.deepcopy(info)
            for number, kind in writer.new:
                assert is_kind(unpack(*pack(kind)))
                self.reader.learn(number, kind)
            writer.new = []

    def read(self, env_ids: Any = None) -> Any:
        return self.reader.read(env_ids, self.by_message)


def by_gymnasium(each: list[Any]) -> Any:
    envs: Any = VectorEnv()
    envs.num_envs = len(each)
    infos: dict[str, Any] = {}
    for i, info in enumerate(each):
        infos = envs._add_info(infos, info, i)
    return infos


def assert_as_gymnasium(wire: Wire, each: list[Any], env_ids: Any = None) -> None:
    """Check that the reader returns what Gymnasium returns for the same infos, or all keys if Gymnasium fails."""
    chosen = each if env_ids is None else [each[env_id] for env_id in env_ids]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = by_gymnasium(copy.deepcopy(chosen))
        except Exception:
            infos = wire.read(env_ids)
            for key in {key for info in chosen for key in info}:
                assert infos[f"_{key}"].tolist() == [key in info for info in chosen]
            return
        assert_same(wire.read(env_ids), wanted)


@given(st.lists(ROWS, min_size=1, max_size=3))
@example([[{"a": 1}, {"a": 2.5}, {"a": None}, {}]])
@example([[{"a": None}, {"a": np.float32(1)}, {"a": np.zeros(3)}, {"a": 1}]])
@example([[{"a": np.zeros((2, 3))}, {"a": np.array([1.0, 2, 3])}, {"a": np.array([4.0, 5, 6])}, {"a": 7}]])
@example([[{"final_obs": np.array(3)}, {"final_obs": (1, 2)}, {"final_obs": {"a": (np.int8(1), {})}}, {"a": {}}]])
@example([[{"a": {"b": 1}}, {"a": 2}, {"a": {}}, {}]])
@example([[{"a": 2}, {"a": {"b": 1}}, {}, {}]])
@settings(max_examples=150, derandomize=True)
def test_infos_are_read_as_gymnasium_merges_them(steps: list[list[Any]]) -> None:
    wire = Wire()
    for each in steps:
        wire.send(each)
        assert_as_gymnasium(wire, each)
        assert_as_gymnasium(wire, each, np.array([2, 0, 3]))


def test_flat_infos_of_one_kind_need_no_message() -> None:
    wire = Wire()
    for step in range(3):
        wire.send([{"x": float(i), "y": step, "z": np.full(3, i, np.float32)} for i in range(N)])
        assert not wire.by_message
        assert_same(wire.read()["z"], np.repeat(np.arange(N, dtype=np.float32), 3).reshape(N, 3))


def test_read_infos_do_not_change_when_more_are_written() -> None:
    wire = Wire()
    each = [{"x": i, "final_obs": np.full(2, i), "in": {"y": np.full(2, i)}} for i in range(N)]
    wire.send(each)
    got = wire.read(), wire.read(np.array([1, 2]))
    wire.send([{"x": 9, "final_obs": np.full(2, 9), "in": {"y": np.full(2, 9)}}] * N)
    assert_same(got[0], by_gymnasium(each))
    assert_same(got[1], by_gymnasium(each[1:3]))


@pytest.mark.parametrize(
    "info",
    [
        {"x": 1 << 70},
        {"x": "text"},
        {"x": [1]},
        {1: 2},
        {"x": np.zeros(100)},
        {"x": {"y": object}},
        {"x": np.array("s")},
    ],
    ids=repr,
)
def test_infos_that_do_not_fit_are_sent_by_message(info: Any) -> None:
    wire = Wire()
    wire.send([{"x": 1}, info, {}, {"x": 3}])
    assert list(wire.by_message) == [1]
    assert wire.kinds.tolist()[1:3] == [-1, 0]


def test_kinds_beyond_the_limit_are_sent_by_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KINDS", 2)
    wire = Wire()
    for key in "abcd":
        each = [{key: 1.0}, {}, {}, {"x": 2}]
        wire.send(each)
        assert_as_gymnasium(wire, each)
    assert list(wire.by_message) == [0]


def test_infos_may_fill_a_row_completely() -> None:
    wire = Wire(info_bytes=24)
    wire.send([{"x": 1.0, "y": np.zeros(2)}, {"x": 1.0, "y": np.zeros(3)}, {}, {}])
    assert list(wire.by_message) == [1]
