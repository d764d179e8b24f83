"""Evaluating: whole episodes in sub-environments of their own, which disturb nothing of the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from parenv.memory.layout import RolloutSpec
from parenv.worker.collecting import Collector, private_writer

CHUNK = 16
"""Env steps between two looks at who is done."""


def evaluation_spec(spec: RolloutSpec) -> RolloutSpec:
    """What a chunk of an evaluation consists of."""
    return replace(spec, rollout_length=CHUNK, extras=tuple(e for e in spec.extras if not e.postprocessed))


def evaluate(collector: Collector, episodes: int) -> tuple[Any, Any, Any, Any]:
    """Run episodes, as many in each sub-environment as in every other, give or take one.

    The number per sub-environment is fixed before, since taking the first that end would favour short ones.

    Args:
        collector: over sub-environments of the evaluation's own.
        episodes: how many.

    Returns:
        Returns, lengths, seconds and columns of the episodes, each ``[episodes]``.
    """
    batch = collector.stepper.num_envs
    wanted = [episodes // batch + (column < episodes % batch) for column in range(batch)]
    records: list[Any] = []
    writer = private_writer(collector.spec, batch)
    while any(wanted):
        collector.collect(writer)
        for record in writer.end_records().copy():
            if wanted[record["column"]] and record["counts"]:
                wanted[record["column"]] -= 1
                records.append(record)
    chosen = np.array(records)
    return tuple(np.ascontiguousarray(chosen[name]) for name in ("return", "length", "seconds", "column"))  # type: ignore[return-value]
