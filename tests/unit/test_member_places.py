"""Check that a member is copied only once when it is written to shared memory or read from there."""

from __future__ import annotations

import mmap
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from parenv.memory.member_places import MemberPlaces
from parenv.memory.status_slot import header_bytes
from parenv.population import Member
from parenv.worker.member import restore, state_of

WIDTH = 700


def trained_member() -> Member:
    agent = torch.nn.Linear(WIDTH, WIDTH)
    member = Member(agent, optimizer=torch.optim.Adam(agent.parameters()), noise=np.zeros((WIDTH, WIDTH)))
    agent(torch.ones(1, WIDTH)).sum().backward()
    member.optimizer.step()
    return member


def peak_bytes(do: Callable[[], Any]) -> int:
    """Return the peak memory that Python and numpy allocate during a call, in bytes."""
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def places() -> MemberPlaces:
    return MemberPlaces(1, mmap.mmap(-1, header_bytes(1) + 20_000_000))


def test_a_member_is_written_without_another_copy(places: MemberPlaces) -> None:
    member = trained_member()
    nbytes = places.write(0, state_of(member))
    assert nbytes > 4 * 3 * WIDTH**2 + 8 * WIDTH**2
    assert peak_bytes(lambda: places.write(0, state_of(member))) < nbytes / 50


def test_a_member_is_read_by_one_copy_that_becomes_its_memory(places: MemberPlaces) -> None:
    nbytes, other = places.write(0, state_of(trained_member())), trained_member()
    assert nbytes < peak_bytes(lambda: restore(other, places.read(0))) < 1.02 * nbytes
    state = places.read(0)
    restore(other, state)
    where = {name: one["torch.Tensor"][2].ctypes.data for name, one in state["tensors"].items()}
    assert {name: tensor.data_ptr() for name, tensor in other.policy.named_parameters()} == where
    assert all(address % 64 == 0 for address in where.values())
    moments = state["parts"]["optimizer"]["state"]
    for i, tensor in enumerate(other.policy.parameters()):
        for name in ("exp_avg", "exp_avg_sq"):
            memory = moments[i][name]["torch.Tensor"][2].ctypes.data
            assert other.optimizer.state[tensor][name].data_ptr() == memory
    assert np.shares_memory(other.noise, state["parts"]["noise"])


def test_a_restored_member_does_not_change_when_another_is_written(places: MemberPlaces) -> None:
    member, other = trained_member(), trained_member()
    places.write(0, state_of(member))
    restore(other, places.read(0))
    before = other.policy.weight.clone()
    with torch.no_grad():
        member.policy.weight += 1
    places.write(0, state_of(member))
    assert torch.equal(other.policy.weight, before)
