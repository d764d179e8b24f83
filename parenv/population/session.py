"""A running population, without the public class, so that it can be closed when the public class is garbage."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from parenv.crew.crew import Crew
from parenv.crew.events import Back, Event, Lost
from parenv.crew.launch import start_workers
from parenv.crew.open_call import OpenCall
from parenv.crew.workers import FOREVER_S
from parenv.errors import ConfigurationError, HostLostError
from parenv.experience.episodes import EpisodeStatistics
from parenv.memory.member_places import MemberPlaces
from parenv.memory.shared import SharedMemory
from parenv.placement.base import drained
from parenv.pool.session_holder import HeldSession
from parenv.population.arguments import PopulationPlan
from parenv.population.lineage import Lineage
from parenv.population.schedule import (
    NOWHERE,
    SECONDS,
    Copied,
    Outcome,
    PopulationStatistics,
    Report,
    Schedule,
    TrainingRound,
)
from parenv.process.free_memory import check_fits, in_words
from parenv.protocol.messages import Failure
from parenv.worker.member import Member, made, restore

_log = logging.getLogger("parenv")


class PopulationSession(HeldSession):
    """Workers, members and files of a population.

    Args:
        plan: Plan of the population.

    Attributes:
        schedule: Members and their next training rounds.
    """

    def __init__(self, plan: PopulationPlan) -> None:
        super().__init__("the population", plan.job.options)
        self.plan = plan
        self.schedule = Schedule(plan.evolve, plan.ranges, plan.first, plan.job.seed, plan.in_order)
        self._lineage = Lineage(plan.lineage, plan.about)
        self._figures = PopulationStatistics()
        self._reports: deque[Report] = deque()
        self._in_progress: dict[int, tuple[TrainingRound, OpenCall]] = {}
        self._died_of: Exception | None = None
        # A member may die with its worker, which raises. The crew is in the middle of the loss when it reports it.
        self._changes: deque[Event] = deque()
        self.closing, self._memory, self._places, self._crew = _opened(
            plan, self.schedule.num_places, self._changes.append
        )
        self.closing.callback(self._lineage.close)
        self._idle = set(range(len(plan.job.shares)))

    @property
    def is_over(self) -> bool:
        """True if a worker is gone and will not be replaced, or all members have died."""
        return super().is_over or self.schedule.all_died

    def next(self, deadline: float) -> Report | None:
        """Return the next report, or ``None`` if none arrives until the deadline on the monotonic clock."""
        while not self._reports:
            self._begin_rounds()
            left = deadline - time.monotonic()
            self._crew.listen(max(0.0, min(left, FOREVER_S)))
            self._handle(drained(self._changes))
            self._take_answers()
            if left <= 0:
                break
        self._begin_rounds()
        return self._reports.popleft() if self._reports else None

    def statistics(self) -> PopulationStatistics:
        """Return the statistics."""
        scores = [score for score in self.schedule.scores.values() if not math.isnan(score)]
        return replace(
            self._figures,
            worker_restarts=self._crew.restarts,
            best_score=max(scores, default=math.nan),
            mean_score=sum(scores) / len(scores) if scores else math.nan,
        )

    def member(self, number: int) -> Member:
        """Make a member in this process, with its present state."""
        one = self.schedule.members[number]
        if one.place == NOWHERE:
            raise ConfigurationError(
                f"member {number} has no state before its first training round. Call member({number}) after its first "
                "report."
            )
        member = made(self.plan.job.make_member, number, one.hyperparameters)
        restore(member, self._places.read(one.place))
        return member

    def state(self) -> dict[str, Any]:
        """Return plain data for :meth:`resume`."""
        places = {one.place for one in self.schedule.members} - {NOWHERE}
        return {
            "about": self.plan.about,
            "evolution": self.schedule.state(),
            "states": {place: self._places.read_bytes(place) for place in sorted(places)},
            "statistics": asdict(self.statistics()),
            "reports": [report.as_data() for report in (self.undelivered, *self._reports) if report is not None],
            "lineage": self._lineage.lines,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another population."""
        if self._figures.turns or self._in_progress:
            raise ConfigurationError(
                "load_state_dict needs a population that has not begun to train. Make a new population."
            )
        for name, mine in self.plan.about.items():
            if state["about"].get(name) != mine:
                raise ConfigurationError(
                    f"{name} must be {state['about'].get(name)!r} as in the state, but the population has {mine!r}. "
                    "Make the population with the same arguments and the same seed."
                )
        self._lineage.go_on(state["lineage"])
        for place, content in state["states"].items():
            self._places.write_bytes(place, [memoryview(content)])
        self.schedule.load(state["evolution"])
        self._figures = PopulationStatistics(**state["statistics"])
        self._crew.restarts = self._figures.worker_restarts
        self._reports.extend(map(Report.of_data, state["reports"]))

    def _begin_rounds(self) -> None:
        """Request a training round from each idle worker, as long as members may begin one."""
        began = time.perf_counter()
        for worker in sorted(self._idle):
            begun = self.schedule.next()
            if begun is None:
                break
            self._idle.discard(worker)
            arguments = tuple[Any, ...](begun)
            if worker >= self.plan.num_local:
                # A host does not share the memory of the places: the state travels with the request and the answer.
                source = begun.source if begun.source == NOWHERE else self._places.read(begun.source)
                arguments = *begun[:3], source, NOWHERE
            self._in_progress[worker] = begun, self._crew.calls.begin("turn", {worker: arguments})
        self._figures = self._figures.plus(evolving_seconds=time.perf_counter() - began)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Lost) and not event.again:
                self._idle.discard(event.worker)
                self._lose_round(event)
            elif isinstance(event, Back):
                self._idle.add(event.worker)

    def _lose_round(self, lost: Lost) -> None:
        """Repeat a training round on another worker, from the member's last report."""
        if lost.worker not in self._in_progress:
            return
        begun, call = self._in_progress.pop(lost.worker)
        self._crew.calls.forget(call)
        self._figures = self._figures.plus(lost_turns=1)
        if not self.schedule.lost(begun.member, blamed=not isinstance(lost.reason, HostLostError)):
            self._end_round(begun.member, self._death(lost.reason))

    def _take_answers(self) -> None:
        for worker, (begun, call) in list(self._in_progress.items()):
            if call.is_answered:
                del self._in_progress[worker]
                self._idle.add(worker)
                self._end_round(begun.member, self._outcome(worker, begun, call))

    def _outcome(self, worker: int, begun: TrainingRound, call: OpenCall) -> Outcome:
        try:
            answer = self._crew.calls.take(call)[worker]
        except Exception as error:  # The worker has raised an error outside the member's code, such as SystemExit.
            return self._death(error)
        if "failure" in answer:
            return self._death(self._crew.workers.error_of(Failure(*answer["failure"]), worker))
        if worker >= self.plan.num_local:
            answer["state_bytes"] = self._places.write(begun.target, answer.pop("state"))
        self._check_memory(int(answer["state_bytes"]))
        about = {
            "episodes": EpisodeStatistics.of_columns(*answer["episodes"]),
            "mean_return": answer["mean_return"],
            "metrics": answer["metrics"],
            **dict(zip(SECONDS, answer["seconds"], strict=True)),
        }
        return Outcome(float(answer["score"]), int(answer["env_steps"]), about=about)

    def _death(self, error: Exception) -> Outcome:
        """Return the outcome for a member that died of an exception."""
        self._died_of = error
        return Outcome(float("nan"), 0, f"{type(error).__name__}: {error}")

    def _end_round(self, member: int, outcome: Outcome) -> None:
        """End a training round, and process all events that follow."""
        began = time.perf_counter()
        for event in self.schedule.done(member, outcome):
            if isinstance(event, Copied):
                self._lineage.copied(event, self._figures.env_steps)
                self._figures = self._figures.plus(copies=1)
            else:
                self._report(event)
        self._figures = self._figures.plus(evolving_seconds=time.perf_counter() - began)
        if self.schedule.all_died and self._died_of is not None:
            self._died_of.add_note(f"All {self.plan.size} members of the population have died. This is the last error.")
            raise self._died_of

    def _report(self, report: Report) -> None:
        self._figures = self._figures.after(report)
        self._lineage.ended(report, self._figures.env_steps)
        self._reports.append(report)
        if report.error:
            about = report.member, report.turn, report.error
            _log.warning("member %s died in its training round %s and will be replaced: %s", *about)

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


def _opened(
    plan: PopulationPlan, num_places: int, hear: Callable[[Event], object]
) -> tuple[contextlib.ExitStack, SharedMemory, MemberPlaces, Crew]:
    """Start the workers and wait until all are ready. If that fails, nothing is left.

    Returns:
        A stack that closes everything, the shared memory, the places in it, and the crew.
    """
    job = plan.job
    named = {"env_fn": job.factories, "make_member": job.make_member, "learn": job.learn, "fitness": job.fitness}
    with contextlib.ExitStack() as stack:
        places = MemberPlaces(len(job.shares))
        memory = SharedMemory(places.offset(num_places))
        stack.callback(memory.close)
        places.buffer = memory.map()
        crew = start_workers(
            stack, job, named, memory, hear=hear, inline=plan.inline, placement=plan.placement, optimizers=True
        )
        return stack.pop_all(), memory, places, crew
