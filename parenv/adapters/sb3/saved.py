"""Policies from files of ``model.save``, for evaluations and pools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.save_util import load_from_zip_file

from parenv.errors import ConfigurationError
from parenv.policy.policy import Action, Policy


class SavedPolicy(Policy):
    """Policy from a zip file that ``model.save`` of Stable-Baselines3 or SB3-Contrib has written.

    It acts as ``model.predict`` does, on the CPU. The file contains pickled objects, so load only files that you trust.
    Statistics of ``VecNormalize`` are not in the file.

    Args:
        path: Path of the file.

    Raises:
        ConfigurationError: The file cannot be read, or the policy is recurrent.

    >>> import tempfile
    >>> from stable_baselines3 import PPO
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     PPO("MlpPolicy", "CartPole-v1", device="cpu").save(f"{folder}/agent.zip")
    ...     policy = SavedPolicy(f"{folder}/agent.zip")
    >>> policy.policy.action_space
    Discrete(2)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            # The schedules are functions of the training, which a policy that acts does not need.
            data, parameters, _ = load_from_zip_file(
                self._path, device="cpu", custom_objects={"lr_schedule": _no_learning, "clip_range": _no_learning}
            )
        except Exception as error:
            raise ConfigurationError(f"{self._path} is not a file of Stable-Baselines3: {error}") from error
        if not data or "policy_class" not in data:
            raise ConfigurationError(f"{self._path} must be a file of model.save, and has no policy.")
        more = dict(data.get("policy_kwargs") or {})
        if issubclass(data["policy_class"], ActorCriticPolicy):
            more.setdefault("use_sde", data.get("use_sde", False))
        self.policy = data["policy_class"](data["observation_space"], data["action_space"], _no_learning, **more)
        self.policy.load_state_dict(parameters["policy"])
        self.policy.set_training_mode(False)
        if hasattr(self.policy, "lstm_actor"):
            raise ConfigurationError(
                f"{self._path} has a recurrent policy, which predict cannot run for a changing batch. Wrap the module "
                "in a parenv.Policy with initial_carry."
            )

    def act(self, observations: Any, carry: Any) -> Action:
        """Choose actions, without exploration in a deterministic evaluation."""
        deterministic = bool(self.settings.get("deterministic"))
        return Action(self.policy.predict(observations, deterministic=deterministic)[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path.absolute(),)


def _no_learning(_: float) -> float:
    return 0.0
