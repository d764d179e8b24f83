"""What changing one import must mean: environments of others, as they are, behave as under Gymnasium's own classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REGISTERS = """
import gymnasium


class Env(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}


for name in "abc":
    gymnasium.register(f"registers_itself/{name}-v0", "registers_itself:Env")
"""
USES = """
import gymnasium as gym
import {imported}
from parenv import AsyncWorkerPool, ParallelVectorEnv

ParallelVectorEnv([lambda: gym.make("{name}")] * 2, num_workers=2).close()
AsyncWorkerPool("{name}", lambda observations: observations * 0, num_envs=2, num_workers=2).close()
print("done")
"""


def said_to_stderr(script: str, directory: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", script], capture_output=True, text=True, timeout=50, cwd=directory
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return done.stderr


def test_a_module_that_registers_what_the_driver_knows_already_is_no_reason_to_warn(tmp_path: Path) -> None:
    (tmp_path / "registers_itself.py").write_text(REGISTERS)
    assert said_to_stderr(USES.format(imported="registers_itself", name="registers_itself/a-v0"), tmp_path) == ""


def test_atari_users_are_not_warned_of_environments_that_are_registered_already(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    script = USES.format(imported="ale_py", name="ALE/Pong-v5").replace("observations * 0", "[0] * len(observations)")
    assert "WARN" not in said_to_stderr(script, tmp_path)


WARNS = """
import warnings
import gymnasium as gym
from parenv import ParallelVectorEnv


class Env(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self):
        warnings.warn("old", DeprecationWarning)
        warnings.warn("odd", UserWarning)


ParallelVectorEnv([Env] * 2, num_workers=2).close()
print("done")
"""


def test_what_the_driver_was_told_about_warnings_holds_in_workers(tmp_path: Path) -> None:
    script = tmp_path / "warns.py"
    script.write_text(WARNS)
    run = "import runpy; runpy.run_path('warns.py', run_name='__main__')"
    assert "odd" in said_to_stderr(run, tmp_path)
    assert said_to_stderr(run, tmp_path, "-Wignore") == ""
    assert "old" in said_to_stderr(run, tmp_path, "-Wignore::UserWarning", "-Walways::DeprecationWarning")
