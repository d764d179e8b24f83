"""Check calls to sub-environments, evaluations, and the setup and cleanup of workers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from policies import zeros
from scripts import printed_by

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    ParallelVectorEnv,
    Policy,
    Stop,
    SubEnvironmentError,
    TorchPolicy,
)
from parenv.adapters.sb3 import ParallelVecEnv
from parenv.errors import NotDataError
from parenv.options import WorkerOptions
from parenv.policy.policy import Action
from parenv.testing import LedgerEnv, check_ledger


class WithMethods(LedgerEnv):
    """Ledger with methods and attributes for calls."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id)
        self.level = env_id
        self.me = env_id

    def add(self, number: int, *, twice: bool = False) -> Any:
        return {"sum": self.me + number * (2 if twice else 1), "pid": os.getpid()}

    def greet(self, name: str) -> str:
        return f"{name} {self.me}"

    def secret(self) -> Any:
        return object()

    def broken(self) -> Any:
        raise LookupError(f"no such thing in {self.me}")


def with_methods(count: int) -> list[Any]:
    return [lambda env_id=env_id: gym.Wrapper(WithMethods(env_id)) for env_id in range(count)]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_calls_reach_the_sub_environments_by_env_id_and_do_not_disturb_rollouts(num_workers: int, mode: Any) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(with_methods(5), zeros, num_workers=num_workers, mode=mode, rollout_length=3) as pool:
        for rollout in pool.rollouts(Stop(env_steps=150)):
            check_ledger(rollout, expected)
            assert [r["sum"] for r in pool.call("add", 10)] == [10, 11, 12, 13, 14]
            assert [r["sum"] for r in pool.call("add", 10, twice=True, env_ids=[4, 0])] == [24, 20]
        pool.set_attr("level", 7)
        pool.set_attr("level", [1, 2], env_ids=[3, 1])
        assert pool.get_attr("level") == (7, 2, 7, 1, 7)
        assert pool.get_attr("level", env_ids=[3]) == (1,)
        pids = {r["pid"] for r in pool.call("add", 0)}
        assert len(pids) == max(1, num_workers)
        assert (os.getpid() in pids) == (num_workers == 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_of_a_call_has_its_env_id_as_cause_and_the_pool_stays_usable(num_workers: int) -> None:
    with AsyncWorkerPool(with_methods(3), zeros, num_workers=num_workers, rollout_length=3) as pool:
        with pytest.raises(LookupError, match="no such thing in 2") as raised:
            pool.call("broken", env_ids=[2])
        cause = raised.value.__cause__
        assert isinstance(cause, SubEnvironmentError)
        assert cause.env_id == 2
        with pytest.raises(NotDataError, match=r"builtins\.object"):
            pool.call("secret", env_ids=[0])
        with pytest.raises(AttributeError):
            pool.get_attr("no_such_attribute", env_ids=[1])
        with pytest.raises(ConfigurationError, match="env_ids must be between 0 and 2, got 3"):
            pool.call("add", 1, env_ids=[3])
        with pytest.raises(ConfigurationError, match="one value for each of 3 sub-environments, got 2"):
            pool.set_attr("level", [1, 2])
        expected: dict[int, tuple[int, ...]] = {}
        for rollout in pool.rollouts(Stop(env_steps=60)):
            check_ledger(rollout, expected)


class Mixed(Policy):
    """Policy with random actions in training and constant ones in evaluations. Its recurrent state counts steps."""

    def initial_carry(self, batch: int) -> Any:
        return np.zeros(batch)

    def act(self, observations: Any, carry: Any) -> Action:
        still = self.settings.get("deterministic", False)
        batch = len(observations)
        noise = np.zeros(batch, int) if still else np.random.randint(0, 2, batch)
        return Action(noise, {"carry": carry}, carry + 1)


def fingerprint(with_evaluation: bool, mode: Any, num_workers: int) -> list[Any]:
    """Return the workers, observations and actions of a seeded run, with or without evaluations in between."""
    found = []
    with AsyncWorkerPool(
        "CartPole-v1", Mixed(), num_envs=4, num_workers=num_workers, mode=mode, prefetch=0, rollout_length=8, seed=5
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=320)):
            found.append((rollout.worker, rollout.observations.tobytes(), rollout.actions.tobytes()))
            if with_evaluation:
                statistics = pool.evaluate(3)
                assert len(statistics) == 3
                assert (statistics.returns == statistics.lengths).all()
    return sorted(found, key=lambda item: -1 if item[0] is None else item[0])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_evaluation_changes_no_training_environment_random_state_or_carry(num_workers: int) -> None:
    assert fingerprint(True, "sync", num_workers) == fingerprint(False, "sync", num_workers)


