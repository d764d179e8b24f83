"""Who plays by which policy: what ``policy_of`` is told, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from parenv.envs.seeding import episode_seed
from parenv.errors import ConfigurationError

UNNAMED = ""
"""Name of the only policy of a pool whose policies have no names."""
PolicyOf = Callable[[str, "EpisodeStart"], str]
"""``(agent, episode) -> name of a policy``."""


@dataclass(frozen=True)
class EpisodeStart:
    """What is known of an episode of a sub-environment when it begins.

    Args:
        env_id: of the sub-environment.
        number: counts its episodes, from 0, anew where its worker was restarted.
        settings: by policy, what was published with it.
        root: the root of all seeds, and how often the worker was restarted: of what is drawn for it.
    """

    env_id: int
    number: int
    settings: Mapping[str, Mapping[str, Any]]
    root: tuple[int, int] = field(repr=False)

    @cached_property
    def generator(self) -> np.random.Generator:
        """One for all agents of the episode, asked one after the other; the same in every run with the same seed."""
        seed, generation = self.root
        return np.random.default_rng(episode_seed(seed, self.env_id, generation, self.number))


@dataclass(frozen=True)
class PolicyRow:
    """A policy that workers may be asked to act by.

    Args:
        index: says in a rollout that it was this one.
        of: the policy that it is a frozen version of, or itself.
        number: of its version.
        place: where the weights of that lie.
        snapshot: pickled settings, and the policy where it has no module.
        settings: what was published with it.
        may_be_drawn: whether episodes that begin now may have it.
    """

    index: int
    of: str
    number: int
    place: int
    snapshot: bytes
    settings: Mapping[str, Any]
    may_be_drawn: bool = True


PolicyTable = Mapping[str, PolicyRow]
"""Policies by name: those that learn, and frozen versions of them."""


def drawn(policy_of: PolicyOf | None, agent: str, episode: EpisodeStart, table: PolicyTable) -> str:
    """The policy of an agent in an episode.

    Raises:
        ConfigurationError: ``policy_of`` raised, or its answer is no name of a policy.
    """
    if policy_of is None:
        return next(iter(table))
    try:
        name = policy_of(agent, episode)
    except Exception as error:
        raise ConfigurationError(
            f"policy_of raised {type(error).__name__}: {error}, asked for agent {agent!r} in episode {episode.number} "
            f"of env_id {episode.env_id}"
        ) from error
    row = table.get(name) if isinstance(name, str) else None
    if row is None or not row.may_be_drawn:
        names = [name for name, row in table.items() if row.may_be_drawn]
        is_frozen = isinstance(name, str) and "@" in name
        why = "which was released or never frozen" if is_frozen else "which is no policy of the pool"
        raise ConfigurationError(
            f"policy_of returned {name!r}, {why}, for agent {agent!r} in episode {episode.number} of env_id "
            f"{episode.env_id}: there are {names}"
        )
    return str(name)
