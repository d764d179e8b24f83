"""Command ``parenv eval``: a table of returns and successes of one agent on several environments."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parenv.bench.environment import environment_factory, is_env_id, named_factory, refused
from parenv.cli.help import add_command
from parenv.errors import ConfigurationError
from parenv.evaluation import evaluate
from parenv.options import WorkerOptions


def add_eval_command(commands: Any) -> None:
    """Add the command."""
    one = add_command(
        commands,
        "eval",
        "evaluate an agent on several environments",
        "Play episodes of several environments with one agent on parallel workers, and print returns and success rates "
        "with 95 percent intervals. A crash of an environment costs only its episode, which is played again.",
        [
            "parenv eval agent.onnx CartPole-v1 LunarLander-v3 --episodes 50 --num-workers 8 --out results.jsonl",
            "parenv eval agent.onnx CartPole-v1 LunarLander-v3 --out results.jsonl --resume",
            "parenv eval best.ckpt CartPole-v1 --agent my_package.agents:make",
            "parenv eval my_package.agents:make reach=my_package.envs:make_reach push=my_package.envs:make_push",
        ],
        _run,
    )
    one.add_argument(
        "policy",
        metavar="AGENT",
        help="File of parenv.export (.onnx), Stable-Baselines3 (.zip) or SaveBest (with --agent), or module:factory.",
    )
    one.add_argument(
        "envs", nargs="+", metavar="ENV", help="Env id or module:factory. NAME=ENV gives the task a name of its own."
    )
    one.add_argument("--agent", metavar="MODULE:FACTORY", help="Function that makes the policy of a file of SaveBest.")
    one.add_argument("--episodes", type=int, default=50, metavar="N", help="Episodes per environment (default: 50).")
    one.add_argument("--num-workers", type=int, metavar="N", help="Workers (default: one per usable core).")
    one.add_argument(
        "--num-envs", type=int, metavar="N", help="Sub-environments of each worker, the batch size (default: 8)."
    )
    one.add_argument(
        "--step-workers", type=int, metavar="N", help="Workers that only step, while this process acts (default: none)."
    )
    one.add_argument("--device", default="cpu", help="Torch device on which the policy acts (default: cpu).")
    one.add_argument("--out", type=Path, metavar="PATH", help="File with a line of JSON per episode (default: none).")
    one.add_argument("--resume", action="store_true", help="Continue the file of an interrupted evaluation.")
    one.add_argument("--seed", type=int, default=0, help="Root of all seeds (default: 0).")
    one.add_argument("--stochastic", action="store_true", help="Act with exploration (default: deterministic).")
    one.add_argument("--retries", type=int, default=3, metavar="N", help="Repetitions of a lost episode (default: 3).")
    one.add_argument("--max-episode-steps", type=int, metavar="N", help="Limit for an episode (default: none).")
    one.add_argument(
        "--videos", type=int, default=0, metavar="N", help="Videos per environment, worst to best (default: 0)."
    )
    one.add_argument("--infos", nargs="+", default=(), metavar="NAME", help="Infos of the last step to store.")
    one.add_argument(
        "--success", nargs="+", metavar="NAME", help="Infos that tell success (default: is_success success)."
    )


def _run(options: argparse.Namespace) -> None:
    policy, checkpoint = _policy(options.policy, options.agent)
    more: dict[str, Any] = {} if options.success is None else {"success": options.success}
    with _named_results(options.out):
        report = evaluate(
            policy,
            _tasks(options.envs),
            episodes=options.episodes,
            num_workers=options.num_workers,
            num_envs=options.num_envs,
            out=options.out,
            resume=options.resume,
            seed=options.seed,
            deterministic=not options.stochastic,
            retries=options.retries,
            max_episode_steps=options.max_episode_steps,
            videos=options.videos,
            infos=options.infos,
            checkpoint=checkpoint,
            workers=WorkerOptions(device=options.device, step_workers=options.step_workers),
            progress=True,
            **more,
        )
    print(report)


@contextlib.contextmanager
def _named_results(out: Path | None) -> Iterator[None]:
    """Name the file with the episodes so far, and the way to continue, if an evaluation ends early."""
    try:
        yield
    except ConfigurationError:
        raise
    except BaseException:
        if out is None:
            end = "no results are stored. Pass --out PATH to store each episode"
        elif not out.exists():
            end = f"{out} has not been written yet. Run the command again"
        else:
            end = f"the episodes so far are in {out}. Run the command again with --resume to continue"
        print(f"parenv eval: {end}.", file=sys.stderr)
        raise


def _policy(name: str, agent: str | None) -> tuple[Any, Path | None]:
    """Return the policy, or the path of its file, and the path of a file of SaveBest or ``None``."""
    if agent is not None:
        return _made(agent), Path(name)
    if ":" in name and not Path(name).exists():
        return _made(name), None
    if Path(name).suffix not in (".onnx", ".zip"):
        raise ConfigurationError(
            f"{name} must end in .onnx or .zip, or be module:factory. "
            "For a file of SaveBest, pass --agent MODULE:FACTORY."
        )
    return name, None


def _made(factory: str) -> Any:
    make = named_factory(factory)
    with refused(f"{factory} raised while making the policy"):
        return make()


def _tasks(envs: list[str]) -> dict[str, Any]:
    """Return the factory of each task by name.

    Raises:
        ConfigurationError: A name occurs twice.
    """
    tasks: dict[str, Any] = {}
    for env in envs:
        name, is_named, what = env.partition("=")
        what = what if is_named else env
        if name in tasks:
            raise ConfigurationError(f"the name of a task must be unique, got {name!r} twice. Use NAME=ENV.")
        tasks[name] = what if is_env_id(what) else environment_factory(what)
    return tasks
