"""Check that ``ParallelVecEnv`` returns exactly what the ``DummyVecEnv`` of Stable-Baselines3 returns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs import Plain
from gymnasium import spaces
from scripts import printed_by
from stable_baselines3 import A2C, DQN, PPO, SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecVideoRecorder,
)
from videos import keep_frames, videos_in

from parenv import ConfigurationError
from parenv.adapters.sb3 import ParallelVecEnv
from parenv.errors import NotDataError

N, SEED = 3, 5
WORKERS = [0, 2]


class Talkative(gym.Env[Any, Any]):
    """Environment with episodes of random lengths, nested observations, and infos that Gymnasium cannot stack."""

    action_space = spaces.Discrete(3)

    def __init__(self, kind: str = "dict") -> None:
        parts = {"position": spaces.Box(-9.0, 9.0, (2,)), "step": spaces.Discrete(50)}
        self.observation_space = spaces.Dict(parts) if kind == "dict" else spaces.Tuple(tuple(parts.values()))
        self.kind, self.level, self.options = kind, 0, None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length, self.options = 0, int(self.np_random.integers(2, 9)), options
        return self.observe(), {"length": self.length} if self.length % 2 else {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        terminated, truncated = self.steps == self.length, self.steps == self.length or self.steps == 5
        return self.observe(), float(action) / 3, terminated, truncated, self.tell(int(action))

    def observe(self) -> Any:
        parts = {"position": self.np_random.uniform(-1, 1, 2).astype(np.float32), "step": self.steps}
        return parts if self.kind == "dict" else tuple(parts.values())

    def tell(self, action: int) -> dict[str, Any]:
        several: list[dict[str, Any]] = [
            {},
            {"mixed": 1, "ragged": np.arange(self.length), "nested": {"deep": {"truth": True}}},
            {"mixed": 0.5, "ragged": np.ones(2, np.float32), "nothing": None, "word": "text", "list": [1, "a"]},
        ]
        return several[action]

    def add(self, number: int, *, twice: bool = False) -> int:
        return self.level + number * (2 if twice else 1)

    def last_options(self) -> Any:
        return self.options

    def secret(self) -> Any:
        return object()


class Marked(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that does nothing, for ``env_is_wrapped``."""


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=15)


def pendulum() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1", max_episode_steps=7)


MAKERS: dict[str, Callable[[], Any]] = {
    "CartPole with a time limit": cartpole,
    "Pendulum with a time limit": pendulum,
    "Dict observations": Talkative,
    "Tuple observations": lambda: Talkative("tuple"),
    "a Monitor": lambda: Monitor(cartpole()),
    "a Monitor of Dict observations": lambda: Monitor(Talkative()),
}


