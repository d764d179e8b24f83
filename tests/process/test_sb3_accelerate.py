"""Check that a model of Stable-Baselines3 in ``accelerate`` learns bitwise the same and is unchanged afterwards."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import ARS, QRDQN, TQC, TRPO, MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from parenv import ConfigurationError, SubEnvironmentError, WorkerDiedError
from parenv.adapters.sb3 import ParallelVecEnv, RunAdvice, RunCosts, accelerate
from parenv.adapters.sb3.model_envs import check_version, factories_of
from parenv.adapters.sb3.replay import ReplayedVecEnv
from parenv.adapters.sb3.rollout_buffer import fill, is_blind
from parenv.adapters.sb3.run_advice import why_slower as why
from parenv.worker.pickled_env import PickledEnv

MODULE = importlib.import_module("parenv.adapters.sb3.accelerate")  # The attribute of this name is the function.
N, SEED = 3, 5
NOISE = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.2 * np.ones(1))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def rollouts_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay and fill rollouts in parts of 16 steps, so that longer rollouts have several parts."""
    monkeypatch.setattr(MODULE, "REPLAYED_PART", 16)
    monkeypatch.setattr(MODULE, "FILLED_PART", 16)


@pytest.fixture(autouse=True)
def why_slower(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the reason why workers are slower, in a list. By default they are not, although these steps are short."""
    reason = [""]
    monkeypatch.setattr(MODULE, "why_slower", lambda *about: reason[0])
    return reason


def measure(run: Any) -> None:
    """Measure a step. On a busy machine the first attempts may not reach one within their limit."""
    deadline = time.monotonic() + 60.0
    while run._env_step_s is None and time.monotonic() < deadline:
        del run.__dict__["_env_step_s"]


class Sums(gym.Env[Any, Any]):
    """Environment with random episode lengths, both kinds of ends, nested observations, mixed infos and a mask."""

    observation_space = spaces.Dict(
        position=spaces.Box(-9, 9, (2,), np.float32), step=spaces.Box(0, 9, (1,), np.float32)
    )
    action_space = spaces.Discrete(3)
    level = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(2, 9))
        return self.observe(), {"length": self.length}

    def step(self, action: Any) -> Any:
        self.steps += 1
        terminated, truncated = self.steps == self.length, self.steps == 5
        infos: list[dict[str, Any]] = [{}, {"speed": self.steps / 2, "stuck": False}, {"list": [1, "a"], "none": None}]
        return self.observe(), float(action) / 3, terminated, truncated, infos[int(action)]

    def observe(self) -> Any:
        return {
            "position": self.np_random.uniform(-1, 1, 2).astype(np.float32),
            "step": np.array([self.steps], np.float32),
        }

    def action_masks(self) -> Any:
        return np.array([True, self.steps % 2 == 0, True])


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=15)


def pendulum() -> gym.Env[Any, Any]:
    return gym.make("Pendulum-v1", max_episode_steps=20)


class Images(gym.Env[Any, Any]):
    """Environment whose observations are small images."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        return self.observe(), float(action), bool(self.np_random.random() < 0.1), False, {}

    def observe(self) -> Any:
        return self.np_random.integers(0, 255, (36, 36, 1), np.uint8)


class Painting(gym.Env[Any, Any]):
    """Environment with a Box of integers as action space."""

    observation_space = spaces.Box(-9, 9, (2,), np.float32)
    action_space = spaces.Box(0, 255, (2,), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.np_random.random(2, np.float32), float(action.sum()), bool(self.np_random.random() < 0.1), False, {}


class Drawing(gym.Env[Any, Any]):
    """Environment that draws observations from its own space, and rewards from its own action space if it may."""

    def __init__(self, draws_actions: bool = True) -> None:
        self.observation_space = spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(5))
        self.observation_space.seed(SEED)
        self.action_space = spaces.Discrete(3, seed=SEED)
        self.draws_actions = draws_actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        hit = self.draws_actions and self.action_space.sample() == action
        return self.observation_space.sample(), float(hit), bool(self.np_random.random() < 0.1), False, {}


def drawing_observations() -> gym.Env[Any, Any]:
    return Drawing(draws_actions=False)


class Remembering(Painting):
    """Environment that keeps values of many kinds from one episode to the next."""

    def __init__(self) -> None:
        self.resets, self.actions, self.recent = 0, list[Any](), deque[float](maxlen=5)
        self.seen, self.by_action, self.noise = set[int](), dict[int, int](), np.random.default_rng(SEED)
        self.total, self.connection = np.zeros(2), None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        self.connection = 3  # type: ignore[assignment]  # As the number of a connection that a simulator opened.
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.recent.append(float(self.noise.random()))
        number = int(action[0]) % 7
        self.seen.add(number)
        self.by_action[number] = self.by_action.get(number, 0) + 1
        self.total += action
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.resets + self.total.sum() / 1e6 + self.recent[-1], terminated, truncated, info


class Connected(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that opens something in its first episode, and notes that it is open."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.is_open, self.lock = False, None

    def reset(self, **options: Any) -> Any:
        if not self.is_open:
            self.is_open, self.lock = True, threading.Lock()  # type: ignore[assignment]
        assert self.lock is not None
        return super().reset(**options)


class Switching(Painting):
    action_space = spaces.MultiBinary(3)  # type: ignore[assignment]


def envs_of(make: Callable[[], Any], wrap: Callable[[VecEnv], VecEnv] = lambda envs: envs, n: int = N) -> VecEnv:
    return wrap(make_vec_env(make, n, seed=SEED))


def model_of(
    kind: type[Any], make: Callable[[], Any], wrap: Any = lambda envs: envs, n: int = N, **settings: Any
) -> Any:
    has_dict = make in (Sums, bits, Drawing, drawing_observations)
    policy = settings.pop("policy", "MultiInputPolicy" if has_dict else "MlpPolicy")
    return kind(policy, envs_of(make, wrap, n), seed=SEED, device="cpu", **settings)


def bits() -> gym.Env[Any, Any]:
    return BitFlippingEnv(4, channel_first=False)


def monitored(envs: Any) -> VecMonitor:
    """Return a VecMonitor around the environments, without the Monitor of each."""
    return VecMonitor(DummyVecEnv([lambda env=env: env.env for env in envs.envs]))


class Steps(BaseCallback):
    """Callback that records its local variables in each step, and the beginning and end of each rollout."""

    NAMES = ("rewards", "dones", "infos", "actions", "new_obs", "values", "log_probs", "buffer_actions", "n_steps")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def _on_rollout_start(self) -> None:
        self.seen.append(("rollout", self.num_timesteps))

    def _on_step(self) -> bool:
        seen = {name: self.locals[name] for name in self.NAMES if name in self.locals}
        self.seen.append((self.num_timesteps, copy.deepcopy(seen)))
        return True

    def _on_rollout_end(self) -> None:
        self.seen.append(("end", self.num_timesteps))


def assert_same(one: Any, other: Any) -> None:
    """Check that two values are bitwise identical and have the same types, except for the times of a Monitor."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"t"}:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert type(one) is type(other)
        assert len(one) == len(other)
        for part, of_other in zip(one, other, strict=True):
            assert_same(part, of_other)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert type(one) is type(other), (one, other)
        np.testing.assert_array_equal(one, other)


def arrays_of(buffer: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(buffer).items() if isinstance(value, np.ndarray | dict | int | bool)}


def assert_same_models(one: Any, other: Any) -> None:
    assert_same(dict(one.policy.state_dict()), dict(other.policy.state_dict()))
    for name in ("rollout_buffer", "replay_buffer"):
        if hasattr(one, name):
            assert_same(arrays_of(getattr(one, name)), arrays_of(getattr(other, name)))
    assert_same(list(one.ep_info_buffer), list(other.ep_info_buffer))
    assert (one.num_timesteps, one._n_updates) == (other.num_timesteps, other._n_updates)


def learned(model: Any, steps: int, **options: Any) -> Steps:
    callback = Steps()
    if options:
        with accelerate(model, **options):
            model.learn(steps, callback)
    else:
        model.learn(steps, callback)
    return callback


def assert_learns_the_same(make_model: Callable[[], Any], steps: int, **options: Any) -> None:
    plain = make_model()
    seen = learned(plain, steps)
    on_workers = make_model()
    assert_same(seen.seen, learned(on_workers, steps, **options).seen)
    assert_same_models(plain, on_workers)


PPO_SETTINGS: dict[str, Any] = {"n_steps": 32, "batch_size": 48, "n_epochs": 2}
OFF_POLICY: dict[str, Any] = {"learning_starts": 30, "batch_size": 32, "buffer_size": 600}
SDE: dict[str, Any] = {"use_sde": True, "sde_sample_freq": 4}
EXACT: dict[str, tuple[Any, ...]] = {
    "PPO, truncated": (PPO, cartpole, PPO_SETTINGS),
    "PPO, Dict and infos": (PPO, Sums, PPO_SETTINGS),
    "PPO, gSDE": (PPO, pendulum, PPO_SETTINGS | SDE),
    "PPO, squashed": (PPO, pendulum, PPO_SETTINGS | SDE | {"policy_kwargs": {"squash_output": True}}),
    "PPO, MultiBinary": (PPO, Switching, PPO_SETTINGS),
    "PPO, pixels as actions": (PPO, Painting, PPO_SETTINGS),
    "PPO, draws from the spaces": (PPO, Drawing, PPO_SETTINGS),
    "A2C, draws from the spaces": (A2C, Drawing, {}),
    "DQN, draws from the observation space": (DQN, drawing_observations, OFF_POLICY),
    "A2C": (A2C, cartpole, {}),
    "A2C, longer": (A2C, pendulum, {"n_steps": 20}),
    "PPO, VecNormalize": (PPO, pendulum, PPO_SETTINGS, VecNormalize),
    "PPO, VecNormalize of rewards": (PPO, pendulum, PPO_SETTINGS, lambda envs: VecNormalize(envs, norm_obs=False)),
    "PPO, VecNormalize at rest": (PPO, pendulum, PPO_SETTINGS, lambda envs: VecNormalize(envs, training=False)),
    "PPO, VecFrameStack": (PPO, cartpole, PPO_SETTINGS, lambda envs: VecFrameStack(VecCheckNan(envs), 3)),
    "PPO, images": (
        PPO, Images, {"policy": "CnnPolicy", "n_steps": 16, "batch_size": 24, "n_epochs": 1},
        lambda envs: VecFrameStack(envs, 2),
    ),
    "PPO, VecMonitor": (PPO, cartpole, PPO_SETTINGS, monitored),
    "DQN": (DQN, cartpole, OFF_POLICY),
    "SAC": (SAC, pendulum, OFF_POLICY | {"action_noise": NOISE}),
    "SAC, gSDE": (SAC, pendulum, OFF_POLICY | SDE | {"use_sde_at_warmup": True}, VecNormalize),
    "TD3": (TD3, pendulum, OFF_POLICY | {"action_noise": NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))}),
    "DDPG": (DDPG, pendulum, OFF_POLICY),
    "HER": (DQN, bits, OFF_POLICY | {"replay_buffer_class": HerReplayBuffer}),
    "TRPO": (TRPO, cartpole, {"n_steps": 32, "batch_size": 48}),
    "MaskablePPO": (MaskablePPO, Sums, PPO_SETTINGS),
    "RecurrentPPO": (RecurrentPPO, cartpole, PPO_SETTINGS | {"policy": "MlpLstmPolicy"}),
    "TQC": (TQC, pendulum, OFF_POLICY),
    "QRDQN": (QRDQN, cartpole, OFF_POLICY),
}  # fmt: skip


@pytest.mark.one_in(8)
@pytest.mark.parametrize("case", EXACT)
def test_a_model_learns_bitwise_the_same_as_without_workers(case: str) -> None:
    kind, make, settings, *wrap = EXACT[case]
    steps = 120 if "learning_starts" in settings else 200
    assert_learns_the_same(lambda: model_of(kind, make, *wrap, **copy.deepcopy(settings)), steps, num_workers=2)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call of ``fill`` appends the final position in the rollout buffer."""
    ends: list[int] = []

    def noted(model: Any, envs: Any, callback: Any, buffer: Any) -> bool:
        try:
            return fill(model, envs, callback, buffer)
        finally:
            ends.append(buffer.pos)

    monkeypatch.setattr(MODULE, "fill", noted)
    return ends


def evaluating(folder: Path, stop_at: float) -> list[BaseCallback]:
    """Return callbacks that act in some steps and read no results of a step."""
    stop = StopTrainingOnRewardThreshold(stop_at)
    evaluate = EvalCallback(envs_of(cartpole, n=1), stop, eval_freq=24, n_eval_episodes=2, verbose=0)
    return [evaluate, EveryNTimesteps(30, CheckpointCallback(1, str(folder)))]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", ["PPO, truncated", "PPO, Dict and infos", "A2C, longer", "TRPO"])
def test_rollouts_without_step_callbacks_are_filled_at_once_with_the_same_values(case: str, filled: list[int]) -> None:
    kind, make, settings = EXACT[case]
    models = []
    for options in (None, {"num_workers": 2}):
        models.append(model := model_of(kind, make, **settings))
        with accelerate(model, **options) if options else contextlib.nullcontext():
            model.learn(100)
            model.learn(100, reset_num_timesteps=False)
    assert_same_models(*models)
    assert len(models[0].ep_info_buffer) > 5
    assert filled == [settings["n_steps"]] * len(filled) != []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("stop_at", [1.0, 1000.0])
def test_callbacks_that_read_no_step_are_called_in_every_step(
    stop_at: float, filled: list[int], tmp_path: Path
) -> None:
    models, files, evaluated = [], [], []
    for options in (None, {"num_workers": 2}):
        models.append(model := model_of(PPO, cartpole, **PPO_SETTINGS))
        callbacks = evaluating(tmp_path / str(options is None), stop_at)
        with accelerate(model, **options) if options else contextlib.nullcontext():
            model.learn(192, callbacks)
        files.append(sorted(path.name for path in (tmp_path / str(options is None)).iterdir()))
        evaluated.append([(callback.n_calls, callback.num_timesteps) for callback in callbacks])
    assert filled == ([23] if stop_at == 1.0 else [32, 32])
    assert_same(evaluated[0], evaluated[1])
    assert files[0] == files[1] != []
    assert_same_models(*models)


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (ConvertCallback(None), True),
        (CallbackList([ConvertCallback(None), CheckpointCallback(1, "")]), True),
        (ConvertCallback(lambda found, names: True), False),
        (StopTrainingOnMaxEpisodes(1), False),
        (EveryNTimesteps(1, StopTrainingOnMaxEpisodes(1)), False),
        (CallbackList([CheckpointCallback(1, ""), Steps()]), False),
    ],
)
def test_callbacks_that_read_steps_are_recognized(callback: BaseCallback, expected: bool) -> None:
    assert is_blind(callback) == expected


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_the_rollout_buffer_does_not_depend_on_the_number_of_workers(num_workers: int) -> None:
    assert_learns_the_same(lambda: model_of(PPO, cartpole, **PPO_SETTINGS), 200, num_workers=num_workers)


