"""A population at work: everything behind the public class, so that it can be closed when that one is garbage."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from parenv.errors import ConfigurationError, HostLostError
from parenv.experience.episodes import EvaluationResult
from parenv.memory.member_places import MemberPlaces
from parenv.memory.shared import SharedMemory
from parenv.memory.status_slot import StatusSlot
from parenv.population.evolution import NOWHERE, Copied, Evolution, Turn, TurnEnded, TurnOutcome
from parenv.population.lineage_file import Lineage
from parenv.population.population_plan import PopulationPlan
from parenv.population.turn_report import PopulationStatistics, Report, report_of
from parenv.process.forks import Owner
from parenv.process.free_memory import check_fits, in_words
from parenv.protocol.messages import Failure, Layout
from parenv.supervision.failures import from_failure
from parenv.supervision.launch import inline_placement, local_launch, worker_placement
from parenv.supervision.questions import Question
from parenv.supervision.supervisor import Back, Event, Lost, Product, Supervisor
from parenv.supervision.workers import FOREVER_S, Workers
from parenv.worker.member import Member, made, restore

_log = logging.getLogger("parenv")


class PopulationSession:
    """What a population does with its workers and its members.

    Args:
        plan: checked.

    Attributes:
        owner: the process that may use and close it.
        closing: ends the workers, by themselves within their limit or by force after it, and closes all else.
        evolution: where the members stand.
        evaluation: none, since members are measured by scores.
        undelivered: the report that was taken when Ctrl-C came before it could be yielded; the next stream has it.
    """

    evaluation: EvaluationResult | None = None
    undelivered: Any = None

    def __init__(self, plan: PopulationPlan) -> None:
        self.plan, self.owner = plan, Owner("the population")
        self.evolution = Evolution(plan.evolve, plan.ranges, plan.first, plan.job.seed, plan.in_order)
        self._lineage = Lineage(plan.lineage, plan.about)
        self._figures = PopulationStatistics()
        self._reports: deque[Report] = deque()
        self._under_way: dict[int, tuple[Turn, Question]] = {}
        self._died_of: Exception | None = None
        self.closing, self._memory, self._places, self._supervisor = _opened(plan, self.evolution.num_places)
        self.closing.callback(self._lineage.close)
        self._idle = set(range(len(plan.job.shares)))

    @property
    def workers(self) -> Workers:
        """On which members learn."""
        return self._supervisor.workers

    @property
    def close_timeout_s(self) -> float:
        """Seconds that workers may take to end by themselves."""
        return self.plan.job.options.close_timeout_s

    @property
    def is_over(self) -> bool:
        """Whether a worker is gone that is not replaced, or nobody lives."""
        return self._supervisor.over or self.evolution.all_died

    def next(self, deadline: float) -> Report | None:
        """The next report, or ``None`` if there is none until the deadline on the monotonic clock."""
        while not self._reports:
            self._begin_turns()
            left = deadline - time.monotonic()
            self._note(self._supervisor.events(max(0.0, min(left, FOREVER_S))))
            self._hear()
            if left <= 0:
                break
        self._begin_turns()
        return self._reports.popleft() if self._reports else None

    def statistics(self) -> PopulationStatistics:
        """The figures so far."""
        return replace(self._figures, worker_restarts=self._supervisor.restarts)

    def member(self, number: int) -> Member:
        """A member as it stands, made in this process."""
        one = self.evolution.members[number]
        if one.place == NOWHERE:
            raise ConfigurationError(f"member {number} has not had a turn yet, so that nothing is known of it")
        member = made(self.plan.job.make_member, number, one.hyperparameters)
        restore(member, self._places.read(one.place))
        return member

    def state(self) -> dict[str, Any]:
        """What a run needs to go on later, as plain data."""
        places = {one.place for one in self.evolution.members} - {NOWHERE}
        return {
            "about": self.plan.about,
            "evolution": self.evolution.state(),
            "states": {place: self._places.read_bytes(place) for place in sorted(places)},
            "statistics": asdict(self.statistics()),
            "reports": [report.as_data() for report in (self.undelivered, *self._reports) if report is not None],
            "lineage": self._lineage.lines,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was."""
        if self._figures.turns or self._under_way:
            raise ConfigurationError("load_state_dict is for a population that has not been asked for anything yet")
        for name, mine in self.plan.about.items():
            if state["about"].get(name) != mine:
                raise ConfigurationError(
                    f"the state is of a population with {name}={state['about'].get(name)!r}, and this one has "
                    f"{mine!r}: make it with the same arguments and the same seed"
                )
        self._lineage.go_on(state["lineage"])
        for place, content in state["states"].items():
            self._places.write_bytes(place, [memoryview(content)])
        self.evolution.load(state["evolution"])
        self._figures = PopulationStatistics(**state["statistics"])
        self._supervisor.restarts = self._figures.worker_restarts
        self._reports.extend(map(Report.of_data, state["reports"]))

    def _begin_turns(self) -> None:
        began = time.perf_counter()
        for worker in sorted(self._idle):
            turn = self.evolution.next()
            if turn is None:
                break
            self._idle.discard(worker)
            arguments = {worker: self._told(worker, turn)}
            self._under_way[worker] = turn, self._supervisor.questions.begin("turn", arguments)
        self._figures = self._figures.plus(evolving_seconds=time.perf_counter() - began)

    def _told(self, worker: int, turn: Turn) -> tuple[Any, ...]:
        """What a worker is told of a turn: on a host it begins from a state itself, and gives back another."""
        if worker < self.plan.num_local:
            return tuple(turn)
        source = turn.source if turn.source == NOWHERE else self._places.read(turn.source)
        return (*turn[:3], source, NOWHERE)

    def _note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Lost):
                self._idle.discard(event.worker)
                self._lost_turn(event)
            elif isinstance(event, Back):
                self._idle.add(event.worker)

    def _lost_turn(self, lost: Lost) -> None:
        """Its member goes on from its last report, on the worker that is free first."""
        if lost.worker not in self._under_way:
            return
        turn, question = self._under_way.pop(lost.worker)
        self._supervisor.questions.forget(question)
        self._figures = self._figures.plus(lost_turns=1)
        if not self.evolution.lost(turn.member, blamed=not isinstance(lost.reason, HostLostError)):
            self._count(turn.member, _died_of(lost.reason))

    def _hear(self) -> None:
        questions = self._supervisor.questions
        for worker, (turn, question) in list(self._under_way.items()):
            if questions.answered(question):
                del self._under_way[worker]
                self._idle.add(worker)
                self._count(turn.member, self._outcome(worker, turn, question))

    def _outcome(self, worker: int, turn: Turn, question: Question) -> TurnOutcome:
        try:
            answer = self._supervisor.questions.answers(question)[worker]
        except Exception as error:  # Such as SystemExit, which is none of the user's errors, and came as one of ours.
            return _died_of(error)
        if "failure" in answer:
            workers = self._supervisor.workers
            failure = Failure(*answer["failure"])
            return _died_of(from_failure(failure, worker, workers.pid(worker), workers.env_ids(worker)))
        if worker >= self.plan.num_local:
            answer["state_bytes"] = self._places.write(turn.target, answer.pop("state"))
        self._check_memory(int(answer["state_bytes"]))
        return TurnOutcome(float(answer["score"]), int(answer["env_steps"]), about=answer)

    def _count(self, member: int, outcome: TurnOutcome) -> None:
        """Take a turn for over, and say what follows from it."""
        began = time.perf_counter()
        if outcome.error:
            self._died_of = outcome.about
        for event in self.evolution.done(member, outcome):
            if isinstance(event, Copied):
                self._lineage.copied(event, self._figures.env_steps)
                self._figures = self._figures.plus(copies=1)
            else:
                self._ended(event)
        self._figures = self._figures.plus(evolving_seconds=time.perf_counter() - began)
        if self.evolution.all_died and self._died_of is not None:
            self._died_of.add_note(f"All {self.plan.size} members of the population have died; this is the last.")
            raise self._died_of

    def _ended(self, ended: TurnEnded) -> None:
        report = report_of(ended)
        self._figures = self._figures.after(report)
        self._lineage.ended(report, self._figures.env_steps)
        self._reports.append(report)
        if report.error:
            _log.warning(
                "member %s has died in its turn %s and is replaced when it is due: %s",
                report.member,
                report.turn,
                report.error,
            )

    def _check_memory(self, member_bytes: int) -> None:
        if member_bytes <= self._figures.member_bytes:
            return
        self._figures = replace(self._figures, member_bytes=member_bytes)
        many = self.plan.size + len(self.plan.job.shares)
        check_fits(
            "the population",
            many * member_bytes,
            f"{many} states of {in_words(member_bytes)}",
            "a smaller population, or smaller members",
        )


