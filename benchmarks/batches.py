"""Native vector envs: rollouts of a pool with one worker against a bare loop over the same vector env.

The loop has the same policy and stores nothing. With ``keeping``, it copies all that a learner needs into arrays of
several rollouts. The script skips a case if its library is not installed.

The GPU case has a simulator whose frames are tensors on the GPU. The learner on the same GPU reads rollouts from shared
memory of the host, or from GPU memory.

python benchmarks/batches.py
python benchmarks/batches.py gpu
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from lib.common import interleaved, keep, save, summary
from lib.subjects import zeros

from parenv import AsyncWorkerPool, TorchPolicy, WorkerOptions

ROWS, REPEATS, SECONDS = 128, 5, 3.0
BARE = "bare loop"


def cartpoles() -> Any:
    """Make 4,096 CartPoles of Gymnasium, which are written in NumPy."""
    return gym.make_vec("CartPole-v1", num_envs=4096, vectorization_mode="vector_entry_point").unwrapped


def pongs() -> Any:
    """Make 8 Pongs of EnvPool, which are written in C++."""
    import envpool

    return envpool.make_gymnasium("Pong-v5", num_envs=8, num_threads=1)


def jax_cartpoles() -> Any:
    """Make 4,096 CartPoles of gymnax, which are written in JAX."""
    import gymnax
    from gymnax.wrappers.gym import GymnaxToVectorGymWrapper

    env, parameters = gymnax.make("CartPole-v1")
    envs: Any = GymnaxToVectorGymWrapper(env, num_envs=4096, params=parameters)
    envs.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    return envs


def lean(observations: Any) -> Any:
    """Push each cart towards the side to which its pole leans."""
    return (np.asarray(observations)[:, 2] > 0).astype(np.int64)


CASES: dict[str, tuple[str, Callable[[], Any], Any]] = {
    "CartPole, 4096, Gymnasium": ("gymnasium", cartpoles, lean),
    "Pong, 8, EnvPool": ("envpool", pongs, zeros),
    "CartPole, 4096, gymnax": ("gymnax", jax_cartpoles, lean),
}


def bare(make: Any, policy: Any, keeping: bool) -> float:
    """Return the env steps per second of a loop, including steps that only reset a sub-environment.

    Args:
        make: Function that makes the vector env.
        policy: Function from observations to actions.
        keeping: Whether to store all transitions.
    """
    with contextlib.closing(make()) as env:
        observations = np.asarray(env.reset(seed=0)[0])
        kept = np.zeros((5, ROWS, *observations.shape), observations.dtype)
        rewards, taken = (np.zeros((5, ROWS, len(observations)), dtype) for dtype in (np.float32, np.int64))
        flags = np.zeros((2, 5, ROWS, len(observations)), bool)
        began, used, rollouts = 0.0, 0.0, 0
        while not began or time.perf_counter() - began < SECONDS:
            for row in range(ROWS):
                actions = policy(observations)
                if keeping:
                    kept[rollouts % 5, row], taken[rollouts % 5, row] = observations, actions
                observations, gained, terminated, truncated, _ = env.step(actions)
                if keeping:
                    rewards[rollouts % 5, row] = gained
                    flags[0, rollouts % 5, row], flags[1, rollouts % 5, row] = terminated, truncated
            rollouts += 1
            if rollouts == 8:
                began, used = time.perf_counter(), time.process_time()
        return report_rate(rollouts - 8, time.process_time() - used, len(observations), time.perf_counter() - began)


def report_rate(rollouts: int, processor_s: float, num_envs: int, seconds: float) -> float:
    """Return env steps per second, and print the processor time per row.

    Other load on the machine affects the processor time less than the rate.
    """
    print(f"    {processor_s / (rollouts * ROWS) * 1e6:,.0f} µs of processor time a row", flush=True)
    return rollouts * ROWS * num_envs / seconds


def pooled(make: Any, policy: Any) -> float:
    """Return the env steps per second of a pool with one worker."""
    options = WorkerOptions(start_method="spawn", start_timeout_s=300.0)
    with AsyncWorkerPool(make, policy, num_workers=1, rollout_length=ROWS, workers=options) as pool:
        rollouts = iter(pool.rollouts())
        for _ in range(8):
            next(rollouts)
        began, before = time.perf_counter(), pool.statistics()
        while time.perf_counter() - began < SECONDS:
            next(rollouts)
        after, seconds = pool.statistics(), time.perf_counter() - began
        used = after.processor_seconds - before.processor_seconds
        return report_rate(after.rollouts - before.rollouts, used, pool.num_envs, seconds)


def measure(make: Any, policy: Any) -> Any:
    """Measure loops and pool in turn, and return their summary."""
    measures = {
        BARE: lambda: bare(make, policy, keeping=False),
        "bare loop, keeping": lambda: bare(make, policy, keeping=True),
        "pool": lambda: pooled(make, policy),
    }
    return summary(interleaved(measures, REPEATS, alternating=True), BARE)


class Frames(VectorEnv[Any, Any, Any]):
    """256 sub-environments with stacks of four frames on a GPU and episodes of 100 steps. Each step adds a frame."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self) -> None:
        self.num_envs = 256
        self.single_observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.steps = torch.arange(self.num_envs, device="cuda") % 100

    def reset(self, **options: Any) -> Any:
        """Return black frames."""
        self.frames = torch.zeros(self.observation_space.shape, dtype=torch.uint8, device="cuda")
        return self.frames, {}

    def step(self, actions: Any) -> Any:
        """Replace the oldest frame of each stack."""
        self.steps = (self.steps + 1) % 100
        frame = (self.frames[:, -1:] + 1 + actions[:, None, None, None]).to(torch.uint8)
        self.frames = torch.cat([self.frames[:, 1:], frame], 1)
        truncated = self.steps == 99
        return self.frames, self.steps.float(), torch.zeros_like(truncated), truncated, {}


