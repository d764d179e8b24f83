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
from parenv.memory.layout import MAX_EPISODE_STEPS, WHOLE_EPISODES
from parenv.options import GradientOptions, Mode, OnStale, Parallelism, Placing, Stop, WorkerOptions
from parenv.policy.policy import PolicyLike
from parenv.pool.evaluation import PendingEvaluation
from parenv.pool.events import Observer
from parenv.pool.pool_plan import PoolArguments, make_plan, names_option_objects, settings_of_publish
from parenv.pool.pool_session import PoolSession
from parenv.pool.session_holder import SessionHolder, mean_of_window, stream
from parenv.pool.state import pool_state, resume_pool
from parenv.pool.statistics import PoolStatistics

if TYPE_CHECKING:
    from parenv.advice import Advice


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    P = TypeVar("P", bound=PolicyLike | Mapping[str, Any], default=PolicyLike, covariant=True)
else:  # Only type checkers need the default, which Python's own has from 3.13 on.
    from typing import TypeVar

    P = TypeVar("P")


class AsyncWorkerPool(SessionHolder[PoolSession], Generic[P]):
    """Workers that step environments and act while this process learns.

    The constructor returns when all workers are ready. Close the pool with ``with``, :meth:`close`, or by deleting the
    last reference to it. Under ``torchrun`` every learner makes its pool with the same arguments. ``num_envs`` and
    ``num_workers`` count over all learners, and each pool has its part of the env_ids and of the seeds.

    Args:
        env_fn: Factory of a sub-environment: a callable, an env id, or a sequence with a factory for each
            sub-environment. A callable may also return a ``VectorEnv`` per worker.
        policy: :class:`~parenv.Policy`, ``torch.nn.Module``, callable ``observations -> actions``, or
            :class:`~parenv.PolicyFactory` of one of these. Workers act with copies. A dict of policies by name is for
            multi-agent environments, such as those of PettingZoo. Every rollout is then a mapping from each policy to
            the rows of its agents.
        policy_of: Function ``(agent, episode) -> name`` that returns the policy of an agent. A worker calls it at the
            beginning of an episode for each possible agent. ``episode`` has ``env_id``, ``number``, ``generator`` (a
            seeded generator of numpy) and ``settings`` (published settings by policy).
        num_envs: Number of sub-environments in all workers, split as evenly as possible. Default: one per worker.
        num_workers: Number of worker processes. ``None``: :func:`~parenv.recommended_num_workers`. 0: everything runs
            in this process.
        mode: ``"sync"``: every rollout is ``[T, num_envs]`` and by the newest version. ``"async"``: every rollout is
            ``[T, B]`` of one worker, in the order of arrival.
        parallelism: ``"experience"``: workers send :meth:`rollouts`. ``"gradient"``: workers also run ``loss_fn`` and
            backward, and send :meth:`gradients`.
        rollout_length: Number ``T`` of env steps per sub-environment and rollout. With ``"episode"`` and
            ``mode="async"``, every rollout is one whole episode ``[N, 1]``, and is yielded when it ends. With
            ``"episode"``, ``parallelism="gradient"`` and ``mode="sync"``, a rollout is one whole episode of each
            sub-environment, one after the other, ``[N, 1]``, for Monte-Carlo policy gradients. The maximum length of an
            episode is 1,000,000 env steps, and a longer one is an error.
        loss_fn: Function ``(policy, rollout) -> loss | (loss, metrics)``. The worker calls it with its copy of
            ``policy`` and a rollout of tensors. The loss is a scalar tensor, the metrics are a dict of numbers. With
            named policies it takes a dict of all policies, and returns one loss for all of them.
        gradient: Options of the reduction of gradients.
        postprocess: Function ``(policy, rollout) -> {name: array [T, B, ...]}``. The worker calls it with tensors and
            without gradients. The arrays are added to ``Rollout.extras``.
        infos: Names of infos to store in ``Rollout.infos``, such as ``("action_mask",)``. Their values are numbers or
            arrays. A dict has defaults for infos that only some steps return, such as ``{"is_success": False}``; the
            value ``None`` is no default. A policy with a parameter of that name takes the info when it acts.
        prefetch: With ``mode="async"``, number of rollouts that a worker may run ahead of the learner. 0: the worker
            waits for the update of the learner. Whole episodes come in parts of up to 64 env steps of each
            sub-environment, and this is the number of parts. ``"auto"`` begins with 1. After 12 rollouts of each worker
            it chooses 0, 1 or 2: more if workers and the main process both wait, less if only workers do.
        max_policy_lag: With ``mode="async"``, bound on ``Rollout.policy_lag`` in publishes. ``None``: workers and
            ``prefetch`` alone bound it. With whole episodes, it bounds the age of each row when the row arrives. An
            episode that would be too old continues with the newest version. ``None``: each is by one version.
        on_stale: ``"pace"``: the stream waits for the worker that the bound requires. ``"drop"``: rollouts beyond the
            bound are dropped and counted.
        seed: Root of all seeds, of environments by env_id and of policies by worker. ``None``: drawn, see :attr:`seed`.
        settings: ``policy.settings`` of version 0. ``publish(policy, **settings)`` sets them for later versions.
        workers: Options of the workers.
        record: Path of a file that records the run. Every learner has its own file, as in :meth:`trace`.
        replay: Path of a file of ``record``. The pool repeats that run in the same order with the same versions, also
            an asynchronous one. Its streams end where the run ended. Deaths of workers are not repeated.
        placement: Where workers run. ``None``: on this machine.
        max_frozen: Maximum number of versions that :meth:`freeze` keeps at once.
        spaces: Spaces of the pool, or how to get them, as in :class:`~parenv.ParallelVectorEnv`.
        episode_seeds: Whether to reset each episode with a seed of its own. ``Rollout.infos["episode_seed"]``, int64
            ``[T, B]``, has the seeds, and :func:`parenv.record_dataset` stores them. By default only the first episode
            of a sub-environment is seeded, as in Gymnasium.

    Raises:
        ConfigurationError: An argument is wrong.
        ReplayError: Raised by a stream at the first rollout that differs from the recorded one.
        WorkerDiedError, RestartLimitError: Raised by later calls, if workers die more often than ``workers.restart``
            allows.

    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", lean, num_workers=0, num_envs=2) as pool:
    ...     rollout = next(pool.rollouts())
    >>> rollout.observations.shape, rollout.rewards.shape
    ((128, 2, 4), (128, 2))
    """

    @names_option_objects
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
        prefetch: int | Literal["auto"] = 1,
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
        episode_seeds: bool = False,
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
                episode_seeds=episode_seeds,
            )
        )
        super().__init__("the pool", lambda: PoolSession(plan))

    @property
    def num_envs(self) -> int:
        """Number of sub-environments in all workers."""
        return sum(self._session.workers.shares)

    @property
    def num_workers(self) -> int:
        """Number of workers. 1 if the only one runs in this process."""
        return len(self._session.workers.shares)

    @property
    def max_rollout_steps(self) -> int:
        """Largest number of env steps in a rollout: of all workers in sync mode, of one worker in async mode."""
        plan, shares = self._session.plan, self._session.workers.shares
        if plan.job.in_parts:
            return MAX_EPISODE_STEPS
        return plan.job.rollout_length * (sum(shares) if plan.given.mode == "sync" else max(shares))

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
        """Root of all seeds. Another pool of the same layout with this seed repeats this one."""
        return self._session.plan.job.seed

    @property
    def prefetch(self) -> int:
        """Number of rollouts that a worker may run ahead of the learner now."""
        return self._session.prefetch

    @property
    def policy_version(self) -> int:
        """Newest version. 0 is the policy that the pool was made with."""
        return self._session.version

    @property
    def policy_versions(self) -> dict[str, int]:
        """Newest version of each named policy."""
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

    @names_option_objects
    def rollouts(self, stop: Stop | None = None, *, wait: Callable[[], bool] | None = None) -> Iterator[Any]:
        """Yield rollouts until a criterion is met, or for ever without one.

        When the loop requests the next rollout, the learner is done with the previous one. Rollouts in progress at the
        end of a stream are not lost, because the next stream yields them.

        Args:
            stop: Criteria, counted from this call on.
            wait: Function that is called before each rollout. If it returns ``False`` and no rollout has arrived, the
                stream yields ``None``. It is for learners with other work, as in :func:`parenv.learning.pipeline`.
        """
        return self._stream("experience", "rollouts", PoolSession.next_rollout, stop, wait)

    @names_option_objects
    def gradients(self, stop: Stop | None = None) -> Iterator[Gradient]:
        """Yield gradients until a criterion is met, or for ever without one.

        With ``mode="sync"`` there is one gradient per round, reduced over all workers and computed with one version.
        With ``mode="async"`` there is one per arrival, or one reduced over the next ``num_arrivals``. When the loop
        requests the next gradient, the learner is done with the previous one.

        Args:
            stop: Criteria, counted from this call on.

        Raises:
            GradientError: ``loss_fn`` returned nothing to learn from, or a gradient is not finite.
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
        """Send a new version of the policy to all workers.

        Rollouts that begin after this call use the new version. If the call raises, nothing has changed.

        Args:
            policy: Newest policy, its module, or the state dict of the module. With
                named policies, a dict of some of them. The others keep their versions.
            min_kl: Minimum mean Kullback-Leibler divergence from the version that acted in the rollout ``on``, in nats.
                The divergence is estimated. If it is smaller and there are no settings, nothing is published, and
                ``statistics().skipped_publishes`` counts it. The rollout needs the extra ``log_prob``. The policy needs
                a method ``log_prob(observations, actions)``, which a :class:`~parenv.TorchPolicy` has if its method
                takes ``action``. Of named policies, those that have moved are published. Default: always publish.
            on: Rollout for ``min_kl``.
            settings: Changes of ``policy.settings`` on the workers by name. They stay until they are changed.
            **more_settings: Further settings as keywords. A new name that looks like an option above causes a warning.

        Returns:
            Number of the newest version. With named policies this is the number of publishes, and
            :attr:`policy_versions` has the version of each.

        Raises:
            ConfigurationError: The parameters have other names, shapes or dtypes than the pool's policy, or
                ``min_kl`` cannot be computed.
            PolicyLagError: Rollouts in progress would become older than ``max_policy_lag``.
        """
        with self._using() as session:
            sets = settings_of_publish(settings, more_settings, session.versions.setting_names)
            return session.publish(policy, sets, min_kl, on)

    def freeze(self, name: str) -> str:
        """Keep the newest version of a policy, for example as an opponent.

        ``policy_of`` may return the name of the frozen version until it is released. The weights stay in memory that
        all workers share.

        Args:
            name: Name of the policy.

        Returns:
            Name of the frozen version, such as ``"runner@12"``.

        Raises:
            ConfigurationError: There is no such policy, or ``max_frozen`` versions are frozen already.
        """
        with self._using() as session:
            return session.versions.named().freeze(name)

    def release(self, name: str) -> None:
        """Release a frozen version, which no new episode may use.

        Its memory is free when no episode uses it any more.

        Args:
            name: Return value of :meth:`freeze`.

        Raises:
            ConfigurationError: It is not frozen.
        """
        with self._using() as session:
            session.versions.named().release(name)

    def synchronize(self) -> int:
        """Have every worker load the newest version, wait until all have, and return its number.

        With ``mode="async"``, rollouts in progress still use the versions that they were requested with.
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
        self,
        episodes: Any = None,
        deterministic: bool = True,
        *,
        wait: bool = True,
        in_place: bool = False,
        **unknown: object,
    ) -> EpisodeStatistics | PendingEvaluation:
        """Run whole episodes with the newest version, on the workers, in sub-environments of their own.

        The training environments, their random states and the recurrent state of the policy stay as they are, except
        with ``in_place``. :func:`parenv.evaluate` runs episodes in other environments.

        Args:
            episodes: Number of episodes.
            deterministic: Value of ``policy.settings["deterministic"]`` during the evaluation.
            wait: Whether to wait for the episodes. With ``False`` they run beside the training, with a copy of this
                version. Workers run them while they wait for a rollout request, or in a tenth of their time if they
                never wait. When the stream has received the result, it is in :meth:`statistics`. If such an evaluation
                is in progress, no other one begins, and that one is returned.
            in_place: Whether to use the training environments, if a process may have only one. Their episodes are cut,
                and the next rollout of a worker has ``restarted``.
            **unknown: Refused, with a message that names the right function.

        Returns:
            Episodes, or with ``wait=False`` the pending evaluation.

        Raises:
            ConfigurationError: ``in_place`` with ``wait=False``, with named policies, or in a recorded run.
        """
        if unknown:
            raise ConfigurationError(
                "pool.evaluate must be called with episodes, deterministic, wait and in_place, got "
                f"{', '.join(unknown)}. It runs the environments of the pool. For others, use "
                "parenv.evaluate(policy, env_fn, episodes=50)."
            )
        at_least("episodes", episodes, 1)
        if in_place and not wait:
            raise ConfigurationError(
                "in_place=True needs wait=True, because training cannot continue meanwhile, got wait=False. Leave one "
                "of them out."
            )
        with self._using() as session:
            if wait:
                return session.evaluate(episodes, deterministic, in_place)
            return PendingEvaluation(session.evaluator.begin(episodes, deterministic), self._finish_evaluation)

    def statistics(self) -> PoolStatistics:
        """Return the statistics so far."""
        return self._session.statistics()

    def metrics(self) -> dict[str, float]:
        """Return the statistics so far as a flat dict for a logger, such as ``"rollout/mean_return"``.

        The names are stable, and the reference lists them. Values that are unknown yet are left out, so every value is
        finite.

        >>> with AsyncWorkerPool("CartPole-v1", lambda observations: observations[:, 2] > 0, num_workers=0) as pool:
        ...     rollout = next(pool.rollouts())
        ...     metrics = pool.metrics()
        >>> metrics["rollout/env_steps"], metrics["policy/lag_mean"], "eval/mean_return" in metrics
        (128.0, 0.0, False)
        """
        return self.statistics().metrics()

    def advice(self) -> Advice:
        """Report what each part of the run takes, who waits for whom, and which limits were reached.

        The facts are attributes of the result. Its text has a line for each fact, and names the setting at which a fact
        clearly points.

        Raises:
            ConfigurationError: The pool has not yielded a rollout yet.
        """
        from parenv.advice import Setting, facts_of

        plan, options = self._session.plan, self._session.plan.job.options
        length = plan.job.rollout_length
        setting = Setting(
            num_workers=0 if plan.inline else self.num_workers,
            num_envs=self.num_envs,
            mode=plan.given.mode,
            parallelism="experience" if plan.gradient is None else "gradient",
            rollout_length="episode" if length == WHOLE_EPISODES else length,
            step_workers=options.step_workers,
            worker_device=options.devices[0],
        )
        return facts_of(self.statistics(), setting, plan.given.max_policy_lag)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline of the workers and the main process from now on until the pool is closed.

        Args:
            path: Path of a file in the trace format of Chrome, for ``parenv report`` and https://ui.perfetto.dev. An
                existing file is replaced, and missing folders are made. Rank 1 writes to ``run-rank1.json`` for
                ``run.json``.

        Raises:
            ConfigurationError: The file cannot be written.
        """
        from parenv.records import trace_to

        with self._using() as session:
            session.observe(Observer())  # The one before is closed first: it may be the same file.
            layout, env_steps = session.identity["layout"], session.statistics().env_steps
            about = {"env_steps": env_steps, "in processes": not session.plan.inline, **layout}
            postprocesses = session.plan.job.postprocess is not None
            session.observe(trace_to(path, len(session.workers.shares), about, postprocesses))

    def call(self, name: str, /, *args: Any, env_ids: Sequence[int] | None = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of sub-environments between two rollouts. It is found through their wrappers.

        Args:
            name: Name of the method, or of an attribute, whose value is returned.
            *args: Arguments of the method.
            env_ids: Sub-environments to call. Default: all.
            **kwargs: Keyword arguments of the method.

        Returns:
            Return values in the order of ``env_ids``, which must be plain data.
        """
        return self._ask("call", env_ids, name, args, kwargs)

    def get_attr(self, name: str, *, env_ids: Sequence[int] | None = None) -> tuple[Any, ...]:
        """Return an attribute of sub-environments, which must be plain data, see :meth:`call`."""
        return self._ask("get_attr", env_ids, name)

    def set_attr(self, name: str, values: Any, *, env_ids: Sequence[int] | None = None) -> None:
        """Set an attribute of sub-environments, on the wrapper that has it.

        The last value is set again in a sub-environment that replaces another one. In a new process, that is after its
        first reset. The log has a warning if it fails.

        Args:
            name: Name of the attribute.
            values: One value for all sub-environments, or a list or tuple with a value for each.
            env_ids: Sub-environments to change. Default: all.
        """
        self._ask("set_attr", env_ids, name, values)

    def state_dict(self) -> dict[str, Any]:
        """Return versions, counters, seeds and environments, with which another pool continues the run.

        The state is plain data and arrays, for :func:`parenv.save_checkpoint`. Save the policy and the optimizer beside
        it. The state has a sub-environment if that has ``get_state() -> data`` and ``set_state(data)``. A sync run then
        continues as if it had not been interrupted. The state has no rollouts in progress: call this between rounds, or
        expect gaps.
        """
        with self._using() as session:
            return pool_state(session)

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Continue from the state of another pool.

        This pool must be new, with the same arguments, the same seed, and the policy of that time.

        Returns:
            Sentences about everything that could not be restored. The columns concerned begin with
            ``Rollout.restarted``.

        Raises:
            ConfigurationError: The state is from a pool with another layout, other policies or another seed.
        """
        with self._using() as session:
            return resume_pool(session, state)

    def __repr__(self) -> str:
        plan, about = self._session.plan, self._session.plan.about
        where = "in this process" if plan.inline else f"on {self.num_workers} workers"
        length = about["rollout_length"] or "whole episodes"
        return (
            f"<{type(self).__name__} of {self.num_envs} sub-environments {where}: {about['mode']}, "
            f"{about['parallelism']}, rollouts of {length}, policy version {self.policy_version}"
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
            raise ConfigurationError(
                f'{name}() needs a pool with parallelism="{parallelism}", got "{mine}". Pass it to AsyncWorkerPool.'
            )
        self._check_open()
        criteria = options_of("stop", stop, Stop)
        return stream(criteria, self._using, take, mean_of_window, wait)

    def _finish_evaluation(self) -> None:
        with self._using() as session:
            session.finish_evaluation()

    def _ask(self, method: str, env_ids: Sequence[int] | None, *arguments: Any) -> tuple[Any, ...]:
        with self._using() as session:
            return session.ask_environments(method, env_ids, *arguments)


ByName: TypeAlias = AsyncWorkerPool[Mapping[str, Any]]
"""Pool with named policies."""
