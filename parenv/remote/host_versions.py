"""What must be the same on two machines before anything that one has pickled is unpickled by the other."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import cloudpickle

from parenv.libraries import installed_version
from parenv.protocol.frames import PROTOCOL_VERSION


def own_versions() -> dict[str, str]:
    """The versions here."""
    return {
        "protocol": str(PROTOCOL_VERSION),
        "parenv": installed_version("parenv") or "unknown",
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cloudpickle": ".".join(cloudpickle.__version__.split(".")[:2]),
    }


def disagreement(theirs: Any) -> str:
    """What differs between there and here, in words; nothing if all agrees.

    >>> disagreement(own_versions() | {"python": "2.7"}).startswith("python is 2.7 there and ")
    True
    """
    mine = own_versions()
    if not isinstance(theirs, Mapping):
        return "it does not say its versions"
    said = {name: theirs.get(name) for name in mine}
    said = {name: version if type(version) is str else "unknown" for name, version in said.items()}
    return "; ".join(f"{name} is {said[name]} there and {mine[name]} here" for name in said if said[name] != mine[name])
