"""Check that a session pool loses no environment and no session, however sessions end."""
# Several statements make one session, which the exception ends.
# ruff: noqa: PT012

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
import pytest
import session_envs
from audits import until
from leftovers import processes_left
from session_envs import Ledger, Waiting
from worker_hosts import Hosts

from parenv import ConfigurationError, SessionPool, WorkerOptions, entry_point
from parenv.envs.seeding import session_seed
from parenv.errors import (
    NotDataError,
    NotPicklableError,
    ParenvError,
    PoolClosedError,
    SessionLostError,
    SubEnvironmentError,
    WorkerError,
)
from parenv.sessions import service

LATE_S = 120.0
INLINE, FORKS, SPAWNED, THREADS, ELSEWHERE, HOSTS = "in_process", "forks", "spawned", "threads", "other_python", "hosts"
PLACES: dict[str, dict[str, Any]] = {
    INLINE: {"num_workers": 0},
    FORKS: {},
    SPAWNED: {"workers": WorkerOptions(start_method="spawn")},
    THREADS: {"envs_per_worker": 3},
    ELSEWHERE: {"workers": WorkerOptions(python=sys.executable)},
    HOSTS: {},
}
COSTLY = (SPAWNED, ELSEWHERE, HOSTS)
ISOLATED = (FORKS, ELSEWHERE, HOSTS)
"""Places in which a process that ends takes no other environment with it."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.more if name in COSTLY else ()) for name in PLACES])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(where: str, tmp_path: Any) -> Iterator[Any]:
    """Return a function that makes a pool in the place."""
    hosts = Hosts(tmp_path) if where == HOSTS else None

    def made(num_envs: int = 2, **more: Any) -> SessionPool:
        arguments = {**PLACES[where], **more}
        if "workers" in more and "workers" in PLACES[where]:
            options = PLACES[where]["workers"]
            arguments["workers"] = WorkerOptions(**{**changed(options), **changed(more["workers"])})
        if hosts is not None:
            hosts.start(num_envs + arguments.get("reset_ahead", 0) + 1)
            arguments["placement"] = hosts.placement()
        factory = entry_point(f"{session_envs.__file__}:Ledger", has_text=where != ELSEWHERE)
        return SessionPool(factory, num_envs=num_envs, **arguments)

    yield made
    if hosts is not None:
        hosts.end()


def changed(options: WorkerOptions) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if value != getattr(WorkerOptions(), name)}


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine with a limit, and without a callback that blocks."""

    async def limited() -> Any:
        return await asyncio.wait_for(main, LATE_S)

    return asyncio.run(limited())


async def settled(pool: SessionPool, **expected: Any) -> Any:
    """Wait until no session has or wants an environment and all environments are back, and return the metrics."""
    deadline = time.monotonic() + LATE_S
    while True:
        now = pool.statistics()
        assert now.waiting + now.leased + now.ended + sum(now.lost.values()) == now.begun
        assert now.free + now.ahead + now.leased + now.busy + now.away == now.num_envs
        is_at_rest = now.waiting == now.leased == now.busy == now.away == 0
        if is_at_rest and all(getattr(now, name) == value for name, value in expected.items()):
            return now
        assert time.monotonic() < deadline, (now, expected)
        await asyncio.sleep(0.01)


async def play(pool: SessionPool, *actions: Any, **arguments: Any) -> list[Any]:
    async with pool.session(**arguments) as env:
        return [await env.reset(), *[await env.step(action) for action in actions]]


def test_sessions_take_turns_and_each_gets_what_its_environment_returns(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=2, seed=5) as pool:
            results = await asyncio.gather(*(play(pool, "a", "b", task=i) for i in range(7)))
            for number, ((first, info), one, two) in enumerate(results):
                assert first.startswith("episode ")
                assert (one[:4], two[:4]) == (("step 1", 1.0, False, False), ("step 2", 2.0, False, False))
                assert info["seed"] == session_seed(5, number)
            now = pool.statistics()
            assert (now.ended, now.leased, now.free) == (7, 0, 2)
            assert (now.begun, now.lost, now.num_envs, now.worker_restarts) == (7, {}, 2, 0)
            assert pool.metrics()["sessions/ended"] == 7
            assert now.operations == 21

    run(main())


