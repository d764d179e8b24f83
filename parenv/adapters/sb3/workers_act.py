"""How a model is made to learn from what workers have collected that acted for it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium.spaces import Box
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env.base_vec_env import VecEnv

from parenv.adapters.sb3.checks import check_callbacks
from parenv.adapters.sb3.exploring import OffPolicyActor, OnPolicyActor, WrappedPolicy, acting_part
from parenv.adapters.sb3.filled_rollouts import fill, fills
from parenv.adapters.sb3.played_vec_env import PlayedVecEnv
from parenv.adapters.sb3.substitution import others_for_a_while, results_writers, wrappers_of
from parenv.adapters.sb3.told_env import random_state, set_random_state, told_env
from parenv.adapters.sb3.transforms import Transform, statistics_of, transforms_of
from parenv.options import WorkerOptions
from parenv.pool.pool import AsyncWorkerPool
from parenv.worker.pickled_env import PickledEnv

SHORT = 16
"""Steps below which a rollout is not worth a message."""
PARTS, PLAYED_PART, FILLED_PART = 4, 64, 512
"""Into how many parts a rollout is cut at most, and how many steps a part has at least: each costs messages.

What the driver does with a part is hidden behind the next one: much where steps are played, little where a buffer is
filled at once.
"""
PRELOAD = ("parenv.adapters.sb3.exploring",)


def transforms_for(model: BaseAlgorithm, mode: str) -> list[Transform] | None:
    """What is done to observations before the model acts, or ``None`` where workers only step and the model acts.

    That is where they could not act as it does, and where rollouts are so short that a message for each costs more.
    """
    if mode == "sync":
        collects_as_known = getattr(type(model), "collect_rollouts", None) is OnPolicyAlgorithm.collect_rollouts
        if not isinstance(model, OnPolicyAlgorithm) or not collects_as_known or model.n_steps < SHORT:
            return None
        if isinstance(model.action_space, Box) and model.action_space.dtype.kind != "f":
            return None  # The model gives the environments floats, which rollouts of integers cannot hold.
    return transforms_of(wrappers_of(model), exact=mode == "sync")


def played_envs(
    model: BaseAlgorithm,
    original: VecEnv,
    factories: Sequence[PickledEnv],
    transforms: Sequence[Transform],
    num_workers: int,
    ahead: bool,
) -> PlayedVecEnv:
    """Start workers that act for a model."""
    actor, settings = (_on_policy if isinstance(model, OnPolicyAlgorithm) else _off_policy)(model, transforms)
    rollout_length, parts = _parts(model)
    pool = AsyncWorkerPool(
        [functools.partial(told_env, pickled, env_id) for env_id, pickled in enumerate(factories)],
        actor,
        num_workers=num_workers,
        mode="sync",
        rollout_length=rollout_length,
        seed=model.seed,
        workers=WorkerOptions(restart=None, preload=PRELOAD),
        spaces=(original.observation_space, original.action_space),
    )
    pool._session.workers.warn.is_silent = True
    published = model.policy if isinstance(model, OnPolicyAlgorithm) else acting_part(model.policy)
    try:
        return PlayedVecEnv(pool, original, results_writers(original), published, settings, ahead, parts)
    except BaseException:
        pool.close()
        raise


def playing_methods(model: BaseAlgorithm, envs: PlayedVecEnv) -> dict[str, Callable[..., Any]]:
    """What the model does otherwise meanwhile."""
    of: Any = type(model)
    n_steps = getattr(model, "n_steps", 0)

    def setup_learn(self: Any, total_timesteps: int, callback: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, OnPolicyAlgorithm):
            check_callbacks(callback)
        if envs.is_between:  # The learn before was stopped in the middle of a rollout, at whose end the workers are.
            self._last_obs = None
        return of._setup_learn(self, total_timesteps, callback, *args, **kwargs)

    def sample_action(self: Any, *args: Any, **kwargs: Any) -> Any:
        (actions,) = envs.acted("buffer_actions")
        scales = hasattr(self.action_space, "low")
        return self.policy.unscale_action(actions) if scales else actions, actions

    def collect_rollouts(self: Any, env: VecEnv, callback: Any, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        if n_rollout_steps == rollout_buffer.buffer_size == n_steps and fills(self, envs, callback, rollout_buffer):
            return fill(self, envs, callback, rollout_buffer)
        return bool(of.collect_rollouts(self, env, callback, rollout_buffer, n_rollout_steps))

    if isinstance(model, OffPolicyAlgorithm):
        return {"_setup_learn": setup_learn, "_sample_action": sample_action}
    return {"_setup_learn": setup_learn, "collect_rollouts": collect_rollouts}


def playing_forward(model: BaseAlgorithm, envs: PlayedVecEnv) -> Callable[..., Any]:
    """What an on-policy model's policy does meanwhile instead of acting."""
    import torch

    def forward(observations: Any, deterministic: bool = False) -> Any:
        acted = [torch.from_numpy(value).to(model.device) for value in envs.acted("actions", "values", "log_probs")]
        if (state := envs.random_state_behind) is not None:
            set_random_state(state)
        return tuple(acted)

    return forward


