"""Policies of Stable-Baselines3 that act in workers, with the settings that a model publishes for each rollout."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from parenv.adapters.sb3.infos import ENVS_OF_WORKER, random_state, set_random_state
from parenv.adapters.sb3.model_envs import temporarily, wrappers_of
from parenv.adapters.sb3.transforms import Transform, statistics_of
from parenv.memory.trees import map_trees
from parenv.policy.distributions import unchecked_distributions
from parenv.policy.policy import Action, Policy

Settings = Callable[[int], Mapping[str, Any]]
"""Returns the settings of a version that acts from so many steps after the present one."""
_IS_FIRST = "is_first"


class ModelActor(Policy):
    """A model's policy in a worker.

    Each version comes with settings: ``rollout``, the number of the model's rollout; ``random_state`` and
    ``noise_matrices`` of an on-policy model; ``num_timesteps`` and ``exploration_rate`` of an off-policy model; and
    statistics for the transforms.

    Args:
        policy: Policy of the model, on the CPU.
        transforms: Transforms of the observations before the policy acts.
        num_envs: Number of environments of all workers.
        sde_sample_freq: Number of steps between two draws of the exploration matrix. 0: one draw per rollout.
    """

    def __init__(self, policy: Any, transforms: Sequence[Transform], num_envs: int, sde_sample_freq: int) -> None:
        self.policy, self.transforms, self.num_envs = policy, transforms, num_envs
        self.sde_sample_freq = sde_sample_freq
        self._rollout: Any = -1
        self._step = 0

    def initial_carry(self, batch: int) -> Any:
        """Return the state that the transforms keep between steps."""
        kept = {str(i): transform.initial(batch) for i, transform in enumerate(self.transforms)}
        return {name: value for name, value in kept.items() if value is not None} or None

    def act(self, observations: Any, carry: Any) -> Action:
        """Choose actions."""
        if self.settings.get("rollout") == self._rollout:
            self._step += 1
        else:
            self._rollout, self._step = self.settings.get("rollout"), 0
            self.begin()
        # Torch warns of arrays that cannot be written, so the policy gets copies.
        observations, kept = map_trees(np.array, observations), {}
        for i, transform in enumerate(self.transforms):
            before = (carry or {}).get(str(i))
            observations, after = transform(observations, before, self.settings)
            if after is not None:
                kept[str(i)] = after
        actions, extras, more = self.choose(observations, carry or {})
        return Action(actions, extras, {**kept, **more} or None)

    def begin(self) -> None:
        """Begin a rollout of the model."""

    def choose(self, observations: Any, carry: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Return actions, extras, and more recurrent state."""
        raise NotImplementedError


