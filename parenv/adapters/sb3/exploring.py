"""Policies of Stable-Baselines3 that act in workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise
from stable_baselines3.common.utils import obs_as_tensor

from parenv.adapters.sb3.told_env import OWN, set_random_state
from parenv.adapters.sb3.transforms import Transform
from parenv.memory.trees import map_trees
from parenv.policy.distributions import unchecked_distributions
from parenv.policy.policy import Action, Policy

FRESH = "fresh"


class WrappedPolicy(Policy):
    """What is common to both kinds.

    Settings that come with each version are its ``round``; on-policy ``random_state`` and ``noise_matrices``;
    off-policy ``num_timesteps`` and ``exploration_rate``; and statistics for the transforms.

    Args:
        policy: of the model, on the CPU.
        transforms: what is done to observations before it acts.
        num_envs: environments of all workers.
        sde_sample_freq: steps between two draws of the exploration matrix; 0: none within a rollout.
    """

    def __init__(self, policy: Any, transforms: Sequence[Transform], num_envs: int, sde_sample_freq: int) -> None:
        self.policy, self.transforms, self.num_envs = policy, transforms, num_envs
        self.sde_sample_freq = sde_sample_freq
        self._round: Any = -1
        self._step = 0

    def initial_carry(self, batch: int) -> Any:
        """What the transforms keep."""
        kept = {str(i): transform.initial(batch) for i, transform in enumerate(self.transforms)}
        return {name: value for name, value in kept.items() if value is not None} or None

    def act(self, observations: Any, carry: Any) -> Action:
        """Choose actions."""
        if self.settings.get("round") == self._round:
            self._step += 1
        else:
            self._round, self._step = self.settings.get("round"), 0
            self.begin()
        # Copies, which may be written to, as torch wants them to be.
        observations, kept = map_trees(np.array, observations), {}
        for i, transform in enumerate(self.transforms):
            before = (carry or {}).get(str(i))
            observations, after = transform(observations, before, self.settings)
            if after is not None:
                kept[str(i)] = after
        actions, extras, more = self.choose(observations, carry or {})
        return Action(actions, extras, {**kept, **more} or None)

    def begin(self) -> None:
        """Begin a rollout."""

    def choose(self, observations: Any, carry: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Actions, extras, and what else to keep."""
        raise NotImplementedError


