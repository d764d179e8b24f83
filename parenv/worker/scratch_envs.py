"""Sub-environments beside those of the training, and for members of a population: made once, begun anew often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parenv.envs.factories import Factories
from parenv.envs.fitting import Fit
from parenv.envs.make import Stepper, make_envs, make_stepper
from parenv.envs.values import Rows
from parenv.memory.layout import RolloutSpec
from parenv.memory.status_slot import StatusSlot
from parenv.worker.acting import Actor
from parenv.worker.collecting import Collector, reset


@dataclass(eq=False)
class ScratchEnvs:
    """Sub-environments in which episodes begin anew again and again; made when they are first needed.

    Args:
        factories: make them.
        env_ids: of them.
        progress: where to say what is going on.
        fit: how observations and actions must fit their spaces.
        step_threads: how many are stepped at once.
        others: environments that are in use already, and which these must not be.
    """

    factories: Factories
    env_ids: range
    progress: StatusSlot
    fit: Fit
    step_threads: int
    others: Sequence[Any] = ()
    _stepper: Stepper | None = field(default=None, init=False)

    @property
    def stepper(self) -> Stepper:
        """The sub-environments."""
        if self._stepper is None:
            envs = make_envs(self.factories, self.env_ids, self.progress, self.others)
            self._stepper = make_stepper(envs, self.env_ids.start, self.progress, self.fit, self.step_threads)
            self.get_to_know(self._stepper.envs)
        return self._stepper

    def over(self, stepper: Stepper) -> ScratchEnvs:
        """The same over sub-environments that are there already."""
        there = replace(self)
        there._stepper = stepper
        return there

    def get_to_know(self, envs: Sequence[Any]) -> None:
        """Look at environments that have just been made."""

    def collector(self, actor: Actor, spec: RolloutSpec, seed: int, worker: int) -> tuple[Collector, Rows]:
        """A collector at the beginning of episodes that the seed decides, and their first observations."""
        stepper = self.stepper
        seeds = np.random.SeedSequence(seed).generate_state(stepper.num_envs).tolist()
        rows, infos = reset(stepper, spec.observations, seeds)
        env_ids = np.arange(self.env_ids.start, self.env_ids.start + stepper.num_envs)
        return Collector(stepper, actor, spec, rows, env_ids, worker, self.progress, infos=infos), rows

    def close(self) -> None:
        """Close them; who needs them again has them made."""
        stepper, self._stepper = self._stepper, None
        if stepper is not None:
            stepper.close()
