"""Check that remote workers give the same rollouts, gradients, replies and errors as local ones."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import ledgers
from inside import pid_of
from policies import zeros
from proxy import Proxy
from without_torch import Words, anything

from parenv import AsyncWorkerPool, Stop, WorkerDiedError, WorkerOptions
from parenv.testing import LedgerEnv, check_ledger


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_transition_of_remote_and_local_workers_arrives_once_and_in_order(hosts: Any, mode: Any) -> None:
    hosts.start(2, 1)
    envs = ledgers(8)
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(
        envs, zeros, num_workers=4, mode=mode, rollout_length=16, placement=hosts.placement(num_local=1)
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=30_000)):
            check_ledger(rollout, expected)
        statistics = pool.statistics()
        assert (statistics.hosts, statistics.workers_alive) == (2, 4)
        assert statistics.bytes_received > 0
    assert len(expected) == 8
    assert [process.wait(120.0) for process in hosts.processes] == [0, 0]
    assert not hosts.alive()


@pytest.mark.more
@pytest.mark.parametrize("case", ["ledgers", "no fixed size"])
def test_whole_episodes_of_remote_and_local_workers_arrive_once_and_in_order(hosts: Any, case: str) -> None:
    hosts.start(2, 1)
    env_fn, policy = (ledgers(8, max_length=90), zeros) if case == "ledgers" else (Words, anything)
    expected: dict[int, tuple[int, ...]] = {}
    options: dict[str, Any] = {"num_envs": 8, "num_workers": 4, "rollout_length": "episode", "max_policy_lag": 12}
    with AsyncWorkerPool(env_fn, policy, **options, placement=hosts.placement(num_local=1)) as pool:
        workers = set()
        for rollout in pool.rollouts(Stop(episodes=300)):
            assert rollout.episodes.lengths.tolist() == [len(rollout.rewards)]
            if case == "ledgers":
                check_ledger(rollout, expected, 90)
            workers.add(rollout.worker)
            pool.publish(policy)
        statistics = pool.statistics()
    assert workers == {0, 1, 2, 3}
    assert statistics.refused_connections == {}


@pytest.mark.more
def test_published_weights_act_from_the_next_rollout_on_and_are_sent_once_per_host(hosts: Any) -> None:
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.answer = torch.nn.Parameter(torch.zeros(1))
            self.ballast = torch.nn.Parameter(torch.zeros(100_000))

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return self.answer.long().expand(len(observations))

    hosts.start(3)
    policy = Constant()
    with AsyncWorkerPool(
        "CartPole-v1", policy, num_workers=3, mode="sync", rollout_length=4, placement=hosts.placement()
    ) as pool:
        rollouts = pool.rollouts()
        assert not next(rollouts).actions.any()
        before = pool.statistics().bytes_sent
        with torch.no_grad():
            policy.answer += 1
        assert pool.publish(policy) == 1
        assert next(rollouts).actions.all()
        assert 400_000 < pool.statistics().bytes_sent - before < 500_000
        with torch.no_grad():
            policy.answer -= 1
        pool.publish(policy)
        assert pool.synchronize() == 2
        pool.evaluate(3)
        assert not next(rollouts).actions.any()


class Tasked(LedgerEnv):
    """LedgerEnv whose reward is the action, so that a return shows which policy version has acted."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(action), terminated, truncated, info


@pytest.mark.more
def test_a_policy_without_a_module_is_sent_once_per_host(hosts: Any) -> None:
    class Constant:
        def __init__(self, answer: int) -> None:
            self.answer, self.ballast = answer, np.random.default_rng(0).random(50_000)

        def __call__(self, observations: Any) -> Any:
            return np.full(len(observations), self.answer)

    hosts.start(3)
    with AsyncWorkerPool(
        "CartPole-v1", Constant(0), num_workers=3, mode="sync", rollout_length=4, placement=hosts.placement()
    ) as pool:
        rollouts = pool.rollouts()
        assert not next(rollouts).actions.any()
        before = pool.statistics().bytes_sent
        pool.publish(Constant(1))
        for _ in range(5):
            assert next(rollouts).actions.all()
        assert 400_000 < pool.statistics().bytes_sent - before < 500_000
        os.kill(pid_of(pool, 1), signal.SIGKILL)
        while not pool.statistics().worker_restarts:
            assert next(rollouts).actions.all()
        for _ in range(5):
            assert next(rollouts).actions.all()
        pool.publish(Constant(0))
        assert not next(rollouts).actions.any()


