"""Check that the workflows, CITATION.cff and CONTRIBUTING.md agree with the project."""

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


WORKFLOWS = ROOT / ".github" / "workflows"


@pytest.fixture
def workflow() -> Any:
    return pytest.importorskip("yaml").safe_load((WORKFLOWS / "ci.yml").read_text())


def test_the_workflow_runs_every_python_that_is_claimed(workflow: Any) -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_each_extra_has_a_job_and_one_with_the_lowest_versions(workflow: Any) -> None:
    extras = {*PROJECT["optional-dependencies"]}
    jobs = {name: workflow["jobs"][name]["strategy"] for name in ("extra", "lowest")}
    assert {*jobs["extra"]["matrix"]["extra"]} == extras
    assert {*jobs["lowest"]["matrix"]["extra"]} == {"base", *extras}
    assert not any(strategy["fail-fast"] for strategy in jobs.values())


def test_every_named_make_target_exists(workflow: Any) -> None:
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job.get("steps", [])]
    made = [re.sub(r"\$\{\{.*?\}\}", "", words).split()[1:] for words in steps if words.startswith("make ")]
    wanted = {word for words in made for word in words if "=" not in word}
    assert wanted >= {"lint", "types", "pytest", "test-more", "test-lowest", "fuzz", "soak"}
    known = {name for line in TARGETS for name in line.split()}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {*wanted, *re.findall(r"`make ([\w-]+)`", text)} - {"docs"} <= known


def test_each_action_is_pinned_by_its_hash_and_names_its_version() -> None:
    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+|\./\.github/workflows/[\w-]+\.yml")
    for path in WORKFLOWS.glob("*.yml"):
        assert [line for line in re.findall(r"uses: (.*)", path.read_text()) if not pinned.fullmatch(line)] == [], path


def test_only_the_job_that_publishes_may_sign() -> None:
    yaml = pytest.importorskip("yaml")
    for path in WORKFLOWS.glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path
        may = {name for name, job in workflow["jobs"].items() if "permissions" in job}
        assert may == ({"publish"} if path.name == "release.yml" else set()), path


def test_the_tag_of_a_release_is_compared_with_the_version_as_it_is_written() -> None:
    assert (ROOT / "parenv" / "version.py").read_text().splitlines()[-1] == f'VERSION = "{parenv.__version__}"'


def test_the_citation_names_the_current_version() -> None:
    pytest.importorskip("yaml")
    citation = __import__("yaml").safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == parenv.__version__
    assert citation["license"] == PROJECT["license"]


def test_the_changelog_has_the_current_version_with_a_migration_for_each_breaking_change() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text().partition(f"\n## {parenv.__version__} - ")[2].partition("\n## ")[0]
    breaking = newest.partition("### Breaking changes\n")[2].partition("\n### ")[0]
    entries = re.split(r"^\* ", breaking, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry for entry in entries if entry.count("*Migration:*") != 1] == []


def test_yaml_files_are_valid() -> None:
    yaml = pytest.importorskip("yaml")
    paths = [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")]
    assert len(paths) == 8
    assert all(yaml.safe_load(path.read_text()) for path in paths)
