"""Check that the workflow, CITATION.cff and CONTRIBUTING.md agree with the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import parenv

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture
def workflow() -> Any:
    return pytest.importorskip("yaml").safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def test_the_workflow_runs_every_python_that_is_claimed(workflow: Any) -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_every_named_make_target_exists(workflow: Any) -> None:
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    wanted = {words.split()[1] for words in steps if words.startswith("make ")}
    assert wanted >= {"test", "test-more", "test-lowest", "soak"}
    known = {name for line in TARGETS for name in line.split()}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {*wanted, *re.findall(r"`make ([\w-]+)`", text)} - {"docs"} <= known


def test_the_citation_names_the_current_version() -> None:
    pytest.importorskip("yaml")
    citation = __import__("yaml").safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == parenv.__version__
    assert citation["license"] == PROJECT["license"]


def test_yaml_files_are_valid() -> None:
    yaml = pytest.importorskip("yaml")
    paths = [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    assert len(paths) == 6
    assert all(yaml.safe_load(path.read_text()) for path in paths)
