"""Replacement for moviepy that saves the frames of videos as arrays."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest


class Clip:
    """Replacement for moviepy's ``ImageSequenceClip``."""

    def __init__(self, frames: list[Any], fps: int) -> None:
        self.frames, self.fps = frames, fps

    def write_videofile(self, path: str, logger: Any = None) -> None:
        np.savez(path + ".npz", frames=np.array(self.frames), fps=self.fps)


def keep_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace moviepy, so that videos are written as arrays."""
    parts = ["moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"]
    for name in parts:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules[parts[-1]].ImageSequenceClip = Clip  # type: ignore[attr-defined]


def videos_in(folder: Path) -> dict[str, Any]:
    """Return the frames and the frame rate of every video in a folder, by file name."""
    found = {}
    for path in sorted(folder.rglob("*.npz")):
        with np.load(path) as video:
            found[path.name] = video["frames"], int(video["fps"])
    return found
