"""The tasks of an evaluation's worker: it acts and steps, or steps while the main process acts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Self

from parenv.envs.fitting import Fit
from parenv.memory.spaces import describe
from parenv.memory.status_slot import StatusSlot
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Layout, Ready
from parenv.protocol.plain import as_data, plain_info
from parenv.worker.episode_envs import AskedEpisode, EpisodeEnvs, SubEnvironment
from parenv.worker.job import EpisodeJob
from parenv.worker.policy_batches import PolicyBatch, PolicyBatches
from parenv.worker.task import Pending, PendingAnswers, Task, TaskOutput

PIECE_S = 0.005
"""Seconds for which a worker whose sub-environments are all in use plays before it looks for messages."""
NO_SPACE = ["opaque", ""]


class EpisodeEnvsTask(Task):
    """Sub-environments that play the requested episodes.

    Args:
        job: Job of the workers.
        sender: Identity of this worker.
        status: Status slot of this worker.
        output: Output for warnings.
    """

    def __init__(self, job: EpisodeJob, sender: Sender, status: StatusSlot, output: TaskOutput) -> None:
        self._job, self._status, self._output = job, status, output
        self._envs = EpisodeEnvs(job, job.env_ids(sender.worker), status)

    def ready(self) -> Ready:
        """Return an empty description, because environments are made for their first episode."""
        return Ready([NO_SPACE, NO_SPACE], len(self._envs.rows), [], [])

    def lay_out(self, layout: Layout, mapping: Any) -> Self:
        """Return this task, which needs no shared memory."""
        return self

    def close(self) -> None:
        """Close all environments."""
        self._envs.close()


class EpisodeTask(EpisodeEnvsTask):
    """Plays each requested episode in the sub-environment that the request names.

    An exception of an environment is the answer for its episode, and the next episode gets a new environment. An
    exception of the policy is raised.

    Args:
        *arguments: Arguments of :class:`EpisodeEnvsTask`.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        job, num_rows = self._job, len(self._envs.rows)
        fit = Fit.of(job.options, self._output.warn)
        self._batches = PolicyBatches(job.policy, job.device, job.deterministic, num_rows, fit)
        self._pending = [Pending() for _ in self._envs.rows]
        self._done: PendingAnswers = []

    def answer(self, method: str, *arguments: Any) -> Pending:
        """Begin an episode. There is no other call."""
        asked = {"episode": AskedEpisode}[method](*arguments)
        pending = self._pending[asked.row] = Pending()
        try:
            self._batches.begin(*self._envs.begin(asked))
        except (Exception, SystemExit) as error:
            self._fail(self._envs.rows[asked.row], error)
        return pending

    def play_for(self, seconds: float) -> PendingAnswers:
        """Play until an episode ends; while all sub-environments are in use, at most for a short time."""
        until = time.perf_counter() + PIECE_S
        while not self._done and not self._status.closing[0]:
            for batch in self._batches.playing():
                self._step(batch)
            if time.perf_counter() >= until or any(one.asked is None for one in self._envs.rows):
                break
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Close all environments, and give the policy its former settings."""
        with contextlib.closing(self._batches):
            super().close()

    def _step(self, batch: PolicyBatch) -> None:
        """Act once and step all sub-environments of a batch."""
        self._status.begin("act")
        playing: list[Any] = list(batch.playing)
        actions = batch.act(playing)
        for one in playing:
            try:
                observation, answer = self._envs.step(one, actions[one.row])
                if answer is None:
                    batch.observe(one, observation)
                else:
                    self._finish(one, answer)
            except (Exception, SystemExit) as error:
                self._fail(one, error)

    def _finish(self, one: SubEnvironment, answer: Any) -> None:
        self._done.append((self._pending[one.row], answer))
        self._batches.end(one)

    def _fail(self, one: SubEnvironment, error: BaseException) -> None:
        self._finish(one, self._envs.failed(one.row, error))


class SteppedEpisodeTask(EpisodeEnvsTask):
    """Steps the episodes for which the main process acts."""

    def answer(self, method: str, *arguments: Any) -> Any:
        """Begin an episode, or step several episodes with an action each.

        Returns:
            Observation, infos that the policy takes and, of a new episode, the spaces; or the result of the episode, or
            its failure. For several episodes, a list of those.
        """
        if method == "episode":
            return self._guarded(self._begun, *arguments)
        return [{"advance": self._guarded}[method](self._stepped, *step) for step in arguments[0]]

    def _guarded(self, function: Callable[..., Any], row: int, *arguments: Any) -> Any:
        try:
            return function(row, *arguments)
        except (Exception, SystemExit) as error:
            return self._envs.failed(row, error)

    def _begun(self, *asked: Any) -> dict[str, Any]:
        one, observation = self._envs.begin(AskedEpisode(*asked))
        assert one.spaces is not None
        return {**self._seen(one, observation), "spaces": [describe(space) for space in one.spaces]}

    def _stepped(self, row: int, action: Any) -> Any:
        one = self._envs.rows[row]
        observation, answer = self._envs.step(one, action)
        return self._seen(one, observation) if answer is None else answer

    def _seen(self, one: SubEnvironment, observation: Any) -> dict[str, Any]:
        infos = {name: one.info[name] for name in self._job.infos_of_policy if name in one.info}
        return {"observation": as_data(observation), "infos": plain_info(infos)[0]}
