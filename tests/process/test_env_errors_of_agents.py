"""Check ``on_env_error="restart_env"`` with multi-agent environments that raise exceptions."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
from sampling import one_in
from scripted_agents import (
    AGENTS,
    Counter,
    Ledger,
    Scripted,
    ScriptedTurns,
    act,
    delivered,
    plain_loop,
    plain_turns,
    species,
)

from parenv import AsyncWorkerPool, ConfigurationError, RestartPolicy, Stop, WorkerOptions

OFTEN = RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=2e-3)
NUM_ENVS = 4

pytestmark = pytest.mark.usefixtures("warnings_are_expected")


class SimulatorError(RuntimeError):
    """Exception that the main process can import too."""


def last_call(env_id: int) -> tuple[str, int]:
    """Return the method in which an environment raises an exception, and the number of the call."""
    return ("reset", 2 + env_id % 3) if env_id % 4 == 3 else ("step", 1 + env_id * 7 % 23)


class Breaks:
    """Mixin that raises an exception in the call of :func:`last_call` and in all later ones."""

    error: Any = SimulatorError

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id)  # type: ignore[call-arg]
        self.calls = {"step": 0, "reset": 0}

    def reset(self, seed: int | None = None) -> Any:
        self.call("reset")
        return super().reset(seed)  # type: ignore[misc]

    def step(self, action: Any) -> Any:
        if action is not None:
            self.call("step")
        return super().step(action)  # type: ignore[misc]

    def call(self, name: str) -> None:
        self.calls[name] += 1
        doing, last = last_call(self.env_id)  # type: ignore[attr-defined]
        if name == doing and self.calls[name] >= last:
            raise self.error("the motor is hot")


class Breaking(Breaks, Scripted):
    """Environment with agents that act in parallel, which raises an exception."""


class BreakingTurns(Breaks, ScriptedTurns):
    """Environment with agents that act in turn, which raises an exception."""


def breaking(kind: Any) -> list[Any]:
    """Return factories of environments that all have different numbers, also if one replaces another."""

    def maker(env_id: int) -> Any:
        made: list[int] = []

        def make() -> Any:
            made.append(env_id + NUM_ENVS * len(made))
            return kind(made[-1])

        return make

    return [maker(env_id) for env_id in range(NUM_ENVS)]


def transitions_until_the_exception(kind: Any, env_id: int) -> Ledger:
    """Return the transitions of an environment in a plain loop until it raises the exception."""
    turns = issubclass(kind, ScriptedTurns)
    doing, last = last_call(env_id)
    if doing == "step":
        return plain_turns(env_id, last) if turns else plain_loop(env_id, last - 1)[0]
    every = plain_turns(env_id, 300) if turns else plain_loop(env_id, 60)[0]
    return {key: [one for one in ledger if one.observation[1] < last - 1] for key, ledger in every.items()}


@pytest.mark.parametrize(
    ("kind", "mode", "num_workers"), one_in(3, [Breaking, BreakingTurns], ["sync", "async"], [0, 2])
)
def test_a_replaced_environment_truncates_its_agents_and_loses_no_transition(
    kind: Any, mode: Any, num_workers: int
) -> None:
    workers = WorkerOptions(restart=OFTEN, on_env_error="restart_env")
    found: Ledger = {}
    counts: dict[tuple[int, str], int] = {}
    cut = restarted = 0
    with AsyncWorkerPool(
        breaking(kind), {"hen": Counter(), "fox": Counter()}, policy_of=species, num_workers=num_workers, mode=mode,
        rollout_length=5, workers=workers,
    ) as pool:  # fmt: skip
        for rollout in pool.rollouts(Stop(env_steps=1200)):
            for rows in rollout.values():
                mine: Ledger = {}
                delivered(rows, mine)
                for (_, agent), steps in mine.items():
                    for step in steps:
                        found.setdefault((step.observation[0], agent), []).append(step)
                restarted += int(rows.restarted.sum())
                check_carry(rows, counts)
                ends = rows.terminated | rows.truncated
                assert (rows.next_observations()[..., 0] == rows.observations[..., 0])[rows.alive].all()
                assert len(rows.episodes) == ends.sum()
        statistics = pool.statistics()
    assert statistics.worker_restarts == 0
    assert statistics.env_restarts > 20
    made = {env_id for env_id, _ in found}
    broken = {env_id for env_id in made if env_id + NUM_ENVS in made}
    for env_id in broken:
        wanted = transitions_until_the_exception(kind, env_id)
        for agent in AGENTS:
            expected, lived = wanted.get((env_id, agent), []), found.get((env_id, agent), [])
            assert [one._replace(truncated=False) for one in lived] == [
                one._replace(truncated=False) for one in expected
            ]
            assert lived[:-1] == expected[:-1]
            cut += lived[-1:] != expected[-1:]
    assert cut > 10
    assert restarted > 5


def check_carry(rows: Any, counts: dict[tuple[int, str], int]) -> None:
    """Check that the carry counts the steps of each life of an agent and is 0 after a restart."""
    for row, agent in enumerate(rows.agents):
        begun, steps = rows.initial_carry["steps"][row], rows.extras["steps"][:, row]
        assert rows.alive[0, row] or not rows.restarted[row] or begun == 0
        for step in np.flatnonzero(rows.alive[:, row]):
            key = int(rows.observations[step, row, 0]), agent
            assert steps[step] == counts.get(key, 0)
            assert step > 0 or begun == steps[0]
            counts[key] = 0 if rows.terminated[step, row] or rows.truncated[step, row] else int(steps[step]) + 1


def test_env_steps_that_raised_an_exception_are_not_counted() -> None:
    workers = WorkerOptions(restart=OFTEN, on_env_error="restart_env")
    with AsyncWorkerPool(
        breaking(Breaking), {"hen": act, "fox": act}, policy_of=species, num_workers=0, mode="sync", rollout_length=5,
        workers=workers,
    ) as pool:  # fmt: skip
        for rollout in pool.rollouts(Stop(env_steps=300)):
            there = np.zeros((5, NUM_ENVS), bool)
            for rows in rollout.values():
                for row, env_id in enumerate(rows.env_ids.tolist()):
                    there[:, env_id] |= rows.alive[:, row]
            assert rollout.num_steps == there.sum()


@pytest.mark.parametrize("kind", [Breaking, BreakingTurns])
def test_an_environment_that_always_raises_is_an_error_after_max_restarts(kind: Any) -> None:
    workers = WorkerOptions(restart=RestartPolicy(max_restarts=2, backoff_s=1e-3), on_env_error="restart_env")
    with AsyncWorkerPool(
        lambda: kind(0), {"hen": act, "fox": act}, policy_of=species, num_workers=1, workers=workers
    ) as pool:
        with pytest.raises(SimulatorError, match="the motor is hot"):
            next(pool.rollouts())
        assert pool.closed


def test_a_replacement_must_have_the_same_agents() -> None:
    class Fewer(Breaking):
        def __init__(self, env_id: int) -> None:
            super().__init__(env_id)
            self.possible_agents = list(AGENTS[: 5 - env_id // NUM_ENVS])

    workers = WorkerOptions(restart=RestartPolicy(max_restarts=2), on_env_error="restart_env")
    with (
        pytest.raises(ConfigurationError, match="must have agents with the same spaces"),
        AsyncWorkerPool(
            breaking(Fewer)[:2], {"hen": act, "fox": act}, policy_of=species, num_workers=1, workers=workers
        ) as pool,
    ):
        next(pool.rollouts())


@pytest.mark.parametrize("kind", [Scripted, ScriptedTurns])
@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (np.array([1.0, 2.0]), "a sequence for agent 'fox_0'. Return one number"),
        ([1.0], "[1.0], a sequence of one for"),
        (None, "None for"),
        ("x", "'x' for"),
    ],
    ids=["array", "list", "none", "text"],
)
def test_a_wrong_reward_of_an_agent_is_an_error_that_names_it_and_the_env_id(kind: Any, wrong: Any, got: str) -> None:
    class Wrong(kind):  # type: ignore[misc]
        def reward(self, agent: str, action: int) -> Any:
            return wrong

        def last(self) -> Any:
            observation, _, *flags, info = super().last()
            return observation, wrong, *flags, info

        def step(self, action: Any) -> Any:
            if kind is Scripted:
                return super().step(action)
            with contextlib.suppress(TypeError):  # It adds rewards, of which some are not numbers.
                super().step(action)

    message = "^" + re.escape(f"the reward of env_id 1 must be a number, got {got}")
    with (
        AsyncWorkerPool(
            [lambda: kind(0), lambda: Wrong(1)], {"hen": Counter(), "fox": Counter()}, policy_of=species, num_workers=0,
            rollout_length=5,
        ) as pool,
        pytest.raises((TypeError, ValueError), match=message),
    ):  # fmt: skip
        next(pool.rollouts())


@pytest.mark.parametrize("kind", [Scripted, ScriptedTurns])
@pytest.mark.parametrize("wrong", [[False, False], np.array([False, True])], ids=["list", "array"])
def test_a_wrong_flag_of_an_agent_is_an_error_that_names_it_and_the_env_id(kind: Any, wrong: Any) -> None:
    class Wrong(kind):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            found = super().step(action)
            return found if found is None else (*found[:2], dict.fromkeys(found[2], wrong), *found[3:])

        def last(self) -> Any:
            observation, reward, _, truncated, info = super().last()
            return observation, reward, wrong, truncated, info

    with (
        pytest.raises((TypeError, ValueError), match=r"^terminated of env_id 1 .* a boolean, got .* for agent .fox"),
        AsyncWorkerPool(
            [lambda: kind(0), lambda: Wrong(1)], {"hen": Counter(), "fox": Counter()}, policy_of=species, num_workers=0,
            rollout_length=5,
        ) as pool,
    ):  # fmt: skip
        next(pool.rollouts())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (({}, {}, {}, {}), r"step must return \(observation, .* got 4 values"),
        (({}, 1.0, {}, {}, {}), "the rewards of env_id 0 must be a dict by agent, got 1.0"),
    ],
    ids=["four values", "one reward"],
)
def test_a_step_of_agents_with_a_wrong_result_is_an_error_with_the_right_format(returned: Any, message: str) -> None:
    class Wrong(Scripted):
        def step(self, actions: Any) -> Any:
            return returned

    with (
        AsyncWorkerPool(
            [lambda: Wrong(0)], {"hen": Counter(), "fox": Counter()}, policy_of=species, num_workers=0
        ) as pool,
        pytest.raises((TypeError, ValueError), match=message),
    ):
        next(pool.rollouts())
