"""Check that ``all_reduce_gradients`` averages gradients over two processes of torch.distributed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from parenv.learning import all_reduce_gradients

BEGIN = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from parenv.errors import ConfigurationError
from parenv.learning import all_reduce_gradients

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(0)
module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
torch.manual_seed(1 + rank)
"""
# A thread of gloo that frees a tensor while the interpreter is finalized aborts the process (pytorch/pytorch#190489).
# destroy_process_group() leaves these threads running if torch._dynamo is imported, which every optimizer does.
END = """
import os
torch.save(result, f"{folder}/{rank}")
dist.destroy_process_group()
os._exit(0)
"""


def on_two_ranks(folder: Path, script: str) -> list[dict]:
    """Run a script on both ranks, and return the value of ``result`` on each of them."""
    command = [sys.executable, "-X", "faulthandler", "-c", BEGIN + script + END]
    ranks = [
        subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=250)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0, 0], "\n".join(errors)
    return [torch.load(folder / str(rank)) for rank in range(2)]


@pytest.mark.more
def test_every_rank_gets_the_mean_in_place_even_if_only_one_rank_has_a_gradient(tmp_path: Path) -> None:
    first, second = on_two_ranks(
        tmp_path,
        """
calls = []
all_reduce = dist.all_reduce
dist.all_reduce = lambda tensor, **options: (calls.append(str(tensor.dtype)), all_reduce(tensor, **options))
module.single = nn.Parameter(torch.ones(4))
module.unused = nn.Parameter(torch.ones(4, 2).double())
for parameter in module.parameters():
    if parameter is not module.unused and not (rank == 1 and parameter is module[0].weight):
        parameter.grad = torch.randn_like(parameter)
module[2].weight.grad = module[2].weight.grad.t().contiguous().t()
before = {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
places = {name: p.grad.data_ptr() for name, p in module.named_parameters() if p.grad is not None}
all_reduce_gradients(module)
after = {name: p.grad for name, p in module.named_parameters()}
in_place = all(after[name].data_ptr() == place for name, place in places.items())
result = {"before": before, "after": after, "in_place": in_place, "calls": calls}
""",
    )
    assert first["in_place"]
    assert second["in_place"]
    assert first["calls"] == second["calls"] == ["torch.float32", "torch.float64"]
    assert first["after"]["unused"] is None
    assert second["after"]["unused"] is None
    assert second["before"]["0.weight"] is None
    for name in first["before"].keys() - {"unused"}:
        shares = [rank["before"][name] for rank in (first, second) if rank["before"][name] is not None]
        tolerance = 1e-12 if shares[0].dtype == torch.float64 else 1e-6
        for rank in (first, second):
            torch.testing.assert_close(rank["after"][name], sum(shares) / 2, rtol=tolerance, atol=tolerance)


@pytest.mark.more
def test_replicas_that_learn_from_different_data_stay_bitwise_identical(tmp_path: Path) -> None:
    first, second = on_two_ranks(
        tmp_path,
        """
optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
begin = [p.detach().clone() for p in module.parameters()]
for _ in range(20):
    inputs = torch.randn(7, 3, dtype=torch.float64)
    optimizer.zero_grad()
    (module(inputs) - inputs[:, :2]).square().mean().backward()
    all_reduce_gradients(module)
    optimizer.step()
result = {"begin": begin, "end": [p.detach() for p in module.parameters()], "inputs": inputs}
""",
    )
    assert not torch.equal(first["inputs"], second["inputs"])
    for begin, one, other in zip(first["begin"], first["end"], second["end"], strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, begin)


@pytest.mark.more
def test_different_parameters_are_an_error_on_every_rank_and_checked_only_in_the_first_call(tmp_path: Path) -> None:
    results = on_two_ranks(
        tmp_path,
        """
gathers = []
all_gather = dist.all_gather
dist.all_gather = lambda *arguments, **options: (gathers.append(1), all_gather(*arguments, **options))
same = nn.Linear(3, 2)
same.weight.grad, same.bias.grad = torch.ones(2, 3), torch.ones(2)
all_reduce_gradients(same)
all_reduce_gradients(same)
try:
    all_reduce_gradients(nn.Linear(3, 2 + rank))
except ConfigurationError as error:
    result = {"message": str(error), "gathers": len(gathers)}
""",
    )
    for rank, result in enumerate(results):
        assert "same parameters on every rank, but these ranks differ from rank 0: [1]" in result["message"]
        assert f"Rank {rank} has 2: weight ({2 + rank}, 3) torch.float32" in result["message"]
        assert result["gathers"] == 2


@pytest.mark.parametrize("backend", [None, "gloo"])
def test_a_single_process_keeps_its_gradients(tmp_path: Path, backend: str | None) -> None:
    module = nn.Linear(2, 1)
    module.weight.grad = torch.ones(1, 2)
    if backend:
        torch.distributed.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        all_reduce_gradients(module)
    finally:
        if backend:
            torch.distributed.destroy_process_group()
    assert torch.equal(module.weight.grad, torch.ones(1, 2))
    assert module.bias.grad is None
