"""Check that the replacement for srun supports what the documented command lines use."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SRUN = str(Path(__file__).parent / "srun")
LIMIT_S = 120
UNTIL_TOLD = """
import os, signal, sys
any_of = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, any_of)
os.write(1, b"ready\\n")
os.write(1, b"told %d\\n" % signal.sigwait(any_of))
sys.exit(3)
"""
TELL = 'echo "$SLURM_PROCID of $SLURM_NTASKS: $SLURM_LOCALID on $SLURM_NODEID of $SLURM_NNODES"'


def srun(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SRUN, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], ["0 of 1: 0 on 0 of 1"]),
        (["-N", "2"], ["0 of 2: 0 on 0 of 2", "1 of 2: 0 on 1 of 2"]),
        (["-n2"], ["0 of 2: 0 on 0 of 1", "1 of 2: 1 on 0 of 1"]),
        (["--nodes=2", "--ntasks=3"], ["0 of 3: 0 on 0 of 2", "1 of 3: 1 on 0 of 2", "2 of 3: 0 on 1 of 2"]),
        (
            ["--nodes", "2", "--ntasks-per-node=2"],
            ["0 of 4: 0 on 0 of 2", "1 of 4: 1 on 0 of 2", "2 of 4: 0 on 1 of 2", "3 of 4: 1 on 1 of 2"],
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_each_task_knows_its_place(options: list[str], told: list[str]) -> None:
    ran = srun(*options, "sh", "-c", TELL)
    assert (ran.returncode, sorted(ran.stdout.splitlines())) == (0, told)


def test_options_after_the_command_belong_to_the_command() -> None:
    assert srun("-n", "1", "echo", "-n", "5", "--nodes=7").stdout == "5 --nodes=7"


def test_tasks_run_at_once(tmp_path: Path) -> None:
    here, there = tmp_path / "0", tmp_path / "1"
    subprocess.run(["mkfifo", here, there], check=True)
    meet = (
        f"if [ $SLURM_PROCID = 0 ]; then echo a > {here}; read x < {there}; else read x < {here}; echo b > {there}; fi"
    )
    assert srun("-N2", "sh", "-c", meet).returncode == 0


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit $SLURM_PROCID", 2), ("kill -9 $$", 137), ("[ $SLURM_PROCID = 1 ] && kill -TERM $$", 143)],
)
def test_the_highest_exit_code_is_returned(script: str, code: int) -> None:
    assert srun("-n", "3", "sh", "-c", script).returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_every_task(number: signal.Signals) -> None:
    with subprocess.Popen(
        [SRUN, "-n", "2", sys.executable, "-c", UNTIL_TOLD], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        running.send_signal(number)
        assert running.stdout.read() == f"told {number}\n" * 2
        assert running.wait(LIMIT_S) == 3


def test_a_missing_command_is_an_error() -> None:
    ran = srun("-n", "2")
    assert ran.returncode == 2
    assert "no command" in ran.stderr
