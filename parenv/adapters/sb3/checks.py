"""What accelerate refuses before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFrequencyUnit

from parenv.adapters.sb3.substitution import wrappers_of
from parenv.adapters.sb3.transforms import unknown_wrapper
from parenv.argument_checks import at_least, one_of
from parenv.errors import ConfigurationError

_QUESTIONS = {"env_method", "get_attr", "set_attr", "get_images"}


def check_settings(num_workers: Any, mode: Any, max_policy_lag: Any) -> None:
    """Check what was given beside the model.

    Raises:
        ConfigurationError: one of them is wrong.
    """
    check_version(stable_baselines3.__version__)
    if num_workers is not None:
        at_least("num_workers", num_workers, 0)
    one_of("mode", mode, ("sync", "async"))
    if max_policy_lag is not None:
        at_least("max_policy_lag", max_policy_lag, 0)
        if mode == "sync":
            raise ConfigurationError(
                'max_policy_lag is for mode="async": with mode="sync" every step is by the newest policy'
            )
    if mode == "async" and num_workers == 0:
        raise ConfigurationError(
            'mode="async" needs worker processes: with num_workers=0 nothing runs at the same time'
        )


def check_version(version: str) -> None:
    """Check that Stable-Baselines3 is one that accelerate knows.

    Raises:
        ConfigurationError: it is not.
    """
    major, minor, *_ = (int(part) for part in version.split(".")[:2])
    if major != 2 or minor < 4:
        raise ConfigurationError(
            f"accelerate knows Stable-Baselines3 from 2.4 on and below 3, but {version} is installed: "
            'pip install "stable-baselines3>=2.4,<3"'
        )


def check_model(model: Any, mode: str) -> None:
    """Check that a model collects in one of the two ways that are known.

    Raises:
        ConfigurationError: it does not.
    """
    name = type(model).__name__
    if not isinstance(model, BaseAlgorithm):
        raise ConfigurationError(f"accelerate takes a model of Stable-Baselines3, such as PPO(...), got a {name}")
    if not isinstance(model, OnPolicyAlgorithm | OffPolicyAlgorithm):
        raise ConfigurationError(
            f"accelerate does not know how {name} collects: it takes PPO, A2C, DQN, SAC, TD3, DDPG, and of sb3-contrib "
            "TRPO, MaskablePPO, RecurrentPPO, TQC and QRDQN"
        )
    if mode == "async":
        _check_async(model, name)


def check_callbacks(callback: Any) -> None:
    """Check that no callback asks the environments in every step, where workers have made all steps of a rollout.

    Raises:
        ConfigurationError: one of them does.
    """
    for one in each_callback(callback):
        code = getattr(getattr(one, "_on_step", one), "__code__", None)
        asked = _QUESTIONS.intersection(getattr(code, "co_names", ()))
        if asked and not type(one).__module__.startswith(("stable_baselines3.", "sb3_contrib.")):
            raise ConfigurationError(
                f"{type(one).__name__} calls {', '.join(sorted(asked))} in every step, when the workers, which act for "
                "the model, have made the whole rollout already. Call it in _on_rollout_start or _on_rollout_end, or "
                "have the model act: make_vec_env(..., vec_env_cls=parenv.adapters.sb3.ParallelVecEnv)"
            )


def each_callback(callback: Any) -> Iterator[Any]:
    """A callback, or those of a list, and those in them."""
    if callback is None:
        return
    parts = callback if isinstance(callback, list) else getattr(callback, "callbacks", [])
    if not isinstance(callback, list):
        yield callback
        parts = [*parts, getattr(callback, "callback", None), getattr(callback, "callback_on_new_best", None)]
    for part in parts:
        yield from each_callback(part)


def _check_async(model: Any, name: str) -> None:
    if isinstance(model, OnPolicyAlgorithm):
        raise ConfigurationError(
            f'{name} is on-policy: what it learns from must be by the policy that learns, so it has no mode="async"; '
            'use mode="sync", or one of DQN, SAC, TD3, DDPG, TQC'
        )
    if (unknown := unknown_wrapper(wrappers_of(model))) is not None:
        raise ConfigurationError(
            f'with mode="async" workers act, and they do not know what {type(unknown).__name__} does to observations: '
            "they know VecNormalize, VecFrameStack, VecMonitor, VecTransposeImage, VecCheckNan and VecExtractDictObs. "
            'Make it a wrapper of the single environments, or use mode="sync"'
        )
    if model.train_freq.unit is not TrainFrequencyUnit.STEP:
        raise ConfigurationError(
            f'with mode="async" a rollout is a number of steps, but this {name} has {model.train_freq}: give '
            'train_freq=(n, "step"), or use mode="sync"'
        )
