"""Check that weights that one module publishes in shared memory are loaded into another module."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nets import Wrapped
from torch import nn

from parenv.errors import ConfigurationError
from parenv.experience.gradient import GradientLayout
from parenv.policy import snapshots
from parenv.policy.policy import TorchPolicy
from parenv.policy.snapshots import WeightsReader, WeightsWriter, flat_layout, module_of

OFFSET, PLACES = 192, 3


class Everything(nn.Module):
    """Module with all kinds of parameters and buffers, including those that are missing in its state dict."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return (torch.rand(shape, generator=generator) * 100).to(dtype)

        self.embedding = nn.Parameter(random(5, 3))
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding
        self.wide = nn.Parameter(random(7, dtype=torch.float64))
        self.narrow = nn.Parameter(random(3, 1, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(random(2), requires_grad=False)
        self.empty = nn.Parameter(random(0, 4))
        self.transposed = nn.Parameter(random(4, 2).T)
        self.register_buffer("count", random(dtype=torch.int64))
        self.register_buffer("scale", random())
        self.register_buffer("mask", random(9) > 50)
        self.register_buffer("running", random(2, 2), persistent=False)
        self.norm = nn.BatchNorm1d(3)
        with torch.no_grad():
            self.norm.running_mean += random(3)


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def same(one: nn.Module, other: nn.Module, but: tuple[str, ...] = ()) -> bool:
    pairs = [(tensors(one)[name], tensors(other)[name]) for name in tensors(one) if name not in but]
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def memory() -> Any:
    return bytearray(OFFSET + PLACES * flat_layout(Everything(0))[1])


@pytest.fixture
def writer(memory: Any) -> WeightsWriter:
    return WeightsWriter(Everything(0), memory, OFFSET, PLACES)


def reader(module: nn.Module, memory: Any) -> WeightsReader:
    return WeightsReader(module, memory, OFFSET, "cpu")


def test_a_worker_loads_the_weights_published_at_each_place(memory: Any, writer: WeightsWriter) -> None:
    for place in range(PLACES):
        writer.write(Everything(10 + place), place, None)
    worker = Everything(0)
    weights = reader(worker, memory)
    assert same(worker, Everything(0))
    for place in (1, 0, 2, 1):
        weights.load(place)
        assert same(worker, Everything(10 + place))


def test_nothing_is_written_outside_the_places(memory: Any, writer: WeightsWriter) -> None:
    memory[:OFFSET] = b"\xaa" * OFFSET
    writer.write(Everything(1), 0, None)
    one = bytes(memory)
    writer.write(Everything(2), 2, None)
    block = (len(memory) - OFFSET) // PLACES
    assert bytes(memory[:OFFSET]) == b"\xaa" * OFFSET
    assert bytes(memory[OFFSET : OFFSET + 2 * block]) == one[OFFSET : OFFSET + 2 * block]


def test_tensors_do_not_overlap() -> None:
    layout, nbytes = flat_layout(Everything(0))
    assert len({tensor.name for tensor in layout}) == len(layout) == len(dict(Everything(0).named_parameters())) + 7
    end = 0
    for tensor in layout:
        assert tensor.offset >= end
        assert tensor.offset % 64 == 0
        end = tensor.offset + tensor.nbytes
    assert end <= nbytes


def test_loaded_weights_do_not_share_the_memory(memory: Any, writer: WeightsWriter) -> None:
    writer.write(Everything(1), 0, None)
    worker = Everything(0)
    weights = reader(worker, memory)
    weights.load(0)
    writer.write(Everything(2), 0, None)
    assert same(worker, Everything(1))
    with torch.no_grad():
        worker.wide += 1
    weights.load(0)
    assert same(worker, Everything(2))


def test_tied_parameters_stay_tied(memory: Any, writer: WeightsWriter) -> None:
    writer.write(Everything(1), 0, None)
    worker = Everything(0)
    reader(worker, memory).load(0)
    assert worker.head.weight is worker.embedding
    assert torch.equal(worker.head(torch.eye(3)), Everything(1).embedding.T)


def test_tensors_missing_in_a_state_dict_are_copied_from_an_earlier_place(memory: Any, writer: WeightsWriter) -> None:
    writer.write(Everything(1), 0, None)
    writer.write(Everything(2).state_dict(), 1, 0)
    worker = Everything(0)
    reader(worker, memory).load(1)
    assert same(worker, Everything(2), but=("running",))
    assert torch.equal(worker.running, Everything(1).running)


def test_tensors_that_require_gradients_are_published_as_they_are(memory: Any, writer: WeightsWriter) -> None:
    source = Everything(1)
    writer.write(dict(source.named_parameters()) | dict(source.named_buffers()), 0, None)
    assert source.embedding.requires_grad
    assert source.embedding.grad_fn is None


def test_a_worker_may_act_and_compute_gradients_with_loaded_weights(memory: Any, writer: WeightsWriter) -> None:
    writer.write(Everything(1), 0, None)
    worker = Everything(0)
    reader(worker, memory).load(0)
    worker.head(torch.ones(3)).sum().backward()
    assert worker.embedding.grad is not None
    assert worker.frozen.requires_grad is False


def test_a_module_without_tensors_needs_no_memory() -> None:
    assert flat_layout(nn.ReLU()) == ((), 0)
    WeightsWriter(nn.ReLU(), bytearray(1), 0, 2).write(nn.ReLU(), 1, None)
    WeightsReader(nn.ReLU(), bytearray(1), 0, "cpu").load(1)


def renamed(module: Everything) -> nn.Module:
    module.other = module.wide
    del module.wide
    return module


def recast(name: str, change: Callable[[Any], Any]) -> Callable[[Everything], Any]:
    def changed(module: Everything) -> Any:
        state = copy.deepcopy(module.state_dict())
        state[name] = change(state[name])
        return state

    return changed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (renamed, r"\['wide'\] are missing and \['other'\] are unexpected"),
        (lambda module: {}, r"\['embedding', 'wide'.*'norm.num_batches_tracked'\] are missing and \[\] are unexpected"),
        (lambda module: nn.DataParallel(module), r"\['embedding'.* are missing and \['module.embedding'"),
        (recast("wide", lambda t: t[:3]), r"'wide' must have shape \(7,\) .*, got \(3,\) and torch.float64"),
        (
            recast("wide", lambda t: t.float()),
            r"'wide' must have shape \(7,\) and dtype torch.float64 .* got \(7,\) and torch.float32",
        ),
        (recast("count", lambda t: t[None]), r"'count' must have shape \(\) and dtype torch.int64 .*, got \(1,\)"),
    ],
    ids=["renamed", "nothing", "wrapped", "shape", "dtype", "dimension"],
)
def test_weights_that_do_not_fit_the_policy_are_refused_and_not_written(
    memory: Any, writer: WeightsWriter, change: Callable[[Everything], Any], reason: str
) -> None:
    before = bytes(memory)
    with pytest.raises(ConfigurationError, match=reason):
        writer.write(change(Everything(1)), 0, None)
    assert bytes(memory) == before


