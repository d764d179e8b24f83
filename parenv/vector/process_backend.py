"""Sub-environments stepped by worker processes: doorbells for stepping, messages for everything else."""

from __future__ import annotations

import logging
import math
import operator
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from parenv.errors import WorkerDiedError, WorkerError, WorkerTimeoutError, span
from parenv.memory.board import Board, BoardSpec
from parenv.memory.layout import leaves_as_data
from parenv.memory.maps import BoardMap
from parenv.memory.order import fence
from parenv.memory.progress import WAITING_FOR_A_HOST, Progress, header_bytes, status_slots
from parenv.memory.shared import SharedMemory
from parenv.placement.base import KILL_TIMEOUT_S, Launch
from parenv.process.doorbell import ALL, ECHO, Doorbell
from parenv.protocol.messages import Actions, Ready, Rows, SideData
from parenv.supervision.launch import local_launch, stepping_placement
from parenv.supervision.pickling import pickled
from parenv.supervision.stacks import timeout_error
from parenv.supervision.workers import Workers
from parenv.transport.waiting import MAX_WAIT_S
from parenv.vector.backend import Members
from parenv.vector.configuration import VectorPlan
from parenv.vector.spaces import rebuilt
from parenv.worker.job import StepJob
from parenv.worker.process import WORKER_ENTRY

MESSAGE_TIMEOUT_S = 60.0
MAX_DEATHS_IN_A_ROW = 3
_log = logging.getLogger("parenv")


@dataclass
class _Question:
    """A call on several workers, and the number it has with each."""

    method: str
    arguments: dict[int, tuple[Any, ...]]
    numbers: dict[int, int]


