"""Check that an adapter refuses versions of its library that are too old."""

from __future__ import annotations

import importlib.metadata

import pytest

from parenv.adapters.library_version import check_version


@pytest.mark.parametrize("version", ["0.8", "0.8.1", "0.8.99+cpu", "0.0.9"])
def test_an_old_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    wanted = rf"parenv needs torchrl 0.9 or later, got {version[:3]}.* Run: pip install something"
    with pytest.raises(ImportError, match=wanted):
        check_version("torchrl", "0.9", "pip install something")


@pytest.mark.parametrize("version", ["0.9", "0.9.0", "0.14.1", "1.0", "2.0.0rc1"])
def test_a_new_version_is_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: version)
    check_version("torchrl", "0.9", "pip install something")
