"""Export of a policy to a file, with a comparison of both."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import Space

from parenv.argument_checks import at_least, one_of
from parenv.errors import ConfigurationError, PolicyOutputError, embedded
from parenv.experience.rollout import Rollout
from parenv.exporting.graph import Graph, graph_of, run_on_arrays
from parenv.exporting.onnx_policy import FORMAT, METADATA, opened
from parenv.libraries import require
from parenv.memory.layout import leaves_as_data
from parenv.process.whole_files import make_folder_of, replacing

Format = Literal["onnx", "torch"]
_STEPS = 8
"""Number of steps in a comparison. An error in the recurrent state shows only after some steps."""
_FAR = 1e3
"""Largest absolute value of sampled observations, because spaces have bounds such as 1e38."""


@dataclass(frozen=True)
class ExportReport:
    """Result of :func:`parenv.export`.

    Args:
        path: Path of the file.
        format: ``"onnx"`` or ``"torch"``.
        inputs: Names of the file's inputs, in order.
        outputs: Names of the file's outputs, in order.
        observations: Number of observations in the comparison of file and policy.
        differences: Largest difference of each output, by name: relative for values above 1, or else absolute. For
            integers and booleans it is the fraction of rows that differ.

    >>> print(ExportReport(Path("agent.onnx"), "onnx", ("observations",), ("actions",), 1000, {"actions": 2e-7}))
    agent.onnx: observations -> actions, largest difference 2.0e-07 (actions) on 1,000 observations
    """

    path: Path
    format: Format
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    observations: int
    differences: Mapping[str, float]

    def __str__(self) -> str:
        what = f"{self.path}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}"
        if not self.differences:
            return f"{what}, not compared"
        output, largest = max(self.differences.items(), key=lambda one: one[1])
        return f"{what}, largest difference {largest:.1e} ({output}) on {self.observations:,} observations"


def export(
    policy: Any,
    path: str | os.PathLike[str],
    *,
    observation_space: Space[Any],
    format: Format = "onnx",
    parity: int = 1000,
    tolerance: float = 1e-4,
    on: Rollout | None = None,
) -> ExportReport:
    """Write a policy to a file that runs without parenv, and as ONNX also without torch.

    The file contains all of ``policy.act`` in evaluation mode with ``deterministic=True``, including the policy's
    normalization and clipping. A parameter with a default, such as ``temperature=1.0``, keeps the default.

    The inputs are ``observations`` and, for a policy with a carry, ``carry``. The outputs are ``actions``, the policy's
    extras by name, and ``next_carry``. Parts of nested values have names such as ``observations.position``. The first
    dimension is the batch, of any size. A file that does not act as the policy does is not kept.

    Args:
        policy: Policy with a torch module: an ``nn.Module``, a :class:`~parenv.TorchPolicy`, or a
            :class:`~parenv.Policy` with ``module`` and ``takes_tensors``.
        path: Path of the file, such as ``agent.onnx`` or ``agent.pt2``. A missing folder is created.
        observation_space: Observation space of one sub-environment, ``pool.single_observation_space``.
        format: ``"onnx"`` (default) for ONNX Runtime, ``parenv play`` and :class:`~parenv.exporting.OnnxPolicy`, or
            ``"torch"`` for ``torch.export.load``.
        parity: Number of observations for the comparison of file and policy. Default: 1000. 0 skips it.
        tolerance: Maximum difference of an output, see :class:`~parenv.exporting.ExportReport`. Default: 1e-4.
        on: Rollout with observations for the comparison. Default: samples from the space.

    Returns:
        Names of inputs and outputs, and the differences.

    Raises:
        ConfigurationError: The policy cannot be exported. The message contains the reason and the fix.
        PolicyOutputError: The file acts differently. The message contains the output and the difference.

    >>> import tempfile, torch
    >>> from gymnasium.spaces import Box
    >>> class Agent(torch.nn.Linear):
    ...     def forward(self, observations):
    ...         return super().forward(observations).argmax(-1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = export(Agent(4, 2), f"{folder}/agent.pt2", observation_space=Box(-1, 1, (4,)), format="torch")
    >>> found.inputs, found.outputs, found.observations, found.differences
    (('observations',), ('actions',), 1000, {'actions': 0.0})
    """
    one_of("format", format, get_args(Format))
    at_least("parity", parity, 0)
    target = Path(path)
    _check_target(target)
    graph = graph_of(policy, observation_space)
    rows = _observations(graph, observation_space, parity, on)
    with replacing(target) as draft:
        _write(format, graph, draft)
        differences = _differences(graph, _runner(format, draft, graph), rows) if parity else {}
        _check(target, differences, tolerance)
    count = len(rows) * len(rows[0][0]) if rows else 0
    return ExportReport(target, format, graph.inputs, graph.outputs, count, differences)


def _check_target(path: Path) -> None:
    if path.is_dir():
        raise ConfigurationError(f"{path} cannot be written: it is a directory. Name a file.")
    make_folder_of(path)


def _write_onnx(graph: Graph, path: Path) -> None:
    require("onnxscript", "export", "export")
    import torch

    with _quiet():
        program = torch.onnx.export(
            graph.module,
            graph.example,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=_dynamic(graph),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    about = {
        "format": FORMAT,
        "observations": leaves_as_data(graph.observations),
        "actions": leaves_as_data(graph.actions),
        "carry": leaves_as_data(graph.carry),
        "initial_carry": [row.tolist() for row in graph.initial_carry],
    }
    program.model.metadata_props[METADATA] = json.dumps(about)
    program.save(str(path))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's messages about its own parts and about missing libraries."""
    logger = logging.getLogger("torch.onnx")
    with warnings.catch_warnings(action="ignore"), contextlib.ExitStack() as undo:
        undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        yield


def _write_torch(graph: Graph, path: Path) -> None:
    import torch

    with path.open("wb") as file:
        torch.export.save(torch.export.export(graph.module, graph.example, dynamic_shapes=_dynamic(graph)), file)


def _dynamic(graph: Graph) -> Any:
    import torch

    batch = torch.export.Dim("batch")
    return (tuple({0: batch} for _ in graph.example),)


def _runner(format: Format, path: Path, graph: Graph) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that runs a file on one array per input and returns one array per output."""
    if format == "onnx":
        session = opened(path)
        return lambda values: session.run(list(graph.outputs), dict(zip(graph.inputs, values, strict=True)))
    import torch

    with path.open("rb") as file:
        return functools.partial(run_on_arrays, torch.export.load(file).module())


def _observations(graph: Graph, space: Space[Any], count: int, on: Rollout | None) -> list[list[Any]]:
    """Return a batch of observations for each step, as one array per leaf."""
    if not count:
        return []
    if on is not None:
        return graph.rows_of(on, count)
    batch = -(-count // _STEPS)
    space = copy.deepcopy(space)  # The caller's space keeps its random state.
    space.seed(0)
    return [graph.clipped([space.sample() for _ in range(batch)], _FAR) for _ in range(_STEPS)]


def _differences(
    graph: Graph, run: Callable[[Sequence[Any]], Sequence[Any]], steps: Sequence[Sequence[Any]]
) -> dict[str, float]:
    largest = dict.fromkeys(graph.outputs, 0.0)
    carry: Sequence[Any] = [np.repeat(row[None], len(steps[0][0]), 0) for row in graph.initial_carry]
    for observations in steps:
        inputs = [*observations, *carry]
        wanted = run_on_arrays(graph.module, inputs)
        for name, mine, theirs in zip(graph.outputs, wanted, run(inputs), strict=True):
            largest[name] = max(largest[name], difference(mine, theirs))
        carry = wanted[len(wanted) - len(carry) :]
    return largest


def difference(wanted: Any, found: Any) -> float:
    """Return the difference of two arrays, as defined in :class:`ExportReport`.

    >>> difference(np.array([0.5, 200.0]), np.array([0.5, 201.0]))
    0.005
    >>> difference(np.array([3, 1]), np.array([3, 2]))
    0.5
    """
    if wanted.shape != found.shape:
        return float("inf")
    if wanted.dtype.kind != "f":
        differs = (wanted != found).any(axis=tuple(range(1, wanted.ndim)))
        return float(differs.mean()) if differs.size else 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(wanted - found) / np.maximum(1.0, np.abs(wanted))
    apart = np.where((wanted == found) | (np.isnan(wanted) & np.isnan(found)), 0.0, apart)
    return float(np.max(np.nan_to_num(apart, nan=np.inf), initial=0.0))


def _check(path: Path, differences: Mapping[str, float], tolerance: float) -> None:
    if far := {name: size for name, size in differences.items() if size > tolerance}:
        sizes = ", ".join(f"{name} by {size:.3g}" for name, size in far.items())
        raise PolicyOutputError(
            f"the exported policy must differ from the policy by at most tolerance={tolerance:g}, but differs in "
            f"{sizes}, so {path} was not written. Check how the policy computes this output, or increase tolerance."
        )


def _write(format: Format, graph: Graph, path: Path) -> None:
    """Write a file, and turn an exception of torch into a short message."""
    try:
        (_write_onnx if format == "onnx" else _write_torch)(graph, path)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f'the policy cannot be exported with format="{format}": {embedded(_reason(error))}. '
            "Use operations on tensors "
            "only, without numpy and without Python branches on the values of a tensor."
        ) from error


def _reason(error: BaseException) -> str:
    """Return the innermost cause in one line, with the name of the operator if there is one."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    found = re.search(r"OpOverload\(op='([\w.]+)'", " ".join(map(str, chain)))
    operator = found[1] if found else ""
    first = next((line.strip() for line in str(chain[-1]).splitlines() if line.strip()), type(error).__name__)
    return f"{operator}: {first}" if operator else f"{type(chain[-1]).__name__}: {first}"
