"""The command ``parenv``."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parenv.cli.advise import advise
from parenv.cli.bench import bench
from parenv.cli.blame import is_of_the_user, users_frames
from parenv.cli.display import make_display
from parenv.cli.help import ENV_HELP, add_command, given, with_examples
from parenv.cli.keys_command import add_keys_command
from parenv.cli.lineage import lineage
from parenv.cli.play import add_play_command
from parenv.cli.plot import check_plotting, plot
from parenv.cli.report import report
from parenv.cli.worker_command import add_worker_command
from parenv.cli.writable import check_writable, write_text
from parenv.errors import ConfigurationError, ParenvError

FAILED = 1
WRONG_ARGUMENTS = 2
INTERRUPTED = 130
UNREAD = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: of the command line, without the name of the command; by default those of this process.

    Returns:
        The exit status: 0, 1 where something else failed, such as a worker that died, 2 where an argument is wrong or
        what it names cannot be used, 130 after Ctrl-C, 141 where nobody reads the output any more; that of
        ``parenv worker`` is also 1 where there is no driver.
    """
    options = parser().parse_args(arguments)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # As with python -m: an installed command does not look here by itself.
    try:
        return int(options.run(options) or 0)
    except ParenvError as error:
        print(f"parenv {options.command}: {error}\n{users_frames(error)}", end="", file=sys.stderr)
        return WRONG_ARGUMENTS if isinstance(error, ConfigurationError) else FAILED
    except KeyboardInterrupt:
        print(f"parenv {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Who read along has gone, as head does. Python writes what is left as it ends, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except Exception as error:
        if not is_of_the_user(error):
            raise
        what = f"this was raised outside of parenv, by code that it was given: {type(error).__name__}: {error}"
        print(f"parenv {options.command}: {what}\n{users_frames(error)}", end="", file=sys.stderr)
        return WRONG_ARGUMENTS


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    whole = argparse.ArgumentParser(
        prog="parenv",
        description="Parallel workers for Gymnasium environments.",
        **with_examples("parenv bench CartPole-v1", "parenv advise CartPole-v1", "parenv --version"),
    )
    version = importlib.metadata.version("parenv")
    whole.add_argument("--version", action="version", version=f"parenv {version}")
    commands = whole.add_subparsers(dest="command", required=True)
    _add_bench(commands)
    _add_advise(commands)
    _add_report(commands)
    _add_lineage(commands)
    add_play_command(commands)
    add_keys_command(commands)
    add_worker_command(commands)
    return whole


def _add_bench(commands: Any) -> None:
    one = add_command(
        commands,
        "bench",
        "measure an environment on this machine",
        "Measure what an environment and a policy cost, and the env steps per second of vector envs and "
        "pools by number of sub-environments and workers.",
        [
            "parenv bench CartPole-v1",
            "parenv bench ale_py:ALE/Pong-v5 --num-envs 8 --num-workers 2 --no-pool --plot pong.png",
            "parenv bench my_package.envs:make_env --agent my_package.agents:make --json bench.json",
        ],
        _run_bench,
    )
    one.add_argument("env", help=ENV_HELP)
    one.add_argument(
        "--agent",
        metavar="MODULE:FACTORY",
        help="makes the policy of the pools, or the same with learn and loss_fn as for advise (default: a small MLP)",
    )
    one.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="for measuring; starting all systems may take minutes more (default: 60)",
    )
    one.add_argument("--num-envs", type=int, nargs="+", default=[8, 64], metavar="N", help="default: 8 64")
    one.add_argument("--num-workers", type=int, nargs="+", metavar="N", help="default: 1, 2, 4, ... up to the cores")
    one.add_argument("--repeats", type=int, default=5, help="measurements of each (default: 5)")
    one.add_argument("--no-pool", dest="pool", action="store_false", help="vector envs only, no policy")
    one.add_argument("--json", type=Path, metavar="PATH", help="write the report there")
    one.add_argument("--plot", type=Path, metavar="PATH", help="draw the bars there, such as out.png")


def _add_report(commands: Any) -> None:
    one = add_command(
        commands,
        "report",
        "draw what a run did",
        "Draw what a run did, from the trace that pool.trace(path) wrote: a timeline, where the time of "
        "every worker went, returns, throughput, policy lag and restarts, as one HTML file.",
        ["parenv report runs/1", "parenv report runs/1/trace.json --output run.html"],
        lambda options: print(report(options.path, options.output)),
    )
    one.add_argument("path", type=Path, metavar="RUN_DIR", help="a directory with a trace in it, or the trace")
    one.add_argument("--output", type=Path, metavar="PATH", help="where to (default: report.html beside the trace)")


def _add_lineage(commands: Any) -> None:
    one = add_command(
        commands,
        "lineage",
        "draw what became of a population",
        "Draw scores and hyper-parameters of a population over env steps, coloured by ancestor, from the file that "
        "Population(lineage=path) wrote.",
        ["parenv lineage runs/lineage.jsonl", "parenv lineage runs/lineage.jsonl --output run.svg"],
        lambda options: print(lineage(options.path, options.output)),
    )
    one.add_argument("path", type=Path, metavar="FILE", help="what the population wrote")
    one.add_argument("--output", type=Path, metavar="PATH", help="where to (default: a .png beside the file)")


def _add_advise(commands: Any) -> None:
    one = add_command(
        commands,
        "advise",
        "find the fastest setting of a pool on this machine",
        "Train in short runs, report where the time goes, and recommend the fastest setting, with its measured gain.",
        [
            "parenv advise CartPole-v1",
            "parenv advise CartPole-v1 --agent my_package.agents:make --json advice.json",
        ],
        _run_advise,
    )
    one.add_argument("env", help=ENV_HELP)
    one.add_argument(
        "--agent",
        metavar="MODULE:FACTORY",
        help="makes a policy, (policy, learn), or (policy, learn, loss_fn), where learn(rollout) is the update "
        "(default: a small MLP that learns nothing)",
    )
    one.add_argument(
        "--seconds",
        type=float,
        default=15.0,
        help="for measuring, without the start of the pools (default: 15)",
    )
    one.add_argument("--num-envs", type=int, metavar="N", help="at present (default: 8 per worker)")
    one.add_argument("--num-workers", type=int, metavar="N", help="at present (default: one per core)")
    one.add_argument("--rollout-length", type=int, metavar="T", help="at present (default: up to 128)")
    one.add_argument("--json", type=Path, metavar="PATH", help="write everything there")


def _run_advise(options: argparse.Namespace) -> None:
    check_writable(options.json)
    report = advise(**given(options), watch=lambda doing: print(doing, flush=True))
    print(report)
    if options.json is not None:
        write_text(options.json, report.to_json())


def _run_bench(options: argparse.Namespace) -> None:
    check_writable(options.json, options.plot)
    if options.plot is not None:
        check_plotting(options.plot)
    with make_display(sys.stdout) as display:
        report = bench(**given(options), watch=display.update)
        display.show(report)
    if options.json is not None:
        write_text(options.json, report.to_json())
    if options.plot is not None:
        plot(report, options.plot)
