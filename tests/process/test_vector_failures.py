"""Check errors, deaths and timeouts of sub-environments and workers of a vector env, and its state afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from envs import hold_the_gil, kill_oneself, ledgers, segfault, sleep_long, stop_oneself
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode
from inside import generation_of, kill, workers_of

from parenv import (
    ParallelVectorEnv,
    RestartPolicy,
    SubEnvironmentError,
    WorkerDiedError,
    WorkerError,
    WorkerOptions,
    WorkerTimeoutError,
)
from parenv.errors import RestartLimitError, WorkerMemoryError, during
from parenv.process import launcher
from parenv.testing import LedgerEnv
from parenv.testing.ledger import episode_length, ledger_reward
from parenv.vector import backend
from parenv.vector.arguments import each_seed

MODES = list(AutoresetMode)
N = 6


class SimulatorError(RuntimeError):
    code: int
    log: Any


class Faulty(LedgerEnv):
    """Ledger that calls a function at a chosen place.

    Args:
        env_id: Number of the ledger.
        where: ``"constructor"``, ``"reset"``, ``"step"`` (with action 1) or ``"call"``.
        act: Function to call.
        once: File that is created with the first call and prevents further ones. ``None``: no limit.
    """

    def __init__(self, env_id: int, where: str, act: Callable[[], Any], once: Path | None = None) -> None:
        super().__init__(env_id)
        self._where, self._act, self._once = where, act, once
        self._maybe("constructor")

    def reset(self, **kwargs: Any) -> Any:
        self._maybe("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if action:
            self._maybe("step")
        return super().step(action)

    def poke(self) -> None:
        self._maybe("call")

    def _maybe(self, where: str) -> None:
        if where != self._where or (self._once is not None and self._once.exists()):
            return
        if self._once is not None:
            self._once.touch()
        self._act()


def leave() -> None:
    os._exit(5)


def raise_error() -> None:
    error = SimulatorError("the motor is hot")
    error.code, error.log = 3, np.arange(4)
    raise error


def take_a_gigabyte() -> Any:
    return np.ones(1 << 27)


def run_into_it(envs: ParallelVectorEnv) -> None:
    envs.reset()
    envs.step(actions_for(3))
    envs.call("poke")


def some_faulty(
    where: str, act: Callable[[], Any], which: tuple[int, ...] = (3,), once: Path | None = None
) -> list[Callable[[], Any]]:
    def make(env_id: int) -> Callable[[], Any]:
        return lambda: Faulty(env_id, where if env_id in which else "nowhere", act, once)

    return [make(env_id) for env_id in range(N)]


def actions_for(*env_ids: int) -> Any:
    actions = np.zeros(N, np.int64)
    actions[list(env_ids)] = 1
    return actions


@pytest.mark.one_in(3)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("where", ["constructor", "reset", "step", "call"])
def test_an_exception_of_an_environment_keeps_its_type_and_the_others_stay_usable(where: str, num_workers: int) -> None:
    with contextlib.ExitStack() as stack:
        if where == "constructor":
            with pytest.raises(SimulatorError, match="the motor is hot"):
                ParallelVectorEnv(some_faulty(where, raise_error), num_workers=num_workers)
            return
        envs = ParallelVectorEnv(some_faulty(where, raise_error), num_workers=num_workers)
        stack.enter_context(contextlib.closing(envs))
        with pytest.raises(SimulatorError, match="the motor is hot") as raised:
            run_into_it(envs)
        cause = raised.value.__cause__
        assert isinstance(cause, SubEnvironmentError)
        assert (cause.worker, cause.env_id, cause.doing) == (1 if num_workers else 0, 3, where)
        assert (raised.value.code, raised.value.log.tolist()) == (3, [0, 1, 2, 3])
        assert raised.value.log.flags.writeable
        if num_workers:
            assert "raise_error" in cause.remote_traceback
        if where == "reset":
            mask = np.arange(N) != 3
            observations, _ = envs.reset(options={"reset_mask": mask})
        observations, *_ = envs.step(actions_for())
        assert observations[mask if where == "reset" else slice(None), 0].tolist() == (
            [0, 1, 2, 4, 5] if where == "reset" else list(range(N))
        )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_exceptions_of_one_type_raise_the_first_with_a_group_as_cause(num_workers: int) -> None:
    envs = ParallelVectorEnv(some_faulty("step", raise_error, (1, 2, 4)), num_workers=num_workers)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(SimulatorError) as raised:
            envs.step(actions_for(1, 2, 4))
        group = raised.value.__cause__
        assert isinstance(group, ExceptionGroup)
        assert all(type(error) is SimulatorError for error in group.exceptions)
        assert (raised.value.args, vars(raised.value).keys()) == (
            group.exceptions[0].args,
            vars(group.exceptions[0]).keys(),
        )
        causes = [error.__cause__ for error in group.exceptions]
        assert sorted(cause.env_id for cause in causes if isinstance(cause, SubEnvironmentError)) == [1, 2, 4]
        observations, *_ = envs.step(actions_for())
        assert observations[:, 0].tolist() == list(range(N))


@pytest.mark.linux  # Only Linux limits the memory of a process.
@pytest.mark.usefixtures("a_step_takes_a_millisecond")
@pytest.mark.parametrize(
    "where", ["step", *(pytest.param(where, marks=pytest.mark.more) for where in ("constructor", "reset", "call"))]
)
@pytest.mark.parametrize("caller_steps", [False, pytest.param(True, marks=pytest.mark.more)])
def test_an_environment_that_reaches_the_memory_limit_of_its_worker_raises_a_memory_error_with_both(
    where: str, caller_steps: bool
) -> None:
    def reach_the_limit() -> None:
        factories, limited = (
            some_faulty(where, take_a_gigabyte, which=(1,)),
            WorkerOptions(max_memory_bytes=300_000_000),
        )
        envs = ParallelVectorEnv(factories, num_workers=2 - caller_steps, caller_steps=caller_steps, workers=limited)
        with contextlib.closing(envs):
            envs.reset()
            envs.step(actions_for(1))
            envs.call("poke")

    with pytest.raises(WorkerMemoryError, match=r"^worker 0 \(env_ids 0-2\) .*max_memory_bytes=300,000,000 ") as raised:
        reach_the_limit()
    assert isinstance(raised.value, MemoryError)
    assert (raised.value.worker, raised.value.env_ids) == (0, (0, 1, 2))
    assert isinstance(raised.value.__cause__, SubEnvironmentError)
    assert raised.value.__cause__.env_id == 1


def test_a_memory_error_without_a_limit_keeps_its_type() -> None:
    def refuse() -> None:
        raise MemoryError("the simulator is full")

    with contextlib.closing(ParallelVectorEnv(some_faulty("step", refuse), num_workers=2)) as envs:
        envs.reset()
        with pytest.raises(MemoryError, match=r"^the simulator is full$") as raised:
            envs.step(actions_for(3))
    assert type(raised.value) is MemoryError


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("which", [(1,), tuple(range(N))])
def test_a_traceback_has_only_frames_of_the_user_and_each_of_them_once(
    num_workers: int, which: tuple[int, ...]
) -> None:
    with contextlib.closing(
        ParallelVectorEnv(some_faulty("step", raise_error, which), num_workers=num_workers)
    ) as envs:
        envs.reset()
        with pytest.raises(SimulatorError) as raised:
            envs.step(actions_for(*which))
    shown = "".join(traceback.format_exception(raised.value))
    assert "/parenv/" not in shown
    assert shown.endswith("SimulatorError: the motor is hot\n")
    assert 1 <= shown.count(", in raise_error\n") <= 2, "in the group, and above the exception that is raised"
    if len(which) > 1:
        assert shown.count(", with the traceback of env_id 0\n") == len(which) - 1
        causes = [error.__cause__ for error in raised.value.__cause__.exceptions]
        assert len({cause.remote_traceback for cause in causes}) == 1, "each exception keeps it as an attribute"


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_exception_of_several_environments_is_one_line_of_gymnasiums_logger(num_workers: int, where: str) -> None:
    envs = ParallelVectorEnv(some_faulty(where, raise_error, (1, 4)), num_workers=num_workers)
    with contextlib.closing(envs), warnings.catch_warnings(record=True) as lines:
        warnings.simplefilter("always")
        with pytest.raises(SimulatorError):
            run_into_both(envs)
    shown = sorted(str(line.message) for line in lines)
    worker = 1 if num_workers else 0
    assert [f"env_id {env_id} (worker {of}) raised SimulatorError" in line for (env_id, of), line in zip(
        [(1, 0), (4, worker)], shown, strict=True
    )] == [True, True]  # fmt: skip


def run_into_both(envs: ParallelVectorEnv) -> None:
    envs.reset()
    envs.step(actions_for(1, 4))


@pytest.mark.more
def test_sys_exit_in_an_environment_is_an_error_of_the_worker_and_ends_nothing() -> None:
    with contextlib.closing(ParallelVectorEnv(some_faulty("step", sys.exit), num_workers=2)) as envs:
        envs.reset()
        with pytest.raises(WorkerError, match="SystemExit"):
            envs.step(actions_for(3))
        envs.step(actions_for())


DEATHS = {
    "SIGKILL": (kill_oneself, None, signal.SIGKILL),
    "exit": (leave, 5, None),
    "segfault": (segfault, None, signal.SIGSEGV),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("where", ["constructor", "reset", "step", "call"])
def test_the_error_for_a_dead_worker_names_the_environment_and_the_operation(
    where: str, death: str, capfd: pytest.CaptureFixture[str]
) -> None:
    act, exit_code, signum = DEATHS[death]
    envs = None

    def run() -> None:
        nonlocal envs
        envs = ParallelVectorEnv(some_faulty(where, act), num_workers=2)
        run_into_it(envs)

    with pytest.raises(WorkerDiedError) as raised:
        run()
    error = raised.value
    assert (error.worker, error.env_ids, error.exit_code, error.signal) == (1, (3, 4, 5), exit_code, signum)
    doing = {"constructor": "making the environment"}.get(where, where)
    assert f"{during(doing)} of env_id 3" in str(error)
    if envs is not None:
        with pytest.raises(ClosedEnvironmentError):
            envs.reset()
        envs.close()


def receive(envs: ParallelVectorEnv, batches: int) -> None:
    for _ in range(batches):
        envs.recv()


def lengths_are_right(observation: Any, reward: float, ended: bool) -> bool:
    env_id, episode, step = (int(part) for part in observation)
    return reward == ledger_reward(env_id, episode, step) and ended == (step >= episode_length(env_id, episode, 7))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("act", [kill_oneself, leave], ids=["SIGKILL", "exit"])
def test_a_restarted_worker_truncates_its_episodes_and_disturbs_no_other(
    mode: AutoresetMode, act: Callable[[], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = ParallelVectorEnv([lambda i=i: LedgerEnv(i) for i in range(N)], num_workers=0, autoreset_mode=mode)  # type: ignore[misc]
    envs = ParallelVectorEnv(
        some_faulty("step", act, once=tmp_path / "done"), num_workers=2, autoreset_mode=mode, on_worker_death="restart"
    )
    with contextlib.closing(envs), contextlib.closing(reference):
        last, _ = envs.reset(seed=1)
        reference.reset(seed=1)
        ended = reference_ended = np.zeros(N, bool)
        for step in range(30):
            if mode is AutoresetMode.DISABLED and ended.any():
                last, _ = envs.reset(options={"reset_mask": ended})
            if mode is AutoresetMode.DISABLED and reference_ended.any():
                reference.reset(options={"reset_mask": reference_ended})
            was_ended = ended
            found = envs.step(actions_for(3) if step == 4 else actions_for())
            expected = reference.step(actions_for())
            reference_ended = expected[2] | expected[3]
            for mine, theirs in zip(found[:4], expected[:4], strict=True):
                assert np.array_equal(mine[:3], theirs[:3])
            observations, rewards, terminated, truncated, infos = found
            if step == 4:
                flagged = infos["worker_restarted"] & infos["_worker_restarted"]
                assert (
                    flagged.tolist()
                    == [False] * 3 + (~was_ended[3:] if mode is AutoresetMode.NEXT_STEP else np.ones(3, bool)).tolist()
                )
                assert np.array_equal(truncated[3:], flagged[3:])
                assert not terminated[3:].any()
                assert not rewards[3:].any()
                kept = np.flatnonzero(flagged)
                if mode is AutoresetMode.SAME_STEP:
                    assert [infos["final_obs"][i].tolist() for i in kept] == last[kept].tolist()
                    assert observations[kept, 1:].tolist() == [[0, 0]] * 3
                else:
                    assert np.array_equal(observations[kept], last[kept])
            else:
                assert "worker_restarted" not in infos
            last, ended = observations, terminated | truncated
        assert any("is restarted" in record.message for record in caplog.records)


def test_after_a_restart_every_row_continues_without_a_gap(tmp_path: Path) -> None:
    envs = ParallelVectorEnv(
        some_faulty("step", kill_oneself, once=tmp_path / "done"),
        num_workers=3,
        autoreset_mode=AutoresetMode.SAME_STEP,
        on_worker_death="restart",
    )
    with contextlib.closing(envs):
        last, _ = envs.reset()
        for step in range(60):
            observations, rewards, terminated, truncated, infos = envs.step(
                actions_for(3) if step == 20 else actions_for()
            )
            for i in range(N):
                if "worker_restarted" in infos and infos["worker_restarted"][i]:
                    assert observations[i].tolist() == [i, 0, 0]
                elif terminated[i] or truncated[i]:
                    assert lengths_are_right(infos["final_obs"][i], rewards[i], True)
                    assert observations[i].tolist() == [i, last[i][1] + 1, 0]
                else:
                    assert lengths_are_right(observations[i], rewards[i], False)
                    assert observations[i].tolist() == [i, last[i][1], last[i][2] + 1]
            last = observations


def test_a_worker_that_dies_in_reset_is_restarted_and_reset_again(tmp_path: Path) -> None:
    envs = ParallelVectorEnv(
        some_faulty("reset", kill_oneself, once=tmp_path / "done"), num_workers=2, on_worker_death="restart"
    )
    with contextlib.closing(envs):
        observations, _ = envs.reset(seed=3)
        assert observations.tolist() == [[i, 0, 0] for i in range(N)]
        assert envs.step(actions_for())[0][:, 2].tolist() == [1] * N


@pytest.mark.more
def test_a_vector_env_survives_the_death_of_the_fork_server() -> None:
    options = WorkerOptions(environment={"OWN_FORK_SERVER": "vector env"})
    factories = ledgers(N)
    envs = ParallelVectorEnv(factories, num_workers=2, on_worker_death="restart", workers=options)
    with contextlib.closing(envs):
        envs.reset()
        spec = next(spec for spec in launcher._fork_servers if ("OWN_FORK_SERVER", "vector env") in spec.environment)
        os.kill(launcher._fork_servers[spec]._process.pid, signal.SIGKILL)
        workers: Any = workers_of(envs)
        while [workers.generation(worker) for worker in range(2)] != [1, 1]:
            envs.step(actions_for())
        for _ in range(10):
            envs.step(actions_for())


def test_a_worker_that_dies_in_a_masked_reset_is_restarted_and_reset_again(tmp_path: Path) -> None:
    (tmp_path / "done").touch()
    envs = ParallelVectorEnv(
        some_faulty("reset", kill_oneself, once=tmp_path / "done"),
        num_workers=2,
        on_worker_death="restart",
        autoreset_mode=AutoresetMode.DISABLED,
    )
    with contextlib.closing(envs):
        envs.reset()
        (tmp_path / "done").unlink()
        mask = np.isin(np.arange(N), (0, 3))
        observations, _ = envs.reset(options={"reset_mask": mask})
        assert observations[[0, 3]].tolist() == [[0, 1, 0], [3, 0, 0]]
        _, _, _, truncated, infos = envs.step(actions_for())
        assert truncated[[3, 4, 5]].tolist() == [False, True, True]
        assert infos["worker_restarted"].tolist() == [False] * 4 + [True] * 2


class Held(gym.Env[Any, Any]):
    """Observes its env_id, the seed of its episode, its resets and the step. Most resets wait until a file exists.

    Resets with the first seed, and later resets if the file exists already, do not wait.
    """

    def __init__(self, env_id: int, as_text: bool, released: Path) -> None:
        number = gym.spaces.Box(-1, np.inf, (4,), np.float64)
        text = gym.spaces.Dict({"text": gym.spaces.Text(99, charset="0123456789 -")})
        self.observation_space: Any = text if as_text else number
        self.action_space: Any = gym.spaces.Text(3) if as_text else gym.spaces.Discrete(2)
        self._env_id, self._as_text, self._released, self._resets = env_id, as_text, released, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        while seed != FIRST_SEED + self._env_id and not self._released.exists():
            time.sleep(0.001)
        self._resets += 1
        self._seen = [self._env_id, -1 if seed is None else seed, self._resets, 0]
        return self._observation(), {"seed": self._seen[1]}

    def step(self, action: Any) -> Any:
        self._seen[3] += 1
        return self._observation(), 1.0, False, False, {}

    def _observation(self) -> Any:
        return {"text": " ".join(map(str, self._seen))} if self._as_text else np.array(self._seen, np.float64)


FIRST_SEED, LATER_SEED = 10, 100


def begin_reset_in_which_worker_0_dies(envs: ParallelVectorEnv, folder: Path, answered: bool, **reset: Any) -> None:
    """Begin a reset of four :class:`Held`, and return when worker 0 is replaced and may have to reset again.

    Args:
        envs: Vector env with two workers.
        folder: Folder of the files for which resets wait.
        answered: Whether worker 0 answers the reset before it is killed.
        **reset: Arguments of the reset.
    """
    envs.reset_async(**reset)
    session: Any = envs._session
    question, step_buffer = session._call, session._step_buffer

    def is_answered(backend: Any) -> bool:
        return (
            0 in question.answers
            if question is not None
            else bool((step_buffer.finished[:2] == step_buffer.requested[:2]).all())
        )

    if answered:
        (folder / "0").touch()
        listen_until(envs, is_answered)
        (folder / "0").unlink()
    assert kill(envs, 0)
    listen_until(envs, lambda backend: backend._restarted)
    for worker in range(2):
        (folder / str(worker)).touch()


def listen_until(envs: ParallelVectorEnv, happened: Callable[[Any], Any]) -> None:
    backend, deadline = envs._session.backend, time.monotonic() + 120
    while not happened(backend):
        assert time.monotonic() < deadline
        backend.listen(1.0)
        backend.catch_up()


def some_held(folder: Path, as_text: bool, mode: AutoresetMode) -> ParallelVectorEnv:
    return ParallelVectorEnv(
        [lambda i=i: Held(i, as_text, folder / str(i // 2)) for i in range(4)],  # type: ignore[misc]
        num_workers=2,
        autoreset_mode=mode,
        on_worker_death="restart",
    )


def numbers_in(observations: Any) -> Any:
    if isinstance(observations, dict):
        observations = observations["text"]
    return [[int(number) for number in (one.split() if isinstance(one, str) else one)] for one in observations]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("as_text", [False, True], ids=["arrays", "text"])
@pytest.mark.parametrize(
    "seed", [LATER_SEED, [LATER_SEED, None, LATER_SEED + 2, None], None], ids=["seed", "seeds", "plain"]
)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "not answered"])
def test_a_worker_that_dies_while_others_still_reset_gets_the_same_reset_again(
    answered: bool, mode: AutoresetMode, seed: Any, as_text: bool, tmp_path: Path
) -> None:
    with contextlib.closing(some_held(tmp_path, as_text, mode)) as envs:
        envs.reset(seed=FIRST_SEED)
        begin_reset_in_which_worker_0_dies(envs, tmp_path, answered, seed=seed, options={})
        observations, infos = envs.reset_wait()
        seeds = [-1 if one is None else one for one in each_seed(seed, 4)]
        shown = numbers_in(observations)
        for env_id, (shown_id, of, resets, step) in enumerate(shown):
            assert (shown_id, of, step) == (env_id, infos["seed"][env_id], 0)
            assert resets == (1 if env_id < 2 else 2)
            if seeds[env_id] >= 0 or env_id >= 2:  # Without a seed, the new worker's environments get one of its own.
                assert of == seeds[env_id]
        observations, rewards, terminated, truncated, infos = envs.step(actions_of(envs))
        assert numbers_in(observations) == [[*before, 1] for *before, _ in shown]
        assert rewards.tolist() == [1.0] * 4
        assert not (terminated | truncated).any()
        assert infos == {}
        assert not envs.statistics().lost_episodes


def actions_of(envs: ParallelVectorEnv) -> Any:
    return ("a",) * 4 if isinstance(envs.single_action_space, gym.spaces.Text) else np.zeros(4, np.int64)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("as_text", [False, True], ids=["arrays", "text"])
@pytest.mark.parametrize("seed", [LATER_SEED, None], ids=["seed", "plain"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("first", [1, 2], ids=["of some of its rows", "of other rows"])
def test_a_masked_reset_in_which_a_worker_dies_leaves_its_other_rows_to_the_next_step(
    first: int, mode: AutoresetMode, seed: int | None, as_text: bool, tmp_path: Path
) -> None:
    with contextlib.closing(some_held(tmp_path, as_text, mode)) as envs:
        envs.reset(seed=FIRST_SEED)
        envs.step(actions_of(envs))
        last = numbers_in(envs.step(actions_of(envs))[0])
        options = {"reset_mask": np.arange(4) >= first}
        begin_reset_in_which_worker_0_dies(envs, tmp_path, False, seed=seed, options=options)
        observations, infos = envs.reset_wait()
        shown, mine, rest = numbers_in(observations), list(range(first)), list(range(first, 4))
        assert shown[:first] == last[:first]
        assert [(one[0], one[3]) for one in shown[first:]] == [(env_id, 0) for env_id in rest]
        assert infos["_seed"].tolist() == options["reset_mask"].tolist()
        assert "worker_restarted" not in infos
        if seed is not None:
            assert [one[1] for one in shown[first:]] == [seed + env_id for env_id in rest]
        observations, rewards, terminated, truncated, infos = envs.step(actions_of(envs))
        after = numbers_in(observations)
        assert truncated.tolist() == infos["worker_restarted"].tolist() == [True] * first + [False] * (4 - first)
        assert rewards.tolist() == [0.0] * first + [1.0] * (4 - first)
        assert not terminated.any()
        assert after[first:] == [[*before, 1] for *before, _ in shown[first:]]
        if mode is AutoresetMode.SAME_STEP:
            final = [one["text"] if as_text else one for one in infos["final_obs"][:first]]
            assert numbers_in(final) == last[:first]
            assert [(one[0], *one[2:]) for one in after[:first]] == [(env_id, 1, 0) for env_id in mine]
        else:
            assert after[:first] == last[:first]
        assert envs.statistics().lost_episodes_by_env.keys() == set(mine)


def test_a_call_to_a_worker_that_dies_is_an_error_and_the_env_stays_usable(tmp_path: Path) -> None:
    envs = ParallelVectorEnv(
        some_faulty("call", kill_oneself, (3, 4, 5), once=tmp_path / "done"), num_workers=2, on_worker_death="restart"
    )
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(WorkerDiedError):
            envs.call("poke")
        _, _, _, truncated, infos = envs.step(actions_for())
        assert truncated.tolist() == infos["worker_restarted"].tolist() == [False] * 3 + [True] * 3
        assert envs.call("poke") == (None,) * N


def test_a_worker_that_dies_repeatedly_reaches_the_restart_limit() -> None:
    often = WorkerOptions(restart=RestartPolicy(max_restarts=3, backoff_s=0.01))
    envs = ParallelVectorEnv(some_faulty("reset", leave), num_workers=2, on_worker_death="restart", workers=often)
    with pytest.raises(RestartLimitError, match="has died 4 times") as raised:
        envs.reset()
    for death in raised.value.deaths:
        assert isinstance(death, WorkerDiedError)
        assert "exited with code 5 during env.reset() of env_id 3" in str(death)
    with pytest.raises(ClosedEnvironmentError):
        envs.reset()


HANGS = {"asleep": sleep_long, "holding the GIL": hold_the_gil, "stopped": stop_oneself}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("hang", HANGS)
def test_a_hung_step_is_aborted_and_its_stack_is_shown(hang: str) -> None:
    envs = ParallelVectorEnv(some_faulty("step", HANGS[hang]), num_workers=2, step_timeout_s=2.0)
    with contextlib.closing(envs):
        envs.reset()
        with pytest.raises(WorkerTimeoutError, match=r"did not answer within step_timeout_s=2 s") as raised:
            envs.step(actions_for(3))
        assert (raised.value.worker, raised.value.env_ids) == (1, (3, 4, 5))
        assert "during env.step() of env_id 3" in str(raised.value)
        assert ("Its stack is not available" if hang == "stopped" else HANGS[hang].__name__) in str(raised.value)
        with pytest.raises(ClosedEnvironmentError):
            envs.step(actions_for())


def test_a_hung_step_is_aborted_and_the_worker_is_restarted(tmp_path: Path) -> None:
    envs = ParallelVectorEnv(
        some_faulty("step", sleep_long, once=tmp_path / "done"),
        num_workers=2,
        step_timeout_s=2.0,
        on_worker_death="restart",
    )
    with contextlib.closing(envs):
        last, _ = envs.reset()
        observations, _, _, truncated, infos = envs.step(actions_for(3))
        assert truncated.tolist() == infos["worker_restarted"].tolist() == [False] * 3 + [True] * 3
        assert np.array_equal(observations[3:], last[3:])
        assert envs.step(actions_for())[0][3:].tolist() == [[i, 0, 0] for i in (3, 4, 5)]


def test_a_slow_worker_within_the_limit_is_not_aborted() -> None:
    envs = ParallelVectorEnv(some_faulty("step", lambda: time.sleep(0.4)), num_workers=2, step_timeout_s=60)
    with contextlib.closing(envs):
        envs.reset()
        assert envs.step(actions_for(3))[0][:, 2].tolist() == [1] * N


def test_with_send_and_recv_a_restart_flags_pending_rows_now_and_idle_rows_later(tmp_path: Path) -> None:
    envs = ParallelVectorEnv(
        some_faulty("step", kill_oneself, once=tmp_path / "done"),
        num_workers=2,
        batch_size=2,
        on_worker_death="restart",
    )
    with contextlib.closing(envs):
        envs.reset()
        envs.send(np.array([1, 0]), [3, 4])
        _, _, _, truncated, infos = envs.recv()
        assert sorted(infos["env_id"].tolist()) == [3, 4]
        assert truncated.all()
        assert infos["worker_restarted"].all()
        envs.send(np.array([0, 0]), [0, 5])
        observations, _, _, truncated, infos = envs.recv()
        rows = dict(zip(infos["env_id"].tolist(), range(2), strict=True))
        assert not truncated[rows[0]]
        assert truncated[rows[5]]
        assert infos["worker_restarted"].tolist() == [env_id == 5 for env_id in infos["env_id"]]
        envs.send(np.array([0, 0]), [3, 5])
        observations, *_ = envs.recv()
        assert observations[:, 1:].tolist() == [[0, 0], [0, 0]]


def test_with_send_and_recv_an_exception_affects_only_its_own_row() -> None:
    envs = ParallelVectorEnv(some_faulty("step", raise_error), num_workers=2, batch_size=2)
    with contextlib.closing(envs):
        envs.reset()
        envs.send(actions_for(3))
        with pytest.raises(SimulatorError):
            receive(envs, 3)
        left = envs._session.under_way
        assert left in (1, 3, 5)
        envs.send(np.zeros(1, np.int64), [3])
        seen = [int(i) for _ in range((left + 1) // 2) for i in envs.recv()[4]["env_id"]]
        assert len(set(seen)) == len(seen) == left + 1


class RaisesOrDies(LedgerEnv):
    """Ledger that raises an error at action 1 and kills its process at action 2."""

    def __init__(self, env_id: int) -> None:
        super().__init__(env_id)
        self.action_space = gym.spaces.Discrete(3)

    def step(self, action: Any) -> Any:
        if action:
            (raise_error if action == 1 else kill_oneself)()
        return super().step(action)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("then", ["step", "reset", "reset of other rows"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_a_restart_in_a_step_that_raises_is_flagged_in_the_next_step_unless_reset(
    mode: AutoresetMode, then: str
) -> None:
    envs = ParallelVectorEnv(
        [lambda i=i: RaisesOrDies(i) for i in range(4)],  # type: ignore[misc]
        num_workers=2,
        autoreset_mode=mode,
        on_worker_death="restart",
    )
    with contextlib.closing(envs):
        envs.reset()
        last = envs.step(np.zeros(4, np.int64))[0]
        with pytest.raises(SimulatorError):
            envs.step(np.array([0, 1, 2, 0]))
        deadline = time.monotonic() + 120
        while generation_of(envs, 1) == 0 and time.monotonic() < deadline:
            envs.call("get_wrapper_attr", "action_space")
        if then == "reset":
            envs.reset()
            assert "worker_restarted" not in envs.step(np.zeros(4, np.int64))[4]
            return
        if then == "reset of other rows":
            found, _ = envs.reset(options={"reset_mask": np.array([True, True, False, False])})
            assert np.array_equal(found[2:], last[2:])
        observations, rewards, _, truncated, infos = envs.step(np.zeros(4, np.int64))
        assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True]
        assert rewards[2:].tolist() == [0, 0]
        arrived = infos["final_obs"][2:].tolist() if mode is AutoresetMode.SAME_STEP else observations[2:]
        assert np.array_equal(np.stack(list(arrived)), last[2:])
        assert envs.step(np.zeros(4, np.int64))[0][2:].tolist() == (
            [[2, 0, 1], [3, 0, 1]] if mode is AutoresetMode.SAME_STEP else [[2, 0, 0], [3, 0, 0]]
        )


class Told(gym.Env[Any, Any]):
    """Ends its episode at the action "end" and its process at "die". Its actions do not fit into the step buffer."""

    observation_space, action_space = gym.spaces.Box(0, 99, (1,), np.float64), gym.spaces.Text(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._steps = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        if action == "die":
            kill_oneself()
        self._steps += 1
        return np.full(1, float(self._steps)), 1.0, action == "end", False, {}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_worker_that_is_replaced_in_a_step_needs_no_actions_again(mode: AutoresetMode) -> None:
    envs = ParallelVectorEnv([Told] * 2, num_workers=1, autoreset_mode=mode, on_worker_death="restart")
    with contextlib.closing(envs):
        envs.reset()
        _, _, terminated, *_ = envs.step(("end", "go"))
        if mode is AutoresetMode.DISABLED:
            envs.reset(options={"reset_mask": terminated})
        observations, rewards, _, truncated, infos = envs.step(("go", "die"))
        lost = [mode is not AutoresetMode.NEXT_STEP, True]
        assert truncated.tolist() == infos["worker_restarted"].tolist() == lost
        assert rewards.tolist() == [0.0, 0.0]
        assert observations[:, 0].tolist() == ([0.0, 0.0] if mode is AutoresetMode.SAME_STEP else [0.0, 1.0])


class Level(gym.Wrapper[Any, Any, Any, Any]):
    """Observes its attributes: ``level`` at the last reset and now, and ``shape``, which a new process may refuse."""

    level = 0.0

    def __init__(self, env_id: int, refusing: Path) -> None:
        super().__init__(LedgerEnv(env_id))
        self.observation_space = gym.spaces.Box(0, np.inf, (3,), np.float64)
        self._refusing, self._shape = refusing, 0.0

    @property
    def shape(self) -> float:
        return self._shape

    @shape.setter
    def shape(self, value: float) -> None:
        if self._refusing.exists():
            raise ValueError("another shape")
        self._shape = value

    def reset(self, **options: Any) -> Any:
        _, info = super().reset(**options)
        self._at_reset = self.level
        return self._observation(), info

    def step(self, action: Any) -> Any:
        return self._observation(), 1.0, False, False, {}

    def _observation(self) -> Any:
        return np.array([self._at_reset, self.level, self._shape])


@pytest.mark.one_in(2)
@pytest.mark.usefixtures("a_step_takes_a_millisecond")
@pytest.mark.parametrize("caller_steps", [False, True], ids=["workers", "caller"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_restarted_worker_has_the_values_of_set_attr_before_its_first_reset(
    mode: AutoresetMode, caller_steps: bool, tmp_path: Path
) -> None:
    envs = ParallelVectorEnv(
        [lambda i=i: Level(i, tmp_path / "refusing") for i in range(4)],  # type: ignore[misc]
        num_workers=2 - caller_steps,
        caller_steps=caller_steps,
        autoreset_mode=mode,
        on_worker_death="restart",
    )
    with contextlib.closing(envs):
        envs.reset()
        envs.set_attr("level", 9.0)
        levels = [np.array(1.0), np.array(2.0), np.array(3.0), np.array(4.0)]
        envs.set_attr("level", levels)
        levels[1][...] = 7.0  # Only the value at the time of the call counts.
        envs.call("__setattr__", "shape", 5.0)
        kill_and_step(envs)
        assert envs.get_attr("level") == (1.0, 2.0, 3.0, 4.0)
        observations, infos = began_again(envs, mode)
        assert observations[:2].tolist() == [[1.0, 1.0, 5.0], [2.0, 2.0, 5.0]]
        assert "lost_attributes" not in infos
        (tmp_path / "refusing").touch()
        infos = kill_and_step(envs)
        assert list(infos["lost_attributes"]) == [("shape",), ("shape",), None, None]
        assert infos["worker_restarted"].tolist() == [True, True, False, False]
        observations, infos = began_again(envs, mode)
        assert observations[:2].tolist() == [[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]]
        assert "lost_attributes" not in infos


def kill_and_step(envs: ParallelVectorEnv) -> dict[str, Any]:
    assert kill(envs, 0)
    return envs.step(np.zeros(4, np.int64))[4]


def began_again(envs: ParallelVectorEnv, mode: AutoresetMode) -> tuple[Any, dict[str, Any]]:
    if mode is AutoresetMode.DISABLED:
        return envs.reset(options={"reset_mask": np.arange(4) < 2})
    observations, *_, infos = envs.step(np.zeros(4, np.int64))
    return observations, infos


class HangsAfterRestart(LedgerEnv):
    """Ledger that kills its process at action 1, and whose first replacement stops in the constructor or in reset."""

    def __init__(self, env_id: int, where: str, made: Path) -> None:
        super().__init__(env_id)
        made.write_bytes(b"." * (1 + (made.stat().st_size if made.exists() else 0)))
        self._stops_in = where if made.stat().st_size == 2 else ""
        if self._stops_in == "constructor":
            stop_oneself()

    def reset(self, **kwargs: Any) -> Any:
        if self._stops_in == "reset":
            stop_oneself()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if action:
            kill_oneself()
        return super().step(action)


@pytest.mark.more
@pytest.mark.parametrize("where", [pytest.param("constructor", marks=pytest.mark.soak), "reset"])
def test_a_replacement_that_hangs_before_its_first_observation_is_replaced(where: str, tmp_path: Path) -> None:
    with contextlib.closing(ParallelVectorEnv([lambda: LedgerEnv(0)], num_workers=1)):
        # The fork server now exists and has imported all modules, so the limit applies to the start of the worker.
        pass
    envs = ParallelVectorEnv(
        [lambda: HangsAfterRestart(0, where, tmp_path / "made")],
        num_workers=1,
        autoreset_mode=AutoresetMode.SAME_STEP,
        on_worker_death="restart",
        workers=WorkerOptions(start_timeout_s=5.0, reset_timeout_s=5.0),
    )
    with contextlib.closing(envs):
        envs.reset()
        observations, _, _, truncated, infos = envs.step(np.ones(1, np.int64))
        assert truncated[0]
        assert infos["worker_restarted"][0]
        assert observations.tolist() == [[0, 0, 0]]
        assert generation_of(envs, 0) >= 2
        assert envs.step(np.zeros(1, np.int64))[0].tolist() == [[0, 1, 0]]


@pytest.mark.more
def test_a_script_that_does_not_close_a_restarted_vector_env_prints_no_error() -> None:
    script = """
