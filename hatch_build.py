"""Build hook that makes relative links of the README absolute, because package indexes show only the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


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


class ReadmeHook(MetadataHookInterface):
    """Hook of hatchling for the metadata of wheels and sdists."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README with absolute links to the metadata."""
        repository = metadata.get("urls", {}).get("Repository", "")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": whole_links(readme, repository)}