def test_a_session_has_the_same_seed_and_random_numbers_in_every_run(make: Any) -> None:
    def numbers(num_envs: int, **more: Any) -> list[Any]:
        async def main() -> list[Any]:
            async with make(num_envs=num_envs, seed=11, **more) as pool:
                played = await asyncio.gather(*(play(pool, "a", "b") for _ in range(5)))
                again = await play(pool, "a", seed=77)
                return [[info["drawn"] for *_, info in one] for one in [*played, again]]

        return run(main())  # type: ignore[no-any-return]

    once = numbers(1)
    assert once == numbers(3)
    assert once == numbers(1, reset_ahead=2)
    assert once[5] != once[4]
    env = Ledger()
    assert env.reset(seed=77)[1]["drawn"] == once[5][0]


def test_a_later_reset_continues_the_random_numbers_of_the_session(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=1, seed=3) as pool:
            async with pool.session() as env:
                _, first = await env.reset()
                _, second = await env.reset()
                assert second["seed"] is None
            expected = Ledger()
            assert [first["drawn"], second["drawn"]] == [
                expected.reset(seed=session_seed(3, 0))[1]["drawn"],
                expected.reset()[1]["drawn"],
            ]

    run(main())


VALUES = [
    "text",
    {"messages": [{"role": "user", "content": "hi"}], "image": np.zeros((3, 4, 3), np.uint8)},
    b"\x00\xff",
    [1, 2.5, None, True],
    (np.float32(1.5), np.arange(5)),
    np.random.default_rng(0).integers(0, 255, (600, 800, 3), np.uint8),
]


def arrays_of(value: Any) -> list[Any]:
    """Return all arrays in a value."""
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [array for part in parts for array in arrays_of(part)]
    return [value] if isinstance(value, np.ndarray) else []


def test_observations_actions_and_infos_of_any_kind_travel(make: Any, where: str) -> None:
    async def main() -> None:
        async with make(num_envs=1) as pool, pool.session(options={"level": 2}) as env:
            _, info = await env.reset()
            assert info["options"] == {"level": 2}
            for value in VALUES:
                seen, *_ = await env.step({"do": "echo", "value": value})
                np.testing.assert_equal(seen, value)
                assert type(seen) is type(value)
                assert all(array.flags.writeable for array in arrays_of(seen))
            assert await env.call("grade", 3, factor=2) == {"failure": 6, "level": 1}
            await env.set_attr("level", 4)
            assert await env.get_attr("level") == 4
            np.testing.assert_equal(await env.render(), np.full((2, 2, 3), len(VALUES), np.uint8))
            assert isinstance(env.action_space, gym.spaces.Discrete if where == ELSEWHERE else gym.spaces.Text)
            assert env.observation_space == pool.observation_space
            with pytest.raises(NotDataError):
                await env.call("secret")

    run(main())


