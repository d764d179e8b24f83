"""Check that no test can send a signal to every process of the machine."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize("name", ["kill", "killpg"])
@pytest.mark.parametrize("pid", [-1, 0])
def test_signals_to_more_than_one_process_are_refused(name: str, pid: int) -> None:
    with pytest.raises(AssertionError, match="a signal to"):
        getattr(os, name)(pid, 0)
