"""A worker process of a vector env: answers doorbells by stepping, messages by everything else."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from parenv.envs.batch import Trouble
from parenv.envs.seeding import worker_seed
from parenv.errors import NotDataError
from parenv.memory.board import Board, BoardSpec
from parenv.memory.layout import leaves_from_data
from parenv.memory.progress import Progress, code
from parenv.memory.shared import SharedMemory
from parenv.process.doorbell import Doorbell, rung
from parenv.protocol.conversation import DRIVER, WORKER, Conversation
from parenv.protocol.frames import Sender, from_frames, to_frames
from parenv.protocol.messages import Actions, Call, Close, Message, Remarks, Reply, Rows, as_warning
from parenv.protocol.plain import as_data, plain_info
from parenv.transport.zeromq import WorkerSocket
from parenv.worker.process import address_of, failure_of, show_stacks
from parenv.worker.starting import prepare_process
from parenv.worker.step_task import StepJob, StepStation


class StepWorker:
    """The worker process around a station.

    Args:
        sender: who this is.
        memory: the shared memory; at first only its head is laid out.
        say: sends a message to the driver.
    """

    def __init__(self, sender: Sender, memory: SharedMemory, say: Callable[[Message], None]) -> None:
        self._sender, self._memory, self._send = sender, memory, say
        self._conversation = Conversation()
        self.progress = Progress(memory.map(), sender.worker)
        self._station: StepStation | None = None
        self._failed = False
        self.open = True

    def start(self, job: StepJob) -> None:
        """Make the sub-environments."""
        prepare_process(worker_seed(job.seed, *self._sender), job.options)
        if job.cores is not None:
            os.sched_setaffinity(0, {job.cores[self._sender.worker]})
        self._station = StepStation(job, self._sender, self.progress)
        self._say(self._station.ready())

    def receive(self, message: Message) -> None:
        """Do what a message asks for."""
        self._conversation.say(DRIVER, message)
        station = self._station
        if isinstance(message, Close):
            self.open = False
        elif station is None or self._failed:
            return
        elif isinstance(message, Rows):
            observed, acted = leaves_from_data(message.observations), leaves_from_data(message.actions)
            spec = BoardSpec(message.num_envs, observed, acted, message.info_bytes)
            station.lay_out(Board(spec, self._memory.map(), message.offset))
        elif isinstance(message, Actions):
            station.give(message)
        elif isinstance(message, Call):
            self._answer(station, message)

    def step_all(self) -> None:
        """Step every sub-environment."""
        if self._station is not None and not self._failed:
            self._station.batch.step_all()
            self._finish(self._station)

    def serve(self, most: int) -> int:
        """Answer the next request of some; how many orders that took."""
        if self._station is None or self._failed:
            return most
        served = self._station.batch.serve(most)
        self._finish(self._station)
        return served

    def fail(self, error: BaseException) -> None:
        """Say what went wrong beside any sub-environment; then there is nothing to do but to be closed."""
        self._failed = True
        self._say(failure_of(error, self.progress.doing, self.progress.env_id))

    def close(self) -> None:
        """Clean up."""
        self.progress.begin("closing")
        if self._station is not None:
            self._station.close()

    def _finish(self, station: StepStation) -> None:
        """Say what does not lie on the board, and only then that everything is answered."""
        if station.batch.remarkable:
            self._remark(station)
            self._complain(station.troubles(), 0)
            station.batch.remarkable = False
        station.batch.stamp()

    def _answer(self, station: StepStation, call: Call) -> None:
        columns, *arguments = cloudpickle.loads(call.arguments)
        answers = station.answer(call.method, columns, *arguments)
        self._remark(station)
        if call.method == "reset":
            station.batch.stamp()
        troubles = station.troubles()
        if troubles:
            self._complain(troubles, call.sequence)
            return
        try:
            self._say(Reply(call.sequence, as_data(answers)))
        except NotDataError as error:
            self._complain([Trouble(-1, call.method, error)], call.sequence)

    def _remark(self, station: StepStation) -> None:
        for text in station.warnings():
            self._say(as_warning(text))
        remarks = station.remarks()
        if remarks is None:
            return
        try:
            self._say(remarks)
        except NotDataError:
            infos, left_out = _plain_infos(remarks.infos)
            self._say(Remarks(remarks.kinds, infos, self._data_only(station, remarks.observations), left_out))

    def _data_only(self, station: StepStation, said: list[Any]) -> list[Any]:
        """Observations without what cannot leave a worker, which is a trouble of its sub-environment."""
        kept = []
        for env_id, values in said:
            try:
                kept.append([env_id, as_data(values)])
            except NotDataError as error:
                kept.append([env_id, None])
                station.batch.troubles.append(Trouble(env_id, "step", error))
        return kept

    def _complain(self, troubles: Sequence[Trouble], call: int) -> None:
        for i, trouble in enumerate(troubles):
            self._say(failure_of(trouble.error, trouble.doing, trouble.env_id, call, len(troubles) - 1 - i))

    def _say(self, message: Message) -> None:
        self._send(self._conversation.say(WORKER, message))
        self.progress.said[0] += 1


def _plain_infos(said: list[Any]) -> tuple[list[Any], list[Any]]:
    """Infos in their plain form, and what was left out of them for the first time."""
    infos: list[Any] = []
    found: dict[str, list[Any]] = {}
    for env_id, info in said:
        plain, left_out = plain_info(info)
        infos.append([env_id, plain])
        for where, what in left_out.items():
            found.setdefault(where, [env_id, where, what])
    return infos, list(found.values())


def main(arguments: dict[str, Any], socket_fd: int, memory_fd: int, job_fd: int, stacks_fd: int, *bells: int) -> int:
    """Serve the driver until it says ``Close``; the exit code."""
    show_stacks(stacks_fd)
    sender = Sender(arguments["worker"], arguments["generation"])
    answers, bell = Doorbell(bells[:2]), Doorbell(bells[2:])
    socket = WorkerSocket(address_of(socket_fd), *sender)
    worker = StepWorker(sender, SharedMemory(fd=memory_fd), lambda message: socket.send(to_frames(sender, message)))
    try:
        worker.start(cloudpickle.loads(mmap.mmap(job_fd, os.fstat(job_fd).st_size, access=mmap.ACCESS_READ)))
    except BaseException as error:
        worker.fail(error)
    cell, waiting = worker.progress.cell, code("waiting")
    while worker.open:
        cell[0] = waiting
        echoes, messages, all_rows, orders = rung(bell.take())
        try:
            if echoes:
                worker.progress.beats[0] += 1
                answers.ring(1)
            for _ in range(messages):
                frames = socket.receive(block=True)
                assert frames is not None
                worker.receive(from_frames(frames)[1])
                answers.ring(1)
            while orders:
                orders -= worker.serve(orders)
                answers.ring(1)
            if all_rows:
                worker.step_all()
                answers.ring(1)
        except BaseException as error:
            worker.fail(error)
            answers.ring(1)
    worker.close()
    socket.close()
    return 0