def test_workers_act_only_if_the_results_are_bitwise_identical() -> None:
    wraps: list[tuple[Any, bool]] = [(monitored, True), (VecNormalize, False)]
    for wrap, acts in wraps:
        model = model_of(PPO, cartpole, wrap, **PPO_SETTINGS)
        with accelerate(model, num_workers=1):
            assert isinstance(model.env.venv, ReplayedVecEnv) == acts


class Watch(BaseCallback):
    """Callback that stops training after some calls, by an exception or by returning ``False``."""

    def __init__(self, calls: int, how: type[BaseException] | None = None) -> None:
        super().__init__()
        self.calls, self.how = calls, how

    def _on_step(self) -> bool:
        if self.n_calls == self.calls and self.how is not None:
            raise self.how("by a callback")
        return self.n_calls < self.calls


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [cartpole, pendulum])
def test_a_model_is_unchanged_after_the_block(make: Any) -> None:
    model = model_of(PPO, make, **PPO_SETTINGS)
    attributes, forward, env = {*vars(model), "_logger"}, type(model.policy).forward, model.env
    with accelerate(model, num_workers=2):
        assert model.env is not env
        model.learn(100)
    assert type(model) is PPO
    assert model.env is env
    assert model.policy.forward.__func__ is forward
    assert set(vars(model)) == attributes
    model.learn(100, reset_num_timesteps=False)
    assert model.num_timesteps == 192 + 96 + 96


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("kind", "settings"), [(PPO, PPO_SETTINGS), (A2C, {}), (DQN, OFF_POLICY)], ids=["acting", "stepped", "off-policy"]
)
def test_after_the_block_environments_have_the_random_states_of_a_run_without_workers(kind: Any, settings: Any) -> None:
    plain = model_of(kind, cartpole, **settings)
    for _ in range(2):
        plain.learn(96)
    on_workers = model_of(kind, cartpole, **settings)
    for _ in range(2):
        with accelerate(on_workers, num_workers=2):
            on_workers.learn(96)
    assert_same_models(plain, on_workers)
    assert_same(on_workers.get_env().reset(), plain.get_env().reset())


