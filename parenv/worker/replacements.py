"""Replace sub-environments that raise, for ``on_env_error="restart_env"``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import methodcaller
from typing import Any

from parenv.envs.seeding import environment_seed
from parenv.envs.values import Rows
from parenv.experience.failures import MAX_TRACEBACK
from parenv.memory.status_slot import StatusSlot
from parenv.process.restart_limit import RestartLimit
from parenv.worker.failures import text_of, traceback_of
from parenv.worker.job import Job
from parenv.worker.single_agent_collector import SingleAgentCollector
from parenv.worker.writing import RolloutWriter


class Replacements:
    """Replaces sub-environments that raise, as often as ``RestartPolicy`` allows.

    Args:
        job: Job with the factories, the limit and the seed.
        stepper: Sub-environments, with a method ``replace``.
        first_env_id: env_id of the first sub-environment.
        generation: Generation of the process.
        status: Status slot of the worker.
    """

    def __init__(self, job: Job, stepper: Any, first_env_id: int, generation: int, status: StatusSlot) -> None:
        self.stepper = stepper
        self._job, self._first, self._generation, self._status = job, first_env_id, generation, status
        self._restart_limit = RestartLimit(job.options.restart, len(stepper.envs))
        self._counts = [0] * len(stepper.envs)
        self._causes: list[list[Any]] = []
        self._values: dict[int, dict[str, Any]] = {}

    def note_values(self, columns: Sequence[int], values: Sequence[Any], name: str) -> None:
        """Keep values of an attribute for the new environments of these columns."""
        for column, value in zip(columns, values, strict=True):
            self._values.setdefault(column, {})[name] = value

    def take_causes(self) -> list[list[Any]]:
        """Return ``[env_id, doing, exception, traceback]`` of each replacement since the last call."""
        causes, self._causes = self._causes, []
        return causes

    def make(self, column: int, error: BaseException) -> Any:
        """Make another environment for a column; return what its reset returned.

        Raises:
            BaseException: The last error, if there were more errors than the limit allows.
        """
        status, env_id = self._status, self._first + column
        while True:
            doing = status.doing
            if self._restart_limit.died(column, time.monotonic()) is None:
                status.begin(doing, env_id)
                raise error
            text = f"{type(error).__qualname__}: {text_of(error)}"
            self._causes.append([env_id, doing, text, traceback_of(error)[-MAX_TRACEBACK:]])
            self._counts[column] += 1
            try:
                status.begin("making the environment", env_id)
                self.stepper.replace(column, self._job.factories.make(env_id))
                for name, value in self._values.get(column, {}).items():
                    self.stepper.each("set_attr", methodcaller("set_wrapper_attr", name, value), [column])
                status.begin("reset", env_id)
                seed = environment_seed(self._job.seed, env_id, self._generation, self._counts[column])
                return self.stepper.envs[column].reset(seed=seed)
            except Exception as another:
                error = another


class ReplacingCollector(SingleAgentCollector):
    """Collects although sub-environments raise.

    The episode of the old environment is truncated at its last transition. If that is in the previous rollout, the
    column is flagged in ``restarted``. The policy acts once more for this column, on the first observation of the new
    environment, so that every row is a real transition.

    Args:
        replacements: Factory of the new environments.
        *arguments: Arguments of :class:`~parenv.worker.single_agent_collector.SingleAgentCollector`.
        **more: Keyword arguments of it.
    """

    def __init__(self, replacements: Replacements, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.replacements = replacements
        self._step = self._step_and_replace

    def _step_and_replace(self, actions: Rows, rows: Rows, step: int, writer: RolloutWriter) -> None:
        stepper, first = self.replacements.stepper, 0
        while True:
            try:
                stepper.step(actions, rows, step, writer, first)
                return
            except (Exception, SystemExit) as error:
                failed = self._status.env_id - int(self.env_ids[0])
                first = self._replace(failed, error, rows, step, writer)

    def _replace(self, column: int, error: BaseException, rows: Rows, step: int, writer: RolloutWriter) -> int:
        stepper, seen = self.replacements.stepper, writer.observations[step]
        places = {(end.step, end.column) for end in writer.ends}
        observation, info = self.replacements.make(column, error)
        if (step, column) in places:
            stepper.begin(column, observation, rows)
            writer.infos.write_first(step + 1, column, info)
            return column + 1
        if not step:
            writer.plain["restarted"][column] = True
            stepper.tally.forget(column)
        elif (step - 1, column) not in places:
            stepper.break_off(column, seen, step - 1, writer)
        stepper.begin(column, observation, seen)
        writer.infos.write_first(step, column, info)
        self._act_again(column, step, writer)
        return column

    def _act_again(self, column: int, step: int, writer: RolloutWriter) -> None:
        self._status.begin("act")
        carry = self._carry_before
        if carry is not None:
            carry = self.actor.with_rows(carry, self.actor.initial_carry(self.stepper.num_envs), [column])
            self._carry_before = carry
            if not step:
                writer.write_carry(carry)
        infos = writer.infos.seen[step] if writer.infos.seen else {}
        actions, extras, following = self.actor.act(writer.observations[step], carry, infos)
        writer.rewrite_action(step, column, self.actor.actions.fitted(actions, self.stepper.num_envs), extras)
        self.check_actions([row[column : column + 1] for row in writer.action_rows[step]], step, column)
        if carry is not None:
            self._carry = self.actor.with_rows(self._carry, following, [column])
