"""Test parenv without extras and with each extra: python tests/extras.py [--lowest] [EXTRA]...

Run it in an environment of its own, which it changes: it installs parenv with one extra after the other, and keeps the
libraries of earlier ones. CI tests each extra in an environment of its own. ``--lowest``
installs the lowest versions that pyproject.toml declares, from constraints-lowest.txt. At the end it prints the
versions, how many tests ran, and what was not covered. ``base`` stands for no extra.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "psutil", "packaging")
TESTS = {
    "base": [
        "tests/unit/test_plain.py",
        "tests/unit/test_infos.py",
        "tests/unit/test_pinning.py",
        "tests/unit/test_rollout.py",
        "tests/process/test_drop_in.py",
        "tests/process/test_rollouts.py",
        "tests/process/test_gradients.py",
        "tests/test_readme.py::test_a_vector_env_steps",
    ],
    "progress": ["tests/process/test_progress.py"],
    "tensorboard": ["tests/process/test_progress.py"],
    "eval": ["tests/unit/test_evaluation.py", "tests/process/test_evaluate.py"],
    "sb3": ["tests/process/test_sb3.py", "tests/process/test_calls.py"],
    "torchrl": ["tests/process/test_torchrl.py"],
    "agents": ["tests/process/test_real_agents.py"],
    "export": ["tests/test_export.py"],
    "ray": [
        "tests/remote/on_ray/test_ray.py::test_hosts_share_the_workers_and_know_the_driver",
        "tests/remote/on_ray/test_ray_pool.py::test_workers_of_actors_deliver_every_transition_once_and_in_order",
    ],
    "datasets": ["tests/process/test_datasets.py"],
}
"""Tests of parenv without an extra, and of each extra."""


def name_of(requirement: str) -> str:
    """Return the name of the package in a requirement or a pin, in lower case."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return found[0].lower().replace("_", "-")


def declared() -> dict[str, list[str]]:
    """Return the requirements of parenv, and of each extra beside them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"base": project["dependencies"], **project["optional-dependencies"]}


def pins(extra: str) -> dict[str, str]:
    """Return the lowest versions for an extra. Pins below the line ``# Only for EXTRA`` replace those above."""
    found, applies = {}, True
    for line in (ROOT / "constraints-lowest.txt").read_text().splitlines():
        if heading := re.match(r"# Only for (\w+)", line):
            applies = heading[1] == extra
        elif "==" in line and applies:
            found[name_of(line)] = line.partition("==")[2]
    return found


def install(extra: str, constraints: dict[str, str], folder: Path) -> None:
    """Install parenv with an extra, or without one, and what the tests need."""
    file = folder / "constraints.txt"
    file.write_text("".join(f"{name}=={pin}\n" for name, pin in constraints.items()))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(file)]
    subprocess.run([*pip, "--editable", "." if extra == "base" else f".[{extra}]", *TOOLS], cwd=ROOT, check=True)


def run(extra: str, folder: Path) -> tuple[int, int, list[str]]:
    """Run the tests of an extra; return the status of pytest, the number of tests that ran, and the skipped ones."""
    results = folder / "results.xml"
    # Named tests run although they are slow ones of make test-more.
    marks = [] if "::" in TESTS[extra][0] else ["-m", "not more and not soak"]
    command = [sys.executable, "-m", "pytest", *marks, f"--junit-xml={results}", *TESTS[extra]]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    cases = list(ElementTree.parse(results).getroot().iter("testcase")) if results.exists() else []
    skipped = {case.get("name", ""): skip.get("message", "") for case in cases for skip in case.iter("skipped")}
    return status, len(cases) - len(skipped), [f"{name}: {reason}" for name, reason in skipped.items()]


def versions(extra: str) -> str:
    """Return the installed versions of the packages that parenv or an extra requires."""
    names = sorted({name_of(line) for line in [*declared()["base"], *declared()[extra]]})
    # Another process, because this one may have read the packages before they were installed.
    script = "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    return subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=True).stdout


def main(arguments: list[str]) -> int:
    """Install and test, print what was covered, and return the status of the process."""
    lowest = "--lowest" in arguments
    extras = [argument for argument in arguments if argument != "--lowest"] or list(TESTS)
    if unknown := {*extras} - {*TESTS}:
        sys.exit(f"EXTRA must be one of {', '.join(TESTS)}, got {', '.join(sorted(unknown))}")
    lines, all_passed = [], True
    for extra in extras:
        with tempfile.TemporaryDirectory() as folder:
            install(extra, pins(extra) if lowest else {}, Path(folder))
            status, ran, skipped = run(extra, Path(folder))
        passed = status == 0 and ran > 0
        result = "passed" if passed else f"FAILED (exit status {status} of pytest)"
        lines += [f"{extra}: {ran} tests {result} with {versions(extra).strip()}"]
        lines += [f"    not covered: {test}" for test in skipped]
        all_passed = all_passed and passed
    lines += [f"{extra}: not covered, because it was not named" for extra in TESTS if extra not in extras]
    kind = "lowest" if lowest else "newest"
    print(f"\nCovered with the {kind} versions, on Python {sys.version.split()[0]}:", *lines, sep="\n")
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