def test_after_an_exception_the_next_reset_repeats_the_seeds_of_the_first() -> None:
    model = model_of(PPO, cartpole, **PPO_SETTINGS)
    with pytest.raises(ZeroDivisionError), accelerate(model, num_workers=1):
        model.learn(96, Watch(3, ZeroDivisionError))
    assert_same(model.get_env().reset(), envs_of(cartpole).reset())


@pytest.mark.parametrize("name", ["action_space", "observation_space"])
def test_copies_do_not_repeat_samples_of_a_space_from_which_others_draw(name: str) -> None:
    env = Sums()
    setattr(env, name, spaces.Discrete(2**30, seed=SEED))
    space = getattr(env, name)
    copies = [PickledEnv.of(env, env_id, [space.np_random])() for env_id in (0, 0, 1)]
    first, again, second = ([getattr(one, name).sample() for _ in range(9)] for one in copies)
    assert first == again
    assert len({*first, *second, *(space.sample() for _ in range(9))}) == 27


def test_a_copy_repeats_samples_of_a_space_from_which_nothing_else_draws() -> None:
    env = Drawing()
    env.action_space.sample()
    copied = PickledEnv.of(env, 0)()
    for space, of_copy in ((env.action_space, copied.action_space), (env.observation_space, copied.observation_space)):
        assert_same([of_copy.sample() for _ in range(9)], [space.sample() for _ in range(9)])


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_spaces_from_which_several_environments_or_the_model_draw_are_found(kind: Any) -> None:
    def first_samples(model: Any, name: str) -> list[Any]:
        return [getattr(factory(), name).sample() for factory in factories_of(model, model.env.envs)]

    model = model_of(kind, Drawing)
    envs = [env.unwrapped for env in model.env.envs]
    one_space, big = spaces.Discrete(2**30, seed=SEED), spaces.Discrete(2**30, seed=SEED)
    for env in envs:
        env.observation_space = one_space
    model.action_space = envs[0].action_space = big
    assert len(set(first_samples(model, "observation_space"))) == N
    assert (first_samples(model, "action_space")[0] == big.sample()) == (kind is PPO)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "settings", "num_workers"),
    [(PPO, PPO_SETTINGS, 2), (A2C, {}, 2), (A2C, {}, 0), (SAC, OFF_POLICY, 2)],
    ids=["acting", "stepped", "in this process", "off-policy"],
)
def test_environments_remember_a_block_as_they_remember_learn(kind: Any, settings: Any, num_workers: int) -> None:
    make: Any = remembering_floats if kind is SAC else Remembering
    plain = model_of(kind, make, **settings)
    for _ in range(2):
        plain.learn(96)
    on_workers = model_of(kind, make, **settings)
    kept = [env.unwrapped.actions for env in on_workers.env.envs]
    for _ in range(2):
        with accelerate(on_workers, num_workers=num_workers):
            on_workers.learn(96)
    assert_same_models(plain, on_workers)
    for env, other, actions in zip(plain.env.envs, on_workers.env.envs, kept, strict=True):
        assert_same(env.get_episode_rewards(), other.get_episode_rewards())
        assert env.get_total_steps() == other.get_total_steps()
        assert_same(memory_of(env), memory_of(other))
        assert other.unwrapped.actions is actions
        assert other.unwrapped.connection is None


