"""What a run costs by part, and from that the env steps per second that other settings would reach: pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from parenv.options import Mode, Parallelism

RolloutLength = int | Literal["episode"]
HANDLING_S = 300e-6
"""What a rollout of a worker costs the driver, where the run has had no workers: ``python benchmarks/driver.py``."""


@dataclass(frozen=True)
class Setting:
    """What advice is about.

    Args:
        mode: ``"sync"`` or ``"async"``.
        parallelism: ``"experience"`` or ``"gradient"``.
        num_workers: worker processes; 0: everything in the driver.
        num_envs: sub-environments in all.
        rollout_length: ``T``, or ``"episode"``.
    """

    mode: Mode
    parallelism: Parallelism
    num_workers: int
    num_envs: int
    rollout_length: RolloutLength

    def __str__(self) -> str:
        names = ("num_workers", "num_envs", "mode", "parallelism", "rollout_length")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    @property
    def processes(self) -> int:
        """Who steps: the workers, or the driver."""
        return max(1, self.num_workers)

    @property
    def batch(self) -> int:
        """Sub-environments of a worker."""
        return -(-self.num_envs // self.processes)

    @property
    def env_steps_of_a_rollout(self) -> int:
        """In sync mode a rollout comes from all workers; an update learns from one rollout."""
        return self.length * (self.num_envs if self.mode == "sync" else self.batch)

    @property
    def length(self) -> int:
        """``T``, or 1 for whole episodes, whose lengths do not change with the setting."""
        return 1 if self.rollout_length == "episode" else self.rollout_length


@dataclass(frozen=True)
class Costs:
    """Seconds per env step unless said otherwise, and what they were measured with.

    Args:
        setting: of the run.
        cores: that it could use.
        env_steps_per_second: that it made.
        environment_s: of a worker, in the environment.
        acting_s: of a worker, in the policy.
        commit_s: of a worker, for everything else but learning and waiting.
        worker_learning_s: of a worker, in ``loss_fn`` and backward.
        waiting_s: of a worker, for a credit.
        learner_s: of the driver, between two rollouts.
        learner_processor_s: its processor time.
        handling_s: processor time of the driver for receiving rollouts.
        publishing_s: of the driver.
        waiting_for_workers_s: of the driver.
        unevenness: standard deviation of the time for a rollout over its mean.
        sleeping: share of its busy time that a worker spends off the processor, waiting for something outside.
        can_share_learning: whether workers may learn, too: there is a ``loss_fn``.
        update_s: of the driver for an update, however small its rollout; ``None`` where one size was measured.
        learner_device: on which the policy's module lives in the driver.
        worker_device: on which workers acted.
        accelerator: what device there is for the policy's module beside the CPU, or ``None``.
        acting_at: by device, seconds for acting once, by batch; empty if not measured, and never without the CPU.
        learning_at: the same for forward and backward, seconds per sample, by mini-batch.
    """

    setting: Setting
    cores: int
    env_steps_per_second: float
    environment_s: float
    acting_s: float
    commit_s: float
    worker_learning_s: float
    waiting_s: float
    learner_s: float
    learner_processor_s: float
    handling_s: float
    publishing_s: float
    waiting_for_workers_s: float
    unevenness: float
    sleeping: float
    can_share_learning: bool
    update_s: float | None = None
    learner_device: str = "cpu"
    worker_device: str = "cpu"
    accelerator: str | None = None
    acting_at: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    learning_at: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def learning_s(self) -> float:
        """Learning from an env step, wherever it happens."""
        return self.learner_s + self.worker_learning_s

    @property
    def update_seconds(self) -> float:
        """Of the driver, for learning from one rollout."""
        return self.learner_s * self.setting.env_steps_of_a_rollout

    @property
    def collecting_s(self) -> float:
        """Collecting an env step: environment, acting and writing it down."""
        return self.environment_s + self.acting_s + self.commit_s

    @property
    def beside_acting_s(self) -> float:
        """What else an env step costs a worker."""
        return self.environment_s + self.commit_s + self.worker_learning_s

    @property
    def ratio(self) -> float:
        """R: collecting over learning."""
        return self.collecting_s / self.learning_s if self.learning_s > 0 else math.inf

    def at(self, setting: Setting) -> Costs:
        """What they would be in another setting."""
        fewer = setting.env_steps_of_a_rollout / self.setting.env_steps_of_a_rollout
        fewer_messages = setting.length * setting.batch / (self.setting.length * self.setting.batch)
        cheaper = self._acting_per_row(self.setting.batch) / self._acting_per_row(setting.batch)
        handling_s = self.handling_s / fewer_messages
        if setting.num_workers and not self.setting.num_workers:
            handling_s = HANDLING_S / (setting.length * setting.batch)
        acting_s = self.acting_s / cheaper
        asleep_s, busy_s = self.sleeping * (self.acting_s + self.beside_acting_s), acting_s + self.beside_acting_s
        return replace(
            self,
            setting=setting,
            acting_s=acting_s,
            sleeping=min(1.0, asleep_s / busy_s) if busy_s > 0 else self.sleeping,
            learner_s=self.learning_from(setting.env_steps_of_a_rollout),
            handling_s=handling_s,
            publishing_s=self.publishing_s / fewer,
        )

    def learning_from(self, env_steps: int) -> float:
        """What the driver's learning from an env step would be in updates from so many.

        Where one size was measured, smaller updates are taken to cost as much, larger ones as much per env step:
        of what is not known, the worse.
        """
        now = self.setting.env_steps_of_a_rollout
        if self.update_s is None:
            return self.learner_s * max(1.0, now / env_steps)
        return max(0.0, self.learner_s - self.update_s / now) + self.update_s / env_steps

    def acting_once_s(self, batch: int, device: str) -> float:
        """Acting once on a batch, between those that were measured; as much per row as the largest beyond it."""
        curve = self.acting_at[device]
        batches = sorted(curve)
        beyond = max(1.0, batch / batches[-1])
        return beyond * float(np.interp(batch, batches, [curve[n] for n in batches]))

    def _acting_per_row(self, batch: int) -> float:
        return self.acting_once_s(batch, "cpu") / batch if self.acting_at else 1.0


def fixed_seconds(update_s: Mapping[int, float]) -> float:
    """What an update costs whatever its size, from two sizes that were measured.

    Args:
        update_s: seconds of an update, by the env steps that it learns from.

    >>> fixed_seconds({1: 1.5, 4: 3.0})
    1.0
    """
    (few, few_s), (many, many_s) = sorted(update_s.items())
    per_env_step = max(0.0, many_s - few_s) / (many - few)
    return max(0.0, many_s - per_env_step * many)


def steps_per_second(costs: Costs, setting: Setting) -> float:
    """The env steps per second that a setting would reach.

    In sync mode the times of a round add up: the slowest worker, then the learner. Of ``W`` workers whose times are
    normal with deviation ``s``, the slowest takes about ``s * sqrt(2 ln W)`` longer than the mean (an upper bound of
    the expected maximum; Boucheron, Lugosi, Massart, *Concentration Inequalities*, 2013, section 2.5). In async mode
    the scarcest of three decides: the workers, the learner, or the cores that all of them share.

    Args:
        costs: of a run.
        setting: another one.
    """
    there = costs.at(setting)
    on_worker_s, on_learner_s = _learning_parts(costs, setting)
    busy_s, workers = there.collecting_s + on_worker_s, setting.num_workers
    if workers == 0:
        return 1 / (busy_s + on_learner_s + there.publishing_s)
    learner_s = on_learner_s + there.publishing_s + there.handling_s
    processor_share = max(1 - there.sleeping, 1e-9)
    if setting.mode == "sync":
        slowest = 1 + there.unevenness * math.sqrt(2 * math.log(workers))
        return 1 / (busy_s * slowest / min(workers, costs.cores / processor_share) + learner_s)
    threads = costs.learner_processor_s / costs.learner_s if costs.learner_s > 0 else 1.0
    on_cores_s = busy_s * processor_share + on_learner_s * threads + there.publishing_s + there.handling_s
    return min(workers / busy_s, 1 / max(learner_s, 1e-12), costs.cores / on_cores_s)


def _learning_parts(costs: Costs, setting: Setting) -> tuple[float, float]:
    """Learning per env step on a worker and in the driver; a worker has one thread, the learner perhaps more."""
    if setting.parallelism == costs.setting.parallelism:
        return costs.worker_learning_s, costs.learning_from(setting.env_steps_of_a_rollout)
    if setting.parallelism == "gradient":
        threads = max(1.0, costs.learner_processor_s / costs.learner_s) if costs.learner_s > 0 else 1.0
        return threads * costs.learning_from(setting.length * setting.batch), 0.0
    return 0.0, costs.worker_learning_s + costs.learner_s
