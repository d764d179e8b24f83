"""Check the README: its examples run and learn, its links work, and it is short."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
FEATURES = README.partition("## Features")[2].partition("##")[0]
MAX_WORDS, MAX_LINES_OF_A_LOOP = 650, 25


def printed_by_example(number: int, more: str, directory: Path) -> str:
    """Run an example as a script, which must not write to stderr; return its output."""
    (directory / "example.py").write_text(EXAMPLES[number] + more)
    done = subprocess.run([sys.executable, "example.py"], cwd=directory, capture_output=True, text=True, timeout=250)
    # Whether workers are slower, and whether another number of them is faster, depends on how busy the machine is.
    advice = r"accelerate\(\) leaves the model as it is: |the vector env would be about "
    shown = re.sub(rf".*(?:{advice}).*\n.*\n", "", done.stderr)
    assert (done.returncode, shown) == (0, "")
    return done.stdout


def test_a_vector_env_steps(tmp_path: Path) -> None:
    assert printed_by_example(0, "print(observations.shape)", tmp_path) == "(64, 4)\n"


@pytest.mark.more
def test_a_model_of_stable_baselines3_learns_on_workers(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    shown = printed_by_example(1, "", tmp_path)
    assert float(shown.split()[-2]) > 200


@pytest.mark.more
def test_a_training_loop_learns(tmp_path: Path) -> None:
    shown = printed_by_example(2, "", tmp_path)
    returns = [float(line.split()[-1]) for line in shown.splitlines()]
    assert max(returns) > 200
    assert len([line for line in EXAMPLES[2].splitlines() if line]) <= MAX_LINES_OF_A_LOOP


def test_the_readme_is_short() -> None:
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*?$", "", README, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    assert len(prose.split()) <= MAX_WORDS


def test_relative_links_are_valid() -> None:
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []


def test_each_feature_of_parenv_is_linked() -> None:
    rows = [line.split(" | ") for line in FEATURES.splitlines() if line.startswith("| ")]
    assert len(rows) > 12
    assert [row[0] for row in rows[1:] if row[1] != "no" and "](" not in row[1]] == []
