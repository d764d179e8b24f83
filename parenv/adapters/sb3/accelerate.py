"""accelerate: a model of Stable-Baselines3 learns on parenv's workers while a ``with`` block lasts."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from gymnasium.spaces import Box
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from parenv.adapters.sb3.acting import acting_part, actor_of
from parenv.adapters.sb3.infos import info_logging_env
from parenv.adapters.sb3.model_envs import (
    check_mode,
    check_model,
    check_settings,
    factories_of,
    holders_of,
    innermost,
    obstacle_of,
    results_writers,
    wrappers_of,
)
from parenv.adapters.sb3.replay import ReplayedVecEnv
from parenv.adapters.sb3.rollout_buffer import can_fill, fill
from parenv.adapters.sb3.run_advice import RunAdvice, RunCosts, why_slower
from parenv.adapters.sb3.transforms import Transform, transforms_of
from parenv.adapters.sb3.vec_env import SteppedVecEnv
from parenv.errors import ConfigurationError, NotPicklableError, WorkerError
from parenv.options import WorkerOptions
from parenv.pool.library_pool import LibraryPool
from parenv.process.cores import usable_cores
from parenv.vector.library_vector_env import LibraryVectorEnv
from parenv.worker.copied_env import take_back
from parenv.worker.pickled_env import PickledEnv

SHORT = 16
"""Smallest number of steps in a rollout for which workers act. Below it, the messages of a rollout cost more."""
PARTS, REPLAYED_PART, FILLED_PART = 4, 64, 512
"""Largest number of parts of a rollout, and smallest number of steps in a part.

