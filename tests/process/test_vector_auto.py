"""Check that the number of workers is chosen from the first sub-environment, which is not changed or made again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import hypothesis.strategies as st
import numpy as np
import pytest
from comparison import assert_same
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given

from parenv import ParallelVectorEnv, WorkerOptions
from parenv.envs import step_cost
from parenv.envs.step_cost import StepCost, measured_step
from parenv.testing import LedgerEnv
from parenv.vector import beginning
from parenv.vector.choice import Choice, Measured
from parenv.vector.first_worker import FirstWorker

N = 4
COST = StepCost(step_s=5e-6, wait_s=0.0, spread_s=0.0, queued=0.0, others=0.0)
LAYOUTS = [(0, 4), (1, 0), (1, 2), (2, 0), (2, 1), (4, 0)]
"""Numbers of workers and of sub-environments of this process."""


def cartpole() -> Any:
    return gym.make("CartPole-v1", max_episode_steps=6)


def choose_always(monkeypatch: pytest.MonkeyPatch, workers: int, here: int = 0) -> None:
    monkeypatch.setattr(beginning, "choose", lambda *_: Choice(workers, here, "the test says so"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("make", "mode"),
    [
        (cartpole, AutoresetMode.NEXT_STEP),
        (cartpole, AutoresetMode.SAME_STEP),
        # In SAME_STEP mode, SyncVectorEnv returns the array that the environment reuses.
        (lambda: LedgerEnv(0, 3), AutoresetMode.NEXT_STEP),
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_traces_equal_those_of_sync_vector_env_whatever_is_chosen(
    make: Any, layout: tuple[int, int], mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_always(monkeypatch, *layout)
    with (
        contextlib.closing(ParallelVectorEnv([make] * N, autoreset_mode=mode)) as envs,
        contextlib.closing(SyncVectorEnv([make] * N, autoreset_mode=mode)) as reference,
    ):
        assert (envs.num_workers, envs.choice.num_caller_envs) == layout
        reference.action_space.seed(0)
        for seed in (3, None, [7, None, 9, 11]):
            assert_same(envs.reset(seed=seed), reference.reset(seed=seed))
            for _ in range(8):
                actions = reference.action_space.sample()
                assert_same(envs.step(actions), reference.step(actions))


class Noted(gym.Env[Any, Any]):
    """Environment that appends a line to a file when it is made, and draws from global generators.

    Args:
        file: Path of the file.
        make_s: Seconds for which the constructor waits.
        step_s: Seconds for which a step waits.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, file: Path, make_s: float = 0.0, step_s: float = 0.0) -> None:
        with file.open("a") as lines:
            lines.write(f"{os.getpid()}\n")
        self._step_s = step_s
        time.sleep(make_s)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full(2, random.random() + np.random.rand() - 1, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_first_sub_environment_is_made_twice_and_only_to_move_to_this_process(
    layout: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_always(monkeypatch, *layout)
    file = tmp_path / "made"
    with contextlib.closing(ParallelVectorEnv([lambda: Noted(file)] * N)):
        makers = file.read_text().split()
    assert len(makers) == (N if layout[0] else N + 1)
    assert makers.count(str(os.getpid())) == layout[1]


def test_a_sub_environment_whose_constructor_waits_long_is_not_awaited_and_made_once(tmp_path: Path) -> None:
    file = tmp_path / "made"
    with contextlib.closing(ParallelVectorEnv([lambda: Noted(file, make_s=0.5)] * N)) as envs:
        assert len(file.read_text().split()) == N
        assert envs.num_workers >= 1
        assert envs.reset(seed=0)[0].shape == (N, 2)


class Locked(gym.Env[Any, Any]):
    """Environment that holds a lock, so that it can exist once at a time."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, path: Path) -> None:
        self._lock = os.open(path, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(2, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        os.close(self._lock)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sub_environment_that_can_exist_only_once_begins_in_every_layout(
    layout: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured(0.0, "", 0, COST)
    choices = iter([Choice(*layout, "the test says so"), Choice(2, 0, "of the lock")])
    monkeypatch.setattr(beginning, "choose", lambda *_: next(choices))
    monkeypatch.setattr(FirstWorker, "measured", _after(FirstWorker.measured, measured))
    makers = [lambda i=i: Locked(tmp_path / f"lock{i}") for i in range(N)]
    with contextlib.closing(ParallelVectorEnv(makers)) as envs:
        assert envs.num_workers == (layout[0] or 2)
        envs.reset(seed=0)
        assert envs.step(np.zeros(N, np.int64))[0].tolist() == [[1.0, 1.0]] * N


def _after(function: Any, value: Any) -> Any:
    def both(*arguments: Any) -> Any:
        function(*arguments)
        return value

    return both


@pytest.fixture
def long_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a measurement end on a machine of any load."""
    monkeypatch.setattr(step_cost, "MAX_MEASURE_S", 60.0)


@pytest.mark.usefixtures("long_measurements")
def test_a_step_that_waits_is_told_from_a_step_that_computes(tmp_path: Path) -> None:
    waiting, computing = measured_step(Noted(tmp_path / "made", step_s=0.002)), measured_step(cartpole())
    assert waiting is not None
    assert waiting.wait_s > 0.001 > waiting.step_s
    assert computing is not None
    assert computing.step_s > 0.0 == computing.wait_s


def test_as_many_workers_as_chosen_step_an_environment_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Measured(0.0, "", 0, COST._replace(wait_s=0.02))
    monkeypatch.setattr(FirstWorker, "measured", lambda _: measured)
    with contextlib.closing(ParallelVectorEnv([lambda: Noted(tmp_path / "made", step_s=0.02)] * 8)) as envs:
        assert envs.num_workers == 8
        assert "waits for 20 ms" in str(envs.choice)
        assert envs.measured_step_s == pytest.approx(0.020005)
        envs.reset(seed=0)
        envs.step(np.zeros(8, np.int64))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"step_timeout_s": 60.0}, "step_timeout_s"),
        ({"on_worker_death": "restart"}, 'on_worker_death="restart"'),
        ({"batch_size": 2}, "batch_size"),
        ({"workers": WorkerOptions(reset_timeout_s=60.0)}, r"WorkerOptions\(reset_timeout_s"),
        ({"workers": WorkerOptions(setup_fn=lambda worker: None)}, r"WorkerOptions\(setup_fn"),
    ],
)
def test_arguments_about_processes_are_isolation(options: dict[str, Any], name: str) -> None:
    with contextlib.closing(ParallelVectorEnv([cartpole] * N, **options)) as envs:
        assert envs.num_workers >= 1
        assert envs.num_caller_envs == 0
        assert name.replace("\\", "") in str(envs.choice)


