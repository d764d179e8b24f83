"""Check evaluations with ``wait=False``, which run on the workers during training and keep their policy version."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import threading
import warnings
from pathlib import Path
from typing import Any, ClassVar

import envs
import gymnasium as gym
import numpy as np
import pytest
import torch
from audits import until
from envs import Acting, Plain, once
from inside import pid_of
from policies import lean, zeros
from pool_places import Place, places
from scripted_agents import Scripted, ScriptedTurns

from parenv import AsyncWorkerPool, ConfigurationError, Policy, Stop, TorchPolicy, entry_point
from parenv.errors import PoolClosedError
from parenv.policy.policy import Action
from parenv.rollouts import RolloutsByPolicy
from parenv.testing import LedgerEnv, check_ledger

PATIENCE_S = 120.0


Paid = functools.partial(Plain, action_space=gym.spaces.Discrete(1000), length=5, reward=float)


class Payer(torch.nn.Module):
    """Module whose action is its only parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.action = torch.nn.Parameter(torch.zeros(()))

    def forward(self, observations: Any) -> Any:
        return self.action.long().expand(len(observations))


class Gated(LedgerEnv):
    """Ledger whose episodes end in evaluations only if a file exists. The first one of each env_id is for training."""

    def __init__(self, folder: Path, env_id: int) -> None:
        super().__init__(env_id)
        self._folder = folder
        try:
            (folder / f"training {env_id}").touch(exist_ok=False)
            self._evaluates = False
        except FileExistsError:
            self._evaluates = True

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        if self._evaluates:
            terminated, truncated = (self._folder / "go").exists(), False
        return observation, reward, terminated, truncated, info


