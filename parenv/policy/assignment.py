"""Assign policies to agents: the arguments of ``policy_of``, and the check of its return value."""

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
    """The beginning of an episode of a sub-environment, as ``policy_of`` gets it.

    Args:
        env_id: env_id of the sub-environment.
        number: Number of the episode in this sub-environment, from 0. A restart of the worker resets it to 0.
        settings: Published settings of each policy.
        root: Root of all seeds and generation of the worker, from which ``generator`` is seeded.
    """

    env_id: int
    number: int
    settings: Mapping[str, Mapping[str, Any]]
    root: tuple[int, int] = field(repr=False)

    @cached_property
    def generator(self) -> np.random.Generator:
        """Random generator of the episode, shared by its agents. It is the same in every run with the same seed."""
        seed, generation = self.root
        return np.random.default_rng(episode_seed(seed, self.env_id, generation, self.number))


@dataclass(frozen=True)
class PolicyRow:
    """A policy by which workers can act.

    Args:
        index: Index of the policy in rollouts.
        of: Name of the policy of which it is a frozen version, or its own name.
        number: Number of its version.
        place: Place of the weights of the version.
        snapshot: Pickled settings, and the policy itself if it has no module.
        settings: Published settings.
        may_be_drawn: Whether ``policy_of`` may return it for new episodes.
    """

    index: int
    of: str
    number: int
    place: int
    snapshot: bytes
    settings: Mapping[str, Any]
    may_be_drawn: bool = True


PolicyTable = Mapping[str, PolicyRow]
"""Policies by name: policies that learn, and frozen versions of them."""


def drawn(policy_of: PolicyOf | None, agent: str, episode: EpisodeStart, table: PolicyTable) -> str:
    """Return the name of the policy of an agent in an episode.

    Raises:
        ConfigurationError: ``policy_of`` raised, or did not return the name of a policy.
    """
    if policy_of is None:
        return next(iter(table))
    try:
        name = policy_of(agent, episode)
    except Exception as error:
        raise ConfigurationError(
            f"policy_of raised {type(error).__name__} for agent {agent!r} in episode {episode.number} of env_id "
            f"{episode.env_id}: {error}"
        ) from error
    row = table.get(name) if isinstance(name, str) else None
    if row is None or not row.may_be_drawn:
        names = [name for name, row in table.items() if row.may_be_drawn]
        is_frozen = isinstance(name, str) and "@" in name
        why = ", which was released or never frozen" if is_frozen else ""
        raise ConfigurationError(
            f"policy_of must return one of {names}, got {name!r}{why}, for agent {agent!r} in episode "
            f"{episode.number} of env_id {episode.env_id}. Return the name of a policy."
        )
    return str(name)