class Brightness(torch.nn.Module):
    """Policy that compares one pixel of the newest frame with a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.threshold = torch.nn.Parameter(torch.tensor(128.0))

    def act(self, frames: Any) -> Any:
        """Return action 1 for each frame whose first pixel exceeds the threshold."""
        return ((frames[:, -1, 0, 0] > self.threshold).long(),)


GPU_ROWS = 32


def kept_on_gpu() -> float:
    """Return the env steps per second of a loop that stores frames in a tensor on the GPU."""
    env, module = Frames(), Brightness().cuda()
    frames, _ = env.reset()
    kept = torch.zeros((5, GPU_ROWS, *frames.shape), dtype=torch.uint8, device="cuda")
    began, rollouts = 0.0, 0
    with torch.inference_mode():
        while not began or time.perf_counter() - began < SECONDS:
            for row in range(GPU_ROWS):
                frames, _, terminated, truncated, _ = env.step(module.act(frames)[0])
                kept[rollouts % 5, row] = frames
                bool((terminated | truncated).any())
            rollouts += 1
            if rollouts == 8:
                began = time.perf_counter()
    return (rollouts - 8) * GPU_ROWS * env.num_envs / (time.perf_counter() - began)


def learned_on_gpu(rollout_device: str | None) -> float:
    """Return the env steps per second of a pool whose learner reads all frames on the GPU.

    Args:
        rollout_device: Device of the rollouts, or ``None`` for shared memory of the host.
    """
    options, policy = WorkerOptions(device="cuda", rollout_device=rollout_device), Brightness()
    agent = TorchPolicy(policy, "act", ("actions",))
    with AsyncWorkerPool(Frames, agent, num_workers=1, rollout_length=GPU_ROWS, workers=options) as pool:
        rollouts = iter(pool.rollouts())
        for _ in range(8):
            next(rollouts).to("cuda")
        began, steps, moving = time.perf_counter(), 0, 0.0
        while time.perf_counter() - began < SECONDS:
            rollout = next(rollouts)
            before = time.perf_counter()
            frames = rollout.to("cuda").observations
            torch.cuda.synchronize()
            moving += time.perf_counter() - before
            steps += rollout.rewards.shape[0] * rollout.rewards.shape[1]
            frames.sum(dtype=torch.int64).item()
        seconds = time.perf_counter() - began
    print(f"    rollouts on {rollout_device or 'the host'}: {moving / seconds:.1%} of the time in .to()", flush=True)
    return steps / seconds


def measure_on_gpu() -> Any:
    """Measure the loop on the GPU and both pools in turn, and return their summary."""
    measures = {
        "loop, keeping on the GPU": kept_on_gpu,
        "pool, rollouts on the host": lambda: learned_on_gpu(None),
        "pool, rollouts on the GPU": lambda: learned_on_gpu("cuda"),
    }
    return summary(interleaved(measures, 2, alternating=True), "loop, keeping on the GPU")


if __name__ == "__main__":
    if sys.argv[1:] == ["gpu"]:
        save("batches_gpu", measure_on_gpu())
        sys.exit()
    for name, (library, make, policy) in CASES.items():
        if importlib.util.find_spec(library) is not None:
            keep("batches", name, measure(make, policy))
