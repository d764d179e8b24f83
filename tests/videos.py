"""In place of moviepy, where that is not installed: keeps the frames that would be encoded."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class Clip:
    """What moviepy's clip is to those who record videos."""

    def __init__(self, frames: list[Any], fps: int) -> None:
        self.frames, self.fps = frames, fps

    def write_videofile(self, path: str, logger: Any = None) -> None:
        np.savez(path + ".npz", frames=np.array(self.frames), fps=self.fps)


def keep_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have videos written as arrays from now on."""
    parts = ["moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"]
    for name in parts:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[parts[-1]].ImageSequenceClip = Clip  # type: ignore[attr-defined]


def videos_in(folder: Path) -> dict[str, Any]:
    """The frames of every video in a folder, and how many a second, by its name."""
    found = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path) as video:
            found[path.name] = video["frames"], int(video["fps"])
    return found
