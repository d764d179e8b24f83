"""What a benchmark found, as frozen data and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Repeated measurements in short.

    Args:
        median: of all.
        low: the smallest.
        high: the largest.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value.

        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, low=1.0, high=3.0)
        """
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Throughput:
    """Env steps per second of one system.

    Args:
        system: such as ``"ParallelVectorEnv"``.
        num_envs: sub-environments.
        num_workers: worker processes; 0: in this process; ``None``: one for each sub-environment.
        env_steps_per_second: ``None`` where nothing was measured.
        failure: why nothing was, or ``None``.
    """

    system: str
    num_envs: int
    num_workers: int | None
    env_steps_per_second: Spread | None
    failure: str | None = None


@dataclass(frozen=True)
class BenchReport:
    """Everything that :func:`parenv.cli.bench.bench` found.

    Args:
        environment: its name.
        machine: see :func:`parenv.cli.machine.machine`.
        repeats: measurements of each.
        slice_s: seconds that one measurement took.
        seconds: that everything took.
        costs_s: seconds of one ``"env step"``, ``"env reset"``, ``"policy, batch 8"``, and
            ``"publish to 2 workers"``: until all of them have loaded new weights.
        sizes_bytes: bytes of ``"weights"`` and of ``"rollout, per env step"``; none of them without pools.
        throughput: of all systems.
        cost_failures: why a cost is not among ``costs_s``.
    """

    environment: str
    machine: Mapping[str, Any]
    repeats: int
    slice_s: float
    seconds: float
    costs_s: Mapping[str, Spread]
    sizes_bytes: Mapping[str, float]
    throughput: tuple[Throughput, ...]
    cost_failures: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """As JSON; :meth:`from_json` is the inverse."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """From what :meth:`to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        content = json.loads(text)
        content["costs_s"] = {name: Spread(**cost) for name, cost in content["costs_s"].items()}
        content["throughput"] = tuple(map(_throughput, content["throughput"]))
        return cls(**content)


def _throughput(content: dict[str, Any]) -> Throughput:
    spread = content.pop("env_steps_per_second")
    return Throughput(**content, env_steps_per_second=None if spread is None else Spread(**spread))
