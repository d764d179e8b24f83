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
from parenv.memory.layout import RolloutSpec, SlotLayout, extras_and_carry, infos_from_data
from parenv.memory.maps import SlotMap
from parenv.memory.spaces import alike, leaves, rebuild
from parenv.policy.snapshots import module_of
from parenv.pool.advice import Advice
from parenv.pool.advising import advise, costs_of
from parenv.pool.arena import Arena
from parenv.pool.arrival import Arrival
from parenv.pool.blocks import Block, blocks_of
from parenv.pool.configuration import Plan
from parenv.pool.dispatch import Dispatch, Rounds
from parenv.pool.driver_timer import DriverTimer
from parenv.pool.gradients import Accumulator
from parenv.pool.journal import Journal, Recorder
from parenv.pool.launching import launch_for, placement_for
from parenv.pool.questions import Question
from parenv.pool.resuming import check_state, restore_workers, workers_state
from parenv.pool.rollout_queue import RolloutQueue
from parenv.pool.statistics import Counters, PoolStatistics, mean
from parenv.pool.trace import Trace, TraceWriter
from parenv.pool.versions import Versions
from parenv.process.cores import own_file
from parenv.process.forks import Owner
from parenv.protocol.data import pack
from parenv.protocol.messages import Layout, Ready
from parenv.supervision.supervisor import Product, Supervisor
from parenv.supervision.workers import Workers

SYNC_LEASES = 3


