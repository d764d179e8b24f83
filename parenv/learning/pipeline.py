"""pipeline: workers fill a replay buffer while the learner samples from it, and neither waits without need."""

from __future__ import annotations

from collections.abc import Iterator

from parenv.experience.rollout import Rollout
from parenv.learning.limiter import RateLimiter
from parenv.options import Stop
from parenv.pool.pool import AsyncWorkerPool


def pipeline(
    pool: AsyncWorkerPool, limiter: RateLimiter, sample_size: int, stop: Stop | None = None
) -> Iterator[Rollout | None]:
    """The turns of an off-policy learner, in an order that keeps within the limits.

    A rollout is to be inserted now; ``None`` is a turn to sample. Rollouts come as they arrive; the learner waits for
    one only where it may not sample, and a rollout waits for the learner only where it may not be inserted. Meanwhile
    workers go on for as long as they have credits, so what is under way is bounded.

    Args:
        pool: asynchronous, of rollouts.
        limiter: of samples per insert; counts both.
        sample_size: transitions in a mini-batch.
        stop: as in ``pool.rollouts``.

    Returns:
        Turns, until the stream of rollouts ends.

    Raises:
        ConfigurationError: with mini-batches and rollouts of these sizes, both could have to wait for ever.

    >>> from parenv.learning import RateLimiter
    >>> buffer, limiter = [], RateLimiter(samples_per_insert=2, min_size_to_sample=64, error_buffer=256)
    >>> with AsyncWorkerPool("CartPole-v1", lambda o: o[:, 2] > 0, num_workers=0, rollout_length=16) as pool:
    ...     for rollout in pipeline(pool, limiter, 32, Stop(env_steps=256)):
    ...         if rollout is not None:
    ...             buffer.extend(rollout.transitions().rewards.tolist())
    ...         else:
    ...             pass  # learn from 32 samples of the buffer
    >>> len(buffer), limiter.samples > 0
    (256, True)
    """
    for rollout in pool.rollouts(stop, wait=lambda: not limiter.may_sample(sample_size)):
        if rollout is not None:
            limiter.check_sizes(rollout.num_steps, sample_size)
            while not limiter.may_insert(rollout.num_steps):
                limiter.sampled(sample_size)
                yield None
            limiter.inserted(rollout.num_steps)
            yield rollout
            del rollout
        if limiter.may_sample(sample_size):
            limiter.sampled(sample_size)
            yield None
