"""Check the texts of a pool: its repr, its statistics, and the errors for mistakes in the user's code."""

from __future__ import annotations

import re
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from policies import zeros

from parenv import (
    AsyncWorkerPool,
    ConfigurationError,
    ParallelVectorEnv,
    Policy,
    RestartPolicy,
    SaveBest,
    SubEnvironmentError,
    TorchPolicy,
    WorkerOptions,
    WorkerTimeoutError,
)
from parenv.errors import PolicyOutputError
from parenv.policy.policy import Action
from parenv.testing import LedgerEnv


class Zeros(torch.nn.Linear):
    """Module whose actions and log-probabilities are zeros."""

    def act(self, observations: Any) -> Any:
        return torch.zeros(len(observations)).long(), torch.zeros(len(observations))


class Greedy(Policy):
    """Policy that requires the setting ``epsilon``."""

    def act(self, observations: Any, carry: Any) -> Action:
        epsilon = self.settings["epsilon"]
        return Action(zeros(observations), {"epsilon": np.full(len(observations), epsilon)})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_of_the_policy_in_the_first_call_keeps_its_type(num_workers: int) -> None:
    with pytest.raises(KeyError, match="epsilon") as raised:
        AsyncWorkerPool("CartPole-v1", Greedy(), num_workers=num_workers)
    assert isinstance(raised.value.__cause__, SubEnvironmentError)
    assert raised.value.__cause__.doing == "act"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_settings_of_the_pool_are_those_of_the_first_version(num_workers: int) -> None:
    with AsyncWorkerPool(
        "CartPole-v1", Greedy(), num_workers=num_workers, rollout_length=4, mode="sync", settings={"epsilon": 0.5}
    ) as pool:
        stream = pool.rollouts()
        assert (next(stream).extras["epsilon"] == 0.5).all()
        pool.publish(Greedy())
        assert (next(stream).extras["epsilon"] == 0.5).all()
        pool.publish(Greedy(), epsilon=0.25)
        assert (next(stream).extras["epsilon"] == 0.25).all()


def test_publish_takes_settings_as_a_dict_or_as_keywords() -> None:
    class Greedy(Policy):
        def act(self, observations: Any, carry: Any) -> Action:
            values = {name: np.full(len(observations), self.settings.get(name, 0.0)) for name in ("epsilon", "on_edge")}
            return Action(zeros(observations), values)

    with AsyncWorkerPool("CartPole-v1", Greedy(), num_workers=0, mode="sync", rollout_length=2) as pool:
        stream = pool.rollouts()
        pool.publish(Greedy(), settings={"epsilon": 0.5, "on_edge": 1.0})
        assert {name: values[0, 0] for name, values in next(stream).extras.items()} == {"epsilon": 0.5, "on_edge": 1.0}
        pool.publish(Greedy(), epsilon=0.25, on_edge=2.0)
        assert {name: values[0, 0] for name, values in next(stream).extras.items()} == {"epsilon": 0.25, "on_edge": 2.0}
        with pytest.raises(ConfigurationError, match="settings must be a dict by name"):
            pool.publish(Greedy(), settings=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "option"), [("kl_min", "min_kl"), ("minkl", "min_kl"), ("on_rollout", "on"), ("setting", "settings")]
)
@pytest.mark.parametrize("named", [False, True])
def test_a_setting_that_looks_like_an_option_of_publish_warns_once(name: str, option: str, named: bool) -> None:
    policy: Any = {"all": zeros} if named else zeros
    words = f"publish() has no option {name!r}, so the policy gets a setting of that name. Write {option}= for the"
    with AsyncWorkerPool("CartPole-v1", policy, num_workers=0) as pool:
        with pytest.warns(UserWarning, match=re.escape(words)) as warned:
            assert pool.publish(policy, **{name: 0.01}) == 1
        assert warned[0].filename == __file__
        pool.publish(policy, **{name: 0.02})
        pool.publish(policy, epsilon=0.1, round=3, opponents={})


