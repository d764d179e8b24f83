"""Models that accelerate takes, and the environments in them: where they are stored, and how they are copied."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import stable_baselines3
from gymnasium import Env, Wrapper
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.monitor import Monitor, ResultsWriter
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from parenv.adapters.sb3.replay import ReplayedVecEnv
from parenv.adapters.sb3.transforms import unknown_wrapper
from parenv.adapters.sb3.vec_env import ParallelVecEnv
from parenv.argument_checks import at_least, one_of
from parenv.crew.pickling import find_unpicklable, way_out
from parenv.errors import ConfigurationError, NotPicklableError, embedded
from parenv.memory.sampling import parts_of
from parenv.worker.copied_env import samplers_of
from parenv.worker.pickled_env import PickledEnv


def check_settings(num_workers: Any, mode: Any, max_policy_lag: Any) -> None:
    """Check the arguments of accelerate except the model.

    Raises:
        ConfigurationError: An argument is wrong.
    """
    check_version(stable_baselines3.__version__)
    if num_workers is not None:
        at_least("num_workers", num_workers, 0)
    one_of("mode", mode, ("sync", "async"))
    if max_policy_lag is not None:
        at_least("max_policy_lag", max_policy_lag, 0)
        if mode == "sync":
            raise ConfigurationError(
                'max_policy_lag needs mode="async", because with mode="sync" the newest policy always acts. Leave it '
                "out."
            )
    if mode == "async" and num_workers == 0:
        raise ConfigurationError(
            'num_workers must be at least 1 with mode="async", which needs worker processes, got 0. Use mode="sync".'
        )


def check_version(version: str) -> None:
    """Check that accelerate supports a version of Stable-Baselines3.

    Raises:
        ConfigurationError: It does not.
    """
    major, minor, *_ = (int(part) for part in version.split(".")[:2])
    if major != 2 or minor < 4:
        raise ConfigurationError(
            f"accelerate needs Stable-Baselines3 from 2.4 on and below 3, got {version}. Run: "
            'pip install "stable-baselines3>=2.4,<3"'
        )


def check_model(model: Any) -> None:
    """Check that a model is one, and has an environment.

    Raises:
        ConfigurationError: It is not, or has none.
    """
    name = type(model).__name__
    if not isinstance(model, BaseAlgorithm):
        raise ConfigurationError(f"model must be a model of Stable-Baselines3, such as PPO(...), got a {name}")
    if model.env is None:
        raise ConfigurationError(
            f"the model must have an environment, but this {name} has none. Call model.set_env(...)."
        )


def obstacle_of(model: BaseAlgorithm) -> str | None:
    """Return why accelerate cannot have a model learn on workers and what it can, or ``None`` if nothing is known."""
    name, env = type(model).__name__, innermost(model)
    if not isinstance(model, OnPolicyAlgorithm | OffPolicyAlgorithm):
        return (
            f"{name} collects in a way of its own. accelerate supports PPO, A2C, DQN, SAC, TD3 and DDPG, and from "
            "sb3-contrib TRPO, MaskablePPO, RecurrentPPO, TQC and QRDQN."
        )
    if type(env) is DummyVecEnv:
        return None
    if isinstance(env, SubprocVecEnv):
        why = "has its environments in processes of its own"
    elif isinstance(env, ParallelVecEnv | ReplayedVecEnv):
        why = "has its environments in workers already"
    else:
        why = "is not a DummyVecEnv, whose environments accelerate copies to workers"
    return (
        f"the {type(env).__name__} of this {name} {why}. Pass make_vec_env(..., n_envs) without vec_env_cls, with any "
        "wrappers around it."
    )


def check_mode(model: Any, mode: str) -> None:
    """Check that a model can collect in a mode.

    Raises:
        ConfigurationError: It cannot.
    """
    name = type(model).__name__
    if mode == "sync":
        return
    if isinstance(model, OnPolicyAlgorithm):
        raise ConfigurationError(
            f'mode="async" cannot be used with {name}, which is on-policy and must learn from its newest policy. Use '
            'mode="sync", or one of DQN, SAC, TD3, DDPG and TQC.'
        )
    if (unknown := unknown_wrapper(wrappers_of(model))) is not None:
        raise ConfigurationError(
            'mode="async" needs wrappers that workers support (VecNormalize, VecFrameStack, VecMonitor, '
            f"VecTransposeImage, VecCheckNan, VecExtractDictObs), got {type(unknown).__name__}. Wrap the single "
            'environments instead, or use mode="sync".'
        )
    train_freq: Any = model.train_freq
    if train_freq.unit is not TrainFrequencyUnit.STEP:
        raise ConfigurationError(
            f'train_freq must be a number of steps with mode="async", got {train_freq} of this {name}. Pass '
            'train_freq=(n, "step"), or use mode="sync".'
        )


def wrappers_of(model: BaseAlgorithm) -> list[VecEnvWrapper]:
    """Return the wrappers around a model's vec env, the outermost first."""
    found, env = [], model.env
    while isinstance(env, VecEnvWrapper):
        found.append(env)
        env = env.venv
    return found


