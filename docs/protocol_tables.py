"""Write the tables in developer/protocol.md from parenv.protocol: python docs/protocol_tables.py.

A test compares the page with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from parenv.protocol.conversation import TRANSITIONS
from parenv.protocol.frames import HEADER_BYTES, PROTOCOL_VERSION

PAGE = Path(__file__).parent / "developer" / "protocol.md"


def tables() -> dict[str, str]:
    """Return the generated parts with their markers, by name."""
    parts = {"version": f"{PROTOCOL_VERSION}", "header": f"{HEADER_BYTES}"}
    parts["states"] = "\n" + "\n".join(_states()) + "\n"
    return {name: f"<!-- {name} -->{text}<!-- end of {name} -->" for name, text in parts.items()}


def filled(page: str) -> str:
    """Return the page with each generated part between its markers."""
    found = tables()
    return re.sub(r"<!-- ([^>]+) -->.*?<!-- end of \1 -->", lambda match: found[match[1]], page, flags=re.DOTALL)


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
