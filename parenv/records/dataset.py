"""Record the whole episodes of a pool as a dataset."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from parenv.argument_checks import at_least, is_callable
from parenv.envs.entry_point import EntryPoint, FactoryElsewhere
from parenv.envs.episode_seeds import EPISODE_SEED, with_episode_seeds
from parenv.envs.factories import unwrapped
from parenv.envs.recycling import recycled
from parenv.errors import ConfigurationError, embedded
from parenv.experience.whole_episodes import Episode, EpisodeCutter
from parenv.policy.policy import as_policy
from parenv.pool.arrival import Arrival
from parenv.pool.events import Delivered, Observer, PoolEvent, Resumed
from parenv.records.minari_writer import MAX_STEPS, MinariWriter

if TYPE_CHECKING:
    from parenv.pool.pool import AsyncWorkerPool
    from parenv.pool.pool_plan import Plan

MAX_PENDING = 100
"""Number of episodes that are written at once, if they have fewer bytes than the limit."""
_SCHEME = "minari:"
_log = logging.getLogger("parenv")


class DatasetRecording(Observer):
    """Recording in progress, from :func:`record_dataset`.

    Args:
        cutter: Cutter of the rollouts.
        writer: Writer of the episodes.
        keep: Function that returns whether an episode is kept.
        flush_bytes: Number of bytes of episodes that are written at once.
    """

    def __init__(
        self, cutter: EpisodeCutter, writer: MinariWriter, keep: Callable[[Episode], Any], flush_bytes: int
    ) -> None:
        self._cutter, self._writer, self._keep, self._flush_bytes = cutter, writer, keep, flush_bytes
        self._pending: list[Episode] = []
        self._left_out, self._is_over = 0, False

    @property
    def dataset_id(self) -> str:
        """Id of the dataset, for ``minari.load_dataset``."""
        return self._writer.dataset_id

    @property
    def num_episodes(self) -> int:
        """Number of kept episodes. The last of them are written when the recording ends."""
        return self._writer.num_episodes + len(self._pending)

    @property
    def num_steps(self) -> int:
        """Number of env steps of the kept episodes."""
        return self._writer.num_steps + sum(episode.length for episode in self._pending)

    @property
    def num_too_large(self) -> int:
        """Number of episodes that were left out because they were too long or took more than ``max_episode_bytes``."""
        return self._left_out + self._cutter.too_large

    def hear(self, event: PoolEvent) -> None:
        """Record the rollouts that are delivered to the user."""
        if self._is_over:
            return
        match event:
            case Resumed():
                self._cutter.forget()
            case Delivered(Arrival() as arrival):
                self._add(self._cutter.cut(arrival.rollout))

    def close(self) -> None:
        """Write the remaining episodes, and record no more. Idempotent."""
        self._is_over = True
        self._flush()

    def _add(self, episodes: list[Episode]) -> None:
        """Keep the wanted episodes. If ``keep`` raises, the other episodes are kept first."""
        raised: list[Exception] = []
        for episode in episodes:
            if episode.length > MAX_STEPS:
                self._left_out += 1
                continue
            try:
                if self._keep(episode):
                    self._pending.append(episode)
            except Exception as error:
                error.add_note(f"keep= of record_dataset raised this for {episode!r}, which is not in the dataset.")
                raised.append(error)
        if len(self._pending) >= MAX_PENDING or sum(one.nbytes for one in self._pending) >= self._flush_bytes:
            self._flush()
        if raised:
            raise raised[0]

    def _flush(self) -> None:
        """Write the pending episodes.

        Raises:
            OSError: They cannot be written. The recording is over, and the dataset has what was written before.
        """
        try:
            self._writer.write(self._pending)
        except OSError as error:
            self._is_over = True
            why = (
                f"{embedded(error.strerror or error)}, so the recording is over; the dataset keeps its written episodes"
            )
            raise OSError(error.errno or errno.EIO, why, str(self._writer.path)) from error
        self._pending.clear()


def record_dataset(
    pool: AsyncWorkerPool[Any],
    target: str,
    *,
    keep: Callable[[Episode], Any] | None = None,
    seeds: bool | None = None,
    env: str | EnvSpec | None = None,
    metadata: Mapping[str, Any] | None = None,
    max_episode_bytes: int = 2**28,
    flush_bytes: int = 2**24,
) -> contextlib.AbstractContextManager[DatasetRecording]:
    """Record the whole episodes of a pool as a Minari dataset, in a ``with`` block.

    The dataset has each episode that begins and ends in the rollouts yielded in the block, in the order in which they
    end. Lost episodes are left out. The metadata of an episode has its ``seed``, ``ended_by``, ``env_id``,
    ``total_return`` and ``policy_version``. ``minari.load_dataset`` can load the dataset at any moment, also after this
    process was killed.

    Args:
        pool: Pool with ``parallelism="experience"`` and a single policy.
        target: ``"minari:"`` and the id of a new dataset, such as ``"minari:me/cartpole-v0"``. Rank 1 writes to
            ``me/cartpole-rank1-v0``.
        keep: Function of an :class:`~parenv.Episode` that returns whether to keep it. Default: keep all.
        seeds: Whether episodes must have their seeds, which needs a pool with ``episode_seeds=True``. Default: they
            have them if the pool has them. Otherwise, one warning is logged, which ``False`` avoids.
        env: Env id or spec for ``dataset.recover_environment()``. Default: the env id that the pool was made with.
        metadata: Metadata of the dataset, such as ``author``, ``algorithm_name`` and ``description``.
        max_episode_bytes: Limit for the episode in progress of each sub-environment, in bytes. Larger episodes are left
            out with a warning.
        flush_bytes: Bytes of finished episodes that are written at once. 100 episodes are written in any case.

    Returns:
        Context manager, whose ``as`` value has ``dataset_id``, ``num_episodes``, ``num_steps`` and ``num_too_large``.

    Raises:
        ConfigurationError: An argument is wrong, the dataset exists, or the pool cannot be recorded.
        OSError: Raised by the stream, if the disk is full. Everything that was written before can be loaded.
    """
    at_least("max_episode_bytes", max_episode_bytes, 1)
    at_least("flush_bytes", flush_bytes, 1)
    is_callable("keep", keep, "a callable (episode) -> bool")
    if not hasattr(pool, "rollouts"):
        raise ConfigurationError(f"pool must be an AsyncWorkerPool, got {pool!r}. Pass the pool itself.")
    plan = pool._session.plan
    spaces = pool.single_observation_space, pool.single_action_space
    writer = MinariWriter(_checked(plan, target, seeds), spaces, _spec(env, plan), metadata or {})
    if seeds is None and EPISODE_SEED not in plan.job.infos:
        _log.warning(
            "the dataset %s has no seeds, because the pool was made without episode_seeds=True. Pass seeds=False to "
            "record_dataset if that is intended",
            writer.dataset_id,
        )
    (policy,) = plan.job.policies.values()
    is_new = not pool.statistics().rollouts
    cutter = EpisodeCutter(as_policy(policy).infos_taken(), EPISODE_SEED, max_episode_bytes, is_new)
    return _recording(pool, DatasetRecording(cutter, writer, keep or (lambda episode: True), flush_bytes))


@contextlib.contextmanager
def _recording(pool: AsyncWorkerPool[Any], recording: DatasetRecording) -> Iterator[DatasetRecording]:
    with pool._using() as session:
        session.observers.append(recording)
    try:
        yield recording
    except BaseException as error:
        try:
            recording.close()
        except Exception as another:
            error.add_note(f"The last episodes could not be written: {another}")
        raise
    finally:
        session.observers.remove(recording)
    recording.close()
    if recording.num_too_large:
        _log.warning(
            "%s episodes are not in the dataset %s: they were longer than %s env steps, or larger than "
            "max_episode_bytes",
            *(recording.num_too_large, recording.dataset_id, MAX_STEPS),
        )


def _checked(plan: Plan, target: str, seeds: bool | None) -> str:
    """Return the id of the dataset.

    Raises:
        ConfigurationError: The target has another scheme, or the pool cannot be recorded.
    """
    if not isinstance(target, str) or not target.startswith(_SCHEME):
        raise ConfigurationError(f'target must begin with "{_SCHEME}", got {target!r}. Pass "{_SCHEME}me/cartpole-v0".')
    if plan.job.is_named:
        raise ConfigurationError(
            "record_dataset cannot record a pool with named policies, because a Minari dataset has one agent. Use a "
            "pool with a single policy."
        )
    if plan.gradient is not None:
        raise ConfigurationError(
            'record_dataset needs a pool with parallelism="experience", because with parallelism="gradient" the '
            "rollouts stay on the workers."
        )
    if plan.given.on_stale == "drop":
        raise ConfigurationError(
            'record_dataset cannot record a pool with on_stale="drop", because dropped rollouts leave gaps in '
            'episodes. Use on_stale="pace".'
        )
    if seeds and EPISODE_SEED not in plan.job.infos:
        raise ConfigurationError(
            "record_dataset(seeds=True) needs the seed of each episode, got a pool without them. Make it with "
            "AsyncWorkerPool(..., episode_seeds=True), or leave seeds out."
        )
    return target.removeprefix(_SCHEME)


def _spec(env: str | EnvSpec | None, plan: Plan) -> EnvSpec | None:
    """Return the spec of the given env, or of the only env id that the pool was made with.

    Raises:
        ConfigurationError: The given env is not known, or its spec has functions, which cannot be stored.
    """
    ids = {_made_by(function) for function in plan.job.factories.functions}
    found = env if env is not None else ids.pop() if len(ids) == 1 else None
    if found is None:
        return None
    try:
        spec = gym.spec(found) if isinstance(found, str) else found
        spec.to_json()
    except (gym.error.Error, TypeError, ValueError, AttributeError) as error:
        if env is None:
            return None
        raise ConfigurationError(
            f"env must be an env whose spec can be stored, got {env!r}: {embedded(error)}."
        ) from error
    return spec


def _made_by(factory: Any) -> str | None:
    """Return the env id of a factory; ``None`` if it is a function of the user."""
    factory = unwrapped(factory, recycled, with_episode_seeds)
    if isinstance(factory, FactoryElsewhere):
        factory = factory.entry
    if isinstance(factory, EntryPoint):
        return None if factory.place[1] or factory.arguments else factory.name
    if not isinstance(factory, partial) or factory.func is not gym.make:
        return None
    (given,) = factory.args
    return given if isinstance(given, str) else given.id
