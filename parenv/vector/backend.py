"""The workers of a vector env: wake-ups for stepping, messages for everything else."""

from __future__ import annotations

import math
import operator
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from parenv.crew.crew import Crew, Product
from parenv.crew.events import Back, Event, Lost, StepFailed
from parenv.crew.failures import ended_by, failure_of_worker
from parenv.crew.open_call import OpenCall
from parenv.crew.workers import Workers
from parenv.experience.failures import EnvFailures, FailureLog
from parenv.experience.metrics import VECTOR_ENV, metrics_of
from parenv.memory.layout import leaves_as_data
from parenv.memory.maps import StepBufferMap
from parenv.memory.order import fence, full_fence
from parenv.memory.status_slot import status_slots
from parenv.memory.step_buffer import StepBuffer, StepBufferSpec
from parenv.placement.base import Launch
from parenv.process.spinning import Spinner
from parenv.process.wake_up import Poller, sleep
from parenv.protocol.messages import Actions, Message, Rows, SideData, StepReady
from parenv.transport.interrupts import MAX_WAIT_S
from parenv.vector.caller_worker import CallerWorker
from parenv.vector.connections import Connections
from parenv.vector.first_worker import FirstWorker
from parenv.vector.joined_spaces import rebuilt
from parenv.vector.requests import Requests
from parenv.vector.vector_plan import VectorPlan

MESSAGE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class VectorStatistics:
    """Statistics of a :class:`~parenv.ParallelVectorEnv` since its start.

    Args:
        worker_restarts: Number of worker processes that replaced a dead one.
        spinning_seconds: Seconds for which this process polled for results before it slept, see ``spin_us``.
        workers_spinning_seconds: Seconds for which workers polled for requests before they slept, summed over workers.
        lost_episodes: Number of episodes that were lost with a worker, by the reason in ``infos["ended_by"]``.
        lost_episodes_by_env: The same for each sub-environment, by env_id.
        failures: Failures of sub-environments and workers, as :class:`~parenv.statistics.EnvFailures`, most often
            failing ones first. Exceptions that ``step`` has raised are not counted.

    >>> VectorStatistics(worker_restarts=0, spinning_seconds=0.5, workers_spinning_seconds=1.5).spinning_seconds
    0.5
    """

    worker_restarts: int
    spinning_seconds: float
    workers_spinning_seconds: float
    lost_episodes: Mapping[str, int] = field(default_factory=dict)
    lost_episodes_by_env: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    failures: Sequence[EnvFailures] = ()

    def metrics(self) -> dict[str, float]:
        """Return the statistics as a flat dict, see :meth:`parenv.AsyncWorkerPool.metrics`."""
        return metrics_of(VECTOR_ENV, self)


class Restarted(NamedTuple):
    """A restart of a worker.

    Args:
        env_ids: Its sub-environments.
        ended_by: Reason for the end of the earlier process.
        unset: Names of attributes by env_id whose values could not be set again.
    """

    env_ids: list[int]
    ended_by: str
    unset: Mapping[int, Sequence[str]]