def innermost(model: BaseAlgorithm) -> Any:
    """Return the vec env inside all wrappers."""
    wrappers = wrappers_of(model)
    return wrappers[-1].venv if wrappers else model.env


def holders_of(model: BaseAlgorithm, env: VecEnv) -> list[tuple[Any, str]]:
    """Return the objects that hold a vec env, each with the name of its attribute.

    They are the model or its innermost wrapper, and a replay buffer that relabels goals.
    """
    holders: list[tuple[Any, str]] = [(model, "env"), (getattr(model, "replay_buffer", None), "env")]
    holders += [(wrapper, "venv") for wrapper in wrappers_of(model)]
    return [(holder, name) for holder, name in holders if getattr(holder, "__dict__", {}).get(name) is env]


def factories_of(model: BaseAlgorithm, envs: Sequence[Env[Any, Any]]) -> list[PickledEnv]:
    """Return factories of copies of a model's single environments.

    Raises:
        NotPicklableError: An environment cannot be copied. The message names it.
    """
    shared = _shared_samplers(model, envs)
    return [_pickled(env_id, one, shared) for env_id, one in enumerate(envs)]


def results_writers(env: VecEnv) -> dict[int, ResultsWriter]:
    """Return the writers of Monitors' files by env_id. They stay in the main process."""
    monitors = {i: monitor for i, one in enumerate(getattr(env, "envs", ())) for monitor in _monitors(one)}
    return {i: monitor.results_writer for i, monitor in monitors.items() if monitor.results_writer is not None}


@contextlib.contextmanager
def temporarily(holders: Sequence[Any], name: str, values: Sequence[Any]) -> Iterator[None]:
    """Set an attribute of several objects until the block ends."""
    with contextlib.ExitStack() as undo:
        for holder, value in zip(holders, values, strict=True):
            undo.callback(setattr, holder, name, getattr(holder, name))
            setattr(holder, name, value)
        yield


def _shared_samplers(model: BaseAlgorithm, envs: Sequence[Env[Any, Any]]) -> list[Any]:
    """Return generators of spaces from which several environments draw, or an environment and the model."""
    users = [samplers_of(env) for env in envs]
    if isinstance(model, OffPolicyAlgorithm):
        # It samples random actions. On-policy models only seed the space.
        users.append([getattr(space, "_np_random", None) for space in parts_of(model.action_space)])
    counts = Counter(i for user in users for i in {id(sampler) for sampler in user if sampler is not None})
    return [sampler for user in users for sampler in user if counts[id(sampler)] > 1]


def _pickled(env_id: int, env: Env[Any, Any], shared: Sequence[Any]) -> PickledEnv:
    monitors = list(_monitors(env))
    with temporarily(monitors, "results_writer", [None] * len(monitors)):
        try:
            return PickledEnv.of(env, env_id, shared)
        except Exception as error:
            where, what = find_unpicklable(env, f"env_id {env_id}") or (f"env_id {env_id}", env)
            raise NotPicklableError(
                f"{where} cannot be sent to a worker process: {embedded(error)}. "
                f"{way_out(what, 'Create it in the reset of the environment')}, or use "
                "make_vec_env(..., vec_env_cls=parenv.adapters.sb3.ParallelVecEnv), whose factories run in the workers."
            ) from error


def _monitors(env: Any) -> Iterator[Monitor[Any, Any]]:
    while isinstance(env, Wrapper):
        if isinstance(env, Monitor):
            yield env
        env = env.env