def test_an_evaluation_spreads_the_episodes_over_the_environments() -> None:
    with AsyncWorkerPool([lambda i=i: LedgerEnv(i) for i in range(4)], zeros, num_workers=2) as pool:
        for episodes in (1, 3, 4, 11):
            statistics = pool.evaluate(episodes)
            assert len(statistics) == episodes
        counts = np.bincount(statistics.env_ids, minlength=4)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("given", [(), (5,)])
def test_an_evaluation_in_other_environments_is_refused_with_the_function_that_does_it(given: Any) -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=0) as pool:
        with pytest.raises(ConfigurationError, match=r"got env_fn\. .* use parenv\.evaluate\(policy, env_fn, "):
            pool.evaluate(*given, env_fn=lambda: gym.make("CartPole-v1"))
        with pytest.raises(ConfigurationError, match="episodes must be an integer of at least 1, got None"):
            pool.evaluate()  # type: ignore[call-overload]
        assert len(pool.evaluate(2)) == 2


def test_evaluation_acts_deterministically_with_the_newest_version() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.action = torch.nn.Parameter(torch.zeros(()))

        def act(self, observations: Any) -> Any:
            raise AssertionError("training does not act here")

        def best(self, observations: Any) -> Any:
            return self.action.long().expand(len(observations))

    class Payer(LedgerEnv):
        def step(self, action: Any) -> Any:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(action), terminated, truncated, info

    class Either(Net):
        act = Net.best

    policy = TorchPolicy(Either(), "act", ("actions",), deterministic_method="best")
    with AsyncWorkerPool(lambda: Payer(0), policy, num_workers=1) as pool:
        assert pool.evaluate(5).mean_return == 0
        with torch.no_grad():
            policy.module.action += 1
        pool.publish(policy)
        statistics = pool.evaluate(5)
        assert (statistics.returns == statistics.lengths).all()


class Sampling(torch.nn.Module):
    """Module whose method ``act`` draws random actions, and whose method ``best`` does not."""

    def act(self, observations: Any) -> Any:
        return torch.randint(2, (len(observations),))

    def best(self, observations: Any) -> Any:
        return torch.zeros(len(observations), dtype=torch.int64)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_deterministic_evaluation_that_draws_random_numbers_warns_once(num_workers: int) -> None:
    arguments: dict[str, Any] = {"num_envs": 2, "num_workers": num_workers}
    for policy in (
        TorchPolicy(Sampling(), "best", ("actions",)),
        TorchPolicy(Sampling(), "act", ("actions",), deterministic_method="best"),
    ):
        with AsyncWorkerPool("CartPole-v1", policy, **arguments) as pool:
            pool.evaluate(2)
    with AsyncWorkerPool("CartPole-v1", TorchPolicy(Sampling(), "act", ("actions",)), **arguments) as pool:
        pool.evaluate(2, deterministic=False)
        with pytest.warns(UserWarning, match="An evaluation with deterministic=True draws random") as caught:
            pool.evaluate(2)
        pool.evaluate(2)  # Pytest would raise a second warning as an error.
    assert str(caught[0].message) == (
        "An evaluation with deterministic=True draws random numbers, because Sampling.act acts as in training. "
        "Pass TorchPolicy(..., deterministic_method=...), or evaluate with deterministic=False."
    )
    assert (len(caught), caught[0].filename) == (1, __file__)


class Versioned(Policy):
    """Policy that returns its version as extras: its constructor argument, and the setting ``published``."""

    def __init__(self, number: int) -> None:
        self.number = number

    def act(self, observations: Any, carry: Any) -> Action:
        batch = len(observations)
        published = self.settings.get("published", 0)
        extras = {"number": np.full(batch, self.number), "published": np.full(batch, published)}
        return Action(zeros(observations), extras)


class VersionedModule(torch.nn.Module):
    """Module that returns its version like :class:`Versioned`: a parameter, and the setting ``published``."""

    settings: Any = {}  # noqa: RUF012

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.tensor(float(number)))

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = len(observations)
        published = torch.full((batch,), float(self.settings.get("published", 0)))
        return torch.zeros(batch, dtype=torch.int64), self.number.expand(batch), published


class SettingsPolicy(TorchPolicy):
    """Policy that assigns its settings to its module."""

    def act(self, observations: Any, carry: Any) -> Action:
        self.module.settings = self.settings
        return super().act(observations, carry)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["pickled", "module"])
