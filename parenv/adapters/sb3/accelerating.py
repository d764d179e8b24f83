"""accelerate: a model of Stable-Baselines3 learns on parenv's workers, and is afterwards what it was."""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from parenv.adapters.sb3.checks import check_model, check_settings
from parenv.adapters.sb3.played_vec_env import PlayedVecEnv
from parenv.adapters.sb3.run_advice import RunAdvice, RunCosts
from parenv.adapters.sb3.stepped_vec_env import SteppedVecEnv
from parenv.adapters.sb3.substitution import (
    factories_of,
    innermost,
    places_of,
    results_writers,
    take_back_random_states,
)
from parenv.adapters.sb3.timed import timed
from parenv.adapters.sb3.workers_act import played_envs, playing_forward, playing_methods, transforms_for
from parenv.errors import ConfigurationError, WorkerError
from parenv.process.cores import usable_cores


def accelerate(
    model: BaseAlgorithm,
    num_workers: int | None = None,
    mode: Literal["sync", "async"] = "sync",
    max_policy_lag: int | None = None,
) -> AcceleratedRun:
    """Have a model of Stable-Baselines3 learn on parenv's workers for as long as a ``with`` block lasts.

    The environments of the model's ``DummyVecEnv`` are copied to workers, with their random states; wrappers around
    it, the buffers and ``train`` stay where they are. After the block the model has its own environments again, with
    the random states of the copies. After an exception they have their random states of before, and the next reset
    repeats their seeds. The first ``learn`` in the block, and the first one behind it, begin with a reset. If a worker
    dies, ``learn`` raises.

    ``mode="sync"``: what is learned is the same to the bit as without workers, of stochastic policies too, whatever
    their number, with action noise, gSDE, ``VecNormalize``, ``VecFrameStack``, ``VecMonitor``, truncation bootstraps
    and hindsight. In on-policy models whose rollouts have at least 16 steps (PPO, A2C, TRPO) the workers act, by the
    model's own policy and its random numbers, and the model is played what they have collected, so that callbacks see
    every step with its ``locals``; but for what comes below. Elsewhere workers step and the model acts: in off-policy
    models, in those that collect in their own way (MaskablePPO, RecurrentPPO), under a ``VecNormalize`` that learns
    the statistics of observations, which are those of all environments in every step, and under wrappers that nobody
    knows here. To the bit is meant where torch's result does not depend on its number of threads: workers have one.
    It also takes environments whose randomness is their own ``np_random``.

    ``mode="async"``, for off-policy models: workers act, by ``policy.predict`` with the model's noise, its exploration
    rate and random actions until ``learning_starts``, and collect the next ``train_freq`` steps while the model
    learns. They act by random numbers of their own, so a run is not that of ``mode="sync"`` to the bit, but it repeats
    with the same seed and workers. A ``VecNormalize`` normalizes what they see by the statistics that came with the
    policy. The policy that acts is one update behind the one that learns, never more.

    A callback cannot ask the environments anything in the middle of a rollout that workers have acted in
    (``env_method``, ``get_attr``, ``set_attr``): one that does so in ``_on_step`` is refused by ``learn``. What a
    callback draws from torch's random numbers there changes no action.

    Args:
        model: with an environment: PPO, A2C, DQN, SAC, TD3, DDPG, and of sb3-contrib TRPO, MaskablePPO, RecurrentPPO,
            TQC, QRDQN.
        num_workers: worker processes, at most one per environment; ``None``: one per usable core; 0: everything in this
            process.
        mode: ``"sync"`` or ``"async"``.
        max_policy_lag: async: bound on how many updates the policy that acts may be behind; 0: workers wait for the
            model, any other bound is kept by one rollout ahead.

    Raises:
        ConfigurationError: the model, its environments or the settings cannot be honoured; nothing is changed then.
        NotPicklableError: an environment cannot be copied; the message names it.

    >>> from stable_baselines3 import A2C
    >>> from stable_baselines3.common.env_util import make_vec_env
    >>> model = A2C("MlpPolicy", make_vec_env("CartPole-v1", 4), n_steps=16, device="cpu")
    >>> with accelerate(model, num_workers=2) as run:
    ...     model = model.learn(640)
    >>> model.num_timesteps, run.advice().costs.num_workers
    (640, 2)
    """
    return AcceleratedRun(model, num_workers, mode, max_policy_lag)