def test_a_given_number_of_workers_is_obeyed_without_a_measurement() -> None:
    for workers in (0, 1, 3):
        with contextlib.closing(ParallelVectorEnv([cartpole] * N, num_workers=workers)) as envs:
            assert envs.num_workers == workers
            assert envs.measured_step_s is None
            assert f"num_workers={workers} was given" in str(envs.choice)


class Strict(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that raises an error in every step."""

    def step(self, action: Any) -> Any:
        raise LookupError("an illegal move")


class Deadly(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that ends its process in every step."""

    def step(self, action: Any) -> Any:
        os._exit(3)


class Connected(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that holds a connection, of which there is no copy."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._connection = socket.socket()

    def close(self) -> None:
        self._connection.close()


class Threaded(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper with a thread, which a fork would not copy."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ended.wait, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.parametrize("kind", [Strict, Deadly, Connected, Threaded])
def test_what_cannot_be_measured_is_stepped_only_by_the_user(kind: Any) -> None:
    with contextlib.closing(ParallelVectorEnv([lambda: kind(cartpole())] * N)) as envs:
        assert envs.measured_step_s is None
        assert "could not be measured" in str(envs.choice)
        envs.reset(seed=1)


class Stuck(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper whose steps wait for a minute."""

    def step(self, action: Any) -> Any:
        time.sleep(60)


class StuckReset(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper whose resets wait for a minute."""

    def reset(self, **options: Any) -> Any:
        time.sleep(60)


def test_a_measurement_ends_although_a_step_or_a_reset_does_not() -> None:
    # On a machine of high load, the measurement may not come as far as the first step.
    cost = measured_step(Stuck(cartpole()))
    assert cost is None or cost.wait_s > 0.0
    assert measured_step(StuckReset(cartpole())) is None


@pytest.mark.usefixtures("long_measurements")
def test_a_measurement_changes_no_environment_and_no_random_state() -> None:
    env = LedgerEnv(0, 3)
    env.action_space.seed(5)
    env.reset(seed=1)
    before = random.getstate(), np.random.get_state(), env.action_space.np_random.bit_generator.state
    assert measured_step(env) is not None
    assert_same((random.getstate(), np.random.get_state(), env.action_space.np_random.bit_generator.state), before)
    assert env.step(0)[0].tolist() == [0, 0, 1]


def test_the_error_of_a_constructor_is_raised_as_it_is() -> None:
    def broken() -> Any:
        raise LookupError("no such level")

    with pytest.raises(LookupError, match="no such level"):
        ParallelVectorEnv([broken] * N)
    with pytest.raises(LookupError, match="no such level"):
        ParallelVectorEnv([*[cartpole] * 3, broken])


def test_native_code_stays_isolated_from_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FirstWorker, "measured", lambda _: Measured(0.0, "Box2D", 0, COST))
    with contextlib.closing(ParallelVectorEnv([cartpole] * N)) as envs:
        assert envs.num_workers >= 1
        assert envs._look._demand.isolated_by == "Box2D"


@pytest.mark.parametrize(("spread_s", "rows"), [(0.0, 8), (0.05, 4)])
def test_recv_returns_fewer_rows_if_steps_take_different_times(
    monkeypatch: pytest.MonkeyPatch, spread_s: float, rows: int
) -> None:
    measured = Measured(0.0, "", 0, COST._replace(step_s=0.01, spread_s=spread_s))
    monkeypatch.setattr(FirstWorker, "measured", lambda _: measured)
    with contextlib.closing(ParallelVectorEnv([cartpole] * 8, num_workers=2, batch_size="auto")) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(8, np.int64))
        observations = envs.recv()[0]
        assert (envs.batch_size, envs.measured_step_s) == (len(observations), 0.01) == (rows, 0.01)
        assert len(envs.recv(batch_size=1)[0]) == 1 if rows < 8 else True


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "caller_steps": True}])
def test_an_automatic_batch_size_goes_with_every_layout(options: dict[str, Any]) -> None:
    with contextlib.closing(ParallelVectorEnv([cartpole] * N, batch_size="auto", **options)) as envs:
        assert 1 <= envs.batch_size <= N


def test_without_a_measurement_an_automatic_batch_size_is_all_rows() -> None:
    make = lambda: Strict(cartpole())  # noqa: E731
    with contextlib.closing(ParallelVectorEnv([make] * N, num_workers=2, batch_size="auto")) as envs:
        assert envs.batch_size == N


@given(st.integers(1, 256), st.integers(1, 32), *[st.floats(1e-7, 1.0)] * 3)
def test_the_rows_of_a_batch_are_at_least_those_of_a_worker(
    num_envs: int, workers: int, step_s: float, spread_s: float, call_s: float
) -> None:
    workers = min(workers, num_envs)
    cost = COST._replace(step_s=step_s, spread_s=spread_s)
    rows = beginning.rows_of_batch(num_envs, workers, cost, call_s)
    assert num_envs // workers <= rows <= num_envs
