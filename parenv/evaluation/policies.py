"""Policies of an evaluation: objects, and the files in which libraries and parenv store agents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parenv.errors import ConfigurationError
from parenv.exporting.onnx_policy import OnnxPolicy
from parenv.policy.policy import as_policy, is_module
from parenv.policy.snapshots import module_of
from parenv.protocol.tensors import plain_name
from parenv.records.checkpoint import load_checkpoint


def loaded(policy: Any, checkpoint: str | os.PathLike[str] | None) -> tuple[Any, Any]:
    """Return a policy, and the content that identifies it.

    Args:
        policy: Policy, module or callable, or path of a file of :func:`parenv.export` or Stable-Baselines3.
        checkpoint: Path of a file of :class:`~parenv.SaveBest`, whose weights the policy gets, or ``None``.

    Raises:
        ConfigurationError: The policy cannot act, or a file cannot be read.
    """
    if isinstance(policy, Mapping):
        raise ConfigurationError(
            f"policy must be one policy, got a mapping of {', '.join(map(repr, policy))}. Evaluate policies of several "
            "agents by AsyncWorkerPool(...).evaluate()."
        )
    if isinstance(policy, str | os.PathLike):
        if checkpoint is not None:
            raise ConfigurationError(
                f"checkpoint={os.fspath(checkpoint)!r} needs a policy with a torch module, got the file "
                f"{os.fspath(policy)!r}. Leave one of them out."
            )
        path = Path(policy)
        return _from_file(path), path.read_bytes()
    as_policy(policy)
    if checkpoint is not None:
        _load_weights(policy, Path(checkpoint))
    if isinstance(policy, OnnxPolicy):
        return policy, policy.path.read_bytes()
    return policy, policy


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise ConfigurationError(f"policy={str(path)!r} must be a policy or an existing file. Correct the path.")
    if path.suffix == ".onnx":
        return OnnxPolicy(path)
    if path.suffix == ".zip":
        from parenv.adapters.sb3.saved import SavedPolicy

        return SavedPolicy(path)
    raise ConfigurationError(
        f"policy={str(path)!r} must be a file of parenv.export (.onnx) or of Stable-Baselines3 (.zip). "
        "A file of SaveBest has weights only: pass the policy, and the file as checkpoint=."
    )


def _load_weights(policy: Any, path: Path) -> None:
    module = module_of(policy)
    if not is_module(module):
        raise ConfigurationError(f"checkpoint={str(path)!r} needs a policy with a torch module, got {policy!r}.")
    if not path.is_file():
        raise ConfigurationError(f"checkpoint={str(path)!r} must be an existing file of SaveBest. Correct the path.")
    found = load_checkpoint(path)
    weights = found.get("weights") if isinstance(found, Mapping) else None
    if not isinstance(weights, Mapping):
        raise ConfigurationError(f"checkpoint={str(path)!r} has no weights. Pass a file that SaveBest has written.")
    names = {plain_name(name): name for name in module.state_dict()}  # Only one of both may be compiled.
    try:
        module.load_state_dict({names.get(plain_name(name), name): value for name, value in weights.items()})
    except RuntimeError as error:
        raise ConfigurationError(f"checkpoint={str(path)!r} does not fit the policy: {error}") from error
