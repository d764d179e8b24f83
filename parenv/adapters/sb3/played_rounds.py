"""Rounds: what all workers have collected by one version of a model's policy, step by step, in one or more parts."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np

from parenv.adapters.sb3.told_infos import infos_of
from parenv.experience.rollout import Rollout
from parenv.memory.trees import map_trees
from parenv.pool.pool import AsyncWorkerPool


class Round:
    """A rollout and the infos that came with it, as a vec env gives them step by step.

    Args:
        rollout: of all environments.
        told: of each worker, what :meth:`~parenv.adapters.sb3.told_env.ToldEnv.told` says.
        is_final: whether no other part of what the model takes for one rollout follows.

    Attributes:
        dones: bool ``[length, num_envs]``.
        reset_infos: of the last reset of each environment.
        random_state: torch's behind it, where it is brought along.
    """

    def __init__(self, rollout: Rollout, told: Sequence[Any], is_final: bool) -> None:
        self.rollout, self.is_final, self._played = rollout, is_final, 0
        self.dones = rollout.terminated | rollout.truncated
        self._by_limit = (rollout.truncated & ~rollout.terminated).tolist()
        self._told = [of_steps for of_steps, _, _ in told]
        self._finals: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for k, (step, column) in enumerate(zip(*(index.tolist() for index in rollout.final_index), strict=True)):
            self._finals[step].append((column, k))
        self.reset_infos: list[dict[str, Any]] = [info for _, resets, _ in told for info in resets]
        self.random_state: bytes | None = told[0][2]

    @property
    def length(self) -> int:
        """Steps in it."""
        return len(self.dones)

    @cached_property
    def _infos(self) -> dict[int, dict[int, dict[str, Any]]]:
        return infos_of(self._told)

    @property
    def is_over(self) -> bool:
        """Whether all steps have been played."""
        return self._played == self.length

    @property
    def is_last(self) -> bool:
        """Whether one step is left."""
        return self._played == self.length - 1

    def acted(self, name: str) -> Any:
        """What the policy gave for the step that is to be played next, ``[num_envs, ...]``."""
        return self.rollout.extras[name][self._played].copy()

    def pass_steps(self, number: int) -> None:
        """Have the next steps behind us."""
        self._played += number

    def ended_at(self, step: int) -> list[int]:
        """Where an episode ended in a step: env_ids."""
        return [column for column, _ in self._finals.get(step, ())]

    def infos_with(self, *keys: str) -> dict[int, dict[int, dict[str, Any]]]:
        """Infos that have one of some keys, by step and env_id."""
        return infos_of(self._told, keys)

    def cut_off(self) -> Iterator[tuple[int, int, Any]]:
        """Where a limit ended an episode: step, env_id, final observation."""
        for step, ends in self._finals.items():
            for column, k in ends:
                if self._by_limit[step][column]:
                    yield step, column, copies_at(k, self.rollout.final_observations)

    def play(self) -> tuple[Any, Any, Any, list[dict[str, Any]]]:
        """The next step: observations, rewards, dones, infos."""
        step, rollout = self._played, self.rollout
        self.pass_steps(1)
        observations = copies_at(step, rollout.shifted_observations)
        given, infos = self._infos.get(step, {}), []
        for env_id, by_limit in enumerate(self._by_limit[step]):
            infos.append(info := given.get(env_id) or {})
            info["TimeLimit.truncated"] = by_limit
        for column, k in self._finals.get(step, ()):
            infos[column]["terminal_observation"] = copies_at(k, rollout.final_observations)
        return observations, rollout.rewards[step].copy(), self.dones[step].copy(), infos


class PlayedRounds:
    """Asks a pool for one round after the other, ahead of time if it is told to.

    Args:
        pool: synchronous.
        parts: in which it collects what the model takes for one rollout.
        with_random_state: whether to bring torch's random state of the first worker along.

    Attributes:
        seconds: for which the driver has waited.
    """

    def __init__(self, pool: AsyncWorkerPool, parts: int, with_random_state: bool) -> None:
        self._pool, self._parts, self._with_random_state = pool, parts, with_random_state
        self._bounds = np.cumsum([0, *pool._session.workers.shares]).tolist()
        self._is_waiting = False
        self._stream: Iterator[Rollout | None] = pool.rollouts(wait=lambda: self._is_waiting)
        self._early: Rollout | None = None
        self._number = self._left = 0
        self.seconds = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether there are parts that have not been taken."""
        return self._left > 0

    def begin(self, policy: Any, settings: Mapping[str, Any]) -> None:
        """Have the workers collect by this policy."""
        self._number += 1
        self._pool.publish(policy, round=self._number, **settings)
        self._left = self._parts
        self.go_on()

    def go_on(self) -> None:
        """Have them collect the next part."""
        self._is_waiting = False
        self._early = next(self._stream)

    def take(self) -> Round:
        """Wait for the part that is under way."""
        began = time.perf_counter()
        rollout = self._early
        if rollout is None:
            self._is_waiting = True
            rollout = cast(Rollout, next(self._stream))
        self._left, self._early = self._left - 1, None
        told = self._pool.call("told", self._with_random_state and not self._left, env_ids=self._bounds[:-1])
        self.seconds += time.perf_counter() - began
        return Round(rollout, told, is_final=not self._left)

    def restart(self, seeds: Sequence[int | None]) -> Any:
        """Begin an episode in every environment; the first observations, ``[num_envs, ...]``."""
        if self.is_under_way:
            self._left = 1
            self.take()
        questions = {w: (list(seeds[a:b]),) for w, (a, b) in enumerate(itertools.pairwise(self._bounds))}
        answers = self._pool._session.ask_workers("restart", questions)
        return [np.concatenate(parts) for parts in zip(*(answers[w] for w in sorted(answers)), strict=True)]


def copies_at(index: int, tree: Any) -> Any:
    """A row of every array in a tree."""
    return map_trees(lambda rows: np.array(rows[index]), tree)
