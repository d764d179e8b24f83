"""Write the arguments in reference/command-line.md from the parser: python docs/command_tables.py.

A test compares the page with the parser.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from parenv.cli.main import parser

PAGE = Path(__file__).parent / "reference" / "command-line.md"


def commands(of: argparse.ArgumentParser, name: str = "parenv") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the full name and the parser of each command without subcommands."""
    inner = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield name, of
    for action in inner:
        for word, one in action.choices.items():
            if one.prog == f"{name} {word}":  # A former name of a command has the same parser.
                yield from commands(one, f"{name} {word}")


def arguments(name: str, of: argparse.ArgumentParser) -> str:
    """Return the names of the arguments of a command as a line."""
    shown = [a for a in of._actions if a.help != argparse.SUPPRESS and not isinstance(a, argparse._HelpAction)]
    taken = [a.option_strings[-1] if a.option_strings else a.metavar or a.dest for a in shown]
    return f"Arguments of `{name}`: {', '.join(f'`{argument}`' for argument in taken)}."


def filled(page: str) -> str:
    """Return the page with the arguments of each command between its markers."""
    lines = {name: arguments(name, one) for name, one in commands(parser())}

    def written(match: re.Match[str]) -> str:
        return f"<!-- {match[1]} -->\n{lines[match[1]]}\n<!-- end of {match[1]} -->"

    return re.sub(r"<!-- (parenv [^>]+?) -->.*?<!-- end of \1 -->", written, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
