"""Events of workers, which pools, vector envs, populations and evaluations receive in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from parenv.protocol.messages import Commit, SideData


class Committed(NamedTuple):
    """A worker has committed the rollout of a credit."""

    worker: int
    commit: Commit


class StepFailed(NamedTuple):
    """A sub-environment of a vector env has raised an exception in a step."""

    error: BaseException


class Lost(NamedTuple):
    """A worker has ended, and everything that it had not committed is lost.

    Args:
        worker: Worker.
        reason: Exception that explains it.
        again: Whether it was not back yet since the loss before, so that no work is lost.
    """

    worker: int
    reason: Exception
    again: bool = False


class Back(NamedTuple):
    """A new process has replaced a lost worker, and its sub-environments begin again.

    Args:
        worker: Worker.
        generation: Number of its restarts.
        unset: Names of attributes by env_id whose values could not be set again.
    """

    worker: int
    generation: int
    unset: Mapping[int, Sequence[str]] = MappingProxyType({})


Event = Committed | SideData | StepFailed | Lost | Back