While workers collect a part, the model reads the previous one. This hides much work if the model replays single steps,
and little if a buffer is filled at once. Each part costs messages.
"""
PRELOAD = ("parenv.adapters.sb3.acting",)


def accelerate(
    model: BaseAlgorithm,
    num_workers: int | None = None,
    mode: Literal["sync", "async"] = "sync",
    max_policy_lag: int | None = None,
) -> AcceleratedRun:
    """Have a model of Stable-Baselines3 learn on parenv's workers while a ``with`` block lasts.

    The environments of the model's ``DummyVecEnv`` are copied to workers with their random states. Wrappers around it,
    the buffers and ``train`` stay in this process. After the block, the model has its own environments again, with the
    random states and the changed attributes of the copies, if these are plain data. After an exception, they are as
    before the block, and the next reset repeats their seeds. The first ``learn`` in the block and the first ``learn``
    after it begin with a reset. If a worker dies, ``learn`` raises.

    A model that ``accelerate`` cannot accelerate stays as it is, with one warning that names the reason. Reasons are
    another algorithm such as ARS, a vec env other than ``DummyVecEnv``, and environments that cannot be pickled. In
    sync mode, steps that are so short that workers would be slower are a reason too. A worker measures this in 25 ms.

    ``mode="sync"``: the model learns bitwise the same as without workers, with any number of workers. This includes
    stochastic policies, action noise, gSDE, ``VecNormalize``, ``VecFrameStack``, ``VecMonitor``, truncation bootstraps
    and hindsight. It needs environments that draw from their own generators and spaces only, and operations of torch
    whose result does not depend on the number of threads, because workers have one. An off-policy model draws from the
    action space of the first environment, so an environment that draws from it too gets other samples.

    In sync mode, workers act for PPO, A2C and TRPO if a rollout has at least 16 steps. They use the model's policy and
    its random numbers. The model then replays their steps, so that callbacks get every step with its ``locals``.
    Workers only step, and the model acts, for off-policy models, MaskablePPO and RecurrentPPO, and under unknown
    wrappers. The same applies under a ``VecNormalize`` that updates observation statistics, which depend on all
    environments.

    ``mode="async"``, for off-policy models: workers collect the next ``train_freq`` steps while the model learns. They
    act with ``policy.predict``, the model's noise and exploration rate, and random actions until ``learning_starts``.
    They draw their own random numbers, so results differ from ``mode="sync"``, but repeat with the same seed and number
    of workers. ``VecNormalize`` normalizes their observations with the statistics at the last update of their policy.
    The policy that acts is at most one update behind.

    If workers act, ``env_method``, ``get_attr`` and ``set_attr`` raise an error in the middle of a rollout, such as in
    a callback's ``_on_step``. Torch's random numbers that a callback draws there do not change any action.

    Args:
        model: Model with an environment: PPO, A2C, DQN, SAC, TD3 or DDPG; from sb3-contrib TRPO, MaskablePPO,
            RecurrentPPO, TQC or QRDQN.
        num_workers: Number of worker processes, at most one per environment. 0: all environments run in this process.
            ``None``: one per usable core, if that is faster. A given number is obeyed, with a warning if it is slower.
        mode: ``"sync"`` or ``"async"``.
        max_policy_lag: Largest number of updates that the acting policy may be behind in async mode. 0: workers wait
            for the model. With any other bound, they collect one rollout ahead.

    Raises:
        ConfigurationError: An argument is wrong, or the mode does not fit the model. Nothing is changed then.

    >>> from stable_baselines3 import A2C
    >>> from stable_baselines3.common.env_util import make_vec_env
    >>> model = A2C("MlpPolicy", make_vec_env("CartPole-v1", 4), n_steps=16, device="cpu")
    >>> with accelerate(model, num_workers=0) as run:
    ...     model = model.learn(640)
    >>> model.num_timesteps, run.advice().costs.num_workers
    (640, 0)
    """
    return AcceleratedRun(model, num_workers, mode, max_policy_lag)


class AcceleratedRun:
    """The ``with`` block of :func:`accelerate`, in which a model learns on workers.

    >>> from stable_baselines3 import DQN
    >>> with AcceleratedRun(DQN("MlpPolicy", "CartPole-v1", device="cpu"), 0, "sync", None) as run:
    ...     type(run).__name__
    'AcceleratedRun'
    """

    def __init__(
        self, model: BaseAlgorithm, num_workers: int | None, mode: Literal["sync", "async"], max_policy_lag: int | None
    ) -> None:
        check_settings(num_workers, mode, max_policy_lag)
        check_model(model)
        self._model, self._mode = model, mode
        self._original: Any = innermost(model)
        self._factories: Sequence[PickledEnv] = ()
        self._obstacle = obstacle_of(model)
        if self._obstacle is None:
            check_mode(model, mode)
            try:
                self._factories = factories_of(model, self._original.envs)
            except NotPicklableError as error:
                self._obstacle = str(error)
        self._is_chosen = num_workers is None
        self._num_workers = min(usable_cores() if num_workers is None else num_workers, len(self._factories))
        self._ahead = mode == "async" and max_policy_lag != 0
        self._seconds = {"collect_rollouts": 0.0, "train": 0.0}
        self._envs: SteppedVecEnv | ReplayedVecEnv | None = None
        self._undo = contextlib.ExitStack()
        self._unused = weakref.finalize(self, _warn_of_an_unused_run)

    def __enter__(self) -> AcceleratedRun:
        """Start the workers and give them the environments, or warn if the model must stay as it is."""
        if self._envs is not None:
            raise ConfigurationError("the result of accelerate can be used in one with block. Call accelerate again.")
        self._unused.detach()
        if self._obstacle is None and (why := self._why_slower()):
            if self._is_chosen:
                self._obstacle = f"{why}. Pass num_workers to use workers nevertheless."
            else:
                warnings.warn(f"accelerate() will be slower than without it: {why}. Leave it out.", stacklevel=2)
        if self._obstacle is not None:
            warnings.warn(f"accelerate() leaves the model as it is: {self._obstacle}", stacklevel=2)
            return self
        with self._undo:
            self._envs = envs = self._started()
            self._undo.callback(envs.close)
            envs._seeds, envs._options = list(self._original._seeds), list(self._original._options)
            self._replace_envs(envs)
            # The model would save attributes, but not its class.
            self._undo.callback(setattr, self._model, "__class__", type(self._model))
            self._model.__class__ = _accelerated_class(self._model, envs, self._seconds)
            self._undo = self._undo.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Give the model its environments back, and end the workers."""
        try:
            if error is None and self._envs is not None:
                self._take_back_changes()
            if isinstance(error, WorkerError) and self._envs is not None:
                error.add_note(
                    "accelerate() does not restart workers. The model keeps what it has learned. "
                    "Call learn(..., reset_num_timesteps=False) in another with block to continue."
                )
        finally:
            self._undo.close()

    def advice(self) -> RunAdvice:
        """Report what each part of the run takes, and how much faster the run would be without waiting.

        If workers only step, the report compares them with this process. The first call measures an environment.

        Raises:
            ConfigurationError: The model has not learned yet.
        """
        envs: Any = self._envs
        if envs is None and self._obstacle is None:
            raise ConfigurationError("advice() needs a run that has begun. Call it in the with block.")
        only_steps = isinstance(envs, SteppedVecEnv) and self._num_workers > 0
        costs = RunCosts(
            self._original.num_envs,
            self._num_workers,
            self._mode,
            isinstance(self._model, OffPolicyAlgorithm),
            getattr(envs, "steps", 0),
            getattr(envs, "seconds", 0.0),
            self._seconds["collect_rollouts"],
            self._seconds["train"],
            self._env_step_s if only_steps else None,
        )
        return RunAdvice(costs, self._obstacle or "")

    def _why_slower(self) -> str:
        """Return why workers will be slower than this process, or an empty text."""
        # In async mode the model learns while workers collect, which a step of the environments does not show.
        if self._mode == "async" or self._num_workers == 0 or self._env_step_s is None:
            return ""
        return why_slower(self._original.num_envs, self._num_workers, self._env_step_s)

    @functools.cached_property
    def _env_step_s(self) -> float | None:
        """Seconds of a step of one environment, or ``None`` if they cannot be measured."""
        # A worker makes and steps the copy, because a step may be what ends a process. With a given number of workers,
        # caller_steps="auto" asks for the measurement. The environment may fail in any way.
        original = self._original
        options: dict[str, Any] = {"spaces": (original.observation_space, original.action_space)}
        with (
            contextlib.suppress(Exception),
            contextlib.closing(
                LibraryVectorEnv(self._factories[:1], is_silent=True, num_workers=1, caller_steps="auto", **options)
            ) as envs,
        ):
            return envs.measured_step_s
        return None

    def _started(self) -> SteppedVecEnv | ReplayedVecEnv:
        """Start workers, which act if they can."""
        original, writers = self._original, results_writers(self._original)
        transforms = _transforms_for(self._model, self._mode)
        if transforms is None or self._num_workers == 0:
            spaces = original.observation_space, original.action_space
            return SteppedVecEnv(self._factories, writers, num_workers=self._num_workers, spaces=spaces)
        rollout_length, parts = _rollout_parts(self._model)
        actor, settings = actor_of(self._model, transforms)
        policy: Any = self._model.policy
        published = policy if isinstance(self._model, OnPolicyAlgorithm) else acting_part(policy)
        rollouts = itertools.count(1)
        pool = LibraryPool(
            [functools.partial(info_logging_env, pickled, i) for i, pickled in enumerate(self._factories)],
            actor,
            num_workers=self._num_workers,
            mode="sync",
            rollout_length=rollout_length,
            seed=self._model.seed,
            workers=WorkerOptions(restart=None, preload=PRELOAD),
            spaces=(original.observation_space, original.action_space),
        )

        def publish(steps_ahead: int) -> None:
            pool.publish(published, rollout=next(rollouts), **settings(steps_ahead))

        try:
            return ReplayedVecEnv(pool, original, writers, publish, self._ahead, parts)
        except BaseException:
            pool.close()
            raise

    def _replace_envs(self, envs: VecEnv) -> None:
        """Put other environments in the place of the model's. The next ``learn`` begins with a reset of them."""
        model, original = self._model, self._original

        def put_back() -> None:
            original._options = envs._options
            for holder, name in holders:
                if getattr(holder, name) is envs:
                    setattr(holder, name, original)
            model._last_obs = None

        holders = holders_of(model, original)
        self._undo.callback(put_back)
        for holder, name in holders:
            setattr(holder, name, envs)
        model._last_obs = None

    def _take_back_changes(self) -> None:
        """Give the original environments the random states and the attributes of their copies."""
        envs: Any = self._envs
        try:
            changes = envs.changes()
        except Exception:  # An environment may raise any error when it is asked.
            return
        for env, changed in zip(self._original.envs, changes, strict=True):
            take_back(env, changed)
        self._original._seeds = envs._seeds


