"""Check rollouts of whole episodes: each arrives once and in order, has its policy versions, and delays no other."""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from audits import LATE_S
from envs import Acting, Copied, OwnVectorEnv, Plain, ledgers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from inside import kill
from policies import Counter, zeros
from sampling import one_in

from parenv import AsyncWorkerPool, ConfigurationError, Policy, RestartPolicy, Stop, TorchPolicy, WorkerOptions
from parenv.errors import PolicyLagError
from parenv.policy.policy import Action
from parenv.pool.episode_queue import EpisodeParts
from parenv.testing import LedgerEnv, check_ledger
from parenv.testing.ledger import episode_length

OFTEN = WorkerOptions(restart=RestartPolicy(max_restarts=1000, backoff_s=1e-3, max_backoff_s=2e-3))


def whole(env_fn: Any, policy: Any, **options: Any) -> AsyncWorkerPool[Any]:
    return AsyncWorkerPool(env_fn, policy, rollout_length="episode", **options)


def check_whole(rollout: Any) -> None:
    """Check that a rollout is one episode."""
    ended = (rollout.terminated | rollout.truncated)[:, 0].tolist()
    steps = len(ended)
    assert rollout.rewards.shape == rollout.policy_versions.shape == (steps, 1)
    assert ended == [False] * (steps - 1) + [True]
    assert [part.tolist() for part in rollout.final_index] == [[steps - 1], [0]]
    assert rollout.valid.all()
    (mine,) = np.flatnonzero(rollout.episodes.ended_by == ("terminated" if rollout.terminated[-1, 0] else "truncated"))
    assert len(rollout.episodes.finished) == 1
    assert rollout.episodes.lengths[mine] == steps
    assert rollout.episodes.env_ids[mine] == rollout.env_ids[0]
    assert np.isclose(rollout.episodes.returns[mine], rollout.rewards.sum())
    assert rollout.policy_version == rollout.policy_versions.min()


def test_a_stream_ends_at_a_number_of_env_steps_and_the_next_one_continues() -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with whole(ledgers(3), zeros, num_workers=1) as pool:
        for _ in range(3):
            env_steps = [check_ledger(rollout, expected) for rollout in pool.rollouts(Stop(env_steps=50))]
            assert sum(env_steps) - env_steps[-1] < 50 <= sum(env_steps)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_long_episode_delays_no_other(num_workers: int) -> None:
    envs = [lambda: Plain(length=1500), lambda: Plain(length=5)]
    with whole(envs, zeros, num_workers=num_workers) as pool:
        lengths = [len(rollout.rewards) for rollout in pool.rollouts(Stop(episodes=302))]
    # Parts have 64 steps, so at most 13 short episodes arrive with the part in which the long episode ends.
    assert abs(lengths.index(1500) - 300) <= 13


def count(env: Any) -> None:
    env.total = getattr(env, "total", 0) + 1


@pytest.mark.parametrize("prefetch", [0, 2])
def test_workers_wait_for_the_learner(prefetch: int) -> None:
    envs = [lambda: Plain(length=5, on_step=count), lambda: Plain(length=1500, on_step=count)]
    delivered = [0, 0]
    with whole(envs, zeros, num_workers=1, prefetch=prefetch) as pool:
        for rollout in pool.rollouts(Stop(episodes=100)):
            delivered[int(rollout.env_ids[0])] += len(rollout.rewards)
            # Each part has at most 64 steps, and the first steps of an episode may have been in an earlier part.
            assert pool.get_attr("total")[0] - delivered[0] < 64 * (1 + prefetch) + 5


class Numbered(Policy):
    """Policy that returns the number of its version, which is a setting."""

    def act(self, observations: Any, carry: Any) -> Action:
        return Action(zeros(observations), {"number": np.full(len(observations), self.settings.get("number", 0))})


