"""Collecting rollouts with a policy, against the ideal loop: the same work side by side in processes that tell nobody.

python benchmarks/rollouts.py            all cases
python benchmarks/rollouts.py cartpole   one of: cartpole, sleeping, pong
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from common import IdealLoops, ideal_loop, interleaved, nature_body, pss_mb, rate_alone, save, summary

from parenv import AsyncWorkerPool, TorchPolicy

SECONDS, REPEATS = 3.0, 5


class Agent(torch.nn.Module):
    """MLP 4-64-64-2 with a value head, and ``torch.distributions``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
        )
        self.actor, self.critic = torch.nn.Linear(64, 2), torch.nn.Linear(64, 1)

    def get_action_and_value(self, observations: Any) -> Any:
        """Actions, log-probabilities, no entropy, values."""
        hidden = self.body(observations)
        distribution = torch.distributions.Categorical(logits=self.actor(hidden))
        actions = distribution.sample()
        return actions, distribution.log_prob(actions), None, self.critic(hidden).squeeze(-1)


class PixelAgent(Agent):
    """The usual convolutions on 4 x 84 x 84 bytes, six actions."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.body = nature_body()
        self.actor, self.critic = nn.Linear(512, 6), nn.Linear(512, 1)

    def get_action_and_value(self, observations: Any) -> Any:
        """Actions, log-probabilities, no entropy, values."""
        return super().get_action_and_value(observations.float() / 255.0)


class Sleeper(gym.Env[Any, Any]):
    """A step that sleeps, exponentially.

    Args:
        mean_s: seconds on average.
    """

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, mean_s: float = 0.002) -> None:
        self.mean_s = mean_s
        self._observation = np.zeros(4, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin an episode."""
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Sleep."""
        time.sleep(self.np_random.exponential(self.mean_s))
        return self._observation, 0.0, False, False, {}


def make_pong() -> Any:
    """Pong as it is usually seen: grey, 84 x 84, 4 frames of 4 skips each."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5", frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=0, frame_skip=4, screen_size=84)
    return gym.wrappers.FrameStackObservation(env, 4)


def act_with(agent: Agent) -> Any:
    """The same forward as in a worker, in place."""

    def act(observations: Any) -> Any:
        with torch.inference_mode():
            return agent.get_action_and_value(torch.from_numpy(observations))[0].tolist()

    return act


def zeros(observations: Any) -> Any:
    """No policy to speak of."""
    return np.zeros(len(observations), np.int64)


def trivial_learner(rollout: Any) -> None:
    """Looks at the batch once."""
    rollout.rewards.sum()


def compare(make_env: Any, agent: Any, num_envs: int, num_workers: int, modes: tuple[str, ...], T: int = 128) -> Any:
    """The pool in several modes against the ideal loops, interleaved."""
    act = act_with(agent) if agent is not None else lambda observations: [0] * len(observations)
    policy = TorchPolicy(agent) if agent is not None else zeros
    share = num_envs // num_workers
    loops = IdealLoops(lambda: ideal_loop(make_env, act, share), num_workers)
    pools = {
        mode: AsyncWorkerPool(
            make_env,
            policy,
            num_envs=num_envs,
            num_workers=num_workers,
            mode=mode,
            rollout_length=T,  # type: ignore[arg-type]
        )
        for mode in modes
    }
    measures: Any = {"ideal": lambda: loops.rate(SECONDS)}
    for mode, pool in pools.items():
        learn = trivial_learner if mode == "sync" else None
        measures[mode] = lambda pool=pool, learn=learn: rate_alone(pool, SECONDS, learn)
    found = summary(interleaved(measures, REPEATS), "ideal")
    placement = {mode: pool._session.workers for mode, pool in pools.items()}
    for mode, workers in placement.items():
        found[mode]["pss_mb_of_all_workers"] = pss_mb([workers._placement.pid(sender) for sender in workers._senders])
    for pool in pools.values():
        pool.close()
    loops.close()
    return found


def cartpole() -> Any:
    """64 CartPoles in 2 workers with an MLP."""
    return compare(lambda: gym.make("CartPole-v1"), Agent(), 64, 2, ("async", "sync"))


def sleeping() -> Any:
    """64 environments that sleep, in 64 workers."""
    return compare(Sleeper, None, 64, 64, ("async",))


def pong() -> Any:
    """8 Pongs from pixels in 2 workers with the usual convolutions, and with no policy to speak of."""
    return {
        "convolutions": compare(make_pong, PixelAgent(), 8, 2, ("async", "sync")),
        "no policy": compare(make_pong, None, 8, 2, ("async", "sync")),
    }


CASES = {"cartpole": cartpole, "sleeping": sleeping, "pong": pong}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        print(case)
        save(f"rollouts_{case}", CASES[case]())
