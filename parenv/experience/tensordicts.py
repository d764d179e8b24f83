"""A rollout in the layout of TorchRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parenv.errors import ConfigurationError
from parenv.libraries import require

if TYPE_CHECKING:
    from parenv.experience.rollout import Rollout


def tensordict_of(rollout: Rollout[Any], names: Mapping[str, str], device: Any) -> Any:
    """Return the tensordict of a rollout of tensors, see :meth:`~parenv.experience.rollout.Rollout.to_tensordict`.

    Raises:
        ConfigurationError: ``tensordict`` is not installed, a field has no fixed size, or two have one key.
    """
    require("tensordict", "to_tensordict", "torchrl")
    import torch
    from tensordict import TensorDict

    T, B = rollout.rewards.shape
    never = torch.zeros(B, T, 1, dtype=torch.bool, device=rollout.rewards.device)
    ended = {name: _by_env(getattr(rollout, name))[..., None] for name in ("terminated", "truncated")}
    following = {
        **_observations(rollout.next_observations()),
        "reward": _by_env(rollout.rewards)[..., None],
        "done": ended["terminated"] | ended["truncated"],
        **ended,
    }
    fields = {
        **_observations(rollout.observations),
        "action": _nested(rollout.actions, "actions"),
        "done": never,
        "terminated": never.clone(),
        "truncated": never.clone(),
        "policy_version": _versions(rollout, never.device),
        "collector": {"traj_ids": _trajectories(rollout.serial, following["done"][..., 0])},
        "next": following,
    }
    if rollout.infos:
        fields["infos"] = {name: _by_env(value) for name, value in rollout.infos.items()}
    names = {"log_prob": _log_prob_key(), "value": "state_value", **names}
    for name, value in rollout.extras.items():
        _add(fields, name, names.get(name, name), _by_env(value))
    return TensorDict(fields, batch_size=[B, T], names=[None, "time"], device=device)


def _versions(rollout: Rollout, device: Any) -> Any:
    import torch

    if rollout.policy_versions is not None:
        return _by_env(rollout.policy_versions)
    T, B = rollout.rewards.shape
    return torch.full((B, T), rollout.policy_version, device=device)


def _trajectories(serial: int, done: Any) -> Any:
    """Return an id for each part of an episode, int64 ``[B, T]``. No other part in any rollout has the same id.

    The parts of one rollout have ids below ``B * T``, which fits below the serial number.
    """
    import torch

    B, T = done.shape
    first = torch.arange(B, device=done.device)[:, None] * T + (serial << 32)
    return first + done.cumsum(1) - done.long()


def _log_prob_key() -> str:
    """Return the key that losses of TorchRL use for the log-probability. It depends on a setting and on the version."""
    try:
        from tensordict.nn import composite_lp_aggregate
    except ImportError:
        return "sample_log_prob"
    return "sample_log_prob" if composite_lp_aggregate(nowarn=True) else "action_log_prob"


def _add(fields: dict[str, Any], name: str, key: str, value: Any) -> None:
    if key in fields:
        raise ConfigurationError(
            f"the extra {name!r} cannot have the key {key!r}, which another field has. Give it another key with "
            f"names={{{name!r}: ...}}"
        )
    fields[key] = value[..., None] if key == "state_value" and value.ndim == 2 else value


def _observations(tree: Any) -> dict[str, Any]:
    found = _nested(tree, "observations")
    return found if isinstance(found, dict) and isinstance(tree, Mapping) else {"observation": found}


def _nested(tree: Any, what: str) -> Any:
    if isinstance(tree, Mapping):
        return {key: _nested(part, what) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return {str(i): _nested(part, what) for i, part in enumerate(tree)}
    if isinstance(tree, list):
        raise ConfigurationError(
            f"{what} must have a fixed size to be stored in a tensordict. Pad them to arrays in the environment."
        )
    return _by_env(tree)


def _by_env(value: Any) -> Any:
    """Return a view ``[B, T, ...]`` of values ``[T, B, ...]``."""
    return value.transpose(0, 1)
