"""Check that functions that are pickled for workers carry their file's name and their source lines."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from parenv import TorchPolicy
from parenv.process.user_code import dumps

SOURCE = """# a comment
def first():
    return [
        1,
    ]

def second():
    return 2
"""


def function(name: str, path: Path) -> Callable[[], Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, path, "exec"), names)
    return names[name]  # type: ignore[no-any-return]


def test_a_function_carries_its_source_lines_if_its_file_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SOURCE)
    data = [dumps(function(name, path)) for name in ("second", "first")]
    path.unlink()
    linecache.checkcache(str(path))
    assert linecache.getlines(str(path)) == []
    try:
        second, first = map(cloudpickle.loads, data)
        assert (first(), second()) == ([1], 2)
        assert first.__code__.co_filename == second.__code__.co_filename == str(path)
        linecache.checkcache(str(path))
        lines = SOURCE.splitlines(keepends=True)
        assert linecache.getlines(str(path)) == ["\n", *lines[1:5], "\n", *lines[6:]]
    finally:
        linecache.cache.pop(str(path), None)


def test_source_lines_that_are_available_are_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SOURCE)
    cloudpickle.loads(dumps(function("first", path)))
    path.write_text("# edited\n")
    linecache.checkcache(str(path))
    assert linecache.getlines(str(path)) == ["# edited\n"]


@pytest.mark.parametrize("filename", ["<string>", "", "no/such/file.py"])
def test_a_function_without_a_file_can_be_pickled(filename: str) -> None:
    assert cloudpickle.loads(dumps(function("second", Path(filename))))() == 2


class Module(torch.nn.Module):
    """Module of any layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.me = [self]

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layer(observations)  # type: ignore[no-any-return]


class Scripted(torch.nn.Module):
    """Module with another method than ``forward`` for TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layer(observations)  # type: ignore[no-any-return]

    @torch.jit.export
    def act(self, observations: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
        return self.layer(observations).where(action_mask, -1e8).argmax(-1)


def linear() -> torch.nn.Linear:
    return torch.nn.Linear(4, 4)


def twice() -> torch.nn.Module:
    return weight_norm(spectral_norm(linear()), "bias", dim=None)


PARAMETRIZED: dict[str, Callable[[], torch.nn.Module]] = {
    "spectral_norm": lambda: spectral_norm(linear()),
    "orthogonal": lambda: orthogonal(linear()),
    "weight_norm": lambda: weight_norm(linear()),
    "two tensors": twice,
    "a child that refers to its parent": lambda: Module(Module(orthogonal(linear()))),
    "LSTM": lambda: spectral_norm(torch.nn.LSTM(4, 4), "weight_hh_l0"),
}


@pytest.mark.parametrize("make", PARAMETRIZED.values(), ids=PARAMETRIZED)
def test_a_parametrized_module_is_pickled_with_its_parametrizations(make: Callable[[], torch.nn.Module]) -> None:
    module = make().eval()
    next(module.parameters()).requires_grad_(False)
    copied = cloudpickle.loads(dumps(module))
    names = [(name, tensor.requires_grad) for name, tensor in module.named_parameters()]
    assert [(name, tensor.requires_grad) for name, tensor in copied.named_parameters()] == names
    observations = torch.randn(3, 4)
    assert equal(copied(observations), module(observations))
    with torch.no_grad():
        for tensor in copied.parameters():
            tensor.mul_(3).add_(0.5)
    assert not equal(copied(observations), module(observations))
    again = cloudpickle.loads(dumps(copied))
    assert equal(again(observations), copied(observations))
    assert type(copied).__name__ == type(module).__name__


def test_a_restored_parametrization_can_be_removed_and_set() -> None:
    module = weight_norm(linear())
    copied = cloudpickle.loads(dumps(module))
    copied.weight = torch.eye(4)
    assert torch.allclose(copied.weight, torch.eye(4))
    parametrize.remove_parametrizations(copied, "weight")
    assert type(copied) is torch.nn.Linear
    assert isinstance(module.weight, torch.Tensor)
    assert parametrize.is_parametrized(module)


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, tuple):
        return all(map(equal, first, second))
    return bool(torch.equal(first, second))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace", "child", "frozen", "function", "closure"])
def test_torchscript_is_pickled_by_its_own_format(kind: str) -> None:
    module = linear().eval()
    next(module.parameters()).requires_grad_(False)
    script: Any = torch.jit.trace(module, torch.zeros(2, 4)) if kind == "trace" else torch.jit.script(module)
    double = torch.jit.script(doubled)
    made: Any = {
        "child": Module(script),
        "frozen": torch.jit.freeze(script) if kind == "frozen" else None,
        "function": double,
        "closure": lambda value: double(value),
    }.get(kind, script)
    copied, observations = cloudpickle.loads(dumps(made)), torch.randn(2, 4)
    assert equal(copied(observations), made(observations))
    assert isinstance(copied, torch.nn.Module) == isinstance(made, torch.nn.Module)
    if isinstance(made, torch.nn.Module):
        assert getattr(copied, "training", None) == getattr(made, "training", None)
        names = [(name, tensor.requires_grad) for name, tensor in made.named_parameters()]
        assert [(name, tensor.requires_grad) for name, tensor in copied.named_parameters()] == names


def doubled(value: torch.Tensor) -> torch.Tensor:
    return value * 2


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_parameters_of_a_restored_torchscript_method_are_known() -> None:
    script = torch.jit.script(Scripted())
    for module in (script, cloudpickle.loads(dumps(script))):
        assert TorchPolicy(module, "act", ("actions",)).infos_taken() == {"action_mask"}
        assert TorchPolicy(module, "forward", ("actions",)).infos_taken() == set()
