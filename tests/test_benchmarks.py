"""Check that ``make bench`` runs all benchmarks and that benchmarks/README.md lists them, without running them."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = {
    str(path.relative_to(BENCHMARKS).with_suffix(""))
    for path in BENCHMARKS.rglob("*.py")
    if "__main__" in path.read_text() and path.stem not in ("all", "guard", "installed", "served")
}


def test_make_bench_runs_every_benchmark_and_then_writes_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = importlib.import_module("all").NAMES
    assert len(names) == len(set(names))
    # against.py compares two checkouts, so it needs another one.
    assert {name.split()[0] for name in names} == SCRIPTS - {"against"}
    assert [name for name in names if name.startswith("tables/")] == list(names[-3:])


def test_a_benchmark_that_fails_is_named_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    run_all = importlib.import_module("all").run_all
    (tmp_path / "broken.py").write_text("import sys; sys.exit('no such peer')")
    (tmp_path / "fine.py").write_text("import sys; open(sys.argv[1], 'w')")
    assert run_all(["broken", f"fine {tmp_path / 'ran'}"], tmp_path) == ["broken"]
    assert (tmp_path / "ran").exists()


def test_the_readme_lists_every_benchmark_with_its_duration() -> None:
    rows = re.findall(
        r"^\| `([\w/]+)\.py` \|.*\| about [\w ]+ \|$", (BENCHMARKS / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(rows) == sorted(SCRIPTS)


@pytest.mark.more
def test_every_benchmark_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in sorted(SCRIPTS):
        if "/" not in name:
            importlib.import_module(name)
