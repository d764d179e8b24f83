"""What arrives from workers, before it is yielded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from parenv.experience.rollout import Rollout


class Arrival(NamedTuple):
    """What came of one or several credits: a rollout, and, where workers run backward, a gradient from each.

    Args:
        rollout: what they collected.
        workers: who.
        env_ids: the sub-environments of each.
        samples: env steps of each.
        gradients: uint8 ``[K, n]``, a flat gradient in each row; ``None`` for experience.
        norms: 2-norm of each gradient before clipping.
        metrics: what each ``loss_fn`` returned beside the loss.
        commits: :data:`~parenv.memory.layout.COMMIT_DTYPE` ``[K]``, what each says of its time.
        replaced: of each, ``[env_id, doing, exception as text]`` of sub-environments that were replaced meanwhile.
    """

    rollout: Rollout
    workers: Sequence[int]
    env_ids: Sequence[Sequence[int]]
    samples: Sequence[int]
    gradients: Any
    norms: Sequence[float]
    metrics: Sequence[dict[str, float]]
    commits: Any
    replaced: Sequence[Sequence[Sequence[Any]]]
