"""Command ``parenv check``: whether several instances of an environment can share a process."""

from __future__ import annotations

import argparse
from typing import Any

from parenv.bench.environment import environment_factory
from parenv.cli.help import ENV_HELP, add_command
from parenv.testing.sharing_check import check_sharing


def add_check_command(commands: Any) -> None:
    """Add the command."""
    one = add_command(
        commands,
        "check",
        "check whether several instances of an environment can share a process",
        "Step several instances of an environment alternately in one process and each alone in a process of its own, "
        "with the same seeds and random actions, and compare the results. A simulator with one world per process needs "
        "num_workers=num_envs. The exit status is 1 if that is so, or if nothing can be concluded.",
        ["parenv check CartPole-v1", "parenv check my_package.envs:make_env --steps 1000 --step-timeout 300"],
        _run,
    )
    one.add_argument("env", help=ENV_HELP)
    one.add_argument("--steps", type=int, default=100, metavar="N", help="Steps of each instance (default: 100).")
    one.add_argument("--seed", type=int, default=0, help="Seed of resets and actions (default: 0).")
    one.add_argument(
        "--step-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="Time limit for each call of an instance, also to make it, in seconds (default: 60).",
    )


def _run(options: argparse.Namespace) -> int:
    env_fn = environment_factory(options.env)
    report = check_sharing(env_fn, options.steps, options.seed, step_timeout_s=options.step_timeout)
    return int(report.needs_own_process is not False)