def _died_of(error: Exception) -> TurnOutcome:
    return TurnOutcome(float("nan"), 0, f"{type(error).__name__}: {error}", error)


def _opened(
    plan: PopulationPlan, num_places: int
) -> tuple[contextlib.ExitStack, SharedMemory, MemberPlaces, Supervisor]:
    """Start the workers and wait until all are ready; first what closes it all. Where that fails, nothing is left."""
    job = plan.job
    named = {"env_fn": job.factories, "make_member": job.make_member, "learn": job.learn, "fitness": job.fitness}
    with_launch = local_launch(job, named, inline=plan.inline, optimizers=True)
    with contextlib.ExitStack() as stack:
        places = MemberPlaces(len(job.shares))
        memory = SharedMemory(places.offset(num_places))
        stack.callback(memory.close)
        places.buffer = memory.map()
        progress = [StatusSlot(places.buffer, worker) for worker in range(len(job.shares))]
        where = inline_placement(lambda: job) if plan.inline else worker_placement(plan.placement, None, job.options)
        workers = Workers(where, progress, job.shares)
        launch = with_launch(memory.fd)
        # They say that workers may begin; the fields are for rollouts.
        layouts = [Layout(0, 0, share, 1, 0, 0, workers.env_ids(i)[0], [], []) for i, share in enumerate(job.shares)]
        product = Product(lambda _: launch, lambda worker: [layouts[worker]], processes=not plan.inline)
        supervisor = Supervisor(workers, job.options, product)
        stack.callback(supervisor.close, job.options.close_timeout_s)
        supervisor.start()
        for worker, layout in enumerate(layouts):
            workers.say(worker, layout)
        return stack.pop_all(), memory, places, supervisor
