"""Rollout buffers of on-policy models that are filled at once, where nobody looks at the single steps.

What comes of it is that of ``OnPolicyAlgorithm.collect_rollouts`` to the bit, but for the ``locals`` of callbacks.
"""

from __future__ import annotations

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

from parenv.adapters.sb3.checks import each_callback
from parenv.adapters.sb3.played_rounds import Round, copies_at
from parenv.adapters.sb3.played_vec_env import PlayedVecEnv
from parenv.adapters.sb3.told_env import set_random_state

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
"""Callbacks that need to be called in every step, but do not look at its ``locals``; what they hold is asked too."""


def fills(model: OnPolicyAlgorithm, envs: PlayedVecEnv, callback: Any, buffer: Any) -> bool:
    """Whether the next rollout of a model can be filled at once."""
    return (
        model.env is envs
        and not envs.is_between
        and type(buffer) in (RolloutBuffer, DictRolloutBuffer)
        and not model.use_sde
        and type(model)._update_info_buffer is BaseAlgorithm._update_info_buffer
        and is_blind(callback)
    )


def is_blind(callback: Any) -> bool:
    """Whether none of these callbacks looks at the ``locals`` of a step."""
    return all(type(one) in _BLIND for one in each_callback(callback))


def fill(model: Any, envs: PlayedVecEnv, callback: BaseCallback, buffer: Any) -> bool:
    """Do what ``collect_rollouts`` does, for as many steps as the buffer holds.

    Returns:
        Whether it has come to its end: no callback has stopped it.
    """
    import torch

    model.policy.set_training_mode(False)
    buffer.reset()
    callback.on_rollout_start()
    while not buffer.full:
        part = envs.current_round()
        length = _call_back(model, envs, callback, part)
        _write(model, buffer, part, length)
        if length < part.length:
            return False
    with torch.no_grad():
        values = model.policy.predict_values(obs_as_tensor(model._last_obs, model.device))
    buffer.compute_returns_and_advantage(last_values=values, dones=model._last_episode_starts)
    callback.on_rollout_end()
    return True


def _call_back(model: Any, envs: PlayedVecEnv, callback: BaseCallback, part: Round) -> int:
    """Count the steps of a part one by one; how many there are before the one at which a callback stops."""
    infos, length = part.infos_with("episode", "is_success"), part.length
    for step in range(length):
        if step == length - 1 and part.random_state is not None:
            set_random_state(part.random_state)
        given = infos.get(step, {})
        envs.note_ends(part, part.ended_at(step), given)
        model.num_timesteps += envs.num_envs
        if not callback.on_step():
            length = step
            break
        if given:
            env_ids = sorted(given)
            model._update_info_buffer([given[env_id] for env_id in env_ids], part.dones[step, env_ids])
    part.pass_steps(step + 1)
    envs.steps += step + 1
    return length


def _write(model: Any, buffer: Any, part: Round, length: int) -> None:
    """Write so many steps of a part behind what is in the buffer already."""
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


def _bootstrapped(model: Any, part: Round, length: int) -> Any:
    """Rewards, with the value of what came where a limit ended an episode."""
    import torch

    rewards = part.rollout.rewards.copy()
    for step, column, final in part.cut_off():
        if step < length:
            with torch.no_grad():
                value = model.policy.predict_values(model.policy.obs_to_tensor(final)[0])[0]
            rewards[step, column] += model.gamma * value
    return rewards


def _by_name(observations: Any) -> dict[str, Any]:
    return observations if isinstance(observations, dict) else {"": observations}
