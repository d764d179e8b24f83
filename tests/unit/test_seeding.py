"""Check that each random stream has its own seed, and that random states do not affect each other."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest
import torch

from parenv.crew.partition import split
from parenv.envs.seeding import RandomState, environment_seed, evaluation_seed, worker_seed


def draw() -> tuple[Any, ...]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5, 8])
def test_the_seed_of_a_sub_environment_does_not_depend_on_the_number_of_workers(num_workers: int) -> None:
    shares = split(8, num_workers)
    firsts = [sum(shares[:worker]) for worker in range(num_workers)]
    seeds = [environment_seed(7, first + i) for first, share in zip(firsts, shares, strict=True) for i in range(share)]
    assert seeds == [environment_seed(7, env_id) for env_id in range(8)]


def test_seeds_are_those_of_the_last_release() -> None:
    assert [environment_seed(0, env_id) for env_id in range(3)] == [3678467582, 1246905493, 1583241576]
    assert environment_seed(1 << 63, 5, generation=1) == 2917082481
    assert (worker_seed(0, 0), evaluation_seed(0, 0, 0)) == (476252562, 2103646603)


def test_every_purpose_and_index_and_generation_has_a_seed_of_its_own() -> None:
    seeds = [
        function(seed, index, generation)
        for function in (environment_seed, worker_seed, evaluation_seed)
        for seed in (0, 1, 1 << 63)
        for index in range(20)
        for generation in range(3)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(type(seed) is int and 0 <= seed < 1 << 32 for seed in seeds)


def test_a_random_state_does_not_change_the_global_ones() -> None:
    outer = RandomState(1)
    with outer:
        expected = [draw() for _ in range(3)]
    with RandomState(1):
        got = [draw()]
        state = RandomState(2)
        got.append(draw())
        with state:
            draw()
        got.append(draw())
    assert got == expected


def test_a_random_state_continues_its_sequence() -> None:
    with RandomState(3):
        expected = [draw() for _ in range(3)]
    state, got = RandomState(3), []
    for _ in range(3):
        draw()
        with state:
            got.append(draw())
        draw()
    assert got == expected


def test_different_seeds_give_different_streams() -> None:
    draws = []
    for seed in range(3):
        with RandomState(seed):
            draws.append(draw())
    assert all(len(set(column)) == 3 for column in zip(*draws, strict=True))


def test_a_random_state_restores_the_global_ones_after_an_exception() -> None:
    with RandomState(4):
        expected = draw()
    with RandomState(4):
        with contextlib.suppress(ZeroDivisionError), RandomState(5):
            raise ZeroDivisionError(draw())
        assert draw() == expected


def test_random_states_nest() -> None:
    with RandomState(6):
        expected = [draw(), draw()]
    one, other = RandomState(6), RandomState(7)
    with one:
        got = [draw()]
        with other:
            draw()
        got.append(draw())
    assert got == expected