def _on_policy(model: Any, transforms: Sequence[Transform]) -> tuple[WrappedPolicy, Callable[[int], Mapping[str, Any]]]:
    actor = OnPolicyActor(_copied(model.policy), model.action_space, **_common(model, transforms))

    def settings(steps_ahead: int) -> Mapping[str, Any]:
        return {"random_state": random_state(), "noise_matrices": _matrices(model) if model.use_sde else None}

    return actor, settings


def _off_policy(
    model: Any, transforms: Sequence[Transform]
) -> tuple[WrappedPolicy, Callable[[int], Mapping[str, Any]]]:
    noise = model.action_noise
    actor = OffPolicyActor(
        _copied(model.policy),
        copy.deepcopy(model.action_space),
        -1 if model.use_sde and model.use_sde_at_warmup else model.learning_starts,
        noise.base_noise if isinstance(noise, VectorizedActionNoise) else noise,
        **_common(model, transforms),
    )

    def settings(steps_ahead: int) -> Mapping[str, Any]:
        return {
            "num_timesteps": model.num_timesteps + steps_ahead * model.n_envs,
            "exploration_rate": getattr(model, "exploration_rate", 0.0),
            **statistics_of(wrappers_of(model)),
        }

    return actor, settings


def _matrices(model: Any) -> tuple[Any, Any]:
    """What gSDE has drawn."""
    dist = model.policy.action_dist
    return dist.exploration_mat.detach().cpu(), dist.exploration_matrices.detach().cpu()


def _common(model: Any, transforms: Sequence[Transform]) -> dict[str, Any]:
    sde_sample_freq = model.sde_sample_freq if model.use_sde else 0
    return {"transforms": transforms, "num_envs": model.n_envs, "sde_sample_freq": sde_sample_freq}


def _parts(model: Any) -> tuple[int, int]:
    """How many steps the workers make at a time, and how often for one rollout of the model."""
    if not isinstance(model, OnPolicyAlgorithm):
        return int(model.train_freq.frequency), 1
    steps = int(model.n_steps)
    least = PLAYED_PART if wrappers_of(model) else FILLED_PART
    length = next(n for n in range(min(steps, max(least, steps // PARTS)), steps + 1) if steps % n == 0)
    return length, steps // length


def _copied(policy: Any) -> Any:
    """A policy on the CPU, without what its distributions keep of the last call, which leads back to its parameters."""
    modules = [module for module in policy.modules() if hasattr(module, "action_dist")]
    with others_for_a_while(modules, "action_dist", [_fresh(module.action_dist) for module in modules]):
        return copy.deepcopy(policy).to("cpu")


def _fresh(action_dist: Any) -> Any:
    import torch

    fresh = copy.copy(action_dist)
    for name, value in vars(action_dist).items():
        if isinstance(value, torch.Tensor):
            setattr(fresh, name, value.detach())
        elif isinstance(value[0] if isinstance(value, list) and value else value, torch.distributions.Distribution):
            setattr(fresh, name, None)
    return fresh
