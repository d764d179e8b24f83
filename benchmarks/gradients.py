"""Gradient parallelism: gain from a second worker, overhead of the main process, and time to add gradients.

python benchmarks/gradients.py
"""

from __future__ import annotations

import mmap
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from lib.common import interleaved, nature_body, save, summary
from torch import nn

from parenv import AsyncWorkerPool, GradientOptions, TorchPolicy
from parenv.experience.reduction import Reducer

STEP_S, ENVS_PER_WORKER, ROLLOUT_LENGTH, ROUNDS, REPEATS = 1e-3, 4, 64, 4, 7
MEGABYTES, WARM_UPS = 40, 2


def calibrated(seconds: float) -> int:
    """Return the number of products of 64 x 64 matrices that take a given time in seconds."""
    matrix, count = np.ones((64, 64)), 200
    best = min(_timed(lambda: [matrix @ matrix for _ in range(count)]) for _ in range(20))
    return round(seconds * count / best)


def _timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Simulator(gym.Env[Any, Any]):
    """Environment with observations ``[4, 84, 84]`` in uint8 and the same amount of arithmetic in every step.

    Args:
        multiplications: Number of products of 64 x 64 matrices per step.
    """

    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gym.spaces.Discrete(6)

    def __init__(self, multiplications: int) -> None:
        self._count, self._matrix = multiplications, np.ones((64, 64))
        self._observation = np.random.default_rng(0).integers(0, 256, (4, 84, 84), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode."""
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Multiply matrices."""
        for _ in range(self._count):
            self._matrix @ self._matrix
        return self._observation, 1.0, False, False, {}


class Nature(nn.Module):
    """Network of Mnih et al. 2015 with heads for policy and value: 1.7 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nature_body()
        self.policy, self.value = nn.Linear(512, 6), nn.Linear(512, 1)

    def act(self, observations: torch.Tensor) -> torch.Tensor:
        """Return sampled actions ``[N]``."""
        return torch.distributions.Categorical(logits=self.policy(self.body(observations.float() / 255))).sample()


def loss_fn(policy: Any, rollout: Any) -> torch.Tensor:
    """Return a policy gradient loss plus a value loss.

    Rewards replace the returns, because the benchmark needs only the same amount of computation.
    """
    module = policy.module
    features = module.body(rollout.observations.flatten(0, 1).float() / 255)
    log_prob = torch.distributions.Categorical(logits=module.policy(features)).log_prob(rollout.actions.flatten())
    error = rollout.rewards.flatten() - module.value(features)[:, 0]
    return (error.pow(2) - log_prob * error.detach()).mean()


def workers_rate(num_workers: int, multiplications: int, driver_shares: dict[int, list[float]]) -> float:
    """Return the samples per second of a pool whose main process applies each gradient and publishes the result.

    Args:
        num_workers: Number of workers.
        multiplications: Number of matrix products per env step.
        driver_shares: Lists by number of workers. The function appends the processor time of the main process divided
            by the duration of a round.
    """
    policy = TorchPolicy(Nature(), "act", ("actions",))
    optimizer = torch.optim.RMSprop(policy.module.parameters(), 1e-4)
    with AsyncWorkerPool(
        lambda: Simulator(multiplications), policy, num_envs=ENVS_PER_WORKER * num_workers, num_workers=num_workers,
        mode="sync", parallelism="gradient", loss_fn=loss_fn, rollout_length=ROLLOUT_LENGTH,
    ) as pool:  # fmt: skip
        samples, driver_s, began = 0, 0.0, 0.0
        for round_, gradient in enumerate(pool.gradients()):
            samples += gradient.num_samples
            arrived = time.process_time()
            gradient.assign_to(policy.module)
            optimizer.step()
            pool.publish(policy)
            driver_s += time.process_time() - arrived
            if round_ == WARM_UPS:
                samples, driver_s, began = 0, 0.0, time.perf_counter()
            if round_ == WARM_UPS + ROUNDS:
                break
        seconds = time.perf_counter() - began
    driver_shares.setdefault(num_workers, []).append(driver_s / seconds)
    return samples / seconds


def shared(count: int, megabytes: int) -> list[torch.Tensor]:
    """Return ``count`` gradients of this size in shared memory, where workers store them."""
    nbytes = megabytes * 1_000_000
    rows = np.frombuffer(mmap.mmap(-1, count * nbytes), np.float32).reshape(count, -1)
    rows[:] = np.random.default_rng(0).random(rows.shape[1], np.float32)
    return list(torch.from_numpy(rows))


def reduction() -> dict[str, Any]:
    """Measure the milliseconds to add gradients of 40 MB each, and return their summary.

    The reference for 4 gradients is a single read of the same memory. For 2 gradients it is ``all_reduce`` with gloo.
    """
    four, two = shared(4, MEGABYTES), shared(2, MEGABYTES)

    def reduced(gradients: list[torch.Tensor]) -> float:
        reducer = Reducer(GradientOptions())
        return 1000 * _timed(lambda: (reducer.add(gradients, [1] * len(gradients), 0), reducer.result()))

    def read() -> float:
        return 1000 * _timed(lambda: [gradient.sum() for gradient in four])

    with tempfile.TemporaryDirectory() as folder, Gloo(Path(folder)) as gloo:
        measures = {
            "reading 4 x 40 MB": read,
            "4 x 40 MB": lambda: reduced(four),
            "2 x 40 MB": lambda: reduced(two),
            "gloo all_reduce, 2 processes, 40 MB": gloo.all_reduce,
        }
        return summary(interleaved(measures, 15), "reading 4 x 40 MB")


class Gloo:
    """Group of ``torch.distributed`` with this process and a second one.

    Args:
        folder: Folder for the file through which the processes find each other.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mine = torch.ones(MEGABYTES * 250_000)

    def __enter__(self) -> Gloo:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_other_rank, args=(theirs, str(self._folder)), daemon=True)
        self._process.start()
        _join(0, str(self._folder))
        return self

    def all_reduce(self) -> float:
        """Return the milliseconds of ``all_reduce`` after a barrier."""
        self._pipe.send("go")
        torch.distributed.barrier()
        return 1000 * _timed(lambda: torch.distributed.all_reduce(self._mine))

    def __exit__(self, *_: object) -> None:
        self._pipe.send("end")
        torch.distributed.destroy_process_group()
        self._process.join()


def _join(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)


def _other_rank(pipe: Any, folder: str) -> None:
    _join(1, folder)
    other = torch.ones(MEGABYTES * 250_000)
    while pipe.recv() == "go":
        torch.distributed.barrier()
        torch.distributed.all_reduce(other)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Measure pools and reductions, and save the results."""
    multiplications = calibrated(STEP_S)
    driver_shares: dict[int, list[float]] = {}
    rates = interleaved({str(n): lambda n=n: workers_rate(n, multiplications, driver_shares) for n in (1, 2)}, REPEATS)  # type: ignore[misc]
    results = {
        "samples per second by number of workers": summary(rates, "1"),
        "driver's processor time over the time of a round": {n: statistics.median(v) for n, v in driver_shares.items()},
        "parameters": sum(p.numel() for p in Nature().parameters()),
        "reduction, ms": reduction(),
    }
    save("gradients", results)


if __name__ == "__main__":
    main()
