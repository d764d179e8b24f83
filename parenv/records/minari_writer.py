"""Writer of whole episodes to a Minari dataset, which can be loaded at any moment.

In Minari's ``arrow`` format each episode has a folder, and the metadata of the dataset has the number of episodes. The
writer writes new folders into a draft folder beside the dataset and moves them. Then it replaces the metadata in one
step. A process that is killed in between leaves the dataset as it was. The next recording removes the draft folder.
``minari.create_dataset_from_buffers`` cannot write into a draft: it makes the folder of the dataset first.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError, embedded
from parenv.experience.whole_episodes import Episode
from parenv.libraries import require
from parenv.memory.spaces import leaves
from parenv.process.cores import this_learner
from parenv.process.whole_files import draft_folder, remove_left_drafts, replace

MAX_STEPS = 32_767
"""Maximum length of an episode in env steps. pyarrow stores 32,768 rows in a batch, and Minari reads only the first."""
_FORMAT = "arrow"
_SETS = ("author", "author_email")
_NAMES = r"[\w-]+-v\d+"
"""Regular expression for the names of the folders of datasets."""


class MinariWriter:
    """Writes episodes to a new Minari dataset.

    Args:
        dataset_id: Id such as ``"me/cartpole-v0"``.
        spaces: Observation and action space.
        env_spec: Spec of the environment, or ``None``.
        metadata: Further metadata, such as ``author`` and ``description``.

    Attributes:
        dataset_id: Id of the dataset. Rank 1 has ``"me/cartpole-rank1-v0"``.
        path: Folder of the dataset.
        num_episodes: Number of episodes in the dataset.
        num_steps: Number of env steps in the dataset.

    Raises:
        ConfigurationError: The id is malformed, the dataset exists, or Minari does not know a space.
    """

    def __init__(self, dataset_id: str, spaces: Sequence[Any], env_spec: Any, metadata: Mapping[str, Any]) -> None:
        minari = require("minari", "record_dataset", "datasets")
        require("pyarrow", "record_dataset", "datasets")
        self._storages = require("minari.dataset.minari_storage", "record_dataset", "datasets")
        self._spaces, self._env_spec = spaces, env_spec
        _check_sizes(spaces)
        namespace, self.dataset_id = _checked_id(dataset_id)
        self.num_episodes = self.num_steps = 0
        with self._making():
            self.path = Path(minari.storage.get_dataset_path(self.dataset_id))
            if self.path.exists():
                raise FileExistsError
        self._data = self.path / "data"
        about = {**_checked_metadata(metadata), "dataset_id": self.dataset_id, "minari_version": minari.__version__}
        with self._making():
            self._create(namespace, about)

    def write(self, episodes: Sequence[Episode]) -> None:
        """Add episodes to the dataset, all of them or none.

        Raises:
            OSError: A file cannot be written. The dataset is as before.
        """
        if not episodes:
            return
        ids = range(self.num_episodes, self.num_episodes + len(episodes))
        with draft_folder(self.path) as draft:
            self._write_draft(draft / "data", episodes, ids)
            self._commit(draft / "data", episodes, ids)

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        """Raise a ConfigurationError if the folder of the dataset cannot be made."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileExistsError) or error.errno == errno.ENOTEMPTY:
                raise ConfigurationError(
                    f"the dataset {self.dataset_id} exists already. Choose another name or version, or delete it with "
                    f'minari.delete_dataset("{self.dataset_id}").'
                ) from None
            raise ConfigurationError(
                f"the dataset {self.dataset_id} cannot be made: {embedded(error)}. "
                "Set MINARI_DATASETS_PATH to a folder that "
                "this process can write."
            ) from error

    def _create(self, namespace: str | None, metadata: Mapping[str, Any]) -> None:
        """Make an empty dataset at once: another run that makes the same one fails."""
        namespaces = require("minari.namespace", "record_dataset", "datasets")
        if namespace is not None and namespace not in namespaces.list_local_namespaces():
            namespaces.create_namespace(namespace)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_left_drafts(self.path.parent, _NAMES)
        with draft_folder(self.path) as folder:
            draft = folder / self.path.name
            (draft / "data").mkdir(parents=True)
            try:
                self._new_storage(draft / "data").update_metadata(metadata)
            except NotImplementedError as error:
                raise ConfigurationError(
                    f"Minari cannot store the spaces of this pool: {embedded(error)}. Flatten them in the environment."
                ) from None
            draft.rename(self.path)

    def _new_storage(self, path: Path) -> Any:
        observation_space, action_space = self._spaces
        # Minari compresses images with a loss by default.
        return self._storages.MinariStorage.new(
            path, observation_space, action_space, self._env_spec, _FORMAT, jpeg_encoding=False
        )

    def _write_draft(self, draft: Path, episodes: Iterable[Episode], ids: range) -> None:
        from minari.data_collector import EpisodeBuffer

        draft.mkdir()
        storage = self._new_storage(draft)
        # Minari looks at all files and rewrites the metadata for each episode. That takes most of the time.
        storage.get_size, storage.update_metadata = float, dict
        storage.update_episodes(
            EpisodeBuffer(
                id=number,
                seed=episode.seed,
                observations=episode.observations,
                actions=episode.actions,
                rewards=episode.rewards,
                terminations=_only_last(episode, "terminated"),
                truncations=_only_last(episode, "truncated"),
                infos={name: _storable(values) for name, values in episode.infos.items()},
            )
            for number, episode in zip(ids, episodes, strict=True)
        )
        storage.update_episode_metadata([_about(episode) for episode in episodes], ids)

    def _commit(self, draft: Path, episodes: Sequence[Episode], ids: range) -> None:
        """Move the folders of the episodes to the dataset, and then count them."""
        for number in ids:
            shutil.rmtree(self._data / str(number), ignore_errors=True)  # A commit that failed may have left it.
            (draft / str(number)).rename(self._data / str(number))
        num_steps = self.num_steps + sum(episode.length for episode in episodes)
        metadata = self._storages.MinariStorage.read_raw_metadata(self._data)
        size = metadata.get("dataset_size", 0.0) + sum(map(_megabytes, (self._data / str(number) for number in ids)))
        metadata |= {"total_episodes": ids.stop, "total_steps": num_steps, "dataset_size": size}
        about = draft / self._storages.METADATA_FILE_NAME
        about.write_text(json.dumps(metadata))
        replace(about, self._data / self._storages.METADATA_FILE_NAME)
        self.num_episodes, self.num_steps = ids.stop, num_steps


