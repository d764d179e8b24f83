"""Check that code of the documentation runs, commands are valid, and generated pages are up to date."""

from __future__ import annotations

import html
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import parenv
from parenv.cli.main import parser
from parenv.protocol.messages import KINDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\S*)(?: .*)?$")
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")
NEEDS = re.compile(r"<!-- needs (\w+) -->")
LANGUAGES = {"python", "sh", "", "dockerfile", "text", "yaml"}
COMMAND = re.compile(r"\bparenv (?=[a-z]).*")
MARK = re.compile(
    r"(?<!\S)@\d+(?!\S)|\{\{.*\}\}|\b(?:TODO|FIXME|XXX|TBD)\b"
    r"|^\s*(?:[%$]\w+[%$]?|\{\w*\}|<[A-Za-z_]\w*>|__\w+__)\s*$"
)
"""A mark in place of text that a generator or an author was to write."""
NUMBER = re.compile(r"\b[0-9a-f]{8}\b|[-+]?\d[\d.,_:]*(?:e[-+]\d+)?|\bnan\b")
RUN_ALL = """
import runpy, sys
arguments, programs = sys.argv[1:2], sys.argv[2:]
for program in programs:
    print("==", program, flush=True)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
"""


def blocks(page: Path) -> Iterator[tuple[str, int, list[str], bool]]:
    """Yield the language, first line number and lines of every fenced block, and whether it runs."""
    lines, language, begun = page.read_text().splitlines(), None, 0
    for number, line in enumerate(lines):
        assert not line.startswith(" ") or not line.lstrip().startswith("```"), f"{page}:{number + 1} is indented"
        fence = FENCE.match(line)
        if language is None and fence:
            language, begun = fence[1], number + 1
        elif language is not None and line == "```":
            if not language.startswith("{"):
                yield language, begun, lines[begun:number], can_run(lines[begun - 2])
            language = None
    assert language is None, f"a block of {page} has no end"


def can_run(before: str) -> bool:
    """Return whether a block runs, given the line before it."""
    needs = NEEDS.fullmatch(before)
    return NOT_RUN.fullmatch(before) is None and (needs is None or importlib.util.find_spec(needs[1]) is not None)


def script_of(page: Path) -> str:
    """Return the Python code of a page as one script with the line numbers of the page, for tracebacks."""
    lines = [""] * (len(page.read_text().splitlines()) + 1)
    for language, begun, code, runs in blocks(page):
        if language == "python" and runs:
            lines[begun : begun + len(code)] = code
    return "\n".join(lines).rstrip() + "\n"


WITH_CODE = [page for page in PAGES if page.name != "README.md" and script_of(page).strip()]
PARTS = 40
SEARCHED = {
    "dict observations": "guides/dict-observations",
    "progress bar": "guides/log-metrics",
    "logging": "guides/log-metrics",
    "num_workers": "developer/products",
    "one world per process": "guides/vector-env",
}
"""Words that users search for, and the page with a heading that contains them."""


