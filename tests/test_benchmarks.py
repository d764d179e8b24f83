"""Check the list of benchmarks, their results and the parts of pages that show them, without running them."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
MAX_BYTES_OF_RESULTS = 300_000
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
    assert [name for name in names if name.startswith("tables/")] == list(names[-2:])


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


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "tables"))


@pytest.mark.usefixtures("tables")
def test_every_table_of_results_is_up_to_date_and_in_a_page() -> None:
    table = importlib.import_module("table")
    names = set()
    for path in table.PAGES:
        page = path.read_text()
        assert table.filled(page) == page, f"run python benchmarks/tables/table.py to update {path}"
        names |= {found[1] for found in table.MARKED.finditer(page)}
    assert names == set(table.PARTS)


@pytest.mark.usefixtures("tables")
def test_a_changed_figure_is_replaced_and_an_unknown_part_is_refused() -> None:
    table = importlib.import_module("table")
    page = "<!-- replaced -->0.00 s<!-- end of replaced -->, and <!-- a --><!-- of two lines -->"
    assert re.fullmatch(r"<!-- replaced -->0\.\d[1-9] s<!-- end of replaced -->, and .*", table.filled(page))
    with pytest.raises(KeyError, match="no such part"):
        table.filled("<!-- no such part -->1<!-- end of no such part -->")


@pytest.mark.usefixtures("tables")
def test_a_missing_value_has_an_empty_cell_and_a_failure_its_reason() -> None:
    forms = importlib.import_module("forms")
    columns = {"1": {"limit": {"n": 1}, "a": {"n": 2}, "b": {"failed": "x | y"}}, "2": {"a": {}}}
    lines = forms.by_system("", columns, forms.cell("{} ms", "n")).split("\n")
    assert lines == ["", "|  | 1 | 2 |", "| --- | --- | --- |", "| a | 2 ms |  |", "| b | x / y |  |", ""]


@pytest.mark.usefixtures("tables")
def test_the_best_value_and_its_ties_are_in_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = importlib.import_module("libraries")
    found = {"parenv, step": 0.2, "parenv, in process": 0.381, "Gymnasium SyncVectorEnv": 0.379, "EnvPool, step": 0.5}
    of_systems = {name: {"rate": rate} for name, rate in found.items()}
    question = libraries.Question("8", of_systems, "rate", "{:.2f}".format, max)
    monkeypatch.setattr(libraries, "questions", lambda: [question])
    cells = [cell.strip() for cell in libraries.by_question().splitlines()[-1].strip("|").split("|")]
    assert cells[:4] == ["8", "**0.38**", "**0.38**", ""], "EnvPool's own environments do not count"


def test_every_figure_of_an_earlier_result_is_in_its_page() -> None:
    earlier = json.loads((RESULTS / "earlier.json").read_text())["results"]
    assert earlier
    for one in earlier:
        assert one["result"] in (ROOT / one["page"]).read_text(), one


def test_results_are_small_and_a_page_shows_each() -> None:
    files = [path for path in RESULTS.iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES_OF_RESULTS
    code = "".join(path.read_text() for path in (BENCHMARKS / "tables").glob("*.py"))
    pages = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    for path in files:
        shown = path.name in pages if path.suffix == ".png" else f'"{path.stem}"' in code
        assert shown or path.with_suffix(".png").name in pages, f"{path} is shown nowhere"


def series(found: Any, place: str = "") -> Iterator[str]:
    """Yield the places of lists of numbers in results."""
    if isinstance(found, list) and found and all(isinstance(one, float | int) for one in found):
        yield place
    elif isinstance(found, list | dict):
        for key, one in found.items() if isinstance(found, dict) else enumerate(found):
            yield from series(one, f"{place}/{key}")


def test_results_have_no_samples() -> None:
    assert list(series({"a": [{"b": [1, 2.0]}], "c": ["d"]})) == ["/a/0/b"]
    for path in RESULTS.glob("*.json"):
        found = [place for place in series(json.loads(path.read_text())) if "/over/" not in place]
        assert found == [], f"{path} must have medians and ranges, and no samples"


def test_saved_results_are_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    common = importlib.import_module("lib.common")
    monkeypatch.setattr(common, "RESULTS", tmp_path / "benchmarks" / "results")
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "benchmarks" / "a.py")])
    common.save("a", {"rates": common.summary({"ours": [3.0, 1.0, 2.0], "limit": [6.0]}, "limit"), "curve": [1 / 3, 2]})
    text = (tmp_path / "benchmarks" / "results" / "a.json").read_text()
    assert '"curve": [ 0.3333333, 2 ]' in text
    found = json.loads(text)
    assert found["command"] == "python benchmarks/a.py"
    expected = {"n": 3, "median": 2.0, "min": 1.0, "max": 3.0, "ratio_to_limit": 0.3333333}
    assert found["results"]["rates"]["ours"] == expected
