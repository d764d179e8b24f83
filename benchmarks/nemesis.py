"""Random faults in pools and vector envs, with an audit of each transition, and slices without faults for comparison.

The script prints a table. ``make soak`` runs the same scenarios.

python benchmarks/nemesis.py [--seconds 60]
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import logging
import mmap
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import torch
from gymnasium.vector import AutoresetMode
from lib.common import save, spread
from lib.subjects import zeros

from parenv import AsyncWorkerPool, GradientOptions, ParallelVectorEnv, RestartPolicy, TorchPolicy, WorkerOptions
from parenv.process import launcher
from parenv.testing import LedgerEnv, check_ledger
from parenv.testing.ledger import MAX_REPLACEMENTS, LedgerError, episode_length, ledger_reward

MEAN_S = 2.0
UNDISTURBED_S, DISTURBED_S = 2.5, 5.0
PAUSE_S = 0.2
PATIENCE_S = 60.0
SEED = 5
WORKERS, ENVS_PER_WORKER = 4, 4
NUM_ENVS = WORKERS * ENVS_PER_WORKER
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV, "SIGSTOP": signal.SIGSTOP}
ORDERS = {"raises": 1, "segfaults": 2, "exits": 3}
FAULTS = (*SIGNALS, "pauses", *ORDERS)
HARMLESS = {"pauses", "raises"}
COLUMNS = (
    "transitions", "faults", "deaths", "recoveries", "median s", "worst s", "lost", "duplicated", "torn", "residue",
    "throughput",
)  # fmt: skip


class SimulatorError(RuntimeError):
    """Error that environments raise on request."""


class FaultyEnv(LedgerEnv):
    """Ledger environment that raises, crashes or exits before its next step if a byte in a file requests this.

    It clears the byte first, so each request causes one fault.

    Args:
        orders: Path of a file with one byte per environment: 0, or a value of :data:`ORDERS`.
        env_id: First number of every observation, and the index of the byte.
        pool_seed: Seed of the pool, as for :class:`~parenv.testing.LedgerEnv`.
    """

    def __init__(self, orders: str, env_id: int, pool_seed: int | None = None) -> None:
        super().__init__(env_id, pool_seed=pool_seed)
        # faulthandler would print a stack for every segfault.
        faulthandler.disable()
        self._orders, self._env_id = open_orders(orders), env_id

    def step(self, action: Any) -> Any:
        """Cause the requested fault, or take a step."""
        if order := self._orders[self._env_id]:
            self._orders[self._env_id] = 0
            self._obey(order)
        return super().step(action)

    def _obey(self, order: int) -> None:
        if order == ORDERS["raises"]:
            raise SimulatorError("the motor is hot")
        if order == ORDERS["segfaults"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(5)


def open_orders(path: str) -> mmap.mmap:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), NUM_ENVS)


@dataclass
class Found:
    """Results of the audit of one scenario.

    Attributes:
        transitions: Number of audited transitions.
        wrong: Number of faulty rollouts or rows by fault.
        seconds_to_recover: Seconds from each fatal fault to the first result of the replacement.
    """

    transitions: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    seconds_to_recover: list[float] = field(default_factory=list)


class Nemesis:
    """Injector of random faults into random workers, at random times and from a separate thread.

    Args:
        workers: Workers of a pool or vector env.
        orders: One byte per environment with the requested fault.
        chance: Random number generator.

    Attributes:
        made: Number of faults by kind.
        down: Times of the first fatal fault on the monotonic clock in seconds, by ``(worker, generation)``.
    """

    def __init__(self, workers: Any, orders: mmap.mmap, chance: random.Random) -> None:
        self._workers, self._orders, self._chance = workers, orders, chance
        self.made: Counter[str] = Counter()
        self.down: dict[tuple[int, int], float] = {}

    def begin(self, seconds: float) -> threading.Thread:
        """Start a thread that injects faults for a time in seconds, and return it."""
        thread = threading.Thread(target=self._run, args=(seconds,))
        thread.start()
        return thread

    def back(self, worker: int, generation: int) -> float | None:
        """Note a result of this generation. Return the seconds since the fault that ended an earlier one, if any."""
        ended = [key for key in list(self.down) if key[0] == worker and key[1] < generation]
        moments = [self.down.pop(key) for key in ended]
        return time.monotonic() - min(moments) if moments else None

    def _run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (at := time.monotonic() + self._chance.expovariate(1.0 / MEAN_S)) < deadline:
            time.sleep(max(0.0, at - time.monotonic()))
            worker, fault = self._chance.randrange(WORKERS), self._chance.choice(FAULTS)
            # The main process may restart a worker at the same time and change the tables that _strike reads.
            with contextlib.suppress(RuntimeError, ProcessLookupError):
                self._strike(worker, fault)

    def _strike(self, worker: int, fault: str) -> None:
        generation, pid = self._workers.generation(worker), self._workers.pid(worker)
        env_id = self._chance.choice(self._workers.env_ids(worker))
        # A signal to pid -1 would reach all processes.
        if pid <= 0 or self._orders[env_id]:
            return
        # The SIGCONT of a pause would continue a worker that a SIGSTOP has stopped permanently.
        if fault == "pauses" and (worker, generation) in self.down:
            return
        if fault not in HARMLESS:
            self.down.setdefault((worker, generation), time.monotonic())
        self.made[fault] += 1
        if fault in ORDERS:
            self._orders[env_id] = ORDERS[fault]
        elif fault == "pauses":
            os.kill(pid, signal.SIGSTOP)
            time.sleep(PAUSE_S)
            os.kill(pid, signal.SIGCONT)
        else:
            os.kill(pid, SIGNALS[fault])


class Subject(Protocol):
    """Pool or vector env into which the nemesis injects faults."""

    @property
    def workers(self) -> Any:
        """Workers of the pool or vector env."""

    def advance(self, found: Found) -> Iterator[tuple[int, int]]:
        """Take and audit the next results. Yield ``(worker, generation)`` of each restarted worker among them."""

    def close(self) -> None:
        """Close the pool or vector env."""


class Learner(torch.nn.Module):
    """Policy with trainable logits. It has real gradients but learns nothing useful from the rewards of ledgers."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.zeros(2))

    def act(self, observations: Any) -> Any:
        """Return sampled actions ``[N]``."""
        return (torch.distributions.Categorical(logits=self.logits.expand(len(observations), 2)).sample(),)