def memory_of(env: Any) -> dict[str, Any]:
    one: Any = env.unwrapped
    one.total += 1  # The array can be written.
    names = ("resets", "actions", "by_action", "total")
    kept = {name: getattr(one, name) for name in names}
    generators = [generator.bit_generator.state for generator in (one.noise, one.np_random)]
    return {**kept, "recent": [*one.recent, one.recent.maxlen], "seen": sorted(one.seen), "generators": generators}


def remembering_floats() -> gym.Env[Any, Any]:
    env = Remembering()
    env.action_space = spaces.Box(-1, 1, (2,), np.float32)
    return env


def test_an_attribute_that_a_callback_sets_is_kept_after_the_block() -> None:
    model = model_of(A2C, cartpole)
    with accelerate(model, num_workers=1):
        model.learn(30)
        model.env.set_attr("level", 3, indices=[0, 2])
        model.env.env_method("set_wrapper_attr", "gravity", 1.5, indices=1)
    assert [getattr(env, "level", None) for env in model.env.envs] == [3, None, 3]
    assert [env.unwrapped.gravity for env in model.env.envs] == [9.8, 1.5, 9.8]


def test_a_layer_that_made_objects_in_a_worker_is_as_before_after_the_block() -> None:
    model = model_of(A2C, lambda: Connected(Remembering()))
    for _ in range(2):
        with accelerate(model, num_workers=1):
            model.learn(30)
    assert not model.env.envs[0].get_wrapper_attr("is_open")
    assert model.env.envs[0].get_wrapper_attr("resets") >= 2
    model.learn(30)


