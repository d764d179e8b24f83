"""Environments that coroutines borrow: a session pool beside executors and Ray actors that are written by hand.

It prints a table for each question: rates, the overhead of a step, resets ahead, and what faults leave.

python benchmarks/sessions.py [--only rates processor waiting many step ahead faults killed] [--save]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import psutil
from lib.common import interleaved, save, summary
from lib.session_subjects import CONTINUE, HANG, KILL, SUBJECTS, AsyncEnv, Env, Ours, RayActors, Subject

from parenv import ParallelVectorEnv

NUM_ENVS, STEPS = 8, 20
WAIT_S = 0.05
WARM_UP_S = 1.0
WAVES, KILL_EVERY, HANG_IN, PATIENCE_S = 16, 2, 1, 2.5
LEFT_AFTER_S = 5.0
ENDS = ("finished", "faulty and failed", "failed without a fault", "without an answer")
MARK = "PARENV_BENCHMARK_OF_SESSIONS"


async def rate(subject: Subject, concurrency: int, seconds: float) -> float:
    """Return the env steps per second of coroutines that run sessions of :data:`STEPS` steps, one after another."""
    begin_s = time.perf_counter() + WARM_UP_S
    end_s, count = begin_s + seconds, 0

    async def sessions() -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            async with subject.session() as env:
                await env.reset()
                for _ in range(STEPS):
                    await env.step(CONTINUE)
                    count += begin_s <= time.perf_counter() < end_s

    await asyncio.gather(*(sessions() for _ in range(concurrency)))
    return count / seconds


@contextlib.contextmanager
def running(runner: asyncio.Runner, subjects: Mapping[str, Subject]) -> Iterator[None]:
    """Start all subjects, and close them at the end."""
    with contextlib.ExitStack() as stack:
        for subject in subjects.values():
            runner.run(subject.start())
            stack.callback(lambda subject=subject: runner.run(subject.close()))
        yield


def rates_of(subjects: Mapping[str, Subject], concurrency: int, seconds: float, repeats: int) -> dict[str, list[float]]:
    """Measure the env steps per second of subjects in turn."""
    with asyncio.Runner() as runner, running(runner, subjects):
        return interleaved(
            {
                name: lambda subject=subject: runner.run(rate(subject, concurrency, seconds))
                for name, subject in subjects.items()
            },
            repeats,
            alternating=True,
        )


async def processor_us(subject: Subject, seconds: float) -> float:
    """Return the processor microseconds of this process for an env step, in all its threads."""
    end_s, count, begin_s = time.perf_counter() + seconds, 0, time.process_time()

    async def sessions() -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            async with subject.session() as env:
                await env.reset()
                for _ in range(STEPS):
                    await env.step(CONTINUE)
                count += STEPS

    await asyncio.gather(*(sessions() for _ in range(2 * NUM_ENVS)))
    return 1e6 * (time.process_time() - begin_s) / count


def processor(seconds: float, repeats: int) -> dict[str, Any]:
    """Measure the processor time of the main process for a step. It bounds the rate of many environments."""
    subjects = {name: make(Env, NUM_ENVS) for name, make in SUBJECTS.items()}
    with asyncio.Runner() as runner, running(runner, subjects):
        found = interleaved(
            {
                name: lambda subject=subject: runner.run(processor_us(subject, seconds))
                for name, subject in subjects.items()
            },
            repeats,
            alternating=True,
        )
    return summary(found, "parenv SessionPool")


def rates(seconds: float, repeats: int) -> dict[str, Any]:
    """Measure environments that do nothing. Twice as many sessions as environments ask for them."""
    subjects = {name: make(Env, NUM_ENVS) for name, make in SUBJECTS.items()}
    found = summary(rates_of(subjects, 2 * NUM_ENVS, seconds, repeats), "parenv SessionPool")
    return with_sessions(found)


def with_sessions(found: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sessions per second to env steps per second."""
    return {name: {**one, "sessions": one["median"] / STEPS} for name, one in found.items()}


def waiting(seconds: float, repeats: int) -> dict[str, Any]:
    """Measure environments that wait in each step, as a share of the ideal."""
    subjects = {name: make(partial(Env, WAIT_S), NUM_ENVS) for name, make in SUBJECTS.items()}
    found = rates_of(subjects, 2 * NUM_ENVS, seconds, repeats)
    return with_sessions(summary({"ideal": [NUM_ENVS / WAIT_S], **found}, "ideal"))


