"""Where members stand: to take one from there, or to put it there, copies its weights and its optimizer once."""

from __future__ import annotations

import mmap
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from parenv import Member
from parenv.memory.member_places import MemberPlaces
from parenv.memory.status_slot import header_bytes
from parenv.worker.member import restore, state_of

WIDTH = 700


def taught() -> Member:
    agent = torch.nn.Linear(WIDTH, WIDTH)
    member = Member(agent, optimizer=torch.optim.Adam(agent.parameters()), noise=np.zeros((WIDTH, WIDTH)))
    agent(torch.ones(1, WIDTH)).sum().backward()
    member.optimizer.step()
    return member


def bytes_taken(do: Callable[[], Any]) -> int:
    """The most that Python and numpy have held at once meanwhile, beside what there was."""
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def places() -> MemberPlaces:
    return MemberPlaces(1, mmap.mmap(-1, header_bytes(1) + 20_000_000))


def test_a_member_is_written_without_a_copy_beside_the_one_in_its_place(places: MemberPlaces) -> None:
    member = taught()
    nbytes = places.write(0, state_of(member))
    assert nbytes > 4 * 3 * WIDTH**2 + 8 * WIDTH**2
    assert bytes_taken(lambda: places.write(0, state_of(member))) < nbytes / 50


def test_a_member_is_read_by_one_copy_that_becomes_its_memory(places: MemberPlaces) -> None:
    nbytes, other = places.write(0, state_of(taught())), taught()
    assert nbytes < bytes_taken(lambda: restore(other, places.read(0))) < 1.02 * nbytes
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


def test_what_is_read_does_not_follow_what_is_written_later(places: MemberPlaces) -> None:
    member, other = taught(), taught()
    places.write(0, state_of(member))
    restore(other, places.read(0))
    before = other.policy.weight.clone()
    with torch.no_grad():
        member.policy.weight += 1
    places.write(0, state_of(member))
    assert torch.equal(other.policy.weight, before)