class Backend:
    """Worker processes, on this machine or on hosts, and the share that this process steps.

    Each share has a wake-up. This process serves the wake-up of its own share while it waits for the workers. With
    ``num_workers=0``, that is the only share.

    Args:
        plan: Checked plan.
        first: The first worker, if it has started already. Default: ``None``.

    Attributes:
        workers: Worker processes; none with ``num_workers=0``.
        spaces: Spaces of each worker's sub-environments.
        first: Object with the metadata and the render mode of the first sub-environment.
        side_data: Data that did not fit into the step buffer.
        step_errors: Exceptions of sub-environments during steps.
        warn: Function that shows each warning of workers once.
        failures: Failures of workers, and lost episodes.
        closed: Whether the backend has ended, because of a call to :meth:`close` or because a worker was not restarted.
    """

    def __init__(self, plan: VectorPlan, first: FirstWorker | None = None) -> None:
        self._plan, self._shares = plan, plan.worker_shares
        job, all_shares, count = plan.job, plan.job.shares, len(plan.worker_shares)
        if first is None:
            self._connections = Connections(plan, job, len(all_shares))
        else:
            self._connections = first.connections
            self._connections.use(job)
        self._placement, self._memory = self._connections.placement, self._connections.memory
        head = self._connections.head
        _, said, _, _ = status_slots(head, len(all_shares)).T
        self._said = said[:count]
        self._status = [self._connections.status(worker) for worker in range(len(all_shares))]
        if first is None:
            limit = job.options.max_memory_bytes if count else None
            self.workers = Workers(self._placement, self._status, self._shares, max_memory_bytes=limit)
        else:
            self.workers = first.take(plan)
        self.side_data: deque[SideData] = deque()
        self.step_errors: deque[BaseException] = deque()
        self.warn = self.workers.warn
        self._spoke, self._any_infos = self._status[0].spoke, self._status[0].any_infos
        self._signals, begun = self._connections.signals, [] if first is None else [first.wake_up]
        wake_ups = [*begun, *map(self._connections.wake_up, range(len(begun), count))]
        self._requests = Requests(all_shares, wake_ups, self._connections.wake_ups)
        self.number, self.request, self.expect = self._requests.number, self._requests.of, self._signals.expect
        self._answers = self._connections.answers
        self._poller: Poller | None = None
        self._spun_ns = memoryview(bytearray(8)).cast("q")
        notified = self._signals.notified
        self._spinner = None if job.spinning is None else Spinner(job.spinning, notified, self._spun_ns)
        self._crew = Crew(self.workers, job.options, self._launch, await_hosts=False)
        self.calls = self._crew.calls
        self._restarted: list[Restarted] = []
        self._reasons: dict[int, str] = {}
        """Reason for which each worker was lost first since its last restart."""
        self.failures = FailureLog()
        self._dtypes: Any = None
        self._caller: CallerWorker | None = None
        self.closed = False
        try:
            # This process makes its share while the workers make theirs.
            ready: list[StepReady] = self._crew.start(self._make_own_share) if count else []
            if not count:
                self._make_own_share()
            self.spaces = rebuilt(ready) + ([] if self._caller is None else [self._caller.spaces])
            self.first: Any = ready[0] if ready else self.envs[0]
        except BaseException:
            self.close(job.options.close_timeout_s)
            raise

    def _make_own_share(self) -> None:
        count = len(self._shares)
        if self._plan.caller_rows:
            self._caller = CallerWorker(self._plan.job, count, self._status[count], self._hear, self.warn)
            self._requests.add(self._caller)

    @property
    def envs(self) -> list[Any]:
        """The sub-environments that this process steps."""
        return [] if self._caller is None else self._caller.envs

    @property
    def has_infos(self) -> bool:
        """Tell whether answers since the last :meth:`request_all` contain an info."""
        return self._any_infos[0] != 0

    @property
    def worker_restarts(self) -> int:
        """Number of worker processes that replaced a dead one."""
        return self._crew.restarts

    def statistics(self) -> VectorStatistics:
        """Return the restarts and the times of polling so far."""
        spun_ns = sum(status.spun_ns[0] for status in self._status)
        lost, failures = self.failures.lost_by_reason(), self.failures.failures()
        polled = self._spun_ns[0] * 1e-9, spun_ns * 1e-9
        return VectorStatistics(self.worker_restarts, *polled, lost, self.failures.lost_by_env(), failures)

    def lay_out(self, spec: StepBufferSpec) -> StepBuffer:
        """Make the step buffer and send its place to every worker."""
        nbytes = spec.fields()[1]
        offset = self._memory.size
        self._memory.grow(offset + nbytes)
        self._memory.reserve(offset, nbytes - spec.num_envs * spec.info_bytes)
        leaves = leaves_as_data(spec.observations), leaves_as_data(spec.actions)
        self._rows = Rows(offset, spec.num_envs, *leaves, spec.info_bytes)
        mapping = self._memory.map()
        self._step_buffer = StepBuffer(spec, mapping, offset)
        self._requests.use(self._step_buffer)
        self._placement.lay_out_step_buffer(StepBufferMap(mapping, spec, offset, self._shares))
        self._crew.serve(Product(self._briefing, self._hear, self._unanswered))
        if self._caller is not None:
            self._caller.use(self._step_buffer)
        return self._step_buffer

    def request_all(self) -> None:
        """Request a step of every sub-environment, while no other request is in progress."""
        # A worker may serve the request as soon as it has a number.
        self._any_infos[0] = 0
        self._requests.of_all()

    def give(self, actions: Actions, env_ids: Sequence[int]) -> None:
        """Send actions that do not fit into the step buffer, or their dtypes, to the workers of sub-environments."""
        if actions.dtypes is not None:
            self._dtypes = actions.dtypes
        for worker in self._requests.workers(env_ids):
            if worker < len(self._shares):
                self.workers.say(worker, actions)
            elif self._caller is not None:
                self._caller.take(actions)

    def serve_own(self) -> bool:
        """Step the share of this process if a request is pending; return whether there are workers to wait for."""
        if self._caller is not None and self._caller.pending:
            self._caller.serve()
        return bool(self._shares)

    def step_here(self) -> None:
        """Step every sub-environment in this process, without a wake-up."""
        assert self._caller is not None
        self._any_infos[0] = 0
        self._caller.step_all()

    def listen(self, timeout_s: float) -> None:
        """Wait for workers, at most up to the limit. The caller has called :meth:`expect` and looked at the rows."""
        due_s = self._crew.next_s - time.monotonic()
        if due_s > 0 and self._spinner is not None and self._spinner.heard(0):
            return
        if self._poller is None:
            self._poller = self._placement.poller(self._answers.fileno())
        ready = sleep(self._signals, self._poller, max(0.0, min(timeout_s, due_s, MAX_WAIT_S)))
        woken = [found for found in ready if found[0] == self._answers.fileno()]
        if woken:
            self._answers.take()
            if self._spinner is not None:
                self._spinner.woke()
        if due_s <= 0 or len(ready) > len(woken):
            self._receive(0.0)

    def catch_up(self) -> bool:
        """Receive all messages that workers have counted; tell whether there were any."""
        # The caller has read request numbers, and will now read the rows that they guard.
        fence()
        if not self._spoke[0]:
            return False
        # A message that is counted from here on sets the number again.
        self._spoke[0] = 0
        full_fence()
        try:
            return self._receive_counted()
        except BaseException:
            self._spoke[0] = 1
            raise

    def _receive_counted(self) -> bool:
        # A message may arrive before its sender has counted it, so fewer may be counted than were received.
        received, deadline = self.workers.received, math.inf
        step_timeout_s = self._plan.job.options.step_timeout_s or math.inf
        wait_s = min(MESSAGE_TIMEOUT_S, step_timeout_s)
        while (said := self._said.tolist()) != received and any(late := list(map(operator.gt, said, received))):
            now = time.monotonic()
            if deadline <= now:
                limit = f"step_timeout_s={wait_s:g}" if wait_s == step_timeout_s else f"{wait_s:g}"
                self._crew.time_out(late.index(True), limit)
            if not now < deadline < math.inf:
                deadline = now + wait_s
            self._receive(deadline - now)
        return deadline < math.inf

    def restarted(self) -> list[Restarted]:
        """Return the restarts since the last call."""
        restarted, self._restarted = self._restarted, []
        return restarted

    def begin(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> OpenCall:
        """Call a method on workers; this process answers for its own share at once."""
        theirs = {worker: values for worker, values in arguments.items() if worker < len(self._shares)}
        call = self.calls.begin(method, theirs)
        caller = len(self._shares)
        if self._caller is not None and (own := arguments.get(caller)) is not None:
            theirs[caller], call.numbers[caller] = own, 0
            call.answers[caller], call.errors[caller] = self._caller.answer(method, *own)
        return call

    def close(self, timeout_s: float) -> None:
        """Close the environments of this process and end the workers. Idempotent."""
        if self.closed:
            return
        self.closed = True
        try:
            if self._caller is not None:
                self._caller.close()
        finally:
            try:
                self._crew.close(timeout_s)
            finally:
                self._requests.close()
                self._connections.close()

    def _hear(self, event: Event) -> None:
        match event:
            case SideData():
                self.side_data.append(event)
            case StepFailed(error):
                self.step_errors.append(error)
            case Lost(worker, reason):
                self._reasons.setdefault(worker, ended_by(reason))
                self.failures.add(failure_of_worker(worker, reason))
                self._leave_out(worker)
            case Back(worker, _, unset):
                self._step_buffer.info_kinds[self._rows_of(worker)] = 0
                self._requests.take_in(worker)
                env_ids, ended = list(self.workers.env_ids(worker)), self._reasons.pop(worker)
                # A process that was replaced before anything was requested from it is no restart of its own.
                others = [one for one in self._restarted if one.env_ids != env_ids]
                self._restarted = [*others, Restarted(env_ids, ended, unset)]

    def _leave_out(self, worker: int) -> None:
        """Send no requests to a worker that has ended, and wait for no further messages from it."""
        self._requests.leave_out(worker)
        self._said[worker] = self.workers.received[worker]
        # The poller may hold the socket of the fork server, which is closed if the fork server has ended.
        self._poller = None

    def _launch(self, worker: int | None) -> Launch:
        if worker is not None:
            self._requests.put(worker, self._connections.wake_up(worker))
        self._poller = None
        return self._connections.launch()

    def _briefing(self, worker: int) -> Iterable[Message]:
        return [self._rows] if self._dtypes is None else [self._rows, Actions(self._dtypes, b"")]

    def _unanswered(self, worker: int) -> bytes | None:
        rows = self._rows_of(worker)
        finished = self._step_buffer.finished[rows].tobytes()
        return None if finished == self._step_buffer.requested[rows].tobytes() else finished

    def _rows_of(self, worker: int) -> slice:
        env_ids = self.workers.env_ids(worker)
        return slice(env_ids.start, env_ids.stop)

    def _receive(self, timeout_s: float) -> None:
        try:
            self._crew.listen(timeout_s)
        except Exception:
            # The crew has given up a worker, so no step can be completed.
            self.close(self._plan.job.options.close_timeout_s)
            raise
