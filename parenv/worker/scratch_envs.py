"""Scratch environments: sub-environments beside those of the training, and for members of a population."""

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
from parenv.worker.actor import Actor
from parenv.worker.single_agent_collector import SingleAgentCollector, reset


@dataclass(eq=False)
class ScratchEnvs:
    """Sub-environments that are made at the first use, and reset for each use.

    Args:
        factories: Factories of the environments.
        env_ids: env_ids of the environments.
        progress: Status slot of the worker.
        fit: Rules for observations and actions that do not fit their space.
        step_threads: Number of threads that step.
        others: Environments that are in use already. A factory must not return them again.
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
        """Return a copy that uses existing sub-environments."""
        copy = replace(self)
        copy._stepper = stepper
        return copy

    def get_to_know(self, envs: Sequence[Any]) -> None:
        """Inspect environments that have just been made."""

    def collector(self, actor: Actor, spec: RolloutSpec, seed: int, worker: int) -> tuple[SingleAgentCollector, Rows]:
        """Reset the sub-environments with seeds; return a collector and the first observations."""
        stepper = self.stepper
        seeds = np.random.SeedSequence(seed).generate_state(stepper.num_envs).tolist()
        rows, infos = reset(stepper, spec.observations, seeds)
        env_ids = np.arange(self.env_ids.start, self.env_ids.start + stepper.num_envs)
        return SingleAgentCollector(stepper, actor, spec, rows, env_ids, worker, self.progress, infos=infos), rows

    def close(self) -> None:
        """Close the sub-environments. The next use makes new ones."""
        stepper, self._stepper = self._stepper, None
        if stepper is not None:
            stepper.close()