def test_an_evaluation_does_not_change_the_versions_of_queued_rollouts(kind: str, num_workers: int) -> None:
    def version(number: int) -> Any:
        if kind == "pickled":
            return Versioned(number)
        return SettingsPolicy(VersionedModule(number), "act", ("actions", "number", "published"))

    with AsyncWorkerPool(
        [lambda: LedgerEnv(0)] * 2, version(0), num_workers=num_workers, rollout_length=2, prefetch=3
    ) as pool:
        for number, rollout in enumerate(pool.rollouts(Stop(env_steps=80)), start=1):
            assert (rollout.extras["number"] == rollout.policy_version).all()
            assert (rollout.extras["published"] == rollout.policy_version).all()
            pool.publish(version(number), published=number)
            pool.evaluate(2)


def test_setup_environment_preload_threads_and_cleanup(tmp_path: Path) -> None:
    class Curious(LedgerEnv):
        def facts(self) -> Any:
            import sys

            import torch

            return [
                os.environ["PARENV_TEST"],
                os.environ.get("SETUP"),
                os.environ["OMP_NUM_THREADS"],
                os.environ["CUDA_VISIBLE_DEVICES"],
                torch.get_num_threads(),
                "colorsys" in sys.modules,
            ]

    def setup(worker: int) -> None:
        os.environ["SETUP"] = f"set up {worker}"

    def cleanup(worker: int) -> None:
        (tmp_path / f"cleaned {worker}").touch()

    options = WorkerOptions(
        threads=2,
        environment={"PARENV_TEST": "yes"},
        preload=("colorsys", "torch"),
        setup_fn=setup,
        cleanup_fn=cleanup,
        close_timeout_s=20,
    )
    with AsyncWorkerPool(lambda: Curious(0), zeros, num_workers=2, workers=options) as pool:
        facts = pool.call("facts")
    assert facts == tuple(["yes", f"set up {worker}", "2", "", 2, True] for worker in range(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cleaned 0", "cleaned 1"]


@pytest.mark.more
def test_torch_is_preloaded_before_a_module_that_imports_it(tmp_path: Path) -> None:
    # Otherwise each worker would import torch into its own memory, which takes seconds.
    (tmp_path / "mine.py").write_text(
        "import sys\nPRELOADED = ['torch' in sys.modules]\nimport torch as th\nfrom parenv.testing import LedgerEnv\n"
        "class Mine(LedgerEnv):\n    def preloaded(self):\n        return PRELOADED\n"
    )
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import mine, numpy as np
from parenv import AsyncWorkerPool
with AsyncWorkerPool(lambda: mine.Mine(0), lambda seen: np.zeros(len(seen), np.int64), num_workers=2) as pool:
    print(pool.call("preloaded"))
"""
    assert printed_by(script, str(tmp_path)) == "([True], [True])\n"


def test_a_worker_has_one_thread_by_default() -> None:
    class Counting(LedgerEnv):
        def threads(self) -> Any:
            return [os.environ["OMP_NUM_THREADS"], torch.get_num_threads()]

    with AsyncWorkerPool(lambda: Counting(0), zeros, num_workers=1) as pool:
        assert pool.call("threads") == (["1", 1],)


def test_workers_can_make_environments_that_the_main_process_has_registered() -> None:
    class Mine(LedgerEnv):
        def __init__(self) -> None:
            super().__init__(3)

    gym.register("Mine-v0", Mine)
    try:
        with AsyncWorkerPool(lambda: gym.make("Mine-v0"), zeros, num_workers=1, rollout_length=2) as pool:
            assert next(pool.rollouts()).observations[0, 0, 0] == 3
    finally:
        del gym.registry["Mine-v0"]


def test_synchronize_returns_the_newest_version() -> None:
    module = torch.nn.Linear(3, 1)
    policy = TorchPolicy(Wrapped(module), "act", ("actions", "digest"))
    with AsyncWorkerPool(lambda: LedgerEnv(0), policy, num_workers=3) as pool:
        with torch.no_grad():
            module.weight += 1
        assert pool.publish(policy) == pool.synchronize() == 1


class Wrapped(torch.nn.Module):
    """Module that returns the sum of the weights of an inner module with each action."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def act(self, observations: Any) -> Any:
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), self.inner.weight.sum().expand(batch)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_method_may_have_an_argument_called_name(num_workers: int) -> None:
    with AsyncWorkerPool(with_methods(2), zeros, num_workers=num_workers) as pool:
        assert pool.call("greet", name="env") == ("env 0", "env 1")
    with contextlib.closing(ParallelVectorEnv(with_methods(2), num_workers=num_workers)) as envs:
        assert envs.call("greet", name="env") == ("env 0", "env 1")
    envs_of_sb3 = ParallelVecEnv(with_methods(2), num_workers=num_workers)
    with contextlib.closing(envs_of_sb3):
        assert envs_of_sb3.env_method("greet", name="env") == ["env 0", "env 1"]