import logging, os, numpy as np
from parenv import ParallelVectorEnv
from parenv.testing import LedgerEnv
logging.getLogger("parenv").setLevel(logging.ERROR)
envs = ParallelVectorEnv([lambda: LedgerEnv(0)], num_workers=1, on_worker_death="restart")
envs.reset()
while (pid := envs._session.backend.workers.pid(0)) < 0:
    envs.step(np.zeros(1, np.int64))
os.kill(pid, 9)
while "worker_restarted" not in envs.step(np.zeros(1, np.int64))[4]:
    pass
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")


class RaisesAfterRestart(LedgerEnv):
    """Ledger that kills its process at action 1, and whose replacement raises an error in its first reset."""

    def __init__(self, env_id: int, made: Path) -> None:
        super().__init__(env_id)
        self._is_second = made.exists()
        made.touch()

    def reset(self, **kwargs: Any) -> Any:
        if self._is_second:
            self._is_second = False
            raise_error()
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if action:
            kill_oneself()
        return super().step(action)


def test_rows_are_flagged_after_a_replacement_that_raises_in_its_first_reset(tmp_path: Path) -> None:
    envs = ParallelVectorEnv(
        [
            lambda: LedgerEnv(0),
            lambda: LedgerEnv(1),
            lambda: RaisesAfterRestart(2, tmp_path / "made"),
            lambda: LedgerEnv(3),
        ],
        num_workers=2,
        autoreset_mode=AutoresetMode.SAME_STEP,
        on_worker_death="restart",
    )
    with contextlib.closing(envs):
        envs.reset()
        last = envs.step(np.zeros(4, np.int64))[0]
        with pytest.raises(SimulatorError):
            envs.step(np.array([0, 0, 1, 0]))
        _, rewards, _, truncated, infos = envs.step(np.zeros(4, np.int64))
        assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, False, True, True]
        assert rewards[2:].tolist() == [0, 0]
        assert np.array_equal(np.stack(list(infos["final_obs"][2:])), last[2:])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_restarted_worker_wakes_the_main_process(
    mode: AutoresetMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "MAX_WAIT_S", 3600.0)  # Only a wake-up ends the wait.
    patient = WorkerOptions(step_timeout_s=None, reset_timeout_s=None)
    envs = ParallelVectorEnv(
        some_faulty("step", kill_oneself, once=tmp_path / "done"),
        num_workers=2,
        autoreset_mode=mode,
        on_worker_death="restart",
        workers=patient,
    )
    with contextlib.closing(envs):
        envs.reset(seed=1)
        assert envs.step(actions_for(3))[4]["worker_restarted"].tolist() == [False] * 3 + [True] * 3
