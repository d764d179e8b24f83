"""Evaluating where several agents act: whole episodes in sub-environments of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.memory.agent_layout import RowGroup
from parenv.worker.agent_writing import private_agent_writer
from parenv.worker.agents_collecting import AgentsCollector
from parenv.worker.evaluation import MAX_STEPS, EpisodeRunner, Evaluation, Within
from parenv.worker.policy_set import PolicySet

Records = list[list[Any]]


class AgentsEvaluation(Evaluation):
    """Where several agents act.

    Args:
        make_collector: ``(cast, envs, job) -> collector``; makes the sub-environments too, if there are none yet.
        *arguments: as for :class:`~parenv.worker.evaluation.Evaluation`.
    """

    def __init__(self, make_collector: Callable[[PolicySet, list[Any], Any], AgentsCollector], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._make_collector = make_collector
        self._envs: list[Any] = []

    @property
    def indices_in_use(self) -> set[int]:
        """The policies that may act in an evaluation under way beside the training."""
        return set() if self._runner is None else {row.index for row in self._beside.table.values()}

    def close(self) -> None:
        """Close its sub-environments."""
        for env in self._envs:
            env.close()

    def _begin(self, acting: PolicySet, seed: int, episodes: int, within: Within) -> EpisodeRunner:
        collector = self._make_collector(acting, self._envs, replace(self._job, seed=seed))
        self._envs = collector.envs
        collector.assignments.settle()
        collector.begin(np.random.SeedSequence(seed).generate_state(len(self._envs)).tolist())
        return AgentsEpisodeRunner(collector, episodes, {row.index: name for name, row in acting.table.items()}, within)


class AgentsEpisodeRunner(EpisodeRunner):
    """Where several agents act.

    Args:
        collector: over sub-environments that wait in their first observations.
        episodes: how many.
        names: of policies, by index.
        within: as in :class:`~parenv.worker.evaluation.Game`.
    """

    def __init__(self, collector: AgentsCollector, episodes: int, names: Mapping[int, str], within: Within) -> None:
        super().__init__(len(collector.envs), episodes, within)
        self._collector, self._spec, self._names = collector, collector.assignments.spec, names
        self._whole: Records = []
        self._by_policy: defaultdict[str, Records] = defaultdict(list)
        self._parts: defaultdict[tuple[int, int], list[tuple[str, list[Any]]]] = defaultdict(list)
        self._resize(MAX_STEPS)

    def answer(self) -> tuple[Any, ...]:
        """And by policy the same of its agents, with their names and the numbers of the episodes."""
        by_policy = {name: _columns(records, 6) for name, records in self._by_policy.items()}
        return *_columns(self._whole, 4), by_policy

    def _resize(self, steps: int) -> None:
        """Have rollouts be of few steps, between two looks at who is done."""
        factor = steps / self._spec.rollout_length

        def shortened(group: RowGroup) -> RowGroup:
            length = round(group.spec.rollout_length * factor)
            return replace(group, spec=replace(group.spec, rollout_length=length, gradient_bytes=0))

        assignments = self._collector.assignments
        assignments.spec = replace(self._spec, groups=tuple(map(shortened, self._spec.groups)))
        self._writer = private_agent_writer(assignments.spec, len(self._collector.envs))

    def _collect(self, steps: int) -> None:
        collector, env_ids = self._collector, self._collector.assignments.env_ids
        if steps != collector.assignments.spec.rollout_length:
            self._resize(steps)
        collector.collect(self._writer)
        self._note_parts()
        for record, number in zip(*self._writer.groups[0].ended(), strict=True):
            column = int(record["column"])
            if self.wanted[column]:
                self.wanted[column] -= 1
                self._whole.append([*_figures(record), env_ids[column]])
                for name, part in self._parts.pop((column, number)):
                    self._by_policy[name].append(part)

    def _note_parts(self) -> None:
        """Note by sub-environment and episode the policy and record of every agent's part that has ended."""
        assignments = self._collector.assignments
        for group, mine in zip(assignments.spec.groups[1:], self._writer.groups[1:], strict=True):
            for record, number in zip(*mine.ended(), strict=True):
                column, place = divmod(int(record["column"]), len(group.agents))
                name = self._names[int(mine.policies[record["step"], record["column"]])]
                part = [*_figures(record), assignments.env_ids[column], group.agents[place], number]
                self._parts[column, number].append((name, part))


def _figures(record: Any) -> list[Any]:
    return [float(record["return"]), int(record["length"]), float(record["seconds"])]


def _columns(records: Records, count: int) -> list[list[Any]]:
    return [list(column) for column in zip(*records, strict=True)] if records else [[] for _ in range(count)]