@pytest.mark.more
def test_the_traffic_of_a_pool_is_encrypted(hosts: Any) -> None:
    marker = np.random.default_rng(5).random(32).astype(np.float32)

    class Marked(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(0, 1, (32,)), gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return marker.copy(), {}

        def step(self, action: Any) -> Any:
            return marker.copy(), 0.0, False, False, {}

    class Weighty(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(5_000, generator=torch.Generator().manual_seed(5)))

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return (self.weight[0] > 2.0).long().expand(len(observations))

    policy = Weighty()
    placement = hosts.placement()
    with Proxy(hosts.address) as proxy:
        hosts.address = proxy.address
        hosts.start(1)
        with AsyncWorkerPool(Marked, policy, num_workers=1, rollout_length=64, placement=placement) as pool:
            for rollout in pool.rollouts(Stop(env_steps=640)):
                assert (rollout.observations == marker).all()
            pool.publish(policy)
            assert pool.synchronize() == 1
        words = [word for path in hosts.keys.iterdir() for word in path.read_text().split()]
        weights = policy.weight.detach().numpy()
        heard = bytes(proxy.recorded[0]), bytes(proxy.recorded[1])
    assert len(heard[0]) > 640 * marker.nbytes
    assert len(heard[1]) > 2 * weights.nbytes
    keys = [word.encode() for word in words if len(word) == 40]
    assert len(set(keys)) == 2 + 2 * len(hosts.names)
    # Sixteen bytes of an observation or of the weights are enough to recognize them.
    for secret in (marker.tobytes()[:16], weights.tobytes()[:16], weights.tobytes()[-16:], b"Weighty", *keys):
        assert secret not in heard[0]
        assert secret not in heard[1]


@pytest.mark.more
def test_rounded_weights_take_half_the_bytes(hosts: Any) -> None:
    hosts.start(1)
    policy = torch.nn.Sequential(torch.nn.Linear(4, 20_000), torch.nn.Linear(20_000, 2))

    class Greedy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = policy
            self.count = torch.nn.Buffer(torch.arange(7))

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return self.net(observations).argmax(-1)

    with AsyncWorkerPool(
        "CartPole-v1",
        Greedy(),
        num_workers=1,
        rollout_length=4,
        placement=hosts.placement(weights="bfloat16"),
    ) as pool:
        before = pool.statistics().bytes_sent
        next(pool.rollouts())
        assert 280_000 < pool.statistics().bytes_sent - before < 300_000


@pytest.mark.more
def test_calls_and_exceptions_are_sent(hosts: Any) -> None:
    class Fragile(LedgerEnv):
        fails = False

        def step(self, action: Any) -> Any:
            if self.fails:
                raise ValueError("broken on purpose")
            return super().step(action)

    def fail(pool: AsyncWorkerPool) -> None:
        # The reply may arrive together with the failure that follows.
        pool.set_attr("fails", True, env_ids=[3])
        for _ in pool.rollouts(Stop(seconds=120)):
            pass

    hosts.start(2)
    envs = [lambda env_id=env_id: Fragile(env_id) for env_id in range(4)]
    with AsyncWorkerPool(envs, zeros, num_workers=2, rollout_length=4, placement=hosts.placement()) as pool:
        pool.set_attr("label", ["a", "b", "c", "d"])
        assert pool.get_attr("label") == ("a", "b", "c", "d")
        next(pool.rollouts())
        with pytest.raises(ValueError, match="broken on purpose") as caught:
            fail(pool)
    assert "env_id 3" in str(caught.value.__cause__)
    assert "in step" in str(caught.value.__cause__)


@pytest.mark.more
def test_a_reply_that_is_too_large_is_an_error_that_names_the_limit(hosts: Any) -> None:
    class Large(LedgerEnv):
        def image(self) -> Any:
            return np.zeros(100_000, np.uint8)

    hosts.start(1)
    with (
        AsyncWorkerPool(
            [lambda: Large(0)], zeros, num_workers=1, placement=hosts.placement(max_message_bytes=1 << 16)
        ) as pool,
        pytest.raises(TypeError, match="max_message_bytes"),
    ):
        pool.call("image")


@pytest.mark.more
def test_a_death_without_restarts_ends_the_pool_and_its_hosts(hosts: Any) -> None:
    (host,) = hosts.start(1)
    with AsyncWorkerPool(
        [lambda: LedgerEnv(0)],
        zeros,
        num_workers=1,
        workers=WorkerOptions(restart=None),
        placement=hosts.placement(),
    ) as pool:
        next(pool.rollouts())
        pid = pid_of(pool, 0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
            for _ in pool.rollouts(Stop(seconds=120)):
                pass
        assert caught.value.pid == pid
        assert pool.closed
    assert host.wait(120.0) == 0
    assert not hosts.alive()
