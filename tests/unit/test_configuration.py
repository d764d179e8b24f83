"""Check the plan that is made from the arguments of a pool, and the errors for invalid arguments."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import re
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parenv import AsyncWorkerPool
from parenv.crew.partition import split
from parenv.crew.pickling import find_unpicklable, pickled
from parenv.errors import ConfigurationError, NotPicklableError
from parenv.pool.pool_plan import Plan, PoolArguments, make_plan
from parenv.process.cores import recommended_num_workers

LOCK = threading.Lock()
ARGUMENTS = inspect.signature(AsyncWorkerPool).parameters.values()
DEFAULTS = {one.name: one.default for one in ARGUMENTS if one.default is not one.empty}
GOOD = {"env_fn": "CartPole-v1", "policy": len, "num_envs": 6, "num_workers": 2, "rollout_length": 8, "seed": 3}


class Model:
    """Model that has no function for a batch of observations except ``predict``, as in Stable-Baselines3."""

    def predict(self, observations: Any) -> Any:
        return observations, None


def plan_with(**changes: Any) -> Plan:
    return make_plan(PoolArguments(**{**DEFAULTS, **GOOD, **changes}))


@given(st.integers(1, 500), st.integers(1, 64))
def test_shares_differ_by_at_most_one(num_envs: int, num_workers: int) -> None:
    if num_envs < num_workers:
        with pytest.raises(ConfigurationError, match=f"Use num_workers={num_envs} or num_envs={num_workers}"):
            split(num_envs, num_workers)
        return
    shares = split(num_envs, num_workers)
    assert (len(shares), sum(shares)) == (num_workers, num_envs)
    assert max(shares) - min(shares) <= 1
    assert list(shares) == sorted(shares, reverse=True)


def test_defaults_are_the_recommended_workers_and_one_sub_environment_each() -> None:
    recommended = recommended_num_workers("experience")
    assert split(None, None) == (1,) * recommended
    assert split(None, 5) == (1,) * 5
    assert split(1, None) == (1,)
    assert sum(split(1000, None)) == 1000
    assert split(7, 0) == (7,)
    assert split(None, 0) == (1,)


def test_a_plan_has_the_given_values() -> None:
    plan = plan_with(num_envs=7, num_workers=3, prefetch=np.int64(2), seed=np.uint32(9))
    assert (plan.job.shares, plan.inline, plan.job.num_envs_is_given) == ((3, 2, 2), False, True)
    assert (plan.prefetch, plan.job.seed, plan.job.policy) == (2, 9, len)
    inline = plan_with(num_envs=None, num_workers=0)
    assert (inline.job.shares, inline.inline, inline.job.num_envs_is_given) == ((1,), True, False)


def test_a_list_of_factories_determines_num_envs() -> None:
    plan = plan_with(env_fn=["CartPole-v1"] * 5, num_envs=None)
    assert (plan.job.shares, plan.job.num_envs_is_given) == ((3, 2), True)


def test_without_a_seed_each_plan_has_a_new_one() -> None:
    seeds = {plan_with(seed=None).job.seed for _ in range(4)}
    assert len(seeds) == 4
    assert all(0 <= seed < 1 << 63 for seed in seeds)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("mode", "asynchronous", "mode must be one of 'sync', 'async', got 'asynchronous'"),
        ("mode", None, "mode must be one of 'sync', 'async', got None"),
        ("parallelism", "data", "parallelism must be one of 'experience', 'gradient', got 'data'"),
        ("on_stale", "wait", "on_stale must be one of 'pace', 'drop', got 'wait'"),
        ("rollout_length", 0, "rollout_length must be an integer of at least 1, got 0"),
        ("rollout_length", 8.0, "rollout_length must be an integer of at least 1, got 8.0"),
        ("rollout_length", True, "rollout_length must be an integer of at least 1, got True"),
        ("rollout_length", None, "rollout_length must be an integer of at least 1, got None"),
        ("prefetch", -1, "prefetch must be an integer of at least 0, got -1"),
        ("num_envs", 0, "num_envs must be an integer of at least 1, got 0"),
        ("num_envs", "4", "num_envs must be an integer of at least 1, got '4'"),
        ("num_envs", 1, "Use num_workers=1 or num_envs=2"),
        ("num_workers", -1, "num_workers must be an integer of at least 0, got -1"),
        ("num_workers", 7, "Use num_workers=6 or num_envs=7"),
        ("max_policy_lag", -1, "max_policy_lag must be an integer of at least 0, got -1"),
        ("max_policy_lag", 1.5, "max_policy_lag must be an integer of at least 0, got 1.5"),
        ("seed", -1, "seed must be an integer of at least 0, got -1"),
        ("seed", "3", "seed must be an integer of at least 0, got '3'"),
        ("postprocess", {}, "postprocess must be a callable (policy, rollout) -> dict, got {}"),
        ("policy", Model(), "Pass lambda observations: model.predict(observations)[0]"),
        ("policy", None, "policy must be a Policy, a torch.nn.Module or a callable observations -> actions, got None"),
        ("env_fn", [], "env_fn must be a sequence of at least one factory, got []"),
        ("env_fn", ["CartPole-v1"] * 4, "num_envs must be the number of factories in env_fn, 4, got 6"),
        ("env_fn", 3, "env_fn must be a callable, an env id or a sequence of those, got 3"),
    ],
)
def test_an_invalid_argument_is_refused_with_a_fix(name: str, value: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        plan_with(**{name: value})


def test_a_bound_on_the_lag_is_for_async_only() -> None:
    with pytest.raises(ConfigurationError, match='max_policy_lag needs mode="async"'):
        plan_with(mode="sync", max_policy_lag=1)
    assert plan_with(mode="async", max_policy_lag=0).given.max_policy_lag == 0


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def method(self) -> None:
        """Do nothing."""


def factory_with_a_closure() -> Callable[[], Any]:
    lock = threading.Lock()
    return lambda: (lock, gym.make("CartPole-v1"))


def factory_with_a_global() -> Callable[[], Any]:
    return lambda: LOCK


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (threading.Lock(), "it (_thread.lock)"),
        (factory_with_a_closure(), "it, variable 'lock' (_thread.lock)"),
        (factory_with_a_global(), "it, global 'LOCK' (_thread.lock)"),
        (Holder(number=1, guard=LOCK), "it, attribute 'guard' (_thread.lock)"),
        (Holder(guard=LOCK).method, "it, self, attribute 'guard' (_thread.lock)"),
        (functools.partial(dict, 1, LOCK), "it, [1] (_thread.lock)"),
        (functools.partial(dict, a=1, lock=LOCK), "it, ['lock'] (_thread.lock)"),
        (functools.partial(factory_with_a_closure()), "it, function, variable 'lock' (_thread.lock)"),
        ([1, {"key": (2, LOCK)}], "it, [1], ['key'], [1] (_thread.lock)"),
        (Holder(inner=[factory_with_a_closure()]), "it, attribute 'inner', [0], variable 'lock' (_thread.lock)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unpicklable_object_is_named_with_its_path(value: Any, where: str) -> None:
    found = find_unpicklable(value, "it")
    assert found is not None
    assert found[0] == where


def test_picklable_objects_have_no_unpicklable_part() -> None:
    number = 3
    assert find_unpicklable([lambda: number, Holder(a=1), functools.partial(len)], "it") is None


def test_the_error_for_an_unpicklable_argument_names_it_and_a_fix() -> None:
    named = {"policy": len, "env_fn": factory_with_a_closure()}
    with pytest.raises(NotPicklableError) as caught:
        pickled(named, list(named.values()))
    assert str(caught.value).startswith("env_fn, variable 'lock' (_thread.lock) cannot be sent to a worker process: ")
    assert "Create it inside the factory or in setup_fn, or use num_workers=0" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("make", "method"),
    [
        ("Value('i')", "Value"),
        ("Array('i', 3)", "Array"),
        ("RawValue('i')", "Value"),
        ("RawArray('i', 3)", "Array"),
        ("Queue()", "Queue"),
        ("SimpleQueue()", "Queue"),
        ("JoinableQueue()", "JoinableQueue"),
        ("Lock()", "Lock"),
        ("RLock()", "RLock"),
        ("Event()", "Event"),
        ("Condition()", "Condition"),
        ("Semaphore()", "Semaphore"),
        ("Barrier(2)", "Barrier"),
        ("Pipe()[0]", "Queue"),
    ],
)
def test_the_error_for_an_object_of_multiprocessing_names_it_and_its_twin_of_a_manager(make: str, method: str) -> None:
    shared = eval(make, dict(vars(multiprocessing)))
    given = {"env_fn": lambda: shared}
    with pytest.raises(NotPicklableError, match=r"^env_fn, variable 'shared' \((multiprocessing|ctypes)\.") as caught:
        pickled(given, list(given.values()))
    assert f"Share a multiprocessing.Manager().{method}(...) instead, or use num_workers=0." in str(caught.value)


def test_a_variable_without_a_value_does_not_hide_an_unpicklable_one() -> None:
    def make_env() -> Any:
        return helper, lock

    lock = threading.Lock()
    assert find_unpicklable(make_env, "env_fn") == ("env_fn, variable 'lock' (_thread.lock)", lock)

    def helper() -> None:
        """Do nothing. The variable has no value yet when ``make_env`` is examined."""


def test_an_object_that_contains_itself_does_not_hide_an_unpicklable_one() -> None:
    holder = Holder(guard=LOCK)
    holder.__dict__ = {"itself": holder, **holder.__dict__}
    assert "_thread.lock" in str(find_unpicklable(holder, "it"))
