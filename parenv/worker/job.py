"""Jobs: the configuration of workers, pickled once by the driver and read by every worker."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Self

from parenv.envs.autoreset import Autoreset
from parenv.envs.factories import Factories
from parenv.experience.gradient import GradientLayout
from parenv.memory.layout import WHOLE_EPISODES
from parenv.memory.status_slot import StatusSlot, header_bytes
from parenv.options import WorkerOptions
from parenv.policy.assignment import UNNAMED, PolicyOf
from parenv.policy.made_policies import MadePolicies
from parenv.policy.snapshots import flat_layout, module_of
from parenv.process.cores import CoreSets
from parenv.process.spinning import Spinning
from parenv.worker.member import Fitness
from parenv.worker.task import Context, Prepared


def _named(name: str) -> Any:
    """Return a class by ``module:class``. ``pkgutil`` would compile a regular expression in every worker."""
    module, _, own = name.partition(":")
    return getattr(importlib.import_module(module), own)


@dataclass(frozen=True)
class GradientJob:
    """Configuration of workers that compute gradients.

    Args:
        loss_fn: The user's ``(policy, rollout) -> loss | (loss, metrics)``.
        layout: Layout of the gradient of the driver's policy.
        max_norm: Norm to which a worker's gradient is clipped, or ``None``.
    """

    loss_fn: Callable[[Any, Any], Any]
    layout: GradientLayout
    max_norm: float | None


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """Job of all workers of a pool, a vector env or a population.

    Args:
        factories: Factories of the sub-environments.
        options: Options of the user.
        shares: Number of sub-environments of each worker.
        seed: Root of all seeds.
        first_worker: Number of workers of learners with a lower rank.
        first_env_id: Number of sub-environments of learners with a lower rank.
        cores: Cores of each worker, or ``None`` if each may use all.
        device: Device of the worker that has this job.
    """

    factories: Factories
    options: WorkerOptions
    shares: tuple[int, ...]
    seed: int
    first_worker: int = 0
    first_env_id: int = 0
    cores: CoreSets | None = None
    device: str = "cpu"
    entry: ClassVar[str] = "parenv.worker.process:serve_messages"
    """``module:function`` that a worker process runs."""
    prepared_by: ClassVar[str]
    """``module:class`` that makes the sub-environments. A name, because these modules import this one."""

    def prepare(self, context: Context[Self]) -> Prepared:
        """Make the sub-environments of a worker."""
        make = _named(self.prepared_by)
        return make(self, context.sender, context.status, context.output)  # type: ignore[no-any-return]

    def of_worker(self, worker: int) -> Self:
        """Return the job of one worker, with its device."""
        devices = self.options.devices
        return replace(self, device=devices[(self.first_worker + worker) % len(devices)])

    def set_up(self, worker: int, status: StatusSlot, cleanup: contextlib.ExitStack) -> None:
        """Call ``setup_fn`` of the user, and register ``cleanup_fn``."""
        if self.options.cleanup_fn is not None:
            cleanup.callback(self.options.cleanup_fn, self.first_worker + worker)
        self.factories.register()
        if self.options.setup_fn is not None:
            status.begin("setup_fn")
            self.options.setup_fn(self.first_worker + worker)

    def env_ids(self, worker: int) -> range:
        """Return the env_ids of a worker."""
        first = self.first_env_id + sum(self.shares[:worker])
        return range(first, first + self.shares[worker])


@dataclass(frozen=True, kw_only=True)
class StepJob(WorkerJob):
    """Job of workers that step for a vector env.

    Args:
        autoreset: When an episode that has ended is followed by the next one.
        spinning: How long workers spin before they sleep. ``None``: they do not spin.
        begins_with_one: Whether the worker makes and measures its first sub-environment, and then waits for
            :class:`~parenv.protocol.messages.Shares`.
    """

    entry: ClassVar[str] = "parenv.worker.process:serve_steps"
    prepared_by: ClassVar[str] = "parenv.worker.step_task:StepTask"
    autoreset: Autoreset
    spinning: Spinning | None = None
    begins_with_one: bool = False


@dataclass(frozen=True, kw_only=True)
class MemberJob(WorkerJob):
    """Job of workers that train the members of a population.

    Args:
        make_member: Function ``(hyperparameters) -> Member``.
        learn: Function ``(member, rollout) -> {name: number} | None``.
        fitness: Measurement of a member.
        fitness_factories: Factories of the sub-environments for the measurement.
        rollout_length: Length of a rollout in steps, ``T``.
        every: Minimum number of env steps of a training round.
        first: Hyper-parameters of the member that is made to find the contents of a rollout.
    """

    prepared_by: ClassVar[str] = "parenv.worker.member_task:MemberTask"
    make_member: Callable[[dict[str, float]], Any]
    learn: Callable[[Any, Any], Any]
    fitness: Fitness
    fitness_factories: Factories
    rollout_length: int
    every: int
    first: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class EpisodeJob(WorkerJob):
    """Job of workers that play the episodes of an evaluation.

    Args:
        policies: The policy, with the name :data:`~parenv.policy.assignment.UNNAMED`. ``None``: the main process acts.
        tasks: Name of each task. The factories have the same order.
        deterministic: Value of ``policy.settings["deterministic"]``.
        max_episode_steps: Number of env steps after which an episode is truncated, or ``None``.
        infos: Names of the infos of the last step that are returned.
        infos_of_policy: Names of the infos that the policy takes, if the main process acts.
        acts: Whether the workers act. If not, the main process does.
    """

    prepared_by: ClassVar[str] = "parenv.worker.episode_task:EpisodeTask"
    prepared_by_if_stepped: ClassVar[str] = "parenv.worker.episode_task:SteppedEpisodeTask"
    policies: MadePolicies | None
    tasks: tuple[str, ...]
    deterministic: bool
    max_episode_steps: int | None
    infos: tuple[str, ...]
    infos_of_policy: tuple[str, ...] = ()
    acts: bool = True

    @property
    def policy(self) -> Any:
        """The policy."""
        assert self.policies is not None
        return self.policies[UNNAMED]

    def prepare(self, context: Context[Self]) -> Prepared:
        """Make the sub-environments of a worker."""
        make = _named(self.prepared_by if self.acts else self.prepared_by_if_stepped)
        return make(self, context.sender, context.status, context.output)  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class SessionJob(WorkerJob):
    """Job of workers whose environments are leased by sessions.

    Args:
        at_once: Whether a worker uses its environments at the same time, in threads or in an event loop.
    """

    prepared_by: ClassVar[str] = "parenv.worker.session_task:SessionTask"
    at_once: bool


@dataclass(frozen=True, kw_only=True)
class Job(WorkerJob):
    """Job of workers that collect rollouts.

    Args:
        policies: Policies by name. A single policy has the name :data:`~parenv.policy.assignment.UNNAMED`.
        policy_of: Function ``(agent, episode) -> name``, or ``None`` with a single policy.
        places: Number of versions of each policy that fit into shared memory.
        postprocess: Function ``(policy, rollout) -> {name: array}``, or ``None``.
        rollout_length: Length of a rollout in steps, ``T``, or :data:`~parenv.memory.layout.WHOLE_EPISODES`.
        num_envs_is_given: Whether the user has set the number of sub-environments.
        gradient: Configuration of gradients, or ``None`` for experience.
        infos: Default of each named info, or ``None`` if it has no default.
        settings: Settings of version 0 by policy, in addition to the policy's own.
        keeps: With whole episodes as experience, number of publishes that the version of an episode may be behind
            before the episode changes to the newest version. ``None``: it never changes.
    """

    prepared_by: ClassVar[str] = "parenv.worker.single_agent_envs:SingleAgentEnvs"
    prepared_by_if_named: ClassVar[str] = "parenv.worker.multi_agent_envs:MultiAgentEnvs"
    policies: MadePolicies
    policy_of: PolicyOf | None
    places: int
    postprocess: Callable[[Any, Any], Any] | None
    rollout_length: int
    num_envs_is_given: bool
    gradient: GradientJob | None
    infos: Mapping[str, Any]
    settings: Mapping[str, Mapping[str, Any]]
    keeps: int | None = None

    def prepare(self, context: Context[Self]) -> Prepared:
        """Make the sub-environments of a worker."""
        make = _named(self.prepared_by_if_named if self.is_named else self.prepared_by)
        return make(context)  # type: ignore[no-any-return]

    @property
    def is_named(self) -> bool:
        """True if the policies have names."""
        return UNNAMED not in self.policies

    @property
    def in_parts(self) -> bool:
        """True if workers send parts of whole episodes."""
        return self.rollout_length == WHOLE_EPISODES and self.gradient is None

    @property
    def policy(self) -> Any:
        """The policy, or all policies by name, as ``loss_fn`` gets them."""
        return dict(self.policies) if self.is_named else self.policies[UNNAMED]

    @property
    def gradient_bytes(self) -> int:
        """Size of the flat gradient of each worker in bytes; 0 for experience."""
        return self.gradient.layout.nbytes if self.gradient else 0

    @property
    def weights_offsets(self) -> dict[str, int]:
        """Offset of the flat weights of each policy in shared memory, in bytes."""
        modules = map(module_of, self.policies.values())
        sizes = (0 if module is None else self.places * flat_layout(module)[1] for module in modules)
        return dict(zip(self.policies, accumulate(sizes, initial=header_bytes(len(self.shares))), strict=False))
