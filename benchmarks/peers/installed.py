"""Virtual environments of the other libraries: one for those that can share it, and one each for the rest.

python benchmarks/peers/installed.py            install all
python benchmarks/peers/installed.py rllib ...  install some
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "peers"
SIMULATORS = ("gymnasium", "ale-py", "box2d", "pygame", "mujoco", "imageio", "opencv-python-headless", "psutil")


@dataclass(frozen=True)
class Requirements:
    """Contents of one virtual environment.

    Args:
        packages: Arguments of pip. torch is installed before.
        own_pins: Whether to install the packages without ``constraints.txt``, because their pins conflict with it.
        unpacked: Source package whose Python code is used without a build, because the build needs a GPU compiler.
    """

    packages: tuple[str, ...]
    own_pins: bool = False
    unpacked: str = ""


ENVIRONMENTS = {
    "plain": Requirements(
        ("stable-baselines3==2.9.2", "tianshou==2.0.1", "torchrl==0.14.1", "envpool==1.2.5", *SIMULATORS)
    ),
    "rllib": Requirements(("ray[rllib]==2.60.0", *SIMULATORS), own_pins=True),
    "sample_factory": Requirements(("sample-factory==2.1.1", *SIMULATORS), own_pins=True),
    # PufferLib pins Gymnasium 0.29, which lacks environments of the comparison. All its other pins are kept.
    "pufferlib": Requirements(
        ("gym==0.23.0", "numpy<2", "setuptools", "pettingzoo", *SIMULATORS), unpacked="pufferlib==3.0.0"
    ),
    "elegantrl": Requirements(("elegantrl==0.3.6",), own_pins=True),
}


@dataclass(frozen=True)
class Installed:
    """Virtual environment, or the reason why it cannot be installed.

    Args:
        python: Path of its interpreter.
        reason: Why it could not be installed. Empty if it is installed.
    """

    python: Path
    reason: str


def installed(name: str) -> Installed:
    """Return the virtual environment with this name, and install it on first use.

    A failed installation is recorded and not repeated.
    """
    if name == "parenv":
        return Installed(Path(sys.executable), "")
    folder = FOLDER / name
    python, verdict = folder / "bin" / "python", folder / "verdict"
    if not verdict.exists():
        print(f"installing {name}", flush=True)
        reason = _install(folder, python, ENVIRONMENTS[name])
        verdict.write_text(reason)
    return Installed(python, verdict.read_text())


def _install(folder: Path, python: Path, wanted: Requirements) -> str:
    """Install packages and return the reason of a failure in one line. The line is empty after a success."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    ours = ("--constraint", str(ROOT / "constraints.txt"))
    for packages in ((*ours, "torch"), wanted.packages if wanted.own_pins else (*ours, *wanted.packages)):
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*command, *packages], capture_output=True, text=True)
        if done.returncode:
            told = [line.strip("\u00d7 ") for line in done.stderr.splitlines() if "did not run successfully" in line]
            return f"pip and {packages[-1]}: {(told or [done.stderr])[0]}"[:200]
    return _unpack(folder, python, wanted.unpacked) if wanted.unpacked else ""


def _unpack(folder: Path, python: Path, package: str) -> str:
    """Unpack a source package and put it on the import path without a build.

    ``pip download`` unpacks the package and then fails to build it. ``--no-clean`` keeps the unpacked files.
    """
    sources = folder / "sources"
    sources.mkdir()
    options = ("--no-clean", "--no-deps", "--no-build-isolation", "--no-binary", ":all:")
    environment = {**os.environ, "TMPDIR": str(sources), "NO_OCEAN": "1", "NO_TRAIN": "1"}
    subprocess.run(
        [python, "-m", "pip", "download", *options, package], cwd=sources, env=environment, capture_output=True
    )
    for found in sources.glob("*/*/PKG-INFO"):
        (next(folder.glob("lib/python*/site-packages")) / "unpacked.pth").write_text(str(found.parent))
        return ""
    return f"{package} could not be downloaded"


if __name__ == "__main__":
    for each in sys.argv[1:] or ENVIRONMENTS:
        print(each, installed(each).reason or "installed")