class OnPolicyActor(WrappedPolicy):
    """Acts as an on-policy model does, to the bit: by the model's random numbers, on batches of the model's size.

    The rows of other workers' sub-environments are zeros; what would be random for them is drawn and thrown away.

    Args:
        policy: an ``ActorCriticPolicy``.
        action_space: of a sub-environment.
        **options: of the base class.
    """

    def __init__(self, policy: Any, action_space: Space[Any], **options: Any) -> None:
        super().__init__(policy, **options)
        self.module, self.action_space = policy, action_space

    def begin(self) -> None:
        """Take over the model's random numbers."""
        self.policy.set_training_mode(False)
        if "random_state" in self.settings:
            set_random_state(self.settings["random_state"])
        if (matrices := self.settings.get("noise_matrices")) is not None:
            self.policy.action_dist.exploration_mat, self.policy.action_dist.exploration_matrices = matrices
        elif self.policy.use_sde:
            self.policy.reset_noise(self.num_envs)

    def choose(self, observations: Any, carry: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Call ``forward``."""
        import torch

        batch = len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
        own = slice(OWN[0].env_id, OWN[0].env_id + batch)
        if self.sde_sample_freq > 0 and self._step and self._step % self.sde_sample_freq == 0:
            self.policy.reset_noise(self.num_envs)
        with torch.no_grad():
            padded = obs_as_tensor(self._padded(observations, own), torch.device("cpu"))
            actions, values, log_probs = (value[own] for value in self._forward(padded))
        return self._for_envs(actions), {"actions": actions, "values": values, "log_probs": log_probs}, {}

    def _forward(self, observations: Any) -> list[Any]:
        """Call ``forward``.

        What torch checks of each distribution takes a fifth of its time, and is checked only where it would be wrong.
        """
        try:
            with unchecked_distributions():
                returned = [value.numpy() for value in self.policy(observations)]
            if np.isfinite(returned[2]).all():
                return returned
        except RuntimeError:
            self.policy.get_distribution(observations)
            raise
        self.policy.get_distribution(observations)
        return returned

    def _for_envs(self, actions: Any) -> Any:
        if not isinstance(self.action_space, Box):
            # A Bernoulli distribution samples floats, which the model keeps and the space does not have.
            return actions.astype(self.action_space.dtype, copy=False)
        if self.policy.squash_output:
            return self.policy.unscale_action(actions)
        return np.clip(actions, self.action_space.low, self.action_space.high)

    def _padded(self, observations: Any, own: slice) -> Any:
        if isinstance(observations, dict):
            return {name: self._padded(part, own) for name, part in observations.items()}
        # In the same order in memory, by which torch chooses how to convolve.
        padded = np.zeros_like(observations, shape=(self.num_envs, *observations.shape[1:]))
        padded[own] = observations
        return padded


class OffPolicyActor(WrappedPolicy):
    """Acts as an off-policy model does, by random numbers of the worker's own.

    Args:
        policy: any that has ``predict``.
        action_space: of a sub-environment.
        learning_starts: env steps of random actions at first; -1 for none.
        noise: what is added to actions, or ``None``.
        **options: of the base class.
    """

    def __init__(
        self, policy: Any, action_space: Space[Any], learning_starts: int, noise: ActionNoise | None, **options: Any
    ) -> None:
        super().__init__(policy, **options)
        self.module = acting_part(policy)
        self.action_space, self.learning_starts, self.noise = action_space, learning_starts, noise
        self._noises: VectorizedActionNoise | None = None
        self._is_seeded = False

    def initial_carry(self, batch: int) -> Any:
        """What the transforms keep, and whose noise is to begin anew."""
        kept = super().initial_carry(batch)
        return kept if self.noise is None else {**(kept or {}), FRESH: np.ones(batch, bool)}

    def begin(self) -> None:
        """Random actions differ from worker to worker."""
        if not self._is_seeded:
            self.action_space.seed(int(np.random.randint(2**31)))
            self._is_seeded = True

    def choose(self, observations: Any, carry: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Explore."""
        batch = len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
        self._draw_matrix(batch)
        chosen = self._chosen(observations, batch)
        if not isinstance(self.action_space, Box):
            return chosen, {"buffer_actions": chosen}, {}
        scaled = self.policy.scale_action(chosen)
        if self.noise is not None:
            scaled = np.clip(scaled + self._noise(carry, batch), -1, 1)
        scaled = scaled.astype(self.action_space.dtype)
        kept = {} if self.noise is None else {FRESH: np.zeros(batch, bool)}
        return self.policy.unscale_action(scaled), {"buffer_actions": scaled}, kept

    def _chosen(self, observations: Any, batch: int) -> Any:
        explores = np.random.rand() < self.settings.get("exploration_rate", 0.0)
        if explores or self.settings.get("num_timesteps", 0) + self._step * self.num_envs < self.learning_starts:
            return np.array([self.action_space.sample() for _ in range(batch)])
        return self.policy.predict(observations, deterministic=False)[0]

    def _draw_matrix(self, batch: int) -> None:
        actor: Any = getattr(self.policy, "actor", None)
        if getattr(actor, "use_sde", False):
            resample = self.sde_sample_freq > 0 and self._step % self.sde_sample_freq == 0
            if self._step == 0 or resample:
                actor.reset_noise(batch)

    def _noise(self, carry: Mapping[str, Any], batch: int) -> Any:
        if self._noises is None:
            assert self.noise is not None
            self._noises = VectorizedActionNoise(self.noise, batch)
        self._noises.reset(np.flatnonzero(carry[FRESH]).tolist())
        return self._noises()


def acting_part(policy: Any) -> Any:
    """The module that acts, of a policy that has critics beside it."""
    for name in ("actor", "q_net", "quantile_net"):
        if (part := getattr(policy, name, None)) is not None:
            return part
    return policy
