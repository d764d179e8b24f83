"""Population: policies that learn side by side, of which the better ones are copied."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from parenv.argument_checks import options_of
from parenv.errors import ConfigurationError
from parenv.experience.rollout import Rollout
from parenv.options import Mode, Placing, Stop, WorkerOptions
from parenv.pool.session_holder import SessionHolder, stream
from parenv.population.arguments import PopulationArguments, make_plan
from parenv.population.schedule import PopulationStatistics, Report
from parenv.population.selection import Evolve, Range
from parenv.population.session import PopulationSession
from parenv.worker.member import Fitness, Member


class Population(SessionHolder[PopulationSession]):
    """Many policies that learn side by side on workers. Copies of the better ones replace the worse.

    Members learn in training rounds. A worker makes the member, loads its state from shared memory, has it act and
    learn for ``evolve.every`` env steps, measures it by separate episodes, and stores its state. Only scores travel to
    this process, which selects the members that are replaced. A copy takes the policy's parameters and buffers, and the
    parts of the member, such as the state of its optimizer.

    A training round begins with new episodes. It depends on the member's state, hyper-parameters and number of rounds,
    and not on the worker. If a worker dies, another one repeats the round with a bitwise identical result.

    Args:
        env_fn: Factory of a sub-environment, as for :class:`~parenv.AsyncWorkerPool`. One factory for all members.
        make_member: Function ``(hyperparameters) -> Member``. A worker calls it at the start of each training round.
        learn: Function ``(member, rollout) -> {name: number} | None``. A worker calls it with each rollout
            ``[T, num_envs]``, of tensors on the worker's device if the policy takes tensors. The rollout is valid until
            the function returns.
        size: Number of members, at least 2.
        evolve: :class:`~parenv.population.Tournament` or :class:`~parenv.population.Generational`.
        hyperparameters: :class:`~parenv.population.Uniform` or :class:`~parenv.population.LogUniform` by name.
        num_workers: Number of worker processes. ``None``: :func:`~parenv.recommended_num_workers`. 0: everything runs
            in this process.
        num_envs: Number of sub-environments in which a member acts at once.
        rollout_length: ``T``, env steps per sub-environment and call of ``learn``.
        fitness: Measurement of a member. ``None``: the mean return of 10 episodes.
        initial: Hyper-parameters of the first members. The hyper-parameters of the other members are drawn.
        mode: ``"async"``: a training round counts when it arrives. ``"sync"``: a training round counts after all rounds
            that began before it. A sync run is deterministic with any number of workers, even if some die.
        seed: Root of all seeds. ``None``: drawn.
        workers: Options of workers, such as devices and time limits.
        placement: Placement of the workers. ``None``: on this machine. With hosts, the state of a member crosses the
            network twice in each training round.
        lineage: Path of a file with a line of JSON for every training round and every copy. An existing file is
            replaced, unless :meth:`load_state_dict` continues it.

    Raises:
        ConfigurationError: An argument is wrong.
        Exception: Later, if all members have died: the exception of the last one.
        WorkerDiedError, RestartLimitError: Later, if workers die more often than ``workers.restart`` allows.

    >>> import torch
    >>> from parenv import Population, Stop, TorchPolicy
    >>> from parenv.population import LogUniform, Member, Tournament
    >>> def make_member(hyperparameters):
    ...     agent = torch.nn.Linear(4, 2)
    ...     return Member(lambda observations: observations[:, 2] > 0, agent=agent,
    ...                   optimizer=torch.optim.SGD(agent.parameters(), lr=hyperparameters["lr"]))
    >>> def learn(member, rollout):
    ...     return {"lr": member.optimizer.param_groups[0]["lr"]}
    >>> population = Population("CartPole-v1", make_member, learn, size=4, num_workers=0, seed=1,
    ...                         hyperparameters={"lr": LogUniform(1e-4, 1e-1)}, evolve=Tournament(size=2, every=256))
    >>> with population:
    ...     reports = list(population.reports(Stop(env_steps=4096)))
    >>> len(reports) >= 4, sorted({report.member for report in reports})
    (True, [0, 1, 2, 3])
    """

    def __init__(
        self,
        env_fn: Any,
        make_member: Callable[[dict[str, float]], Member],
        learn: Callable[[Any, Rollout], Mapping[str, Any] | None],
        *,
        size: int,
        evolve: Evolve,
        hyperparameters: Mapping[str, Range],
        num_workers: int | None = None,
        num_envs: int = 8,
        rollout_length: int = 128,
        fitness: Fitness | None = None,
        initial: Sequence[Mapping[str, float]] = (),
        mode: Mode = "async",
        seed: int | None = None,
        workers: WorkerOptions | None = None,
        placement: Placing = None,
        lineage: str | os.PathLike[str] | None = None,
    ) -> None:
        plan = make_plan(
            PopulationArguments(
                env_fn=env_fn,
                make_member=make_member,
                learn=learn,
                size=size,
                evolve=evolve,
                hyperparameters=hyperparameters,
                num_workers=num_workers,
                num_envs=num_envs,
                rollout_length=rollout_length,
                fitness=fitness,
                initial=initial,
                mode=mode,
                seed=seed,
                workers=workers,
                placement=placement,
                lineage=lineage,
            )
        )
        super().__init__("the population", lambda: PopulationSession(plan))

    @property
    def size(self) -> int:
        """Number of members."""
        return self._session.plan.size

    @property
    def seed(self) -> int:
        """Root of all seeds. Another population with this seed repeats this one."""
        return self._session.plan.job.seed

    @property
    def best(self) -> int | None:
        """Member with the highest score, or ``None`` if no member has one."""
        return self._session.schedule.best

    @property
    def scores(self) -> dict[int, float]:
        """Scores of the members that have been measured since they were copied."""
        return self._session.schedule.scores

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        """Present hyper-parameters of each member."""
        return [dict(one.hyperparameters) for one in self._session.schedule.members]

    def reports(self, stop: Stop | None = None) -> Iterator[Report]:
        """Yield a report of each training round, until a criterion holds, or without end.

        Idle workers begin their next training rounds when the next report is requested. Rounds that are in progress
        when a stream ends continue. The next stream yields their reports.

        Args:
            stop: Criteria, counted from this call: ``env_steps`` that members have learned from, ``episodes`` by which
                they were measured, and a score as ``mean_return``, without a window.
        """
        self._check_open()
        criteria = options_of("stop", stop, Stop)
        if criteria.evaluation_return < math.inf:
            raise ConfigurationError(
                "Stop.evaluation_return needs a pool, because a population has no evaluations. Use "
                f"Stop(mean_return={criteria.evaluation_return:g}), which is compared with the members' scores."
            )
        # The stream compares the score of each report, and ends with the first member that reaches the criterion.
        return stream(criteria, self._using, PopulationSession.next, lambda _, report: report.score)

    def member(self, number: int) -> Member:
        """Make a member in this process, with its state after its last training round, or its parent's if it is a copy.

        Raises:
            ConfigurationError: There is no such member, or it has not had a training round.
        """
        if number not in range(self.size):
            raise ConfigurationError(f"the number of a member must be 0 to {self.size - 1}, got {number!r}")
        with self._using() as session:
            return session.member(number)

    def statistics(self) -> PopulationStatistics:
        """Return statistics since the start."""
        return self._session.statistics()

    def metrics(self) -> dict[str, float]:
        """Return the statistics as a flat dict for a logger, see :meth:`parenv.AsyncWorkerPool.metrics`."""
        return self.statistics().metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a run: members, scores and hyper-parameters, for :func:`parenv.save_checkpoint`.

        It can be called at any time. Training rounds in progress are not included. They begin again, with the same
        results in sync mode.
        """
        with self._using() as session:
            return session.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a run from its state.

        The population must be new, with the same arguments and the same seed. The number of workers may differ.

        Raises:
            ConfigurationError: The state is from a population with other arguments.
        """
        with self._using() as session:
            session.resume(state)

    def __repr__(self) -> str:
        plan = self._session.plan
        where = "in this process" if plan.inline else f"on {len(plan.job.shares)} workers"
        return f"<Population of {self.size} members {where}: {plan.evolve}{', closed' if self.closed else ''}>"
