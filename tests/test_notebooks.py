"""Check that the notebooks run from top to bottom in a new kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts import printed_by

NOTEBOOKS = sorted((Path(__file__).parent.parent / "docs" / "notebooks").glob("*.ipynb"))
EXECUTE = """
import sys, nbclient, nbformat

notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": sys.argv[2]}}).execute()
print(nbformat.writes(notebook))
"""


@pytest.mark.more
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(path: Path, tmp_path: Path) -> None:
    kept = [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", ())]
    assert len(kept) > 3, "notebooks must be committed with their outputs"
    cells = json.loads(printed_by(EXECUTE, str(path), str(tmp_path)))["cells"]
    shown = [output for cell in cells for output in cell.get("outputs", ())]
    assert len(shown) > 3
    assert [output for output in shown if output.get("name") == "stderr"] == []
