"""Check which values are accepted as ``env_fn`` and how they are turned into factories."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from parenv import AsyncWorkerPool, ParallelVectorEnv, entry_point
from parenv.envs.factories import as_factories
from parenv.errors import ConfigurationError


class Small(gym.Env[Any, Any]):
    pass


@pytest.fixture
def registered() -> Any:
    gym.register("ParenvUnit/Small-v0", Small)
    yield "ParenvUnit/Small-v0"
    del gym.registry["ParenvUnit/Small-v0"]


def numbered(number: int) -> Callable[[], int]:
    return lambda: number


def test_one_factory_makes_all_sub_environments() -> None:
    factories = as_factories(Small)
    assert factories.count is None
    assert [type(factories.make(env_id)) for env_id in (0, 7)] == [Small, Small]


def test_a_sequence_gives_each_sub_environment_its_own() -> None:
    for several in ([numbered(5), numbered(6), numbered(7)], (numbered(5), numbered(6), numbered(7))):
        factories = as_factories(several)
        assert factories.count == 3
        assert [factories.make(env_id) for env_id in range(3)] == [5, 6, 7]


@pytest.mark.parametrize("env_fn", ["CartPole-v1", "gymnasium.envs.classic_control:CartPole-v1"])
def test_an_id_is_made_by_gymnasium(env_fn: str) -> None:
    env = as_factories(env_fn).make(0)
    assert env.spec.id == "CartPole-v1"
    env.close()


def test_a_spec_is_made_by_gymnasium() -> None:
    env = as_factories(gym.spec("CartPole-v1")).make(0)
    assert env.spec.id == "CartPole-v1"
    env.close()


def test_a_module_before_an_id_is_not_imported_in_the_driver() -> None:
    assert as_factories("no_such_module:Env-v0").count is None


def test_registrations_of_the_user_are_repeated_in_other_processes(registered: str) -> None:
    factories = as_factories(registered)
    spec = gym.registry.pop(registered)
    assert spec in factories.registered
    factories.register()
    assert gym.registry[registered] is spec
    factories.register()
    assert gym.registry[registered] is spec


def test_registrations_of_gymnasium_are_not_sent() -> None:
    assert not [spec.id for spec in as_factories(Small).registered if spec.id.startswith("CartPole")]


ENV = Small()


@pytest.mark.parametrize(
    ("env_fn", "reason"),
    [
        (ENV, "env_fn must be a factory of environments, got the environment .*Small.* Pass lambda: gym.make"),
        ([Small, ENV], "env_fn must be a factory of environments, got the environment"),
        ("CartPoll-v1", "the environment 'CartPoll-v1' must be registered with Gymnasium: .*CartPole"),
        ("CartPole-v99", "the environment 'CartPole-v99' must be registered"),
        (["CartPole-v1", "CartPoll-v1"], "the environment 'CartPoll-v1' must be registered"),
        ([], "env_fn must be a sequence of at least one factory"),
        ((), "env_fn must be a sequence of at least one factory"),
        (None, "env_fn must be a callable, an env id or a sequence of those, got None"),
        ([Small, 3], "env_fn must be a callable, an env id or a sequence of those, got 3"),
        ({"a": Small}, "env_fn must be a callable, an env id or a sequence of those, got"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_other_values_are_refused_with_a_fix(env_fn: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        as_factories(env_fn)


def test_a_vector_env_is_refused_like_an_environment() -> None:
    vector_env = gym.vector.SyncVectorEnv([partial(gym.make, "CartPole-v1")])
    with pytest.raises(ConfigurationError, match="env_fn must be a factory of environments, got the environment"):
        as_factories(vector_env)
    vector_env.close()


def test_a_factory_without_a_signature_is_accepted() -> None:
    assert as_factories(max).functions == (max,)


@pytest.mark.parametrize("env_fn", [lambda config: None, [Small, lambda config: None]], ids=["one", "in a list"])
def test_a_factory_that_needs_arguments_is_refused(env_fn: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"callable without arguments, got .* with the signature \(config\): missing a req"
    ):
        as_factories(env_fn)


def test_an_argument_of_an_environment_may_have_the_name_of_a_parameter() -> None:
    made = entry_point("types:SimpleNamespace", name="x", kwargs=1)()
    assert vars(made) == {"name": "x", "kwargs": 1}


@pytest.mark.parametrize(
    "function", [entry_point, ParallelVectorEnv.call, ParallelVectorEnv.call_async, AsyncWorkerPool.call]
)
def test_keyword_arguments_for_environments_do_not_meet_a_parameter(function: Any) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    named = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "self"]
    assert named == []
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD


def test_threads_that_import_one_file_all_see_the_whole_module(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text("import time, gymnasium; time.sleep(0.2)\ndef make(): return gymnasium.make('CartPole-v1')\n")
    make = entry_point(f"{file}:make")
    with ThreadPoolExecutor(4) as threads:
        made = [threads.submit(make) for _ in range(4)]
        assert len({id(one.result()) for one in made}) == 4
