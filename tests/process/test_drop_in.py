"""Check that existing environments behave as in Gymnasium's own vector envs if only an import is changed."""

from __future__ import annotations

import contextlib
import enum
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from comparison import assert_same
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from parenv import AsyncWorkerPool, ConfigurationError, ParallelVectorEnv
from parenv.errors import NotDataError

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


def stderr_of(script: str, directory: Path, *options: str) -> str:
    """Run a script, check that it prints only ``done``, and return its standard error."""
    done = subprocess.run(
        [sys.executable, *options, "-c", script], capture_output=True, text=True, timeout=250, cwd=directory
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    return done.stderr


@pytest.mark.more
def test_workers_do_not_warn_if_a_module_registers_known_environments_again(tmp_path: Path) -> None:
    (tmp_path / "registers_itself.py").write_text(REGISTERS)
    assert stderr_of(USES.format(imported="registers_itself", name="registers_itself/a-v0"), tmp_path) == ""


@pytest.mark.more
def test_workers_do_not_warn_if_ale_py_registers_known_environments_again(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    script = USES.format(imported="ale_py", name="ALE/Pong-v5").replace("observations * 0", "[0] * len(observations)")
    assert "WARN" not in stderr_of(script, tmp_path)


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


@pytest.mark.more
def test_warning_filters_of_the_main_process_apply_in_workers(tmp_path: Path) -> None:
    script = tmp_path / "warns.py"
    script.write_text(WARNS)
    run = "import runpy; runpy.run_path('warns.py', run_name='__main__')"
    assert "odd" in stderr_of(run, tmp_path)
    assert stderr_of(run, tmp_path, "-Wignore") == ""
    assert "old" in stderr_of(run, tmp_path, "-Wignore::UserWarning", "-Walways::DeprecationWarning")


class MissionSpace(spaces.Space[str]):
    """Space like MiniGrid's, whose repr shows the address of a function, which differs between processes."""

    def __init__(self, words: Callable[[], list[str]]) -> None:
        super().__init__(dtype=str)
        self.words = words

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return str(self.np_random.choice(self.words()))

    def contains(self, x: Any) -> bool:
        return x in self.words()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MissionSpace) and other.words() == self.words()

    def __repr__(self) -> str:
        return f"MissionSpace({self.words})"


def observed() -> spaces.Dict:
    def words() -> list[str]:
        return ["go", "stop"]

    return spaces.Dict(mission=MissionSpace(words), at=spaces.Box(-1, 1, (2,), np.float32))


class MissionEnv(gym.Env[Any, Any]):
    """Environment with the observation space :class:`MissionSpace`."""

    def __init__(self, env_id: int = 0) -> None:
        self.observation_space, self.action_space = observed(), spaces.Discrete(3)
        self.env_id = env_id
        self.closed = False
        MADE.append(self)

    def _observation(self, action: int) -> Any:
        return {"mission": "stop" if action else "go", "at": np.full(2, 0.25 * self.env_id, np.float32)}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._observation(0), {}

    def step(self, action: Any) -> Any:
        return self._observation(action), float(action), bool(action == 2), False, {}

    def close(self) -> None:
        self.closed = True


MADE: list[MissionEnv] = []
"""Environments that were made in this process."""
MISSION_ENVS = [lambda i=i: MissionEnv(i) for i in range(4)]


def zeros(observations: Any) -> Any:
    return np.zeros(len(observations["at"]), int)


def test_spaces_whose_reprs_differ_only_in_addresses_are_the_same() -> None:
    envs = ParallelVectorEnv(MISSION_ENVS, num_workers=2)
    expected = SyncVectorEnv(MISSION_ENVS)
    assert_same(envs.reset(seed=1), expected.reset(seed=1))
    for actions in ([0, 1, 2, 0], [1, 1, 0, 2]):
        assert_same(envs.step(np.array(actions)), expected.step(np.array(actions)))
    assert type(envs.single_observation_space["mission"]).__name__ == "MissionSpace"
    envs.close()
    with AsyncWorkerPool(MISSION_ENVS, zeros, num_workers=2, mode="sync", rollout_length=2) as pool:
        assert next(pool.rollouts()).observations["mission"][0] == ["go"] * 4


@pytest.mark.parametrize("num_workers", [0, 2])
def test_given_spaces_are_the_spaces_of_the_vector_env_and_the_pool(num_workers: int) -> None:
    given = (observed(), spaces.Discrete(3))
    envs = ParallelVectorEnv(MISSION_ENVS, num_workers=num_workers, spaces=given)
    assert (envs.single_observation_space, envs.single_action_space) == given
    assert envs.single_observation_space is given[0]
    assert envs.observation_space["mission"].sample()[3] in ("go", "stop")
    assert envs.reset()[0]["mission"] in envs.observation_space["mission"]
    envs.close()
    with AsyncWorkerPool(
        MISSION_ENVS, zeros, num_workers=num_workers, mode="sync", rollout_length=2, spaces=given
    ) as pool:
        assert pool.single_observation_space is given[0]
        assert pool.single_action_space is given[1]
        assert next(pool.rollouts()).observations["mission"][0] == ["go"] * 4


def test_with_spaces_make_the_main_process_makes_an_environment_and_closes_it() -> None:
    MADE.clear()
    envs = ParallelVectorEnv(MISSION_ENVS, num_workers=2, spaces="make")
    assert [env.closed for env in MADE] == [True]
    mission = envs.single_observation_space["mission"]
    assert type(mission) is MissionSpace
    assert mission.words() == ["go", "stop"]
    envs.close()
    with AsyncWorkerPool(MISSION_ENVS, zeros, num_workers=2, spaces="make") as pool:
        assert type(pool.single_observation_space["mission"]) is MissionSpace
    with AsyncWorkerPool(
        lambda: SyncVectorEnv(MISSION_ENVS[:2]), zeros, num_workers=1, num_envs=2, spaces="make"
    ) as pool:
        assert type(pool.single_observation_space["mission"]) is MissionSpace


@pytest.mark.parametrize("make", [ParallelVectorEnv, lambda env_fns, **more: AsyncWorkerPool(env_fns, zeros, **more)])
def test_invalid_or_different_spaces_are_refused(make: Any) -> None:
    for none in ("made", observed(), (observed(),), (observed(), 3)):
        with pytest.raises(ConfigurationError, match="spaces must be"):
            make(MISSION_ENVS, num_workers=2, spaces=none)
    wrong = spaces.Discrete(4)
    for num_workers in (0, 2):
        with pytest.raises(ConfigurationError, match=r"spaces must .*Discrete\(3\), got .*Discrete\(4\)"):
            make(MISSION_ENVS, num_workers=num_workers, spaces=(observed(), wrong))


@pytest.mark.more
@pytest.mark.parametrize("name", ["MiniGrid-Empty-5x5-v0", "BabyAI-GoToLocal-v0"])
def test_minigrid_is_stepped_like_in_sync_vector_env(name: str) -> None:
    pytest.importorskip("minigrid")
    env_fns = [lambda: gym.make(name, max_steps=9)] * 4
    envs, expected = ParallelVectorEnv(env_fns, num_workers=2, spaces="make"), SyncVectorEnv(env_fns)
    assert envs.single_observation_space == expected.single_observation_space
    assert_same(envs.reset(seed=3), expected.reset(seed=3))
    envs.action_space.seed(5)
    for _ in range(40):
        actions = envs.action_space.sample()
        assert_same(envs.step(actions), expected.step(actions))
    envs.close()
    expected.close()
    with AsyncWorkerPool(
        env_fns, lambda observations: np.zeros(len(observations["image"]), int), num_workers=2, rollout_length=20
    ) as pool:
        rollout = next(pool.rollouts())
    assert rollout.observations["image"].shape == (20, 2, 7, 7, 3)
    assert rollout.truncated.sum() == 4


class Side(enum.IntEnum):
    LEFT = 0
    RIGHT = 1


class RichInfoEnv(gym.Env[Any, Any]):
    """Environment whose observations, infos and attributes are not plain data. A ``secret`` has no plain form."""

    observation_space = spaces.Dict(x=spaces.Box(-1, 1, (2,), np.float32), n=spaces.Discrete(9))
    action_space = spaces.Discrete(2)

    def __init__(self, env_id: int = 0, secret: Any = None) -> None:
        self.env_id, self.steps, self.secret = env_id, 0, secret
        self.spec = gym.spec("CartPole-v1")

    def observed(self) -> Any:
        return {"x": torch.full((2,), self.steps / 8, dtype=torch.float64), "n": self.steps}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return self.observed(), {"side": Side.RIGHT}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info = {"side": Side(int(action)), "seen": {self.env_id}, "at": {"path": Path("a"), "x": torch.ones(2)}}
        if self.secret is not None:
            info["at"]["secret"] = self.secret
        return self.observed(), 0.0, False, self.steps == 3, info


RICH_INFO_ENVS = [lambda i=i: RichInfoEnv(i) for i in range(4)]
OPAQUE_INFO_ENVS = [lambda i=i: RichInfoEnv(i, secret=object()) for i in range(64)]


def test_infos_and_attributes_are_converted_to_plain_data() -> None:
    with contextlib.closing(ParallelVectorEnv(RICH_INFO_ENVS, num_workers=2)) as envs:
        assert envs.reset()[1]["side"].tolist() == [1] * 4
        infos = envs.step(np.array([0, 1, 0, 1]))[4]
        assert infos["side"].tolist() == [0, 1, 0, 1]
        assert infos["seen"].tolist() == [[0], [1], [2], [3]]
        assert infos["at"]["path"].tolist() == ["a"] * 4
        assert infos["at"]["x"].tolist() == [[1.0, 1.0]] * 4
        assert envs.get_attr("spec")[3].max_episode_steps == 500
        assert gym.make(envs.get_attr("spec")[0]).spec == gym.make("CartPole-v1").spec


def test_a_pool_converts_attributes_and_results_of_calls_to_plain_data() -> None:
    with AsyncWorkerPool(
        RICH_INFO_ENVS, lambda observations: np.zeros(len(observations["n"]), int), num_workers=2
    ) as pool:
        assert pool.get_attr("spec")[0].id == "CartPole-v1"
        assert pool.call("observed")[0]["x"].shape == (2,)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_final_observations_are_converted_like_observations(num_workers: int) -> None:
    envs = ParallelVectorEnv(RICH_INFO_ENVS, num_workers=num_workers, autoreset_mode=AutoresetMode.SAME_STEP)
    with contextlib.closing(envs):
        envs.reset()
        for _ in range(3):
            *_, infos = envs.step(np.zeros(4, int))
        final = infos["final_obs"][0]
        assert (type(final["x"]), final["x"].dtype, final["x"].tolist()) == (np.ndarray, np.float32, [0.375, 0.375])
        assert final["n"] == 3


def test_an_info_without_a_plain_form_is_left_out_with_one_warning() -> None:
    with contextlib.closing(ParallelVectorEnv(OPAQUE_INFO_ENVS, num_workers=2)) as envs:
        envs.reset()
        with pytest.warns(
            UserWarning, match=r"infos\['at'\]\['secret'\] is a builtins.object .* is left out"
        ) as caught:
            all_infos = [envs.step(np.zeros(64, int))[4] for _ in range(3)]
        assert len(caught) == 1
        assert all(infos["at"].keys() == {"path", "_path", "x", "_x"} for infos in all_infos[:2])


def test_with_strict_infos_an_info_without_a_plain_form_is_an_error() -> None:
    with contextlib.closing(ParallelVectorEnv(OPAQUE_INFO_ENVS, num_workers=2, strict_infos=True)) as envs:
        envs.reset()
        for _ in range(2):
            with pytest.raises(NotDataError, match=r"infos\['at'\]\['secret'\] is a builtins.object") as caught:
                envs.step(np.zeros(64, int))
            assert (len(str(caught.value).splitlines()), caught.value.__cause__) == (1, None)
        envs.reset()
        envs.send(np.zeros(64, int))
        with pytest.raises(NotDataError):
            envs.recv()


def test_without_workers_an_info_may_be_any_object() -> None:
    with contextlib.closing(ParallelVectorEnv(OPAQUE_INFO_ENVS, num_workers=0, strict_infos=True)) as envs:
        envs.reset()
        assert type(envs.step(np.zeros(64, int))[4]["at"]["secret"][63]) is object


def test_without_workers_the_sub_environments_are_accessible() -> None:
    with contextlib.closing(ParallelVectorEnv(MISSION_ENVS, num_workers=0)) as envs:
        assert [env.env_id for env in envs.envs] == [0, 1, 2, 3]
    with contextlib.closing(ParallelVectorEnv(MISSION_ENVS, num_workers=2)) as envs:
        assert not hasattr(envs, "envs")
        with pytest.raises(AttributeError, match=r"envs needs num_workers=0, .* Use call\(\)"):
            _ = envs.envs
