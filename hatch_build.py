"""Build hook and script that write the address of the repository into everything that needs it.

The address is in pyproject.toml, and empty until there is one. Package indexes show only the README, so the hook makes
its links absolute. Run as a script, this file writes the address into CITATION.cff and SECURITY.md.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_ADVISORIES = re.compile(r"(?:\[security advisories\]\([^)]*\)|security advisories) of the repository")


def address(root: Path = ROOT) -> str:
    """Return the address of the repository, or an empty text."""
    hooks = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["metadata"]["hooks"]
    return str(hooks["custom"]["repository"]).rstrip("/")


def whole_links(readme: str, repository: str) -> str:
    """Make relative links absolute.

    Without the address of a repository, links become plain text and pictures are removed.
    """

    def absolute(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if not repository:
            return "" if picture else text
        return f"{picture}[{text}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/main/{path})"

    return _LINK.sub(absolute, readme)


def urls(repository: str) -> dict[str, str]:
    """Return the links that package indexes show beside the README."""
    paths = {
        "Repository": "",
        "Documentation": "/blob/main/docs/index.md",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Issues": "/issues",
    }
    return {name: repository + path for name, path in paths.items()} if repository else {}


def with_citation(citation: str, repository: str) -> str:
    """Return the text of CITATION.cff with the address of the repository, or without one."""
    rest = re.sub(r"^repository-code: .*\n", "", citation, flags=re.MULTILINE)
    line = f'repository-code: "{repository}"\n' if repository else ""
    return re.sub(r"^(?=license: )", line, rest, flags=re.MULTILINE)


def with_advisories(page: str, repository: str) -> str:
    """Return a page whose words on the security advisories link to them, or are plain text."""
    words = f"[security advisories]({repository}/security/advisories/new)" if repository else "security advisories"
    return _ADVISORIES.sub(f"{words} of the repository", page)


WRITTEN = {"CITATION.cff": with_citation, "SECURITY.md": with_advisories, "CODE_OF_CONDUCT.md": with_advisories}
"""Files of the repository with the address, and the function that writes it into each."""


class ReadmeHook(MetadataHookInterface):
    """Hook of hatchling for the metadata of wheels and sdists."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the project URLs, and the README with absolute links, to the metadata."""
        repository = str(self.config["repository"]).rstrip("/")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": whole_links(readme, repository)}
        metadata["urls"] = urls(repository)


def main() -> None:
    """Write the address into the files of the repository."""
    for name, with_address in WRITTEN.items():
        path = ROOT / name
        path.write_text(with_address(path.read_text(encoding="utf-8"), address()), encoding="utf-8")


if __name__ == "__main__":
    main()