class Weight(torch.nn.Module):
    """Module that returns the number of its version, which is a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.number = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observations: Any) -> Any:
        return torch.zeros(len(observations), dtype=torch.int64), self.number.expand(len(observations))


def weighed() -> TorchPolicy:
    return TorchPolicy(Weight(), "forward", ("actions", "number"))


def publish_next(pool: Any, agent: Any) -> None:
    with torch.no_grad():
        agent.module.number += 1
    pool.publish(agent)


def versions_with(
    policy: Any, publish: Any, is_enough: Callable[[list[list[int]]], bool] = bool, **options: Any
) -> dict[int, list[list[int]]]:
    """Publish after each episode of 3, 20 or 300 steps. Return the versions of each episode by its length.

    This takes 200 episodes, and more until there are enough of 300 steps: their worker may be slower than the others.
    """
    envs = [lambda length=length: Plain(length=length) for length in (3, 20, 300)]
    found = defaultdict(list)
    with whole(envs, policy, **options) as pool:
        for episodes, rollout in enumerate(pool.rollouts(Stop(seconds=LATE_S)), 1):
            check_whole(rollout)
            assert (rollout.extras["number"] == rollout.policy_versions).all()
            assert rollout.policy_lag == pool.policy_version - rollout.policy_version
            versions = rollout.policy_versions[:, 0].tolist()
            assert versions == sorted(versions)
            found[len(versions)].append(versions)
            publish(pool)
            if episodes >= 200 and is_enough(found[300]):
                break
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_episode_is_by_one_version(num_workers: int) -> None:
    numbers = itertools.count(1)
    found = versions_with(
        Numbered(), lambda pool: pool.publish(Numbered(), number=next(numbers)), num_workers=num_workers
    )
    assert all(len(set(versions)) == 1 for of_length in found.values() for versions in of_length)
    assert found[300]
    assert len({versions[0] for versions in found[3]}) > 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("num_workers", "max_policy_lag"), [(0, 0), (1, 4), (3, 2), (3, 30)])
def test_a_long_episode_changes_to_newer_versions_if_its_own_would_be_too_old(
    num_workers: int, max_policy_lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, lags, add = weighed(), list[int](), EpisodeParts.add

    def received(self: Any, block: Any, arrays: Any, commit: Any, *more: Any) -> None:
        versions = arrays["rows", 0].reshape(-1)["version"][: commit.env_steps]
        after_ends = arrays["rows", 0].reshape(-1)["is_after"][: commit.env_steps] != 0
        newest = int(agent.module.number)
        lags.extend((newest - versions[~after_ends]).tolist())
        add(self, block, arrays, commit, *more)

    monkeypatch.setattr(EpisodeParts, "add", received)
    options: dict[str, Any] = {"num_workers": num_workers, "max_policy_lag": max_policy_lag}

    def has_changed(episodes: list[list[int]]) -> bool:
        return any(len(set(versions)) > 1 for versions in episodes)

    found = versions_with(agent, lambda pool: publish_next(pool, agent), has_changed, **options)
    assert has_changed(found[300])
    assert max(lags) <= max_policy_lag
    # There are two credits per worker. A version is kept if the rows of a part can still arrive in time.
    keeps = max(0, max_policy_lag - 2 * max(num_workers, 1) + 1)
    pairs = [pair for of_length in found.values() for versions in of_length for pair in itertools.pairwise(versions)]
    assert all(one == other or other - one > keeps for one, other in pairs)


@pytest.mark.more
def test_slow_steps_delay_neither_a_version_nor_the_episodes_of_others() -> None:
    slow = [lambda: Plain(length=40, on_step=lambda env: time.sleep(0.05)), lambda: Plain(length=3)]
    number, before = 0, 0
    with whole(slow, Numbered(), num_workers=2, max_policy_lag=0) as pool:
        for rollout in pool.rollouts():
            if rollout.env_ids[0] == 0:
                break
            before += 1
            number += 1
            pool.publish(Numbered(), number=number)
    assert before >= 16  # A part has 16 short episodes, and the slow episode has four parts.
    assert len(set(rollout.policy_versions[:, 0].tolist())) > 2
    assert (rollout.extras["number"] == rollout.policy_versions).all()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("max_policy_lag", [0, 1, 2])
def test_publishing_once_per_episode_is_never_refused(max_policy_lag: int) -> None:
    with whole([lambda: Plain(length=8)] * 9, zeros, num_workers=3, max_policy_lag=max_policy_lag) as pool:
        for rollout in pool.rollouts(Stop(episodes=300)):
            # At most 1 + max_policy_lag parts wait, each with at most 8 episodes of 3 sub-environments. On a busy
            # machine a part ends early, so that the first rows of an episode may be by an older version.
            assert pool.policy_version - rollout.policy_versions[-1, 0] < 8 * 3 * (1 + max_policy_lag)
            pool.publish(zeros)
        assert pool.policy_version == 300


def test_publishing_past_the_bound_is_refused() -> None:
    with whole(ledgers(2), zeros, num_workers=2, max_policy_lag=1) as pool:
        next(pool.rollouts())
        pool.publish(zeros)
        with pytest.raises(PolicyLagError, match="max_policy_lag=1"):
            pool.publish(zeros)
        assert pool.policy_version == 1


def test_episodes_that_are_too_old_are_dropped_on_request() -> None:
    with whole(ledgers(2), zeros, num_workers=1, max_policy_lag=1, on_stale="drop") as pool:
        for rollout in pool.rollouts(Stop(episodes=40)):
            assert rollout.policy_lag <= 1
            pool.publish(zeros)
        assert pool.statistics().dropped_rollouts > 0
        assert pool.statistics().rollouts == 40


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize("postprocess", [None, lambda policy, rollout: {"twice": rollout.rewards * 2}])
def test_under_kills_every_episode_that_is_delivered_arrives_once_and_in_order(postprocess: Any) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    restarted, kills, chance, lost = set[int](), 0, random.Random(0), list[Any]()
    options: dict[str, Any] = {"workers": OFTEN, "postprocess": postprocess, "seed": 1}
    with whole(ledgers(6, max_length=90, pool_seed=1), zeros, num_workers=3, **options) as pool:
        for i, rollout in enumerate(pool.rollouts(Stop(episodes=700))):
            check_whole(rollout)
            check_ledger(rollout, expected, 90)
            lost += rollout.episodes.lost.ended_by.tolist()
            restarted |= set(rollout.env_ids[rollout.restarted].tolist())
            if i % 60 == 5:
                kills += kill(pool, chance.randrange(3))
        assert 0 < pool.statistics().worker_restarts <= kills
        assert pool.statistics().lost_episodes == {"worker_died": len(lost)}
    assert restarted
    assert set(lost) == {"worker_died"}


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_an_episode_whose_step_worker_died_is_lost_and_the_next_one_is_flagged() -> None:
    def die(env: Any) -> None:
        if env.episode == 2 and env.steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    makers = [functools.partial(Acting, 0, max_length=30), functools.partial(Acting, 1, die, max_length=30)]
    options = WorkerOptions(step_workers=2, restart=RestartPolicy(max_restarts=100, backoff_s=1e-3))
    numbers, flagged, lost = list[int](), list[int](), list[Any]()
    with whole(makers, zeros, num_workers=1, workers=options) as pool:
        for rollout in pool.rollouts(Stop(episodes=40)):
            check_whole(rollout)
            lost += zip(*(getattr(rollout.episodes.lost, name).tolist() for name in NAMES), strict=True)
            if rollout.env_ids[0] == 1:
                number = int(rollout.observations[0, 0, 1])
                assert len(rollout.rewards) == episode_length(1, number, 30)
                numbers.append(number)
                flagged += [len(numbers)] * bool(rollout.restarted[0])
    # The ledger of the new process counts episodes from 0 again, and dies at the same step.
    assert numbers[:6] == [0, 1, 0, 1, 0, 1]
    assert flagged[:2] == [3, 5]
    assert {row[:2] for row in lost} == {(1, "worker_died")}


NAMES = ("env_ids", "ended_by", "lengths")


def returns(policy: Any, rollout: Any) -> Any:
    assert rollout.rewards.shape[1] == 1
    return {
        "to_go": rollout.rewards.flip(0).cumsum(0).flip(0),
        "last": policy.module.number.expand(rollout.rewards.shape),
    }


@pytest.mark.parametrize("num_workers", [0, 2])
def test_postprocess_gets_the_whole_episode_and_the_version_that_acted(num_workers: int) -> None:
    agent = weighed()
    envs = [lambda length=length: Plain(length=length, reward=1.0) for length in (5, 200)]
    with whole(envs, agent, num_workers=num_workers, postprocess=returns) as pool:
        for rollout in pool.rollouts(Stop(episodes=90)):
            assert rollout.extras["to_go"][:, 0].tolist() == list(range(len(rollout.rewards), 0, -1))
            assert (rollout.extras["last"] == rollout.policy_versions).all()
            publish_next(pool, agent)


class Masked(LedgerEnv):
    """Ledger that returns the number of the step as an info."""

    def reset(self, **options: Any) -> Any:
        observation, _ = super().reset(**options)
        return observation, {"mask": 0}

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        step = int(self._buffer[2])
        return *rest, {"mask": step, **({"even": step} if step % 2 == 0 else {})}


class ByMask(Policy):
    """Policy that takes the info ``mask`` and returns it as an extra."""

    def act(self, observations: Any, carry: Any, *, mask: Any) -> Action:
        return Action(zeros(observations), {"seen": mask.copy()})


def test_infos_belong_to_their_rows() -> None:
    masked = [functools.partial(Masked, env_id, 90) for env_id in range(3)]
    with whole(masked, ByMask(), num_workers=1, infos={"mask": None, "even": -1}) as pool:
        for rollout in pool.rollouts(Stop(episodes=20)):
            steps = rollout.observations[..., 2]
            assert (rollout.infos["mask"] == steps).all()
            assert (rollout.next_infos["mask"] == steps + 1).all()
            assert (rollout.extras["seen"] == steps).all()
            assert (rollout.infos["_even"] == (steps % 2 == 1)).all()
            assert (rollout.infos["even"] == np.where(steps % 2 == 1, steps + 1, -1)).all()


class Words(Plain):
    """Environment whose observation is the step number as text, which has no fixed size."""

    def __init__(self, length: int) -> None:
        from gymnasium import spaces

        super().__init__("0", spaces.Text(9), spaces.Text(9), length=length)

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return str(self.steps), *rest


def echo(observations: Any) -> Any:
    return [text * 2 for text in observations]


@pytest.mark.parametrize("max_policy_lag", [None, 0])
def test_values_without_a_fixed_size_are_lists(max_policy_lag: Any) -> None:
    with whole([lambda: Words(7), lambda: Words(150)], echo, num_workers=1, max_policy_lag=max_policy_lag) as pool:
        lengths = set()
        for rollout in pool.rollouts(Stop(episodes=60)):
            length = len(rollout.rewards)
            assert rollout.observations == [[str(step)] for step in range(length)]
            assert rollout.actions == [[str(step) * 2] for step in range(length)]
            assert rollout.next_observations() == [[str(step + 1)] for step in range(length)]
            lengths.add(length)
            pool.publish(echo)
    assert lengths == {7, 150}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", one_in(2, [OwnVectorEnv, SyncVectorEnv]))
def test_episodes_of_a_vector_env_are_whole_in_every_mode(mode: AutoresetMode, kind: Any) -> None:
    def make() -> Any:
        return kind([lambda i=i: Copied(LedgerEnv(i, 40)) for i in range(3)], autoreset_mode=mode)

    with whole(make, Counter(), num_workers=1) as pool:
        played: dict[int, int] = dict.fromkeys(range(3), 0)
        for rollout in pool.rollouts(Stop(episodes=60)):
            check_whole(rollout)
            (env_id,) = rollout.env_ids.tolist()
            steps = np.arange(episode_length(env_id, played[env_id], 40))
            assert rollout.observations[:, 0].tolist() == [[env_id, played[env_id], step] for step in steps]
            assert (rollout.next_observations()[:, 0, 2] == steps + 1).all()
            assert (rollout.extras["steps"][:, 0] == steps + 10).all()
            played[env_id] += 1


def test_transitions_tensors_and_copies_have_all_rows() -> None:
    with whole(ledgers(2, max_length=90), zeros, num_workers=1) as pool:
        kept = list(pool.rollouts(Stop(episodes=30)))
        assert pool.statistics().copied_rollouts > 0
    for rollout in kept:
        flat, tensors = rollout.transitions(), rollout.to("cpu")
        assert (flat.next_observations[:, 2] == flat.observations[:, 2] + 1).all()
        assert len(flat.rewards) == len(rollout.rewards)
        assert tensors.policy_versions.dtype == torch.int64
        assert (rollout.copy().policy_versions == rollout.policy_versions).all()
    expected: dict[int, tuple[int, ...]] = {}
    assert sum(check_ledger(rollout, expected, 90) for rollout in kept) == sum(len(rollout.rewards) for rollout in kept)


def test_calls_and_evaluations_do_not_disturb_episodes() -> None:
    agent = weighed()
    envs = [functools.partial(Acting, env_id, max_length=50) for env_id in range(3)]
    expected: dict[int, tuple[int, ...]] = {}
    with whole(envs, agent, num_workers=2) as pool:
        for i, rollout in enumerate(pool.rollouts(Stop(episodes=30))):
            check_ledger(rollout, expected, 50)
            assert (rollout.extras["number"] == rollout.policy_versions).all()
            publish_next(pool, agent)
            if i % 10 == 5:
                assert len(pool.evaluate(3)) == 3
                assert pool.synchronize() == pool.policy_version
                assert len(pool.get_attr("env_id")) == 3
                pool.evaluate(2, wait=False)


def test_an_evaluation_in_place_cuts_the_episodes_in_progress_and_flags_the_next_ones() -> None:
    with whole([lambda: Plain(length=200)] * 3, zeros, num_workers=1) as pool:
        stream = pool.rollouts()
        assert not next(stream).restarted.any()
        assert len(pool.evaluate(3, in_place=True)) == 3
        restarted, lost = {0: 0, 1: 0, 2: 0}, list[Any]()
        for _, rollout in zip(range(15), stream, strict=False):
            check_whole(rollout)
            assert len(rollout.rewards) == 200
            restarted[int(rollout.env_ids[0])] += bool(rollout.restarted[0])
            lost += rollout.episodes.lost.ended_by.tolist()
    assert set(lost) <= {"restarted"}
    assert restarted == {0: 1, 1: 1, 2: 1}


def test_a_resumed_run_begins_new_episodes() -> None:
    def pool() -> Any:
        return whole("CartPole-v1", zeros, num_envs=3, num_workers=2, seed=1)

    with pool() as before:
        for _ in before.rollouts(Stop(episodes=5)):
            before.publish(zeros)
        state = before.state_dict()
    with pool() as after:
        assert "the episode of env_id 2, because a state has no part of an episode, and a new one begins" in (
            after.load_state_dict(state)
        )
        rollouts = list(after.rollouts(Stop(episodes=10)))
        assert after.statistics().episodes == 15
    first = {int(rollout.env_ids[0]): bool(rollout.restarted[0]) for rollout in reversed(rollouts)}
    assert all(first.values())
    assert all(rollout.policy_version == 5 for rollout in rollouts)


def test_an_episode_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parenv.worker.chunk_cutter.MAX_EPISODE_STEPS", 1000)
    with (
        whole([lambda: Plain(), lambda: Plain(length=900)], zeros, num_workers=0) as pool,
        pytest.raises(ConfigurationError, match=r"episodes must end within 1,000 env steps.*TimeLimit"),
    ):
        list(pool.rollouts())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "sync"}, 'parallelism="experience" must have mode="async", because .*got mode="sync"'),
        ({"record": "run"}, "cannot be used with record="),
        ({"replay": "run"}, "cannot be used with replay="),
        ({"workers": WorkerOptions(on_env_error="restart_env")}, "because it cuts an episode short"),
        ({"policy": {"all": zeros}}, "cannot be used with named policies"),
        ({"workers": WorkerOptions(rollout_device="cuda")}, "cannot be used with rollout_device|cuda"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_options_that_exclude_whole_episodes_are_refused(wrong: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"policy": zeros, "num_workers": 1, **wrong}
    with pytest.raises(ConfigurationError, match=message):
        whole("CartPole-v1", arguments.pop("policy"), **arguments)
