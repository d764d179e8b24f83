"""Check parenv on simulated systems: without worker processes on Windows, and in this process on macOS."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IN_THIS_PROCESS = """
import numpy as np, parenv, torch
from parenv.adapters.sb3 import accelerate
lean = lambda observations: observations[:, 2] > 0
envs = parenv.ParallelVectorEnv(["CartPole-v1"] * 3, num_workers=0)
rows = [envs.reset(seed=1)[0]] + [envs.step(np.arange(3) % 2)[0] for _ in range(40)]
envs.close()
print(np.array(rows).sum())
with parenv.AsyncWorkerPool("CartPole-v1", lean, num_workers=0, mode="sync", seed=1, rollout_length=8) as pool:
    print(*(rollout.observations.sum() for rollout, _ in zip(pool.rollouts(), range(3))))
    print(pool.evaluate(episodes=3).mean_return)
print(parenv.evaluate(lean, "CartPole-v1", episodes=3, num_workers=0).episodes[2].episode_return)
with parenv.SessionPool("CartPole-v1", num_envs=2, num_workers=0, seed=1) as sessions, sessions.session_sync() as env:
    print(env.reset()[0].sum(), env.step(1)[0].sum(), sessions.statistics().num_envs)
from stable_baselines3 import PPO
model = PPO("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16, seed=1, device="cpu")
with accelerate(model, num_workers=0):
    model.learn(32)
print(model.num_timesteps)
"""
RECORDS = """
import sys, parenv, torch
folder = sys.argv[1]
parenv.save_checkpoint(f"{folder}/one.ckpt", {"weights": torch.ones(2)})
print(parenv.load_checkpoint(f"{folder}/one.ckpt")["weights"].sum())
with parenv.resumable(f"{folder}/run") as run:
    run.step()
parenv.evaluate(lambda o: o[:, 2] > 0, "CartPole-v1", episodes=2, num_workers=0, out=f"{folder}/results.jsonl")
print(open(f"{folder}/results.jsonl").read().count("\\n"))
"""
REFUSED = """
import parenv
lean = lambda observations: observations[:, 2] > 0
for what in (
    lambda: parenv.ParallelVectorEnv(["CartPole-v1"] * 2, num_workers=2),
    lambda: parenv.AsyncWorkerPool("CartPole-v1", lean, num_workers=1),
    lambda: parenv.evaluate(lean, "CartPole-v1", episodes=2, num_workers=2),
    lambda: parenv.SessionPool("CartPole-v1", num_envs=2, placement=parenv.hosts.RayPlacement(num_workers=2)),
    lambda: parenv.WorkerOptions(step_workers=2),
    lambda: parenv.WorkerOptions(python="python3"),
    lambda: parenv.WorkerOptions(max_memory_bytes=1 << 30),
    lambda: parenv.AsyncWorkerPool(
        "CartPole-v1", lean, placement=parenv.hosts.RemotePlacement("tcp://127.0.0.1:1", key="k", hosts="h")
    ),
):
    try:
        what()
    except parenv.ConfigurationError as error:
        print(error)
envs = parenv.ParallelVectorEnv(["CartPole-v1"] * 2)
pool = parenv.AsyncWorkerPool("CartPole-v1", lean)
print(envs.num_workers, pool.num_workers, parenv.recommended_num_workers())
envs.close()
pool.close()
"""


def printed(script: str, system: str, *arguments: str) -> list[str]:
    """Return the lines that a script prints on a simulated system."""
    command = [sys.executable, str(ROOT / "tests" / "other_systems.py"), system, script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_environments_step_in_this_process_with_the_same_results(system: str) -> None:
    assert printed(IN_THIS_PROCESS, system) == printed(IN_THIS_PROCESS, "linux")


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_checkpoints_runs_and_results_are_written(system: str, tmp_path: Path) -> None:
    lines = printed(RECORDS, system, str(tmp_path))
    assert lines == ["tensor(2.)", "3"]


def test_windows_refuses_worker_processes_and_defaults_to_none() -> None:
    *refusals, numbers = printed(REFUSED, "win32")
    assert len(refusals) == 8
    assert all(line.endswith("WSL 2.") for line in refusals)
    assert numbers.split()[0] == "0"
    assert numbers.split()[2] == "0"