def loss_fn(policy: Any, rollout: Any) -> Any:
    log_prob = torch.distributions.Categorical(logits=policy.module.logits).log_prob(rollout.actions)
    return -(log_prob * rollout.rewards / (1 << 20)).mean()


class PoolSubject:
    """Pool of ledger environments that publishes often, and holds some rollouts to audit them again later.

    Args:
        orders: Path of the file with the requested faults.
        mode: ``mode`` of the pool.
        parallelism: ``parallelism`` of the pool.
    """

    def __init__(self, orders: str, mode: Any, parallelism: Any) -> None:
        learns = parallelism == "gradient"
        self._policy: Any = TorchPolicy(Learner(), "act", ("actions",)) if learns else zeros
        more: dict[str, Any] = (
            {"loss_fn": loss_fn, "gradient": GradientOptions(keep_rollouts=True)} if learns else {"prefetch": 2}
        )
        self.pool = AsyncWorkerPool(
            [lambda env_id=env_id: FaultyEnv(orders, env_id, SEED) for env_id in range(NUM_ENVS)],
            self._policy,
            num_workers=WORKERS,
            mode=mode,
            parallelism=parallelism,
            rollout_length=32,
            seed=SEED,
            workers=WorkerOptions(
                restart=RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=1e-2),
                on_env_error="restart_env",
                step_timeout_s=0.5,
                reset_timeout_s=0.5,
                start_timeout_s=5.0,
            ),
            **more,
        )
        self.workers = self.pool._session.workers
        self._stream: Any = self._gradients() if learns else ([rollout] for rollout in self.pool.rollouts())
        self._expected: dict[int, tuple[int, ...]] = {}
        self._held: list[tuple[Any, dict[int, tuple[int, ...]]]] = []
        self._chance = random.Random(SEED)

    def advance(self, found: Found) -> Iterator[tuple[int, int]]:
        """Take and audit a rollout, or the rollouts of a gradient.

        Yields:
            ``(worker, generation)`` of each restarted worker.
        """
        for rollout in next(self._stream):
            before = dict(self._expected)
            audit(rollout, self._expected, found)
            found.transitions += rollout.num_steps
            self._hold(rollout, before, found)
            yield from self._generations(rollout)
        if self._chance.random() < 0.2:
            self.pool.publish(self._policy)

    def close(self) -> None:
        """Close the pool or vector env."""
        self._held.clear()
        self.pool.close()

    def _gradients(self) -> Iterator[Sequence[Any]]:
        optimizer = torch.optim.SGD(self._policy.module.parameters(), 0.1)
        for gradient in self.pool.gradients():
            gradient.assign_to(self._policy)
            optimizer.step()
            yield gradient.rollouts

    def _hold(self, rollout: Any, before: dict[int, tuple[int, ...]], found: Found) -> None:
        if self._chance.random() < 0.1:
            self._held.append((rollout, before))
        if len(self._held) > 3:
            audit(*self._held.pop(0), found)

    def _generations(self, rollout: Any) -> Iterator[tuple[int, int]]:
        for worker in range(WORKERS):
            columns = np.isin(rollout.env_ids, self.workers.env_ids(worker))
            if rollout.restarted[columns].any():
                yield worker, int(rollout.observations[0, columns, 3][0]) // MAX_REPLACEMENTS


