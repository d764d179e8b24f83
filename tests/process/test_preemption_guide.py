"""Run the program, job script and manifest of the preemption guide with stand-ins for Slurm and Kubernetes.

Time limits are counted in lines of output. The program waits after each line until the test has read it, so the result
does not depend on the speed of the machine.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "survive-preemption.md").read_text()
LATE_S = 120.0
JOB_ID = "17"
SCONTROL = f'#!/bin/sh\n[ "$*" = "requeue {JOB_ID}" ] && touch requeued\n'

pytestmark = pytest.mark.more


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return found


def put_program(folder: Path) -> int:
    """Write the program of the guide, changed to wait for a byte after each line. Return where to write the bytes."""
    os.mkfifo(folder / "seen")
    wait = '\n            open("seen", "rb", buffering=0).read(1)'
    (folder / "train.py").write_text(block("python").replace("flush=True)", f"flush=True){wait}"))
    # Open in both directions, so that neither this process nor the program waits for the other to open it.
    return os.open(folder / "seen", os.O_RDWR)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the output of the program without preemption."""
    folder = tmp_path_factory.mktemp("whole")
    seen = put_program(folder)
    os.write(seen, bytes(9))
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=LATE_S)
    os.close(seen)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    os.close(put_program(tmp_path))
    yield tmp_path
    for child in psutil.Process().children():
        # A child may end after it was listed.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if child.cwd() == str(tmp_path):
                child.kill()


class Allocation:
    """Finished process of a job.

    Args:
        command: Command line of the process.
        folder: Working directory.
        limit: Number of output lines after which ``warn`` is called. ``None``: never.
        warn: Function that is called with the process.

    Attributes:
        lines: Output of the process.
        code: Exit status of the process.
    """

    def __init__(self, command: list[str], folder: Path, limit: int | None, warn: Callable[[Any], object]) -> None:
        bin_folders = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        environment = {**os.environ, "PATH": os.pathsep.join(bin_folders), "SLURM_JOB_ID": JOB_ID}
        options: Any = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "text": True}
        with (folder / "errors").open("a") as errors, subprocess.Popen(command, stderr=errors, **options) as process:
            assert process.stdout is not None
            self.lines: list[str] = []
            seen = os.open(folder / "seen", os.O_RDWR)
            for line in process.stdout:
                self.lines.append(line.rstrip("\n"))
                if len(self.lines) == limit:
                    warn(process)
                os.write(seen, b"\0")
            os.close(seen)
            self.code = process.wait(LATE_S)


def slurm(script: Path, limits: list[int | None], warn: Callable[[Any], object]) -> list[Allocation]:
    """Run a job script as Slurm does, once per limit, and repeat it only if it has requeued itself."""
    assert "#SBATCH --requeue" in script.read_text(), "the job could not be requeued"
    ran = []
    for limit in limits:
        ran.append(Allocation(["bash", script.name], script.parent, limit, warn))
        if not (script.parent / "requeued").exists():
            break
        (script.parent / "requeued").unlink()
    return ran


def step_of(job: Any) -> psutil.Process:
    """Return the process of the srun stand-in that a job script has started."""
    (found,) = [child for child in psutil.Process(job.pid).children() if "srun" in " ".join(child.cmdline())]
    return found


@pytest.fixture
def script(folder: Path) -> Path:
    (folder / "bin").mkdir()
    shutil.copy(ROOT / "tests" / "remote" / "srun", folder / "bin" / "srun")
    (folder / "bin" / "scontrol").write_text(SCONTROL)
    (folder / "bin" / "scontrol").chmod(0o700)
    (folder / "job.sh").write_text(block("sh"))
    return folder / "job.sh"


def test_slurm_requeues_the_job_at_its_time_limit_until_it_is_done(script: Path, uninterrupted: list[str]) -> None:
    (signame,) = re.findall(r"#SBATCH --signal=(\w+)@120", script.read_text())
    signum = signal.Signals[f"SIG{signame}"]
    ran = slurm(script, [1, 2, None, None], lambda job: step_of(job).send_signal(signum))
    assert [one.code for one in ran] == [75, 75, 0]
    assert [line for one in ran for line in one.lines] == uninterrupted
    assert (script.parent / "errors").read_text().count("SIGUSR1 has arrived: the run is saved in run/step-") == 2


def test_a_cancelled_job_is_saved_and_not_requeued(script: Path) -> None:
    def cancel(job: Any) -> None:
        step = step_of(job)
        job.terminate()  # The script has no handler, so it ends first.
        job.wait(LATE_S)
        step.terminate()

    (ran,) = slurm(script, [1, None], cancel)
    assert ran.code == -signal.SIGTERM
    # The pipe for the output is closed only when the training has ended, so all messages are written.
    assert (script.parent / "errors").read_text().count("SIGTERM has arrived: the run is saved in run/step-") == 1


def test_a_job_that_fails_is_not_requeued(script: Path) -> None:
    (script.parent / "train.py").write_text("raise ZeroDivisionError")
    (ran,) = slurm(script, [None, None], lambda job: None)
    assert ran.code == 1


def kubernetes(manifest: dict[str, Any], folder: Path, limits: list[int | None]) -> tuple[str, list[Allocation]]:
    """Run the pods of a Job as its controller does, and evict each at its limit. Return the condition of the Job."""
    spec = manifest["spec"]
    template = spec["template"]["spec"]
    (container,) = template["containers"]
    assert (manifest["kind"], template["restartPolicy"]) == ("Job", "Never"), "a pod failure policy needs this"
    volumes = {volume["name"] for volume in template["volumes"]}
    (mount,) = container["volumeMounts"]
    assert mount["name"] in volumes
    assert mount["mountPath"] == f"{container['workingDir']}/run", "the checkpoints would be lost with the pod"
    pods, failures = list[Allocation](), 0
    for limit in limits:
        pods.append(Allocation(container["command"], folder, limit, subprocess.Popen.terminate))
        if pods[-1].code == 0:
            return "Complete", pods
        failures += not any(
            ignores(rule, container["name"], pods[-1].code) for rule in spec["podFailurePolicy"]["rules"]
        )
        if failures > spec["backoffLimit"]:
            return "Failed", pods
    return "Running", pods


def ignores(rule: dict[str, Any], container: str, code: int) -> bool:
    on_code = rule.get("onExitCodes", {"containerName": container, "operator": "In", "values": []})
    assert (on_code["containerName"], on_code["operator"]) == (container, "In")
    return rule["action"] == "Ignore" and code in on_code["values"]


def test_kubernetes_replaces_evicted_pods_until_the_job_is_complete(folder: Path, uninterrupted: list[str]) -> None:
    manifest = pytest.importorskip("yaml").safe_load(block("yaml"))
    end, pods = kubernetes(manifest, folder, [1, 1, 1, None])
    assert (end, [pod.code for pod in pods]) == ("Complete", [75, 75, 75, 0])
    assert [line for pod in pods for line in pod.lines] == uninterrupted


def test_kubernetes_gives_up_a_job_that_fails(folder: Path) -> None:
    manifest = pytest.importorskip("yaml").safe_load(block("yaml"))
    (folder / "train.py").write_text("raise ZeroDivisionError")
    end, pods = kubernetes(manifest, folder, [None] * 9)
    assert (end, [pod.code for pod in pods]) == ("Failed", [1] * 4)
