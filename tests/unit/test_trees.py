"""Check conversions and copies of leaves: arrays, tensors, lists and arrays of other libraries."""

from __future__ import annotations

import threading
import warnings
from collections import UserDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from parenv.memory.trees import (
    array_or_list,
    as_array,
    as_tensor,
    assign,
    concatenated,
    copy_as,
    copy_of,
    copy_with,
    deep_copy,
    leaves_in,
    map_trees,
    own_copy,
    to_tensors,
)

NUMBERS = np.arange(3, dtype=np.float32)


class Foreign:
    """Array of another library that supports only DLPack."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


def test_conversions_share_memory_on_the_cpu() -> None:
    for value in (NUMBERS, torch.from_numpy(NUMBERS), Foreign(NUMBERS)):
        assert np.shares_memory(as_array(value), NUMBERS)
        assert np.shares_memory(as_tensor(value).numpy(), NUMBERS)


def test_a_tensor_with_a_gradient_becomes_an_array() -> None:
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_a_read_only_array_becomes_a_tensor_with_memory_of_its_own() -> None:
    constant = np.broadcast_to(NUMBERS[0], 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert as_tensor(constant).tolist() == [0, 0, 0]
        to_tensors("cpu", False)(constant).fill_(1)
    assert constant.tolist() == [0, 0, 0]


def test_lists_become_arrays_only_if_asked_for() -> None:
    texts = ["a", "b"]
    assert as_array([1, 2]).tolist() == [1, 2]
    assert array_or_list(texts) is to_tensors("cpu", False)(texts) is texts
    assert to_tensors("cpu", False)(None) is None


@pytest.mark.parametrize("block", [np.zeros(3), torch.zeros(3)], ids=type)
@pytest.mark.parametrize("values", [NUMBERS[:2], torch.from_numpy(NUMBERS[:2]), Foreign(NUMBERS[:2])], ids=type)
def test_values_of_any_library_are_written_to_arrays_and_tensors(block: Any, values: Any) -> None:
    assign(block, slice(1, 3), values)
    assert block.tolist() == [0, 0, 1]


def test_lists_are_written_to_lists() -> None:
    block = [None, None]
    assign(block, slice(None), ["a", "b"])
    assert block == ["a", "b"]


def test_a_copy_shares_no_memory_and_keeps_its_kind() -> None:
    for value in (NUMBERS, torch.from_numpy(NUMBERS)):
        copied = copy_of(value)
        assert type(copied) is type(value)
        assert not np.shares_memory(as_array(copied), NUMBERS)
    assert copy_of(None) is None
    assert type(copy_of(np.float32(2))) is np.ndarray


def test_a_copy_of_lists_shares_their_items_unless_it_is_deep() -> None:
    rows = [[{"a": 1}], [{"a": 2}]]
    copied = copy_of(rows)
    assert copied == rows
    assert copied[0] is not rows[0]
    assert copied[0][0] is rows[0][0]
    assert deep_copy(rows)[0][0] is not rows[0][0]


def test_a_copy_of_containers_shares_their_objects() -> None:
    lock, frame = threading.Lock(), np.zeros(1)
    pair = namedtuple("pair", "a b")([1], lock)
    objects = np.empty(2, object)
    objects[:] = [lock, frame]
    words = defaultdict(list, {"a": [1]})
    given = {
        "list": [[1], lock], "pair": pair, "objects": objects, "words": words, "set": {1}, "deque": deque([[1]], 3),
        "tensor": torch.ones(2, requires_grad=True) * 2, "bytes": bytearray(b"a"), "user": UserDict(a=[1]),
    }  # fmt: skip
    given["list"].append(given["list"])
    copied: Any = own_copy(given)
    given["list"][0].append(2)
    given["list"].pop()
    pair.a.append(2)
    frame[:] = 1
    words["a"].append(2)
    given["set"].add(2)
    given["deque"][0].append(2)
    given["tensor"].data[:] = 0
    given["bytes"][:] = b"b"
    given["user"]["a"].append(2)
    assert copied["list"][:2] == [[1], lock]
    assert copied["list"][2] is copied["list"]
    assert copied["pair"] == type(pair)([1], lock)
    assert copied["objects"].tolist() == [lock, 0.0]
    assert copied["words"] == {"a": [1]}
    assert copied["words"].default_factory is list
    assert copied["set"] == {1}
    assert copied["deque"] == deque([[1]])
    assert copied["deque"].maxlen == 3
    assert copied["tensor"].tolist() == [2, 2]
    assert copied["bytes"] == b"a"
    assert copied["user"] == {"a": [1]}


def test_a_copy_with_other_rows_does_not_change_the_original() -> None:
    for value in (NUMBERS, torch.from_numpy(NUMBERS)):
        assert copy_with(value, [0, 1], value[1:]).tolist() == [1, 2, 2]
        assert value.tolist() == [0, 1, 2]


def test_a_copy_has_the_type_of_the_value_that_it_replaces() -> None:
    made = copy_as(torch.zeros(1, dtype=torch.float64), NUMBERS)
    assert made.dtype == torch.float64
    assert made.tolist() == [0, 1, 2]
    assert not np.shares_memory(copy_as(NUMBERS, NUMBERS), NUMBERS)


def test_joined_parts_keep_their_type() -> None:
    assert concatenated(NUMBERS, NUMBERS).tolist() == [0, 1, 2, 0, 1, 2]
    assert concatenated(torch.ones(1), torch.zeros(1)).tolist() == [1, 0]
    assert concatenated(["a"], ["b"]) == ["a", "b"]
    assert concatenated(NUMBERS, None) is None


def test_trees_are_walked_along_dicts_and_tuples() -> None:
    tree = {"a": (1, [2]), "b": None}
    assert map_trees(lambda one, other: (one, other), tree, tree) == {"a": ((1, 1), ([2], [2])), "b": (None, None)}
    assert list(leaves_in(tree)) == [(("a", 0), 1), (("a", 1), [2]), (("b",), None)]
