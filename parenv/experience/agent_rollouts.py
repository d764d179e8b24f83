"""Rollouts and episodes of named policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, compress
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from parenv.experience.episodes import ALL_COLUMNS, EpisodeStatistics
from parenv.experience.rollout import Rollout, reshaped
from parenv.experience.summary import Summarized
from parenv.experience.transitions import Transitions
from parenv.memory.trees import Block, Tree, copy_of, map_trees, to_tensors

Found = TypeVar("Found")


@dataclass(frozen=True, repr=False)
class AgentEpisodes(EpisodeStatistics):
    """Episodes of agents. Each lasts while its agent is present in an episode of the sub-environment.

    Args:
        agents: Agent of each episode, ``[K]``.
        numbers: Number of the episode of the sub-environment, int64 ``[K]``. Agents with equal ``numbers`` and
            ``env_ids`` played together.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", {"lean": lean}, num_workers=0, num_envs=2, rollout_length=32) as pool:
    ...     episodes = pool.evaluate(4)["lean"]
    >>> episodes.agents, sorted(episodes.numbers.tolist())
    (['agent', 'agent', 'agent', 'agent'], [0, 0, 1, 1])
    """

    agents: Sequence[str] = ()
    numbers: Any = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def together(cls, parts: Sequence[Sequence[Any]]) -> AgentEpisodes:
        """Join the columns of several parts, which are plain data."""
        *plain, agents, numbers = (list(chain.from_iterable(column)) for column in zip(*parts, strict=True))
        return cls(**vars(EpisodeStatistics.of_columns(*plain)), agents=agents, numbers=np.asarray(numbers, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[Any]) -> AgentEpisodes:
        """Join the episodes of several parts."""
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in (*ALL_COLUMNS, "numbers")
        }
        return cls(**columns, agents=[agent for part in parts for agent in part.agents])

    def _only(self, mask: Any) -> Self:
        """Return the episodes at which a mask is true."""
        agents = list(compress(self.agents, mask.tolist()))
        return replace(super()._only(mask), agents=agents, numbers=self.numbers[mask])


@dataclass(frozen=True, repr=False)
class EpisodesByPolicy(EpisodeStatistics):
    """Episodes of sub-environments with several agents. Returns are sums over the agents.

    Args:
        by_policy: Episodes of the agents, by the name of the policy that acted; also ``episodes["runner"]``.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", {"lean": lean}, num_workers=0, num_envs=2, rollout_length=32) as pool:
    ...     episodes = pool.evaluate(3)
    >>> len(episodes), len(episodes["lean"])
    (3, 3)
    """

    by_policy: Mapping[str, AgentEpisodes] = field(default_factory=dict)

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"by_policy": dict(self.by_policy)}

    def _only(self, mask: Any) -> Self:
        """Return the episodes at which a mask is true. No episode of an evaluation is lost."""
        return self if mask.all() else replace(super()._only(mask), by_policy={})

    def __getitem__(self, name: str) -> AgentEpisodes:
        return _named(self.by_policy, name, "evaluation")


def _named(by_policy: Mapping[str, Found], name: str, where: str) -> Found:
    try:
        return by_policy[name]
    except KeyError:
        message = f"no policy {name!r} acted in this {where}, only {list(by_policy)}"
        raise KeyError(message) from None


def evaluated(answers: Sequence[Sequence[Any]]) -> EpisodeStatistics:
    """Return the episodes of workers from their answers, which have plain columns and a dict of such by policy."""
    whole = EpisodeStatistics.joined([EpisodeStatistics.of_columns(*answer[:5]) for answer in answers])
    if not any(answer[5:] for answer in answers):
        return whole
    names = {name for answer in answers for name in answer[5]}
    parts = {name: [answer[5][name] for answer in answers if name in answer[5]] for name in sorted(names)}
    return EpisodesByPolicy(**vars(whole), by_policy={n: AgentEpisodes.together(part) for n, part in parts.items()})


@dataclass(frozen=True, repr=False)
class AgentRollout(Rollout[Block]):
    """Rollout of one named policy, with a row for each of its agents in each sub-environment, ``[T, rows]``.

    If agents act at the same time, a step of all rows is one env step. If they act one after the other, the steps of a
    row are the turns of its agent, and a reward is the sum until its next turn. Only steps that are ``alive`` are
    transitions; fields of others are zero. Rows are in the order of their env_ids, and then of the environment's
    ``possible_agents``.

    Args:
        alive: Whether the agent was present and this policy acted for it, bool ``[T, rows]``.
        agents: Agent of each row.
        first_versions: Version that chose the first action of each row, int64 ``[rows]``. It is older than
            ``policy_version`` for a turn that the rollout before could not complete.
        last_steps: Step of each row that ``last_observations`` follows, int64 ``[rows]``; -1 for no step.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", {"lean": lean}, num_workers=0, num_envs=2, rollout_length=32) as pool:
    ...     rows = next(pool.rollouts())["lean"]
    >>> rows.alive.shape, rows.agents, len(rows.transitions())
    ((32, 2), ['agent', 'agent'], 64)
    """

    # Fields without a default cannot follow those of the base. A rollout of agents always has them.
    alive: Block = None  # type: ignore[assignment]
    agents: Sequence[str] = ()
    first_versions: Block = None  # type: ignore[assignment]
    last_steps: Block = None  # type: ignore[assignment]
    _blocks: ClassVar[tuple[str, ...]] = (*Rollout._blocks, "alive", "first_versions", "last_steps")

    @property
    def num_steps(self) -> int:
        """Number of transitions."""
        return int(self.alive.sum())

    def transitions(self) -> Transitions[Block]:
        """Flatten to the transitions of agents that were alive, with their true next observations."""
        every = super().transitions()
        if bool(self.alive.all()):
            return every
        there = self.alive.reshape(-1)
        alive = {one.name: map_trees(lambda values: values[there], getattr(every, one.name)) for one in fields(every)}
        return replace(every, **alive)

    def next_values(self, values: Any, value_fn: Callable[[Tree], Any]) -> Any:
        """Return the values of the true next observations, see :meth:`Rollout.next_values`; zeros for absent agents."""
        following = super().next_values(values, value_fn)
        last = reshaped(value_fn(self.last_observations), following[-1])
        there = self.last_steps >= 0
        goes_on = copy_of(there)
        goes_on[there] = ~(self.terminated | self.truncated)[self.last_steps[there], there]
        following[self.last_steps[goes_on], goes_on] = last[goes_on]
        following[~self.alive] = 0
        return following


@dataclass(frozen=True, repr=False)
class RolloutsByPolicy(Summarized, Mapping[str, AgentRollout]):
    """``T`` steps of some sub-environments with named policies. ``rollouts["runner"]`` is the rollout of one policy.

    Args:
        by_policy: :class:`AgentRollout` of each policy, and of each frozen version that acted.
        env_ids: Sub-environments, int64 ``[B]``.
        worker: Worker that collected the rollout; ``None`` for a block of all workers (sync).
        policy_version: Number of publishes, of any policy, before the rollout was requested.
        policy_lag: Largest lag of a policy, in versions of its own.
        num_steps: Number of env steps.
        episodes: Episodes of sub-environments that ended in the rollout. Returns are sums over the agents.
        states: ``env.state()`` at every step, ``[T, B, *state]``; ``None`` without one, or if agents act one after the
            other.
        shifted_states: ``states`` one step later, without the final states.
        final_states: States in which episodes were truncated, ``[K, *state]``; zeros for episodes that terminated.
        final_index: Steps and columns of the final states, two int64 ``[K]``.

    >>> from parenv import AsyncWorkerPool
    >>> def lean(observations):
    ...     return observations[:, 2] > 0
    >>> with AsyncWorkerPool("CartPole-v1", {"lean": lean}, num_workers=0, num_envs=2, rollout_length=32) as pool:
    ...     rollout = next(pool.rollouts())
    >>> list(rollout), rollout["lean"].observations.shape, rollout.num_steps
    (['lean'], (32, 2, 4), 64)
    """

    by_policy: Mapping[str, AgentRollout]
    env_ids: Any
    worker: int | None
    policy_version: int
    policy_lag: int
    num_steps: int
    episodes: AgentEpisodes
    states: Any
    shifted_states: Any
    final_states: Any
    final_index: tuple[Any, Any]

    def __getitem__(self, name: str) -> AgentRollout:
        return _named(self.by_policy, name, "rollout")

    def __getattr__(self, name: str) -> Any:
        is_of_one = hasattr(AgentRollout, name) or name in AgentRollout.__dataclass_fields__
        where = f". Use rollout[policy].{name} for one of the policies {list(self)}" if is_of_one else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{where}", name=name, obj=self)

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_policy)

    def __len__(self) -> int:
        return len(self.by_policy)

    def _facts(self) -> dict[str, Any]:
        names = ("num_steps", "worker", "policy_version", "policy_lag")
        return {name: getattr(self, name) for name in names} | {"by_policy": dict(self)}

    def next_states(self) -> Any:
        """Return the true next state of every step, ``[T, B, *state]``; zeros if the step terminated the episode."""
        if self.shifted_states is None or not len(self.final_index[0]):
            return self.shifted_states
        filled = copy_of(self.shifted_states)
        filled[self.final_index] = self.final_states
        return filled

    def to(self, device: Any = "cpu", *, non_blocking: bool = False) -> RolloutsByPolicy:
        """Return the rollouts with tensors as fields. On the CPU they share the memory of the arrays."""
        by_policy = {name: rows.to(device, non_blocking=non_blocking) for name, rows in self.items()}
        return self._with(to_tensors(device, non_blocking), by_policy)

    def copy(self) -> RolloutsByPolicy:
        """Return a copy with memory of its own."""
        return self._with(copy_of, {name: rows.copy() for name, rows in self.items()})

    def _with(self, function: Callable[[Any], Any], by_policy: Any) -> RolloutsByPolicy:
        made = {name: function(getattr(self, name)) for name in ("env_ids", "states", "shifted_states", "final_states")}
        return replace(self, by_policy=by_policy, final_index=tuple(map(function, self.final_index)), **made)