def many(seconds: float, repeats: int) -> dict[str, Any]:
    """Measure many sessions at the same time, whose environments wait in a few processes."""
    results = {}
    for num_envs in (100, 300, 1000):
        subjects = {
            f"{kind}, 2 processes": Ours(partial(env, WAIT_S), num_envs, envs_per_worker=num_envs // 2)
            for kind, env in {"threads": Env, "coroutines": AsyncEnv}.items()
        }
        found = {name: rates_of({name: one}, num_envs, seconds, repeats)[name] for name, one in subjects.items()}
        results[f"{num_envs} sessions"] = with_sessions(summary({"ideal": [num_envs / WAIT_S], **found}, "ideal"))
    return results


async def step_us(subject: Subject, seconds: float) -> float:
    """Return the microseconds of a step, if one session steps one environment."""
    async with subject.session() as env:
        await env.reset()
        count, begin_s = 0, time.perf_counter()
        while time.perf_counter() - begin_s < seconds:
            for _ in range(20):
                await env.step(CONTINUE)
            count += 20
        return 1e6 * (time.perf_counter() - begin_s) / count


def vector_step_us(envs: ParallelVectorEnv, seconds: float) -> float:
    """Return the microseconds of a step of a vector env of one environment."""
    action, count, begin_s = np.array([CONTINUE]), 0, time.perf_counter()
    while time.perf_counter() - begin_s < seconds:
        for _ in range(20):
            envs.step(action)
        count += 20
    return 1e6 * (time.perf_counter() - begin_s) / count


def step(seconds: float, repeats: int) -> dict[str, Any]:
    """Measure the microseconds of one step, beside a vector env of one environment in a worker."""
    subjects = {name: make(Env, 1) for name, make in SUBJECTS.items()}
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        stack.enter_context(running(runner, subjects))
        envs = stack.enter_context(contextlib.closing(ParallelVectorEnv([Env], num_workers=1)))
        envs.reset()
        measures: dict[str, Callable[[], float]] = {"ParallelVectorEnv": lambda: vector_step_us(envs, seconds)}
        for name, subject in subjects.items():
            measures[name] = lambda subject=subject: runner.run(step_us(subject, seconds))
        return summary(interleaved(measures, repeats, alternating=True), "ParallelVectorEnv")


def ahead(seconds: float, repeats: int) -> dict[str, Any]:
    """Measure resets ahead. A reset takes ten steps, and a session has :data:`STEPS` steps."""
    make_env = partial(Env, 0.005, 0.05)
    subjects = {f"reset_ahead={count}": Ours(make_env, NUM_ENVS, reset_ahead=count) for count in (0, 2, 4, 8)}
    return summary(rates_of(subjects, 2 * NUM_ENVS, seconds, repeats), "reset_ahead=0")


async def with_faults(subject: Subject) -> dict[str, int | float]:
    """Count the ends of sessions of which some kill their process and one hangs, and the environments that are left.

    Sessions come in waves of as many as there are environments, such as the rollouts of one update.
    """
    faulty = {(wave, wave % NUM_ENVS): KILL for wave in range(KILL_EVERY, WAVES, KILL_EVERY)} | {(HANG_IN, 0): HANG}

    async def session(place: tuple[int, int]) -> None:
        async with subject.session() as env:
            await env.reset()
            for action in (CONTINUE, faulty.get(place, CONTINUE), CONTINUE):
                await env.step(action)

    ends, begin_s = Counter[str](), time.perf_counter()
    for wave in range(WAVES):
        places = [(wave, number) for number in range(NUM_ENVS)]
        tasks = [asyncio.create_task(session(place)) for place in places]
        _, pending = await asyncio.wait(tasks, timeout=PATIENCE_S)
        ends.update(_end_of(task, place in faulty) for place, task in zip(places, tasks, strict=True))
        for task in pending:
            task.cancel()
        await asyncio.wait(tasks)
    return {
        "sessions": WAVES * NUM_ENVS,
        "kills": sum(action == KILL for action in faulty.values()),
        "hangs": sum(action == HANG for action in faulty.values()),
        **{end: ends[end] for end in ENDS},
        "seconds": time.perf_counter() - begin_s,
        "environments at the start": NUM_ENVS,
        "environments left": await _left(subject),
    }


def _end_of(task: asyncio.Task[None], is_faulty: bool) -> str:
    if not task.done():
        return "without an answer"
    if task.exception() is None:
        return "finished"
    return "faulty and failed" if is_faulty else "failed without a fault"


async def _left(subject: Subject) -> int:
    """Return the number of environments that sessions can have at the same time, and that answer."""
    answered, over = 0, asyncio.Event()

    async def hold() -> None:
        nonlocal answered
        async with subject.session() as env:
            await env.reset()
            answered += 1
            await over.wait()

    tasks = [asyncio.create_task(hold()) for _ in range(NUM_ENVS)]
    end_s = time.monotonic() + 10.0
    while answered < NUM_ENVS and time.monotonic() < end_s:
        await asyncio.sleep(0.1)
    over.set()
    await asyncio.wait(tasks, timeout=1.0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return answered


def faults() -> dict[str, Any]:
    """Inject faults into each subject."""
    results = {}
    makers = {**SUBJECTS, "Ray actors, max_restarts=-1": partial(RayActors, max_restarts=-1)}
    for name, make in makers.items():
        print(f"  {name}", flush=True)
        subject = make(partial(Env, 0.01), NUM_ENVS)
        with asyncio.Runner() as runner, running(runner, {name: subject}):
            results[name] = runner.run(with_faults(subject))
    return results


def killed() -> dict[str, Any]:
    """Kill main processes with SIGKILL, and count their processes by name before and some seconds after it."""
    results = {}
    for name in SUBJECTS:
        mark = uuid.uuid4().hex
        command = [sys.executable, __file__, "--hold", name]
        with (
            tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as folder,
            subprocess.Popen(
                command, env={**os.environ, MARK: mark, "TMPDIR": folder}, stdout=subprocess.PIPE, text=True
            ) as process,
        ):
            assert process.stdout is not None
            while process.stdout.readline() not in ("ready\n", ""):
                pass
            # A process that changes its title overwrites its variables, and a daemon is not a child.
            before = {*psutil.Process(process.pid).children(recursive=True), *_marked(mark)}
            before = {one for one in before if one.pid != process.pid}
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(LEFT_AFTER_S)
            left = {one for one in before | _marked(mark) if _is_alive(one)}
            names = Counter(_name_of(one) for one in left)
            for one in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        results[name] = {
            "processes before": len(before),
            "processes left": len(left),
            "names": ", ".join(sorted(f"{count} {one}" for one, count in names.items())),
        }
        print(f"  {name}: {results[name]}", flush=True)
    return results


def hold(name: str) -> None:
    """Start a subject whose environments have started programs, print a line, and wait to be killed."""

    async def run() -> None:
        subject = SUBJECTS[name](partial(Env, has_child=True), 4)
        await subject.start()
        print("ready", flush=True)
        async with subject.session() as env:
            await env.reset()
            await asyncio.sleep(600.0)

    asyncio.run(run())


def _marked(mark: str) -> set[psutil.Process]:
    """Return the processes that have inherited a mark in their environment variables."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.add(process)
    return found


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return "ended"


def lines_of(results: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield a line for each subject of nested results."""
    for key, found in results.items():
        path = f"{name} / {key}" if name else key
        if isinstance(next(iter(found.values())), Mapping):
            yield from lines_of(found, path)
        else:
            cells = (f"{what} {one:,.4g}" if isinstance(one, float) else f"{what} {one}" for what, one in found.items())
            yield f"{path}: {', '.join(cells)}"


CASES: dict[str, Callable[[float, int], dict[str, Any]]] = {
    "rates": rates,
    "processor": processor,
    "waiting": waiting,
    "many": many,
    "step": step,
    "ahead": ahead,
    "faults": lambda seconds, repeats: faults(),
    "killed": lambda seconds, repeats: killed(),
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print a line for each subject, and return the results."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="Seconds of a measurement (default: 3).")
    parser.add_argument("--repeats", type=int, default=5, help="Number of turns (default: 5).")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=CASES, help="Questions (default: all).")
    parser.add_argument("--save", action="store_true", help="Store the results, on a machine that does nothing else.")
    parser.add_argument("--hold", choices=SUBJECTS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.hold:
        hold(args.hold)
        return {}
    results: dict[str, Any] = {}
    for name in args.only:
        print(name, flush=True)
        results[name] = CASES[name](args.seconds, args.repeats)
    print(*lines_of(results), sep="\n")
    if args.save:
        save("sessions", results)
    return results


if __name__ == "__main__":
    logging.getLogger("parenv").setLevel(logging.ERROR)
    main()
