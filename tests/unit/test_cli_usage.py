"""Check the command's help texts and version, the commands for keys, and the errors for exceptions in user code."""

from __future__ import annotations

import argparse
import importlib
import shlex
from pathlib import Path

import pytest

import parenv
from parenv.cli.main import main, parser
from parenv.remote.net.host_keys import AllowList, create_keys, read_host_keys

BROKEN = """
import gymnasium as gym

def broken_part():
    raise ValueError("the simulator is not there")

class Broken(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        broken_part()
"""


def all_parsers(one: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = {one.prog: one}
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found |= all_parsers(below)
    return found


@pytest.mark.parametrize("name", all_parsers(parser()))
def test_the_examples_of_every_help_text_can_be_parsed(name: str) -> None:
    shown = all_parsers(parser())[name].format_help()
    examples = [line.strip() for line in shown.partition("examples:\n")[2].splitlines()]
    assert examples
    for example in examples:
        command, *arguments = shlex.split(example)
        assert example.startswith(name)
        assert command == "parenv"
        if "--version" not in arguments:
            parser().parse_args(arguments)


def test_the_command_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"parenv {parenv.__version__}\n"


def test_hosts_that_may_join_are_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    create_keys(folder, ["alpha", "beta"])
    alpha, allowed = read_host_keys(folder / "alpha.key"), AllowList(folder / "hosts.pub")
    assert main(["keys", "list", str(folder)]) == 0
    assert capsys.readouterr().out == "alpha\nbeta\n"
    assert main(["keys", "remove", str(folder), "alpha"]) == 0
    assert capsys.readouterr().out == (
        "The host alpha may not join any more. A driver that runs closes its connection. "
        f"The key {folder / 'alpha.key'} is deleted; delete the copy on the host too.\n"
    )
    assert allowed.name_of(alpha.public) is None
    assert not (folder / "alpha.key").exists()
    main(["keys", "list", str(folder)])
    assert capsys.readouterr().out == "beta\n"
    assert (folder / "hosts.pub").read_text().startswith("# parenv: public keys of the hosts")
    assert main(["keys", "add", str(folder), "alpha"]) == 0


def test_a_host_that_is_not_in_the_list_cannot_be_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_keys(tmp_path, ["alpha"])
    assert main(["keys", "remove", str(tmp_path), "gamma"]) == 2
    assert (
        capsys.readouterr().err
        == f"parenv keys: the host must be on the list {tmp_path / 'hosts.pub'} (alpha), got gamma\n"
    )
    assert main(["keys", "list", str(tmp_path / "nowhere")]) == 2


def write(directory: Path, text: str, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    monkeypatch.syspath_prepend(str(directory))
    (directory / f"{name}.py").write_text(text)
    return directory / f"{name}.py"


def test_an_exception_of_an_environment_is_a_sentence_and_the_frames_of_user_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, BROKEN, monkeypatch, "broken_by_its_user")
    assert main(["bench", "broken_by_its_user:Broken"]) == 2
    sentence, *frames = capsys.readouterr().err.splitlines()
    assert sentence.startswith(
        "parenv bench: the environment broken_by_its_user:Broken does not run: ValueError in env"
    )
    # Python 3.13 adds a line that underlines the call.
    assert [line for line in frames if line.strip(" ~^")] == [
        f'  File "{path}", line 14, in step',
        "    broken_part()",
        f'  File "{path}", line 5, in broken_part',
        '    raise ValueError("the simulator is not there")',
        "ValueError: the simulator is not there",
    ]


def test_a_module_that_cannot_be_imported_is_shown_where_it_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "import math\nmath.sqrt(-1)\n", monkeypatch, "breaks_at_import")
    assert main(["bench", "CartPole-v1", "--agent", "breaks_at_import:make"]) == 2
    sentence, where, *_ = capsys.readouterr().err.splitlines()
    assert sentence.startswith(
        "parenv bench: the module 'breaks_at_import' of 'breaks_at_import:make' cannot be imported"
    )
    assert where == f'  File "{path}", line 2, in <module>'


def test_an_exception_of_other_user_code_is_an_error_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "def late(*arguments, **more):\n    raise LookupError('no such level')\n"
    path = write(tmp_path, text, monkeypatch, "raises_late")
    monkeypatch.setattr("parenv.cli.main.bench", __import__("raises_late").late)
    assert main(["bench", "CartPole-v1"]) == 2
    assert capsys.readouterr().err == (
        "parenv bench: code outside of parenv raised LookupError: no such level\n"
        f"  File \"{path}\", line 2, in late\n    raise LookupError('no such level')\nLookupError: no such level\n"
    )


def test_an_unexpected_exception_of_parenv_is_not_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parenv.cli.main.BenchDisplay", None)
    with pytest.raises(TypeError):
        main(["bench", "CartPole-v1"])


@pytest.mark.parametrize("name", ["bench", "lineage", "report"])
def test_former_modules_of_bench_functions_still_work_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"parenv.cli.{name}.{name} is now parenv.bench.{name}"):
        function = getattr(importlib.import_module(f"parenv.cli.{name}"), name)
    assert function is getattr(parenv.bench, name)
