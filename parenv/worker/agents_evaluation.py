"""Evaluating where several agents act: whole episodes in sub-environments of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.envs.seeding import RandomState, evaluation_seed
from parenv.memory.agent_layout import AgentsSpec
from parenv.worker.agent_writing import AgentWriter, private_agent_writer
from parenv.worker.agents_collecting import AgentsCollector
from parenv.worker.casting import Cast
from parenv.worker.evaluation import MAX_STEPS
from parenv.worker.job import AgentsJob

Records = list[list[Any]]


def evaluate_agents(collector: AgentsCollector, episodes: int, names: dict[int, str]) -> list[Any]:
    """Play episodes, as many in each sub-environment as in every other, give or take one.

    Args:
        collector: over sub-environments that wait in their first observations.
        episodes: how many.
        names: of policies, by index.

    Returns:
        Of the sub-environments' episodes returns, lengths, seconds and env_ids; and by policy the same of its agents
        with their names and the numbers of the episodes.
    """
    batch, env_ids = len(collector.envs), collector.roster.env_ids
    wanted = [episodes // batch + (column < episodes % batch) for column in range(batch)]
    whole: Records = []
    by_policy: defaultdict[str, Records] = defaultdict(list)
    writer = private_agent_writer(collector.roster.spec, batch)
    parts: defaultdict[tuple[int, int], list[tuple[str, list[Any]]]] = defaultdict(list)
    while any(wanted):
        collector.collect(writer)
        for column, number, name, record in _parts(collector, writer, names):
            parts[column, number].append((name, record))
        for record, number in zip(*writer.groups[0].ended(), strict=True):
            column = int(record["column"])
            if wanted[column]:
                wanted[column] -= 1
                whole.append([*_figures(record), env_ids[column]])
                for name, part in parts.pop((column, number)):
                    by_policy[name].append(part)
    return [*_columns(whole, 4), {name: _columns(records, 6) for name, records in by_policy.items()}]


class AgentsEvaluation:
    """One worker's part of every evaluation.

    Args:
        job: of the worker.
        worker: index of the worker.
        cast: the policies.
    """

    def __init__(self, job: AgentsJob, worker: int, cast: Cast) -> None:
        self._job, self._worker, self._cast = job, worker, cast
        self.envs: Sequence[Any] = ()

    def run(self, make: Any, episodes: int, deterministic: bool, number: int) -> list[Any]:
        """Play episodes by the policies as they are.

        Args:
            make: ``(envs, job) -> collector``; makes the sub-environments too, if there are none yet.
            episodes: how many.
            deterministic: what ``settings["deterministic"]`` says meanwhile.
            number: counts the evaluations.
        """
        job, cast = self._job, self._cast
        seed = evaluation_seed(job.seed, job.first_worker + self._worker, number)
        with RandomState(seed), cast.deterministic(deterministic):
            collector: AgentsCollector = make(self.envs, replace(job, seed=seed))
            self.envs = collector.envs
            seeds = np.random.SeedSequence(seed).generate_state(len(self.envs)).tolist()
            collector.roster.settle()
            collector.begin(seeds)
            return evaluate_agents(collector, episodes, {row.index: name for name, row in cast.table.items()})

    def close(self) -> None:
        """Close its sub-environments."""
        for env in self.envs:
            env.close()


def short(spec: AgentsSpec) -> AgentsSpec:
    """The same with few steps, between two looks at who is done."""
    factor = MAX_STEPS / spec.rollout_length
    return replace(
        spec,
        groups=tuple(
            replace(group, spec=replace(group.spec, rollout_length=round(group.spec.rollout_length * factor)))
            for group in spec.groups
        ),
    )


def _parts(collector: AgentsCollector, writer: AgentWriter, names: dict[int, str]) -> Any:
    """Sub-environment, number of its episode, policy and record of every agent's part that has ended."""
    for group, mine in zip(collector.roster.spec.groups[1:], writer.groups[1:], strict=True):
        for record, number in zip(*mine.ended(), strict=True):
            column, place = divmod(int(record["column"]), len(group.agents))
            name = names[int(mine.policies[record["step"], record["column"]])]
            figures = [*_figures(record), collector.roster.env_ids[column], group.agents[place], number]
            yield column, number, name, figures


def _figures(record: Any) -> list[Any]:
    return [float(record["return"]), int(record["length"]), float(record["seconds"])]


def _columns(records: Records, count: int) -> list[list[Any]]:
    return [list(column) for column in zip(*records, strict=True)] if records else [[] for _ in range(count)]
