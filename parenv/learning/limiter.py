"""RateLimiter: bounds on the ratio of samples to inserts of a replay buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from parenv.argument_checks import at_least
from parenv.errors import ConfigurationError


class RateLimiter:
    """Keeps the ratio of samples to inserts near a target, for a replay buffer between workers and learner.

    This is the ``SampleToInsertRatio`` of Reverb (Cassirer et al. 2021, arXiv:2102.04736). The target of
    ``diff = inserts * samples_per_insert - samples`` is ``min_size_to_sample * samples_per_insert``, its value at the
    first sample. Inserts may raise ``diff`` to ``error_buffer`` above the target, and samples may lower it to
    ``error_buffer`` below. Inserts up to ``min_size_to_sample`` are always allowed.

    The limiter counts transitions, and never waits. With inserts of up to ``n`` and samples of up to ``m`` transitions
    at a time, one of the two is always allowed if::

        error_buffer >= max((n * samples_per_insert + m) / 2, (n - 1) * samples_per_insert)

    Relative to the target, an insert is refused above ``+error_buffer - n * samples_per_insert``, and a sample below
    ``-error_buffer + m``. If the first bound is not below the second, no ``diff`` is refused both, which gives the half
    of the sum. With ``min_size_to_sample - 1`` inserts, no sample is allowed yet, and an insert of ``n`` raises
    ``diff`` to ``(n - 1) * samples_per_insert`` above the target. :meth:`check_sizes` checks the condition. Numbers are
    exact decimals, so that rounding cannot stop a loop.

    Args:
        samples_per_insert: Mean number of samples of each transition.
        min_size_to_sample: Number of inserted transitions before the first sample.
        error_buffer: Largest difference of ``diff`` from its target, in samples. At least
            ``max(1, samples_per_insert)``.

    Raises:
        ConfigurationError: A number is out of its range.

    >>> limiter = RateLimiter(samples_per_insert=2, min_size_to_sample=4, error_buffer=8)
    >>> limiter.check_sizes(insert_size=4, sample_size=8)
    >>> limiter.may_insert(4), limiter.may_sample(8)
    (True, False)
    >>> limiter.inserted(4)
    >>> limiter.may_insert(4), limiter.may_sample(8)
    (True, True)
    >>> limiter.inserted(4)
    >>> limiter.may_insert(4), limiter.may_sample(8)
    (False, True)
    """

    def __init__(self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float) -> None:
        self._samples_per_insert = _positive("samples_per_insert", samples_per_insert)
        self._min_size = at_least("min_size_to_sample", min_size_to_sample, 1)
        self._error_buffer = _positive("error_buffer", error_buffer)
        least = max(Fraction(1), self._samples_per_insert)
        if self._error_buffer < least:
            raise ConfigurationError(
                f"error_buffer must be at least max(1, samples_per_insert) = {float(least):g}, got {error_buffer!r}"
            )
        self._inserts = 0
        self._samples = 0

    @property
    def inserts(self) -> int:
        """Number of inserted transitions."""
        return self._inserts

    @property
    def samples(self) -> int:
        """Number of sampled transitions."""
        return self._samples

    @property
    def ratio(self) -> float:
        """Samples per insert. NaN before the first insert."""
        return self._samples / self._inserts if self._inserts else math.nan

    def may_insert(self, n: int = 1) -> bool:
        """Return whether ``n`` more transitions may be inserted now."""
        return self._inserts + n <= self._min_size or self._above_target(inserts=n) <= self._error_buffer

    def may_sample(self, n: int = 1) -> bool:
        """Return whether ``n`` more transitions may be sampled now."""
        return self._inserts >= self._min_size and self._above_target(samples=n) >= -self._error_buffer

    def inserted(self, n: int = 1) -> None:
        """Count ``n`` inserts. Inserts that were not allowed count too, and the ratio is restored afterwards."""
        self._inserts += at_least("n", n, 0)

    def sampled(self, n: int = 1) -> None:
        """Count ``n`` samples, as :meth:`inserted` counts inserts."""
        self._samples += at_least("n", n, 0)

    def check_sizes(self, insert_size: int, sample_size: int) -> None:
        """Make sure that a loop with these steps never comes to a stop.

        Args:
            insert_size: Largest number of transitions inserted at a time, such as in a rollout.
            sample_size: Largest number of transitions sampled at a time, such as in a mini-batch.

        Raises:
            ConfigurationError: At some counts, neither an insert nor a sample would be allowed.
        """
        inserted = at_least("insert_size", insert_size, 1) * self._samples_per_insert
        sampled = at_least("sample_size", sample_size, 1)
        least = max((inserted + sampled) / 2, inserted - self._samples_per_insert)
        if self._error_buffer < least:
            raise ConfigurationError(
                f"error_buffer must be at least {float(least):g} for inserts of {insert_size} and samples of "
                f"{sample_size} transitions, because a smaller one can refuse both forever, got "
                f"{float(self._error_buffer):g}"
            )

    def state_dict(self) -> dict[str, int]:
        """Return the counts for a checkpoint."""
        return {"inserts": self._inserts, "samples": self._samples}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from the counts of a checkpoint.

        Raises:
            ConfigurationError: A count is missing or not an integer.
        """
        if missing := {"inserts", "samples"} - set(state):
            raise ConfigurationError(f"the state of a RateLimiter must have {sorted(missing)}, got {sorted(state)}")
        self._inserts, self._samples = (at_least(name, state[name], 0) for name in ("inserts", "samples"))

    def _above_target(self, inserts: int = 0, samples: int = 0) -> Fraction:
        beyond = self._inserts + inserts - self._min_size
        return beyond * self._samples_per_insert - (self._samples + samples)


def _positive(name: str, value: float) -> Fraction:
    if not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name} must be a finite number above 0, got {value!r}")
    return Fraction(repr(float(value)))