@pytest.mark.parametrize("more", [{}, {"envs_per_worker": 2}, {"num_workers": 0}, {"reset_ahead": 1}])
def test_large_arrays_are_the_session_s_own(more: dict[str, Any]) -> None:
    def expected(action: int) -> Any:
        depth = np.full((200, 300), action / 256, np.float32)
        depth[1, 0] = -1.0
        return {"image": np.full((200, 300, 3), action, np.uint8), "depth": (depth, np.full(2, action))}

    def one(pool: SessionPool) -> None:
        with pool.session_sync() as env:
            first, _ = env.reset()
            second, *_ = env.step(9)
            np.testing.assert_equal((first, second), (expected(1), expected(9)))
            second["image"][:] = 0
            second["depth"][0][:] = 0
            np.testing.assert_equal(env.step(8)[0], expected(8))
            image, other = env.call("frames")
            assert (int(image.max()), other.shape, int(other.sum())) == (8, (2000, 2000), 0)

    with SessionPool(session_envs.Camera, num_envs=4, **more) as pool:
        for _ in range(2):
            threads = [threading.Thread(target=one, args=(pool,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LATE_S)
        assert run(settled(pool, ended=8)).lost == {}


def test_an_exception_of_the_environment_reaches_its_session_only(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=2) as pool:
            with pytest.raises(ValueError, match="the step has failed") as raised:
                await play(pool, "raise")
            assert isinstance(raised.value.__cause__, SubEnvironmentError)
            assert raised.value.__cause__.doing == "step"
            with pytest.raises(ValueError, match="the reset has failed"):
                await play(pool, options={"raise": True})
            with pytest.raises(ValueError, match="reward"):
                await play(pool, "wrong")
            async with pool.session() as env:
                await env.reset()
                with pytest.raises(ValueError, match="the step has failed"):
                    await env.step("raise")
                with pytest.raises(gym.error.ResetNeeded):
                    await env.step("a")
                # Nobody knows what the step has left behind, so this is another environment.
                assert (await env.reset())[0] == "episode 1"
            now = await settled(pool, ended=4)
            assert now.worker_restarts == 0
            assert len(await asyncio.gather(*(play(pool, "a") for _ in range(4)))) == 4

    run(main())


def test_what_cannot_be_sent_is_refused_and_the_session_continues(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=1) as pool, pool.session() as env:
            await env.reset()
            with pytest.raises(NotPicklableError, match="arguments of session"):
                await env.step(threading.Lock())
            assert (await env.step("a"))[0] == "step 1"

    run(main())


def test_a_session_must_reset_before_it_steps(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=1, reset_ahead=1) as pool:
            await play(pool, "a")
            async with pool.session() as env:
                with pytest.raises(gym.error.ResetNeeded):
                    await env.step("a")
                await env.call("grade", 1)
                await env.reset()
            with pytest.raises(ParenvError, match="has ended"):
                await env.reset()
            with pytest.raises(ParenvError, match="has begun before"):
                async with env:
                    pass
            with pytest.raises(ParenvError, match="no environment yet"):
                await pool.session().reset()
            await settled(pool, ended=2)

    run(main())


@pytest.mark.parametrize("how", ["die", "hang"])
def test_a_session_whose_process_is_lost_gets_the_reason_and_no_other_notices(make: Any, where: str, how: str) -> None:
    if where == INLINE:
        pytest.skip("this process would end")

    async def main() -> None:
        async with make(num_envs=3, workers=WorkerOptions(step_timeout_s=5.0, reset_timeout_s=60.0)) as pool:
            other, is_lost = asyncio.Event(), asyncio.Event()

            async def neighbour() -> Any:
                async with pool.session("neighbour") as env:
                    await env.reset()
                    other.set()
                    while not is_lost.is_set():
                        await env.step({"do": "sleep", "seconds": 0.1})
                    await env.step("a")
                    return "undisturbed"

            beside = asyncio.create_task(neighbour())
            await other.wait()
            with pytest.raises(SessionLostError, match=r"session 1 \(task 'mine'\)") as raised:
                async with pool.session("mine") as env:
                    await env.reset()
                    with pytest.raises(SessionLostError):
                        await env.step(how)
                    await env.step("a")
            is_lost.set()
            assert raised.value.session == 1
            assert raised.value.reason == {"die": "worker_died", "hang": "step_timeout"}[how]
            assert raised.value.__cause__ is not None
            if how == "hang" and where == FORKS:
                assert "in step" in str(raised.value)
            if where in (*ISOLATED, SPAWNED):
                assert await beside == "undisturbed"
            else:
                with contextlib.suppress(SessionLostError):
                    await beside
            now = await settled(pool)
            assert (now.begun, now.num_envs) == (2, 3)
            assert now.worker_restarts == 1
            assert len(await asyncio.gather(*(play(pool, "a") for _ in range(6)))) == 6

    run(main())


def test_the_stack_of_a_hung_process_is_logged_once_for_all_its_sessions(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        workers = WorkerOptions(step_timeout_s=1.0)
        async with SessionPool(Ledger, num_envs=3, envs_per_worker=3, workers=workers) as pool:
            entered = asyncio.Barrier(3)

            async def hanging() -> None:
                async with pool.session() as env:
                    await env.reset()
                    await entered.wait()
                    await env.step("hang")

            errors = await asyncio.gather(*(hanging() for _ in range(3)), return_exceptions=True)
            # Each session has all of it in its error.
            assert all(isinstance(error, SessionLostError) and "Its stack:" in str(error) for error in errors)

    run(main())
    lost = [record.getMessage() for record in caplog.records if "has lost its environment" in record.getMessage()]
    assert [text.count("\n") for text in lost] == [0, 0, 0]
    assert caplog.text.count("Its stack:") == 1


def test_a_reset_that_kills_its_process_costs_one_session_each_time_and_never_the_pool(where: str, make: Any) -> None:
    if where in (INLINE, HOSTS):
        pytest.skip("this process would end, or it takes long")

    async def main() -> None:
        async with make(num_envs=1) as pool:
            for _ in range(8):
                with pytest.raises(SessionLostError):
                    await play(pool, options={"die": True})
            assert (await settled(pool)).lost == {"worker_died": 8}
            assert (await play(pool, "a"))[1][0] == "step 1"

    run(main())


@pytest.mark.parametrize("where", [FORKS, THREADS], indirect=True)
def test_a_process_that_dies_after_a_session_never_costs_the_pool(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=1) as pool:
            for deaths in range(1, 9):
                (_, info), (observation, *_) = await play(pool, "a")
                assert observation == "step 1"
                await settled(pool)
                os.kill(info["pid"], signal.SIGKILL)
                await settled(pool, worker_restarts=deaths)
            assert pool.statistics().lost == {}
            assert (await play(pool, "a"))[1][0] == "step 1"

    run(main())


def test_a_lease_that_is_over_is_taken_back(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=1) as pool:
            with pytest.raises(SessionLostError, match=r"lease_s=0\.2 s are over") as raised:
                async with pool.session(lease_s=0.2) as env:
                    await env.reset()
                    while True:
                        await asyncio.sleep(0.05)
                        await env.step("a")
            assert raised.value.reason == "lease_over"
            # The environment is still in a step when the lease ends, and must finish it first.
            with pytest.raises(SessionLostError):
                await play(pool, {"do": "sleep", "seconds": 0.5}, lease_s=0.2)
            results = await play(pool, "a")
            assert results[1][0] == "step 1"
            assert (await settled(pool, ended=1)).lost == {"lease_over": 2}

    run(main())


@pytest.mark.parametrize("when", ["waiting", "reset", "step", "between"])
def test_a_cancelled_session_gives_its_environment_back(make: Any, when: str) -> None:
    async def main() -> None:
        async with make(num_envs=1) as pool:
            reached = asyncio.Event()

            async def cancelled() -> None:
                async with pool.session() as env:
                    if when == "reset":
                        reached.set()
                        await env.reset(options={"sleep": 0.3})
                    await env.reset()
                    reached.set()
                    if when == "step":
                        await env.step({"do": "sleep", "seconds": 0.3})
                    await asyncio.sleep(1000.0)

            if when == "waiting":
                async with pool.session() as env:
                    task = asyncio.create_task(cancelled())
                    while not pool.statistics().waiting:
                        await asyncio.sleep(0.01)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert (await env.reset())[0] == "episode 1"
            else:
                task = asyncio.create_task(cancelled())
                await reached.wait()
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert (await play(pool, "a"))[1][0] == "step 1"
            now = await settled(pool)
            assert now.lost == {}

    run(main())


def test_a_thread_whose_session_another_thread_ends_gets_an_error(make: Any) -> None:
    with make(num_envs=1) as pool:
        session, errors = pool.session_sync(), list[BaseException]()

        def step() -> None:
            try:
                session.step({"do": "sleep", "seconds": 1.0})
            except ParenvError as error:
                errors.append(error)

        with session:
            session.reset()
            threads = [threading.Thread(target=step) for _ in range(3)]
            for thread in threads:
                thread.start()
            time.sleep(0.1)
        for thread in threads:
            thread.join(LATE_S)
            assert not thread.is_alive()
        assert len(errors) >= 1
        with pool.session_sync() as env:
            env.reset()


def test_threads_lease_as_coroutines_do(make: Any) -> None:
    with make(num_envs=2, seed=1) as pool:
        results: list[Any] = []

        def one(number: int) -> None:
            with pool.session_sync(number) as env:
                _, info = env.reset()
                env.set_attr("level", number)
                results.append((info["seed"], env.step("a")[0], env.call("grade", 1)["level"], env.get_attr("level")))
                assert env.render().shape == (2, 2, 3)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LATE_S)
        assert sorted(seed for seed, *_ in results) == sorted(session_seed(1, number) for number in range(5))
        assert {one[1] for one in results} == {"step 1"}
        assert all(level == got for *_, level, got in results)
        with pytest.raises(ValueError, match="the step has failed"), pool.session_sync() as env:
            env.reset()
            env.step("raise")
    with pytest.raises(PoolClosedError), pool.session_sync():
        pass


@pytest.mark.parametrize("where", [INLINE, FORKS, THREADS], indirect=True)
def test_resets_ahead_are_used_where_seed_and_options_agree(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=1, reset_ahead=1, seed=2) as pool:

            async def known(number: int) -> Any:
                options = {"level": number}
                async with pool.session(number, seed=number, options=options) as env:
                    _, info = await env.reset(seed=number, options=options)
                    assert (info["seed"], info["options"]) == (number, options)
                    await env.step({"do": "sleep", "seconds": 0.05})

            # All ask at once, so that options are known for all but the first.
            await asyncio.gather(*(known(number) for number in range(6)))
            before = pool.statistics()
            assert before.resets_ahead >= 4
            async with pool.session() as env:
                _, info = await env.reset(options={"level": 9})  # Nobody could know.
                assert info["options"] == {"level": 9}
            async with pool.session() as env:
                with pytest.raises(ValueError, match="the reset has failed"):
                    await env.reset(options={"raise": True})
                with pytest.raises(gym.error.ResetNeeded):
                    await env.step("a")
                _, info = await env.reset()
                assert (info["options"], info["seed"]) == ({}, session_seed(2, env.number))
            now = await settled(pool, ended=8)
            assert now.wasted_resets >= 1

    run(main())


@pytest.mark.parametrize("where", [FORKS], indirect=True)
def test_a_process_that_ends_during_a_reset_ahead_is_replaced(make: Any) -> None:
    async def main() -> None:
        async with make(num_envs=1, reset_ahead=1) as pool:

            async def dies() -> None:
                with pytest.raises(SessionLostError):
                    async with pool.session(options={"die": True}) as env:
                        await env.reset()

            await asyncio.gather(*(dies() for _ in range(2)), return_exceptions=True)
            assert (await play(pool, "a"))[1][0] == "step 1"
            assert (await settled(pool)).num_envs == 2

    run(main())


def test_coroutines_of_environments_share_an_event_loop_and_wait_at_once() -> None:
    async def main() -> None:
        async with SessionPool(Waiting, num_envs=6, envs_per_worker=3, seed=1) as pool:
            entered = [0]

            async def one(number: int) -> Any:
                async with pool.session() as env:
                    _, info = await env.reset()
                    assert info["seed"] == session_seed(1, number)
                    entered[0] += 1
                    while entered[0] < 6:
                        await asyncio.sleep(0.01)
                    seen, _, _, _, info = await env.step(0.5)
                    assert await env.call("grade") == 7
                    return env.env_id // 3, seen, info["loop"]

            found = await asyncio.gather(*(one(number) for number in range(6)))
            for worker in range(2):
                mine = [(seen, loop) for at, seen, loop in found if at == worker]
                assert max(seen for seen, _ in mine) > 1
                assert len({loop for _, loop in mine}) == 1
            with pytest.raises(ValueError, match="the step has failed"):
                async with pool.session() as env:
                    await env.reset()
                    await env.step(-1.0)
            await settled(pool, ended=7)

    run(main())


@pytest.mark.parametrize("more", [{}, {"num_workers": 0}, {"envs_per_worker": 2}])
def test_coroutines_of_single_environments_work_too(more: dict[str, Any]) -> None:
    async def main() -> None:
        async with SessionPool(Waiting, num_envs=2, **more) as pool, pool.session() as env:
            await env.reset()
            assert (await env.step(0.0))[0] == 1
            # The environment has cancelled something of its own, and the session is not cancelled by that.
            with pytest.raises(WorkerError, match=r"CancelledError: the client was cancelled"):
                await env.step(10.0)
            await env.reset()
            assert (await env.step(0.0))[0] == 1

    run(main())


def test_environments_of_one_worker_wait_at_once_and_each_in_a_thread_of_its_own() -> None:
    class InThread(Ledger):
        def __init__(self) -> None:
            super().__init__()
            self.made_in = threading.get_ident()

        def step(self, action: Any) -> Any:
            assert threading.get_ident() == self.made_in
            return super().step(action)

    async def main() -> float:
        async with SessionPool(InThread, num_envs=20, envs_per_worker=20) as pool:
            began = time.monotonic()
            await asyncio.gather(*(play(pool, {"do": "sleep", "seconds": 0.5}) for _ in range(20)))
            seconds = pool.statistics().step_seconds
            return seconds / (time.monotonic() - began)

    # Twenty seconds of steps have run in the time of less than ten, however slow the machine is.
    assert run(main()) > 2.0


def test_an_event_loop_that_ends_gives_all_environments_back(make: Any, where: str) -> None:
    pool = make(num_envs=2)
    with pool:

        async def forgotten() -> None:
            for _ in range(2):
                session = pool.session()
                await session.__aenter__()
                kept.append(session)
            task = asyncio.create_task(play(pool, "a"))
            await asyncio.sleep(0.05)
            del task

        kept: list[Any] = []
        asyncio.run(forgotten())
        assert pool.statistics().leased == 2
        kept.clear()
        gc.collect()
        run(settled(pool))
        with pool.session_sync() as env:
            env.reset()


def test_a_session_that_is_in_progress_when_the_pool_closes_gets_an_error(make: Any, where: str) -> None:
    async def main() -> None:
        pool = make(num_envs=1, workers=WorkerOptions(close_timeout_s=0.5))
        async with pool, pool.session() as env:
            await env.reset()
            waiting = asyncio.create_task(play(pool))
            while not pool.statistics().waiting:
                await asyncio.sleep(0.01)
            # A process is killed during the step. This process would have to wait for its end.
            seconds = 0.2 if where == INLINE else 60.0
            stepping = asyncio.create_task(env.step({"do": "sleep", "seconds": seconds}))
            await asyncio.sleep(0.05)
            threading.Thread(target=pool.close).start()
            if where != INLINE:
                with pytest.raises(SessionLostError) as raised:
                    await stepping
                assert raised.value.reason == "pool_closed"
            with pytest.raises(PoolClosedError):
                await waiting
            with pytest.raises(SessionLostError):
                await env.step("a")
        pool.close()
        with pytest.raises(PoolClosedError, match="the pool is closed"):
            await play(pool)
        if where != INLINE:
            stepping.cancel()

    run(main())


@pytest.mark.parametrize("where", [FORKS, THREADS], indirect=True)
def test_nothing_is_left_of_a_pool_that_is_garbage(make: Any) -> None:
    pool = make(num_envs=2)
    with pool.session_sync() as env:
        env.reset()
    assert processes_left()
    del pool, env
    gc.collect()
    until(lambda: not processes_left())


def test_a_pool_that_cannot_start_says_why_and_leaves_nothing() -> None:
    def broken() -> Any:
        raise RuntimeError("no licence")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="no licence"):
            async with SessionPool(broken, num_envs=2):
                pass
        with pytest.raises(RuntimeError, match="no licence"), SessionPool(broken, num_envs=2, num_workers=0):
            pass
        pool = SessionPool(broken, num_envs=2, envs_per_worker=2)
        with pytest.raises(PoolClosedError, match="no licence"):
            while True:
                async with pool.session():
                    pass
        assert not processes_left()

    run(main())


def test_a_pool_can_be_closed_while_it_starts() -> None:
    def slow() -> Any:
        time.sleep(1000.0)

    pool = SessionPool(slow, num_envs=2, workers=WorkerOptions(close_timeout_s=0.5))
    time.sleep(0.3)
    pool.close()
    assert not processes_left()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(0.5):
                async with SessionPool(slow, num_envs=2, workers=WorkerOptions(close_timeout_s=0.5)):
                    pass

    run(main())
    gc.collect()
    until(lambda: not processes_left())


def test_a_worker_that_dies_too_often_between_sessions_ends_the_pool_with_its_error() -> None:
    async def main() -> None:
        async with SessionPool(Ledger, num_envs=1, workers=WorkerOptions(restart=None)) as pool:
            async with pool.session() as env:
                _, info = await env.reset()
            os.kill(info["pid"], signal.SIGKILL)
            with pytest.raises(PoolClosedError, match="could not continue"):
                while True:
                    with contextlib.suppress(SessionLostError):
                        await play(pool)

    run(main())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"num_envs": 0}, "num_envs must be"),
    ({"envs_per_worker": 0}, "envs_per_worker must be"),
    ({"reset_ahead": -1}, "reset_ahead must be"),
    ({"num_workers": 2}, "num_workers must be None or 0"),
    ({"seed": -1}, "seed must be"),
    ({"workers": {"threads": 2}}, "workers must be WorkerOptions"),
    ({"workers": WorkerOptions(step_threads=2)}, "use envs_per_worker"),
    ({"workers": WorkerOptions(step_workers=2)}, "step_workers"),
    ({"workers": WorkerOptions(on_env_error="restart_env")}, "on_env_error"),
    ({"env_fn": [Ledger, Ledger]}, "env_fn must be one factory"),
    ({"env_fn": "NoSuchEnv-v0"}, "must be registered"),
    ({"placement": 3}, "placement must be"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_arguments_are_refused_before_any_process_starts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SessionPool(given.pop("env_fn", Ledger), **{"num_envs": 2, **given})
    assert not processes_left()


def test_bad_arguments_of_a_session_are_refused() -> None:
    with SessionPool(Ledger, num_envs=1, num_workers=0) as pool:
        for given, message in [
            ({"seed": -1}, "seed must be"),
            ({"lease_s": 0}, "lease_s must be"),
            ({"options": 3}, "options must be"),
        ]:
            with pytest.raises(ConfigurationError, match=message):
                pool.session(**given)


def test_a_forked_child_may_not_use_the_pool() -> None:
    with SessionPool(Ledger, num_envs=1, num_workers=0) as pool:
        child = os.fork()
        if not child:
            try:
                with pool.session_sync() as env:
                    env.reset()
            except PoolClosedError as error:
                os._exit(0 if "forked child" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        with pool.session_sync() as env:
            env.reset()


def test_environments_are_recycled_and_workers_set_up() -> None:
    options = WorkerOptions(recycle_episodes=2, environment={"PLACE": "worker"})
    with SessionPool(Ledger, num_envs=1, workers=options) as pool:
        episodes = []
        for _ in range(5):
            with pool.session_sync() as env:
                episodes.append(env.reset()[0])
    assert episodes == ["episode 1", "episode 2", "episode 1", "episode 2", "episode 1"]


@pytest.mark.parametrize(("event", "within"), [("garbage", "request"), ("close", "request"), ("close", "close")])
def test_an_event_in_the_middle_of_a_request_or_close_of_the_same_thread_is_no_deadlock(
    event: str, within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "EXIT_S", 1000.0)
    pool = SessionPool(Ledger, num_envs=1)
    line = pool._service._line
    garbage = [pool.session_sync()]

    class Commands:
        """Commands of the pool. During one, garbage collection ends a session, or a signal handler closes the pool."""

        def __init__(self, commands: Any) -> None:
            self.get, self.get_nowait, self._put = commands.get, commands.get_nowait, commands.put

        def put(self, command: Any) -> None:
            line.commands = before
            garbage.clear()
            if event == "close":
                pool.close()
            self._put(command)

    before, ends = line.commands, list[Any]()

    def one() -> None:
        try:
            with pool:
                if within == "request":
                    line.commands = Commands(before)  # type: ignore[assignment]
                with pool.session_sync() as env:
                    ends.append(env.reset()[0])
                if within == "close":
                    line.commands = Commands(before)  # type: ignore[assignment]
        except PoolClosedError:
            ends.append("refused")

    thread = threading.Thread(target=one, daemon=True)
    thread.start()
    thread.join(LATE_S)
    assert not thread.is_alive()
    assert ends == ["refused" if (event, within) == ("close", "request") else "episode 1"]
    until(lambda: not processes_left())


def test_a_step_costs_one_message_each_way() -> None:
    with SessionPool(Ledger, num_envs=1) as pool, pool.session_sync() as env:
        env.reset()
        line = pool._service._line
        assert line.crew is not None
        before = line.crew.workers.messages
        for _ in range(10):
            env.step("a")
        assert line.crew.workers.messages - before == 20


async def storm(pool: SessionPool, sessions: int, at_once: int, seed: int) -> dict[str, int]:
    """Run many sessions, most of which end badly; return how they have ended. The event loop has other work too."""
    rng, ends, longest = random.Random(seed), dict[str, int](), [0.0]
    left = iter(range(sessions))

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            longest[0] = max(longest[0], time.monotonic() - before - 0.001)

    async def one(number: int) -> str:
        how = rng.random()
        try:
            async with asyncio.timeout(0.02 * rng.random() if how < 0.3 else None):
                lease_s = 0.02 * rng.random() + 0.001 if 0.3 < how < 0.35 else None
                async with pool.session(number, lease_s=lease_s) as env:
                    options = {"raise": True} if 0.35 < how < 0.4 else None
                    await env.reset(options=options)
                    for _ in range(rng.randrange(4)):
                        if how > 0.9:
                            await env.step({"do": "sleep", "seconds": 0.003})
                        if 0.4 < how < 0.45:
                            await env.step("raise")
                        if 0.45 < how < 0.455:
                            await env.step("die")
                        if 0.455 < how < 0.456:
                            await env.step("hang")
                        await env.step("a")
                    if 0.5 < how < 0.55:
                        raise KeyError("the user's own")
                    return "returned"
        except Exception as error:
            return error.reason if isinstance(error, SessionLostError) else type(error).__name__

    async def runner() -> None:
        for number in left:
            how = await one(number)
            ends[how] = ends.get(how, 0) + 1

    heart = asyncio.create_task(beat())
    await asyncio.gather(*(runner() for _ in range(at_once)))
    heart.cancel()
    print(f"the longest stop of the event loop was {longest[0] * 1000:.1f} ms")
    return ends


def check_storm(sessions: int, seed: int, **arguments: Any) -> None:
    """Check that every session of a storm is accounted for once, and that the pool has its size and leaves nothing."""
    me = psutil.Process()

    async def main() -> None:
        async with SessionPool(Ledger, num_envs=6, workers=WorkerOptions(step_timeout_s=0.5), **arguments) as pool:
            await storm(pool, 50, 20, seed + 1)
            await settled(pool)
            before, resident = me.num_fds(), me.memory_info().rss
            ends = await storm(pool, sessions, 20, seed)
            now = await settled(pool)
            assert sum(ends.values()) == sessions
            assert now.num_envs == 6 + arguments.get("reset_ahead", 0)
            assert now.begun <= sessions + 50
            assert now.ended + sum(now.lost.values()) == now.begun
            assert set(now.lost) <= {"worker_died", "step_timeout", "lease_over"}
            assert {"returned", "TimeoutError", "ValueError", "KeyError"} <= ends.keys()
            assert me.num_fds() <= before + 4
            assert me.memory_info().rss <= resident + (64 << 20)
            for number in range(now.num_envs):
                assert (await play(pool, "a", task=number))[1][0] == "step 1"

    asyncio.run(asyncio.wait_for(main(), 1000.0))
    until(lambda: not processes_left())


@pytest.mark.parametrize("arguments", [{}, {"reset_ahead": 2}, {"envs_per_worker": 2}])
def test_a_storm_of_sessions_loses_nothing(arguments: dict[str, Any]) -> None:
    check_storm(600, seed=1, **arguments)


@pytest.mark.soak
@pytest.mark.parametrize("arguments", [{}, {"reset_ahead": 2}, {"envs_per_worker": 2}])
def test_a_storm_of_many_sessions_loses_nothing(arguments: dict[str, Any]) -> None:
    check_storm(100_000, seed=2, **arguments)
