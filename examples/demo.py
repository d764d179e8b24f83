"""Train PPO on CartPole-v1 with two workers and a live display, and print measurements: make demo.

The agent, the pool and the update are the ones of ppo.py. Training stops when the mean return of the last 100 episodes
reaches `--stop-return`, or after two minutes.

    python examples/demo.py

shows the progress of the training and of the workers. The table at the end has the mean returns in training and in an
evaluation, the seconds of each phase, the env steps per second, and the policy lag.
"""

from __future__ import annotations

import sys
import time

import torch
from ppo import Args, make_agent, make_pool, update
from rich.console import Console
from rich.table import Table
from script import Curve, parse, save_results

from parenv import AsyncWorkerPool, Stop
from parenv.progress import ProgressDisplay, mean_lag

SECONDS = 120.0


def train(args: Args) -> None:
    """Train the agent of ppo.py, evaluate it, and print the measurements."""
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    agent = make_agent(args.env_id)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    stop = Stop(args.total_env_steps, mean_return=args.stop_return, seconds=SECONDS)
    # No lines: the live display replaces them.
    began, learning, curve = time.perf_counter(), 0.0, Curve(print_every=sys.maxsize)
    with make_pool(args, agent) as pool:
        started = time.perf_counter()
        with ProgressDisplay(pool, stop, title=f"PPO on {args.env_id}") as display:
            for rollout in pool.rollouts(stop):
                arrived = time.perf_counter()
                batch = rollout.to("cpu")
                extras = [batch.extras[name] for name in ("log_prob", "advantages", "returns")]
                update(agent, optimizer, args, pool.statistics().env_steps, batch.observations, batch.actions, *extras)
                pool.publish(agent)
                learning += time.perf_counter() - arrived
                curve.add(pool.statistics().env_steps, rollout.episodes.returns.tolist())
                display.update()
        trained = time.perf_counter()
        evaluation = pool.evaluate(20, deterministic=False)
        report(pool, started - began, trained - started, learning, evaluation.mean_return)
    save_results(args, curve, agent)


def report(pool: AsyncWorkerPool, starting: float, training: float, learning: float, evaluated: float) -> None:
    statistics = pool.statistics()
    rows = {
        "mean return of the last 100 episodes": f"{statistics.mean_return:.1f}",
        "mean return of 20 evaluation episodes": f"{evaluated:.1f}",
        "env steps": f"{statistics.env_steps:,}",
        "seconds to start the workers": f"{starting:.1f}",
        "seconds of training": f"{training:.1f}",
        "of these in the learner": f"{learning:.1f}",
        "env steps/s while collecting": f"{statistics.env_steps / max(training - learning, 1e-9):,.0f}",
        "mean policy lag": f"{mean_lag(statistics):.1f}",
        "copied rollouts (0: all zero-copy)": f"{statistics.copied_rollouts}",
    }
    table = Table(title="What it measured", title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    train(parse(Args))
