"""The row loop of a worker with one sub-environment, in one function.

Such a worker waits most of the time, and other workers use the processor meanwhile. After a wait the caches are empty,
so each function call and each object costs more than its work. This loop therefore has few of them. The loop for any
number of sub-environments takes over 10 % more processor time per row in the median, for steps that wait and for
CartPole.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from parenv.envs.make import Stepper
from parenv.envs.returned import NOTHING, explain_step
from parenv.envs.stepping import EnvStepper
from parenv.errors import ObservationError
from parenv.memory.status_slot import StatusSlot, code
from parenv.worker.actor import Actor
from parenv.worker.writing import RolloutWriter

ACT = code("act")


class StopCollectingError(Exception):
    """The main process wants this worker to end."""


def single_env(stepper: Stepper, actor: Actor, writer: RolloutWriter) -> EnvStepper | None:
    """Return the stepper if :func:`fill_rows` supports it: one sub-environment, single arrays, and no named infos."""
    if type(stepper) is not EnvStepper or stepper.num_envs > 1 or writer.infos:
        return None
    return stepper if stepper.writes_arrays and actor.plain_act is not None else None


def fill_rows(
    stepper: EnvStepper, actor: Actor, carry: Any, writer: RolloutWriter, status: StatusSlot, env_steps: int
) -> tuple[Any, float]:
    """Fill a rollout, as ``SingleAgentCollector`` does for any number of sub-environments.

    Args:
        stepper: Stepper of one sub-environment.
        actor: Actor that chooses the actions.
        carry: Carry of the policy.
        writer: Writer of the rollout, already begun.
        status: Status slot of the worker.
        env_steps: Number of env steps before this rollout.

    Returns:
        Carry of the policy, and seconds of acting.

    Raises:
        StopCollectingError: The main process wants this worker to end.
    """
    clock, array, acting = perf_counter, np.ndarray, 0.0
    cell, heartbeat, closing = status.cell, status.heartbeat, status.closing
    act, observed, fit = actor.plain_act, actor.observing(writer), actor.actions
    wanted, wanted_shape = fit.dtype, (1, *fit.shape)
    step_env, step_code, split, dtype, shape, write, end = stepper.only()
    observations, written, rewards = writer.own["observations", 0], writer.own["actions", 0], writer.rewards
    returned: Any = NOTHING
    assert act is not None
    for row in range(len(rewards)):
        if closing[0]:
            raise StopCollectingError
        cell[0] = ACT
        heartbeat[0] += 1
        began = clock()
        actions, extras, carry = act(observed(row), carry)
        if type(actions) is not array or actions.dtype is not wanted or actions.shape != wanted_shape:
            actions = fit.fitted((actions,), 1)[0].astype(wanted)
        written[row] = actions
        if extras:
            writer.write_extras(extras, row)
        acting += clock() - began
        cell[0] = step_code
        try:
            returned = observation, reward, terminated, truncated, info = step_env(split((actions,))[0])
            if reward is None:  # numpy would store NaN.
                raise TypeError
            rewards[row, 0] = reward
            if terminated or truncated:
                observation = end(writer, row, 0, observation, (terminated, truncated), info)
            if type(observation) is array and observation.dtype is dtype and observation.shape == shape:
                observations[row + 1, 0] = observation
            else:
                write((observations[row + 1],), 0, observation)
        except ObservationError as error:
            error.args = (f"in env step {env_steps + row + 1}: {error.args[0]}",)
            raise
        except Exception as error:
            explain_step(error, returned, status.env_id)
            raise
    return carry, acting
