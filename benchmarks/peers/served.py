"""The process of one system: answers questions, lines of JSON, until its input ends.

Run by ``asked.py`` with the interpreter of the system's virtual environment; needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    """Open the system with the first line's arguments; measure for the seconds of each further line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Output of a library must not get between the answers.
    sys.path.insert(1, str(Path(__file__).parents[1]))
    # For bench.other_libraries, which imports nothing of parenv: these environments cannot import parenv itself.
    sys.path.append(str(Path(__file__).parents[2] / "parenv"))
    module, function = sys.argv[1:]
    try:
        measure, close = getattr(importlib.import_module(f"systems.{module}"), function)(**json.loads(input()))
        _say(answers, {"answer": None})
        for line in sys.stdin:
            _say(answers, {"answer": measure(float(line))})
        close()
    except Exception as error:
        traceback.print_exc()
        _say(answers, {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]})


def _say(answers: object, answer: object) -> None:
    print(json.dumps(answer), file=answers, flush=True)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
