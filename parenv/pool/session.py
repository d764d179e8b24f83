"""A pool at work: everything behind the public class, so that it can be closed when that one is garbage."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from parenv.envs.factories import Spaces
from parenv.errors import ConfigurationError
from parenv.experience.episodes import EpisodeStatistics
from parenv.experience.gradient import Gradient
from parenv.experience.rollout import Rollout
from parenv.memory.layout import RolloutSpec, extras_and_carry, infos_from_data, slot_layout
from parenv.memory.maps import SlotMap
from parenv.memory.progress import header_bytes
from parenv.memory.spaces import alike, leaves, rebuild
from parenv.policy.snapshots import module_of
from parenv.pool.advice import Advice
from parenv.pool.advising import advise, costs_of
from parenv.pool.arena import Arena
from parenv.pool.arrival import Arrival
from parenv.pool.configuration import Plan
from parenv.pool.feeds import AsyncFeed, Feed, Slotted, SyncFeed
from parenv.pool.gradients import Accumulator
from parenv.pool.journal import Journal, Recorder
from parenv.pool.launching import as_job, launch_for, placement_for
from parenv.pool.questions import Question
from parenv.pool.resuming import check_state, restore_workers, workers_state
from parenv.pool.statistics import PoolStatistics, Tally, mean
from parenv.pool.trace import Trace, TraceWriter
from parenv.pool.turns import Turns
from parenv.pool.versions import Versions
from parenv.process.cores import own_file
from parenv.process.forks import Owner
from parenv.protocol.data import pack
from parenv.protocol.messages import Layout, Ready
from parenv.supervision.supervisor import Supervisor
from parenv.supervision.workers import Workers

SYNC_LEASES = 3


class Session:
    """Arena, workers, versions and feed of one pool.

    Args:
        plan: checked.

    Attributes:
        owner: the process that may use and close it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.owner = Owner("the pool")
        self._tally = Tally()
        self._turns = Turns(self._tally.driver_s, self._tally.driver_processor_s)
        self._began = time.monotonic()
        self._first_asked = math.nan
        self._collected_before_s = 0.0
        self._evaluations = 0
        job = as_job(plan, header_bytes(len(plan.shares)))
        with_launch = launch_for(plan, job)
        per_worker = 1 if plan.mode == "sync" else 1 + plan.prefetch
        self._journal = _journal_of(plan)
        self._arena = Arena(len(plan.shares), module_of(plan.policy), len(plan.shares) * per_worker + 2)
        self._versions = Versions(plan.policy, self._arena.weights, self._arena.places, plan.settings)
        self.workers = Workers(placement_for(plan, job, self._arena.weights_map), self._arena.progress, plan.shares)
        launch = with_launch(self._arena.memory.fd)
        self._observers = [Trace()]
        self._supervisor = Supervisor(self.workers, launch, plan.options, not plan.inline, self._observers)
        try:
            ready = self._supervisor.start()
            as_planned = tuple(self.workers.shares) == plan.shares
            self.workers.first_env_id = plan.first_env_id if as_planned else plan.first_worker * self.workers.shares[0]
            self._lay_out(ready)
        except BaseException:
            self.close(plan.options.close_timeout_s)
            raise

    @property
    def _trace(self) -> Trace:
        return self._observers[0]

    @property
    def version(self) -> int:
        """The newest version."""
        return self._versions.newest.number

    def next_rollout(self, deadline: float) -> Rollout | None:
        """The next rollout, or ``None`` if there is none until the deadline on the monotonic clock."""
        arrival = self._next(deadline)
        return arrival and arrival.rollout

    def next_gradient(self, deadline: float) -> Gradient | None:
        """The next gradient, or ``None`` if there is none until the deadline on the monotonic clock."""
        while (arrival := self._next(deadline)) is not None:
            gradient = self._accumulator.add(arrival, self.version)
            if gradient is not None:
                return gradient
        return None

    def publish(self, policy: Any, settings: Mapping[str, Any]) -> int:
        """Write a new version, once there is room for it."""
        began = time.perf_counter()
        with self._turns.during("publishing"):
            while not self._versions.has_room(self._feed.versions_in_use()):
                self._feed.listen()
            version = self._versions.add(policy, settings, self._feed.publish)
        self._trace.did("publish", began, policy_version=version)
        return version

    def synchronize(self) -> int:
        """Have every worker load the newest version; its number."""
        newest = self._versions.newest
        with self._turns.during("calling"):
            everybody = dict.fromkeys(range(len(self.workers.shares)), tuple(newest))
            self._supervisor.ask("load", everybody, (newest.number, newest.place))
        return newest.number

    def evaluate(self, episodes: int, deterministic: bool) -> EpisodeStatistics:
        """Run episodes by the newest version, spread over the workers."""
        began = time.perf_counter()
        self._evaluations += 1
        num_workers = len(self.workers.shares)
        wanted = {w: episodes // num_workers + (w < episodes % num_workers) for w in range(num_workers)}
        newest = self._versions.newest
        questions = {w: (n, deterministic, self._evaluations, *newest) for w, n in wanted.items() if n}
        with self._turns.during("calling"):
            answers = self._supervisor.ask("evaluate", questions, (newest.number, newest.place))
        self._trace.did("evaluate", began, policy_version=newest.number)
        return EpisodeStatistics.joined([EpisodeStatistics.of(*answer) for answer in answers.values()])

    def ask_environments(self, method: str, env_ids: Sequence[int] | None, *arguments: Any) -> tuple[Any, ...]:
        """``call``, ``get_attr`` or ``set_attr`` on some sub-environments; the answers in the order of ``env_ids``.

        A run that is written down waits until no rollout is under way, so that it can be repeated.
        """
        question = Question(self.workers, method, env_ids, arguments)
        if self._journal.is_kept:
            while self._feed.versions_in_use():
                self._feed.listen()
            self._journal.called(method)
        with self._turns.during("calling"):
            return question.ask(self._supervisor)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline from now on, instead of the one before."""
        layout = self._layout_and_seed()["layout"]
        about = {"env_steps": self._tally.env_steps, "in processes": not self.plan.inline, **layout}
        finishing = "commit" if self.plan.postprocess is None else "postprocess"
        self._trace.close()
        self._observers[:] = [Trace()]
        self._observers[:] = [TraceWriter(own_file(path), len(self.workers.shares), about, finishing)]

    def statistics(self) -> PoolStatistics:
        """The figures so far."""
        now, tally, traffic = time.monotonic(), self._tally, self.workers.traffic()
        collecting = now - self._first_asked
        rollout_s, spread_s = tally.rollout_seconds()
        return PoolStatistics(
            env_steps=tally.env_steps,
            rollouts=tally.rollouts,
            episodes=tally.episodes,
            mean_return=mean(tally.returns),
            mean_length=mean(tally.lengths),
            seconds=now - self._began,
            env_steps_per_second=tally.env_steps / collecting if collecting > 0 else 0.0,
            policy_version=self.version,
            policy_lag=dict(sorted(tally.lag.items())),
            copied_rollouts=tally.copied,
            gradients=tally.gradients,
            skipped_gradients=tally.skipped,
            dropped_rollouts=tally.dropped,
            workers_alive=self.workers.alive,
            worker_restarts=self._supervisor.restarts,
            env_restarts=tally.env_restarts,
            environment_seconds=tally.environment_s,
            acting_seconds=tally.acting_s,
            learning_seconds=tally.learning_s,
            committing_seconds=tally.busy_s - tally.environment_s - tally.acting_s - tally.learning_s,
            waiting_seconds=tally.waiting_s,
            processor_seconds=tally.processor_s,
            sleeping_seconds=tally.sleeping_s,
            contended_seconds=tally.contended_s,
            rollout_seconds=rollout_s,
            rollout_seconds_spread=spread_s,
            driver_seconds=dict(tally.driver_s),
            driver_processor_seconds=dict(tally.driver_processor_s),
            messages=self.workers.messages,
            hosts=traffic.hosts,
            bytes_sent=traffic.sent,
            bytes_received=traffic.received,
            refused_connections=dict(traffic.refused),
        )

    def advice(self) -> Advice:
        """What the run so far has cost, and how to set it."""
        return advise(costs_of(self.plan, sum(self.workers.shares), self.statistics()))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the policy that a resumed run needs, as plain data."""
        with self._turns.during("calling"):
            state = workers_state(self._supervisor, self._feed.under_way())
        now = time.monotonic()
        return {
            **self._layout_and_seed(),
            "policy_version": self.version,
            "settings": dict(self._versions.settings),
            "evaluations": self._evaluations,
            "worker_restarts": self._supervisor.restarts,
            "statistics": self._tally.state(),
            "seconds": now - self._began,
            "collecting_seconds": 0.0 if math.isnan(self._first_asked) else now - self._first_asked,
            **state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Go on where another pool was; what could not be restored, in words."""
        check_state(state, self._layout_and_seed())
        if not math.isnan(self._first_asked) or self.version:
            raise ConfigurationError("load_state_dict is for a pool that has not been asked for anything yet")
        self._versions.resume(state["policy_version"], state["settings"])
        self._feed.resume(state["policy_version"])
        self._evaluations, self._supervisor.restarts = state["evaluations"], state["worker_restarts"]
        self._tally.load(state["statistics"])
        self._began -= state["seconds"]
        self._collected_before_s = state["collecting_seconds"]
        return restore_workers(self._supervisor, state)

    def close(self, timeout_s: float) -> None:
        """End the workers, by themselves within the limit or by force after it. Idempotent."""
        if not self.owner.is_here:
            return
        try:
            self._supervisor.close(timeout_s)
        finally:
            self._journal.close()
            self._trace.close()
            self._arena.close()

    def _next(self, deadline: float) -> Arrival | None:
        if math.isnan(self._first_asked):
            self._first_asked = time.monotonic() - self._collected_before_s
        self._trace.asked()
        with self._turns.during("waiting"):
            arrival = None if self._journal.is_over else self._feed.next(deadline)
        if arrival is not None:
            self._journal.taken(arrival)
        self._trace.yielded(arrival)
        return arrival

    def _lay_out(self, ready: Sequence[Ready]) -> None:
        plan, workers = self.plan, self.workers
        described = _checked_spaces(ready, plan.spaces)
        self.observation_space, self.action_space = plan.spaces or described
        spec = RolloutSpec(
            plan.rollout_length,
            leaves(described[0]),
            leaves(described[1]),
            *extras_and_carry(ready[0].extras, ready[0].carry),
            gradient_bytes=plan.gradient_job.layout.nbytes if plan.gradient_job else 0,
            infos=infos_from_data(ready[0].infos),
        )
        num_workers, together = len(workers.shares), plan.mode == "sync"
        largest = (
            slot_layout(spec, sum(workers.shares), num_workers)
            if together
            else slot_layout(spec, max(workers.shares), 1)
        )
        leases = SYNC_LEASES if together else num_workers + 2
        num_slots = leases + (1 if together else num_workers * (1 + plan.prefetch))
        self._arena.check_fits(largest, num_slots, spec)
        slots = self._arena.add_slots(largest, num_slots)
        self.workers.lay_out(
            SlotMap(
                memory=self._arena.mapping,
                spec=spec,
                offset=self._arena.slots_offset,
                slot_bytes=largest.total_bytes,
                together=together,
                shares=tuple(workers.shares),
                credits=1 if together else 1 + plan.prefetch,
            )
        )
        layouts = []
        for worker in range(num_workers):
            first = workers.env_ids(worker).start
            layouts.append(
                Layout(
                    slots_offset=self._arena.slots_offset,
                    slot_bytes=largest.total_bytes,
                    slot_envs=sum(workers.shares) if together else workers.shares[worker],
                    slot_workers=num_workers if together else 1,
                    first_column=first - workers.first_env_id if together else 0,
                    share=worker if together else 0,
                    first_env_id=first,
                    extras=ready[0].extras,
                    carry=ready[0].carry,
                    infos=ready[0].infos,
                )
            )
        self._supervisor.lay_out(layouts)
        if plan.gradient is not None and plan.gradient_job is not None:
            self._accumulator = Accumulator(plan.gradient, plan.gradient_job.layout, self._tally)
        self._feed = self._make_feed(Slotted(spec, slots, leases, self._supervisor, self._versions, self._tally))

    def _make_feed(self, slotted: Slotted) -> Feed:
        plan = self.plan
        if plan.mode == "sync":
            return SyncFeed(slotted)
        drop = plan.on_stale == "drop"
        dispatch = self._journal.dispatch(len(self.workers.shares), plan.prefetch, plan.max_policy_lag, pace=not drop)
        return AsyncFeed(slotted, dispatch, plan.max_policy_lag if drop else None)

    def _layout_and_seed(self) -> dict[str, Any]:
        names = ("mode", "parallelism", "rollout_length")
        shares = {
            "sub-environments of each worker": list(self.workers.shares),
            "first env_id": self.workers.first_env_id,
        }
        return {"layout": {**{name: self.plan.about[name] for name in names}, **shares}, "seed": self.plan.seed}


def _journal_of(plan: Plan) -> Journal:
    if plan.replay is not None:
        return plan.replay
    return Journal() if plan.record is None else Recorder(plan.record, plan.about)


def _checked_spaces(ready: Sequence[Ready], given: Spaces | None) -> Spaces:
    """The spaces that workers describe: all the same, and those that are given."""
    mine = rebuild(ready[0].spaces[0]), rebuild(ready[0].spaces[1])
    if given is not None and not all(map(alike, given, mine)):
        raise ConfigurationError(
            f"spaces= has observations {given[0]} and actions {given[1]}, but env_id 0 has observations {mine[0]} and "
            f"actions {mine[1]}: give those, or none"
        )
    first = pack(ready[0].spaces)
    for worker, other in enumerate(ready):
        theirs = rebuild(other.spaces[0]), rebuild(other.spaces[1])
        if pack(other.spaces) != first and not (given is not None and all(map(alike, given, theirs))):
            raise ConfigurationError(
                f"all sub-environments must have the same spaces, but worker {worker} has observations {theirs[0]} and "
                f"actions {theirs[1]}, and worker 0 has observations {mine[0]} and actions {mine[1]}"
            )
    return mine
