"""Check that tensors are stored in plain data and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parenv import ConfigurationError, load_checkpoint, save_checkpoint
from parenv.errors import ProtocolError
from parenv.protocol.data import pack, unpack
from parenv.protocol.tensors import with_tensors, without_tensors

TENSORS = [
    torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    torch.zeros(0, 4),
    torch.tensor(3.5, dtype=torch.float64),
    torch.tensor([True, False]),
    torch.ones(3, 2, dtype=torch.float16).T,
    torch.ones(2, requires_grad=True),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}")
def test_a_tensor_of_any_dtype_and_shape_is_restored(tensor: torch.Tensor, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint", {"in": [1, (tensor, "text")], 2: tensor})
    found = load_checkpoint(tmp_path / "checkpoint")
    assert found["in"][0] == 1
    assert found["in"][1][1] == "text"
    for one in (found["in"][1][0], found[2]):
        assert one.dtype == tensor.dtype
        assert one.shape == tensor.shape
        assert torch.equal(one, tensor.detach())
        one += 1 if one.dtype != torch.bool else one


def test_values_that_are_not_data_are_passed_to_a_function_of_the_caller() -> None:
    def refused(value: Any, where: str) -> Any:
        raise TypeError(where)

    with pytest.raises(TypeError, match=r"^state\['a'\]\[1\]$"):
        without_tensors({"a": [torch.zeros(1), 3]}, "state", refused)


def test_tensors_of_former_checkpoints_are_read() -> None:
    text, buffers = pack({"weights": {"torch.Tensor": np.arange(3.0)}})
    assert torch.equal(with_tensors(unpack(text, buffers))["weights"], torch.arange(3.0, dtype=torch.float64))


@pytest.mark.parametrize("name", ["<f8", "Tensor", "load", "hub", "__name__"])
def test_the_dtype_of_a_tensor_must_be_the_name_of_a_torch_dtype(name: str, tmp_path: Path) -> None:
    state = {"torch.Tensor": [name, [2], np.zeros(16, np.uint8)]}
    with pytest.raises(ProtocolError, match=f"^the dtype of a tensor must be one of torch, got '{name}'$"):
        with_tensors(state)
    save_checkpoint(tmp_path / "checkpoint", {"weights": state})
    with pytest.raises(ConfigurationError, match=rf"must be one of torch, got '{name}'\. Load a checkpoint"):
        load_checkpoint(tmp_path / "checkpoint")