class ProcessBackend:
    """Worker processes, on this machine or on hosts.

    Args:
        plan: checked.
        job: what they are to make.
    """

    def __init__(self, plan: VectorPlan, job: StepJob) -> None:
        workers = len(plan.shares)
        self._plan = plan
        payload = pickled({"env_fns": plan.factories, "workers": plan.options}, job)
        self._with_launch = local_launch(WORKER_ENTRY, payload, plan.options)
        self._placement = stepping_placement(WORKER_ENTRY, plan.placement, plan.options)
        # A host that does not say that a worker has ended is itself known to be lost only after its silence.
        self._kill_timeout_s = KILL_TIMEOUT_S + 2.0 * self._placement.silence_s
        self._memory = SharedMemory(header_bytes(workers))
        head = self._memory.map()
        self._progress = [Progress(head, worker) for worker in range(workers)]
        _, self._said, self._has_infos, self._heartbeats = status_slots(head, workers).T
        self._bells = [self._placement.bell(worker) for worker in range(workers)]
        self._answers = Doorbell()
        self.workers = Workers(self._placement, self._progress, plan.shares)
        self._first = [sum(plan.shares[:worker]) for worker in range(workers)]
        self._worker_of, self._firsts = np.repeat(np.arange(workers), plan.shares), np.repeat(self._first, plan.shares)
        self._ordered = [0] * workers
        self._restarted: list[list[int]] = []
        self._deaths, self._restarted_at = [0] * workers, [-1] * workers
        self._hung: dict[int, WorkerTimeoutError] = {}
        self._questions: list[_Question] = []
        self._dtypes: Any = None
        self.closed = False
        try:
            ready: list[Ready] = self.workers.start(self._launch(), plan.options.start_timeout_s)
            first = ready[0].extras
            self.members = Members(rebuilt(ready), first["metadata"], first["render_mode"])
        except BaseException:
            self.close(plan.options.close_timeout_s)
            raise
        self._watch()

    @property
    def has_infos(self) -> bool:
        """Whether there is an info among the last answers."""
        return bool(self._has_infos.any())

    @property
    def has_side_data(self) -> bool:
        """Whether there is something in :meth:`side_data`."""
        return bool(self.workers.side_data)

    @property
    def failing(self) -> bool:
        """Whether there is something in :meth:`errors`."""
        return bool(self.workers.step_errors)

    def lay_out(self, spec: BoardSpec) -> Board:
        """Make the board, and tell every worker where it is."""
        nbytes = spec.fields()[1]
        offset = self._memory.size
        self._memory.grow(offset + nbytes)
        self._memory.reserve(offset, nbytes - spec.num_envs * spec.info_bytes)
        leaves = leaves_as_data(spec.observations), leaves_as_data(spec.actions)
        self._rows = Rows(offset, spec.num_envs, *leaves, spec.info_bytes)
        mapping = self._memory.map()
        self._board = Board(spec, mapping, offset)
        self._placement.lay_out_board(BoardMap(mapping, spec, offset, self._plan.shares))
        for worker in range(len(self._bells)):
            self.workers.say(worker, self._rows)
        return self._board

    def request_all(self) -> None:
        """Have every sub-environment take a step."""
        for bell in self._bells:
            bell.ring(ALL)

    def request(self, env_ids: Sequence[int], reset: bool = False) -> None:
        """Have some of them take a step, or begin an episode."""
        ids = np.asarray(env_ids, np.int64)
        workers = self._worker_of[ids]
        counts = np.bincount(workers, minlength=len(self._bells))
        for worker in counts.nonzero()[0].tolist():
            if counts[worker] == self._plan.shares[worker] and not reset:
                self._bells[worker].ring(ALL)
            else:
                orders = ids[workers == worker] - self._first[worker]
                self._order(worker, ~orders if reset else orders)

    def _order(self, worker: int, orders: Any) -> None:
        """Put orders into a worker's ring, which has room for one to each of its rows."""
        first, size, n = self._first[worker], self._plan.shares[worker], len(orders)
        begin = self._ordered[worker] % size
        ring = self._board.orders[first : first + size]
        fitting = min(n, size - begin)
        ring[begin : begin + fitting] = orders[:fitting]
        if fitting < n:
            ring[: n - fitting] = orders[fitting:]
        self._ordered[worker] += n
        self._bells[worker].ring(n)

    def give(self, actions: Actions, env_ids: Sequence[int]) -> None:
        """Say something about the actions that come next, to the workers of these sub-environments."""
        if actions.dtypes is not None:
            self._dtypes = actions.dtypes
        for worker in sorted(set(self._worker_of[list(env_ids)].tolist())):
            self.workers.say(worker, actions)

    def echo(self) -> Callable[[], bool]:
        """Have every worker wake this process, and do nothing else; what is returned says whether all have."""
        before = self._heartbeats.copy()
        for bell in self._bells:
            bell.ring(ECHO)
        return lambda: bool((self._heartbeats != before).all())

    def listen(self, timeout_s: float) -> None:
        """Wait until something has been answered or has happened, at most up to the limit."""
        ready = {descriptor for descriptor, _ in self._poll.poll(min(timeout_s, MAX_WAIT_S) * 1000.0)}
        if self._answers.fileno() in ready:
            self._answers.take()
        if len(ready) > 1 or (ready and self._answers.fileno() not in ready):
            self._hear(0.0)

    def catch_up(self) -> bool:
        """Hear all that workers have said by now, if any. A message may be heard before its sender has counted it."""
        fence()  # Whoever calls this has seen numbers on the board, and believes them next.
        heard, deadline = self.workers.heard, math.inf
        while (said := self._said.tolist()) != heard and any(late := list(map(operator.gt, said, heard))):
            deadline = min(deadline, time.monotonic() + MESSAGE_TIMEOUT_S)
            self._hear_before(deadline, late.index(True), f"{MESSAGE_TIMEOUT_S:g}")
        return deadline < math.inf

    def side_data(self) -> list[SideData]:
        """What did not go on the board since the last time."""
        side_data = list(self.workers.side_data)
        self.workers.side_data.clear()
        return side_data

    def errors(self) -> list[BaseException]:
        """Exceptions of sub-environments since the last time."""
        errors: list[BaseException] = list(self.workers.step_errors)
        self.workers.step_errors.clear()
        return errors

    def restarted(self) -> list[list[int]]:
        """Workers that were started again since the last time."""
        restarted, self._restarted = self._restarted, []
        return restarted

    def begin(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> _Question:
        """Call a method on workers."""
        question = _Question(method, dict(arguments), self.workers.begin(method, arguments))
        self._questions.append(question)
        return question

    def answered(self, asked: _Question) -> bool:
        """Whether all have answered."""
        return self.workers.answered(asked.numbers)

    def answers(self, asked: _Question) -> dict[int, Any]:
        """What they answered."""
        self._questions.remove(asked)
        return self.workers.answers(asked.numbers)

    def forget(self, asked: _Question) -> None:
        """Nobody will ask for these answers any more."""
        self._questions.remove(asked)
        self.workers.forget(asked.numbers)

    def waits_for(self, asked: _Question) -> list[int]:
        """The workers that have not answered."""
        return [worker for worker in asked.numbers if not self.workers.answered_by(asked.numbers, worker)]

    def cut(self, env_ids: Sequence[int], limit: str) -> None:
        """Kill the workers of these sub-environments, because they do not answer; their stacks join the error."""
        for worker in sorted(set(self._worker_of[list(env_ids)].tolist())):
            self._cut(worker, limit)

    def close(self, timeout_s: float) -> None:
        """End all. Idempotent."""
        if self.closed:
            return
        self.closed = True
        try:
            self.workers.close(timeout_s)
        finally:
            self._memory.close()
            for bell in (*self._bells, self._answers):
                bell.close()

    def _watch(self) -> None:
        self._poll = self._placement.poller(self._answers.fileno())

    def _launch(self) -> Launch:
        launch = self._with_launch(self._memory.fd)
        return replace(launch, descriptors=self._answers.descriptors)

    def _hear(self, timeout_s: float) -> None:
        try:
            self.workers.listen(timeout_s)
        except WorkerDiedError as error:
            self._died(error)
        except Exception as error:
            raise self._give_up(error) from error.__cause__

    def _hear_before(self, deadline: float, worker: int, limit: str) -> None:
        """Hear what there is; a worker that is awaited until then is cut."""
        left = deadline - time.monotonic()
        if left > 0:
            self._hear(left)
        elif self.workers.doing(worker) == WAITING_FOR_A_HOST:
            raise self._give_up(self._without_host(worker, limit))
        else:
            self._cut(worker, limit)

    def _without_host(self, worker: int, limit: str) -> WorkerTimeoutError:
        env_ids = self.workers.env_ids(worker)
        return WorkerTimeoutError(
            f"worker {worker} (env_ids {span(env_ids)}) has found no host with room for it within {limit} s. Start "
            "another, or raise WorkerOptions.start_timeout_s",
            worker=worker,
            env_ids=env_ids,
            doing=WAITING_FOR_A_HOST,
        )

    def _cut(self, worker: int, limit: str) -> None:
        self._hung[worker] = timeout_error(self.workers, worker, limit)
        self.workers.signal(worker, signal.SIGKILL, alone=False)
        deadline = time.monotonic() + self._kill_timeout_s
        while worker in self._hung:
            if time.monotonic() > deadline:
                raise self._give_up(WorkerTimeoutError(f"worker {worker} could not be killed", worker=worker))
            self._hear(0.1)

    def _died(self, error: WorkerError) -> None:
        worker = error.worker
        error = self._hung.pop(worker, error)
        answered = int(self._board.finished[self._first[worker]])
        self._deaths[worker] = 1 if answered > self._restarted_at[worker] else self._deaths[worker] + 1
        if self._plan.on_worker_death == "raise" or self._deaths[worker] > MAX_DEATHS_IN_A_ROW:
            # Its end is no news where it was killed for what is raised now.
            error.__suppress_context__ = True
            raise self._give_up(error)
        _log.warning("%s It is restarted.", str(error))
        if self._restart(worker):
            for question in self._questions:
                self._ask_again(question, worker, error)

    def _restart(self, worker: int) -> bool:
        """Put another process in the place of one that is gone.

        Returns:
            Whether that is done; if not, it died as well, and what is to be done has been done for its successor.
        """
        plan, board, workers = self._plan, self._board, self.workers
        env_ids = np.arange(self._first[worker], self._first[worker] + plan.shares[worker])
        self._bells[worker].close()
        self._bells[worker] = self._placement.bell(worker)
        self._said[worker] = self._ordered[worker] = 0
        generation = workers.restart(self._launch(), worker)
        self._watch()
        deadline = time.monotonic() + plan.options.start_timeout_s
        limit = f"start_timeout_s={plan.options.start_timeout_s:g}"
        while workers.generation(worker) == generation and not workers.is_ready(worker):
            self._hear_before(deadline, worker, limit)
        if workers.generation(worker) != generation:
            return False
        board.finished[env_ids] = board.requested[env_ids]
        self._restarted_at[worker] = int(board.finished[env_ids[0]])
        board.info_kinds[env_ids] = 0
        workers.say(worker, self._rows)
        if self._dtypes is not None:
            workers.say(worker, Actions(self._dtypes, b""))
        asked: dict[int, int] = {}
        if plan.mode is AutoresetMode.SAME_STEP:
            # Not one of the questions that are asked again of a successor, which is reset by itself.
            asked = workers.begin("reset", {worker: (range(len(env_ids)), [None] * len(env_ids), None)})
            while workers.generation(worker) == generation and not workers.answered(asked):
                self._hear_before(deadline, worker, limit)
            if workers.generation(worker) != generation:
                workers.forget(asked)
                return False
        self._restarted.append(env_ids.tolist())
        workers.answers(asked)
        return True

    def _ask_again(self, question: _Question, worker: int, error: WorkerError) -> None:
        """A reset is asked again of the new process; other calls meant the environments that are gone."""
        if self.workers.answered_by(question.numbers, worker):
            return
        if question.method == "reset":
            question.numbers |= self.workers.begin("reset", {worker: question.arguments[worker]})
        else:
            self.workers.fail(question.numbers[worker], error)

    def _give_up(self, error: Exception) -> Exception:
        """Close, because nothing can be done any more; the error to raise."""
        self.close(self._plan.options.close_timeout_s)
        return error