def test_a_run_without_a_with_block_warns() -> None:
    model = model_of(A2C, cartpole, n=1)
    with pytest.warns(UserWarning, match=r"^accelerate\(\) has no effect without a with block") as caught:
        accelerate(model)
    assert caught[0].filename == __file__
    with accelerate(model, num_workers=0):
        pass


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_in_a_rollout_leaves_the_model_as_without_workers(how: type[BaseException]) -> None:
    plain = model_of(PPO, cartpole, **PPO_SETTINGS)
    with pytest.raises(how):
        plain.learn(200, Watch(52, how))
    on_workers = model_of(PPO, cartpole, **PPO_SETTINGS)
    with pytest.raises(how), accelerate(on_workers, num_workers=1):
        on_workers.learn(200, Watch(52, how))
    assert type(on_workers) is PPO
    assert_same_models(plain, on_workers)
    assert type(on_workers.env) is DummyVecEnv
    on_workers.learn(100)


def test_learn_can_be_called_again_in_the_block_after_a_callback_stopped_it() -> None:
    model = model_of(PPO, cartpole, **PPO_SETTINGS)
    with accelerate(model, num_workers=1):
        for calls in (10, 16, 20):
            model.learn(500, Watch(calls))
            assert model.num_timesteps == calls * N
            model.learn(96, reset_num_timesteps=False)
            assert model.num_timesteps == (calls + 32) * N
            assert model.rollout_buffer.full


@pytest.mark.more
def test_a_model_saves_and_loads_in_the_middle(tmp_path: Path) -> None:
    model = model_of(PPO, cartpole, **PPO_SETTINGS)
    with accelerate(model, num_workers=1):
        model.learn(100, CheckpointCallback(20, str(tmp_path)))
        model.save(tmp_path / "model")
    found = {path.name for path in tmp_path.glob("rl_model_*")}
    assert found == {"rl_model_60_steps.zip", "rl_model_120_steps.zip", "rl_model_180_steps.zip"}
    loaded = PPO.load(tmp_path / "model", envs_of(cartpole))
    assert type(loaded) is PPO
    assert_same(dict(loaded.policy.state_dict()), dict(model.policy.state_dict()))
    loaded.learn(100)


@pytest.mark.more
def test_set_env_in_the_block_is_kept() -> None:
    model, other = model_of(PPO, cartpole, **PPO_SETTINGS), envs_of(cartpole)
    model.seed = None
    with accelerate(model, num_workers=0):
        model.learn(96)
        model.set_env(other)
        model.learn(96)
    assert model.env is other


def test_callbacks_evaluate_stop_and_log(tmp_path: Path) -> None:
    model = model_of(PPO, cartpole, VecNormalize, tensorboard_log=str(tmp_path), **PPO_SETTINGS)
    stop = StopTrainingOnRewardThreshold(1.0)
    evaluate = EvalCallback(
        VecNormalize(envs_of(cartpole, n=1)), stop, eval_freq=40, best_model_save_path=str(tmp_path), verbose=0
    )
    with accelerate(model, num_workers=1):
        model.learn(500, [evaluate, StopTrainingOnMaxEpisodes(10_000)])
    model.logger.close()
    assert model.num_timesteps == 40 * N
    assert (tmp_path / "best_model.zip").exists()
    assert list(tmp_path.glob("PPO_1/events*"))


class CallsEnvs(BaseCallback):
    """Callback that calls a method of the environments in every step."""

    def _on_step(self) -> bool:
        return self.ask()

    def ask(self) -> bool:
        return all(self.training_env.env_method("has_wrapper_attr", "level"))


class CallsEnvsBetween(BaseCallback):
    """Callback that sets and gets an attribute of the environments between rollouts."""

    levels: Any = None

    def _on_rollout_start(self) -> None:
        self.training_env.set_attr("level", self.num_timesteps)

    def _on_rollout_end(self) -> None:
        self.levels = self.training_env.get_attr("level")

    def _on_step(self) -> bool:
        return True


def test_a_callback_that_calls_environments_in_a_step_is_refused_in_the_first_step() -> None:
    model = model_of(PPO, Sums, **PPO_SETTINGS)
    with accelerate(model, num_workers=1):
        with pytest.raises(ConfigurationError, match=r"has_wrapper_attr.*_on_rollout_start.*ParallelVecEnv"):
            model.learn(96, [Watch(1000), CallsEnvs()])
        assert model.num_timesteps == N
        between = CallsEnvsBetween()
        model.learn(96, between)
        assert between.levels == [0] * N
        assert model.env.env_is_wrapped(Monitor) == [True] * N
        assert model.env.has_attr("level")


@pytest.mark.more
def test_a_callback_may_call_environments_if_the_model_acts() -> None:
    model = model_of(PPO, Sums, lambda envs: VecNormalize(envs, norm_obs_keys=["step"]), **PPO_SETTINGS)
    with accelerate(model, num_workers=1):
        model.learn(96, CallsEnvs())


