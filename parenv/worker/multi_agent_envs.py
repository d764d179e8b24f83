"""Sub-environments of named policies: make them, report their rollouts, and build the task that collects them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from parenv.envs.agents import acts_in_turns, check_has_agents, spaces_of, with_agents
from parenv.envs.fitting import Fit
from parenv.envs.make import make_envs
from parenv.envs.seeding import RandomState, environment_seed
from parenv.memory.agent_layout import agents_spec
from parenv.memory.spaces import describe
from parenv.protocol.messages import Layout, Ready
from parenv.worker.aec_agents import AECLoop
from parenv.worker.agent_assignments import AgentAssignments
from parenv.worker.agent_episodes import EpisodesOfAgents
from parenv.worker.agents_collector import AgentsCollector
from parenv.worker.collect_task import CollectTask
from parenv.worker.evaluation import AgentsEpisodeRunner, Evaluation, Within
from parenv.worker.job import Job
from parenv.worker.parallel_agents import ParallelLoop
from parenv.worker.policy_set import PolicySet
from parenv.worker.probes import probe_agents
from parenv.worker.replacements import Replacements
from parenv.worker.task import Context
from parenv.worker.writing import AgentWriter, SlotWriters


class MultiAgentEnvs:
    """Sub-environments of several agents, or of one agent with a named policy, that have been made and reset.

    Worker 0 also acts once with copies of the policies, to find out what a rollout contains.

    Args:
        context: Job of the task, and its connections to the worker.
    """

    def __init__(self, context: Context[Job]) -> None:
        self._context, job, sender, status = context, context.job, context.sender, context.status
        self._env_ids, self._fit = job.env_ids(sender.worker), Fit.of(job.options, context.output.warn)
        self._envs = self._make_envs(self._env_ids)
        self._scratch_envs: list[Any] = []
        self._spaces = spaces_of(self._envs, self._env_ids.start)
        self._resets = []
        for env_id, env in zip(self._env_ids, self._envs, strict=True):
            status.begin("reset", env_id)
            self._resets.append(env.reset(seed=environment_seed(job.seed, env_id, sender.generation)))
        self._contents: dict[str, Any] = {}
        """Contents of a rollout as plain data; empty in other workers than worker 0."""
        if sender.worker == 0:
            status.begin("act")
            with RandomState(0):
                self._contents = probe_agents(
                    context.load_job(), self._envs, self._resets, self._spaces, self._fit, self._make_one
                )

    def ready(self) -> Ready:
        """Return what the driver needs for the layout."""
        return Ready([describe(space) for space in self._spaces], len(self._envs), self._contents, [], [])

    def lay_out(self, layout: Layout, mapping: Any) -> CollectTask:
        """Build the task from the layout of the slots and the shared memory."""
        context, job, names = self._context, self._context.job, list(self._context.job.policies)
        spec = agents_spec(job.rollout_length, *self._spaces, names, layout.extras, job.gradient_bytes, job.infos)
        writers = SlotWriters(AgentWriter, spec, layout, len(self._envs), mapping)

        def make_policies(job: Job) -> PolicySet:
            return PolicySet(job, context.load_job, spec, mapping, self._fit)

        policies = make_policies(job)
        collector = self._collector(policies, self._envs, job, self._resets, job.options.on_env_error == "restart_env")
        evaluation = Evaluation(context, lambda: policies, make_policies, self._begin_episodes)
        return CollectTask(context, self._env_ids, collector, writers, evaluation)

    def close(self) -> None:
        """Close all sub-environments of the training and of evaluations."""
        with contextlib.ExitStack() as stack:
            for env in reversed((*self._envs, *self._scratch_envs)):
                stack.callback(env.close)

    def _make_envs(self, env_ids: range, others: Sequence[Any] = ()) -> list[Any]:
        """Make sub-environments. None of them may be one of the others."""
        made = make_envs(self._context.job.factories, env_ids, self._context.status, others, check_has_agents)
        return [with_agents(env) for env in made]

    def _make_one(self) -> Any:
        return self._make_envs(self._env_ids[:1], self._envs)[0]

    def _collector(
        self, policies: PolicySet, envs: list[Any], job: Job, resets: Sequence[Any] = (), replaces: bool = False
    ) -> AgentsCollector:
        """Make a collector.

        Args:
            policies: Policies that act.
            envs: Sub-environments.
            job: Job with the seed of ``policy_of``.
            resets: Return values of resets that have been done already.
            replaces: Whether environments that raise are replaced.
        """
        (worker, generation), status = self._context.sender, self._context.status
        assignments = AgentAssignments(job, policies, self._env_ids, generation)
        episodes = EpisodesOfAgents(envs, assignments, status, resets)
        if replaces:
            episodes.replacements = Replacements(job, episodes, self._env_ids.start, generation, status)
        loop = AECLoop(episodes) if acts_in_turns(envs[0]) else ParallelLoop(episodes)
        return AgentsCollector(episodes, loop, worker)

    def _begin_episodes(self, policies: PolicySet, seed: int, episodes: int, within: Within) -> AgentsEpisodeRunner:
        """Begin the episodes of an evaluation in sub-environments that are made for the first one."""
        self._scratch_envs = envs = self._scratch_envs or self._make_envs(self._env_ids, self._envs)
        collector = self._collector(policies, envs, replace(self._context.job, seed=seed))
        collector.assignments.update_policies()
        collector.begin(np.random.SeedSequence(seed).generate_state(len(envs)).tolist())
        names = {row.index: name for name, row in policies.table.items()}
        return AgentsEpisodeRunner(collector, episodes, names, within)
