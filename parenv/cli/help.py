"""Parsers of commands. Each help text ends with examples."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[argparse.Namespace], int | None]
ENV_HELP = "Env id, such as CartPole-v1 or ale_py:ALE/Pong-v5, or module:factory."
_NOT_FLAGS = {"command", "run", "env", "envs", "policy", "path", "pool"}
_TITLE = "examples:\n"


class _Formatter(argparse.HelpFormatter):
    """Formatter that keeps the lines of examples and wraps all other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_TITLE) else super()._fill_text(text, width, indent)


def with_examples(*examples: str) -> dict[str, Any]:
    """Return arguments of ``ArgumentParser`` that show examples."""
    return {"epilog": _TITLE + "\n".join(f"  {example}" for example in examples), "formatter_class": _Formatter}


def add_command(
    commands: Any,
    name: str,
    about: str,
    more: str,
    examples: Sequence[str],
    run: Run | None,
    aliases: Sequence[str] = (),
) -> Any:
    """Add a command.

    Args:
        commands: Subparsers of the parent command.
        name: Name of the command.
        about: Summary in the list of all commands.
        more: Description in the command's own help.
        examples: Command lines, each of which works without a change.
        run: Function that runs the command and returns its exit status or ``None``. A command with commands of its own
            has none.
        aliases: Former names of the command.
    """
    one = commands.add_parser(name, help=about, description=more, aliases=aliases, **with_examples(*examples))
    one.set_defaults(run=run)
    return one


def with_flags(message: str, options: argparse.Namespace) -> str:
    """Return the message of an error with the flags of the command in place of arguments of Python.

    Args:
        message: Message of a function that the command calls.
        options: Options of the command.

    >>> options = argparse.Namespace(command="eval", run=None, out="x", resume=False, num_workers=2, seed=3)
    >>> with_flags("out='x' exists already. Pass resume=True to continue it.", options)
    "--out 'x' exists already. Pass --resume to continue it."
    >>> with_flags("Run with num_workers=0, or WorkerOptions(num_workers=1).", options)
    'Run with --num-workers 0, or WorkerOptions(num_workers=1).'
    >>> with_flags("the simulator raised ValueError: seed=3", options)
    'the simulator raised ValueError: seed=3'
    """
    for name in vars(options).keys() - _NOT_FLAGS:
        named, flag = rf"(^|\b(?:pass|use|with|set|or) ){name}=", rf"\1--{name.replace('_', '-')}"
        message = re.sub(rf"{named}True\b", flag, message, flags=re.IGNORECASE)
        message = re.sub(rf"{named}(?=[\w'\"])", f"{flag} ", message, flags=re.IGNORECASE)
    return message


def given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as arguments of the command's function, without the files to which a report is written."""
    return {name: value for name, value in vars(options).items() if name not in ("command", "run", "json", "plot")}