@pytest.mark.more
@pytest.mark.parametrize("is_watched", [False, True])
def test_monitors_write_their_files(is_watched: bool, tmp_path: Path) -> None:
    lines = []
    for options in ({}, {"num_workers": 2}):
        folder = tmp_path / str(len(options))
        envs = make_vec_env(cartpole, N, SEED, monitor_dir=str(folder))
        model = PPO("MlpPolicy", envs, seed=SEED, device="cpu", **PPO_SETTINGS)
        with accelerate(model, **options) if options else contextlib.nullcontext():
            model.learn(192, Steps() if is_watched else None)
        envs.close()
        texts = [(folder / f"{env_id}.monitor.csv").read_text().splitlines()[1:] for env_id in range(N)]
        lines.append([[line.rpartition(",")[0] for line in text] for text in texts])
    assert lines[0] == lines[1]
    assert min(map(len, lines[0])) > 2


def true_next(observation: Any, action: Any) -> Any:
    """Return the next observation of CartPole."""
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    env.state = observation.astype(np.float64)  # type: ignore[attr-defined]
    return env.step(int(action))[0]


def test_async_transitions_are_real_and_follow_each_other() -> None:
    model = model_of(DQN, cartpole, **OFF_POLICY)
    with accelerate(model, num_workers=2, mode="async") as run:
        model.learn(540)
        assert run.advice().costs.mode == "async"
    buffer, dones = model.replay_buffer, model.replay_buffer.dones[: model.replay_buffer.pos] > 0
    for t in range(0, model.replay_buffer.pos, 7):
        for env_id in range(N):
            expected = true_next(buffer.observations[t, env_id], buffer.actions[t, env_id, 0])
            np.testing.assert_allclose(buffer.next_observations[t, env_id], expected, rtol=1e-4, atol=1e-5)
    follows = (buffer.next_observations[: len(dones) - 1] == buffer.observations[1 : len(dones)]).all(-1)
    np.testing.assert_array_equal(follows, ~dones[:-1])
    assert model._n_updates > 30
    assert model.num_timesteps >= 540


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("kind", "settings", "wrap"),
    [
        (SAC, {"action_noise": NOISE}, VecNormalize),
        (SAC, SDE, lambda envs: VecFrameStack(envs, 2)),
        (TD3, {"action_noise": NOISE}, monitored),
        (DDPG, {"train_freq": 4}, lambda envs: envs),
        (TQC, {}, lambda envs: envs),
    ],
)
def test_async_learns_with_noise_and_wrappers(kind: Any, settings: Any, wrap: Any) -> None:
    model = model_of(kind, pendulum, wrap, **OFF_POLICY, **settings)
    seen = learned(model, 150, num_workers=2, mode="async", max_policy_lag=1)
    assert model._n_updates > 5
    actions = np.concatenate([step[1]["actions"] for step in seen.seen if step[0] not in ("rollout", "end")])
    assert np.abs(actions).max() <= 2
    assert len(np.unique(actions)) > len(actions) / 2
    assert len(model.ep_info_buffer) > 0


def test_async_respects_reset_num_timesteps_and_has_at_most_one_worker_per_environment() -> None:
    model = model_of(DQN, cartpole, n=1, **OFF_POLICY)
    with accelerate(model, num_workers=2, mode="async") as run:
        model.learn(40)
        model.learn(40)
        model.learn(40, reset_num_timesteps=False)
        assert run.advice().costs.num_workers == 1
    assert (model.num_timesteps, model.replay_buffer.pos) == (80, 120)


@pytest.mark.more
def test_async_repeats_with_the_same_seed() -> None:
    models = []
    for _ in range(2):
        models.append(model := model_of(SAC, pendulum, **OFF_POLICY, action_noise=NOISE))
        learned(model, 120, num_workers=2, mode="async")
    assert_same_models(*models)


@pytest.mark.more
def test_async_hindsight_replay_computes_its_rewards_in_the_environments() -> None:
    model = model_of(DQN, bits, replay_buffer_class=HerReplayBuffer, **OFF_POLICY)
    learned(model, 200, num_workers=1, mode="async")
    assert model._n_updates > 5
    assert model.replay_buffer.env is model.env


