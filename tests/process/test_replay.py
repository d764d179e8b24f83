"""Check that a replayed run has the rollouts, the order and the policy versions of the recorded run."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from audits import until
from inside import pid_of
from sampling import one_in

from parenv import AsyncWorkerPool, ConfigurationError, Stop, TorchPolicy, WorkerOptions
from parenv.errors import ReplayError
from parenv.experience.rollout import Rollout
from parenv.protocol.digests import rows_of


class Uneven(gym.Env[Any, Any]):
    """Environment whose steps have irregular durations, which depend on the wall clock and on the env_id.

    Args:
        env_id: Number of the environment.
        gate: File for which each step waits. Default: none.
    """

    def __init__(self, env_id: int, gate: Path | None = None) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._env_id, self._gate, self.gain = env_id, gate, 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> Any:
        if self._gate is not None:
            until(self._gate.exists)
        time.sleep(2e-4 * self._env_id + 1e-3 * (time.time_ns() % 7 == 0))
        self.place += self.gain * self.np_random.normal(size=3).astype(np.float32) * (1 + action)
        return self.place.copy(), float(self.place.sum()), bool(abs(self.place[0]) > 3), False, {}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 0.1))

    def act(self, observations: Any) -> Any:
        chance = torch.sigmoid(observations @ self.weight)
        actions = (torch.rand(len(chance)) < chance).long()
        return actions, chance


FACTORIES = [lambda env_id=env_id: Uneven(env_id) for env_id in range(4)]


def pool_of(net: Net, factories: Any = FACTORIES, **more: Any) -> AsyncWorkerPool:
    policy = TorchPolicy(net, "act", ("actions", "chance"))
    return AsyncWorkerPool(factories, policy, **{"num_workers": 4, "rollout_length": 6, "prefetch": 2, **more})


def train(pool: AsyncWorkerPool, net: Net, stop: Stop, learning_rate: float = 0.01) -> list[Any]:
    """Train with updates that depend on every observation and on the order of arrival. Return the received rollouts."""
    seen: list[Any] = []
    for rollout in pool.rollouts(stop):
        seen.append((rollout.worker, rollout.policy_version, rollout.policy_lag, rollout.observations.tobytes()))
        seen.append((rollout.extras["chance"].tobytes(), rollout.episodes.returns.tobytes()))
        with torch.no_grad():
            net.weight += learning_rate * torch.tensor(rollout.observations.mean((0, 1)))
        if len(seen) % 3:
            pool.publish(net)
        if len(seen) % 20 == 0:
            pool.set_attr("gain", 1.0 + 0.1 * float(np.float32(rollout.rewards.mean())))
            pool.evaluate(1, deterministic=False)
    return seen


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "more", one_in(2, [{}, {"max_policy_lag": 2}, {"max_policy_lag": 1, "on_stale": "drop"}, {"prefetch": 0}])
)
def test_an_asynchronous_run_is_replayed_bitwise(more: dict[str, Any], tmp_path: Path) -> None:
    net, again = Net(), Net()
    with pool_of(net, record=tmp_path / "journal", **more) as pool:
        first = train(pool, net, Stop(env_steps=6 * 40))
        counts = pool.statistics().policy_lag
    with pool_of(again, replay=tmp_path / "journal", **more) as pool:
        second = train(pool, again, Stop())
        assert pool.statistics().policy_lag == counts
    assert second == first
    assert torch.equal(net.weight, again.weight)
    # On a busy machine, all rollouts of the slower workers may be dropped.
    assert "on_stale" in more or len({worker for worker, *_ in first[::2]}) > 1


@pytest.mark.more
def test_two_runs_without_a_journal_are_not_the_same() -> None:
    # If the order of arrival never varied, the replay test above would prove nothing.
    runs = []
    for _ in range(2):
        with pool_of(Net(), seed=3) as pool:
            runs.append([rollout.worker for rollout in pool.rollouts(Stop(env_steps=6 * 60))])
    assert runs[0] != runs[1]


@pytest.mark.more
def test_gradients_are_replayed_bitwise(tmp_path: Path) -> None:
    def loss_fn(policy: Any, rollout: Any) -> Any:
        return (policy.module.weight * rollout.observations.mean((0, 1))).sum() * rollout.rewards.mean()

    weights = []
    for journal in ({"record": tmp_path / "journal"}, {"replay": tmp_path / "journal"}):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        with pool_of(net, parallelism="gradient", loss_fn=loss_fn, **journal) as pool:
            for gradient in pool.gradients(Stop(env_steps=6 * 40) if "record" in journal else None):
                gradient.assign_to(net)
                optimizer.step()
                pool.publish(net)
        weights.append(net.weight.detach().clone())
    assert torch.equal(*weights)


@pytest.mark.more
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_divergence_is_reported_at_the_first_rollout_that_differs(mode: Any, tmp_path: Path) -> None:
    net = Net()
    with pool_of(net, mode=mode, record=tmp_path / "journal") as pool:
        train(pool, net, Stop(env_steps=24 * 20))
    _, *lines = (json.loads(line) for line in (tmp_path / "journal").read_text().splitlines())
    versions = [line[1]["policy_version"] for line in lines if line[0] == "digest"]
    net = Net()
    with pool_of(net, mode=mode, replay=tmp_path / "journal") as pool:
        with pytest.raises(ReplayError, match=r"differs in .*chance") as caught:
            train(pool, net, Stop(), learning_rate=0.02)
        assert caught.value.rollout == next(number for number, version in enumerate(versions) if version)


@pytest.mark.more
def test_a_loop_with_other_calls_is_an_error_that_names_both_calls(tmp_path: Path) -> None:
    net = Net()
    with pool_of(net, record=tmp_path / "journal") as pool:
        train(pool, net, Stop(env_steps=6 * 20))
    with (
        pool_of(Net(), replay=tmp_path / "journal") as pool,
        pytest.raises(
            ReplayError,
            match=r"after 1 rollouts the recording has a publish of version 1, and this run has the delivery of a r",
        ),
    ):
        list(pool.rollouts())
    with (
        pool_of(Net(), replay=tmp_path / "journal") as pool,
        pytest.raises(
            ReplayError, match=r"after 0 rollouts the recording has .*, and this run has a publish of version 1"
        ),
    ):
        pool.publish(net)


@pytest.mark.more
def test_a_replayed_stream_yields_none_at_the_recorded_places(tmp_path: Path) -> None:
    # Until the first None, no step ends. Otherwise a busy machine could have a rollout ready at each look.
    numbers, gate = list[list[int | None]](), tmp_path / "gate"
    factories = [lambda env_id=env_id: Uneven(env_id, gate) for env_id in range(4)]
    for journal in ({"record": tmp_path / "journal"}, {"replay": tmp_path / "journal"}):
        with pool_of(Net(), factories, **journal) as pool:
            stream = pool.rollouts(Stop(env_steps=6 * 40), wait=lambda: False)
            came: list[int | None] = []
            for rollout in stream:
                came.append(rollout and rollout.worker)
                if rollout is None:
                    gate.touch()
                time.sleep(1e-3)
            numbers.append(came)
    assert numbers[0] == numbers[1]
    assert None in numbers[0]


def test_a_death_is_in_the_journal_and_not_replayed(tmp_path: Path) -> None:
    with pool_of(Net(), record=tmp_path / "journal") as pool:
        stream = pool.rollouts()
        next(stream)
        os.kill(pid_of(pool, 1), signal.SIGKILL)
        while not next(stream).restarted.any():
            pass
    with (
        pool_of(Net(), replay=tmp_path / "journal") as pool,
        pytest.raises(ReplayError, match="the death of worker 1, which cannot be replayed"),
    ):
        list(pool.rollouts())


def test_a_journal_that_does_not_fit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pool_of(Net(), record=tmp_path / "journal", seed=5) as pool:
        next(pool.rollouts())
    for change, words in (
        ({"seed": 6}, "seed must be 5 as in the recorded run, got 6"),
        ({"rollout_length": 7}, "rollout_length must be 6"),
        ({"mode": "sync"}, "mode must be 'async'"),
        ({"num_workers": 2}, "sub-environments of each worker"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            pool_of(Net(), replay=tmp_path / "journal", **change)
    with pytest.raises(ConfigurationError, match="record and replay cannot be used together"):
        pool_of(Net(), replay=tmp_path / "journal", record=tmp_path / "other")
    (tmp_path / "no journal").write_text("[]\n")
    (tmp_path / "other lines").write_text('{"parenv journal": 1}\n["noxt", 0, 1]\n')
    for path, words in (
        ("nothing", "FileNotFoundError"),
        ("no journal", "TypeError"),
        ("other lines", "lines have the unknown kinds noxt"),
    ):
        with pytest.raises(ConfigurationError, match=f"{path} cannot be replayed: {words}"):
            pool_of(Net(), replay=tmp_path / path)


def test_a_damaged_journal_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pool_of(Net(), record=tmp_path / "runs" / "journal", seed=5) as pool:
        next(pool.rollouts())
    lines = (tmp_path / "runs" / "journal").read_text().splitlines(keepends=True)
    path = tmp_path / "damaged"
    for damaged in (
        [*lines[:3], lines[2], *lines[3:]],
        [*lines[:2], lines[3], lines[2], *lines[4:]],
        [*lines[:2], lines[2].replace("issue", "iszue"), *lines[3:]],
    ):
        path.write_text("".join(damaged))
        with pytest.raises(ConfigurationError, match=rf"{path} cannot be replayed: line \d does not match its digest"):
            pool_of(Net(), replay=path, seed=5)


def test_a_journal_of_the_former_format_is_replayed(tmp_path: Path) -> None:
    with pool_of(Net(), record=tmp_path / "journal", seed=5) as pool:
        recorded = [rollout.actions.tolist() for rollout in pool.rollouts(Stop(env_steps=6 * 8))]
    about, *events = rows_of((tmp_path / "journal").read_text())
    former = [{**about, "parenv journal": 1}, *events]
    (tmp_path / "former").write_text("".join(json.dumps(row) + "\n" for row in former))
    with pool_of(Net(), replay=tmp_path / "former") as pool:
        assert [rollout.actions.tolist() for rollout in pool.rollouts()] == recorded


def test_a_journal_has_one_line_per_event(tmp_path: Path) -> None:
    with pool_of(Net(), record=tmp_path / "journal", seed=5, workers=WorkerOptions(restart=None)) as pool:
        rollouts: list[Rollout] = [rollout.copy() for rollout in pool.rollouts(Stop(env_steps=6 * 30))]
        pool.publish(Net())
        pool.get_attr("gain")
    header, *lines = (json.loads(line) for line in (tmp_path / "journal").read_text().splitlines())
    kinds = [line[0] for line in lines]
    assert header["seed"] == 5
    assert kinds.count("digest") == kinds.count("next") == len(rollouts) == 30
    assert kinds[-2:] == ["publish", "call"]
    assert [line[1] for line in lines if line[0] == "next"] == [rollout.worker for rollout in rollouts]


def test_two_runs_cannot_be_recorded_in_one_file_at_a_time(tmp_path: Path) -> None:
    def record() -> AsyncWorkerPool:
        return pool_of(Net(), num_workers=0, record=tmp_path / "journal")

    with record() as pool:
        before = (tmp_path / "journal").read_text()
        with pytest.raises(ConfigurationError, match=r"journal' cannot be used while another run is recorded there"):
            record()
        assert (tmp_path / "journal").read_text() == before
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        next(pool.rollouts())
    try:
        record().close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_the_error_for_a_recording_that_cannot_be_written_names_the_file() -> None:
    with pytest.raises(OSError, match=r"No space left on device, so the run cannot be recorded.*'/dev/full'"):
        pool_of(Net(), num_workers=0, record="/dev/full")
