"""accelerate: a model of Stable-Baselines3 learns on parenv's workers, and is afterwards what it was."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from parenv.adapters.sb3.checks import check_model, check_settings
from parenv.adapters.sb3.played_vec_env import PlayedVecEnv
from parenv.adapters.sb3.run_advice import RunAdvice, RunCosts
from parenv.adapters.sb3.stepped_vec_env import SteppedVecEnv
from parenv.adapters.sb3.substitution import factories_of, innermost, places_of, results_writers
from parenv.adapters.sb3.timed import Seconds, timed
from parenv.adapters.sb3.workers_act import played_envs, playing_forward, playing_methods, transforms_for
from parenv.errors import ConfigurationError


def accelerate(
    model: BaseAlgorithm,
    num_workers: int | None = None,
    mode: Literal["sync", "async"] = "sync",
    max_policy_lag: int | None = None,
) -> AcceleratedRun:
    """Have a model of Stable-Baselines3 learn on parenv's workers for as long as a ``with`` block lasts.

    The environments of the model's ``DummyVecEnv`` are copied to workers, with their random states; ``VecNormalize``,
    ``VecFrameStack``, ``VecMonitor`` and any other wrappers stay where they are. After the block the model has its own
    environments again, and its next ``learn`` begins with a reset of them.

    Args:
        model: with an environment: PPO, A2C, DQN, SAC, TD3, DDPG, and those of sb3-contrib that collect as they do.
        num_workers: worker processes; ``None``: one per usable core; 0: everything in this process.
        mode: see below.
        max_policy_lag: see below.

    Raises:
        ConfigurationError: the model, its environments or the settings cannot be honoured; nothing is changed then.
        NotPicklableError: an environment cannot be copied; the message names it.
    """
    return AcceleratedRun(model, num_workers, mode, max_policy_lag)


class AcceleratedRun:
    """What :func:`accelerate` returns: the block in which a model learns on workers."""

    def __init__(
        self, model: BaseAlgorithm, num_workers: int | None, mode: Literal["sync", "async"], max_policy_lag: int | None
    ) -> None:
        check_settings(num_workers, mode, max_policy_lag)
        check_model(model, mode)
        self._model, self._num_workers, self._mode = model, num_workers, mode
        self._original = innermost(model)
        self._factories = factories_of(self._original)
        self._transforms = transforms_for(model, mode)
        self._ahead = mode == "async" and max_policy_lag != 0
        self._seconds = Seconds()
        self._envs: SteppedVecEnv | PlayedVecEnv | None = None
        self._undo = ExitStack()

    def __enter__(self) -> AcceleratedRun:
        """Start the workers and give them the environments."""
        if self._envs is not None:
            raise ConfigurationError("a run of accelerate is for one with block: call accelerate again")
        with self._undo:
            self._envs = envs = self._started()
            self._undo.callback(envs.close)
            envs._seeds, envs._options = list(self._original._seeds), list(self._original._options)
            self._replace_envs(envs)
            self._replace_methods(envs)
            self._undo = self._undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the model back what it had, and end the workers."""
        self._undo.close()

    def advice(self) -> RunAdvice:
        """What the run so far spent its time on, and how to set it, as figures and, printed, in words.

        Raises:
            ConfigurationError: nothing has been learned yet.
        """
        envs = self._envs
        if envs is None:
            raise ConfigurationError("there is no advice before the with block has begun")
        off_policy = isinstance(self._model, OffPolicyAlgorithm)
        return RunAdvice.of(
            RunCosts(envs.num_envs, envs.num_workers, self._mode, off_policy, envs.steps, envs.seconds, self._seconds)
        )

    def _started(self) -> SteppedVecEnv | PlayedVecEnv:
        """Workers that act, if they can, or else only step."""
        original = self._original
        if self._transforms is not None and self._num_workers != 0:
            return played_envs(self._model, original, self._factories, self._transforms, self._num_workers, self._ahead)
        spaces = original.observation_space, original.action_space
        return SteppedVecEnv(self._factories, results_writers(original), num_workers=self._num_workers, spaces=spaces)

    def _replace_envs(self, envs: VecEnv) -> None:
        """Put other environments where the model's are; the next ``learn`` begins with a reset of them."""
        model, original = self._model, self._original

        def put_back() -> None:
            original._seeds, original._options = envs._seeds, envs._options
            for holder, name in places:
                if getattr(holder, name) is envs:
                    setattr(holder, name, original)
            model._last_obs = None

        places = places_of(model, original)
        self._undo.callback(put_back)
        for holder, name in places:
            setattr(holder, name, envs)
        model._last_obs = None

    def _replace_methods(self, envs: SteppedVecEnv | PlayedVecEnv) -> None:
        """By a class, not by attributes, which the model would save."""
        model, kind = self._model, type(self._model)
        self._undo.callback(setattr, model, "__class__", kind)
        more = playing_methods(model, envs) if isinstance(envs, PlayedVecEnv) else {}
        model.__class__ = timed(kind, self._seconds, **more)
        if isinstance(envs, PlayedVecEnv) and isinstance(model, OnPolicyAlgorithm):
            policy: Any = model.policy
            self._undo.callback(delattr, policy, "forward")
            policy.forward = playing_forward(model, envs)