def audit(rollout: Any, expected: dict[int, tuple[int, ...]], found: Found) -> None:
    """Audit a rollout and count it in ``found.wrong`` if it is faulty.

    Args:
        rollout: Rollout of ledger environments.
        expected: Expected next observation by env_id. It is updated also after a faulty rollout.
        found: Results of the scenario.
    """
    before = dict(expected)
    try:
        check_ledger(rollout, expected)
    except LedgerError as error:
        print(f"  {error}", flush=True)
        found.wrong[kind_of_error(rollout, before)] += 1
        for env_id, last in zip(rollout.env_ids.tolist(), rollout.last_observations.tolist(), strict=True):
            expected[env_id] = tuple(last[1:])


def kind_of_error(rollout: Any, expected: Mapping[int, tuple[int, ...]]) -> str:
    """Return ``"lost"`` if a column begins too late, ``"duplicated"`` if it begins too early, else ``"torn"``."""
    for column, env_id in enumerate(rollout.env_ids.tolist()):
        first = tuple(rollout.observations[0, column, 1:].tolist())
        if env_id in expected and not rollout.restarted[column] and first != expected[env_id]:
            return "lost" if first > expected[env_id] else "duplicated"
    return "torn"


class VectorSubject:
    """Vector env of ledger environments.

    Args:
        orders: Path of the file with the requested faults.
        stepping: Whether to step all sub-environments at once, instead of those that are ready.
    """

    def __init__(self, orders: str, stepping: bool) -> None:
        self._envs = ParallelVectorEnv(
            [lambda env_id=env_id: FaultyEnv(orders, env_id) for env_id in range(NUM_ENVS)],
            num_workers=WORKERS,
            batch_size=NUM_ENVS if stepping else ENVS_PER_WORKER,
            autoreset_mode=AutoresetMode.SAME_STEP,
            on_worker_death="restart",
            step_timeout_s=1.0,
            workers=WorkerOptions(
                restart=RestartPolicy(max_restarts=10_000, backoff_s=1e-3, max_backoff_s=1e-2), start_timeout_s=20.0
            ),
        )
        session: Any = self._envs._session
        self.workers = session.backend.workers
        self._stepping, self._all_env_ids = stepping, np.arange(NUM_ENVS)
        self._last = self._envs.reset()[0]
        # A restart repeats these observations if the step before it raised an error and so returned nothing.
        self._delivered = self._last.copy()
        if not stepping:
            self._envs.send(np.zeros(NUM_ENVS, np.int64))

    def advance(self, found: Found) -> Iterator[tuple[int, int]]:
        """Take and audit a step, or a batch of ready sub-environments.

        Yields:
            ``(worker, generation)`` of each restarted worker.
        """
        results: Any = None
        failed: list[int] = []
        try:
            results = self._envs.step(np.zeros(NUM_ENVS, np.int64)) if self._stepping else self._envs.recv()
        except* SimulatorError as group:
            failed = [getattr(error.__cause__, "env_id", -1) for error in group.exceptions]
        if results is None:
            self._continue_without(failed)
            return
        observations, rows = results[0], results[4].get("env_id", self._all_env_ids)
        restarted = results[4].get("worker_restarted", np.zeros(len(rows), bool))
        for row, env_id in enumerate(rows.tolist()):
            last = self._delivered if restarted[row] else self._last
            found.wrong[wrong_with_row(last[env_id].tolist(), row, results)] += 1
        found.transitions += len(rows)
        self._last[rows] = self._delivered[rows] = observations
        if not self._stepping:
            self._envs.send(np.zeros(len(rows), np.int64), rows)
        for worker in sorted({int(env_id) // ENVS_PER_WORKER for env_id in rows[restarted]}):
            yield worker, self.workers.generation(worker)

    def close(self) -> None:
        """Close the pool or vector env."""
        self._envs.close()

    def _continue_without(self, failed: Sequence[int]) -> None:
        """Continue after an exception. With ``step``, all other sub-environments have stepped."""
        if not self._stepping:
            self._envs.send(np.zeros(len(failed), np.int64), failed)
            return
        for env_id in set(range(NUM_ENVS)) - set(failed):
            self._last[env_id] = following(self._last[env_id].tolist())


def following(observation: Sequence[int]) -> list[int]:
    """Return the observation after this one: the next step, or the first observation of the next episode."""
    env_id, episode, step = observation
    ended = step + 1 >= episode_length(env_id, episode, 7)
    return [env_id, episode + 1, 0] if ended else [env_id, episode, step + 1]


def wrong_with_row(last: Sequence[int], row: int, results: Any) -> str:
    """Return the fault in one row of results, or ``""`` for a correct row.

    Args:
        last: Last observation of this sub-environment, ``[env_id, episode, step]``.
        row: Index of the row.
        results: Results of ``step`` or ``recv``.
    """
    observations, rewards, terminated, truncated, infos = results
    env_id, episode, step = last
    ended = bool(terminated[row] or truncated[row])
    observation = observations[row].tolist()
    arrived = infos["final_obs"][row].tolist() if ended else observation
    if "worker_restarted" in infos and infos["worker_restarted"][row]:
        got = [arrived, observation, float(rewards[row]), ended]
        if got == [last, [env_id, 0, 0], 0.0, True]:
            return ""
        print(f"  after {last} and a restart: got {got}", flush=True)
        return "torn"
    step += 1
    reward, ends = ledger_reward(env_id, episode, step), step >= episode_length(env_id, episode, 7)
    if [arrived, observation, float(rewards[row]), ended] == [[env_id, episode, step], following(last), reward, ends]:
        return ""
    print(f"  after {last}: got {arrived}, {observation}, {rewards[row]}, {ended}", flush=True)
    if arrived[0] != env_id or arrived[1:] == [episode, step]:
        return "torn"
    return "lost" if arrived[1:] > [episode, step] else "duplicated"


SCENARIOS: dict[str, Callable[[str], Subject]] = {
    "pool, experience, sync": lambda orders: PoolSubject(orders, "sync", "experience"),
    "pool, experience, async": lambda orders: PoolSubject(orders, "async", "experience"),
    "pool, gradient, sync": lambda orders: PoolSubject(orders, "sync", "gradient"),
    "pool, gradient, async": lambda orders: PoolSubject(orders, "async", "gradient"),
    "vector env, step": lambda orders: VectorSubject(orders, True),
    "vector env, send and recv": lambda orders: VectorSubject(orders, False),
}


def rate(subject: Subject, found: Found, seconds: float, nemesis: Nemesis, disturbed: bool) -> float:
    """Return env steps per second over at least this time, until all lost workers have been replaced.

    Raises:
        TimeoutError: A lost worker has not been replaced within :data:`PATIENCE_S`.
    """
    began, before = time.monotonic(), found.transitions
    thread = nemesis.begin(seconds) if disturbed else None
    try:
        while time.monotonic() < began + seconds or (thread is not None and thread.is_alive()) or nemesis.down:
            for worker, generation in subject.advance(found):
                if (recovered_s := nemesis.back(worker, generation)) is not None:
                    found.seconds_to_recover.append(recovered_s)
            if time.monotonic() > began + seconds + PATIENCE_S:
                raise TimeoutError(f"workers that were not replaced, by (worker, generation): {nemesis.down}")
    finally:
        if thread is not None:
            thread.join()
    return (found.transitions - before) / (time.monotonic() - began)


def scenario(make: Callable[[str], Subject], seconds: float) -> dict[str, Any]:
    """Alternate slices without and with faults until the time in seconds is over, and return the results."""
    owned, found = owned_now(), Found()
    rates: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(NUM_ENVS))
        file.flush()
        subject = make(file.name)
        with contextlib.closing(subject), contextlib.closing(open_orders(file.name)) as orders:
            nemesis = Nemesis(subject.workers, orders, random.Random())
            deadline = time.monotonic() + seconds
            while not rates[True] or time.monotonic() < deadline:
                for disturbed, slice_s in ((False, UNDISTURBED_S), (True, DISTURBED_S)):
                    rates[disturbed].append(rate(subject, found, slice_s, nemesis, disturbed))
            deaths = sum(subject.workers.generation(worker) for worker in range(WORKERS))
            made = dict(nemesis.made)
        del subject, nemesis
    recoveries = found.seconds_to_recover or [float("nan")]
    return {
        "transitions": found.transitions,
        "faults": made,
        "deaths": deaths,
        "recoveries": len(found.seconds_to_recover),
        "seconds_to_recover": {"median": statistics.median(recoveries), "worst": max(recoveries)},
        **{kind: found.wrong[kind] for kind in ("lost", "duplicated", "torn")},
        "residue": left_behind(owned),
        "env_steps_per_second": {"undisturbed": spread(rates[False]), "disturbed": spread(rates[True])},
        "throughput_ratio": ratio(statistics.median, rates),
        # The median does not show a rare, long outage.
        "throughput_ratio_of_means": ratio(statistics.mean, rates),
    }


def ratio(typical: Callable[[Sequence[float]], float], rates: Mapping[bool, Sequence[float]]) -> float:
    """Return the share of throughput that remains under faults, for typical rates such as medians."""
    return typical(rates[True]) / typical(rates[False])


def owned_now() -> set[str]:
    """Return child processes, open descriptors and this user's entries of /dev/shm, without fork servers."""
    servers = {server._process.pid: server for server in launcher._fork_servers.values()}
    children = {
        f"process {child.pid}"
        for child in psutil.Process().children(recursive=True)
        if child.pid not in servers and not guards_a_server(child, servers)
    }
    shared = {str(path) for path in Path("/dev/shm").iterdir() if path.owner() == psutil.Process().username()}
    return (
        children
        | shared
        | descriptors({str(end.socket.fileno()) for server in servers.values() for end in server._ends})
    )


def guards_a_server(process: psutil.Process, servers: Collection[int]) -> bool:
    """Return whether a process is the guard that a fork server has on systems other than Linux."""
    try:
        return process.ppid() in servers and any(word.endswith("platform/guard.py") for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def descriptors(excluded: set[str]) -> set[str]:
    """Return the open descriptors of this process with their targets, except the given ones and files in /proc."""
    found = set()
    for fd in set(os.listdir("/proc/self/fd")) - excluded:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            if not target.startswith("/proc"):
                found.add(f"descriptor {fd} -> {target}")
    return found


def left_behind(before: set[str]) -> list[str]:
    """Return the resources that are missing in ``before`` and still exist after three seconds."""
    gc.collect()
    deadline = time.monotonic() + 3.0
    while (left := owned_now() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sorted(left)


def warm_up() -> None:
    """Start the fork servers, so that no scenario includes the time of their imports."""
    for policy in (zeros, TorchPolicy(Learner(), "act", ("actions",))):
        AsyncWorkerPool(lambda: LedgerEnv(0), policy, num_workers=1).close()
    ParallelVectorEnv([lambda: LedgerEnv(0)], num_workers=1).close()


def run(seconds: float, names: Sequence[str] = tuple(SCENARIOS)) -> dict[str, Any]:
    """Run scenarios and return their results by name.

    Args:
        seconds: Minimal duration of a scenario.
        names: Names of the scenarios.
    """
    logging.getLogger("parenv").setLevel(logging.ERROR)
    warm_up()
    results = {}
    for name in names:
        print(name, flush=True)
        faulthandler.dump_traceback_later(2.0 * seconds + 2.0 * PATIENCE_S, exit=True)
        results[name] = scenario(SCENARIOS[name], seconds)
        faulthandler.cancel_dump_traceback_later()
    return results


def row_of(result: Mapping[str, Any]) -> list[str]:
    """Return the cells of one scenario in the order of :data:`COLUMNS`."""
    recover = result["seconds_to_recover"]
    return [
        f"{result['transitions']:,}",
        str(sum(result["faults"].values())),
        *(str(result[name]) for name in ("deaths", "recoveries")),
        *(f"{recover[which]:.2f}" for which in ("median", "worst")),
        *(str(result[name]) for name in ("lost", "duplicated", "torn")),
        str(len(result["residue"])),
        f"{result['throughput_ratio']:.2f}",
    ]


def table(results: Mapping[str, Any]) -> str:
    """Return a plain-text table with one line per scenario."""
    lines = [["", *COLUMNS], *([name, *row_of(result)] for name, result in results.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="Seconds per scenario (default: 60).")
    parser.add_argument(
        "--only",
        nargs="*",
        default=list(SCENARIOS),
        help="Scenarios to run (default: all). The results are stored only if all run.",
    )
    arguments = parser.parse_args()
    results = run(arguments.seconds, arguments.only)
    if len(results) == len(SCENARIOS):
        save("nemesis", results)
    print(table(results))
    for name, result in results.items():
        for left in result["residue"]:
            print(f"{name}: left behind {left}")
