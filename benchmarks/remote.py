"""Remote workers behind TCP and CURVE, compared with local workers behind ipc and shared memory, on one machine.

python benchmarks/remote.py               all cases
python benchmarks/remote.py cartpole ...  some cases: driver, cartpole, pong, vector, sleeping, publish, healing
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import torch
from lib.common import IdealLoops, ideal_loop, interleaved, keep, rate_alone, summary
from lib.hosts import hosts, namespaces
from lib.publishing import publish_s, weighty_policy
from lib.stepping import sampled_actions, send_recv_rate, step_rate
from lib.subjects import Agent, Sleeper, make_pong, zeros

from parenv import AsyncWorkerPool, ParallelVectorEnv, Stop, TorchPolicy, WorkerOptions

SECONDS, REPEATS = 2.0, 5
# The module of environments and policies imports torch. With preload, each host imports it once, not each worker.
PRELOADED = WorkerOptions(preload=("lib.subjects",))


def bytes_per_step(pool: AsyncWorkerPool) -> Any:
    """Return the bytes per env step that cross the network in each direction."""
    before, steps = pool.statistics(), 0
    for rollout in pool.rollouts(Stop(env_steps=100_000, seconds=10.0)):
        steps += rollout.num_steps
    pool.synchronize()
    after = pool.statistics()
    return {
        "received": (after.bytes_received - before.bytes_received) / steps,
        "sent": (after.bytes_sent - before.bytes_sent) / steps,
    }


def against_local(make_env: Any, policy: Any, num_envs: int) -> Any:
    """Measure pools with two local workers and with two workers on a host in turn, in both modes."""
    found: dict[str, Any] = {}
    for mode in ("async", "sync"):
        settings: Any = {"num_envs": num_envs, "num_workers": 2, "mode": mode}
        with (
            hosts([2]) as placement,
            AsyncWorkerPool(make_env, policy, **settings) as local,
            AsyncWorkerPool(make_env, policy, placement=placement, **settings) as remote,
        ):
            measures = {
                "ipc": lambda local=local: rate_alone(local, SECONDS),
                "tcp": lambda remote=remote: rate_alone(remote, SECONDS),
            }
            found[mode] = summary(interleaved(measures, REPEATS), "ipc")
            found[mode]["bytes per env step"] = bytes_per_step(remote)
    return found


def cartpole() -> Any:
    """Measure 64 CartPoles in 2 workers with an MLP."""
    return against_local(lambda: gym.make("CartPole-v1"), TorchPolicy(Agent()), 64)


def pong() -> Any:
    """Measure 8 Pongs from pixels in 2 workers. The policy returns zeros, to maximize the traffic."""
    return against_local(make_pong, zeros, 8)


def vector() -> Any:
    """Measure a vector env of 64 CartPoles in two local or remote workers, with ``step`` and with double buffering."""
    num_envs = 64
    make_env = lambda: gym.make("CartPole-v1")  # noqa: E731
    actions = sampled_actions(make_env, num_envs)
    with ExitStack() as stack:
        placements = {
            "ipc": None,
            "ipc halves": None,
            "tcp": stack.enter_context(hosts([2])),
            "tcp halves": stack.enter_context(hosts([2])),
        }
        measures: Any = {}
        for name, placement in placements.items():
            is_halved = name.endswith("halves")
            envs = ParallelVectorEnv(
                [make_env] * num_envs,
                num_workers=2,
                batch_size=num_envs // 2 if is_halved else None,
                placement=placement,
            )
            stack.callback(envs.close)
            envs.reset()
            rate = send_recv_rate if is_halved else step_rate
            measures[name] = lambda envs=envs, rate=rate: rate(envs, actions)
        found = summary(interleaved(measures, REPEATS), "ipc")
    for name, rates in found.items():
        steps = num_envs // 2 if name.endswith("halves") else num_envs
        rates["us per call"] = 1e6 * steps / rates["median"]
    return found


def sleeping() -> Any:
    """Measure 1 to 64 workers on 4 hosts in network namespaces. Each worker has an environment that sleeps."""
    found: dict[str, Any] = {}
    for workers, mean_ms, T in ((1, 2, 128), (64, 2, 128), (64, 2, 1024), (1, 10, 128), (64, 10, 128)):
        make_env = lambda mean_ms=mean_ms: Sleeper(mean_ms / 1000)  # noqa: E731
        seconds = max(4.0, 8 * T * mean_ms / 1000)  # A measurement needs several rollouts.
        loops = IdealLoops(lambda make_env=make_env: ideal_loop(make_env, lambda o: [0] * len(o), 1), workers)
        settings: Any = {"num_workers": workers, "rollout_length": T, "workers": PRELOADED}
        share = -(-workers // 4)
        with ExitStack() as stack:
            placement = stack.enter_context(hosts([share] * 4, stack.enter_context(namespaces(4))))
            remote = stack.enter_context(AsyncWorkerPool(make_env, zeros, placement=placement, **settings))
            local = stack.enter_context(AsyncWorkerPool(make_env, zeros, **settings))
            measures = {
                "ideal": lambda loops=loops, s=seconds: loops.rate(s),
                "ipc": lambda local=local, s=seconds: rate_alone(local, s),
                "tcp over 4 namespaces": lambda remote=remote, s=seconds: rate_alone(remote, s),
            }
            case = f"steps of {mean_ms} ms, workers: {workers}, rollouts of {T}"
            found[case] = summary(interleaved(measures, 3), "ideal")
        loops.close()
    return found


def publish() -> Any:
    """Measure the milliseconds until all of 16 workers on 4 hosts have loaded a new version, and the bytes sent."""
    found: dict[str, Any] = {}
    for megabytes in (1, 40):
        policy = weighty_policy(megabytes * 1_000_000)
        with ExitStack() as stack:
            pools = {}
            for encoding in ("exact", "bfloat16"):
                placement = stack.enter_context(hosts([4] * 4, weights=encoding))
                pools[encoding] = stack.enter_context(
                    AsyncWorkerPool("CartPole-v1", policy, num_workers=16, placement=placement)
                )
            pools["ipc"] = stack.enter_context(AsyncWorkerPool("CartPole-v1", policy, num_workers=16))
            measures = {
                name: lambda pool=pool, policy=policy: 1000 * publish_s(pool, policy, 5)
                for name, pool in reversed(pools.items())
            }
            one = f"{megabytes} MB, ms"
            found[one] = summary(interleaved(measures, REPEATS), "ipc")
            for name in ("exact", "bfloat16"):
                before = pools[name].statistics().bytes_sent
                publish_s(pools[name], policy, 1)
                found[one][name]["bytes sent to 4 hosts"] = pools[name].statistics().bytes_sent - before
    return found


def healing() -> Any:
    """Measure the seconds from the end of a network outage to the first rollout of a worker on the lost host.

    The outage lasts until pool and host have lost the connection.
    """
    seconds = []
    with (
        namespaces(2) as names,
        hosts([1, 1], names, silence_s=2.0) as placement,
        AsyncWorkerPool(
            "CartPole-v1", zeros, num_workers=2, rollout_length=16, placement=placement, workers=PRELOADED
        ) as pool,
    ):
        stream = pool.rollouts()
        for _ in range(REPEATS):
            subprocess.run(["ip", "link", "set", "pv1d", "down"], check=True)
            while pool.statistics().hosts == 2:
                next(stream)
            time.sleep(3.0)  # The host must detect the outage too.
            subprocess.run(["ip", "link", "set", "pv1d", "up"], check=True)
            began = time.perf_counter()
            lost = next(w for w in range(2) if pool._session.workers.doing(w) == "waiting for a host")
            while next(stream).worker != lost:
                pass
            seconds.append(time.perf_counter() - began)
            print(f"  {seconds[-1]:.2f} s", flush=True)
    return {"median": sorted(seconds)[len(seconds) // 2], "max": max(seconds)}


def driver() -> Any:
    """Return the processor time of all threads of the main process, per rollout and per MB of rollouts.

    Both follow from the results with short and with long rollouts.
    """
    points = []
    for T in (16, 2048):
        settings: Any = {"num_envs": 64, "num_workers": 2, "rollout_length": T}
        with hosts([2]) as placement, AsyncWorkerPool("CartPole-v1", zeros, placement=placement, **settings) as pool:
            rate_alone(pool, 0.5)
            before, used = pool.statistics(), time.process_time()
            for _ in pool.rollouts(Stop(seconds=3 * SECONDS)):
                pass
            used, after = time.process_time() - used, pool.statistics()
            rollouts = after.rollouts - before.rollouts
            points.append((used / rollouts, (after.bytes_received - before.bytes_received) / rollouts))
    (small_s, small_bytes), (large_s, large_bytes) = points
    per_byte = (large_s - small_s) / (large_bytes - small_bytes)
    return {
        "us per rollout": 1e6 * (small_s - per_byte * small_bytes),
        "ms per MB": 1e9 * per_byte,
        "bytes per rollout measured": [small_bytes, large_bytes],
        "us per rollout measured": [1e6 * small_s, 1e6 * large_s],
    }


CASES = {
    "driver": driver,
    "cartpole": cartpole,
    "pong": pong,
    "vector": vector,
    "sleeping": sleeping,
    "publish": publish,
    "healing": healing,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        print(case)
        keep("remote", case, CASES[case]())
