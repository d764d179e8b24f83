"""Process of one system: writes a line of JSON for each line of input, until the input ends.

``asked.py`` starts this script with the interpreter of the system's virtual environment. The script itself needs only
the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    """Open the system with the arguments in the first line, and measure for the seconds in each further line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever a library prints must not mix with the answers.
    sys.path.insert(1, str(Path(__file__).parents[1]))
    module, function = sys.argv[1:]
    try:
        measure, close = getattr(importlib.import_module(f"systems.{module}"), function)(**json.loads(input()))
        _write(answers, {"answer": None})
        for line in sys.stdin:
            _write(answers, {"answer": measure(float(line))})
        close()
    except Exception as error:
        traceback.print_exc()
        _write(answers, {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]})


def _write(answers: object, answer: object) -> None:
    print(json.dumps(answer), file=answers, flush=True)  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