def test_a_tensor_that_is_not_dense_cannot_be_published() -> None:
    module = nn.Module()
    module.register_buffer("sparse", torch.eye(3).to_sparse())
    with pytest.raises(ConfigurationError, match="the tensor 'sparse' of the policy must be dense"):
        flat_layout(module)


def test_the_module_of_a_policy_is_found() -> None:
    module = nn.Linear(1, 1)
    assert module_of(module) is module
    assert module_of(TorchPolicy(module, "forward", ("actions",))) is module
    assert module_of(np.argmax) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("one_thread_bytes", [0, 1 << 30])
def test_large_and_small_tensors_are_copied_in_one_thread_or_several(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, one_thread_bytes: int
) -> None:
    monkeypatch.setattr(snapshots, "ONE_THREAD_BYTES", one_thread_bytes)
    module = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(2, 2)).to(dtype)
    memory = mmap.mmap(-1, flat_layout(module)[1])
    writer = WeightsWriter(module, memory, 0, 1)
    with torch.no_grad():
        module[0].weight.copy_(torch.randn(200, 300))
    # The first weight of this state dict is not contiguous.
    state = {**module.state_dict(), "0.weight": module[0].weight.detach().t().contiguous().t()}
    for source in (module, state):
        memory[:] = bytes(len(memory))
        writer.write(source, 0, None)
        assert all(torch.equal(value, module.state_dict()[name]) for name, value in writer.state_dict(0).items())


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules have the same tensors, whatever their names are."""
    return all(map(torch.equal, one.parameters(), other.parameters()))


PAIR = {
    "plain": lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)),
    "compiled": lambda: Wrapped(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))),
    "a compiled child": lambda: nn.Sequential(nn.Linear(4, 3), Wrapped(nn.Linear(3, 2))),
}


@pytest.mark.parametrize("of_pool", PAIR)
@pytest.mark.parametrize("published", PAIR)
@pytest.mark.parametrize("as_state", [False, True], ids=["module", "state dict"])
def test_a_compiled_module_and_a_plain_one_can_replace_each_other(of_pool: str, published: str, as_state: bool) -> None:
    first, module, worker = PAIR[of_pool](), PAIR[published](), PAIR[of_pool]()
    memory = bytearray(flat_layout(first)[1])
    writer = WeightsWriter(first, memory, 0, 1)
    writer.write(module.state_dict() if as_state else module, 0, None)
    WeightsReader(worker, memory, 0, "cpu").load(0)
    assert equal(worker, module)
    first.load_state_dict(writer.state_dict(0))
    assert equal(first, module)
    assert GradientLayout.of(first).names == GradientLayout.of(module).names
    assert len(GradientLayout.of(first).parameters(module, "the module")) == 4


def test_a_lazy_module_without_shapes_is_refused_with_the_way_out() -> None:
    module = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ConfigurationError) as caught:
        flat_layout(module)
    assert str(caught.value) == (
        "the tensor '0.weight' of the policy must have a shape, but its lazy module has not been called. Call the "
        "module once with a batch of observations before you pass it."
    )
    module(torch.zeros(1, 4))
    assert flat_layout(module)[0][0].shape == (2, 4)