@pytest.mark.one_in(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_block_of_python_runs_in_the_order_of_its_page(part: int, tmp_path: Path) -> None:
    pages = {f"{page.parent.name}-{page.stem}.py": page for page in WITH_CODE[part::PARTS]}
    for name, page in pages.items():
        (tmp_path / name).write_text(script_of(page))
    printed = dict(zip(pages, run_all("", [*pages], tmp_path).split("\n== "), strict=True))
    for name, page in pages.items():
        lines = [masked(line) for line in printed[name].splitlines()]
        for shown in first_lines_of_outputs(page):
            assert masked(shown) in lines, f"{page} shows an output that its code does not print: {shown}"


def first_lines_of_outputs(page: Path) -> Iterator[str]:
    """Yield the first line of each output that follows a block of Python that runs."""
    after_code = False
    for language, _, lines, runs in blocks(page):
        if language == "text" and after_code:
            yield lines[0]
        after_code = language == "python" and runs


def masked(line: str) -> str:
    """Return a line with a mark in place of its numbers and digests, which depend on the machine."""
    without = re.sub(NUMBER, "#", " ".join(line.split()))
    return re.sub(r"#(?:[ ,]*#)+", "#", without)


def test_outputs_are_compared_without_their_numbers() -> None:
    assert masked("mean return  12.5, loss 1e-05") == masked("mean return 7, loss 0.25")
    assert masked("restarted: [0 1 2 3]") == masked("restarted: [4 5]")
    assert masked("sync:  eaf10498") == masked("sync:  00112233")
    assert masked("mean return 12.5") != masked("mean length 12.5")


def test_languages_of_blocks_are_known() -> None:
    assert len(WITH_CODE) > 15
    for page in PAGES:
        for language, begun, _, runs in blocks(page):
            assert language in LANGUAGES, f"{page}:{begun}"
            assert runs or language == "python", f"{page}:{begun}"


def marks(text: str) -> list[str]:
    """Return the lines of a text with a mark."""
    return [line for line in text.splitlines() if MARK.search(line)]


def test_no_page_and_no_notebook_shows_the_mark_of_a_generator() -> None:
    shown = [path for path in (*PAGES, *ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md")) if "build" not in path.parts]
    for page in shown:
        assert marks(page.read_text()) == [], page
    for notebook in DOCS.rglob("*.ipynb"):
        assert marks("\n".join(texts(json.loads(notebook.read_text())))) == [], notebook


def texts(value: object) -> Iterator[str]:
    """Yield all texts in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)


def test_marks_of_a_generator_are_told_from_text() -> None:
    found = [
        "@1",
        "  @12",
        "{{ output }}",
        "{}",
        "{output}",
        "%OUTPUT%",
        "$1",
        "<output>",
        "__OUTPUT__",
        "# TODO: write",
        "mean: @2",
    ]
    for line in found:
        assert marks(f"text\n{line}\n") == [line]
    assert marks("@dataclass\n@property\n$ parenv bench\n# The game\n<!-- end -->\n}\n{'agent@0': 1}\n...\n") == []


def test_every_block_of_output_has_text() -> None:
    for page in PAGES:
        for language, begun, lines, _ in blocks(page):
            assert "".join(lines).strip(), f"{page}:{begun} has an empty block of {language or 'text'}"


def test_extras_are_installed_from_a_clone_because_no_index_has_parenv() -> None:
    sources = [path for folder in ("parenv", "examples", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.*")]
    for path in [*sources, ROOT / "README.md"]:
        if path.suffix in (".py", ".md", ".ipynb"):
            assert not re.search(r"pip install .*parenv\[", path.read_text()), path
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for path in sources:
        if path.suffix == ".py":
            named = re.findall(r'\brequire\([^()]*, "(\w+)"\)|install_command\("(\w+)"', path.read_text())
            assert {first or second for first, second in named} <= extras.keys(), path


def test_every_command_of_parenv_can_be_parsed() -> None:
    found = 0
    for page in PAGES:
        for language, _, lines, _ in blocks(page):
            for line in lines if language in ("sh", "") else ():
                for command in COMMAND.findall(line):
                    parser().parse_args(shlex.split(command, comments=True)[1:])
                    found += 1
    assert found > 10


def test_every_file_that_a_page_names_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"\b(?:examples|benchmarks|tests)/[\w/]+\.(?:py|md|png)\b", page.read_text()):
            assert (ROOT / name).exists(), f"{page} names {name}"


def test_every_path_that_the_image_copies_exists() -> None:
    lines = (ROOT / "examples" / "Dockerfile").read_text().splitlines()
    copied = [path for line in lines if line.startswith("COPY ") for path in line.split()[1:-1]]
    assert {"pyproject.toml", "hatch_build.py", "parenv", "examples"} <= {*copied}
    assert [path for path in copied if not (ROOT / path).exists()] == []


def parts(text: str) -> list[str]:
    """Return the names of generated parts in a text without code, as their beginnings and ends name them."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    return [mark for mark in re.findall(r"<!-- (.*?) -->", text) if not re.match(r"(not run:|needs) \S", mark)]


def test_each_generated_part_has_a_beginning_an_end_and_a_content() -> None:
    for page in PAGES:
        names = parts(page.read_text())
        assert [f"end of {name}" for name in names[::2]] == names[1::2], page
        assert not re.search(r"<!-- ([^>]+) -->\s*<!-- end of \1 -->", page.read_text()), page


def test_names_of_generated_parts_are_told_from_other_comments_and_from_code() -> None:
    others = "`<!-- c -->`\n```text\n<!-- d -->\n```\n<!-- not run: x -->\n<!-- needs y -->"
    assert parts(f"<!-- a b -->1<!-- end of a b -->\n{others}\n<!-- e -->") == ["a b", "end of a b", "e"]


@pytest.mark.more
def test_every_step_of_the_tutorial_runs(tmp_path: Path) -> None:
    steps = sorted(str(path) for path in (ROOT / "examples" / "tutorial").glob("*.py"))
    assert len(steps) == 4
    shown = run_all("2048", steps, tmp_path)
    assert shown.count("mean return of the last") == 4


def test_the_tutorial_shows_the_code_of_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    code = importlib.import_module("tutorial_code")
    page = (DOCS / "tutorial.md").read_text()
    assert len(code.STEPS) == 4
    assert code.filled(page) == page, "run python docs/tutorial_code.py to update the page"


TUTORIAL = [block for block in blocks(DOCS / "tutorial.md") if block[0] in ("python", "text")]


@pytest.mark.more
def test_the_blocks_of_the_tutorial_run_in_their_order_and_print_lines_as_their_outputs(tmp_path: Path) -> None:
    assert [block[0] for block in TUTORIAL] == ["python", "text"] * 4
    code = "\n\n".join("\n".join(lines) + "\nprint('end of block')" for _, _, lines, _ in TUTORIAL[::2])
    assert code.count("TOTAL_ENV_STEPS = 100_000\n") == 1
    (tmp_path / "pasted.py").write_text(code.replace("100_000", "4096"))
    # The arguments of a notebook's kernel are not those of the program.
    printed = run_all("--f=kernel.json", ["pasted.py"], tmp_path).partition("\n")[2].split("end of block\n")[:-1]
    for (_, _, output, _), lines in zip(TUTORIAL[1::2], map(str.splitlines, printed), strict=True):
        assert re.fullmatch(r"mean return of the last 100 episodes: \d+\.\d", output[0]), output[0]
        assert lines[0].split(":")[0] == output[0].split(":")[0]
        assert len(output) == 1 or lines[1].split(":")[0] == output[1].split(":")[0]


def test_every_public_class_has_an_example_that_runs() -> None:
    modules = [parenv, parenv.learning, parenv.returns, parenv.progress, parenv.testing, parenv.adapters.sb3]
    modules.append(parenv.exporting)
    names = [f"{module.__name__}.{name}" for module in modules for name in getattr(module, "__all__", vars(module))]
    names += [f"parenv.{place}" for place in moved()]
    classes = {
        found
        for name in names
        if inspect.isclass(found := pkgutil.resolve_name(name)) and not name.rpartition(".")[2].startswith("_")
        if found.__module__.startswith("parenv")
    }
    assert len(classes) > 40
    for one in classes:
        lines = [line.strip() for line in (one.__doc__ or "").splitlines()]
        runs = [line for line in lines if line.startswith(">>>") and "SKIP" not in line]
        assert runs, f"{one.__module__}.{one.__name__}"


def test_every_public_name_is_in_the_reference() -> None:
    text = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    named = set(re.findall(r"^\.\. auto\w+:: (\S+)$", text, re.MULTILINE))
    public = {f"parenv.{name}" for name in parenv.__all__}
    public |= {f"parenv.{place}" for place in moved()}
    public |= {f"parenv.{module}.{name}" for module in ("learning", "testing") for name in _public(module)}
    public |= {f"parenv.{module}.{name}" for module in ("returns", "progress") for name in _defined_in(module)}
    assert public - named == set()
    assert {name for name in named if not _needs_a_missing_library(name) and not _exists(name)} == set()


def moved() -> list[str]:
    """Return the public places of the names that left the top level."""
    return [f"{module}.{name}" for name, module in parenv._MOVED_TO.items()]


def _needs_a_missing_library(name: str) -> bool:
    parts = name.split(".")
    return parts[1:2] == ["adapters"] and parts[2] in ("tianshou", "torchrl") and not importlib.util.find_spec(parts[2])


def _public(module: str) -> list[str]:
    names: list[str] = getattr(parenv, module).__all__
    return names


def _defined_in(module: str) -> list[str]:
    inside = getattr(parenv, module)
    return [
        name
        for name, value in vars(inside).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == inside.__name__
    ]


def _exists(name: str) -> bool:
    found = parenv
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None


def run_all(argument: str, programs: list[str], directory: Path) -> str:
    """Run programs as scripts, one after the other in one process; return their output."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL, argument, *programs],
        capture_output=True,
        text=True,
        cwd=directory,
        timeout=250,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout


def test_the_page_on_the_command_line_has_the_options_of_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = importlib.import_module("command_tables")
    page = (DOCS / "reference" / "command-line.md").read_text()
    assert tables.filled(page) == page, "run python docs/command_tables.py to update the page"
    for name, _ in tables.commands(parser()):
        assert f"<!-- {name} -->" in page, name


def test_tables_of_options_by_product_policy_and_system_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = importlib.import_module("product_tables")
    for page in tables.PAGES:
        text = page.read_text()
        assert "<!-- end of " in text, page
        assert tables.filled(text) == text, "run python docs/product_tables.py to update the page"


def test_the_table_of_errors_has_every_error() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    for name in parenv.__all__:
        found = getattr(parenv, name)
        if inspect.isclass(found) and issubclass(found, Exception) and name not in ("ParenvError", "WorkerError"):
            assert f"| `{name}` | " in page, name


def test_the_page_on_the_protocol_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = importlib.import_module("protocol_tables")
    page = (DOCS / "developer" / "protocol.md").read_text()
    assert tables.filled(page) == page, "run python docs/protocol_tables.py to update the page"


def test_the_docstring_of_a_message_describes_all_of_its_fields_or_none() -> None:
    for kind in KINDS:
        args = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")[2]
        described = set(re.findall(r"^ {4}(\w+): ", args, re.MULTILINE))
        assert described in ({field.name for field in fields(kind)}, set()), kind


def test_the_gallery_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gallery = importlib.import_module("gallery")
    page = (DOCS / "gallery.md").read_text()
    assert gallery.filled(page) == page, "run python benchmarks/gallery.py NAME to update the page"
    assert [name for name in gallery.SUBJECTS if name not in page] == []


def test_curves_of_several_seeds_are_a_median_in_a_band(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    gallery = importlib.import_module("gallery")
    curves = [[(0, 0.0, 0.0), (100, 1.0, 10.0)], [(0, 0.0, 0.0), (200, 2.0, 20.0)], [(0, 0.0, 0.0), (200, 2.0, 60.0)]]
    places, middle, least, most = gallery.band(curves, 0)
    assert (places[0], places[-1]) == (0, 200)
    assert (middle[-1], least[-1], most[-1]) == (20, 10, 60), "a curve keeps its last value after its end"
    assert len(gallery.thinned([(step, 0.0, 0.0) for step in range(1000)])) == 200
    assert gallery.thinned(curves[0]) == curves[0]
    stored = gallery.stored(curves)
    assert stored["ends"]["mean return"] == {"n": 3, "median": 20.0, "min": 10.0, "max": 60.0}
    assert stored["over"]["env steps"]["median"] == middle.tolist()
    assert (stored["over"]["seconds"]["from"], stored["over"]["seconds"]["to"]) == (0, 2)
    assert len(stored["over"]["seconds"]["max"]) == 60


@pytest.mark.more
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs: ")[2].splitlines()[1]
    command = recipe.strip().replace(".venv/bin/sphinx-build", f"{sys.executable} -m sphinx")
    done = subprocess.run(
        [*shlex.split(command)[:-1], str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference" / "pool.html").exists()
    for page in tmp_path.rglob("*.html"):
        shown = html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page.read_text())))
        assert marks(shown) == [], page
    index = (tmp_path / "searchindex.js").read_text()
    found = json.loads(index[index.index("(") + 1 : index.rindex(")")])
    for words, page in SEARCHED.items():
        pages = [
            number for title, places in found["alltitles"].items() if words in title.lower() for number, _ in places
        ]
        assert page in [found["docnames"][number] for number in pages], words
