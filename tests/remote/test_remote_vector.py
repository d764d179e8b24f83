"""Check vector envs with workers on hosts: results bitwise identical to SyncVectorEnv, and failures.

Most hosts are threads of this process, which start quickly and share its fork server. Tests that lose a host start
separate processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from audits import VectorAudit, until
from comparison import assert_same
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from inside import workers_of
from sampling import one_in
from without_torch import WithoutElements
from worker_hosts import NearHosts

import parenv
from parenv import ConfigurationError, ParallelVectorEnv, WorkerDiedError, WorkerTimeoutError
from parenv.errors import HostLostError
from parenv.testing import LedgerEnv

MODES = list(AutoresetMode)
CLOCK = ("t",)
N = 5


@pytest.fixture
def near(hosts: Any) -> Iterator[NearHosts]:
    made = NearHosts(hosts)
    try:
        yield made
    finally:
        made.end()


class Words(gym.Env[Any, Any]):
    """Environment with nested observations, actions and infos of many types, some without a fixed size."""

    observation_space = spaces.Dict(
        {
            "text": spaces.Text(8),
            "graph": spaces.Graph(spaces.Box(-9, 9, (2,), np.float64), None),
            "box": spaces.Box(-9, 9, (3,), np.float64),
            "n": spaces.Discrete(5),
        }
    )
    action_space = spaces.Dict({"said": spaces.Text(4), "move": spaces.Box(-1, 1, (2,), np.float32)})

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {"fresh": True}

    def step(self, action: Any) -> Any:
        self.steps += 1
        draw = int(self.np_random.integers(4))
        info = [
            {},
            {"x": 1.5, "nested": {"steps": self.steps}},
            {"word": action["said"], "x": 2.0},
            {"array": np.full(3, self.steps, np.int32), "pair": [1, "a"]},
        ][draw]
        return self._observation(), float(action["move"].sum()), self.steps == 5, draw == 3 and self.steps > 3, info

    def _observation(self) -> Any:
        random = self.np_random
        nodes = int(random.integers(1, 4))
        return {
            "text": "abcdefgh"[: int(random.integers(1, 8))],
            "graph": spaces.GraphInstance(random.normal(size=(nodes, 2)).clip(-9, 9), None, None),
            "box": random.normal(size=3).clip(-9, 9),
            "n": random.integers(5),
        }


def recorded() -> Any:
    return gym.wrappers.RecordEpisodeStatistics(gym.make("MountainCarContinuous-v0", max_episode_steps=6))


class Triggered(LedgerEnv):
    """LedgerEnv that calls ``act`` before each step with action 1, and has attributes and methods to query."""

    render_mode = "rgb_array"
    label = "none"

    def __init__(self, env_id: int, act: Callable[[], Any] = lambda: None) -> None:
        super().__init__(env_id)
        self._act = act

    def step(self, action: Any) -> Any:
        if action:
            self._act()
        return super().step(action)

    def render(self) -> Any:
        return np.full((2, 2, 3), self._buffer[0], np.uint8)

    def add(self, one: int, other: int = 0) -> int:
        return int(self._buffer[0]) + one + other

    def wait(self) -> None:
        time.sleep(0.5)


def triggered(act: Callable[[], Any] = lambda: None, num_envs: int = N) -> list[Callable[[], Any]]:
    return [lambda env_id=env_id: Triggered(env_id, act) for env_id in range(num_envs)]  # type: ignore[misc]


def actions_for(*env_ids: int, num_envs: int = N) -> Any:
    actions = np.zeros(num_envs, np.int64)
    actions[list(env_ids)] = 1
    return actions


def hang() -> None:
    threading.Event().wait()


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.one_in(7)
@pytest.mark.filterwarnings("ignore:the actions should have dtype:UserWarning")
@pytest.mark.parametrize(
    ("make", "num_local", "mode"),
    [*one_in(2, [(recorded, 0), (Words, 1)], MODES), (WithoutElements, 1, AutoresetMode.SAME_STEP)],
)
def test_results_are_identical_to_sync_vector_env(
    near: NearHosts, make: Any, num_local: int, mode: AutoresetMode
) -> None:
    near.start(1, 1)
    placement = near.placement(num_local=num_local)
    envs = ParallelVectorEnv([make] * N, num_workers=2 + num_local, autoreset_mode=mode, placement=placement)
    reference = SyncVectorEnv([make] * N, autoreset_mode=mode)
    draw = np.random.default_rng(0)
    with contextlib.closing(envs), contextlib.closing(reference):
        assert (envs.action_space, envs.observation_space) == (reference.action_space, reference.observation_space)
        assert (envs.metadata, envs.render_mode) == (reference.metadata, reference.render_mode)
        reference.action_space.seed(1)
        options: Any = None
        for call in range(80):
            if call % 20 == 0 or options is not None:
                seed = [None, call, [call, None, 3, 4, None]][call % 3] if call else 7
                # The reference removes the mask from the dict, so it must be called second.
                got = envs.reset(seed=seed, options=options)
                assert_same(got, reference.reset(seed=seed, options=options), CLOCK, f"reset before step {call}")
            actions = reference.action_space.sample()
            if make is recorded and call % 10 > 6:
                actions = actions.astype(np.float64)
            wanted = reference.step(actions)
            assert_same(envs.step(actions), wanted, CLOCK, f"step {call}")
            ended = wanted[2] | wanted[3]
            options = None
            if mode is AutoresetMode.DISABLED and ended.any():
                options = {"reset_mask": ended}
            elif call % 7 == 0:
                options = {"reset_mask": (draw.random(N) < 0.5) | (np.arange(N) == 0)}
    near.end()
    assert near.exit_codes == [0, 0]


def test_a_worker_that_dies_is_an_error_and_closes_the_env_and_its_hosts(near: NearHosts) -> None:
    near.start(2)
    envs = ParallelVectorEnv(triggered(kill_me), num_workers=2, placement=near.placement())
    with contextlib.closing(envs):
        envs.reset()
        pid = workers_of(envs).pid(1)
        with pytest.raises(WorkerDiedError, match=r"worker 1 .* SIGKILL.* during env\.step\(\) of env_id 3") as raised:
            envs.step(actions_for(3))
        assert (raised.value.pid, raised.value.env_ids) == (pid, (3, 4))
        with pytest.raises(ClosedEnvironmentError):
            envs.reset()
    near.end()
    assert near.exit_codes == [0]


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_a_dead_worker_is_restarted_on_a_host_with_capacity(near: NearHosts) -> None:
    near.start(2)
    envs = ParallelVectorEnv(
        triggered(),
        num_workers=3,
        autoreset_mode=AutoresetMode.SAME_STEP,
        on_worker_death="restart",
        placement=near.placement(num_local=1),
    )
    with contextlib.closing(envs):
        ledgers = VectorAudit(envs)
        for killed in (1, 0, 2, 1):
            for _ in range(10):
                ledgers.step()
            os.kill(workers_of(envs).pid(killed), signal.SIGKILL)
            before = ledgers.restarts.sum()
            while ledgers.restarts.sum() == before:
                ledgers.step()
        ledgers.step()
        assert ledgers.restarts.tolist() == [1, 1, 2, 2, 1]


@pytest.mark.usefixtures("warnings_are_expected")
@pytest.mark.parametrize("mode", one_in(2, [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED]))
def test_a_restart_truncates_the_last_observation_once_more(near: NearHosts, mode: AutoresetMode) -> None:
    near.start(2)
    envs = ParallelVectorEnv(
        triggered(kill_me), num_workers=2, autoreset_mode=mode, on_worker_death="restart", placement=near.placement()
    )
    with contextlib.closing(envs):
        last, _ = envs.reset()
        observations, rewards, _, truncated, infos = envs.step(actions_for(4))
        assert observations[3:].tolist() == last[3:].tolist()
        assert truncated.tolist()[3:] == infos["worker_restarted"].tolist()[3:] == [True] * 2
        assert rewards[3:].tolist() == [0.0] * 2
        if mode is AutoresetMode.DISABLED:
            envs.reset(options={"reset_mask": truncated | (np.arange(N) == 0)})
        assert envs.step(actions_for())[0][3:, 1:].tolist() == (
            [[0, 1], [0, 1]] if mode is AutoresetMode.DISABLED else [[0, 0], [0, 0]]
        )


@pytest.mark.more
@pytest.mark.parametrize("on_worker_death", one_in(2, ["raise", "restart"]))
@pytest.mark.usefixtures("warnings_are_expected")
def test_a_step_that_hangs_is_cut_and_its_stack_shown(near: NearHosts, on_worker_death: Any) -> None:
    near.start(2)
    envs = ParallelVectorEnv(
        triggered(hang), num_workers=2, step_timeout_s=2.0, on_worker_death=on_worker_death, placement=near.placement()
    )
    with contextlib.closing(envs):
        envs.reset()
        if on_worker_death == "restart":
            _, _, _, truncated, infos = envs.step(actions_for(3))
            assert infos["worker_restarted"].tolist() == [False] * 3 + [True] * 2
            assert truncated[3:].all()
            return
        with pytest.raises(
            WorkerTimeoutError, match=r"within step_timeout_s=2 s during env\.step\(\) of env_id 3"
        ) as raised:
            envs.step(actions_for(3))
        assert "in hang" in str(raised.value)


@pytest.mark.more
def test_a_lost_host_is_an_error_that_names_it(hosts: Any) -> None:
    (host,) = hosts.start(2)
    envs = ParallelVectorEnv(triggered(), num_workers=2, placement=hosts.placement())
    with contextlib.closing(envs):
        envs.reset()
        host.kill()
        with pytest.raises(HostLostError, match=r"worker [01] .* is gone: the connection to it was lost"):
            until(lambda: False, lambda: envs.step(actions_for()))


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_no_row_is_lost_or_doubled_while_hosts_are_killed(hosts: Any, near: NearHosts) -> None:
    running = hosts.start(2, 2)
    envs = ParallelVectorEnv(
        triggered(num_envs=8),
        num_workers=4,
        autoreset_mode=AutoresetMode.SAME_STEP,
        on_worker_death="restart",
        placement=hosts.placement(num_local=1),
    )
    with contextlib.closing(envs):
        ledgers = VectorAudit(envs)
        near.start(3)
        until(lambda: workers_of(envs).placement.traffic().hosts == 3, ledgers.step)
        while running:
            for _ in range(100):
                ledgers.step()
            running.pop(0).kill()
            until(lambda: workers_of(envs).placement.traffic().hosts == 1 + len(running), ledgers.step)
        for _ in range(100):
            ledgers.step()
        generations = [workers_of(envs).generation(worker) for worker in range(4)]
        assert ledgers.restarts.tolist() == np.repeat(generations, 2).tolist()
        assert generations[0] == 0
        assert sum(generations) >= 3


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_workers_of_a_lost_host_wait_for_another_up_to_the_limit_of_a_start(
    near: NearHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.start(1)
    envs = ParallelVectorEnv(
        triggered(),
        num_workers=2,
        on_worker_death="restart",
        workers=parenv.WorkerOptions(start_timeout_s=15.0),
        placement=near.placement(num_local=1),
    )
    with contextlib.closing(envs):
        envs.reset()
        near.leave(0)
        later = threading.Timer(0.3, near.start, (1,))
        later.start()
        infos = envs.step(actions_for())[4]
        later.join()
        assert infos["worker_restarted"].tolist() == [False] * 3 + [True] * 2
        assert infos["ended_by"][3:].tolist() == ["host_lost"] * 2
        assert "worker_restarted" not in envs.step(actions_for())[4]
        near.leave(1)
        waits, listen, began = [0], workers_of(envs).listen, time.monotonic()

        def counted(*arguments: Any) -> None:
            waits[0] += 1
            listen(*arguments)

        monkeypatch.setattr(workers_of(envs), "listen", counted)
        with pytest.raises(
            WorkerTimeoutError, match=r"worker 1 \(env_ids 3-4\) must get a host within start_timeout_s=15 s"
        ):
            envs.step(actions_for())
        assert time.monotonic() - began >= 15.0
        # The local worker's answer must not wake the main process repeatedly.
        assert waits[0] < 40


@pytest.mark.more
@pytest.mark.usefixtures("warnings_are_expected")
def test_a_worker_that_is_overdue_on_a_host_that_is_silent_is_started_again_elsewhere(
    hosts: Any, near: NearHosts
) -> None:
    (silent,) = hosts.start(1)
    envs = ParallelVectorEnv(
        triggered(),
        num_workers=1,
        step_timeout_s=2.0,
        on_worker_death="restart",
        placement=hosts.placement(silence_s=1.0),
    )
    with contextlib.closing(envs):
        envs.reset()
        near.start(1)
        until(lambda: workers_of(envs).placement.traffic().hosts == 2, lambda: envs.call("add", 1))
        silent.send_signal(signal.SIGSTOP)
        assert envs.step(actions_for())[4]["worker_restarted"].all()
        assert workers_of(envs).placement.traffic().hosts == 1
        assert "worker_restarted" not in envs.step(actions_for())[4]


def test_large_rows_arrive_complete(near: NearHosts) -> None:
    class Large(LedgerEnv):
        def __init__(self, env_id: int) -> None:
            super().__init__(env_id)
            self.observation_space = spaces.Box(0, 255, (3, 100_000), np.uint8)

        def reset(self, **options: Any) -> Any:
            super().reset(**options)
            return self._large(), {"long": np.arange(90.0)}

        def step(self, action: Any) -> Any:
            _, *others, _ = super().step(action)
            return (self._large(), *others, {"long": np.arange(90.0) + self._buffer[2]})

        def _large(self) -> Any:
            return np.random.default_rng(self._buffer.tolist()).integers(0, 255, (3, 100_000), np.uint8)

    factories = [lambda env_id=env_id: Large(env_id) for env_id in range(3)]
    near.start(1)
    envs = ParallelVectorEnv(factories, num_workers=1, placement=near.placement())
    with contextlib.closing(envs), contextlib.closing(SyncVectorEnv(factories)) as reference:
        assert_same(envs.reset(), reference.reset())
        for _ in range(5):
            actions = np.zeros(3, np.int64)
            assert_same(envs.step(actions), reference.step(actions))


def test_invalid_arguments_are_refused_before_the_driver_listens(hosts: Any) -> None:
    placement = hosts.placement()
    for num_workers in (None, 0, "auto"):
        with pytest.raises(ConfigurationError, match="num_workers must be the number of workers on all hosts together"):
            ParallelVectorEnv(triggered(), num_workers=num_workers, placement=placement)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="num_local must be at most num_workers=2, got 3"):
        ParallelVectorEnv(triggered(), num_workers=2, placement=hosts.placement(num_local=3))
    with pytest.raises(ConfigurationError, match="placement must be None, a RemotePlacement or a RayPlacement"):
        ParallelVectorEnv(triggered(), num_workers=2, placement="here")  # type: ignore[arg-type]


def test_rows_larger_than_max_message_bytes_are_refused(near: NearHosts) -> None:
    class Large(LedgerEnv):
        def __init__(self) -> None:
            super().__init__(0)
            self.observation_space = spaces.Box(0, 1, (1 << 16,), np.uint8)

    near.start(1)
    with pytest.raises(ConfigurationError, match=r"at most max_message_bytes=65,536 bytes, got 6\d,\d{3}"):
        ParallelVectorEnv([Large], num_workers=1, placement=near.placement(max_message_bytes=1 << 16))


def test_make_vec_takes_a_placement(near: NearHosts) -> None:
    near.start(1)
    envs = parenv.make_vec("CartPole-v1", num_envs=3, vector_kwargs={"num_workers": 1}, placement=near.placement())
    with contextlib.closing(envs):
        assert envs.reset(seed=1)[0].shape == (3, 4)
        assert workers_of(envs).placement.traffic().hosts == 1


def test_hosts_step_in_another_interpreter(near: NearHosts) -> None:
    made, options = parenv.entry_point("CartPole-v1"), parenv.WorkerOptions(python=sys.executable)
    near.start(2)
    envs = ParallelVectorEnv([made] * 4, num_workers=2, placement=near.placement(), workers=options)
    reference = SyncVectorEnv([made] * 4)
    with envs, contextlib.closing(reference):
        assert_same(envs.reset(seed=2), reference.reset(seed=2))
        for _ in range(60):
            actions = np.ones(4, int)
            assert_same(envs.step(actions), reference.step(actions))