def audit(pool: AsyncWorkerPool, stop: Stop, expected: dict[int, tuple[int, ...]]) -> None:
    """Collect rollouts of ledgers and check them."""
    for rollout in pool.rollouts(stop):
        check_ledger(rollout, expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rollouts_continue_during_an_evaluation(mode: Any, tmp_path: Path) -> None:
    makers = [lambda i=i: Gated(tmp_path, i) for i in range(4)]
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(makers, zeros, num_workers=2, mode=mode, rollout_length=4) as pool:
        pending = pool.evaluate(8, wait=False)
        for rollout in pool.rollouts(Stop(env_steps=800)):
            check_ledger(rollout, expected)
            assert not pending.done
        assert pool.statistics().evaluation is None
        assert pool.statistics().evaluations == 1
        (tmp_path / "go").touch()
        for rollout in pool.rollouts(Stop(seconds=PATIENCE_S)):
            check_ledger(rollout, expected)
            if pending.done:
                break
        found = pending.result()
        assert pool.statistics().evaluation is found
        assert len(found.episodes) == 8
        assert sorted(found.episodes.env_ids.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("pool_place", places(), indirect=True)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_evaluation_keeps_its_version_while_newer_ones_are_published(mode: Any, pool_place: Place) -> None:
    agent = Payer()
    with pool_place.pool(entry_point(f"{envs.__file__}:paid"), agent, num_envs=4, mode=mode, rollout_length=2) as pool:
        evaluated = []
        pending = pool.evaluate(7, wait=False)
        for rollout in pool.rollouts(Stop(seconds=PATIENCE_S)):
            assert (rollout.actions == rollout.policy_version).all()
            with torch.no_grad():
                agent.action += 1
            version = pool.publish(agent)
            if pending.done:
                evaluated.append(pending.result())
                pending = pool.evaluate(7, wait=False)
                assert pending.policy_version == version
            if len(evaluated) == 3:
                break
        for found in evaluated:
            assert found.episodes.returns.tolist() == [5.0 * found.policy_version] * 7
            assert found.weights["action"].item() == found.policy_version
        assert evaluated[0].env_steps == 0 < evaluated[1].env_steps < evaluated[2].env_steps


class Noisy(Policy):
    """Policy that draws from the global generators of numpy and torch, and counts steps in its carry."""

    def initial_carry(self, batch: int) -> Any:
        return np.zeros(batch)

    def act(self, observations: Any, carry: Any) -> Action:
        drawn = np.random.randint(0, 2, len(observations)) ^ int(torch.randint(0, 2, ()))
        return Action(drawn, {"carry": carry}, carry + 1)


def run(policy: Any, num_workers: int, beside: bool) -> list[Any]:
    """Return the workers, observations and actions of a seeded run, with or without evaluations."""
    found = []
    with AsyncWorkerPool(
        "CartPole-v1", policy, num_envs=4, num_workers=num_workers, mode="sync", rollout_length=8, seed=5
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=640)):
            rows = rollout["noisy"] if isinstance(rollout, RolloutsByPolicy) else rollout
            found.append((rows.worker, rows.observations.tobytes(), rows.actions.tobytes()))
            if beside:
                pool.evaluate(3, deterministic=False, wait=False)
    return sorted(found, key=lambda item: -1 if item[0] is None else item[0])


@pytest.mark.parametrize("policy", [Noisy(), {"noisy": Noisy()}], ids=["one policy", "by name"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_evaluation_changes_no_training_environment_random_state_or_carry(num_workers: int, policy: Any) -> None:
    assert run(policy, num_workers, True) == run(policy, num_workers, False)


def test_an_asynchronous_run_with_evaluations_is_replayed_without_them(tmp_path: Path) -> None:
    def play(beside: bool, **more: Any) -> list[Any]:
        found = []
        with AsyncWorkerPool("CartPole-v1", Noisy(), num_envs=4, num_workers=2, rollout_length=8, **more) as pool:
            for rollout in pool.rollouts(Stop(env_steps=640)):
                found.append((rollout.worker, rollout.observations.tobytes(), rollout.actions.tobytes()))
                pool.publish(Noisy())
                if beside:
                    pool.evaluate(3, wait=False)
        return found

    assert play(True, record=tmp_path / "run.jsonl") == play(False, replay=tmp_path / "run.jsonl")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_results_equal_those_of_an_evaluation_with_wait(num_workers: int) -> None:
    def returns(wait: bool) -> list[Any]:
        with AsyncWorkerPool(
            "CartPole-v1", Noisy(), num_envs=4, num_workers=num_workers, mode="sync", rollout_length=8, seed=5
        ) as pool:
            found = []
            for _ in pool.rollouts(Stop(env_steps=96)):
                if wait:
                    found.append(pool.evaluate(9, deterministic=False))
                else:
                    pending = pool.evaluate(9, deterministic=False, wait=False)
                    next(pool.rollouts())
                    found.append(pending.result().episodes)
            return [(sorted(one.returns.tolist()), sorted(one.env_ids.tolist())) for one in found[:1]]

    assert returns(True) == returns(False)


@pytest.mark.more
@pytest.mark.parametrize("kind", [Scripted, ScriptedTurns])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_results_of_several_agents_equal_those_of_an_evaluation_with_wait(num_workers: int, kind: Any) -> None:
    def found(wait: bool) -> Any:
        makers, policies = [lambda i=i: kind(i) for i in range(3)], {"hen": draw, "fox": draw}
        with AsyncWorkerPool(
            makers,
            policies,
            policy_of=lambda a, _: a[:3],
            num_workers=num_workers,
            mode="sync",
            rollout_length=5,
            seed=3,
        ) as pool:
            next(pool.rollouts())
            if wait:
                episodes: Any = pool.evaluate(7)
            else:
                pending = pool.evaluate(7, wait=False)
                next(pool.rollouts())
                episodes = pending.result().episodes
        parts = (episodes, episodes["hen"], episodes["fox"])
        return [sorted(zip(part.env_ids.tolist(), part.returns.tolist(), strict=True)) for part in parts]

    assert found(True) == found(False)


def draw(observations: Any) -> Any:
    return np.random.randint(0, 50, len(observations))


class Pair(Scripted):
    """Environment with two agents and their actions as rewards. Episodes end in evaluations only if a file exists."""

    def __init__(self, folder: Path, env_id: int) -> None:
        super().__init__(env_id)
        self.possible_agents = ["hen_0", "hen_1"]
        self._folder = folder
        self._evaluates = (folder / f"training {env_id}").exists()
        (folder / f"training {env_id}").touch()

    def _there(self) -> list[str]:
        ends = (self._folder / "go").exists() if self._evaluates else self.now >= 3
        return [] if ends and self.now else self.possible_agents

    def reward(self, agent: str, action: int) -> float:
        return float(action)


def hen_or_past(agent: str, episode: Any) -> str:
    """Return ``"hen"`` for the first agent, and the policy of the setting ``past`` for the second one."""
    return "hen" if agent == "hen_0" else str(episode.settings["hen"].get("past", "hen"))


@pytest.mark.more
@pytest.mark.parametrize("num_workers", [0, 2])
def test_versions_of_named_and_frozen_policies_are_kept_while_they_are_evaluated(
    num_workers: int, tmp_path: Path
) -> None:
    agent, makers = Payer(), [lambda i=i: Pair(tmp_path, i) for i in range(2)]
    with AsyncWorkerPool(
        makers, {"hen": agent}, policy_of=hen_or_past, num_workers=num_workers, rollout_length=4, max_frozen=1
    ) as pool:

        def publish(value: int, **settings: Any) -> None:
            with torch.no_grad():
                agent.action.fill_(value)
            pool.publish({"hen": agent}, **settings)

        publish(7)
        past = pool.freeze("hen")
        publish(2, past=past)
        pending = pool.evaluate(4, wait=False)
        publish(3, past="hen")
        pool.release(past)
        for count, _ in enumerate(pool.rollouts(Stop(env_steps=800))):
            publish(10 + count % 30)
            assert list(pool.statistics().frozen_policies) == [past]
            assert not pending.done
        (tmp_path / "go").touch()
        found: Any = pending.result()
        assert found.weights["hen"]["action"].item() == 2
        per_step = [found.episodes[name].returns / found.episodes[name].lengths for name in ("hen", past)]
        assert [each.tolist() for each in per_step] == [[2.0] * 4, [7.0] * 4]
        stream = pool.rollouts()
        until(lambda: not pool.statistics().frozen_policies, lambda: next(stream))


def test_evaluations_run_one_after_another(tmp_path: Path) -> None:
    makers = [lambda i=i: Gated(tmp_path, i) for i in range(2)]
    with AsyncWorkerPool(makers, zeros, num_workers=2, rollout_length=4) as pool:
        pending = pool.evaluate(4, wait=False)
        for _ in pool.rollouts(Stop(env_steps=64)):
            pool.publish(zeros)
            assert pool.evaluate(6, wait=False).policy_version == 0
        assert pool.statistics().evaluations == 1
        (tmp_path / "go").touch()
        assert len(pool.evaluate(3)) == 3
        assert pending.done
        assert len(pending.result().episodes) == 4
        assert len(pool.statistics().evaluation.episodes) == 3  # type: ignore[union-attr]
        assert pool.statistics().evaluations == 2


@pytest.mark.usefixtures("warnings_are_expected")
def test_a_restarted_worker_evaluates_the_same_version(tmp_path: Path) -> None:
    def end_then(env: Any) -> None:
        env.length = env.steps if env.steps >= 5 and (tmp_path / "go").exists() else math.inf

    waiting = functools.partial(Paid, length=math.inf, on_step=end_then)

    agent = Payer()
    with AsyncWorkerPool(waiting, agent, num_envs=4, num_workers=2, rollout_length=2) as pool:
        pending = pool.evaluate(8, wait=False)
        stream = pool.rollouts()
        for version in range(1, 20):
            next(stream)
            with torch.no_grad():
                agent.action += 1
            assert pool.publish(agent) == version
            if version in (5, 10):
                os.kill(pid_of(pool, version // 6), signal.SIGKILL)
        until(lambda: pool.statistics().worker_restarts == 2, lambda: next(stream))
        (tmp_path / "go").touch()
        found = pending.result()
    assert found.policy_version == 0
    assert found.episodes.returns.tolist() == [0.0] * 8


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_of_an_evaluation_is_raised_by_the_stream_and_the_pool_stays_usable(
    num_workers: int, tmp_path: Path
) -> None:
    def fail(env: Any) -> None:
        raise LookupError("the evaluation broke")

    def make() -> Any:
        return LedgerEnv(0) if once(tmp_path / "made") else Acting(0, fail)

    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(make, zeros, num_workers=num_workers, rollout_length=4) as pool:
        pending = pool.evaluate(2, wait=False)
        with pytest.raises(LookupError, match="the evaluation broke"):
            audit(pool, Stop(seconds=PATIENCE_S), expected)
        with pytest.raises(LookupError, match="the evaluation broke"):
            pending.result()
        audit(pool, Stop(env_steps=40), expected)


def test_closing_the_pool_ends_a_pending_evaluation_with_an_error(tmp_path: Path) -> None:
    makers = [lambda i=i: Gated(tmp_path, i) for i in range(2)]
    with AsyncWorkerPool(makers, zeros, num_workers=2, rollout_length=4) as pool:
        pending = pool.evaluate(4, wait=False)
        next(pool.rollouts())
    with pytest.raises(PoolClosedError):
        pending.result()


def test_a_stream_stops_at_the_return_of_an_evaluation_that_ends_during_it() -> None:
    agent = Payer()
    with AsyncWorkerPool(Paid, agent, num_envs=2, num_workers=2, rollout_length=2) as pool:
        with torch.no_grad():
            agent.action += 9
        pool.publish(agent)
        assert pool.evaluate(2).mean_return == 45
        yielded = 0
        for _ in pool.rollouts(Stop(evaluation_return=45, env_steps=40)):  # An earlier evaluation does not count.
            yielded += 1
        assert yielded == 20
        pool.evaluate(2, wait=False)
        for _ in pool.rollouts(Stop(evaluation_return=45, seconds=PATIENCE_S)):
            pass
        assert pool.statistics().evaluation.mean_return == 45  # type: ignore[union-attr]
        assert pool.statistics().seconds < PATIENCE_S


class Only(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that, like some emulators, can exist only once in a process."""

    there: ClassVar[int] = 0

    def __init__(self) -> None:
        if Only.there:
            raise RuntimeError("Cannot create multiple emulator instances per process")
        Only.there += 1
        super().__init__(gym.make("CartPole-v1"))

    def close(self) -> None:
        Only.there -= 1
        super().close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_environments_that_can_exist_once_per_process_are_evaluated_in_place(num_workers: int) -> None:
    how: dict[str, Any] = {"num_envs": max(1, num_workers), "num_workers": num_workers, "mode": "sync", "seed": 3}
    with AsyncWorkerPool("CartPole-v1", lean, rollout_length=32, **how) as pool:
        wanted = pool.evaluate(5)
    with AsyncWorkerPool(Only, lean, rollout_length=32, **how) as pool:
        stream = pool.rollouts()
        before = next(stream)
        with pytest.raises(RuntimeError, match="multiple emulator") as raised:
            pool.evaluate(5)
        assert any("use pool.evaluate(..., in_place=True)" in note for note in raised.value.__notes__)
        assert not next(stream).restarted.any()
        assert pool.evaluate(5, in_place=True).lengths.shape == (5,)
        after, behind = next(stream), next(stream)
        assert (after.restarted.all(), behind.restarted.any()) == (True, False)
        assert (np.abs(after.observations[0]) <= 0.05).all()
        np.testing.assert_array_equal(after.last_observations, behind.observations[0])
        assert not (after.observations[0] == before.observations[0]).any()
    with AsyncWorkerPool(Only, lean, rollout_length=32, **how) as pool:
        found = pool.evaluate(5, in_place=True)
    assert (found.returns.tolist(), found.env_ids.tolist()) == (wanted.returns.tolist(), wanted.env_ids.tolist())


def test_an_evaluation_in_place_is_refused_with_conflicting_options(tmp_path: Path) -> None:
    for policy, evaluation, record, message in [
        (lean, {"wait": False}, None, "in_place=True needs wait=True"),
        ({"a": lean}, {}, None, "in_place=True cannot be used with named policies"),
        (lean, {}, tmp_path / "run", "in_place=True cannot be used with record or replay"),
    ]:
        with AsyncWorkerPool("CartPole-v1", policy, num_workers=0, record=record) as pool:
            evaluate: Any = pool.evaluate
            with pytest.raises(ConfigurationError, match=message):
                evaluate(2, in_place=True, **evaluation)


@pytest.mark.parametrize(
    ("more", "evaluates", "is_warned"), [({}, False, True), ({}, True, False), ({"env_steps": 1000}, False, False)]
)
def test_a_stream_that_only_an_evaluation_can_end_warns_once_without_one(
    more: Any, evaluates: bool, is_warned: bool, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("always")
    with AsyncWorkerPool(Paid, Payer(), num_envs=1, num_workers=0, rollout_length=1) as pool:
        for number, _ in enumerate(pool.rollouts(Stop(evaluation_return=475, **more))):
            if number == 50 and evaluates:
                pool.evaluate(1)
            if number == 220:
                break
    message = (
        "Stop(evaluation_return=475) is the only end of this stream, and there was no "
        "evaluation during its first 100 items. Call pool.evaluate(...) or SaveBest.update(pool) in the loop."
    )
    assert [str(one.message) for one in recwarn] == [message] * is_warned
    assert all(one.filename == __file__ for one in recwarn)


def test_statistics_metrics_and_traces_include_evaluations(tmp_path: Path) -> None:
    agent = Payer()
    with AsyncWorkerPool(Paid, agent, num_envs=2, num_workers=2, rollout_length=2) as pool:
        assert "eval/mean_return" not in pool.metrics()
        pool.trace(tmp_path / "trace.json")
        pool.evaluate(2, wait=False).result()
        figures = pool.statistics()
        assert "evaluated    version 0, of 0 env steps: mean return 0.00 of 2" in str(figures)
        found = {name: value for name, value in figures.metrics().items() if name.startswith("eval/")}
        assert found.pop("eval/seconds") > 0
        assert found == {
            "eval/mean_return": 0,
            "eval/iqm_return": 0,
            "eval/mean_length": 5,
            "eval/episodes": 2,
            "eval/lost_episodes": 0,
            "eval/policy_version": 0,
            "eval/env_steps": 0,
        }
        assert figures.evaluation is not None
        assert figures.evaluation.metrics() == {
            name: value for name, value in figures.metrics().items() if name.startswith("eval/")
        }
    events = json.loads((tmp_path / "trace.json").read_text())
    (found,) = [event for event in events if event["name"] == "evaluated"]
    assert found["args"] == {"policy_version": 0, "env_steps": 0, "mean return": 0.0}


def test_weights_of_an_evaluation_equal_the_state_dict_with_tied_and_non_persistent_tensors() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(2, 2)
            self.other = torch.nn.Linear(2, 2)
            self.other.weight = self.one.weight
            self.register_buffer("kept", torch.ones(3))
            self.register_buffer("left_out", torch.ones(3), persistent=False)

        def act(self, observations: Any) -> Any:
            return (self.one(observations) + self.other(observations)).argmax(-1)

    agent = Tied()
    with AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_workers=0) as pool:
        assert pool.evaluate(1, wait=False).result().weights == {}
    with AsyncWorkerPool(Paid, TorchPolicy(agent, "act", ("actions",)), num_workers=1) as pool:
        weights = pool.evaluate(1, wait=False).result().weights
    assert weights.keys() == agent.state_dict().keys()
    Tied().load_state_dict(weights)
    assert all(torch.equal(weights[name], tensor) for name, tensor in agent.state_dict().items())


def test_bad_numbers_of_episodes_and_other_threads_are_refused() -> None:
    with AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_workers=0) as pool:
        for episodes in (0, -3, 2.5, "many"):
            with pytest.raises(ConfigurationError, match="episodes must be"):
                pool.evaluate(episodes, wait=False)  # type: ignore[arg-type]
        raised: list[Exception] = []
        stream = pool.rollouts()
        next(stream)

        def evaluate() -> None:
            try:
                pool.evaluate(1, wait=False)
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        assert [type(error).__name__ for error in raised] == ["PoolBusyError"]