def _check_sizes(spaces: Iterable[Any]) -> None:
    """Refuse arrays without elements. pyarrow divides by their size, which ends the process with SIGFPE.

    Raises:
        ConfigurationError: A space has an array without elements.
    """
    for space in spaces:
        if empty := [leaf for leaf in leaves(space) if not leaf.items]:
            raise ConfigurationError(
                f"Minari cannot store the spaces of this pool: {empty[0].name or space} has the shape "
                f"{empty[0].shape}, which has no elements. Remove it in the environment."
            )


def _checked_id(dataset_id: str) -> tuple[str | None, str]:
    """Return the namespace and the id of this learner's own dataset.

    Raises:
        ConfigurationError: The id is malformed.
    """
    from minari.dataset.minari_dataset import gen_dataset_id, parse_dataset_id

    try:
        namespace, name, version = parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise ConfigurationError(
            f'the id of a Minari dataset must be like "me/cartpole-v0", with a version, got {dataset_id!r}.'
        ) from None
    rank = this_learner().rank
    return namespace, gen_dataset_id(namespace, f"{name}-rank{rank}" if rank else name, version)


def _checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as Minari wants it: authors are sets.

    Raises:
        ConfigurationError: The metadata cannot be stored.
    """
    sets = {name: {metadata[name]} for name in _SETS if isinstance(metadata.get(name), str)}
    found = {**metadata, **sets}
    try:
        json.dumps({name: list(value) if name in _SETS else value for name, value in found.items()})
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"metadata must be plain data for JSON, got {dict(metadata)!r}: {embedded(error)}. "
            "Remove or convert the value."
        ) from None
    return found


def _only_last(episode: Episode, ending: str) -> Any:
    flags = np.zeros(episode.length, bool)
    flags[-1] = episode.ended_by == ending
    return flags


def _storable(values: Any) -> Any:
    """Return an info as Minari stores it. It cannot read an array of single numbers, but a list of them."""
    if not values.size:
        return [[] for _ in values]  # pyarrow divides by the size of an array, which ends the process with SIGFPE.
    return list(values) if values.ndim == 1 else values


def _about(episode: Episode) -> dict[str, Any]:
    return {
        "env_id": episode.env_id,
        "ended_by": episode.ended_by,
        "total_return": episode.total_return,
        "policy_version": episode.policy_version,
        "final_observation_known": episode.final_known,
    }


def _megabytes(folder: Path) -> float:
    return sum(os.path.getsize(file) for file in folder.iterdir()) / 1e6
