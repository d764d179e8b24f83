"""Sphinx configuration of the documentation, which ``make docs`` builds."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

import parenv

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))
from hatch_build import address, whole_links  # noqa: E402

project, author, copyright = "parenv", "the authors of parenv", "the authors of parenv"
version = release = parenv.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["notebooks"]
html_theme = "furo"
html_title = f"parenv {version}"
html_static_path = ["static"]
html_css_files = ["parenv.css"]
html_show_sourcelink = False
html_theme_options: dict[str, Any] = {
    "light_css_variables": {
        "color-brand-primary": "#08519c",
        "color-brand-content": "#1f6fb4",
        "code-font-size": "var(--font-size--small--3)",
    },
    "dark_css_variables": {"color-brand-primary": "#7db8ec", "color-brand-content": "#7db8ec"},
}
if address():
    html_theme_options["source_view_link"] = f"{address()}/blob/main/docs/{{filename}}"
    html_theme_options["source_edit_link"] = f"{address()}/edit/main/docs/{{filename}}"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Report broken references to public names of parenv. Ignore all other types in signatures.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!parenv\.([A-Z]|learning\.|returns\.|progress\.|testing\.|adapters\.)).*")]

ARCHITECTURE = ROOT / "ARCHITECTURE.md"


def add_architecture(app: Any, docname: str, source: list[str]) -> None:
    """Append ARCHITECTURE.md to its developer page. Links out of docs need the address of the repository."""
    if docname == "developer/architecture" and ARCHITECTURE.exists():
        text = re.sub(r"\A# .*\n", "", ARCHITECTURE.read_text())
        text = re.sub(r"\]\(docs/", "](../", text)
        text = re.sub(r"^```\n(.*?^```)", r"```text\n\1", text, flags=re.DOTALL | re.MULTILINE)
        source[0] += "\n" + re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", _kept_below_docs, text)


def _kept_below_docs(link: re.Match[str]) -> str:
    kept = (Path(__file__).parent / "developer" / link[2].partition("#")[0]).exists()
    return link[0] if kept else whole_links(link[0], address())


def shorten_paths(app: Any, doctree: Any) -> None:
    """Make the paths in diffs relative to the root of the repository."""
    for literal in doctree.findall(nodes.literal_block):
        if literal.get("language") == "udiff":
            shown = literal.astext().replace(f"{ROOT}/", "")
            literal.rawsource, literal.children = shown, [nodes.Text(shown)]


YIELDED = {f"parenv.{name}" for name in ("Rollout", "Transitions", "Gradient", "PoolStatistics", "EpisodeStatistics")}
"""Classes whose instances only parenv makes."""


def shorten_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Hide the arguments of classes that only parenv makes, and show ``...`` for defaults that are objects."""
    if name in YIELDED:
        return "", returned
    return signature and re.sub(r"<factory>|<function <lambda>>", "...", signature), returned


def setup(app: Any) -> None:
    """Connect the functions of this module to events of Sphinx."""
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("source-read", add_architecture)
    app.connect("doctree-read", shorten_paths)
