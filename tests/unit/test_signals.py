"""What the tests must not be able to do to the machine that they run on."""

from __future__ import annotations

import os

import pytest


@pytest.mark.parametrize("name", ["kill", "killpg"])
@pytest.mark.parametrize("pid", [-1, 0])
def test_no_test_can_signal_everybody(name: str, pid: int) -> None:
    with pytest.raises(AssertionError, match="a signal to"):
        getattr(os, name)(pid, 0)