def assert_same(one: Any, other: Any) -> None:
    """Check that two values are bitwise identical and have the same types, except for the times of a Monitor."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys()
        for key in one.keys() - {"t"}:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert type(one) is type(other)
        for part, of_other in zip(one, other, strict=True):
            assert_same(part, of_other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert type(one) is type(other)
        assert one == other


def trace(envs: VecEnv, steps: int = 60) -> list[Any]:
    """Step a VecEnv with fixed seeds and actions, and close it. Return all its results."""
    envs.seed(SEED)
    envs.action_space.seed(SEED)
    found: list[Any] = [envs.reset(), deepcopy(envs.reset_infos)]
    for _ in range(steps):
        actions = np.array([envs.action_space.sample() for _ in range(envs.num_envs)])
        found += [envs.step(actions), deepcopy(envs.reset_infos)]
    envs.close()
    return found


@pytest.mark.one_in(5)
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_trace_equals_the_trace_of_a_dummy_vec_env(name: str, num_workers: int) -> None:
    env_fns = [MAKERS[name]] * N
    expected = trace(DummyVecEnv(env_fns))
    assert_same(trace(ParallelVecEnv(env_fns, num_workers=num_workers)), expected)
    assert any(results[2].any() for results in expected[2::2])


PIXELS, NUMBERS = spaces.Box(0, 255, (4, 4, 1), np.uint8), spaces.Box(-9, 9, (3,), np.float32)
OBSERVED: dict[str, tuple[Any, Any]] = {
    "pixels": (PIXELS, np.full((4, 4, 1), 200, np.uint8)),
    "floats": (NUMBERS, np.full(3, 0.1, np.float32)),
    "wider floats": (NUMBERS, np.full(3, 0.1)),
    "integers": (NUMBERS, np.arange(3)),
    "a list": (NUMBERS, [0.1, 0.2, 0.3]),
    "narrower floats": (spaces.Box(-9, 9, (3,), np.float64), np.full(3, 0.1, np.float32)),
    "half floats": (spaces.Box(-9, 9, (3,), np.float16), np.full(3, 0.1, np.float32)),
    "a number": (spaces.Discrete(5), np.int32(3)),
    "bits": (spaces.MultiBinary(3), np.array([1, 0, 1])),
    "a dict": (spaces.Dict(pixels=PIXELS, numbers=NUMBERS), {"pixels": PIXELS.high, "numbers": np.full(3, 0.1)}),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("name", OBSERVED)
def test_observations_are_cast_as_in_a_dummy_vec_env_and_without_a_warning(name: str, num_workers: int) -> None:
    space, shown = OBSERVED[name]
    env_fns = [lambda: Plain(shown, space, length=3, reward=np.float64(0.1))] * N
    assert_same(trace(ParallelVecEnv(env_fns, num_workers=num_workers), 5), trace(DummyVecEnv(env_fns), 5))


ACTED: dict[str, tuple[Any, Any]] = {
    "floats as bits": (spaces.MultiBinary(3), np.ones((N, 3), np.float32)),
    "floats as pixels": (spaces.Box(0, 255, (2,), np.uint8), np.full((N, 2), 0.5)),
    "narrower floats": (spaces.Box(-1, 1, (2,), np.float64), np.full((N, 2), 0.1, np.float32)),
    "wider floats": (spaces.Box(-1, 1, (2,), np.float32), np.full((N, 2), 0.1)),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("name", ACTED)
def test_actions_of_any_dtype_reach_the_environments_as_they_are(name: str, num_workers: int) -> None:
    space, actions = ACTED[name]

    def make() -> Any:
        return Plain(action_space=space, on_step=lambda env: {"action": np.array(env.action)})

    results = []
    for envs in (DummyVecEnv([make] * N), ParallelVecEnv([make] * N, num_workers=num_workers)):
        envs.reset()
        results.append(envs.step(actions)[3])
        envs.close()
    assert_same(*results)


def test_infos_have_the_terminal_observation_and_flag_truncation_in_every_step() -> None:
    results = trace(ParallelVecEnv([lambda: Monitor(pendulum())] * N, num_workers=2))[2::2]
    for number, (_, _, dones, infos) in enumerate(results, 1):
        for done, info in zip(dones, infos, strict=True):
            assert done == (number % 7 == 0)
            assert info["TimeLimit.truncated"] is bool(done)
            assert ("terminal_observation" in info) == ("episode" in info) == done
            assert not done or info["episode"]["l"] == 7


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wrap", [VecNormalize, lambda envs: VecFrameStack(envs, 4), VecMonitor])
def test_wrappers_of_stable_baselines_work_as_on_a_dummy_vec_env(wrap: Callable[[VecEnv], VecEnv]) -> None:
    expected = trace(wrap(DummyVecEnv([cartpole] * N)))
    assert_same(trace(wrap(ParallelVecEnv([cartpole] * N, num_workers=2))), expected)


@pytest.mark.more
def test_make_vec_env_makes_one_and_evaluate_policy_finds_its_monitors() -> None:
    envs, dummy = (
        make_vec_env("CartPole-v1", N, seed=SEED, vec_env_cls=kind, vec_env_kwargs=arguments)
        for kind, arguments in ((ParallelVecEnv, {"num_workers": 2}), (DummyVecEnv, {}))
    )
    assert isinstance(envs, ParallelVecEnv)
    assert envs.render_mode == dummy.render_mode == "rgb_array"
    assert envs.metadata == dummy.metadata
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        VecMonitor(envs)
    assert_same(envs.reset(), dummy.reset())
    model = PPO("MlpPolicy", dummy, device="cpu")
    assert evaluate_policy(model, envs, 4) == evaluate_policy(model, dummy, 4)
    envs.close()
    dummy.close()


def test_it_takes_at_most_one_worker_per_environment() -> None:
    envs = make_vec_env("CartPole-v1", 1, vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": 2})
    assert isinstance(envs, ParallelVecEnv)
    assert envs._envs.num_workers == 1
    envs.close()


@pytest.mark.parametrize("num_workers", WORKERS)
def test_attributes_and_methods_by_index_work_as_on_a_dummy_vec_env(num_workers: int) -> None:
    env_fns = [lambda: Marked(Talkative()), Talkative, lambda: gym.Wrapper(Marked(Talkative())), Talkative]
    answers = []
    for envs in (DummyVecEnv(env_fns), ParallelVecEnv(env_fns, num_workers=num_workers)):
        envs.env_method("set_wrapper_attr", "level", 10, indices=[3, 1])
        envs.set_attr("color", "red", indices=2)
        envs.set_attr("level", 7, indices=[0])
        answers.append(
            [
                envs.get_attr("level"),
                envs.get_attr("level", 3),
                envs.get_attr("level", indices=[-1, 0]),
                envs.env_method("add", 1, indices=[3, 0], twice=True),
                envs.env_method("add", 1, indices=[]),
                envs.has_attr("level"),
                envs.has_attr("color"),
                envs.get_attr("color", 2),
                envs.env_is_wrapped(Marked),
                envs.env_is_wrapped(gym.Wrapper, [2, 1]),
                envs.env_is_wrapped(Monitor, 0),
            ]
        )
        with pytest.raises(AttributeError, match="no_such_thing"):
            envs.get_attr("no_such_thing")
        with pytest.raises(IndexError):
            envs.get_attr("level", 4)
        envs.close()
    assert_same(*answers)


def test_a_result_that_is_not_plain_data_is_an_error() -> None:
    envs = ParallelVecEnv([Talkative] * 2, num_workers=2)
    with pytest.raises(NotDataError, match=r"builtins\.object"):
        envs.env_method("secret", indices=1)
    assert envs.has_attr("secret")
    envs.close()


@pytest.mark.parametrize("num_workers", WORKERS)
def test_seeds_and_options_are_used_once(num_workers: int) -> None:
    envs = ParallelVecEnv([Talkative] * N, num_workers=num_workers)
    assert envs.seed(SEED) == [SEED, SEED + 1, SEED + 2]
    envs.set_options([{"goal": 1}, {}, {"goal": 3}])
    first = envs.reset()
    assert envs.env_method("last_options") == [{"goal": 1}, None, {"goal": 3}]
    second = envs.reset()
    assert envs.env_method("last_options") == [None] * N
    assert not np.array_equal(first["position"], second["position"])
    envs.seed(SEED)
    envs.set_options({"goal": 4})
    assert_same(envs.reset(), first)
    assert envs.env_method("last_options") == [{"goal": 4}] * N
    envs.close()


class WithoutOptions(gym.Env[Any, Any]):
    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return np.full(1, seed or 0, np.float32), {}


@pytest.mark.parametrize("num_workers", WORKERS)
def test_an_environment_whose_reset_takes_no_options_needs_none(num_workers: int) -> None:
    envs = ParallelVecEnv([WithoutOptions] * 2, num_workers=num_workers)
    envs.seed(3)
    assert envs.reset().tolist() == [[3], [4]]
    envs.set_options([{}, {"goal": 1}])
    with pytest.raises(TypeError, match="unexpected keyword argument 'options'"):
        envs.reset()
    envs.close()


def test_images_are_tiled_as_by_a_dummy_vec_env() -> None:
    arguments: dict[str, Any] = {"n_envs": N, "seed": SEED, "env_kwargs": {"render_mode": "rgb_array"}}
    dummy = make_vec_env("CartPole-v1", **arguments)
    envs = make_vec_env("CartPole-v1", vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": 2}, **arguments)
    dummy.reset()
    envs.reset()
    assert_same(list(envs.get_images()), list(dummy.get_images()))
    assert_same(envs.render(), dummy.render())
    dummy.close()
    envs.close()


def test_without_images_there_is_a_warning() -> None:
    envs = ParallelVecEnv([cartpole] * N, num_workers=2)
    envs.reset()
    with pytest.warns(UserWarning, match="rgb_array"):
        assert envs.get_images() == [None] * N
    envs.close()


def test_a_video_recorder_gets_its_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_frames(monkeypatch)
    envs = make_vec_env("CartPole-v1", 2, seed=1, vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": 2})
    recorder = VecVideoRecorder(envs, str(tmp_path), lambda step: step == 0, video_length=5)
    trace(recorder, 6)
    ((frames, fps),) = videos_in(tmp_path).values()
    assert (frames.shape, fps) == ((6, 800, 600, 3), 50)


def test_closing_twice_is_fine() -> None:
    envs = ParallelVecEnv([cartpole] * N, num_workers=2)
    envs.close()
    envs.close()


def test_one_environment_for_all_is_refused() -> None:
    env = cartpole()
    with pytest.raises(ConfigurationError, match=r"returned the environment of env_id [02]"):
        ParallelVecEnv([lambda: env] * 4, num_workers=2)
    env.close()


def test_the_start_method_changes_nothing() -> None:
    expected = trace(ParallelVecEnv([cartpole] * N, num_workers=1), 5)
    assert_same(trace(ParallelVecEnv([cartpole] * N, "spawn", num_workers=1), 5), expected)
    with pytest.raises(ConfigurationError, match="start method"):
        ParallelVecEnv([cartpole] * N, "teleport")


def test_an_exception_of_an_environment_comes_back_in_its_own_type() -> None:
    class Fragile(Talkative):
        def step(self, action: Any) -> Any:
            raise LookupError("lost the way")

    envs = ParallelVecEnv([Talkative, Fragile], num_workers=2)
    envs.reset()
    with pytest.raises(LookupError, match="lost the way"):
        envs.step(np.zeros(2, np.int64))
    envs.close()


def test_a_worker_that_died_ends_its_episodes_if_it_is_restarted() -> None:
    class Mortal(Talkative):
        def step(self, action: Any) -> Any:
            if action == 2:
                import os

                os._exit(3)
            return super().step(action)

    envs = ParallelVecEnv([Mortal] * 2, num_workers=2, on_worker_death="restart")
    envs.seed(SEED)
    before = envs.reset()
    observations, _, dones, infos = envs.step(np.array([0, 2]))
    assert dones.tolist() == [False, True]
    last = infos[1].pop("terminal_observation")
    np.testing.assert_array_equal(last["position"], before["position"][1])
    assert infos[1] == {"worker_restarted": True, "ended_by": "worker_died", "TimeLimit.truncated": True}
    assert observations["step"][1] == 0
    envs.close()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("algorithm", "env_id", "arguments"),
    [
        (PPO, "CartPole-v1", {"n_steps": 64, "batch_size": 64, "n_epochs": 1}),
        (A2C, "CartPole-v1", {}),
        (DQN, "CartPole-v1", {"learning_starts": 50}),
        (SAC, "Pendulum-v1", {"learning_starts": 50, "gradient_steps": 1}),
    ],
)
def test_an_algorithm_learns_on_it(algorithm: Any, env_id: str, arguments: dict[str, Any]) -> None:
    envs = make_vec_env(env_id, 4, seed=1, vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": 2})
    model = algorithm("MlpPolicy", envs, device="cpu", seed=1, **arguments)
    model.learn(900)
    assert model.num_timesteps >= 900
    assert len(model.ep_info_buffer) > 0
    envs.close()


@pytest.mark.soak
def test_ppo_solves_cartpole_on_it() -> None:
    torch.set_num_threads(1)
    envs = make_vec_env("CartPole-v1", 8, seed=1, vec_env_cls=ParallelVecEnv, vec_env_kwargs={"num_workers": 2})
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda left: 1e-3 * left,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        clip_range=lambda left: 0.2 * left,
        device="cpu",
        seed=1,
    )
    model.learn(100_000)
    mean_return, _ = evaluate_policy(model, envs, 100)
    envs.close()
    assert mean_return >= 475


@pytest.mark.more
def test_hindsight_replay_computes_its_rewards_on_workers() -> None:
    envs = ParallelVecEnv([lambda: BitFlippingEnv(4, channel_first=False)] * 4, num_workers=2)
    replay: dict[str, Any] = {"replay_buffer_class": HerReplayBuffer, "learning_starts": 100, "seed": 1}
    model = DQN("MultiInputPolicy", envs, device="cpu", **replay)
    model.learn(400)
    assert model._n_updates > 0
    envs.close()


def test_parenv_does_not_import_stable_baselines() -> None:
    script = "import sys, parenv, parenv.adapters\nassert 'stable_baselines3' not in sys.modules\n"
    printed_by(script)


ASKED = """
import sys
import gymnasium as gym
from stable_baselines3.common.monitor import Monitor
from parenv.adapters.sb3 import ParallelVecEnv

