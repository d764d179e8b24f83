"""The named policies of a worker, each with its own actor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import cloudpickle

from parenv.envs.fitting import Fit
from parenv.memory.layout import SlotSpec
from parenv.policy.assignment import PolicyTable
from parenv.policy.snapshots import SharedWeights, WeightsReader
from parenv.worker.actor import Actor
from parenv.worker.job import AgentsJob


class PolicySet:
    """The policies that act in this worker.

    Args:
        job: Job with the policies.
        load_job: Function that makes another copy of the job, for frozen versions.
        spec: Contents of a rollout.
        mapping: Shared memory.
        fit: Rules for actions that do not fit their space.

    Attributes:
        spec: Contents of a rollout.
        fit: Rules for actions that do not fit their space.
        table: Policies by name, with their versions. Empty before the first load.
        actors: Actor of each policy.
        settings: Published settings of each policy.
    """

    def __init__(self, job: AgentsJob, load_job: Callable[[], Any], spec: SlotSpec, mapping: Any, fit: Fit) -> None:
        self._job, self._load_job, self.spec, self._mapping, self.fit = job, load_job, spec, mapping, fit
        self.table: PolicyTable = {}
        self.settings: Mapping[str, Mapping[str, Any]] = {}
        self.actors = {name: self._actor(name, job.policy[name], WeightsReader) for name in spec.found}
        self._loaded: dict[str, int] = {}

    @property
    def indices(self) -> set[int]:
        """Indices of the policies."""
        return {row.index for row in self.table.values()}

    def load(self, serial: int, snapshot: bytes, /) -> None:
        """Load the pickled table of versions ``snapshot``. Its number ``serial`` is not needed."""
        table: PolicyTable = cloudpickle.loads(snapshot)
        for name in [name for name in self.actors if name not in table]:
            del self.actors[name]
            self._loaded.pop(name, None)  # An actor whose last load failed is not in it.
        for name, row in table.items():
            if name not in self.actors:
                self.actors[name] = self._actor(row.of, self._load_job().policy[row.of], SharedWeights)
            if self._loaded.get(name) != row.number:
                self._loaded.pop(name, None)  # The actor has neither version if the load fails.
                self.actors[name].load(row.place, row.snapshot)
                self._loaded[name] = row.number
        self.table = table
        self.settings = {name: row.settings for name, row in table.items()}

    @contextlib.contextmanager
    def deterministic(self, wanted: bool) -> Iterator[None]:
        """Make a context in which ``settings["deterministic"]`` of every policy has this value."""
        with contextlib.ExitStack() as stack:
            for actor in self.actors.values():
                stack.enter_context(actor.deterministic(wanted))
            yield

    def _actor(self, of: str, policy: Any, weights: Callable[..., Any]) -> Actor:
        spec = self.spec.groups[self.spec.found[of].group]
        offset, device = self._job.weights_offsets[of], self._job.device
        read = partial(weights, memory=self._mapping, offset=offset, device=device)
        return Actor(policy, spec.observations, spec.actions, device, read, self.fit)