class Session:
    """Arena, workers, versions and rollout queue of one pool.

    Args:
        plan: checked.

    Attributes:
        owner: the process that may use and close it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.owner = Owner("the pool")
        self._counters = Counters()
        self._timer = DriverTimer(self._counters.driver_s, self._counters.driver_processor_s)
        self._evaluations = 0
        job = plan.job
        with_launch = launch_for(plan)
        self._journal = _journal_of(plan)
        self._arena = Arena(len(job.shares), module_of(job.policy), len(job.shares) * plan.credits + 2)
        self._versions = Versions(job.policy, self._arena.weights, self._arena.places, job.settings)
        placement = placement_for(plan, self._arena.weights_map)
        self.workers = Workers(placement, self._arena.progress, job.shares, job.first_env_id, job.first_worker)
        launch = with_launch(self._arena.memory.fd)
        self._observers = [Trace()]
        layouts: list[Layout] = []
        self._layouts = layouts
        self._supervisor = Supervisor(
            self.workers,
            job.options,
            Product(lambda worker: launch, lambda worker: [layouts[worker]], processes=not plan.inline),
            self._observers,
        )
        try:
            ready = self._supervisor.start()
            self._lay_out(ready)
        except BaseException:
            self.close(job.options.close_timeout_s)
            raise

    @property
    def _trace(self) -> Trace:
        return self._observers[0]

    @property
    def is_over(self) -> bool:
        """Whether a worker is gone that is not replaced."""
        return self._supervisor.over

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
        with self._timer.during("publishing"):
            while not self._versions.has_room(self._queue.versions_in_use()):
                self._queue.listen()
            version = self._versions.add(policy, settings, self._queue.publish)
        self._trace.did("publish", began, policy_version=version)
        return version

    def synchronize(self) -> int:
        """Have every worker load the newest version; its number."""
        newest = self._versions.newest
        with self._timer.during("calling"):
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
        with self._timer.during("calling"):
            answers = self._supervisor.ask("evaluate", questions, (newest.number, newest.place))
        self._trace.did("evaluate", began, policy_version=newest.number)
        return EpisodeStatistics.joined([EpisodeStatistics.of(*answer) for answer in answers.values()])

    def ask_environments(self, method: str, env_ids: Sequence[int] | None, *arguments: Any) -> tuple[Any, ...]:
        """``call``, ``get_attr`` or ``set_attr`` on some sub-environments; the answers in the order of ``env_ids``.

        A run that is written down waits until no rollout is under way, so that it can be repeated.
        """
        question = Question(self.workers, method, env_ids, arguments)
        if self._journal.is_kept:
            while self._queue.versions_in_use():
                self._queue.listen()
            self._journal.called(method)
        with self._timer.during("calling"):
            return question.ask(self._supervisor)

    def trace(self, path: str | os.PathLike[str]) -> None:
        """Write a timeline from now on, instead of the one before."""
        layout = self._layout_and_seed()["layout"]
        about = {"env_steps": self._counters.env_steps, "in processes": not self.plan.inline, **layout}
        finishing = "commit" if self.plan.job.postprocess is None else "postprocess"
        self._trace.close()
        self._observers[:] = [Trace()]
        self._observers[:] = [TraceWriter(own_file(path), len(self.workers.shares), about, finishing)]

    def statistics(self) -> PoolStatistics:
        """The figures so far."""
        counters, traffic = self._counters, self.workers.traffic()
        collecting_s = self._timer.collecting_s
        rollout_s, spread_s = counters.rollout_seconds()
        return PoolStatistics(
            env_steps=counters.env_steps,
            rollouts=counters.rollouts,
            episodes=counters.episodes,
            mean_return=mean(counters.returns),
            mean_length=mean(counters.lengths),
            seconds=self._timer.seconds,
            env_steps_per_second=counters.env_steps / collecting_s if collecting_s > 0 else 0.0,
            policy_version=self.version,
            policy_lag=dict(sorted(counters.lag.items())),
            copied_rollouts=counters.copied,
            gradients=counters.gradients,
            skipped_gradients=counters.skipped,
            dropped_rollouts=counters.dropped,
            workers_alive=self.workers.alive,
            worker_restarts=self._supervisor.restarts,
            env_restarts=counters.env_restarts,
            environment_seconds=counters.environment_s,
            acting_seconds=counters.acting_s,
            learning_seconds=counters.learning_s,
            committing_seconds=counters.busy_s - counters.environment_s - counters.acting_s - counters.learning_s,
            waiting_seconds=counters.waiting_s,
            processor_seconds=counters.processor_s,
            sleeping_seconds=counters.sleeping_s,
            contended_seconds=counters.contended_s,
            rollout_seconds=rollout_s,
            rollout_seconds_spread=spread_s,
            driver_seconds=dict(counters.driver_s),
            driver_processor_seconds=dict(counters.driver_processor_s),
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
        with self._timer.during("calling"):
            state = workers_state(self._supervisor, self._queue.under_way())
        return {
            **self._layout_and_seed(),
            "policy_version": self.version,
            "settings": dict(self._versions.settings),
            "evaluations": self._evaluations,
            "worker_restarts": self._supervisor.restarts,
            "statistics": self._counters.state(),
            "seconds": self._timer.seconds,
            "collecting_seconds": 0.0 if math.isnan(self._timer.collecting_s) else self._timer.collecting_s,
            **state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> list[str]:
        """Go on where another pool was; what could not be restored, in words."""
        check_state(state, self._layout_and_seed())
        if not math.isnan(self._timer.collecting_s) or self.version:
            raise ConfigurationError("load_state_dict is for a pool that has not been asked for anything yet")
        self._versions.resume(state["policy_version"], state["settings"])
        self._queue.resume(state["policy_version"])
        self._evaluations, self._supervisor.restarts = state["evaluations"], state["worker_restarts"]
        self._counters.load(state["statistics"])
        self._timer.resume(state["seconds"], state["collecting_seconds"])
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
        self._timer.asked()
        self._trace.asked()
        with self._timer.during("waiting"):
            arrival = None if self._journal.is_over else self._queue.next(deadline)
        if arrival is not None:
            self._journal.taken(arrival)
        self._trace.yielded(arrival)
        return arrival

    def _lay_out(self, ready: Sequence[Ready]) -> None:
        plan, job = self.plan, self.plan.job
        described = _checked_spaces(ready, plan.spaces)
        self.observation_space, self.action_space = plan.spaces or described
        spec = RolloutSpec(
            job.rollout_length,
            leaves(described[0]),
            leaves(described[1]),
            *extras_and_carry(ready[0].extras, ready[0].carry),
            gradient_bytes=job.gradient.layout.nbytes if job.gradient else 0,
            infos=infos_from_data(ready[0].infos),
        )
        num_workers, together = len(ready), plan.mode == "sync"
        blocks = blocks_of(spec, [self.workers.env_ids(worker) for worker in range(num_workers)], together)
        largest = max((block.layout for block in blocks), key=lambda layout: layout.total_bytes)
        leases = SYNC_LEASES if together else num_workers + 2
        num_slots = leases + (1 if together else num_workers * plan.credits)
        self._arena.check_fits(largest, num_slots, spec)
        slots = self._arena.add_slots(largest, num_slots)
        self.workers.lay_out(
            SlotMap(
                memory=self._arena.mapping,
                spec=spec,
                offset=self._arena.slots_offset,
                slot_bytes=largest.total_bytes,
                together=together,
                shares=tuple(self.workers.shares),
                credits=plan.credits,
            )
        )
        for worker, block in enumerate(blocks):
            self._layouts.append(self._layout(ready[0], worker, block, largest))
            self.workers.say(worker, self._layouts[worker])
        if plan.gradient is not None and job.gradient is not None:
            self._accumulator = Accumulator(plan.gradient, job.gradient.layout, self._counters)
        about = (self._supervisor, self._versions, self._counters)
        drop_lag = plan.max_policy_lag if plan.on_stale == "drop" else None
        self._queue = RolloutQueue(self._scheduler(), spec, blocks, slots, leases, drop_lag, *about)

    def _layout(self, first: Ready, worker: int, block: Block, largest: SlotLayout) -> Layout:
        mine = block.columns[block.workers.index(worker)]
        return Layout(
            slots_offset=self._arena.slots_offset,
            slot_bytes=largest.total_bytes,
            slot_envs=len(block.env_ids),
            slot_workers=len(block.workers),
            first_column=mine.first,
            position=mine.position,
            first_env_id=self.workers.env_ids(worker).start,
            extras=first.extras,
            carry=first.carry,
            infos=first.infos,
        )

    def _scheduler(self) -> Dispatch | Rounds:
        plan, num_workers = self.plan, len(self.workers.shares)
        if plan.mode == "sync":
            return Rounds(num_workers)
        return self._journal.dispatch(num_workers, plan.prefetch, plan.max_policy_lag, pace=plan.on_stale == "pace")

    def _layout_and_seed(self) -> dict[str, Any]:
        names = ("mode", "parallelism", "rollout_length")
        shares = {
            "sub-environments of each worker": list(self.workers.shares),
            "first env_id": self.workers.first_env_id,
        }
        return {"layout": {**{name: self.plan.about[name] for name in names}, **shares}, "seed": self.plan.job.seed}


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
