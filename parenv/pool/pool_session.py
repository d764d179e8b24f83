"""Session of a pool: everything behind the public class, so that it can be closed when its holder is garbage."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from parenv.crew.partition import each_worker
from parenv.errors import ConfigurationError
from parenv.experience.episodes import EpisodeStatistics, EvaluationResult
from parenv.experience.gradient import Gradient
from parenv.experience.rollout import Rollout
from parenv.policy.capabilities import refuse
from parenv.pool.arrival import Arrival
from parenv.pool.evaluation import Evaluator
from parenv.pool.events import Asked, Called, Delivered, Observer, Observers, Published, Resumed
from parenv.pool.gradients import Accumulator
from parenv.pool.opening import opened
from parenv.pool.pool_plan import Plan
from parenv.pool.second_look import looks
from parenv.pool.session_holder import HeldSession
from parenv.pool.statistics import Counters, DriverTimer, PoolStatistics


class PoolSession(HeldSession):
    """Workers, versions and rollout queue of a pool.

    Args:
        plan: Plan of the pool.

    Attributes:
        observation_space: Observation space of a sub-environment.
        action_space: Action space of a sub-environment.
        versions: Versions of the policies.
        evaluator: Evaluator of the versions.
        observers: Observers of all events. The second one can be exchanged, see :meth:`observe`.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__("the pool", plan.job.options)
        self.plan = plan
        self._counters = Counters()
        totals, job = self._counters.totals, plan.job.gradient
        self._timer = DriverTimer(totals.driver_seconds, totals.driver_processor_seconds)
        self.observers = Observers([plan.recorder, Observer()])
        self._accumulator = Accumulator(plan.gradient, job.layout, totals) if plan.gradient and job else None
        parts = opened(plan, self._counters, self.observers)
        self.closing, self._arena, self.versions, self._synchronization, self._crew, self._queue, spaces = parts
        self.evaluator = Evaluator(self._crew, self.versions, totals, self.observers.tell)
        self.observation_space, self.action_space = spaces
        self._looks = looks(plan, self.workers, self._queue.scheduler, self._counters)

    @property
    def prefetch(self) -> int:
        """Number of rollouts that a worker may run ahead now."""
        return self._queue.scheduler.prefetch

    @property
    def evaluation(self) -> EvaluationResult | None:
        """Result of the last evaluation that has ended."""
        return self.evaluator.last

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return self.versions.newest.number

    @property
    def identity(self) -> dict[str, Any]:
        """Layout and seed, which another pool must share to continue from a state of this one."""
        about = self.plan.about
        layout = {name: about[name] for name in ("mode", "parallelism", "rollout_length")}
        layout["sub-environments of each worker"] = list(self.workers.shares)
        layout["first env_id"] = self.workers.first_env_id
        return {"layout": layout, "seed": self.plan.job.seed}

    def next_rollout(self, deadline: float) -> Rollout[Any] | None:
        """Return the next rollout, or ``None`` if there is none until the deadline on the monotonic clock."""
        arrival, memory = self._next(deadline), self._arena.device_memory
        if arrival is None or memory is None:
            return arrival and arrival.rollout
        return arrival.rollout.to(memory.device)

    def next_gradient(self, deadline: float) -> Gradient | None:
        """Return the next gradient, or ``None`` if there is none until the deadline on the monotonic clock."""
        while (arrival := self._next(deadline)) is not None:
            assert self._accumulator is not None
            gradient = self._accumulator.add(arrival, self.version)
            if gradient is not None:
                return gradient
        return None

    def publish(self, policy: Any, settings: Mapping[str, Any], min_kl: Any, on: Any) -> int:
        """Write a new version once there is room for it. With ``min_kl``, skip policies that have not moved."""
        began, given = time.perf_counter(), self.versions.checked(policy)
        with self._timer.during("publishing"):
            if (min_kl, on) != (None, None):
                given = self.versions.moved(given, settings, min_kl, on)
            if not given:
                self._counters.totals.skipped_publishes += 1
                return self.version
            while not self.versions.has_room(self._versions_in_use()):
                self._queue.listen()
            version = self.versions.add(given, settings, self._queue.scheduler.publish)
        self.observers.tell(Published(version, began))
        return version

    def synchronize(self) -> int:
        """Have every worker load the newest version, and return its number."""
        newest = self.versions.newest
        synchronization = self._synchronization
        if synchronization is not None and synchronization.can_load(newest):
            with self._timer.during("calling"):
                synchronization.load(newest, self._queue.listen)
            return newest.number
        self.ask_workers("load", dict.fromkeys(range(len(self.workers.shares)), tuple(newest)), newest[:2])
        return newest.number

    def evaluate(self, episodes: int, deterministic: bool, in_place: bool = False) -> EpisodeStatistics:
        """Run episodes with the newest version, after the evaluation in progress beside the training."""
        if in_place:
            self._check_in_place()
        self.finish_evaluation()
        with self._timer.during("calling"):
            return self.evaluator.run(episodes, deterministic, in_place)

    def finish_evaluation(self) -> None:
        """Wait for the evaluation in progress beside the training."""
        with self._timer.during("calling"):
            self.evaluator.finish(self._queue.listen)

    def ask_environments(self, method: str, env_ids: Sequence[int] | None, *arguments: Any) -> tuple[Any, ...]:
        """Call a method of some sub-environments, and return the answers in the order of their env_ids.

        Args:
            method: ``"call"``, ``"get_attr"`` or ``"set_attr"``.
            env_ids: Sub-environments to call. ``None``: all.
            *arguments: Arguments of the method. The last one of ``"set_attr"`` is a value for all sub-environments, or
                a list or tuple with a value for each.

        Raises:
            ConfigurationError: There is no such env_id, or the numbers of values and env_ids differ.
        """
        workers, each = self.workers, list[dict[int, Any]]()
        chosen = _checked(range(workers.first_env_id, workers.first_env_id + sum(workers.shares)), env_ids)
        if method == "set_attr":
            *arguments, values = arguments  # type: ignore[assignment]
            each = [dict(zip(chosen, _one_for_each(values, len(chosen)), strict=True))]
        calls = each_worker(chosen, workers.shares, each, arguments, workers.first_env_id)
        with self._timer.during("calling"):
            # A recorded run can be repeated only if no rollout is in progress during a call.
            while self.plan.recorder.orders and self._queue.scheduler.versions_in_use():
                self._queue.listen()
            self.observers.tell(Called(method))
            answers = self._crew.ask(method, calls)
        by_env_id = {
            workers.env_ids(worker)[column]: answer
            for worker, (columns, *_) in calls.items()
            for column, answer in zip(columns, answers[worker] or [None] * len(columns), strict=True)
        }
        return tuple(by_env_id[env_id] for env_id in chosen)

    def ask_workers(self, method: str, arguments: Mapping[int, tuple[Any, ...]], *weights: Any) -> dict[int, Any]:
        """Call workers, see :meth:`~parenv.crew.crew.Crew.ask`. The time counts as calling."""
        with self._timer.during("calling"):
            return self._crew.ask(method, arguments, *weights)

    def observe(self, timeline: Observer) -> None:
        """Close the former timeline, and send events to this one from now on."""
        self.observers[1].close()
        self.observers[1] = timeline

    def under_way(self) -> Mapping[int, int]:
        """Return the number of rollouts in progress or not yet yielded, by worker."""
        return self._queue.under_way()

    def statistics(self) -> PoolStatistics:
        """Return the statistics so far."""
        traffic, collecting_s = self.workers.placement.traffic(), self._timer.collecting_s
        return self._counters.statistics(
            seconds=self._timer.seconds,
            env_steps_per_second=self._counters.totals.env_steps / collecting_s if collecting_s > 0 else 0.0,
            policy_version=self.version,
            workers_alive=self.workers.placement.alive(),
            worker_restarts=self._crew.restarts,
            messages=self.workers.messages,
            hosts=traffic.hosts,
            bytes_sent=traffic.sent,
            bytes_received=traffic.received,
            refused_connections=dict(traffic.refused),
            evaluations=self.evaluator.begun,
            evaluation=self.evaluation,
            frozen_policies=self.versions.frozen,
        )

    def state(self) -> dict[str, Any]:
        """Return versions and counters as plain data."""
        return {
            "policy_version": self.version,
            "settings": self.versions.state(),
            "evaluations": self.evaluator.begun,
            "worker_restarts": self._crew.restarts,
            "statistics": self._counters.state(),
            "episodes_in_progress": self._queue.in_progress.get_state(),
            "seconds": self._timer.seconds,
            "collecting_seconds": 0.0 if math.isnan(self._timer.collecting_s) else self._timer.collecting_s,
        }

    def resume(self, state: Mapping[str, Any], policies: Mapping[str, Any]) -> None:
        """Continue from the state of another pool, with these policies, see :meth:`Versions.resume`."""
        if not math.isnan(self._timer.collecting_s) or self.version:
            raise ConfigurationError(
                "load_state_dict needs a pool that has not delivered a rollout or published a policy. Make a new pool."
            )
        self.versions.resume(state["policy_version"], state["settings"], policies)
        self._queue.scheduler.resume(state["policy_version"])
        self.evaluator.begun, self._crew.restarts = state["evaluations"], state["worker_restarts"]
        self._counters.load(state["statistics"])
        if "episodes_in_progress" in state:  # A state of parenv 0.2.0 has none.
            self._queue.in_progress.set_state(state["episodes_in_progress"])
        self._timer.resume(state["seconds"], state["collecting_seconds"])
        self.observers.tell(Resumed())

    def _check_in_place(self) -> None:
        if self.plan.job.is_named:
            refuse("in place")
        if self.plan.recorder.orders:
            raise ConfigurationError(
                "in_place=True cannot be used with record or replay, because it cuts training episodes. Leave one out."
            )

    def _versions_in_use(self) -> set[int]:
        return self._queue.scheduler.versions_in_use() | self.evaluator.versions_in_use()

    def _next(self, deadline: float) -> Arrival | None:
        self.evaluator.collect()
        self._timer.asked()
        self.observers.tell(Asked())
        with self._timer.during("waiting"):
            arrival = None if self.plan.recorder.is_over else self._queue.next(deadline)
        self.observers.tell(Delivered(arrival))
        if arrival is not None and self._looks:
            self._looks = [look for look in self._looks if not look.note()]
        return arrival


def _checked(there: range, env_ids: Sequence[int] | None) -> list[int]:
    chosen = list(there) if env_ids is None else [int(env_id) for env_id in env_ids]
    for env_id in chosen:
        if env_id not in there:
            raise ConfigurationError(f"env_ids must be between {there[0]} and {there[-1]}, got {env_id}")
    if len(set(chosen)) < len(chosen):
        raise ConfigurationError(f"env_ids must be different, got {chosen}")
    return chosen


def _one_for_each(values: Any, count: int) -> Sequence[Any]:
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        raise ConfigurationError(f"set_attr must get one value for each of {count} sub-environments, got {len(values)}")
    return values
