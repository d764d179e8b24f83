"""The task of a vector env's worker: step on requests, and answer calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
from gymnasium.vector import VectorEnv

from parenv.envs.fitting import Fit
from parenv.envs.make import make_envs
from parenv.envs.seeding import environment_seed
from parenv.envs.step_buffer_rows import ObservationRows, SideChannel
from parenv.envs.step_buffer_stepper import StepBufferStepper
from parenv.envs.step_cost import measured_step, native_package
from parenv.errors import ConfigurationError, NotDataError
from parenv.memory.kinds import kind_numbers
from parenv.memory.layout import leaves_from_data
from parenv.memory.sampling import generators
from parenv.memory.spaces import describe, each_once
from parenv.memory.status_slot import StatusSlot
from parenv.memory.step_buffer import OwnRequests, StepBuffer, StepBufferSpec
from parenv.memory.step_buffer_infos import InfoWriter
from parenv.platform import system
from parenv.process.spinning import Spinning
from parenv.protocol.data import is_data
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Actions, FirstMade, Rows, Shares, SideData, StepReady
from parenv.protocol.plain import as_data, plain_info
from parenv.worker.failures import FailedCallError
from parenv.worker.job import StepJob
from parenv.worker.task import ENV_METHODS, TaskOutput

SPACES = ("observation_space", "action_space")


class StepTask:
    """Steps sub-environments on a step buffer, and answers calls.

    Args:
        job: Job of all workers.
        sender: Worker and generation.
        status: Status slot of the worker.
        output: Receiver of data that does not fit into the step buffer.

    Attributes:
        envs: The sub-environments.
        step_buffer: The step buffer, once :meth:`use` was called.
        due: Function that returns the requests to serve, the oldest first, once :meth:`use` was called.
        spinning: Settings for polling, from the job.
    """

    def __init__(self, job: StepJob, sender: Sender, status: StatusSlot, output: TaskOutput) -> None:
        self._sender, self._status, self._output = sender, status, output
        self._first: FirstMade | None = None
        self.envs: list[Any] = []
        self._use_job(job)
        if job.begins_with_one:
            self._first = self._make_first()
        else:
            self._make_all()

    def _use_job(self, job: StepJob) -> None:
        self._job, self.spinning, self._env_ids = job, job.spinning, job.env_ids(self._sender.worker)

    def _make_first(self) -> FirstMade:
        """Make the first sub-environment, and measure it."""
        began, before, bytes_before = time.perf_counter(), system.processor_time(), system.resident_bytes()
        threads_before = system.num_threads()
        self.envs = make_envs(self._job.factories, self._env_ids[:1], self._status)
        wall_s, after = time.perf_counter() - began, system.processor_time()
        queued_s = 0.0 if before is None or after is None else after.queued_s - before.queued_s
        env_bytes = max(0, system.resident_bytes() - bytes_before)
        self._status.begin("measuring a step", self._env_ids.start)
        (first,) = self.envs
        # A process with threads of the environment cannot be forked. A VectorEnv is refused when the others are made.
        cost = None if system.num_threads() != threads_before or isinstance(first, VectorEnv) else measured_step(first)
        native = native_package(first)
        return FirstMade(native, env_bytes, max(0.0, wall_s - queued_s), None if cost is None else list(cost))

    def take_shares(self, shares: Shares) -> StepReady:
        """Make the rest of the sub-environments, after the number of workers was chosen."""
        spinning = None if shares.spinning is None else Spinning(*shares.spinning)
        if shares.cores is not None:
            system.pin(shares.cores)
        self._use_job(replace(self._job, shares=tuple(shares.shares), spinning=spinning, begins_with_one=False))
        self._make_all()
        return self._step_ready()

    def _make_all(self) -> None:
        self.envs = make_envs(self._job.factories, self._env_ids, self._status, made=self.envs)
        for env in self.envs:
            if isinstance(env, VectorEnv):
                raise ConfigurationError(
                    f"env_fns must make single environments, got {env}. Pass factories that do not vectorize."
                )

    def ready(self) -> StepReady | FirstMade:
        """Describe the sub-environments for the main process, or the first of them."""
        return self._first or self._step_ready()

    def _step_ready(self) -> StepReady:
        first, spaces = self.envs[0], self.spaces()
        described = {name: [list(map(describe, distinct)), which] for name, (distinct, which) in spaces.items()}
        sampling = {name: of for name in spaces if is_data(of := generators(getattr(first, name)))}
        metadata = {key: value for key, value in first.metadata.items() if is_data(value)}
        return StepReady(described, len(self.envs), metadata, first.render_mode, sampling)

    def spaces(self) -> dict[str, tuple[list[Any], list[int]]]:
        """Return the different spaces by name, and the index of the space of each sub-environment."""
        return {name: each_once([getattr(env, name) for env in self.envs]) for name in SPACES}

    def lay_out(self, layout: Rows, mapping: Any) -> StepTask:
        """Use the step buffer in the shared memory; return this task."""
        observed, acted = leaves_from_data(layout.observations), leaves_from_data(layout.actions)
        spec = StepBufferSpec(layout.num_envs, observed, acted, layout.info_bytes)
        self.use(StepBuffer(spec, mapping, layout.offset))
        return self

    def use(self, step_buffer: StepBuffer) -> None:
        """Use this step buffer."""
        job, (worker, generation), env_ids = self._job, self._sender, self._env_ids
        own, numbers = slice(env_ids.start, env_ids.stop), kind_numbers(worker, len(job.shares))
        self.step_buffer, requests = step_buffer, OwnRequests(step_buffer, own)
        self.due, self._of_all = requests.due, requests.of_all
        self._side = SideChannel(
            InfoWriter(step_buffer.info_kinds, step_buffer.infos, numbers.__getitem__), self._status
        )
        self._batch = StepBufferStepper(
            self.envs,
            own,
            step_buffer,
            job.autoreset,
            ObservationRows(step_buffer, own, Fit.of(job.options, self._output.warn), self._side),
            self._side,
            self._status,
            [environment_seed(job.seed, env_id, generation) for env_id in env_ids] if generation else None,
        )

    def take(self, actions: Actions) -> None:
        """Store the dtypes of further actions, or actions that do not fit into the step buffer."""
        if actions.dtypes is not None:
            self.step_buffer.view_actions(actions.dtypes)
        if actions.values:
            self._batch.actions.give(cloudpickle.loads(actions.values))

    def step_all(self) -> None:
        """Step every sub-environment, whose requests have one number."""
        self.serve(*self._of_all())

    def serve(self, number: int, columns: Sequence[int]) -> None:
        """Serve a request."""
        self._batch.serve(number, columns)
        self._finish()

    def answer(self, method: str, columns: Sequence[int], *arguments: Any) -> Any:
        """Answer a call.

        Raises:
            FailedCallError: Sub-environments raised exceptions. The others were called too.
        """
        batch, answers = self._batch, list[Any]()
        if method == "reset":
            batch.reset(columns, *arguments)
        else:
            answers = self._each(columns, ENV_METHODS[method], arguments)
            batch.find_steps(columns)
        self._send_side_data()
        if method == "reset":
            self._output.flush_records()
            batch.stamp()
        if errors := self._side.take_errors():
            raise FailedCallError(errors)
        return answers

    def close(self) -> None:
        """Close the environments."""
        with contextlib.ExitStack() as stack:
            for env in self.envs:
                stack.callback(env.close)

    def _finish(self) -> None:
        """Send the side data, and then mark the request as finished."""
        if self._side.has_data:
            self._send_side_data()
            self._output.report_error(self._side.take_errors())
        if self._status.has_infos[0]:
            self._status.any_infos[0] = 1
        self._output.flush_records()
        self._batch.stamp()

    def _send_side_data(self) -> None:
        """Send what does not fit into the step buffer, as plain data if it leaves this process."""
        kinds, infos, observations = self._side.take()
        if not (kinds or infos or observations):
            return
        try:
            self._output.say(SideData(kinds, infos, observations))
        except NotDataError:
            infos, left_out = _plain_infos(infos)
            self._output.say(SideData(kinds, infos, self._data_only(observations), left_out))

    def _data_only(self, said: list[Any]) -> list[Any]:
        """Replace observations that are not plain data by ``None``, and keep an error for each."""
        kept = []
        for env_id, values in said:
            try:
                kept.append([env_id, as_data(values)])
            except NotDataError as error:
                kept.append([env_id, None])
                self._side.fail(env_id, "step", error)
        return kept

    def _each(self, columns: Sequence[int], method: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        answers = []
        for position, column in enumerate(columns):
            env_id, answer = self._env_ids[column], None
            self._status.begin("call", env_id)
            try:
                answer = method(self.envs[column], position, *arguments)
            except BaseException as error:
                self._side.fail(env_id, "call", error)
            answers.append(answer)
        return answers


def _plain_infos(said: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return infos in their plain form, and one description of each place that was left out."""
    infos: list[Any] = []
    found: dict[str, list[Any]] = {}
    for env_id, info in said:
        plain, left_out = plain_info(info)
        infos.append([env_id, plain])
        for where, what in left_out.items():
            found.setdefault(where, [env_id, where, what])
    return infos, list(found.values())
