"""Parsers of commands. Each help text ends with examples."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[[argparse.Namespace], int | None]
ENV_HELP = "Env id, such as CartPole-v1 or ale_py:ALE/Pong-v5, or module:factory."
_TITLE = "examples:\n"


class _Formatter(argparse.HelpFormatter):
    """Formatter that keeps the lines of examples and wraps all other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_TITLE) else super()._fill_text(text, width, indent)


def with_examples(*examples: str) -> dict[str, Any]:
    """Return arguments of ``ArgumentParser`` that show examples."""
    return {"epilog": _TITLE + "\n".join(f"  {example}" for example in examples), "formatter_class": _Formatter}


def add_command(commands: Any, name: str, about: str, more: str, examples: Sequence[str], run: Run | None) -> Any:
    """Add a command.

    Args:
        commands: Subparsers of the parent command.
        name: Name of the command.
        about: Summary in the list of all commands.
        more: Description in the command's own help.
        examples: Command lines, each of which works without a change.
        run: Function that runs the command and returns its exit status or ``None``. A command with commands of its own
            has none.
    """
    one = commands.add_parser(name, help=about, description=more, **with_examples(*examples))
    one.set_defaults(run=run)
    return one


def given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as arguments of the command's function, without the files to which a report is written."""
    return {name: value for name, value in vars(options).items() if name not in ("command", "run", "json", "plot")}
