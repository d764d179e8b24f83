"""AsyncWorkerPool: the public class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, overload

from gymnasium import Space

from parenv.argument_checks import at_least, options_of
from parenv.envs.factories import EnvFn
from parenv.errors import ConfigurationError
from parenv.experience.agent_rollouts import EpisodesByPolicy, RolloutsByPolicy
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.gradient import Gradient
from parenv.experience.rollout import Rollout
from parenv.memory.layout import WHOLE_EPISODES
from parenv.options import GradientOptions, Mode, OnStale, Parallelism, Placing, Stop, WorkerOptions
from parenv.policy.policy import PolicyLike
from parenv.pool.arguments import PoolArguments
from parenv.pool.evaluation import PendingEvaluation
from parenv.pool.events import Observer
from parenv.pool.misplaced_arguments import names_their_home
from parenv.pool.pool_plan import make_plan, settings_of_publish
from parenv.pool.pool_session import PoolSession
from parenv.pool.session_holder import SessionHolder
from parenv.pool.statistics import PoolStatistics
from parenv.pool.streams import mean_over, stream

if TYPE_CHECKING:
    from parenv.advice import Advice


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P = TypeVar("P", bound=PolicyLike | Mapping[str, Any], default=PolicyLike, covariant=True)
else:  # Only type checkers need the default, which Python's own has from 3.13 on.
    from typing import TypeVar

    P = TypeVar("P")


class AsyncWorkerPool(SessionHolder[PoolSession], Generic[P]):
    """Workers that step environments and act, while this process learns.

    The constructor returns when all workers are ready. Close the pool with ``with``, :meth:`close`, or by letting go
    of it. Under ``torchrun`` every learner makes its pool with the same arguments: ``num_envs`` and ``num_workers`` are
    counted over all of them, and each pool has its part of the env_ids and of the seeds.

    Args:
        env_fn: what makes a sub-environment: a callable, also a lambda, an env id, or a sequence of those with one for
            each; or a callable that makes a whole ``VectorEnv`` per worker.
        policy: a :class:`~parenv.Policy`, a ``torch.nn.Module``, or a callable ``observations -> actions``, by copies.
            A dict of those by name is for environments of several agents, as PettingZoo's are, and makes every rollout
            a mapping of policies to what their agents did.
        policy_of: ``(agent, episode) -> name``, called on a worker where an episode begins, for every agent that there
            can be: by which policy it acts. ``episode`` has ``env_id``, ``number``, ``generator`` (a seeded one of
            numpy's) and ``settings`` (by policy, as they were published).
        num_envs: sub-environments in all workers together, split as evenly as can be; one per worker by default.
        num_workers: worker processes; ``None``: :func:`~parenv.recommended_num_workers`; 0: all in this process.
        mode: ``"sync"``: every rollout is ``[T, num_envs]``, all of it by the newest version. ``"async"``: one
            ``[T, B]`` per worker, in the order of arrival.
        parallelism: ``"experience"``: workers send :meth:`rollouts`; ``"gradient"``: they also run ``loss_fn`` and
            backward, and send :meth:`gradients`.
        rollout_length: ``T``, env steps per sub-environment and rollout; ``"episode"``, for Monte-Carlo policy
            gradients with ``mode="sync"``: a whole episode of each sub-environment, one behind the other, ``[N, 1]``.
        loss_fn: ``(policy, rollout) -> loss | (loss, metrics)``, called on the worker with its copy of ``policy`` and a
            rollout of tensors; the loss is a scalar tensor, the metrics a dict of numbers. Where policies have names it
            is called with all of them by name, and its loss is of all together.
        gradient: how the workers' gradients become one.
        postprocess: ``(policy, rollout) -> {name: array [T, B, ...]}``, called on the worker with tensors and without
            gradients; the arrays join ``Rollout.extras``.
        infos: names of infos, numbers or arrays, that come along in ``Rollout.infos``, such as ``("action_mask",)``. A
            dict gives defaults to infos that only some steps return, such as ``{"is_success": False}``; ``None`` is no
            default. If the policy has a parameter of an info's name, it is also given the info when it acts.
        prefetch: async: rollouts that a worker may run ahead of the learner; 0: it waits for the learner's update.
        max_policy_lag: async: bound on ``Rollout.policy_lag``, in publishes; ``None``: what workers and prefetch allow.
        on_stale: ``"pace"``: keep that bound by waiting for the worker that needs it; ``"drop"``: by dropping, counted.
        seed: root of all seeds, for environments by env_id and for policies by worker; ``None`` draws one, see
            :attr:`seed`.
        settings: what ``policy.settings`` says in version 0, as ``publish(policy, **settings)`` sets it for later ones.
        workers: how workers are set up and how long they may take.
        record: a file in which the run is written down as it goes; every learner has its own, as in :meth:`trace`.
        replay: a file of ``record``: the same run once more, in the same order and by the same versions, also an
            asynchronous one; its streams end where it ended. Deaths are not replayed.
        placement: where workers run; ``None``: on this machine.
        max_frozen: how many versions :meth:`freeze` may keep at once.
        spaces: the pool's very spaces, or how to get them, as in :class:`~parenv.ParallelVectorEnv`.

    Raises:
        ConfigurationError: an argument is wrong.
        ReplayError: later, at the first rollout that is not the recorded one.
        WorkerDiedError, RestartLimitError: later, when workers die more often than ``workers.restart`` allows.

    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=0, num_envs=2) as pool:
    ...     rollout = next(pool.rollouts())
    >>> rollout.observations.shape, rollout.rewards.shape
    ((128, 2, 4), (128, 2))
    """

    @names_their_home
    def __init__(
        self,
        env_fn: EnvFn,
        policy: P,
        *,
        policy_of: Callable[[str, Any], str] | None = None,
        num_envs: int | None = None,
        num_workers: int | None = None,
        mode: Mode = "async",
        parallelism: Parallelism = "experience",
        rollout_length: int | Literal["episode"] = 128,
        loss_fn: Callable[[Any, Any], Any] | None = None,
        postprocess: Callable[[Any, Any], Any] | None = None,
        infos: Sequence[str] | Mapping[str, Any] = (),
        prefetch: int = 1,
        max_policy_lag: int | None = None,
        on_stale: OnStale = "pace",
        seed: int | None = None,
        gradient: GradientOptions | None = None,
        settings: Mapping[str, Any] | None = None,
        workers: WorkerOptions | None = None,
        record: str | os.PathLike[str] | None = None,
        replay: str | os.PathLike[str] | None = None,
        placement: Placing = None,
        max_frozen: int = 8,
        spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None = None,
    ) -> None:
        plan = make_plan(
            PoolArguments(
                env_fn=env_fn,
                policy=policy,
                policy_of=policy_of,
                num_envs=num_envs,
                num_workers=num_workers,
                mode=mode,
                parallelism=parallelism,
                rollout_length=rollout_length,
                loss_fn=loss_fn,
                postprocess=postprocess,
                infos=infos,
                prefetch=prefetch,
                max_policy_lag=max_policy_lag,
                on_stale=on_stale,
                seed=seed,
                gradient=gradient,
                settings=settings,
                workers=workers,
                record=record,
                replay=replay,
                placement=placement,
                max_frozen=max_frozen,
                spaces=spaces,
            )
        )
        super().__init__("the pool", lambda: PoolSession(plan))

    @property
    def num_envs(self) -> int:
        """Sub-environments in all workers."""
        return sum(self._session.workers.shares)

    @property
    def num_workers(self) -> int:
        """Workers; 1 where the only one runs in this process."""
        return len(self._session.workers.shares)

    @property
    def single_observation_space(self) -> Space[object]:
        """Observation space of one sub-environment."""
        return self._session.observation_space

    @property
    def single_action_space(self) -> Space[object]:
        """Action space of one sub-environment."""
        return self._session.action_space

    @property
    def seed(self) -> int:
        """The root of all seeds; give it to another pool of the same layout to repeat this one."""
        return self._session.plan.job.seed

    @property
    def policy_version(self) -> int:
        """The newest version; 0 is the policy the pool was made with."""
        return self._session.version

    @property
    def policy_versions(self) -> dict[str, int]:
        """Where policies have names: the newest version of each."""
        return self._session.versions.named().numbers

    @overload
    def rollouts(self: ByName, stop: Stop | None = None) -> Iterator[RolloutsByPolicy]: ...  # type: ignore[overload-overlap]

    @overload
    def rollouts(self, stop: Stop | None = None) -> Iterator[Rollout]: ...

    @overload
    def rollouts(  # type: ignore[overload-overlap]
        self: ByName, stop: Stop | None = None, *, wait: Callable[[], bool]
    ) -> Iterator[RolloutsByPolicy | None]: ...

    @overload
    def rollouts(self, stop: Stop | None = None, *, wait: Callable[[], bool]) -> Iterator[Rollout | None]: ...

    @names_their_home
    def rollouts(self, stop: Stop | None = None, *, wait: Callable[[], bool] | None = None) -> Iterator[Any]:
        """Rollouts, until a criterion holds; for ever without one.

        Asking for the next rollout says that the learner is done with the one before. What is under way when a stream
        ends is not lost: the next stream yields it.

        Args:
            stop: criteria, counted from here on.
            wait: asked before each; where it says no, ``None`` is yielded if no rollout is there yet, for learners that
                have something else to do, as in :func:`parenv.learning.pipeline`.
        """
        return self._stream("experience", "rollouts", PoolSession.next_rollout, stop, wait)

    @names_their_home
    def gradients(self, stop: Stop | None = None) -> Iterator[Gradient]:
        """Gradients, until a criterion holds; for ever without one.

        sync: one per round, reduced over all workers and computed by one version. async: one per arrival, or reduced
        over the next ``num_arrivals``. As with :meth:`rollouts`, asking for the next one says that the learner is done
        with the one before.

        Args:
            stop: criteria, counted from here on.

        Raises:
            GradientError: ``loss_fn`` gave nothing to learn from, or a gradient is not finite.
        """
        return self._stream("gradient", "gradients", PoolSession.next_gradient, stop)

    def publish(
        self,
        policy: Any,
        *,
        min_kl: float | None = None,
        on: Rollout | None = None,
        settings: Mapping[str, Any] | None = None,
        **more_settings: Any,
    ) -> int:
        """Make a new version, by which every rollout that begins from now on acts.

        Args:
            policy: a policy like the one the pool was made with, its module, or the module's state dict; where policies
                have names, a dict of some of them: the others keep their versions.
            min_kl: publish only if the policy has moved by so much from what acted in the rollout ``on``, by an
                estimate of the mean Kullback-Leibler divergence, or if there are settings; otherwise it is counted in
                ``statistics().skipped_publishes``. The rollout needs the extra ``log_prob``, the policy a method
                ``log_prob(observations, actions)``, which a :class:`~parenv.TorchPolicy` has if its method takes
                ``action``. Where policies have names, those are published that have moved.
            on: the rollout for ``min_kl``.
            settings: by name, what reaches the workers as ``policy.settings`` with this version, and stays until it is
                changed.
            **more_settings: the same as keywords. A new name that looks like one of the options above is warned of.

        Returns:
            The number of the version, which is that of the one before where nothing was published; where policies have
            names, how many times something was published, while :attr:`policy_versions` has the number of each.

        Raises:
            ConfigurationError: names, shapes or dtypes are not those of the pool's policy, or ``min_kl`` cannot be
                computed.
            PolicyLagError: rollouts under way would become older than ``max_policy_lag``.
        """
        with self._using() as session:
            sets = settings_of_publish(settings, more_settings, session.versions.setting_names)
            return session.publish(policy, sets, min_kl, on)

    def freeze(self, name: str) -> str:
        """Keep the newest version of a policy as an opponent, say: ``policy_of`` may return the name of it, for good.

        Its weights stay where they are, in memory that all workers share.

        Args:
            name: of the policy.

        Returns:
            The name of the frozen version, such as ``"runner@12"``.

        Raises:
            ConfigurationError: there is no such policy, or ``max_frozen`` are frozen already.
        """
        with self._using() as session:
            return session.versions.named().freeze(name)

    def release(self, name: str) -> None:
        """Give a frozen version up: no episode that begins from now on may have it.

        Its memory is free once no episode has it any more.

        Args:
            name: what :meth:`freeze` returned.

        Raises:
            ConfigurationError: it is not frozen.
        """
        with self._using() as session:
            session.versions.named().release(name)

    def synchronize(self) -> int:
        """Have every worker load the newest version now, and wait until all have; its number.

        In ``mode="async"`` rollouts that are under way are still collected by the versions that they were asked for by.
        """
        with self._using() as session:
            return session.synchronize()

    @overload
    def evaluate(
        self: ByName, episodes: int, deterministic: bool = True, *, wait: Literal[True] = True
    ) -> EpisodesByPolicy: ...

    @overload
    def evaluate(
        self, episodes: int, deterministic: bool = True, *, wait: Literal[True] = True, in_place: bool = False
    ) -> EpisodeStatistics: ...

    @overload
    def evaluate(self, episodes: int, deterministic: bool = True, *, wait: Literal[False]) -> PendingEvaluation: ...

    def evaluate(
        self, episodes: int, deterministic: bool = True, *, wait: bool = True, in_place: bool = False
    ) -> EpisodeStatistics | PendingEvaluation:
        """Run whole episodes by the newest version, on the workers, in sub-environments made for it.

        The training environments, their random states and the policy's carry are not touched, except with ``in_place``.

        Args:
            episodes: how many.
            deterministic: what ``policy.settings["deterministic"]`` says meanwhile.
            wait: ``False``: beside the training. Workers play by a copy of this version while they wait for a credit,
                and for a tenth of their time where they never do; the stream goes on. Once the stream has heard of the
                result it is in :meth:`statistics`. There is one at a time: while it is under way, nothing more is begun
                and the one under way is returned.

            in_place: whether to play in the training environments, for those of which a process may have only one.
                Their episodes under way are cut: what a worker collects next has ``restarted``.

        Returns:
            The episodes; with ``wait=False``, what will have them.

        Raises:
            ConfigurationError: ``in_place`` with ``wait=False``, with policies by name, or in a recorded run.
        """
        at_least("episodes", episodes, 1)
        if in_place and not wait:
            raise ConfigurationError(
                "in_place=True must wait, since the training cannot go on meanwhile, got wait=False"
            )
        with self._using() as session:
            if wait:
                return session.evaluate(episodes, deterministic, in_place)
            return PendingEvaluation(session.evaluator.begin(episodes, deterministic), self._finish_evaluation)

    def statistics(self) -> PoolStatistics:
        """The figures so far."""
        return self._session.statistics()

    def advice(self) -> Advice:
        """Report what each part of the run takes, who waits for whom, and which limits were reached.

        The facts are attributes of the result. Its text has a line for each fact, and names the setting at which a fact
        clearly points. ``parenv advise`` measures which setting is the fastest.

        Raises:
            ConfigurationError: The pool has not yielded a rollout yet.
        """
        from parenv.advice import Setting, facts_of

        plan, options = self._session.plan, self._session.plan.job.options
        length = plan.job.rollout_length
        setting = Setting(
            num_workers=0 if plan.inline else self.num_workers,
            num_envs=self.num_envs,
            mode=plan.mode,
            parallelism="experience" if plan.gradient is None else "gradient",
            rollout_length="episode" if length == WHOLE_EPISODES else length,
            step_workers=options.step_workers,
            worker_device=options.devices[0],
        )
        return facts_of(self.statistics(), setting, plan.max_policy_lag)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline of workers and driver from now on until the pool is closed: who did what and when.

        Args:
            path: a file in the trace format of Chrome, for ``parenv report`` and https://ui.perfetto.dev; a file
                there is replaced, missing directories are made. Rank 1 writes to ``run-rank1.json`` for ``run.json``.

        Raises:
            ConfigurationError: the file cannot be written.
        """
        from parenv.records import trace_of

        with self._using() as session:
            session.observe(Observer())  # The one before is closed first: it may be the same file.
            session.observe(trace_of(session, path))

    def call(self, name: str, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of sub-environments, found through their wrappers, between two rollouts.

        Args:
            name: of the method; the value of an attribute that is not callable.
            *args: for the method.
            env_ids: which sub-environments; all by default.
            **kwargs: for the method.

        Returns:
            What they returned, in the order of ``env_ids``: plain data only.
        """
        return self._ask("call", env_ids, name, args, kwargs)

    def get_attr(self, name: str, *, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """An attribute of sub-environments, found through their wrappers: plain data only; see :meth:`call`."""
        return self._ask("get_attr", env_ids, name)

    def set_attr(self, name: str, values: Any, *, env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute of sub-environments, on the wrapper that has it.

        Args:
            name: of the attribute.
            values: one for all, or a list or tuple with one for each.
            env_ids: which sub-environments; all by default.
        """
        self._ask("set_attr", env_ids, name, values)

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on later, beside the policy and the optimizer: versions, counts, seeds, environments.

        Plain data and arrays, for :func:`parenv.save_checkpoint`. The state of a sub-environment is part of it if the
        environment has ``get_state() -> data`` and ``set_state(data)``; then a sync run goes on as if it had not been
        interrupted. Rollouts that are under way are not part of it: take it between rounds, or expect gaps.
        """
        from parenv.records import pool_state

        with self._using() as session:
            return pool_state(session)

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Go on where a pool was that had this state.

        For a pool that has just been made, with the same arguments, the same seed, and the policy as it was then.

        Returns:
            What could not be restored, in words; the columns concerned begin with ``Rollout.restarted``.

        Raises:
            ConfigurationError: the state is of a pool with another layout or seed.
        """
        from parenv.records import resume_pool

        with self._using() as session:
            return resume_pool(session, state)

    def __repr__(self) -> str:
        plan, about = self._session.plan, self._session.plan.about
        where = "in this process" if plan.inline else f"on {self.num_workers} workers"
        return (
            f"<{type(self).__name__} of {self.num_envs} sub-environments {where}: {plan.mode}, {about['parallelism']}, "
            f"rollouts of {about['rollout_length'] or 'whole episodes'}, policy version {self.policy_version}"
            f"{', closed' if self.closed else ''}>"
        )

    def _stream(
        self,
        parallelism: Parallelism,
        name: str,
        take: Callable[[PoolSession, float], Rollout | Gradient | None],
        stop: Stop | None,
        wait: Callable[[], bool] | None = None,
    ) -> Iterator[Any]:
        mine = "gradient" if self._session.plan.gradient is not None else "experience"
        if mine != parallelism:
            raise ConfigurationError(f'{name}() needs parallelism="{parallelism}"; this pool has "{mine}"')
        self._check_open()
        criteria = options_of("stop", stop, Stop)
        return stream(criteria, self._using, take, mean_over(criteria.window), wait)

    def _finish_evaluation(self) -> None:
        with self._using() as session:
            session.finish_evaluation()

    def _ask(self, method: str, env_ids: Sequence[int] | None, *arguments: Any) -> tuple[Any, ...]:
        with self._using() as session:
            return session.ask_environments(method, env_ids, *arguments)


ByName: TypeAlias = AsyncWorkerPool[Mapping[str, Any]]
"""A pool whose policies have names."""