def _transforms_for(model: BaseAlgorithm, mode: str) -> list[Transform] | None:
    """Return the transforms of observations before workers act, or ``None`` if the model acts."""
    if mode == "sync":
        collects_as_known = getattr(type(model), "collect_rollouts", None) is OnPolicyAlgorithm.collect_rollouts
        if not isinstance(model, OnPolicyAlgorithm) or not collects_as_known or model.n_steps < SHORT:
            return None
        if isinstance(model.action_space, Box) and model.action_space.dtype.kind != "f":
            return None  # The model gives the environments floats, which rollouts of integers cannot hold.
    return transforms_of(wrappers_of(model), exact=mode == "sync")


def _rollout_parts(model: Any) -> tuple[int, int]:
    """Return the number of steps in a part of a model's rollout, and the number of parts."""
    if not isinstance(model, OnPolicyAlgorithm):
        return int(model.train_freq.frequency), 1
    steps = int(model.n_steps)
    least = REPLAYED_PART if wrappers_of(model) else FILLED_PART
    length = next(n for n in range(min(steps, max(least, steps // PARTS)), steps + 1) if steps % n == 0)
    return length, steps // length


def _accelerated_class(model: Any, envs: SteppedVecEnv | ReplayedVecEnv, seconds: dict[str, float]) -> type[Any]:
    """Return a subclass of a model's class that takes steps from workers and counts seconds."""
    kind: type[Any] = type(model)
    n_steps = getattr(model, "n_steps", 0)
    replayed: Any = envs if isinstance(envs, ReplayedVecEnv) else None

    def replays(model: Any) -> bool:
        return innermost(model) is replayed  # The user may have called set_env in the block.

    @contextlib.contextmanager
    def timed(name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds[name] += time.perf_counter() - began

    class Accelerated(kind):  # type: ignore[misc]
        def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
            if replayed is not None and replayed.is_between:
                self._last_obs = None  # The environments are at the end of the rollout that was stopped.
            with warnings.catch_warnings():
                # An EvalCallback warns if its vec env and the model's have different classes.
                kinds = r"<parenv\.adapters\.sb3\..* != <stable_baselines3\.common\.vec_env\.dummy_vec_env\."
                warnings.filterwarnings("ignore", f"Training and eval env are not of the same type{kinds}", UserWarning)
                return super()._setup_learn(*args, **kwargs)

        def train(self, *args: Any, **kwargs: Any) -> Any:
            with timed("train"):
                return super().train(*args, **kwargs)

        def collect_rollouts(self, env: VecEnv, callback: Any, *args: Any, **kwargs: Any) -> Any:
            with timed("collect_rollouts"):
                if not isinstance(self, OnPolicyAlgorithm) or not replays(self):
                    return super().collect_rollouts(env, callback, *args, **kwargs)
                buffer: Any = self.rollout_buffer
                if self.n_steps == buffer.buffer_size == n_steps and can_fill(self, replayed, callback, buffer):
                    return fill(self, replayed, callback, buffer)
                self.policy.forward = functools.partial(_replayed_forward, self.device, replayed)
                try:
                    return super().collect_rollouts(env, callback, *args, **kwargs)
                finally:
                    del self.policy.forward

        def _sample_action(self, *args: Any, **kwargs: Any) -> Any:
            if not replays(self):
                return super()._sample_action(*args, **kwargs)
            actions = replayed.recorded().acted("buffer_actions")
            scales = hasattr(self.action_space, "low")
            return self.policy.unscale_action(actions) if scales else actions, actions

    Accelerated.__name__, Accelerated.__qualname__ = kind.__name__, kind.__qualname__
    Accelerated.__module__, Accelerated.__doc__ = kind.__module__, kind.__doc__
    return Accelerated


def _replayed_forward(device: Any, envs: ReplayedVecEnv, observations: Any, deterministic: bool = False) -> Any:
    """Return the actions, values and log-probabilities that workers have computed for the next step."""
    import torch

    recorded = envs.recorded()
    acted = (recorded.acted(name) for name in ("actions", "values", "log_probs"))
    return tuple(torch.from_numpy(value).to(device) for value in acted)


def _warn_of_an_unused_run() -> None:
    # Two frames, of this module and of weakref, are above the line that drops the run.
    warnings.warn("accelerate() has no effect without a with block. Write: with accelerate(model): ...", stacklevel=3)
