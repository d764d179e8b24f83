"""Virtual environments for the peers, one for those that can live together, and one each where their pins conflict.

python benchmarks/peers/installed.py            all of them
python benchmarks/peers/installed.py rllib ...  these
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv" / "peers"
SIMULATORS = ("gymnasium", "ale-py", "box2d", "pygame", "mujoco", "imageio", "opencv-python-headless", "psutil")


@dataclass(frozen=True)
class Requirements:
    """What one virtual environment holds.

    Args:
        packages: what pip is asked for, after torch.
    """

    packages: tuple[str, ...]


ENVIRONMENTS = {
    "plain": Requirements(
        ("stable-baselines3==2.9.2", "tianshou==2.0.1", "torchrl==0.14.1", "envpool==1.2.5", *SIMULATORS)
    ),
    "rllib": Requirements(("ray[rllib]==2.60.0", *SIMULATORS)),
    "sample_factory": Requirements(("sample-factory==2.1.1", *SIMULATORS)),
    "pufferlib": Requirements(("pufferlib==3.0.0", *SIMULATORS)),
    "elegantrl": Requirements(("elegantrl==0.3.6",)),
}


@dataclass(frozen=True)
class Installed:
    """A virtual environment, or why there is none.

    Args:
        python: its interpreter.
        reason: why it could not be installed; empty if it could.
    """

    python: Path
    reason: str


def installed(name: str) -> Installed:
    """The virtual environment of that name, made and filled if it is not there yet; a failure is kept, too."""
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
    """Why it failed, in one line; empty if it did not."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    for packages in (("torch",), wanted.packages):
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--constraint", str(ROOT / "constraints.txt"), *packages], capture_output=True, text=True
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.lower().lstrip().startswith("error")]
            return " ".join((errors or done.stderr.splitlines() or ["pip failed"])[0].split())[:200]
    return ""


if __name__ == "__main__":
    for each in sys.argv[1:] or ENVIRONMENTS:
        print(each, installed(each).reason or "is installed")
