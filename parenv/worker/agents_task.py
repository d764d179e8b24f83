"""The task of a pool's worker whose policies have names: rollouts of several agents into slots, answers to calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from parenv.envs.agents import QuestionedEnv, acts_in_turns, check_has_agents, spaces_of, with_agents
from parenv.envs.fitting import Fit
from parenv.envs.make import make_envs
from parenv.envs.seeding import RandomState, environment_seed, random_state, set_random_state
from parenv.memory.agent_layout import agents_layout, agents_spec
from parenv.memory.spaces import describe
from parenv.protocol.messages import Commit, Credit, Layout, Ready
from parenv.worker.aec_agents import AECAgentsCollector
from parenv.worker.agent_assignments import AgentAssignments
from parenv.worker.agent_writing import AgentWriter
from parenv.worker.agents_collecting import AgentsCollector
from parenv.worker.agents_evaluation import AgentsEvaluation
from parenv.worker.agents_probing import probe_agents
from parenv.worker.collecting_task import CollectingTask
from parenv.worker.differentiating import NOTHING_LEARNED, Differentiator
from parenv.worker.job import AgentsJob
from parenv.worker.parallel_agents import ParallelAgentsCollector
from parenv.worker.policy_set import PolicySet
from parenv.worker.replacing import Replacements
from parenv.worker.stamping import RolloutTimer
from parenv.worker.writing import SlotWriters


class AgentsTask(CollectingTask[AgentsJob]):
    """Collects a rollout of all agents for each credit, and answers what it is asked between two of them."""

    _collector: AgentsCollector
    _evaluation: AgentsEvaluation | None = None
    _loaded = (-1, -1)
    _resumed: tuple[Any, Any, bool] | None = None

    def ready(self) -> Ready:
        """What the driver needs to know of the sub-environments."""
        return Ready([describe(space) for space in self._spaces], len(self._envs), self._about, [], [])

    def lay_out(self, layout: Layout, mapping: Any) -> None:
        """Be told where everything lies in shared memory, all of which is mapped there."""
        job, (observed, acted) = self._job, self._spaces
        about = (list(job.policy), layout.extras, job.gradient_bytes, job.infos)
        spec = agents_spec(job.rollout_length, observed, acted, *about)
        self._writers = SlotWriters(AgentWriter, agents_layout, spec, layout, len(self._envs), mapping)

        def make_policy_set(job: AgentsJob) -> PolicySet:
            return PolicySet(job, self._load_job, spec, mapping, self._fit)

        self._policy_set = make_policy_set(job)
        self._collector = self._asked = self._collecting(self._policy_set, self._envs, job, self._first)
        if job.options.on_env_error == "restart_env":
            first, generation = self._env_ids.start, self._sender.generation
            self._collector.replacements = Replacements(job, self._collector, first, generation, self._progress)
        self._evaluation = AgentsEvaluation(
            self._collecting,
            job,
            self._sender.worker,
            self._progress,
            self._policy_set,
            lambda: make_policy_set(self._load_job()),
        )
        self._differentiator = None if job.gradient is None else Differentiator(job.gradient, job.policy)
        self._timer = RolloutTimer(self._sender.generation)

    def _start(self) -> None:
        job, sender, progress = self._job, self._sender, self._progress
        self._env_ids, self._fit = job.env_ids(sender.worker), Fit.of(job.options, self._output.warn)
        self._envs = self._make_envs(self._env_ids)
        self._spaces = spaces_of(self._envs, self._env_ids.start)
        self._first: list[Any] = []
        """What the resets returned."""
        for env_id, env in zip(self._env_ids, self._envs, strict=True):
            progress.begin("reset", env_id)
            self._first.append(env.reset(seed=environment_seed(job.seed, env_id, sender.generation)))
        self._about: dict[str, Any] = {}
        """What rollouts hold; in worker 0 only."""
        if sender.worker == 0:
            progress.begin("act")
            with RandomState(0):

                def make() -> Any:
                    return self._make_envs(self._env_ids[:1], self._envs)[0]

                self._about = probe_agents(self._load_job(), self._envs, self._first, self._spaces, self._fit, make)

    def _make_envs(self, env_ids: range, others: Sequence[Any] = ()) -> list[Any]:
        """Make sub-environments, none of which may be one of the others."""
        made = make_envs(self._job.factories, env_ids, self._progress, others, check_has_agents)
        return [with_agents(env) for env in made]

    def _close_envs(self) -> None:
        for env in self._envs:
            env.close()

    def _collecting(
        self, policy_set: PolicySet, envs: list[Any], job: AgentsJob, first: Sequence[Any] = ()
    ) -> AgentsCollector:
        """What collects in these sub-environments, or, where there are none yet, in some beside those of the training.

        Args:
            policy_set: the policies.
            envs: the sub-environments.
            job: from its seed it is drawn who plays.
            first: what resets returned that have been done already.
        """
        envs = envs or self._make_envs(self._env_ids, self._envs)
        kind = AECAgentsCollector if acts_in_turns(envs[0]) else ParallelAgentsCollector
        assignments = AgentAssignments(job, policy_set, self._env_ids, self._sender.generation)
        return kind(envs, assignments, self._progress, first)

    def _load(self, version: int, serial: int, snapshot: bytes) -> int:
        if (version, serial) != self._loaded:
            self._progress.begin("loading the policy")
            begins = not self._policy_set.table
            # A load that fails may leave parts of both versions: the next rollout must not trust the old number.
            self._loaded = (-1, -1)
            self._policy_set.load(serial, snapshot)
            self._collector.assignments.settle()
            if begins and self._resumed is not None:
                state, seeds, broken = self._resumed
                self._collector.set_state(state["collector"], seeds, broken)
                set_random_state(state["random"])
            elif begins:
                self._collector.begin([None] * len(self._envs))
            self._loaded = (version, serial)
        return version

    def _get_state(self) -> dict[str, Any]:
        columns, has_begun = range(len(self._envs)), bool(self._policy_set.table)
        envs = self._collector.each("get_state", QuestionedEnv.get_state, columns)
        return {
            "envs": envs if has_begun else [None] * len(envs),
            "collector": self._collector.get_state() if has_begun else None,
            "random": random_state(),
            "generation": self._sender.generation,
        }

    def _set_state(self, state: dict[str, Any], generation: int, broken: bool) -> list[int]:
        """Go on where another worker was, as soon as the policies are there; the columns that begin anew."""
        if state["collector"] is None:
            return []
        for env, saved in zip(self._collector.envs, state["envs"], strict=True):
            if saved is not None:
                QuestionedEnv(env).set_state(saved)
        anew = [column for column, saved in enumerate(state["envs"]) if saved is None]
        seeds = {column: environment_seed(self._job.seed, self._env_ids[column], generation) for column in anew}
        self._resumed = (state, seeds, broken)
        return anew

    def _collect(self, credit: Credit) -> Commit:
        """Produce the rollout of a credit and stamp its slot."""
        assert self._evaluation is not None
        self._timer.begin()
        self._load(credit.policy_version, credit.weights_slot, credit.snapshot)
        writer = self._writers[credit.slot]
        seconds, learned = self._collector.collect(writer), NOTHING_LEARNED
        if self._job.postprocess is not None:
            self._progress.begin("postprocess")
            self._postprocess(self._job.postprocess, writer, credit.policy_version)
        if self._differentiator is not None:
            self._progress.begin("loss_fn")
            rollout = self._collector.rollout(writer, self._sender.worker, credit.policy_version)
            learned = self._differentiator.run(rollout.to(self._job.device), writer.groups[0].gradient)
        self._progress.begin("commit")
        self._timer.stamp(writer.groups[0], credit, seconds, learned)
        in_use = {*self._collector.assignments.indices_in_use, *self._evaluation.indices_in_use}
        report = [self._collector.env_steps, credit.weights_slot, sorted(in_use), learned.metrics]
        return Commit(credit.sequence, {}, report, self._collector.take_replaced())

    def _postprocess(self, function: Callable[[Any, Any], Any], writer: AgentWriter, version: int) -> None:
        """Call the user's ``postprocess`` with each policy and what its agents did."""
        assignments = self._collector.assignments
        for group in writer.groups:
            group.blank_postprocessed()
        for name, rows in self._collector.rollout(writer, self._sender.worker, version).items():
            if not rows.num_steps:
                continue
            mine = assignments.spec.found[self._policy_set.table[name].of]
            given = replace(rows, extras={e.name: rows.extras[e.name] for e in mine.extras if not e.postprocessed})
            returned = self._policy_set.actors[name].postprocess(function, given)
            stored = assignments.spec.stored(self._policy_set.table[name].of)
            places = assignments.rows_of(rows.env_ids, rows.agents)
            writer.groups[mine.group].add({stored[n]: v for n, v in returned.items()}, places, rows.alive)
