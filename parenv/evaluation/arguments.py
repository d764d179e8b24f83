"""Arguments of an evaluation, and the plan that is made of them before any process starts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parenv.argument_checks import at_least, is_callable, options_of
from parenv.crew.partition import leave_to_pools, split
from parenv.envs.entry_point import factories_of
from parenv.envs.factories import Factories
from parenv.envs.seeding import task_episode_seed
from parenv.errors import ConfigurationError
from parenv.evaluation.identity import identity_of
from parenv.evaluation.policies import loaded
from parenv.evaluation.queue import EpisodeQueue, QueuedEpisode
from parenv.evaluation.results import EvaluatedEpisode
from parenv.libraries import require
from parenv.options import WorkerOptions
from parenv.platform.limits import possible_workers
from parenv.policy.assignment import UNNAMED
from parenv.policy.devices import check_devices
from parenv.policy.made_policies import MadePolicies, made
from parenv.policy.policy import PolicyFactory, as_policy
from parenv.process.cores import recommended_num_workers
from parenv.worker.job import EpisodeJob

DEFAULT_NUM_ENVS = 8
Success = str | Sequence[str] | Callable[[EvaluatedEpisode], bool | None]
Tasks = Any
"""One env id or factory, or a mapping of names to them."""
Options = Callable[[str, int], Mapping[str, Any] | None]
ONLY_TASK = "task"


@dataclass(frozen=True, kw_only=True)
class EvaluationArguments:
    """Unchecked arguments of :func:`~parenv.evaluate`."""

    policy: Any
    tasks: Tasks
    episodes: int
    num_workers: int | None
    num_envs: int | None
    out: str | os.PathLike[str] | None
    resume: bool
    seed: int
    deterministic: bool
    retries: int
    max_episode_steps: int | None
    videos: int
    infos: Sequence[str]
    success: Success
    options: Options | None
    checkpoint: str | os.PathLike[str] | None
    workers: WorkerOptions | None


@dataclass(frozen=True)
class EvaluationPlan:
    """Checked arguments of an evaluation.

    Args:
        job: Job of the workers.
        policies: The policy, with the name :data:`~parenv.policy.assignment.UNNAMED`.
        inline: Whether the only worker runs in this process.
        device: Device on which this process acts, if the workers do not.
        episodes: Number of episodes of each task.
        retries: Number of losses after which an episode is still repeated.
        videos: Number of videos of each task.
        out: Path of the file of results, or ``None``.
        success: Names of infos, or function of an episode, that tell whether the episode is a success.
        options: Function ``(task, index) -> options of the reset``, or ``None``.
        about: Description for the file of results. An evaluation with the same description can continue it.
    """

    job: EpisodeJob
    policies: MadePolicies
    inline: bool
    device: str
    episodes: int
    retries: int
    videos: int
    out: Path | None
    success: tuple[str, ...] | Callable[[EvaluatedEpisode], bool | None]
    options: Options | None
    about: dict[str, Any]

    def all_episodes(self) -> list[QueuedEpisode]:
        """Return all episodes of all tasks."""
        return [QueuedEpisode(task, index) for task in self.job.tasks for index in range(self.episodes)]

    def seed_of(self, episode: QueuedEpisode) -> int:
        """Return the seed of an episode."""
        return task_episode_seed(self.job.seed, episode.task, episode.index)

    def options_of(self, episode: QueuedEpisode) -> Mapping[str, Any] | None:
        """Return the options for the reset of an episode."""
        return None if self.options is None else self.options(episode.task, episode.index)

    def queue_of(self, episodes: Iterable[QueuedEpisode]) -> EpisodeQueue:
        """Return a queue of episodes."""
        return EpisodeQueue(episodes, self.job.shares[0] if self.job.acts else sum(self.job.shares), self.retries)

    def result(
        self, episode: QueuedEpisode, total: float, length: int, seconds: float, ended_by: str, infos: Mapping[str, Any]
    ) -> EvaluatedEpisode:
        """Return the result of an episode from the answer of a worker."""
        about = episode.task, episode.index, self.seed_of(episode), float(total), int(length)
        kept = {name: infos.get(name) for name in self.about["infos"]}
        if not callable(self.success):
            said = next((infos[name] for name in self.success if infos.get(name) is not None), None)
            return EvaluatedEpisode(*about, None if said is None else bool(said), ended_by, seconds, kept)
        found = self.success(EvaluatedEpisode(*about, None, ended_by, seconds, infos))
        return EvaluatedEpisode(*about, None if found is None else bool(found), ended_by, seconds, kept)

    def lost(self, episode: QueuedEpisode, ended_by: str, error: str) -> EvaluatedEpisode:
        """Return the result of an episode that was lost too often."""
        return EvaluatedEpisode(
            episode.task, episode.index, self.seed_of(episode), math.nan, 0, None, ended_by, 0.0, {}, error
        )


def make_plan(given: EvaluationArguments) -> EvaluationPlan:
    """Check the arguments of an evaluation, and make its plan.

    Raises:
        ConfigurationError: An argument is wrong.
    """
    given = replace(given, num_workers=possible_workers(given.num_workers))
    require("scipy.stats", "the report of an evaluation", "eval")
    episodes = at_least("episodes", given.episodes, 1)
    tasks = _tasks(given.tasks)
    videos = at_least("videos", given.videos, 0)
    if videos:
        require("imageio.v3", "a video", "export")
        if given.out is None:
            raise ConfigurationError(f"videos={videos} needs out=, because the videos are stored beside that file.")
    is_callable("options", given.options)
    policy, content = loaded(made(given.policy), given.checkpoint)
    policies = MadePolicies({UNNAMED: policy}, _factory_of(given.policy))
    factories = _factories(tasks, options_of("workers", given.workers, WorkerOptions))
    infos = _names("infos", given.infos)
    success = given.success if callable(given.success) else _names("success", given.success)
    about = {
        "policy": identity_of(content),
        "tasks": {name: identity_of(make) for name, make in zip(tasks, factories.functions, strict=True)},
        "seed": at_least("seed", given.seed, 0),
        "deterministic": bool(given.deterministic),
        "max_episode_steps": given.max_episode_steps,
        "infos": list(infos),
        "success": identity_of(success),
        "options": None if given.options is None else identity_of(given.options),
    }
    asked = infos if callable(success) else tuple(dict.fromkeys((*infos, *success)))
    return EvaluationPlan(
        job=_job(given, policies, tuple(tasks), factories, asked, episodes),
        policies=policies,
        inline=given.num_workers == 0,
        device=options_of("workers", given.workers, WorkerOptions).devices[0],
        episodes=episodes,
        retries=at_least("retries", given.retries, 0),
        videos=videos,
        out=None if given.out is None else Path(given.out),
        success=success,
        options=given.options,
        about=about,
    )


def _job(
    given: EvaluationArguments,
    policies: MadePolicies,
    tasks: tuple[str, ...],
    factories: Factories,
    infos: tuple[str, ...],
    episodes: int,
) -> EpisodeJob:
    if given.max_episode_steps is not None:
        at_least("max_episode_steps", given.max_episode_steps, 1)
    options = options_of("workers", given.workers, WorkerOptions)
    leave_to_pools(options, NOT_FOR_EVALUATIONS)
    check_devices(options.devices)
    is_central = options.step_workers is not None
    return EpisodeJob(
        factories=factories,
        options=replace(options, step_workers=None, device="cpu") if is_central else options,
        shares=_shares(given, options.step_workers, len(tasks) * episodes),
        seed=given.seed,
        policies=None if is_central else policies,
        tasks=tasks,
        deterministic=bool(given.deterministic),
        max_episode_steps=given.max_episode_steps,
        infos=infos,
        infos_of_policy=tuple(sorted(as_policy(policies[UNNAMED]).infos_taken())),
        acts=not is_central,
    )


def _factory_of(policy: Any) -> dict[str, PolicyFactory]:
    return {UNNAMED: policy} if isinstance(policy, PolicyFactory) else {}


def _shares(given: EvaluationArguments, step_workers: int | None, count: int) -> tuple[int, ...]:
    """Return the number of sub-environments of each worker, for this number of episodes."""
    if given.num_envs is not None:
        at_least("num_envs", given.num_envs, 1)
    if step_workers is None:
        num_workers = recommended_num_workers("gradient") if given.num_workers is None else given.num_workers
        # A worker without an episode would only cost its start.
        num_workers = max(1, min(at_least("num_workers", num_workers, 0), count))
        return (given.num_envs or DEFAULT_NUM_ENVS,) * num_workers
    if given.num_workers is not None:
        raise ConfigurationError(
            f"num_workers={given.num_workers} must be left out with step_workers={step_workers}, because this process "
            "acts. Leave out one of them."
        )
    return split(given.num_envs or max(DEFAULT_NUM_ENVS, step_workers), step_workers)


NOT_FOR_EVALUATIONS = {
    "on_env_error": "in an evaluation, retries= limits how often the episode is repeated",
    "step_threads": "in an evaluation, the worker steps its sub-environments in turn",
    "rollout_device": "an evaluation has no rollouts",
}


def _tasks(tasks: Tasks) -> dict[str, Any]:
    """Return the factory or env id of each task by name."""
    if isinstance(tasks, Mapping):
        if not tasks:
            raise ConfigurationError("tasks must have at least one task, got {}. Pass names and factories.")
        if odd := [name for name in tasks if not isinstance(name, str) or not name]:
            raise ConfigurationError(f"the name of a task must be a non-empty string, got {odd[0]!r}. Rename it.")
        return dict(tasks)
    if isinstance(tasks, Sequence) and not isinstance(tasks, str):
        names = [one if isinstance(one, str) else "" for one in tasks]
        if not names or "" in names:
            raise ConfigurationError(
                f"tasks must be an env id, a factory, a list of env ids, or a mapping of names to factories, got "
                f"{tasks!r}. Give each factory a name, as in {{'reach': make_reach}}."
            )
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigurationError(f"the name of a task must be unique, got {twice[0]!r} twice. Rename one of them.")
        return dict(zip(names, tasks, strict=True))
    name = tasks if isinstance(tasks, str) else getattr(tasks, "__name__", "")
    return {name if isinstance(tasks, str) or name.isidentifier() else ONLY_TASK: tasks}


def _factories(tasks: Mapping[str, Any], options: WorkerOptions) -> Factories:
    for name, one in tasks.items():
        try:
            if factories_of(one, options).count is not None:
                raise ConfigurationError(f"a factory must not be a sequence, got {one!r}. Pass one task per factory.")
        except ConfigurationError as error:
            raise ConfigurationError(f"task {name!r}: {error}") from error
    return factories_of(list(tasks.values()), options)


def _names(what: str, names: Any) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    if odd := [name for name in found if not isinstance(name, str)]:
        raise ConfigurationError(f"{what} must be names of infos, got {odd[0]!r}. Pass a list of strings.")
    return found