class AcceleratedRun:
    """What :func:`accelerate` returns: the block in which a model learns on workers.

    >>> from stable_baselines3 import DQN
    >>> with AcceleratedRun(DQN("MlpPolicy", "CartPole-v1", device="cpu"), 0, "sync", None) as run:
    ...     type(run).__name__
    'AcceleratedRun'
    """

    def __init__(
        self, model: BaseAlgorithm, num_workers: int | None, mode: Literal["sync", "async"], max_policy_lag: int | None
    ) -> None:
        check_settings(num_workers, mode, max_policy_lag)
        check_model(model, mode)
        self._model, self._mode = model, mode
        self._original = innermost(model)
        self._factories = factories_of(self._original)
        self._num_workers = min(usable_cores() if num_workers is None else num_workers, len(self._factories))
        self._transforms = transforms_for(model, mode)
        self._ahead = mode == "async" and max_policy_lag != 0
        self._seconds = {"collect_rollouts": 0.0, "train": 0.0}
        self._envs: SteppedVecEnv | PlayedVecEnv | None = None
        self._undo = ExitStack()
        self._unused = weakref.finalize(self, _warn_of_an_unused_run)

    def __enter__(self) -> AcceleratedRun:
        """Start the workers and give them the environments."""
        if self._envs is not None:
            raise ConfigurationError("a run of accelerate is for one with block: call accelerate again")
        self._unused.detach()
        with self._undo:
            self._envs = envs = self._started()
            self._undo.callback(envs.close)
            envs._seeds, envs._options = list(self._original._seeds), list(self._original._options)
            self._replace_envs(envs)
            self._replace_methods(envs)
            self._undo = self._undo.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Give the model back what it had, and end the workers."""
        envs: Any = self._envs
        try:
            if error is None and take_back_random_states(self._original, envs):
                self._original._seeds = envs._seeds
            if isinstance(error, WorkerError):
                error.add_note(
                    "accelerate() does not restart workers. The model keeps what it has learned. "
                    "Call learn(..., reset_num_timesteps=False) in another with block to continue."
                )
        finally:
            self._undo.close()

    def advice(self) -> RunAdvice:
        """Report what each part of the run takes, and how much faster the run would be without waiting.

        Raises:
            ConfigurationError: The model has not learned yet.
        """
        envs = self._envs
        if envs is None:
            raise ConfigurationError("there is no advice before the with block has begun")
        costs = RunCosts(
            envs.num_envs,
            envs.num_workers,
            self._mode,
            isinstance(self._model, OffPolicyAlgorithm),
            envs.steps,
            envs.seconds,
            self._seconds["collect_rollouts"],
            self._seconds["train"],
        )
        return RunAdvice(costs)

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
            original._options = envs._options
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
        more["_setup_learn"] = _unwarned(more.get("_setup_learn") or kind._setup_learn)
        model.__class__ = timed(kind, self._seconds, **more)
        if isinstance(envs, PlayedVecEnv) and isinstance(model, OnPolicyAlgorithm):
            policy: Any = model.policy
            self._undo.callback(delattr, policy, "forward")
            policy.forward = playing_forward(model, envs)


def _warn_of_an_unused_run() -> None:
    # Two frames of ours and of weakref lie above the line that drops the run.
    warnings.warn("accelerate() has no effect without a with block. Write: with accelerate(model): ...", stacklevel=3)


def _unwarned(setup_learn: Callable[..., Any]) -> Callable[..., Any]:
    """Without the warning of an ``EvalCallback`` that has the kind of vec env that the model had."""

    @functools.wraps(setup_learn)
    def method(*arguments: Any, **more: Any) -> Any:
        with warnings.catch_warnings():
            kinds = r"<parenv\.adapters\.sb3\..* != <stable_baselines3\.common\.vec_env\.dummy_vec_env\."
            warnings.filterwarnings("ignore", f"Training and eval env are not of the same type{kinds}", UserWarning)
            return setup_learn(*arguments, **more)

    return method
