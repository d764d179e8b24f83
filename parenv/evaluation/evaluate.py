"""Evaluate one policy on many tasks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from parenv.evaluation.arguments import EvaluationArguments, EvaluationPlan, Options, Success, Tasks, make_plan
from parenv.evaluation.central_session import CentralSession
from parenv.evaluation.progress import ProgressLine
from parenv.evaluation.queue import EpisodeQueue, QueuedEpisode
from parenv.evaluation.report import EvaluationReport
from parenv.evaluation.results import EvaluatedEpisode, ResultsFile
from parenv.evaluation.session import EvaluationSession
from parenv.options import WorkerOptions
from parenv.transport.interrupts import Deferred

_log = logging.getLogger("parenv")
SUCCESS = ("is_success", "success")


def evaluate(
    policy: Any,
    tasks: Tasks,
    *,
    episodes: int = 50,
    num_workers: int | None = None,
    num_envs: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int = 0,
    deterministic: bool = True,
    retries: int = 3,
    max_episode_steps: int | None = None,
    videos: int = 0,
    infos: Sequence[str] = (),
    success: Success = SUCCESS,
    options: Options | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    workers: WorkerOptions | None = None,
    progress: bool = False,
) -> EvaluationReport:
    """Play episodes of several tasks with one policy on parallel workers, and report returns and successes.

    All episodes are in one queue. Each sub-environment takes the next episode as soon as it is free, so no episode
    waits for the slowest one. The policy acts at once for all sub-environments of a worker.

    The seed of an episode depends on ``seed``, the name of its task and its index only. No seed is repeated within a
    task. An episode that is lost with its worker is played again from its seed.

    Args:
        policy: Policy as for :class:`~parenv.AsyncWorkerPool`, or path of a file: of :func:`parenv.export` (``.onnx``)
            or of Stable-Baselines3 (``.zip``).
        tasks: Env id or factory, list of env ids, or mapping of names to env ids or factories. The spaces of the tasks
            may differ if the policy acts on all of them.
        episodes: Number of episodes of each task. Default: 50.
        num_workers: Number of worker processes. Default: one per usable core. With 0, everything runs in this process.
        num_envs: Number of sub-environments of each worker, or of all step workers together. It is also the batch size
            of the policy. Default: 8, or one per step worker if there are more.
            Results can depend on it, because a batch of another size is rounded differently. Each episode has the same
            row of the batch on every worker.
        out: Path of a file with one line of JSON per finished episode. Default: no file.
        resume: Whether to continue the file of an interrupted evaluation. Its episodes are not played again. It may
            have fewer episodes per task. Default: ``False``.
        seed: Root of all seeds. Default: 0.
        deterministic: Whether the policy acts without exploration, as in ``pool.evaluate``. Default: ``True``.
        retries: Number of times that a lost episode is played again, before it is recorded as lost. Default: 3.
        max_episode_steps: Number of env steps after which an episode is truncated. Default: no limit.
        videos: Number of episodes of each task that are recorded, from the worst to the best return. 3: the worst, the
            median and the best. The folder is named after ``out``. Factories must make environments with
            ``render_mode="rgb_array"``; env ids do so by themselves. Default: 0.
        infos: Names of infos of the last step to store. Default: none.
        success: Names of infos of the last step, of which the first that is present tells success, or a function of an
            :class:`~parenv.evaluation.EvaluatedEpisode` that returns it. Default: ``"is_success"`` or ``"success"``.
        options: Function ``(task, index) -> options`` for the reset, such as the number of an initial state. Default:
            no options.
        checkpoint: Path of a file of :class:`~parenv.SaveBest`, whose weights the policy gets. Default: ``None``.
        workers: Options of the workers, such as time limits. With ``WorkerOptions(step_workers=16, device="cuda")``,
            this process acts on the device, and 16 workers only step. Default: ``WorkerOptions()``.
        progress: Whether to show a line with the progress and the time left on standard error. Default: ``False``.

    Returns:
        Report with intervals. ``print(report)`` shows a table.

    Raises:
        ConfigurationError: An argument is wrong, the policy does not fit a task, or ``out`` has another evaluation.
        ParenvError: The file cannot be written any more. Earlier episodes are stored.
        Exception: Exception of the policy, or of an environment that could not be made or reset even once.

    >>> import parenv
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> report = parenv.evaluate(lean, "CartPole-v1", episodes=10, num_workers=0,
    ...                          success=lambda episode: episode.episode_return >= 40)
    >>> report.tasks["CartPole-v1"].mean_return, report.overall.success_rate
    (38.2, 0.4)
    """
    plan = make_plan(
        EvaluationArguments(
            policy=policy,
            tasks=tasks,
            episodes=episodes,
            num_workers=num_workers,
            num_envs=num_envs,
            out=out,
            resume=resume,
            seed=seed,
            deterministic=deterministic,
            retries=retries,
            max_episode_steps=max_episode_steps,
            videos=videos,
            infos=infos,
            success=success,
            options=options,
            checkpoint=checkpoint,
            workers=workers,
        )
    )
    return _evaluated(plan, resume, progress)


def _evaluated(plan: EvaluationPlan, resume: bool, progress: bool) -> EvaluationReport:
    with ResultsFile(plan.out, plan.about, resume) as file:
        wanted = plan.all_episodes()
        known = {QueuedEpisode(one.task, one.index): one for one in file.found}
        found = [known[episode] for episode in wanted if episode in known]
        missing = [episode for episode in wanted if episode not in known]
        if missing or plan.videos:
            shown = ProgressLine(len(wanted), len(found)) if progress else None
            with (EvaluationSession if plan.job.acts else CentralSession)(plan) as session, shown or nullcontext():
                found += _played(session, plan.queue_of(missing), file.write, shown)
                if plan.videos:
                    _record_videos(session, plan, found)
    order = {task: number for number, task in enumerate(plan.job.tasks)}
    return EvaluationReport(sorted(found, key=lambda one: (order[one.task], one.index)))


def _played(
    session: EvaluationSession,
    queue: EpisodeQueue,
    keep: Callable[[EvaluatedEpisode], object],
    shown: ProgressLine | None = None,
) -> list[EvaluatedEpisode]:
    """Play all episodes of a queue, and return them in the order in which they finish."""
    found = []
    if shown is not None:
        shown.update(None, queue.unfinished)
    while not queue.is_over:
        # A Ctrl-C between two lines would be harmless, but one within a line would leave half of it.
        with Deferred():
            for result in session.next(queue):
                keep(result)
                found.append(result)
                if shown is not None:
                    shown.update(result, queue.unfinished)
    if shown is not None:
        shown.update(None, queue.unfinished, last=True)
    return found


def _record_videos(session: EvaluationSession, plan: EvaluationPlan, found: Sequence[EvaluatedEpisode]) -> None:
    """Play some episodes of each task again, and write their frames to files."""
    assert plan.out is not None
    folder = plan.out.with_name(f"{plan.out.stem}-videos")
    folder.mkdir(exist_ok=True)
    chosen = {}
    for task in plan.job.tasks:
        mine = [one for one in found if one.task == task and not one.is_lost]
        mine.sort(key=lambda one: one.episode_return)
        ranks = np.linspace(0, len(mine) - 1, min(plan.videos, len(mine))).round().astype(int)
        for one in (mine[rank] for rank in ranks):
            video = folder / f"{_file_name(task)}-{one.index:04}.gif"
            chosen[QueuedEpisode(task, one.index, str(video.absolute()))] = one
    before = {(one.task, one.index): one.episode_return for one in chosen.values()}
    for again in _played(session, plan.queue_of(chosen), lambda one: None):
        if again.episode_return != before[again.task, again.index]:
            _log.warning(
                "the video of episode %s of task %r shows a return of %s instead of %s, so the environment or the "
                "policy is not deterministic",
                again.index,
                again.task,
                again.episode_return,
                before[again.task, again.index],
            )


def _file_name(task: str) -> str:
    """Return the name of a task without characters that file names cannot have."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in task)