@pytest.mark.one_in(2)
@pytest.mark.parametrize("max_policy_lag", [0, 1])
def test_actions_of_async_are_random_until_learning_starts_and_then_by_the_policy(max_policy_lag: int) -> None:
    settings = OFF_POLICY | {"learning_starts": 45, "exploration_fraction": 1e-9, "exploration_final_eps": 0.0}
    model = model_of(DQN, cartpole, train_freq=1, **settings)
    for parameter in model.policy.parameters():
        torch.nn.init.zeros_(parameter)  # If all values are equal, argmax chooses action 0.
    model.learning_rate, model.lr_schedule = 0.0, lambda left: 0.0
    seen = learned(model, 90, num_workers=1, mode="async", max_policy_lag=max_policy_lag).seen
    actions = np.array([step[1]["actions"] for step in seen if step[0] not in ("rollout", "end")])
    assert set(actions[: 45 // N].ravel().tolist()) == {0, 1}
    assert set(actions[45 // N :].ravel().tolist()) == {0}


def test_an_exception_of_an_environment_has_its_origin_and_restores_the_model() -> None:
    class Fragile(Sums):
        def step(self, action: Any) -> Any:
            if self.steps == 1:
                raise LookupError("lost the way")
            return super().step(action)

    model = PPO("MultiInputPolicy", make_vec_env(Fragile, N), device="cpu", **PPO_SETTINGS)
    with pytest.raises(LookupError, match="lost the way") as caught, accelerate(model, num_workers=1):
        model.learn(96)
    assert isinstance(caught.value.__cause__, SubEnvironmentError)
    assert type(model) is PPO
    assert type(model.env) is DummyVecEnv


class Unknown(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that returns NaN in step 10 of an episode."""

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return (observation * np.nan if self.env.get_wrapper_attr("_elapsed_steps") == 10 else observation, *rest)


@pytest.fixture
def distributions_are_checked() -> Iterator[None]:
    """Validate arguments of distributions, which is torch's default and which other libraries turn off."""
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(True)
    yield
    torch.distributions.Distribution.set_default_validate_args(before)


@pytest.mark.usefixtures("distributions_are_checked")
@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [cartpole, pendulum])
def test_nan_observations_raise_the_same_error_as_without_workers(make: Any) -> None:
    for options in ({}, {"num_workers": 1}):
        with pytest.raises(ValueError, match=r"Expected parameter .* to satisfy the constraint"):
            learned(model_of(PPO, lambda: Unknown(make()), **PPO_SETTINGS), 200, **options)


def test_a_worker_that_dies_ends_the_run() -> None:
    class Mortal(Sums):
        def step(self, action: Any) -> Any:
            if self.steps == 1:
                os._exit(3)
            return super().step(action)

    model = PPO("MultiInputPolicy", make_vec_env(Mortal, N), device="cpu", **PPO_SETTINGS)
    with pytest.raises(WorkerDiedError, match="exited with code 3") as caught, accelerate(model, num_workers=1):
        model.learn(96)
    assert caught.value.__notes__[-1].startswith("accelerate() does not restart workers. The model keeps")
    assert type(model.env) is DummyVecEnv


@pytest.mark.more
def test_advice_says_where_the_time_went() -> None:
    model = model_of(SAC, pendulum, **OFF_POLICY)
    with accelerate(model, num_workers=1) as run:
        with pytest.raises(ConfigurationError, match="learned"):
            run.advice()
        model.learn(150)
        measure(run)
        advice = run.advice()
    assert sum(advice.costs.shares.values()) == pytest.approx(1)
    assert advice.costs.mode == "sync"
    assert [fact.share for fact in advice.facts] == pytest.approx(list(advice.costs.shares.values()))
    assert "learning" in str(advice)
    assert advice.costs.env_step_s > 0


def test_advice_compares_workers_that_only_step_with_this_process() -> None:
    quick, slow, unknown = (
        RunAdvice(RunCosts(8, 2, "sync", False, 1000, 0.3, 0.5, 0.1, step_s)) for step_s in (1e-5, 1e-4, None)
    )
    assert str(quick).splitlines()[-1] == (
        "slower than without: a step of all environments takes 300 µs, and 80 µs in this process"
    )
    assert (quick.is_slower, slow.is_slower, unknown.is_slower) == (True, False, False)
    assert "slower" not in str(slow) + str(unknown)


@pytest.mark.parametrize(("wrap", "num_workers"), [(VecNormalize, 1), (VecNormalize, 0), (monitored, 1)])
def test_advice_measures_a_step_if_workers_only_step(wrap: Any, num_workers: int) -> None:
    model = model_of(PPO, cartpole, wrap, **PPO_SETTINGS)
    with accelerate(model, num_workers=num_workers) as run:
        model.learn(96)
    measure(run)
    before = np.random.get_state()[1].tolist()
    step_s = run.advice().costs.env_step_s
    assert (step_s is not None and step_s > 0) == (wrap is VecNormalize and num_workers == 1)
    assert np.random.get_state()[1].tolist() == before


def test_workers_that_would_be_slower_leave_the_model_as_it_is(why_slower: list[str]) -> None:
    model = model_of(PPO, cartpole, **PPO_SETTINGS)
    env, why_slower[0] = model.env, "a step takes 9 µs"
    run = accelerate(model)
    measure(run)
    with pytest.warns(UserWarning, match="leaves the model as it is: a step takes 9 µs. Pass num_workers"):
        run.__enter__()
    assert model.env is env
    model.learn(96)
    run.__exit__(None, None, None)
    assert "not accelerated: a step takes 9 µs" in str(run.advice())


def test_a_given_number_of_workers_is_obeyed_although_they_are_slower(why_slower: list[str]) -> None:
    model = model_of(PPO, cartpole, **PPO_SETTINGS)
    why_slower[0] = "a step takes 9 µs"
    run = accelerate(model, num_workers=1)
    measure(run)
    with pytest.warns(UserWarning, match="will be slower than without it: a step takes 9 µs") as caught:
        run.__enter__()
    assert isinstance(model.env, ReplayedVecEnv)
    run.__exit__(None, None, None)
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize("options", [{"mode": "async"}, {"num_workers": 0}])
def test_workers_are_not_compared_if_the_model_learns_meanwhile_or_without_them(
    options: dict[str, Any], why_slower: list[str]
) -> None:
    model = model_of(SAC, pendulum, **OFF_POLICY)
    why_slower[0] = "a step takes 9 µs"
    with accelerate(model, **options):
        pass


class DrawsGlobally(gym.Env[Any, Any]):
    """Environment that draws from the global random generators."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.full(1, np.random.random(), np.float32), {}

    def step(self, action: Any) -> Any:
        return np.full(1, torch.rand(()).item(), np.float32), 0.0, False, False, {}


def test_the_measured_step_leaves_the_global_random_states_as_they_are() -> None:
    model = model_of(A2C, DrawsGlobally)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    run = accelerate(model, num_workers=1)
    measure(run)
    assert run._env_step_s is not None
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    with run:
        pass


class Made(gym.Env[Any, Any]):
    """Environment whose copies append the number of their process to a file.

    Args:
        file: Path of the file.
    """

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, file: Path) -> None:
        self.file = file

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with self.file.open("a") as lines:
            lines.write(f"{os.getpid()}\n")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_the_measured_copy_is_made_in_a_worker_only(tmp_path: Path) -> None:
    # A Monitor imports pandas, whose native code would keep the copy out of this process in any case.
    make = functools.partial(Made, tmp_path / "made")
    run = accelerate(A2C("MlpPolicy", DummyVecEnv([make, make]), device="cpu"), num_workers=1)
    measure(run)
    assert run._env_step_s is not None
    made = (tmp_path / "made").read_text().split()
    assert made
    assert str(os.getpid()) not in made
    with run:
        pass


def test_short_steps_are_slower_on_workers_and_long_ones_are_not() -> None:
    def words(num_envs: int, step_s: float) -> str:
        return why(num_envs, 2, step_s, cores=2)

    assert "all 8 environments" in words(8, 6e-6)
    assert [words(128, 6e-6), words(16, 50e-6), words(4, 1e-3)] == ["", "", ""]


def with_a_lock() -> Any:
    model = model_of(PPO, cartpole)
    model.env.envs[1].unwrapped.lock = threading.Lock()
    return model


def without_envs() -> Any:
    model = model_of(PPO, cartpole)
    model.env = None
    return model


class Halved(VecEnvWrapper):
    def reset(self) -> Any:
        return self.venv.reset() / 2

    def step_wait(self) -> Any:
        observations, *others = self.venv.step_wait()
        return observations / 2, *others


REFUSED: dict[str, tuple[Any, ...]] = {
    "no model": (lambda: "model", {}, "such as PPO.*str"),
    "no environment": (without_envs, {}, "set_env"),
    "workers": (lambda: model_of(PPO, cartpole), {"num_workers": -1}, "num_workers"),
    "mode": (lambda: model_of(PPO, cartpole), {"mode": "later"}, "mode"),
    "on-policy async": (lambda: model_of(PPO, cartpole), {"mode": "async"}, "PPO, which is on-policy"),
    "lag in sync": (lambda: model_of(DQN, cartpole), {"max_policy_lag": 1}, 'mode="async"'),
    "async without workers": (
        lambda: model_of(DQN, cartpole), {"mode": "async", "num_workers": 0}, "num_workers must be at least 1",
    ),
    "a wrapper in async": (lambda: model_of(DQN, cartpole, Halved), {"mode": "async"}, "Halved.*sync"),
    "episodes in async": (
        lambda: model_of(DQN, cartpole, n=1, train_freq=(1, "episode")), {"mode": "async"}, "train_freq.*step",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_models_and_options_are_refused_and_unchanged(case: str) -> None:
    make, options, message = REFUSED[case]
    model = make()
    before = dict(vars(model)) if hasattr(model, "__dict__") else {}
    with pytest.raises(ConfigurationError, match=message):
        accelerate(model, **options)
    assert not before or before == vars(model)


class OwnVecEnv(DummyVecEnv):
    """Vec env whose class may do more than ``DummyVecEnv``."""


def on(kind: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: A2C("MlpPolicy", kind([cartpole] * N), device="cpu")


LEFT: dict[str, tuple[Callable[[], Any], str]] = {
    "ARS": (lambda: ARS("LinearPolicy", "CartPole-v1", n_delta=1, device="cpu"), "ARS collects in a way.*TQC"),
    "SubprocVecEnv": (
        on(functools.partial(SubprocVecEnv, start_method="fork")),
        "SubprocVecEnv of this A2C has its.*processes.*without vec_env_cls",
    ),
    "ParallelVecEnv": (on(functools.partial(ParallelVecEnv, num_workers=1)), "ParallelVecEnv of this A2C.*already"),
    "another vec env": (on(OwnVecEnv), "OwnVecEnv of this A2C is not a DummyVecEnv"),
    "an environment that cannot be copied": (with_a_lock, "env_id 1.*lock.*ParallelVecEnv"),
}


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("case", LEFT)
def test_models_that_cannot_be_accelerated_learn_as_they_are_with_one_warning(case: str) -> None:
    make, message = LEFT[case]
    model = make()
    env, kind = model.env, type(model)
    run = accelerate(model, num_workers=2)
    with pytest.warns(UserWarning, match=f"leaves the model as it is: .*{message}") as caught:
        run.__enter__()
    with contextlib.closing(env):
        assert (model.env, type(model)) == (env, kind)
        model.learn(64)
        run.__exit__(None, None, None)
    assert [one.filename for one in caught if "accelerate" in str(one.message)] == [__file__]
    assert model.num_timesteps >= 64
    assert model.env is env
    assert re.match(f"not accelerated: .*{message}", str(run.advice()))


def test_versions_that_do_not_fit_are_refused() -> None:
    for version in ("1.8.0", "2.3.2", "3.0.0a1"):
        with pytest.raises(ConfigurationError, match=f"{version}.*pip install"):
            check_version(version)
    check_version("2.9.2")
    check_version("2.10.0a3")


def test_a_model_cannot_be_accelerated_twice() -> None:
    model = model_of(PPO, cartpole, **PPO_SETTINGS)
    with accelerate(model, num_workers=0):
        env = model.env
        with pytest.warns(UserWarning, match="in workers already"):
            accelerate(model).__enter__()
        assert model.env is env


@pytest.mark.more
def test_unknown_wrappers_work_because_the_model_acts() -> None:
    assert_learns_the_same(lambda: model_of(PPO, cartpole, Halved, **PPO_SETTINGS), 100, num_workers=1)
