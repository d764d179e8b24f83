"""Check rollouts: each transition arrives exactly once, and by the published version of the policy."""

from __future__ import annotations

import gc
import signal
import time
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Acting, ledgers
from policies import zeros

from parenv import AsyncWorkerPool, Policy, Rollout, Stop, TorchPolicy, WorkerOptions
from parenv.errors import PoolClosedError
from parenv.policy.policy import Action
from parenv.testing import check_ledger
from parenv.transport.waiting import Waiting


class Scorer(torch.nn.Module):
    """Module that returns its weights with each action."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), value))
        self.register_buffer("count", torch.tensor(int(value)), persistent=False)

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), self.weight.expand(batch, 3), self.count.expand(batch)


def scorer(value: float = 0.0) -> TorchPolicy:
    return TorchPolicy(Scorer(value), "act", ("actions", "weight", "count"))


def test_a_sync_rollout_is_one_block_without_a_copy() -> None:
    with AsyncWorkerPool(ledgers(5), zeros, num_workers=2, mode="sync", rollout_length=4) as pool:
        for rollout in pool.rollouts(Stop(env_steps=200)):
            assert rollout.observations.shape == (4, 5, 3)
            assert rollout.observations.flags.c_contiguous
            assert not rollout.observations.flags.owndata
            assert rollout.env_ids.tolist() == list(range(5))
        assert pool.statistics().copied_rollouts == 0


def test_held_rollouts_are_never_overwritten_and_are_copies_beyond_the_bound() -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, rollout_length=5) as pool:
        stream = pool.rollouts()
        kept = [next(stream) for _ in range(20)]
        copied = pool.statistics().copied_rollouts
        assert 0 < copied < 20
        expected: dict[int, tuple[int, ...]] = {}
        for rollout in kept:
            check_ledger(rollout, expected)
        del rollout
        kept.clear()
        gc.collect()
        for _ in range(10):
            check_ledger(next(stream), expected)
        assert pool.statistics().copied_rollouts == copied


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_workers_wait_if_no_rollout_is_taken_and_memory_does_not_grow(mode: Any) -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=2, mode=mode, rollout_length=5, prefetch=2) as pool:
        next(pool.rollouts())
        arena, progress = pool._session._arena, pool._session._arena.status
        size = arena.memory.size
        seen: list[Any] = []
        while not (len(seen) > 5 and seen[-1] == seen[-5]):
            time.sleep(0.1)
            seen.append([slot.liveness_token for slot in progress])
            assert len(seen) < 200
        assert [line.doing for line in progress] == ["waiting"] * 2
        pool.publish(zeros)
        assert [slot.liveness_token for slot in progress] == seen[-1]
        for _ in range(20):
            next(pool.rollouts())
        assert arena.memory.size == size


def test_a_rollout_and_its_tensors_outlive_the_pool() -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=1, rollout_length=5) as pool:
        rollout = next(pool.rollouts())
    tensors = rollout.to("cpu")
    del rollout
    assert tensors.observations[:, 0, 0].tolist() == [0] * 5
    with pytest.raises(PoolClosedError):
        pool.rollouts()


def test_tensors_share_the_memory_of_the_slot() -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=1, rollout_length=5) as pool:
        rollout = next(pool.rollouts())
        tensors = rollout.to("cpu")
        assert tensors.rewards.data_ptr() == rollout.rewards.ctypes.data


def test_the_end_of_a_stream_loses_no_rollout_in_progress() -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(ledgers(4), zeros, num_workers=2, rollout_length=5) as pool:
        for _ in range(6):
            for rollout in pool.rollouts(Stop(env_steps=20)):
                check_ledger(rollout, expected)


def test_weights_may_be_published_as_policy_module_or_state_dict() -> None:
    policy = scorer()
    with AsyncWorkerPool(ledgers(1), policy, num_workers=1, mode="sync", rollout_length=2) as pool:
        stream = pool.rollouts()
        for given, wanted in [(scorer(5.0), 5), (Scorer(6.0), 6), (Scorer(7.0).state_dict(), 7)]:
            pool.publish(given)
            assert (next(stream).extras["weight"] == wanted).all()
        assert (next(stream).extras["count"] == 6).all(), "a buffer that is not in the state dict keeps its value"


def test_a_policy_without_a_module_is_published_whole() -> None:
    with AsyncWorkerPool(
        ledgers(2), lambda o: np.zeros(len(o), int), num_workers=1, mode="sync", rollout_length=3
    ) as pool:
        stream = pool.rollouts()
        assert (next(stream).actions == 0).all()
        pool.publish(lambda o: np.ones(len(o), int))
        assert (next(stream).actions == 1).all()


class Overwriting(Policy):
    """Policy that overwrites its observations through tensors that share their memory."""

    def act(self, observations: Any, carry: Any) -> Action:
        for array in observations.values() if isinstance(observations, dict) else [observations]:
            with warnings.catch_warnings(action="error"):
                torch.as_tensor(array).fill_(-1)
        return Action(np.zeros(self.batch, np.int64))

    batch: int


class InADict(gym.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Dict({"state": env.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"state": observation}


@pytest.mark.parametrize("in_a_dict", [False, True])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_policy_may_overwrite_its_observations_and_the_rollout_keeps_them(num_envs: int, in_a_dict: bool) -> None:
    policy = Overwriting()
    policy.batch = num_envs
    makers = [(lambda make=make: InADict(make())) if in_a_dict else make for make in ledgers(num_envs)]
    with AsyncWorkerPool(makers, policy, num_workers=1, rollout_length=4) as pool:
        observations: Any = next(pool.rollouts()).observations
        assert ((observations["state"] if in_a_dict else observations) >= 0).all()


class Settled(Policy):
    """Policy that returns its setting ``epsilon`` with each action."""

    def act(self, observations: Any, carry: Any) -> Action:
        batch = len(observations)
        return Action(zeros(observations), {"epsilon": np.full(batch, self.settings.get("epsilon", -1.0))})


class SettledModule(torch.nn.Module):
    """Module that returns its setting ``epsilon`` with each action."""

    settings: Any = {}  # noqa: RUF012

    def act(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch = len(observations)
        return torch.zeros(batch, dtype=torch.int64), torch.full((batch,), self.settings.get("epsilon", -1.0))


def test_settings_arrive_with_the_version_and_stay() -> None:
    policy = Settled()
    with AsyncWorkerPool(ledgers(2), policy, num_workers=1, mode="sync", rollout_length=3) as pool:
        stream = pool.rollouts()
        assert (next(stream).extras["epsilon"] == -1).all()
        pool.publish(policy, epsilon=0.5)
        assert (next(stream).extras["epsilon"] == 0.5).all()
        pool.publish(policy, other=1)
        assert (next(stream).extras["epsilon"] == 0.5).all()


class Counter(Policy):
    """Policy whose carry counts the steps of each episode from 10 on."""

    def initial_carry(self, batch: int) -> Any:
        return {"steps": np.full((batch, 1), 10)}

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(zeros(observations), {"steps": carry["steps"][:, 0]}, {"steps": carry["steps"] + 1})


class TorchCounter(torch.nn.Module):
    def initial_carry(self, batch: int) -> Any:
        return torch.full((batch,), 10)

    def act(self, observations: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.zeros(len(observations), dtype=torch.int64), carry.clone(), carry + 1


def test_postprocess_runs_on_the_worker_with_the_user_s_policy_and_tensors() -> None:
    import os

    def postprocess(policy: Any, rollout: Rollout) -> Any:
        assert isinstance(policy, TorchPolicy)
        assert isinstance(rollout.rewards, torch.Tensor)
        following = rollout.next_values(rollout.observations[..., 2].float(), lambda o: o[:, 2].float())
        return {"next_step": following, "pid": torch.full(rollout.rewards.shape, os.getpid())}

    with AsyncWorkerPool(
        ledgers(4), scorer(), num_workers=2, mode="sync", rollout_length=6, postprocess=postprocess
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=100)):
            assert (rollout.extras["next_step"] == rollout.next_observations()[..., 2]).all()
            assert len(set(rollout.extras["pid"].ravel().tolist()) - {os.getpid()}) == 2


def test_transitions_are_flat_and_true() -> None:
    with AsyncWorkerPool(ledgers(3), zeros, num_workers=1, rollout_length=9) as pool:
        rollout = next(pool.rollouts())
        flat = rollout.transitions()
    assert len(flat) == 27
    moved = flat.next_observations[:, 2] - flat.observations[:, 2]
    assert (moved == 1).all()
    assert (flat.next_observations[:, 1] == flat.observations[:, 1]).all()
    assert flat.env_ids.tolist() == [0, 1, 2] * 9


def test_episode_statistics_come_without_a_wrapper() -> None:
    returns: dict[int, list[float]] = {}
    with AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_envs=4, num_workers=2, mode="sync") as pool:
        for rollout in pool.rollouts(Stop(episodes=60)):
            episodes = rollout.episodes
            for env_id, total, length in zip(episodes.env_ids, episodes.returns, episodes.lengths, strict=True):
                assert total == length, "CartPole's return is its length"
                returns.setdefault(int(env_id), []).append(total)
            assert (episodes.seconds > 0).all()
            index = rollout.final_index
            assert (rollout.terminated[index] | rollout.truncated[index]).all()
            assert len(index[0]) == int((rollout.terminated | rollout.truncated).sum()) == len(episodes)
        statistics = pool.statistics()
    assert set(returns) == {0, 1, 2, 3}
    assert statistics.episodes >= 60
    assert statistics.mean_return == statistics.mean_length > 20


def test_each_stop_criterion_ends_the_stream() -> None:
    with AsyncWorkerPool("CartPole-v1", zeros, num_envs=2, num_workers=1, rollout_length=16) as pool:
        assert sum(r.num_steps for r in pool.rollouts(Stop(env_steps=100))) == 128
        assert sum(len(r.episodes) for r in pool.rollouts(Stop(episodes=5))) >= 5
        assert len(list(pool.rollouts(Stop(mean_return=5, window=3)))) >= 1
        assert list(pool.rollouts(Stop(seconds=1e-9))) == []
        stop = Stop(env_steps=32)
        assert [len(list(pool.rollouts(stop))), len(list(pool.rollouts(stop)))] == [1, 1]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rollout_takes_at_most_two_messages(num_workers: int) -> None:
    with AsyncWorkerPool(ledgers(2), zeros, num_workers=num_workers, rollout_length=4) as pool:
        before = pool.statistics().messages
        rollouts = len(list(pool.rollouts(Stop(env_steps=4 * 2 * 50))))
        sent = pool.statistics().messages - before
        assert sent <= 2 * rollouts + 8, "a credit and a commit per rollout"


def test_close_is_idempotent_and_garbage_collection_closes() -> None:
    pool = AsyncWorkerPool(ledgers(2), zeros, num_workers=2)
    pool.close()
    pool.close()
    assert pool.closed
    pool = AsyncWorkerPool(ledgers(2), zeros, num_workers=2)
    next(pool.rollouts())
    del pool
    gc.collect()


def test_an_environment_cannot_change_the_recorded_action() -> None:
    class Scribbler(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (1,))
        action_space = gym.spaces.Box(-1, 1, (2,))

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            assert action.dtype == np.float32
            action[:] = 9
            return np.zeros(1, np.float32), 0.0, False, False, {}

    with AsyncWorkerPool(Scribbler, lambda o: np.full((len(o), 2), 0.5, np.float32), num_workers=1, num_envs=2) as pool:
        assert (next(pool.rollouts()).actions == 0.5).all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        (Counter(), lambda carry: carry["steps"][:, 0]),
        (TorchPolicy(TorchCounter(), "act", ("actions", "steps", "carry")), lambda carry: carry),
    ],
    ids=["numpy", "torch"],
)
def test_a_rollout_has_its_initial_carry(policy: Any, steps: Any, mode: Any) -> None:
    with AsyncWorkerPool(ledgers(5), policy, num_workers=2, mode=mode, rollout_length=4) as pool:
        for rollout in pool.rollouts(Stop(env_steps=240)):
            assert (steps(rollout.initial_carry) == rollout.extras["steps"][0]).all()
            assert (steps(rollout.to("cpu").initial_carry).numpy() == rollout.extras["steps"][0]).all()
            assert (steps(rollout.copy().initial_carry) == rollout.extras["steps"][0]).all()


def test_a_policy_without_a_carry_has_none_in_its_rollouts() -> None:
    with AsyncWorkerPool(ledgers(1), zeros, num_workers=0) as pool:
        assert next(pool.rollouts()).to("cpu").initial_carry is None


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_after_an_interrupt_during_the_wait_for_a_rollout_no_rollout_is_lost(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a notebook, Ctrl-C interrupts the wait, and the next cell uses the same pool.

    def interrupt(timeout_s: float) -> None:
        raise KeyboardInterrupt

    with AsyncWorkerPool(ledgers(4), zeros, num_workers=2, rollout_length=8, mode=mode) as pool:
        rollouts = [next(pool.rollouts())]
        for _ in range(3):
            with monkeypatch.context() as patched:
                patched.setattr(pool._session._queue, "listen", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    rollouts += pool.rollouts()
        rollouts += pool.rollouts(Stop(env_steps=256))
    expected: dict[int, tuple[int, ...]] = {}
    assert all(check_ledger(rollout, expected) for rollout in rollouts)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_interrupt_between_two_waits_is_delayed_and_no_rollout_is_lost(
    mode: Any, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AsyncWorkerPool(ledgers(4), zeros, num_workers=num_workers, rollout_length=8, mode=mode) as pool:
        queue, handler, rollouts = pool._session._queue, signal.getsignal(signal.SIGINT), []
        commit = queue.scheduler.commit

        def interrupted(key: Any) -> bool:
            signal.raise_signal(signal.SIGINT)
            return commit(key)

        for _ in range(20):
            rollouts.append(next(pool.rollouts()).copy())
            with monkeypatch.context() as patched:
                patched.setattr(queue.scheduler, "commit", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    rollouts += pool.rollouts(Stop(env_steps=4096))
            assert signal.getsignal(signal.SIGINT) is handler
        rollouts += [rollout.copy() for rollout in pool.rollouts(Stop(env_steps=512))]
    expected: dict[int, tuple[int, ...]] = {}
    assert all(check_ledger(rollout, expected) for rollout in rollouts)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_pool_without_workers_is_closed_by_an_interrupt_during_a_step(mode: Any) -> None:
    def interrupt(env: Any) -> None:
        if env.steps == 1:
            signal.raise_signal(signal.SIGINT)

    makers = [lambda env_id=env_id: Acting(env_id, interrupt) for env_id in range(2)]
    pool = AsyncWorkerPool(makers, zeros, num_workers=0, rollout_length=8, mode=mode)
    with pytest.raises(KeyboardInterrupt):
        next(pool.rollouts())
    assert pool.closed
    with pytest.raises(PoolClosedError):
        next(pool.rollouts())


def test_the_main_process_sleeps_through_all_commits_of_a_round_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep: list[bool] = []
    wait = Waiting.wait

    def counted(waiting: Waiting, timeout_s: float, only_descriptors: bool = False) -> set[int]:
        asleep.append(only_descriptors)
        return wait(waiting, timeout_s, only_descriptors)

    monkeypatch.setattr(Waiting, "wait", counted)
    with AsyncWorkerPool(
        ledgers(6), zeros, num_workers=6, rollout_length=4, mode="sync", workers=WorkerOptions(step_timeout_s=60.0)
    ) as pool:
        stream = pool.rollouts()
        next(stream)
        asleep.clear()
        for _ in range(50):
            next(stream)
        # If several workers commit last at the same time, the wake-up of one may arrive in the next round.
        assert 50 <= sum(asleep) <= 2 * 50
