"""Policies from files of :func:`parenv.export`, with ONNX Runtime and without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from parenv.errors import ConfigurationError
from parenv.libraries import require
from parenv.memory.layout import leaves_as_data, leaves_from_data
from parenv.memory.spaces import Leaf, flatten, leaves, unflatten
from parenv.policy.policy import Action, Policy

FORMAT = 1
METADATA = "parenv"
"""Name of the file's metadata that describe its inputs and outputs."""


class OnnxPolicy(Policy):
    """Policy from an ONNX file of :func:`parenv.export`. Pools can use it, too.

    Args:
        path: Path of the file.
        threads: Number of threads of ONNX Runtime. Default: 1.

    Attributes:
        path: Path of the file.
        observations: Leaves of the observation space.

    Raises:
        ConfigurationError: ONNX Runtime is not installed, or :func:`parenv.export` has not written the file.

    >>> import tempfile, torch
    >>> from gymnasium.spaces import Box
    >>> from parenv import export
    >>> class Agent(torch.nn.Linear):
    ...     def forward(self, observations):
    ...         return super().forward(observations).argmax(-1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = export(Agent(4, 2), f"{folder}/agent.onnx", observation_space=Box(-1, 1, (4,)))
    ...     policy = OnnxPolicy(found.path)
    >>> policy.act(np.zeros((3, 4), np.float32), None).actions.shape
    (3,)
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        self.path, self._threads = Path(path), threads
        self._session = opened(self.path, threads)
        found = self._session.get_modelmeta().custom_metadata_map.get(METADATA)
        about = json.loads(found) if found else {}
        if about.get("format") != FORMAT:
            raise ConfigurationError(
                f"{self.path} must be a file of parenv.export in format {FORMAT}. Export the policy again."
            )
        self.observations, self._actions, self._carry = (
            leaves_from_data(about[name]) for name in ("observations", "actions", "carry")
        )
        self._initial = [
            np.array(row, leaf.dtype).reshape(leaf.shape)
            for row, leaf in zip(about["initial_carry"], self._carry, strict=True)
        ]
        self._inputs = [*names_of("observations", self.observations), *names_of("carry", self._carry)]
        self._outputs = [one.name for one in self._session.get_outputs()]

    def act(self, observations: Any, carry: Any) -> Action:
        """Choose actions. The extras have the names of the exported policy's extras."""
        values = [*flatten(self.observations, observations), *flatten(self._carry, carry)]
        inputs = zip(self._inputs, values, strict=True)
        found = dict(zip(self._outputs, self._session.run(None, dict(inputs)), strict=True))
        actions = unflatten(self._actions, [found.pop(name) for name in names_of("actions", self._actions)])
        following = [found.pop(name) for name in names_of("next_carry", self._carry)]
        return Action(actions, found, unflatten(self._carry, following) if following else None)

    def initial_carry(self, batch: int) -> Any:
        """Return the initial carry of the exported policy."""
        if not self._carry:
            return None
        return unflatten(self._carry, [np.repeat(row[None], batch, 0) for row in self._initial])

    def check_fits(self, space: Space[Any]) -> None:
        """Check that the policy can act on observations of a space.

        Raises:
            ConfigurationError: The policy acts on other observations.
        """
        found = leaves(space)
        if leaves_as_data(found) != leaves_as_data(self.observations):
            raise ConfigurationError(
                f"{self.path} needs observations of {_in_words(self.observations)}, but the environment has "
                f"{_in_words(found)}. Use the environment and the wrappers with which the agent was trained."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path.absolute(), self._threads)


def opened(path: Path, threads: int = 1) -> Any:
    """Open a session of ONNX Runtime.

    Raises:
        ConfigurationError: ONNX Runtime is not installed, or cannot read the file.
    """
    onnxruntime = require("onnxruntime", "a file of parenv.export", "export")
    if not path.is_file():
        raise ConfigurationError(f"the file {path} does not exist. Name a file that parenv.export has written.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ConfigurationError(f"ONNX Runtime cannot read {path}: {error}") from error


def names_of(what: str, of: Sequence[Leaf]) -> list[str]:
    """Return the names of inputs or outputs, one for each leaf.

    >>> names_of("carry", [Leaf(()), Leaf(("lstm", 0))])
    ['carry', 'carry.lstm.0']
    """
    return [".".join([what, *map(str, leaf.path)]) for leaf in of]


def _in_words(of: Sequence[Leaf]) -> str:
    return ", ".join(f"{leaf.name}{list(leaf.shape)} {leaf.dtype and np.dtype(leaf.dtype)}" for leaf in of)
