"""Check that the examples with gradients on workers run, learn, and report the lag of their gradients."""

from __future__ import annotations

import re
from typing import Any

import pytest
from test_examples import load


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("a2c", []), ("a3c", []), ("a3c", ["--data-parallel"]), ("pg", [])],
)
def test_an_example_runs_and_gets_better(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    curve: Any = load(name, monkeypatch).main(["--total-env-steps", "25000", *arguments])
    steps, seconds, _ = curve.points[-1]
    assert steps >= 25000
    assert seconds > 0
    assert max(mean for _, _, mean in curve.points) > 35


@pytest.mark.parametrize("arguments", [[], ["--data-parallel"]], ids=["gradients", "rollouts"])
def test_a3c_shows_the_lag_of_every_update(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    size = ["--num-envs", "3", "--num-workers", "3", "--rollout-length", "10"]
    curve: Any = load("a3c", monkeypatch).main(["--total-env-steps", "600", *size, *arguments])
    shown = capsys.readouterr().out.splitlines()[-1]
    counts = [int(count) for count in re.findall(r"\d+: (\d+)", shown)]
    assert sum(counts) == len(curve.points) == 60
