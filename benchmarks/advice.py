"""What `parenv advise` predicts of the setting that it recommends, and what that setting reaches.

Six workloads: environments that sleep or compute, learners whose updates cost the same whatever their size or so much
per env step, short and long rollouts.

python benchmarks/advice.py
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from lib.common import save

from parenv.cli.advise import AdviceReport, advise

SECONDS = 20.0
TOLERANCE = 0.3


def compute(seconds: float) -> None:
    """Keep a core busy for so much of its time."""
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


class Workload(NamedTuple):
    """What a run is made of.

    Args:
        sleep_s: of an env step, off the processor.
        compute_s: of an env step, on it.
        update_s: of an update, whatever its size, on the processor.
        sample_s: of an update, for each env step that it learns from, on the processor.
        rollout_length: env steps of a sub-environment.
    """

    sleep_s: float = 0.0
    compute_s: float = 0.0
    update_s: float = 0.0
    sample_s: float = 0.0
    rollout_length: int = 16


WORKLOADS = {
    "sleeping, fixed updates, short rollouts": Workload(sleep_s=5e-3, update_s=20e-3),
    "sleeping, fixed updates, long rollouts": Workload(sleep_s=1e-3, update_s=20e-3, rollout_length=128),
    "sleeping, updates by the sample, long rollouts": Workload(sleep_s=2e-3, sample_s=50e-6, rollout_length=64),
    "computing, fixed updates, long rollouts": Workload(compute_s=2e-4, update_s=50e-3, rollout_length=128),
    "computing, updates by the sample, short rollouts": Workload(compute_s=2e-4, sample_s=50e-6),
    "computing, updates by the sample, long rollouts": Workload(compute_s=5e-4, sample_s=20e-6, rollout_length=128),
}


class Steps(gym.Env[Any, Any]):
    """An environment whose steps take what a workload says."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Discrete(2)

    def __init__(self, workload: Workload) -> None:
        self._workload, self._observation = workload, np.zeros(4, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin."""
        return self._observation, {}

    def step(self, action: Any) -> Any:
        """Sleep, or compute."""
        if self._workload.sleep_s:
            time.sleep(self._workload.sleep_s)
        compute(self._workload.compute_s)
        return self._observation, 0.0, False, False, {}


class Net(torch.nn.Module):
    """A small policy."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Linear(4, 2)

    def forward(self, observations: Any) -> Any:
        """Act."""
        return self.scores(observations).argmax(-1)


def measure(workload: Workload) -> AdviceReport:
    """Advice on a workload, verified."""

    def learn(rollout: Any) -> None:
        compute(workload.update_s + workload.sample_s * rollout.num_steps)

    return advise(
        lambda: Steps(workload),
        agent=lambda: (Net(), learn),
        seconds=SECONDS,
        rollout_length=workload.rollout_length,
        verify=True,
    )


def row(report: AdviceReport) -> dict[str, Any]:
    """What there is to say of it."""
    found, costs = report.verified, report.advice.costs
    assert found is not None
    first = costs.env_steps_per_second
    return {
        "before": asdict(costs.setting),
        "recommended": asdict(report.advice.recommended),
        "env steps per second": {
            "at first": first,
            "before": found.before,
            "predicted": found.predicted,
            "reached": found.measured,
        },
        "reached over predicted": found.measured / found.predicted,
        # Where the machine is slower than when it was measured, both settings are.
        "times as fast": {"predicted": found.predicted / first, "reached": found.measured / found.before},
        "within 30 %": abs(found.measured / found.predicted - 1) <= TOLERANCE,
        "taken": asdict(found.take),
        "load average before": report.machine["load_average"],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = {}
    for name, workload in WORKLOADS.items():
        rows[name] = row(measure(workload))
        rates = rows[name]["env steps per second"]
        print(f"{name}: {rates['predicted']:,.0f} predicted, {rates['reached']:,.0f} reached", flush=True)
    save("advice", rows)
