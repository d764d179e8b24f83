"""Check pools and populations whose hosts are actors of a real Ray cluster, also if an actor or a node is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from audits import Audit
from envs import ledgers
from inside import generation_of, pid_of
from members import after
from policies import zeros
from ray_cluster import RayCluster
from scripted_agents import Ledger, act, delivered, plain_loop, scripted, species

from parenv import AsyncWorkerPool, SessionPool, Stop, WorkerOptions, WorkerTimeoutError
from parenv.hosts import RayPlacement
from parenv.testing import check_ledger

# Slow on a busy machine: Ray detects a lost node only after several seconds, and each of its processes imports Ray.
pytestmark = [pytest.mark.more, pytest.mark.usefixtures("warnings_are_expected")]
SOON_S, LATE_S = 60.0, 120.0


def test_workers_of_actors_deliver_every_transition_once_and_in_order(cluster: RayCluster) -> None:
    expected: dict[int, tuple[int, ...]] = {}
    with AsyncWorkerPool(ledgers(2), zeros, rollout_length=8, placement=RayPlacement(num_workers=1)) as pool:
        for rollout in pool.rollouts(Stop(env_steps=2000)):
            check_ledger(rollout, expected)
        assert pool.statistics().hosts == 1
    assert len(expected) == 2


def test_a_population_on_actors_is_equal_to_a_local_one(cluster: RayCluster, tmp_path: Path) -> None:
    wanted = after(tmp_path / "one", 24, num_workers=0)
    placement = RayPlacement(num_workers=2, resources={"CPU": 0.5})
    assert after(tmp_path / "actors", 24, num_workers=None, placement=placement) == wanted


def test_sessions_lease_environments_of_actors(cluster: RayCluster) -> None:
    placement = RayPlacement(num_workers=2, resources={"CPU": 0.5})
    with SessionPool("CartPole-v1", num_envs=4, seed=1, placement=placement) as pool:
        seen = {}
        for _ in range(8):
            with pool.session_sync() as env:
                env.reset()
                seen[env.number] = env.step(1)[0].tolist()
        assert pool.statistics().num_envs == 4
    with SessionPool("CartPole-v1", num_envs=1, seed=1) as pool:
        for number, observation in seen.items():
            with pool.session_sync() as env:
                env.reset()
                assert (env.number, env.step(1)[0].tolist()) == (number, observation)


def test_named_policies_act_on_actors(cluster: RayCluster) -> None:
    ledger: Ledger = {}
    placement = RayPlacement(num_workers=1, resources={"CPU": 0.5})
    with AsyncWorkerPool(
        scripted(2), {"hen": act, "fox": act}, policy_of=species, mode="sync", rollout_length=5, placement=placement
    ) as pool:
        for rollout in pool.rollouts(Stop(env_steps=400)):
            for rows in rollout.values():  # type: ignore[attr-defined]
                delivered(rows, ledger)
    assert ledger == {**plain_loop(0, 200)[0], **plain_loop(1, 200)[0]}


def test_no_transition_is_lost_with_an_actor_or_a_node(cluster: RayCluster) -> None:
    second = cluster.add()
    placement = RayPlacement(num_workers=3, resources={"CPU": 0.5})
    with AsyncWorkerPool(ledgers(6), zeros, rollout_length=8, placement=placement) as pool:
        audit = Audit(pool, seconds=2 * LATE_S)

        def all_workers_are_back() -> Any:
            return pool.statistics().workers_alive == 3 and pool.statistics().hosts == 3

        audit.until(lambda: len(audit.expected) == 6)
        victim = pid_of(pool, 0)
        actor = psutil.Process(psutil.Process(victim).ppid()).ppid()
        os.kill(actor, signal.SIGKILL)
        audit.until(lambda: pool.statistics().worker_restarts == 1 and all_workers_are_back())
        cluster.remove(second)
        audit.until(lambda: pool.statistics().worker_restarts >= 2 and all_workers_are_back())
        enough = pool.statistics().env_steps + 2000
        audit.until(lambda: pool.statistics().env_steps > enough)
        assert {generation_of(pool, worker) for worker in range(3)} != {0}


def test_missing_resources_are_named_when_the_start_times_out(cluster: RayCluster) -> None:
    with pytest.raises(WorkerTimeoutError, match="each needs CPU: 64, and no node has more than CPU: 2"):
        AsyncWorkerPool(
            ledgers(1),
            zeros,
            workers=WorkerOptions(start_timeout_s=2.0),
            placement=RayPlacement(num_workers=1, resources={"CPU": 64}),
        )
