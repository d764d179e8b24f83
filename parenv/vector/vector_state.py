"""The state of an open vector env, apart from the public class, so that it can be closed when that class is garbage."""

from __future__ import annotations

import contextlib
import copy
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import logger

from parenv.crew.failures import env_id_of, raise_all
from parenv.crew.partition import each_worker
from parenv.errors import SubEnvironmentError
from parenv.memory.step_buffer import RESET
from parenv.memory.trees import ALL
from parenv.placement.base import drained
from parenv.process.forks import Owner
from parenv.process.user_code import dumps
from parenv.protocol.messages import Actions
from parenv.vector.arguments import each_action
from parenv.vector.backend import Backend
from parenv.vector.episode_ends import EpisodeEnds
from parenv.vector.first_worker import FirstWorker
from parenv.vector.joined_spaces import join_spaces, spaces_of_custom_classes, step_buffer_spec
from parenv.vector.lost_episodes import LostEpisodes
from parenv.vector.results import Results
from parenv.vector.vector_plan import VectorPlan

StepResults = tuple[Any, Any, Any, Any, dict[str, Any]]


class VectorState:
    """A backend with its step buffer, and the state of every request.

    Args:
        plan: Checked plan.
        copy: Whether observations of all rows are copies, or arrays over the step buffer.
        first: The first worker, if it has started already. Default: ``None``.

    Attributes:
        owner: Process that may use and close the session.
        under_way: Number of sub-environments that have an action whose results the user has not received.
        logs_errors: Whether each exception of a sub-environment is logged by Gymnasium's logger.
        read_infos: Function that returns the infos of all or of some sub-environments. Default: in Gymnasium's form.
        stopped: Function that returns the exception for every further wait, because another thread closes the session.
    """

    stopped: Callable[[], BaseException] | None = None

    def __init__(self, plan: VectorPlan, copy: bool, first: FirstWorker | None = None) -> None:
        self._plan, self.owner = plan, Owner("the vector env")
        self.backend = Backend(plan, first)
        try:
            env, autoreset = self.backend.first, plan.job.autoreset
            given, of_workers = plan.spaces, self.backend.spaces
            is_known_here = plan.placement is None and plan.job.options.python is None
            if given is None and is_known_here and plan.worker_shares:
                given = spaces_of_custom_classes(of_workers, plan.job.factories, self.backend.envs)
            self.spaces = join_spaces(of_workers, plan.observation_mode, given, plan.class_name)
            self.metadata, self.render_mode = {**env.metadata, "autoreset_mode": autoreset.mode}, env.render_mode
            self._step_buffer = self.backend.lay_out(step_buffer_spec(self.spaces, plan.num_envs, autoreset))
        except BaseException:
            # The workers run already, and nothing else would end them.
            self.close(plan.job.options.close_timeout_s)
            raise
        num_envs = plan.num_envs
        self._all = range(num_envs)
        self._results = Results(
            self._step_buffer, self.spaces.first_observation, copy, plan.job.options, plan.strict_infos
        )
        self.read_infos = self._results.infos
        wanted = plan.job.options.restart is not None
        self._lost = LostEpisodes(self._step_buffer, self._results, autoreset, wanted)
        self._ends = EpisodeEnds(self._step_buffer, autoreset)
        self._tracks_ends = self._lost.wanted or self._ends.binding
        self._in_flight = np.zeros(num_envs, bool)
        self.logs_errors = True
        self.under_way = 0
        self._had_infos = self._late = self._stepping = False
        self._resetting: Sequence[int] = ()
        self._ready = np.zeros(0, np.int64)
        self._call: Any = None
        self._deferred: tuple[Any] | None = None

    def begin_step(self, actions: Any) -> None:
        """Begin a step of all. After a wait that timed out, the step begins when the late results have arrived."""
        if self._late and self._is_over(self._settled):
            self._drop_late_results()
        if self._ends.binding and not self._late:
            self._ends.check(ALL)
        self._lost.take_back()
        self._take_restarts()
        self._stepping = True
        if self._late:
            # Workers may still read the actions of the late step. The caller may change its arrays until they are done.
            self._deferred = (copy.deepcopy(actions),)
            return
        self._write_actions(actions, None)
        if self._plan.worker_shares and not self._lost.broken:
            self.backend.request_all()
            return
        self.backend.number(ALL)
        # A request to all would also step the rows whose lost episodes are answered here.
        if self._lost.broken:
            self._request(self._all)

    def end_step(self, timeout: float | None, name: str) -> StepResults:
        """Wait for the step of all."""
        if self._deferred is not None:
            began = time.monotonic()
            (actions,), self._deferred = self._deferred, None
            self._wait(self._settled, timeout, name)
            self._drop_late_results()
            self.begin_step(actions)
            timeout = None if timeout is None else max(0.0, began + timeout - time.monotonic())
        if self._plan.worker_shares:
            self._wait(self._settled, timeout, name)
        else:
            self._step_here()
        if self._tracks_ends:
            # An exception of one sub-environment discards the results of the others, so note their ends first.
            self._ends.note(ALL)
        has_infos = self._take_messages()
        step_buffer = self._step_buffer
        infos = self._lost.add_to(self.read_infos(None) if has_infos else {}, self._all)
        if self._tracks_ends:
            self._lost.delivered(self._all)
        # Workers overwrite these arrays in the next step.
        flags = step_buffer.terminated.copy(), step_buffer.truncated.copy()
        return self._results.observations(None), step_buffer.rewards.copy(), *flags, infos

    def begin_reset(self, env_ids: Sequence[int], seeds: Sequence[int | None], options: Any) -> None:
        """Begin an episode in some sub-environments.

        Args:
            env_ids: Sub-environments to reset.
            seeds: One seed for each sub-environment of the vector env.
            options: Options for all, or a list with one entry for each sub-environment of the vector env.
        """
        self._take_restarts()
        self._lost.take_back()
        self._lost.forget(env_ids)
        self._resetting = env_ids
        is_plain = self._settled() and options == {} and all(seeds[env_id] is None for env_id in env_ids)
        # The next step waits for the reset by its number, if the wait for the reset times out.
        self.backend.number(env_ids)
        if is_plain:
            self.backend.request(env_ids, RESET)
        else:
            each = options if isinstance(options, list) else [options] * self._plan.num_envs
            self.begin_call("reset", (seeds, each), env_ids=env_ids)

    def end_reset(self, timeout: float | None, name: str) -> tuple[Any, dict[str, Any]]:
        """Wait for a reset; return the observations of all sub-environments and the infos."""
        others = np.delete(self._all, self._resetting)
        if self._call is None:
            self._wait(self._settled, timeout, name)
        else:
            self._answers(timeout, name)
        self._take_messages()
        # The infos of the other rows are from their last step, and must not be returned again.
        self._step_buffer.info_kinds[others] = 0
        infos = self._lost.add_to(self.read_infos(None), self._all)
        self._deliver(self._all)
        return self._results.observations(None), infos

    def send(self, actions: Any, ids: Any) -> None:
        """Begin a step of some sub-environments.

        Args:
            actions: Batch of their actions.
            ids: env_ids, int64 ``[n]``.
        """
        if not self.under_way:
            if self._late:
                # Messages of a call that timed out must be dropped before messages of this request can arrive.
                self._wait(self._settled, None, "send")
                self._drop_late_results()
            self._lost.take_back()
        if self._ends.binding:
            self._ends.check(ids)
        self._take_restarts()
        self._write_actions(actions, ids)
        self.backend.number(ids)
        self._in_flight[ids] = True
        self.under_way += len(ids)
        self._request(ids)

    def batch_size(self, wanted: int | None) -> int:
        """Return the number of rows of the next ``recv``, which is lower if all other sub-environments need a reset."""
        wanted = self._plan.batch_size if wanted is None else wanted
        rest = self._ends.binding and self.under_way and (self._ends.flags | self._in_flight).all()
        return min(wanted, self.under_way) if rest else wanted

    def recv(self, timeout: float | None, batch_size: int) -> StepResults:
        """Wait for the sub-environments that are ready first, and return their results."""
        rows = self._plan.num_envs - self.under_way + batch_size
        self._wait(lambda: self._enough_ready(batch_size), timeout, "recv", rows)
        self._take_messages()
        ids = self._ready
        # The oldest requests come first, or a slow sub-environment could wait forever behind faster ones.
        if len(ids) > batch_size:
            ids = ids[np.argsort(self._step_buffer.requested[ids], kind="stable")[:batch_size]]
        results = self._received(ids)
        results[-1]["env_id"] = ids
        return results

    def recv_from(self, ids: Any) -> StepResults:
        """Wait for the sub-environments ``ids``, int64 ``[n]``, and return their results."""
        self._wait(lambda: self._are_ready(ids), None, "recv", 0)
        self._take_messages()
        return self._received(ids)

    def in_flight(self, ids: Any) -> list[int]:
        """Return the sub-environments among these with a step in progress."""
        return ids[self._in_flight[ids]].tolist() if self.under_way else []

    def begin_call(
        self, method: str, each: Sequence[Sequence[Any]], *shared: Any, env_ids: Sequence[int] | None = None
    ) -> None:
        """Call a method of all or some sub-environments, with an argument for each and arguments for all."""
        env_ids = self._all if env_ids is None else env_ids
        self._call = self.backend.begin(method, each_worker(env_ids, self._plan.job.shares, each, shared))

    def end_call(self, timeout: float | None, name: str) -> tuple[Any, ...]:
        """Wait for a call; return one answer from each sub-environment."""
        answers = self._answers(timeout, name)
        return tuple(answer for worker in sorted(answers) for answer in answers[worker])

    def serve_library(self, each: str) -> None:
        """Pass actions without a warning and return each info unchanged, as vector envs of other libraries do.

        Infos in Gymnasium's form join the values of all rows under a key, and refuse values that cannot be joined.

        Args:
            each: Key of the list of infos.
        """
        results = self._results
        self.logs_errors = False
        results.fit.any_kind = True
        self.read_infos = lambda env_ids: {each: results.each_info()}

    def close(self, timeout_s: float) -> None:
        """End the workers, unless this process is a fork of their owner. Idempotent."""
        if self.owner.is_here:
            self.backend.close(timeout_s)

    def _write_actions(self, actions: Any, env_ids: Any) -> None:
        """Write actions into the step buffer if they are arrays of the space; else split and send them."""
        dtypes = self._results.write_actions(actions, env_ids, keep_dtypes=self.under_way > 0)
        if dtypes:
            self.backend.give(Actions(dtypes, b""), self._all)
        if dtypes is not None:
            return
        ids = self._all if env_ids is None else env_ids.tolist()
        each = each_action(self.spaces.single_action, actions, len(ids))
        self.backend.give(Actions(None, dumps(dict(zip(ids, each, strict=True)))), ids)

    def _request(self, env_ids: Sequence[int]) -> None:
        """Request a step of some sub-environments that have a number, except of rows that get their results here."""
        if here := self._lost.answer_broken(env_ids):
            env_ids = [env_id for env_id in env_ids if env_id not in here]
        if len(env_ids):
            self.backend.request(env_ids)

    def _wait(self, done: Callable[[], bool], timeout: float | None, name: str, rows: int | None = None) -> None:
        """Wait until a condition holds. Afterwards no step or reset is pending, even after an exception.

        Args:
            done: The condition.
            timeout: Time limit in seconds, or ``None``.
            name: Name of the user's call.
            rows: Number of finished rows at which workers notify this process. Default: all.
        """
        rows = self._plan.num_envs if rows is None else rows
        backend, deadline = self.backend, math.inf if timeout is None else time.monotonic() + timeout
        try:
            while True:
                # expect() comes before the look at the rows, so a worker that finishes after the look notifies.
                if backend.serve_own():
                    backend.expect(rows)
                if self._is_over(done):
                    return
                if self.stopped is not None:
                    raise self.stopped()
                left_s = math.inf if timeout is None else deadline - time.monotonic()
                if left_s > 0:
                    backend.listen(left_s)
                else:
                    self._late = True
                    raise multiprocessing.TimeoutError(f"The call to `{name}` has timed out after {timeout} second(s).")
        finally:
            self._stepping, self._resetting = False, ()

    def _step_here(self) -> None:
        """Step all sub-environments in this process, which has no workers to wait for."""
        try:
            self.backend.step_here()
        finally:
            self._stepping = False
        if self.stopped is not None:
            raise self.stopped()

    def _is_over(self, done: Callable[[], bool]) -> bool:
        """Tell whether a condition holds, after all earlier messages of workers were received."""
        while True:
            # The condition comes first. A worker counts its messages before it writes the number of its answer, so
            # all messages of the answers that the condition has seen are received below.
            over = done()
            heard = self.backend.catch_up()
            if not self._take_restarts() and (over or not heard or not done()):
                return over

    def _answers(self, timeout: float | None, name: str) -> dict[int, Any]:
        call = self._call
        try:
            self._wait(lambda: call.is_answered, timeout, name)
        except multiprocessing.TimeoutError:
            # The answer may still come, and must not be taken for the answer of a later call.
            self.backend.calls.forget(call)
            raise
        finally:
            self._call = None
        self._log_errors([error for errors in call.errors.values() for error in errors])
        return self.backend.calls.take(call)

    def _log_errors(self, errors: Sequence[BaseException]) -> None:
        """Log one line for each exception of a sub-environment, because only one of several is raised."""
        for error in errors if self.logs_errors else ():
            where = error.__cause__
            if isinstance(where, SubEnvironmentError) and where.env_id is not None:
                # Gymnasium's logger warns. If warnings are errors, the user must get the exception instead.
                with contextlib.suppress(Warning):
                    text = f"env_id {where.env_id} (worker {where.worker}) raised {type(error).__name__}: {error}"
                    logger.error("%s", text)

    def _settled(self) -> bool:
        """Tell whether every request is finished."""
        return self._step_buffer.rendezvous.has(self._plan.num_envs)

    def _received(self, ids: Any) -> StepResults:
        """Return the results of sub-environments that are ready."""
        step_buffer = self._step_buffer
        self._in_flight[ids] = False
        self.under_way -= len(ids)
        infos = self._lost.add_to(self.read_infos(ids) if self._had_infos else {}, ids)
        self._deliver(ids)
        return (
            self._results.observations(ids),
            step_buffer.rewards[ids],
            step_buffer.terminated[ids],
            step_buffer.truncated[ids],
            infos,
        )

    def _are_ready(self, ids: Any) -> bool:
        ready = (self._step_buffer.finished[ids] == self._step_buffer.requested[ids]).all()
        return bool(self.backend.step_errors or ready)

    def _enough_ready(self, batch_size: int) -> bool:
        ready = self._in_flight & (self._step_buffer.finished == self._step_buffer.requested)
        self._ready = ready.nonzero()[0]
        return bool(self.backend.step_errors) or len(self._ready) >= batch_size

    def _take_messages(self) -> bool:
        """Store data that did not fit into the step buffer; raise the exceptions of sub-environments.

        Returns:
            Whether the last results contain an info.
        """
        backend = self.backend
        has_infos = backend.has_infos
        self._had_infos |= has_infos
        if backend.side_data:
            self._results.take(drained(backend.side_data))
        if backend.step_errors:
            errors = sorted(drained(backend.step_errors), key=_env_id_of)
            failed = [env_id for error in errors if (env_id := _env_id_of(error)) < len(self._all)]
            self._lost.fail(failed)
            # A sub-environment that raised has no result for which recv could wait.
            self._in_flight[failed] = False
            self.under_way = int(np.count_nonzero(self._in_flight))
            self._log_errors(errors)
            raise_all(errors)
        if self._results.left_out:
            self._results.report_left_out()
        return has_infos

    def _drop_late_results(self) -> None:
        """Drop the results of a call that timed out, but keep the data that later calls refer to."""
        self._results.take(drained(self.backend.side_data))
        self._lost.fail([_env_id_of(error) for error in drained(self.backend.step_errors)])
        self._ends.note(ALL)
        self._late = False

    def _deliver(self, env_ids: Any) -> None:
        """Keep the ends and the observations of rows that the user receives now."""
        if self._tracks_ends:
            rows = list(env_ids)
            self._ends.note(rows)
            self._lost.delivered(rows)

    def _take_restarts(self) -> bool:
        """Mark the lost episodes of workers that were restarted, and repeat the requests in progress.

        Returns:
            Whether a worker was restarted.
        """
        if not self._lost.wanted:
            return False
        for restarted, ended_by, unset in (restarts := self.backend.restarted()):
            self._lost.note_unset(unset)
            resetting = [env_id for env_id in restarted if env_id in self._resetting]
            others = [env_id for env_id in restarted if env_id not in resetting]
            ended, answered = self._ends.flags, self._lost.answered
            lost = [env_id for env_id in others if not ended[env_id] or env_id in answered]
            self.backend.failures.add_lost([(env_id, ended_by) for env_id in self._lost.lose(lost, ended_by)])
            stepping = others if self._stepping else self.in_flight(np.array(others, np.int64))
            self._request(stepping)
            idle = [env_id for env_id in others if env_id not in stepping]
            self._step_buffer.finished[idle] = self._step_buffer.requested[idle]
            # A reset that was sent as a call is sent again as a call.
            if resetting and self._call is None:
                self.backend.request(resetting, RESET)
        return bool(restarts)


def _env_id_of(error: BaseException) -> int:
    """Return the sub-environment that raised an exception, or a number beyond all of them if it is unknown."""
    env_id = env_id_of(error)
    return sys.maxsize if env_id is None else env_id
