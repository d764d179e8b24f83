"""Video files of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parenv.errors import ConfigurationError, embedded
from parenv.libraries import require

DEFAULT_FPS = 30


def write_video(path: Path, frames: Sequence[Any], fps: float) -> None:
    """Write frames, uint8 ``[height, width, 3]`` each, to a video file.

    Args:
        path: File whose ending sets the format. ``.gif`` always works.
        frames: Frames.
        fps: Number of frames per second.

    Raises:
        ConfigurationError: ``imageio`` is not installed, or cannot write the file.
    """
    imageio = require("imageio.v3", "a video", "export")
    timing: dict[str, Any] = {"duration": 1000 / fps, "loop": 0} if path.suffix.lower() == ".gif" else {"fps": fps}
    try:
        imageio.imwrite(path, np.stack(frames), **timing)
    except Exception as error:
        raise ConfigurationError(
            f"imageio cannot write {path}: {embedded(error)}. Use a name that ends in .gif, which always works."
        ) from error
