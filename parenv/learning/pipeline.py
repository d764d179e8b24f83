"""pipeline: workers fill a replay buffer while the learner samples from it, without needless waiting."""

from __future__ import annotations

from collections.abc import Iterator

from parenv.experience.rollout import Rollout
from parenv.learning.limiter import RateLimiter
from parenv.options import Stop
from parenv.pool.pool import AsyncWorkerPool


def pipeline(
    pool: AsyncWorkerPool, limiter: RateLimiter, sample_size: int, stop: Stop | None = None
) -> Iterator[Rollout | None]:
    """Yield the next action of an off-policy learner, in an order that respects the limits.

    A rollout means that the learner inserts it now. ``None`` means that the learner samples a mini-batch now. The
    learner waits for a rollout only if it may not sample, and a rollout waits only if it may not be inserted. Meanwhile
    workers continue up to the pool's bound on rollouts in progress.

    Args:
        pool: Pool of rollouts in async mode.
        limiter: Limiter of samples per insert. It counts both.
        sample_size: Number of transitions in a mini-batch.
        stop: Criteria as in ``pool.rollouts``.

    Returns:
        Rollouts and ``None``, until the stream of rollouts ends.

    Raises:
        ConfigurationError: With mini-batches and rollouts of these sizes, both could wait without end.

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
