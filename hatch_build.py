"""The README as package indexes show it: they have no files beside it, so links into the repository are made whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def whole_links(readme: str, repository: str) -> str:
    """Make links into the repository absolute. Where that has no address, their words are left, and no pictures."""

    def whole(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        if not repository:
            return "" if picture else words
        return f"{picture}[{words}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/main/{path})"

    return _LINK.sub(whole, readme)


class ReadmeHook(MetadataHookInterface):
    """Called by hatchling for the metadata of wheel and sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the README in."""
        repository = metadata.get("urls", {}).get("Repository", "")
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": whole_links(readme, repository)}
