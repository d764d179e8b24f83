"""Check that the wheel and the sdist are complete, and work in a new environment with the dependencies."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.version import Version

pytest.importorskip("hatchling")
from extras import TESTS, declared, name_of, pins

from hatch_build import WRITTEN, address, urls, whole_links, with_advisories, with_citation
from parenv.platform import system

ROOT = Path(__file__).parent.parent
README = "[here](docs/a.md) ![plot](results/p.png) [there](https://example.org) [below](#b)"


def run(*command: object, cwd: Path = ROOT) -> str:
    # A PYTHONPATH would hide the installed package.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=250, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind: str, source: Path, to: Path) -> Path:
    """Build a ``wheel`` or an ``sdist`` like pip, but with the installed build backend; return its path."""
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", to, cwd=source)
    (found,) = to.iterdir()
    return found


def test_links_into_the_repository_become_absolute_if_it_has_an_address() -> None:
    assert whole_links(README, "https://host/me/parenv/") == (
        "[here](https://host/me/parenv/blob/main/docs/a.md) ![plot](https://host/me/parenv/raw/main/results/p.png) "
        "[there](https://example.org) [below](#b)"
    )
    assert whole_links(README, "") == "here  [there](https://example.org) [below](#b)"


def test_the_files_of_the_repository_have_its_address() -> None:
    for name, with_address in WRITTEN.items():
        text = (ROOT / name).read_text()
        assert with_address(text, address()) == text, f"run python hatch_build.py, which writes {name}"


def test_the_address_can_be_written_changed_and_left_out() -> None:
    for name, with_address in WRITTEN.items():
        without = with_address((ROOT / name).read_text(), "")
        assert "https://host" not in without
        first = with_address(without, "https://host/a")
        assert first.count("https://host/a") == 1, name
        assert with_address(first, "https://host/b") == first.replace("https://host/a", "https://host/b")
        assert with_address(first, "") == without
    assert with_citation("version: 1\nlicense: MIT\n", "x") == 'version: 1\nrepository-code: "x"\nlicense: MIT\n'
    assert with_advisories("By the security advisories of the repository.", "x") == (
        "By the [security advisories](x/security/advisories/new) of the repository."
    )
    assert urls("") == {}


@pytest.mark.more
@pytest.mark.parametrize("repository", ["", "https://host/me/parenv"])
def test_the_metadata_is_valid_with_and_without_an_address(repository: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "parenv", source / "parenv", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    project = (source / "pyproject.toml").read_text()
    line = f'\nrepository = "{address()}"\n'
    assert project.count(line) == 1
    (source / "pyproject.toml").write_text(project.replace(line, f'\nrepository = "{repository}"\n'))
    wheel = built("wheel", source, tmp_path / "built")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    assert dict(entry.split(", ") for entry in metadata.get_all("Project-URL", [])) == urls(repository)
    page = str(metadata.get_payload())
    assert ("](https://host/me/parenv/blob/main/docs/quickstart.md)" in page) == bool(repository)
    assert not re.search(r"\]\((?!https?:|#)", page)
    if importlib.util.find_spec("twine"):
        run(sys.executable, "-m", "twine", "check", "--strict", wheel)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(built("sdist", ROOT, folder / "built")) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.name != "built")
    return unpacked


@pytest.mark.more
def test_the_sdist_has_what_is_needed_and_neither_corpus_nor_results(sdist: Path) -> None:
    found = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "parenv/__init__.py",
        "parenv/py.typed",
        "examples/ppo.py",
    } <= found
    assert not [path for path in found if "corpus" in path or path.startswith(("benchmarks", "tests"))]


@pytest.mark.more
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_built_package_works_in_a_new_environment(kind: str, sdist: Path, tmp_path: Path) -> None:
    wheel = built("wheel", ROOT if kind == "wheel" else sdist, tmp_path / "built")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (message_from_bytes(archive.read(name)) for name in names if name.endswith("/METADATA"))
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"parenv"}
    assert "](benchmarks/" not in metadata.as_string()
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    version = metadata["Version"]
    assert Path(run(python, "-c", "import parenv; print(parenv.__file__)", cwd=tmp_path)).is_relative_to(tmp_path)
    lines = run(python, ROOT / "tests" / "smoke.py", cwd=tmp_path).splitlines()
    assert lines == [f"parenv {version} on {system.NAME}: num_workers={workers} works" for workers in (0, 2)]
    assert run(python.parent / "parenv", "--version", cwd=tmp_path).strip() == f"parenv {version}"


def test_the_lowest_version_of_each_declared_dependency_is_tested() -> None:
    assert {*TESTS} == {*declared()}
    for extra, requirements in declared().items():
        for requirement in requirements:
            name, _, lowest = requirement.partition(">=")
            pinned = pins(extra)[name_of(name)]
            assert Version(pinned) == Version(lowest), f"{extra}: {requirement} is tested with {pinned}"
        assert all((ROOT / test.partition("::")[0]).exists() for test in TESTS[extra])
