"""What must be the same on two machines before anything that one has pickled is unpickled by the other."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping
from typing import Any

from parenv.protocol.frames import PROTOCOL_VERSION

MUST_AGREE = ("protocol", "parenv", "python", "cloudpickle")


def own_versions() -> dict[str, str]:
    """The versions here."""
    return {
        "protocol": str(PROTOCOL_VERSION),
        "parenv": _installed("parenv"),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": ".".join(_installed("cloudpickle").split(".")[:2]),
    }


def disagreement(theirs: Any) -> str:
    """What differs between there and here, in words; nothing if all agrees.

    >>> disagreement(own_versions() | {"python": "2.7"}).startswith("python is 2.7 there and ")
    True
    """
    mine = own_versions()
    if not isinstance(theirs, Mapping):
        return "it does not say its versions"
    said = {name: theirs.get(name) for name in MUST_AGREE}
    said = {name: version if type(version) is str else "unknown" for name, version in said.items()}
    return "; ".join(f"{name} is {said[name]} there and {mine[name]} here" for name in said if said[name] != mine[name])


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
