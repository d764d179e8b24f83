"""RateLimiter: how often the learner samples what the workers insert, bounded both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from parenv.argument_checks import at_least
from parenv.errors import ConfigurationError


class RateLimiter:
    """Keeps the ratio of samples to inserts near a target, for a replay buffer between workers and learner.

    The ``SampleToInsertRatio`` of Reverb (Cassirer et al. 2021, arXiv:2102.04736). With
    ``diff = inserts * samples_per_insert - samples``, which is ``min_size_to_sample * samples_per_insert`` where
    sampling may begin, an insert may lift ``diff`` by at most ``error_buffer`` above that, and a sample may sink it
    by at most as much below. Inserts up to ``min_size_to_sample`` are always allowed.

    It counts and answers, and never waits; all counts are in transitions. With inserts of up to ``n`` and samples of
    up to ``m`` transitions at a time, one of the two is always allowed if::

        error_buffer >= max((n * samples_per_insert + m) / 2, (n - 1) * samples_per_insert)

    Where sampling may have begun, an insert is refused above ``+error_buffer - n * samples_per_insert`` and a sample
    below ``-error_buffer + m``, both from the target: no ``diff`` is refused both if the first is not below the
    second, hence the one half of the sum. Just before, at ``min_size_to_sample - 1``, nothing can be sampled yet, and
    an insert of ``n`` lifts ``diff`` to ``(n - 1) * samples_per_insert`` above the target. :meth:`check_sizes` checks
    it. Numbers are taken as the decimals they print as, so rounding cannot bring a loop to a stop.

    Args:
        samples_per_insert: how often each transition is sampled on average.
        min_size_to_sample: transitions inserted before the first sample.
        error_buffer: how far ``diff`` may be from its target, in samples; at least ``max(1, samples_per_insert)``.

    Raises:
        ConfigurationError: a number is out of its range.

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
                f"error_buffer must be at least max(1, samples_per_insert) = {float(least):g}, the change by a single "
                f"transition, got {error_buffer!r}"
            )
        self._inserts = 0
        self._samples = 0

    @property
    def inserts(self) -> int:
        """Transitions inserted so far."""
        return self._inserts

    @property
    def samples(self) -> int:
        """Transitions sampled so far."""
        return self._samples

    @property
    def ratio(self) -> float:
        """Samples per insert so far; NaN before the first insert."""
        return self._samples / self._inserts if self._inserts else math.nan

    def may_insert(self, n: int = 1) -> bool:
        """Whether ``n`` more transitions may be inserted now."""
        return self._inserts + n <= self._min_size or self._above_target(inserts=n) <= self._error_buffer

    def may_sample(self, n: int = 1) -> bool:
        """Whether ``n`` more transitions may be sampled now."""
        return self._inserts >= self._min_size and self._above_target(samples=n) >= -self._error_buffer

    def inserted(self, n: int = 1) -> None:
        """Count ``n`` inserts. What was not allowed is counted too, and brought back into balance afterwards."""
        self._inserts += at_least("n", n, 0)

    def sampled(self, n: int = 1) -> None:
        """Count ``n`` samples, as :meth:`inserted` counts inserts."""
        self._samples += at_least("n", n, 0)

    def check_sizes(self, insert_size: int, sample_size: int) -> None:
        """Make sure that a loop with these steps never comes to a stop.

        Args:
            insert_size: most transitions inserted at a time, such as those of a rollout.
            sample_size: most transitions sampled at a time, such as those of a mini-batch.

        Raises:
            ConfigurationError: there are counts at which neither an insert nor a sample would be allowed.
        """
        inserted = at_least("insert_size", insert_size, 1) * self._samples_per_insert
        sampled = at_least("sample_size", sample_size, 1)
        least = max((inserted + sampled) / 2, inserted - self._samples_per_insert)
        if self._error_buffer < least:
            raise ConfigurationError(
                f"with inserts of {insert_size} and samples of {sample_size} transitions at a time, an error_buffer of "
                f"{float(self._error_buffer):g} can refuse both for ever: make it at least {float(least):g}, or the "
                f"steps smaller"
            )

    def state_dict(self) -> dict[str, int]:
        """The counts, for a checkpoint."""
        return {"inserts": self._inserts, "samples": self._samples}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from the counts of a checkpoint.

        Raises:
            ConfigurationError: a count is missing or not a whole number.
        """
        if missing := {"inserts", "samples"} - set(state):
            raise ConfigurationError(f"the state of a RateLimiter needs {sorted(missing)}, got {sorted(state)}")
        self._inserts, self._samples = (at_least(name, state[name], 0) for name in ("inserts", "samples"))

    def _above_target(self, inserts: int = 0, samples: int = 0) -> Fraction:
        beyond = self._inserts + inserts - self._min_size
        return beyond * self._samples_per_insert - (self._samples + samples)


def _positive(name: str, value: float) -> Fraction:
    if not (math.isfinite(value) and value > 0):
        raise ConfigurationError(f"{name} must be a finite number above 0, got {value!r}")
    return Fraction(repr(float(value)))