@pytest.mark.parametrize("settings", [3, {3: 4}, [("a", 1)]])
def test_invalid_settings_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigurationError, match="settings must be a dict by name"):
        AsyncWorkerPool("CartPole-v1", zeros, settings=settings)


@pytest.mark.parametrize("outputs", [("actions", "log_prob", "value"), ("actions",)])
def test_the_error_for_a_wrong_number_of_outputs_names_the_method(outputs: tuple[str, ...]) -> None:
    class Agent(torch.nn.Module):
        def act(self, observations: Any) -> Any:
            return torch.zeros(len(observations)).long(), torch.zeros(len(observations))

    message = f"a name for each of the 2 values that Agent.act returned, got {outputs}. Use None"
    with pytest.raises(PolicyOutputError, match=re.escape(message)):
        AsyncWorkerPool("CartPole-v1", TorchPolicy(Agent(), "act", outputs), num_workers=1)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:99", r"WorkerOptions.device must name a device .* got 'cuda:99', but it finds \d+ of this type"),
        ("gpu", "must name torch devices, got 'gpu'"),
    ],
)
def test_a_missing_device_is_an_error_before_a_process_starts(device: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AsyncWorkerPool("CartPole-v1", zeros, workers=WorkerOptions(device=device))


def test_the_error_for_a_dict_in_place_of_options_has_the_right_call() -> None:
    wanted = re.escape("workers must be WorkerOptions(threads=2), got {'threads': 2}")
    with pytest.raises(ConfigurationError, match=wanted):
        AsyncWorkerPool("CartPole-v1", zeros, workers={"threads": 2})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=wanted):
        ParallelVectorEnv([lambda: LedgerEnv(0)], workers={"threads": 2})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("threads", r"Pass workers=WorkerOptions\(threads=...\)"),
        ("lag_weight", r"Pass gradient=GradientOptions\(lag_weight=...\)"),
        ("env_steps", r"Pass Stop\(env_steps=...\)"),
        (
            "caller_steps",
            r"argument of ParallelVectorEnv. For a pool, pass workers=WorkerOptions\(step_workers=...\)",
        ),
    ],
)
def test_the_error_for_an_argument_of_an_option_object_names_that_object(name: str, home: str) -> None:
    with pytest.raises(TypeError, match=rf"AsyncWorkerPool.__init__\(\) got .* argument '{name}'. .*{home}$"):
        AsyncWorkerPool("CartPole-v1", zeros, num_workers=0, **{name: 1})
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=0) as pool:
        for stream in (pool.rollouts, pool.gradients):
            with pytest.raises(TypeError, match=rf"{stream.__name__}\(\) got an .* argument '{name}'"):
                stream(**{name: 1})
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'nothing'$"):
            pool.rollouts(nothing=1)  # type: ignore[call-overload]


class Stuck(LedgerEnv):
    """Ledger whose second step hangs."""

    def step(self, action: Any) -> Any:
        if self.steps_taken == 1:
            time.sleep(1000)
        self.steps_taken += 1
        return super().step(action)

    steps_taken = 0


def step_often(envs: Any) -> None:
    for _ in range(9):
        envs.step(np.zeros(1, int))


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_a_timeout_error_does_not_mention_memory() -> None:
    options = WorkerOptions(step_timeout_s=0.5, restart=None)
    with AsyncWorkerPool(lambda: Stuck(0), zeros, num_workers=1, workers=options) as pool:
        with pytest.raises(WorkerTimeoutError) as late:
            next(pool.rollouts())
        shown = printed(late.value)
    assert "out of memory" not in shown
    assert "test_words.py" in shown
    assert "fork server" not in shown
    assert len(shown.splitlines()) < 15
    envs = ParallelVectorEnv([lambda: Stuck(0)], num_workers=1, step_timeout_s=0.5)
    envs.reset()
    with pytest.raises(WorkerTimeoutError) as late:
        step_often(envs)
    assert "out of memory" not in printed(late.value)
    envs.close()


