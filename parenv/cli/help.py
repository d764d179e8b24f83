"""Parsers of commands, whose help ends with examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[argparse.Namespace], int | None]
ENV_HELP = "an env id such as CartPole-v1 or ale_py:ALE/Pong-v5, or module:factory"
_TITLE = "examples:\n"


class _Formatter(argparse.HelpFormatter):
    """Leaves the lines of examples as they are; all other text is filled."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_TITLE) else super()._fill_text(text, width, indent)


def with_examples(*examples: str) -> dict[str, Any]:
    """What an ``ArgumentParser`` takes to show them."""
    return {"epilog": _TITLE + "\n".join(f"  {example}" for example in examples), "formatter_class": _Formatter}


def add_command(commands: Any, name: str, about: str, more: str, examples: Sequence[str], run: Run | None) -> Any:
    """Add a command to others.

    Args:
        commands: the others.
        name: of the command.
        about: in the list of all commands.
        more: in the command's own help.
        examples: whole lines, each of which works as it is.
        run: what it does, and maybe the exit status; ``None`` where it has commands of its own.
    """
    one = commands.add_parser(name, help=about, description=more, **with_examples(*examples))
    one.set_defaults(run=run)
    return one


def given(options: argparse.Namespace) -> dict[str, Any]:
    """What a function of the command's name takes: all options but for what becomes of a report."""
    return {name: value for name, value in vars(options).items() if name not in ("command", "run", "json", "plot")}
