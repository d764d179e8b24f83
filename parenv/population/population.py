"""Population: the public class."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from parenv.argument_checks import options_of
from parenv.errors import ConfigurationError
from parenv.experience.rollout import Rollout
from parenv.options import Mode, Placing, Stop, WorkerOptions
from parenv.pool.session_holder import SessionHolder
from parenv.pool.streams import stream
from parenv.population.evolving import Evolve
from parenv.population.hyperparameters import Range
from parenv.population.population_plan import PopulationArguments, make_plan
from parenv.population.population_session import PopulationSession
from parenv.population.turn_report import PopulationStatistics, Report
from parenv.worker.member import Fitness, Member


class Population(SessionHolder[PopulationSession]):
    """Many policies that learn side by side on workers, of which the better ones are copied.

    Members learn in turns: a worker makes the member, loads its state from shared memory, has it act and learn for
    ``evolve.every`` env steps, measures it by episodes of their own, and writes its state down. The driver hears of
    scores only, decides who becomes whose child, and says whose turn it is. Copied are the policy's parameters and
    buffers, and the parts of the member, such as the state of its optimizer.

    A turn begins with new episodes, and depends on the member's state, its hyper-parameters and its number alone: not
    on the worker that has it, so that it is done once more, to the bit, where a worker died in it.

    Args:
        env_fn: what makes a sub-environment, as for :class:`~parenv.AsyncWorkerPool`; one factory for all members.
        make_member: ``(hyperparameters) -> Member``, called on the worker at the beginning of each turn.
        learn: ``(member, rollout) -> {name: number} | None``, called on the worker with each rollout ``[T, num_envs]``,
            of tensors on the worker's device where the policy takes tensors; what lies in it is valid until it returns.
        size: how many members, at least 2.
        evolve: :class:`~parenv.Tournament` or :class:`~parenv.Generational`.
        hyperparameters: by name, :class:`~parenv.Uniform` or :class:`~parenv.LogUniform`.
        num_workers: worker processes; ``None``: :func:`~parenv.recommended_num_workers`; 0: all in this process.
        num_envs: sub-environments in which a member acts at once.
        rollout_length: ``T``, env steps per sub-environment and call of ``learn``.
        fitness: how a member is measured; ``None``: by the mean return of 10 episodes.
        initial: hyper-parameters of the first members; those of the others are drawn.
        mode: ``"async"``: a turn counts when it arrives; ``"sync"``: when all that began before it have counted, so
            that a run repeats bit for bit, whatever the number of workers, and whichever of them die.
        seed: root of all seeds; ``None`` draws one.
        workers: how workers are set up and how long they may take.
        placement: where workers run; ``None``: on this machine. To and from a host, a member's state crosses the
            network with each of its turns.
        lineage: a file for every turn and every copy, a line of JSON each; one that is there is replaced, unless
            :meth:`load_state_dict` goes on with it.

    Raises:
        ConfigurationError: an argument is wrong.
        Exception: later, what the last member died of, where all have died.
        WorkerDiedError, RestartLimitError: later, when workers die more often than ``workers.restart`` allows.

    >>> import torch
    >>> from parenv import LogUniform, Member, Population, Stop, Tournament, TorchPolicy
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
        """How many members."""
        return self._session.plan.size

    @property
    def seed(self) -> int:
        """The root of all seeds; give it to another population to repeat this one."""
        return self._session.plan.job.seed

    @property
    def best(self) -> int | None:
        """The member with the highest score at this time; ``None`` while nobody has one."""
        return self._session.evolution.best

    @property
    def scores(self) -> dict[int, float]:
        """The scores of the members that have been measured since they were copied."""
        return self._session.evolution.scores

    @property
    def hyperparameters(self) -> list[dict[str, float]]:
        """The values of each member at this time."""
        return [dict(one.hyperparameters) for one in self._session.evolution.members]

    def reports(self, stop: Stop | None = None) -> Iterator[Report]:
        """What comes of each turn, until a criterion holds; for ever without one.

        Workers that are free are told whose turn it is when the next report is asked for. What is under way when a
        stream ends is not lost: the next stream yields it.

        Args:
            stop: criteria, counted from here on: ``env_steps`` that members have learned from, ``episodes`` by which
                they were measured, and a score for ``mean_return``, whatever the window.
        """
        self._check_open()
        criteria = options_of("stop", stop, Stop)
        if criteria.evaluation_return < math.inf:
            raise ConfigurationError(
                "Stop.evaluation_return is for pools: a population has no evaluations. "
                f"Use Stop(mean_return={criteria.evaluation_return:g}), which is compared with the members' scores"
            )
        # Who has reached what is wanted ends the stream at once: the best score is the last one's, or not enough.
        return stream(criteria, self._using, PopulationSession.next, lambda report: report.score)

    def member(self, number: int) -> Member:
        """A member as it was after its last turn, or its parent after its own if it has been copied since.

        Made in this process, for saving, looking at and using it.

        Raises:
            ConfigurationError: there is no such member, or it has not had a turn.
        """
        if number not in range(self.size):
            raise ConfigurationError(f"there is no member {number!r}: the population has 0 to {self.size - 1}")
        with self._using() as session:
            return session.member(number)

    def statistics(self) -> PopulationStatistics:
        """The figures so far."""
        return self._session.statistics()

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on later: members, scores and hyper-parameters, for :func:`parenv.save_checkpoint`.

        It may be taken at any time. Turns that are under way are not part of it: they begin again, and in a sync
        population they come to the same.
        """
        with self._using() as session:
            return session.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a population was that had this state.

        For one that has just been made with the same arguments and the same seed; the number of workers may be another.

        Raises:
            ConfigurationError: the state is of a population with other arguments.
        """
        with self._using() as session:
            session.resume(state)

    def __repr__(self) -> str:
        plan = self._session.plan
        where = "in this process" if plan.inline else f"on {len(plan.job.shares)} workers"
        return f"<Population of {self.size} members {where}: {plan.evolve}{', closed' if self.closed else ''}>"
