"""Command ``parenv``, and the origin of its errors: parenv's code or the user's code."""

from __future__ import annotations

import argparse
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parenv.bench.bench_display import BenchDisplay, plot
from parenv.bench.benchmark import ADVISE_IS_BENCH, bench
from parenv.bench.failure_report import failure_report
from parenv.bench.lineage_plot import lineage
from parenv.bench.output_files import check_plotting, check_writable, write_text
from parenv.bench.run_report import report
from parenv.cli.check import add_check_command
from parenv.cli.evaluate import add_eval_command
from parenv.cli.help import ENV_HELP, add_command, given, with_examples, with_flags
from parenv.cli.play import add_play_command
from parenv.errors import ConfigurationError, ParenvError, SubEnvironmentError
from parenv.version import VERSION

if sys.platform != "win32":
    from parenv.cli.hosts import add_keys_command, add_worker_command

FAILED = 1
WRONG_ARGUMENTS = 2
INTERRUPTED = 130
OUTPUT_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command line without the name of the command. Default: command line of this process.

    Returns:
        Exit status. 0: success. 1: failure, such as a worker that died, or no driver for ``parenv worker``. 2: wrong
        argument. 130: Ctrl-C. 141: the reader of the output has closed it.
    """
    options = parser().parse_args(arguments)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # An installed command does not search the working directory, unlike python -m.
    try:
        return int(options.run(options) or 0)
    except ParenvError as error:
        message = with_flags(str(error), options)
        print(f"parenv {options.command}: {message}\n{user_frames(error)}", end="", file=sys.stderr)
        return WRONG_ARGUMENTS if isinstance(error, ConfigurationError) else FAILED
    except KeyboardInterrupt:
        print(f"parenv {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has ended, as head does. Python flushes stdout at exit and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OUTPUT_CLOSED
    except Exception as error:
        if not is_from_user_code(error):
            raise
        message = f"code outside of parenv raised {type(error).__name__}: {error}"
        print(f"parenv {options.command}: {message}\n{user_frames(error)}", end="", file=sys.stderr)
        return WRONG_ARGUMENTS


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(
        prog="parenv",
        description="Parallel workers for Gymnasium environments.",
        **with_examples("parenv bench CartPole-v1", "parenv --version"),
    )
    whole.add_argument("--version", action="version", version=f"parenv {VERSION}")
    commands = whole.add_subparsers(dest="command", required=True)
    for add in (
        _add_bench,
        add_check_command,
        _add_report,
        _add_lineage,
        add_play_command,
        add_eval_command,
    ):
        add(commands)
    if sys.platform != "win32":
        add_keys_command(commands)
        add_worker_command(commands)
    return whole


def _add_bench(commands: Any) -> None:
    one = add_command(
        commands,
        "bench",
        "measure an environment on this machine",
        "Measure the costs of an environment and a policy, and the env steps per second of vector envs and pools by "
        "number of sub-environments and workers.",
        [
            "parenv bench CartPole-v1",
            "parenv bench ale_py:ALE/Pong-v5 --num-envs 8 --num-workers 2 --no-pool --plot pong.png",
            "parenv bench my_package.envs:make_env --agent my_package.agents:make --json bench.json",
        ],
        _run_bench,
        aliases=["advise"],
    )
    one.add_argument("env", help=ENV_HELP)
    one.add_argument(
        "--agent",
        metavar="MODULE:FACTORY",
        help="Function that makes the policy of the pools (default: a small MLP).",
    )
    one.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        help="Approximate time of the whole benchmark in seconds; starting and closing many systems may take longer "
        "(default: 60).",
    )
    one.add_argument(
        "--num-envs", type=int, nargs="+", default=[8, 64], metavar="N", help="Sub-environments (default: 8 64)."
    )
    one.add_argument(
        "--num-workers", type=int, nargs="+", metavar="N", help="Workers (default: 1, 2, 4, ... up to the cores)."
    )
    one.add_argument("--repeats", type=int, default=5, metavar="N", help="Measurements of each system (default: 5).")
    one.add_argument("--no-pool", dest="pool", action="store_false", help="Measure vector envs only, without a policy.")
    one.add_argument("--rollout-length", type=_no_length, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    one.add_argument("--json", type=Path, metavar="PATH", help="File for the report.")
    one.add_argument("--plot", type=Path, metavar="PATH", help="Picture file for bars, such as out.png.")


def _add_report(commands: Any) -> None:
    one = add_command(
        commands,
        "report",
        "draw a run from its trace",
        "Draw a run from the trace that pool.trace(path) has written: curves of returns, throughput and policy lag, "
        "the time of each worker, and failures, as one HTML file.",
        [
            "parenv report runs/1",
            "parenv report runs/1/trace.json --output run.html",
            "parenv report runs/1 --failures",
        ],
        _run_report,
    )
    one.add_argument("path", type=Path, metavar="RUN_DIR", help="Directory with a trace, or the trace.")
    one.add_argument("--output", type=Path, metavar="PATH", help="HTML file (default: report.html beside the trace).")
    one.add_argument(
        "--failures",
        action="store_true",
        help="Print which sub-environment failed how often, doing what, with the last traceback, and write no file.",
    )


def _run_report(options: argparse.Namespace) -> None:
    if options.failures and options.output is not None:
        raise ConfigurationError("--failures prints text and cannot be used with --output. Leave one of them out.")
    print(failure_report(options.path) if options.failures else report(options.path, options.output))


def _add_lineage(commands: Any) -> None:
    one = add_command(
        commands,
        "lineage",
        "draw the lineage of a population",
        "Draw scores and hyper-parameters of a population over env steps, coloured by ancestor, from the file that "
        "Population(lineage=path) has written.",
        ["parenv lineage runs/lineage.jsonl", "parenv lineage runs/lineage.jsonl --output run.svg"],
        lambda options: print(lineage(options.path, options.output)),
    )
    one.add_argument("path", type=Path, metavar="FILE", help="Lineage file of a population.")
    one.add_argument("--output", type=Path, metavar="PATH", help="Picture file (default: a .png beside the lineage).")


def _no_length(value: str) -> None:
    """Refuse an option of ``parenv advise``."""
    raise argparse.ArgumentTypeError("parenv bench chooses the length itself. Leave this option out.")


def _run_bench(options: argparse.Namespace) -> None:
    if options.command == "advise":
        print(f"parenv advise {ADVISE_IS_BENCH}", file=sys.stderr)
    check_writable(options.json, options.plot)
    if options.plot is not None:
        check_plotting(options.plot)
    with BenchDisplay(sys.stdout) as display:
        report = bench(**given(options), watch=display.update)
        display.report(report)
    if options.json is not None:
        write_text(options.json, report.to_json())
    if options.plot is not None:
        plot(report, options.plot)


MAX_FRAMES = 6
OURS = str(Path(__file__).parents[1])
_INSTALLED = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_NOT_THE_USERS = (OURS, *_INSTALLED, "<frozen")
_FRAME = re.compile(r'  File "([^"\n]+)", line \d+, in .*\n(?:    .*\n)*')


def is_from_user_code(error: BaseException) -> bool:
    """Return whether a file of the user is below the last frame of parenv."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [number for number, file in enumerate(files) if file.startswith(OURS)]
    return any(_is_users(file) for file in files[ours[-1] + 1 if ours else 0 :])


def user_frames(error: BaseException) -> str:
    """Return the innermost frames of the user's files, in this process or a worker, with the exception.

    The text is empty if no file of the user is in a traceback.
    """
    for text in _tracebacks(error):
        frames = list(_FRAME.finditer(text))
        users = [frame[0] for frame in frames if _is_users(frame[1])]
        if users:
            return "".join(users[-MAX_FRAMES:]) + text[frames[-1].end() :].rstrip() + "\n"
    return ""


def _tracebacks(error: BaseException | None) -> Iterator[str]:
    """Yield the tracebacks of an exception and its causes, without parenv's own errors."""
    while error is not None:
        if isinstance(error, SubEnvironmentError):
            yield error.remote_traceback
        elif not isinstance(error, ParenvError):
            yield "".join(traceback.format_exception(error, chain=False))
        error = error.__cause__


def _is_users(file: str) -> bool:
    return not file.startswith(_NOT_THE_USERS)