def test_a_restart_limit_error_after_timeouts_does_not_mention_memory(warnings_are_expected: None) -> None:
    options = WorkerOptions(step_timeout_s=0.5, restart=RestartPolicy(max_restarts=1))
    with (
        AsyncWorkerPool(lambda: Stuck(0), zeros, num_workers=1, workers=options) as pool,
        pytest.raises(Exception, match="has died 2 times") as ended,
    ):
        next(pool.rollouts())
    assert "out of memory" not in printed(ended.value)


def wrong(observations: Any) -> Any:
    return observations["nothing"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_traceback_of_an_error_in_the_policy_is_short(num_workers: int) -> None:
    with pytest.raises(IndexError) as raised:
        AsyncWorkerPool("CartPole-v1", wrong, num_workers=num_workers)
    shown = printed(raised.value)
    assert "return observations" in shown
    assert shown.count("/parenv/worker/") == shown.count("/parenv/workers/") == 0
    assert len(shown.splitlines()) < 30


def test_the_repr_and_statistics_of_a_pool_fit_on_a_screen() -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_workers=2, num_envs=4, mode="sync", rollout_length=32) as pool:
        assert repr(pool) == (
            "<AsyncWorkerPool of 4 sub-environments on 2 workers: sync, experience, rollouts of 32, policy version 0>"
        )
        str(pool.statistics())
        stream = pool.rollouts()
        next(stream)
        pool.publish(zeros)
        next(stream)
        table = str(pool.statistics())
    assert repr(pool).endswith("policy version 1, closed>")
    lines = table.splitlines()
    assert len(lines) < 10
    assert all(len(line) < 110 for line in lines)
    assert re.match(r"env steps +256 in 2 rollouts, [\d,]+ a second, ", table)
    assert "policy       version 1; 2 of lag 0" in lines
    assert "workers      2 alive, 0 restarts; 0 sub-environments replaced" in lines


def test_reprs_of_rollouts_and_results_are_short_and_without_arrays(tmp_path: Path) -> None:
    module = TorchPolicy(Zeros(4, 1), "act", ("actions", "log_prob"))
    how: dict[str, Any] = {"num_envs": 2, "num_workers": 0, "rollout_length": 128, "mode": "sync"}
    with AsyncWorkerPool("CartPole-v1", module, **how) as pool:
        best, rollout = SaveBest(tmp_path / "best.ckpt", 5), next(pool.rollouts())
        pending = pool.evaluate(5, wait=False)
        shown: list[Any] = [rollout, rollout.to(), rollout.transitions(), rollout.episodes, pool.evaluate(5)]
        shown += [pool.statistics(), pending, pending.result(), best]
    with AsyncWorkerPool("CartPole-v1", {"a": module}, **how) as pool:
        by_policy = next(pool.rollouts())
        shown += [by_policy, by_policy["a"], pool.evaluate(2), pool.evaluate(2)["a"]]
    for one in shown:
        name, text, html = type(one).__name__, repr(one), one._repr_html_()
        assert text.startswith(f"{name}("), text
        assert len(text) < 400, text
        assert "array" not in text, text
        assert "tensor" not in text, text
        assert html.startswith(f"<table><caption>{name}</caption><tr><th>"), html
        assert len(html) < 1500, html
    ended = len(rollout.episodes)
    assert (
        repr(rollout)
        == repr(rollout.to())
        == (
            "Rollout(T=128, B=2, observations=float32[128, 2, 4], actions=int64[128, 2], "
            f"extras={{log_prob: float32[128, 2]}}, episodes={ended}, worker=None, policy_version=0, policy_lag=0)"
        )
    )
    assert repr(best) == (
        f"SaveBest(path='{tmp_path}/best.ckpt', lower_bound=-inf, policy_version=None, env_steps=None)"
    )
