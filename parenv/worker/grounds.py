"""Sub-environments beside those of the training, and for members of a population: made once, begun anew often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parenv.envs.factories import Factories
from parenv.envs.fitting import Fit
from parenv.envs.made import make_envs
from parenv.envs.stepping import Stepper, make_stepper
from parenv.envs.values import Rows
from parenv.memory.layout import RolloutSpec
from parenv.memory.status_slot import StatusSlot
from parenv.worker.acting import Actor
from parenv.worker.collecting import Collector, reset


class Grounds:
    """Sub-environments in which episodes begin anew again and again; made when they are first needed.

    Args:
        factories: make them.
        env_ids: of them.
        progress: where to say what is going on.
        fit: how observations and actions must fit their spaces.
        step_threads: how many are stepped at once.
        others: environments that are in use already, and which these must not be.
    """

    def __init__(
        self,
        factories: Factories,
        env_ids: range,
        progress: StatusSlot,
        fit: Fit,
        step_threads: int,
        others: Sequence[Any] = (),
    ) -> None:
        self._factories, self._env_ids, self._progress, self._fit = factories, env_ids, progress, fit
        self._step_threads, self._others = step_threads, others
        self._stepper: Stepper | None = None

    @property
    def stepper(self) -> Stepper:
        """The sub-environments."""
        if self._stepper is None:
            envs = make_envs(self._factories, self._env_ids, self._progress, self._others)
            self._stepper = make_stepper(envs, self._env_ids.start, self._progress, self._fit, self._step_threads)
            self.get_to_know(self._stepper.envs)
        return self._stepper

    def get_to_know(self, envs: Sequence[Any]) -> None:
        """Look at environments that have just been made."""

    def collector(self, actor: Actor, spec: RolloutSpec, seed: int, worker: int) -> tuple[Collector, Rows]:
        """A collector at the beginning of episodes that the seed decides, and their first observations."""
        stepper = self.stepper
        seeds = np.random.SeedSequence(seed).generate_state(stepper.num_envs).tolist()
        rows, infos = reset(stepper, spec.observations, seeds)
        return Collector(stepper, actor, spec, rows, self.env_ids, worker, self._progress, infos=infos), rows

    @property
    def env_ids(self) -> Any:
        """Of the sub-environments, int64 ``[B]``."""
        return np.arange(self._env_ids.start, self._env_ids.start + self.stepper.num_envs)

    def close(self) -> None:
        """Close them; who needs them again has them made."""
        stepper, self._stepper = self._stepper, None
        if stepper is not None:
            stepper.close()
