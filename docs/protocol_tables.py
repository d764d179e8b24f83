"""Write the tables in developer/protocol.md from parenv.protocol: python docs/protocol_tables.py.

A test compares the page with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from parenv.protocol.conversation import TRANSITIONS
from parenv.protocol.frames import HEADER_BYTES, PROTOCOL_VERSION
from parenv.protocol.messages import KINDS

PAGE = Path(__file__).parent / "developer" / "protocol.md"


def tables() -> dict[str, str]:
    """Return the generated parts with their markers, by name."""
    parts = {"version": f"{PROTOCOL_VERSION}", "header": f"{HEADER_BYTES}"}
    parts |= {"messages": "\n" + "\n".join(_messages()) + "\n", "states": "\n" + "\n".join(_states()) + "\n"}
    return {name: f"<!-- {name} -->{text}<!-- end of {name} -->" for name, text in parts.items()}


def filled(page: str) -> str:
    """Return the page with each generated part between its markers."""
    found = tables()
    return re.sub(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", lambda match: found[match[1]], page, flags=re.DOTALL)


def _messages() -> Iterator[str]:
    yield "| kind | message | meaning |"
    yield "|---|---|---|"
    for number, kind in enumerate(KINDS):
        summary, _ = _about(kind)
        meaning = re.sub(r":\w+:`([^`]*)`", r"`\1`", " ".join(summary.split()))
        yield f"| {number} | {kind.__name__} | {meaning} |"


def _about(kind: type[object]) -> tuple[str, dict[str, str]]:
    """Return the summary of a message and its fields from its docstring."""
    summary, _, args = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
    joined = re.sub(r"\n {6,}", " ", args).replace("``", "`")
    return summary.strip().replace("``", "`"), dict(re.findall(r"^ *(\w+): (.*)$", joined, re.MULTILINE))


def _states() -> Iterator[str]:
    yield "| state | main process may send | worker may send |"
    yield "|---|---|---|"
    for state in dict.fromkeys(state for state, _, _ in TRANSITIONS):
        cells = [f"`{state.value}`"]
        for role in ("driver", "worker"):
            messages = [
                f"{kind.__name__}" + ("" if following is state else f" → `{following.value}`")
                for (before, who, kind), following in TRANSITIONS.items()
                if (before, who) == (state, role)
            ]
            cells.append(", ".join(messages))
        yield "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