class Asked(gym.Wrapper):
    def imported(self):
        return "stable_baselines3" in sys.modules

envs = ParallelVecEnv([lambda: Asked(gym.make("CartPole-v1"))] * 2, num_workers=2)
print(envs.env_is_wrapped(Monitor), envs.env_is_wrapped(Asked, 1), envs.env_method("imported"))
envs.close()
"""


@pytest.mark.more
def test_workers_that_do_not_use_stable_baselines_do_not_import_it() -> None:
    assert printed_by(ASKED) == "[False, False] [True] [False, False]\n"


def test_without_stable_baselines_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.vec_env.base_vec_env", None)
    monkeypatch.delitem(sys.modules, "parenv.adapters.sb3")
    with pytest.raises(ImportError, match=r'Run: pip install "\.\[sb3\]"'):
        import parenv.adapters.sb3  # noqa: F401


class Nested(gym.Env[Any, Any]):
    """Environment with nested actions, whose info contains the action."""

    observation_space = spaces.Box(-1, 1, (1,))

    def __init__(self, action_space: Any) -> None:
        self.action_space, self.render_mode = action_space, None
        self.spec = gym.spec("CartPole-v1")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), 0.0, False, False, {"given": repr(action)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,), np.float32)),
        spaces.Tuple([spaces.Discrete(3), spaces.Dict(b=spaces.MultiBinary(2))]),
    ],
    ids=["dict", "tuple"],
)
def test_nested_actions_are_a_list_with_one_for_each_environment(space: Any, num_workers: int) -> None:
    envs = ParallelVecEnv([lambda: Nested(space)] * N, num_workers=num_workers)
    dummy = DummyVecEnv([lambda: Nested(space)] * N)
    envs.reset()
    dummy.reset()
    actions = [space.sample() for _ in range(N)]
    for given in (actions, tuple(actions)):
        for got, wanted in zip(envs.step(given)[3], dummy.step(given)[3], strict=True):
            assert got == wanted
    with pytest.raises(ValueError, match=f"one for each of {N} environments, got {N - 1}"):
        envs.step(actions[1:])
    envs.close()


@pytest.mark.parametrize("num_workers", WORKERS)
def test_specs_and_spaces_are_available(num_workers: int) -> None:
    action_space = spaces.Discrete(2)
    given = (Nested.observation_space, action_space)
    envs = ParallelVecEnv([lambda: Nested(action_space)] * N, num_workers=num_workers, spaces=given, strict_infos=True)
    assert envs.get_attr("spec")[0] == gym.spec("CartPole-v1")
    assert envs.action_space is action_space
    if num_workers:
        assert not hasattr(envs, "envs")
    else:
        assert [type(env) for env in envs.envs] == [Nested] * N
    envs.close()
