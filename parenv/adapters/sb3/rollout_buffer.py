"""Fill the rollout buffer of an on-policy model at once, if no callback and no wrapper reads single steps.

The result is bitwise identical to ``OnPolicyAlgorithm.collect_rollouts``, except for the ``locals`` of callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from parenv.adapters.sb3.replay import RecordedSteps, ReplayedVecEnv, copies_at

_BLIND = (
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
    ProgressBarCallback,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
"""Callbacks that do not read ``locals`` themselves, though the callbacks in them may. All are called in every step."""


def can_fill(model: OnPolicyAlgorithm, envs: ReplayedVecEnv, callback: Any, buffer: Any) -> bool:
    """Return whether the next rollout of a model can be filled at once."""
    return (
        model.env is envs
        and not envs.is_between
        and type(buffer) in (RolloutBuffer, DictRolloutBuffer)
        and not model.use_sde
        and type(model)._update_info_buffer is BaseAlgorithm._update_info_buffer
        and is_blind(callback)
    )


def is_blind(callback: Any) -> bool:
    """Return whether no callback reads the ``locals`` of a step."""
    return all(type(one) in _BLIND for one in _each_callback(callback))


def fill(model: Any, envs: ReplayedVecEnv, callback: BaseCallback, buffer: Any) -> bool:
    """Collect as many steps as the buffer holds.

    Returns:
        Whether the buffer is full, so that no callback has stopped the rollout.
    """
    import torch

    model.policy.set_training_mode(False)
    buffer.reset()
    callback.on_rollout_start()
    while not buffer.full:
        part = envs.recorded()
        length = _call_back(model, envs, callback, part)
        _write(model, buffer, part, length)
        if length < part.length:
            return False
    with torch.no_grad():
        values = model.policy.predict_values(obs_as_tensor(model._last_obs, model.device))
    buffer.compute_returns_and_advantage(last_values=values, dones=model._last_episode_starts)
    callback.on_rollout_end()
    return True


def _each_callback(callback: Any) -> Iterator[Any]:
    """Yield a callback, or the callbacks of a list, and the callbacks in them."""
    if callback is None:
        return
    parts = callback if isinstance(callback, list) else getattr(callback, "callbacks", [])
    if not isinstance(callback, list):
        yield callback
        parts = [*parts, getattr(callback, "callback", None), getattr(callback, "callback_on_new_best", None)]
    for part in parts:
        yield from _each_callback(part)


def _call_back(model: Any, envs: ReplayedVecEnv, callback: BaseCallback, part: RecordedSteps) -> int:
    """Call a callback in each step of a part, and return the number of steps before the one at which it stops."""
    infos = part.infos_with("episode", "is_success")
    for step in range(part.length):
        given = infos.get(step, {})
        envs.finish_step(given)
        model.num_timesteps += envs.num_envs
        if not callback.on_step():
            return step
        if given:
            env_ids = sorted(given)
            model._update_info_buffer([given[env_id] for env_id in env_ids], part.dones[step, env_ids])
    return part.length


def _write(model: Any, buffer: Any, part: RecordedSteps, length: int) -> None:
    """Append the first steps of a part to the buffer."""
    if not length:
        return
    rows, extras = slice(buffer.pos, buffer.pos + length), part.rollout.extras
    named = {"rewards": _bootstrapped(model, part, length), **extras}
    for name in ("actions", "rewards", "values", "log_probs"):
        kept = getattr(buffer, name)[rows]
        kept[:] = named[name][:length].reshape(kept.shape)
    kept = buffer.episode_starts[rows]
    kept[0], kept[1:] = model._last_episode_starts, part.dones[: length - 1]
    shifted = _by_name(part.rollout.shifted_observations)
    for name, observations in _by_name(buffer.observations).items():
        kept = observations[rows]
        kept[0] = _by_name(model._last_obs)[name].reshape(kept.shape[1:])
        kept[1:] = shifted[name][: length - 1].reshape(kept[1:].shape)
    buffer.pos += length
    buffer.full = buffer.pos == buffer.buffer_size
    model._last_obs = copies_at(length - 1, part.rollout.shifted_observations)
    model._last_episode_starts = part.dones[length - 1].copy()


def _bootstrapped(model: Any, part: RecordedSteps, length: int) -> Any:
    """Return rewards, with the value of the final observation added if a limit ended the episode."""
    import torch

    rewards = part.rollout.rewards.copy()
    for step, env_id, final in part.cut_off():
        if step < length:
            with torch.no_grad():
                value = model.policy.predict_values(model.policy.obs_to_tensor(final)[0])[0]
            rewards[step, env_id] += model.gamma * value
    return rewards


def _by_name(observations: Any) -> dict[str, Any]:
    return observations if isinstance(observations, dict) else {"": observations}
