"""What a worker says of the time that a rollout took: where it went, and how long the worker had waited before."""

from __future__ import annotations

import resource
import time

from parenv.protocol.messages import Credit
from parenv.worker.collecting import Seconds
from parenv.worker.differentiating import Differentiated
from parenv.worker.writing import RolloutWriter


class RolloutTimer:
    """Times one rollout after the other, from here on.

    Args:
        generation: of the process.
    """

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._idle_since = self._began = time.perf_counter()
        self._used = resource.getrusage(resource.RUSAGE_SELF)

    def begin(self) -> None:
        """A rollout begins."""
        self._began, self._used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)

    def stamp(self, writer: RolloutWriter, credit: Credit, seconds: Seconds, learned: Differentiated) -> None:
        """Write the commit record of the rollout that has begun last: from then on its slot holds it.

        Args:
            writer: of the slot.
            credit: that it is for.
            seconds: where its time went.
            learned: what came of its gradient.
        """
        before, waited_s = self._used, self._began - self._idle_since
        self._idle_since, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        writer.stamp(
            environment_s=seconds.environment,
            acting_s=seconds.acting,
            learning_s=learned.seconds,
            waiting_s=waited_s,
            processor_s=used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime,
            voluntary_switches=used.ru_nvcsw - before.ru_nvcsw,
            involuntary_switches=used.ru_nivcsw - before.ru_nivcsw,
            began_s=self._began,
            ended_s=self._idle_since,
            gradient_norm=learned.norm,
            generation=self._generation,
            policy_version=credit.policy_version,
            sequence=credit.sequence,
        )