class OnPolicyActor(ModelActor):
    """Acts bitwise as an on-policy model does, with the model's random numbers and on batches of the model's size.

    Rows of other workers' sub-environments are zeros. Random numbers are drawn for them too, and not used.

    Args:
        policy: ``ActorCriticPolicy``.
        action_space: Action space of a sub-environment.
        **options: Options of the base class.
    """

    def __init__(self, policy: Any, action_space: Space[Any], **options: Any) -> None:
        super().__init__(policy, **options)
        self.module, self.action_space = policy, action_space

    def begin(self) -> None:
        """Set the random state and the noise of the model."""
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

        first = ENVS_OF_WORKER[0].env_id
        own = slice(first, first + _batch_size(observations))
        if self.sde_sample_freq > 0 and self._step and self._step % self.sde_sample_freq == 0:
            self.policy.reset_noise(self.num_envs)
        with torch.no_grad():
            padded = obs_as_tensor(self._padded(observations, own), torch.device("cpu"))
            actions, values, log_probs = (value[own] for value in self._forward(padded))
        return self._for_envs(actions), {"actions": actions, "values": values, "log_probs": log_probs}, {}

    def _forward(self, observations: Any) -> list[Any]:
        """Call ``forward``, and check the distribution only if it has failed.

        Torch's checks take a fifth of the time of ``forward``.
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
            # A Bernoulli distribution samples floats, which the model keeps and the action space rejects.
            return actions.astype(self.action_space.dtype, copy=False)
        if self.policy.squash_output:
            return self.policy.unscale_action(actions)
        return np.clip(actions, self.action_space.low, self.action_space.high)

    def _padded(self, observations: Any, own: slice) -> Any:
        if isinstance(observations, dict):
            return {name: self._padded(part, own) for name, part in observations.items()}
        # Torch chooses the algorithm of a convolution by the order in memory, which zeros_like keeps.
        padded = np.zeros_like(observations, shape=(self.num_envs, *observations.shape[1:]))
        padded[own] = observations
        return padded


class OffPolicyActor(ModelActor):
    """Acts as an off-policy model does, with random numbers of the worker.

    Args:
        policy: Policy with a method ``predict``.
        action_space: Action space of a sub-environment.
        learning_starts: Number of env steps with random actions at the beginning. -1: none.
        noise: Noise that is added to actions, or ``None``.
        **options: Options of the base class.
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
        """Return the state of the transforms, and a mark for the first step of an episode, which resets the noise."""
        kept = super().initial_carry(batch)
        return kept if self.noise is None else {**(kept or {}), _IS_FIRST: np.ones(batch, bool)}

    def begin(self) -> None:
        """Seed the random actions, so that they differ from worker to worker."""
        if not self._is_seeded:
            self.action_space.seed(int(np.random.randint(2**31)))
            self._is_seeded = True

    def choose(self, observations: Any, carry: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """Call ``predict``, and explore."""
        batch = _batch_size(observations)
        self._draw_matrix(batch)
        chosen = self._chosen(observations, batch)
        if not isinstance(self.action_space, Box):
            return chosen, {"buffer_actions": chosen}, {}
        scaled = self.policy.scale_action(chosen)
        if self.noise is not None:
            scaled = np.clip(scaled + self._noise(carry, batch), -1, 1)
        scaled = scaled.astype(self.action_space.dtype)
        kept = {} if self.noise is None else {_IS_FIRST: np.zeros(batch, bool)}
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
        self._noises.reset(np.flatnonzero(carry[_IS_FIRST]).tolist())
        return self._noises()


def actor_of(model: Any, transforms: Sequence[Transform]) -> tuple[ModelActor, Settings]:
    """Return a policy that acts for a model in workers, and the settings of its next versions.

    Args:
        model: On-policy or off-policy model.
        transforms: Transforms of the observations before the policy acts.
    """
    policy = _copied(model.policy)
    common: dict[str, Any] = {
        "transforms": transforms,
        "num_envs": model.n_envs,
        "sde_sample_freq": model.sde_sample_freq if model.use_sde else 0,
    }
    if isinstance(model, OnPolicyAlgorithm):
        return OnPolicyActor(policy, model.action_space, **common), lambda _: _on_policy_settings(model)
    learning_starts = -1 if model.use_sde and model.use_sde_at_warmup else model.learning_starts
    noise = (
        model.action_noise.base_noise if isinstance(model.action_noise, VectorizedActionNoise) else model.action_noise
    )
    actor = OffPolicyActor(policy, copy.deepcopy(model.action_space), learning_starts, noise, **common)
    return actor, lambda steps_ahead: _off_policy_settings(model, steps_ahead)


def acting_part(policy: Any) -> Any:
    """Return the module that acts, without the critics."""
    for name in ("actor", "q_net", "quantile_net"):
        if (part := getattr(policy, name, None)) is not None:
            return part
    return policy


def _on_policy_settings(model: Any) -> Mapping[str, Any]:
    matrices = None
    if model.use_sde:
        dist = model.policy.action_dist
        matrices = dist.exploration_mat.detach().cpu(), dist.exploration_matrices.detach().cpu()
    return {"random_state": random_state(), "noise_matrices": matrices}


def _off_policy_settings(model: Any, steps_ahead: int) -> Mapping[str, Any]:
    return {
        "num_timesteps": model.num_timesteps + steps_ahead * model.n_envs,
        "exploration_rate": getattr(model, "exploration_rate", 0.0),
        **statistics_of(wrappers_of(model)),
    }


def _batch_size(observations: Any) -> int:
    return len(next(iter(observations.values())) if isinstance(observations, dict) else observations)


def _copied(policy: Any) -> Any:
    """Copy a policy to the CPU.

    Tensors that a distribution keeps of its last call are not leaves of the graph, and torch refuses to copy them.
    """
    modules = [module for module in policy.modules() if hasattr(module, "action_dist")]
    with temporarily(modules, "action_dist", [_without_graph(module.action_dist) for module in modules]):
        return copy.deepcopy(policy).to("cpu")


def _without_graph(action_dist: Any) -> Any:
    import torch

    copied = copy.copy(action_dist)
    for name, value in vars(action_dist).items():
        if isinstance(value, torch.Tensor):
            setattr(copied, name, value.detach())
        elif isinstance(value[0] if isinstance(value, list) and value else value, torch.distributions.Distribution):
            setattr(copied, name, None)
    return copied
