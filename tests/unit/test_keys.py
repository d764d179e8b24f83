"""Check that keys are created once, readable by their owner only, validated before use, and never shown."""

from __future__ import annotations

import os
import stat
import threading
import traceback
from pathlib import Path

import pytest
import zmq

from parenv.cli.main import main
from parenv.errors import ConfigurationError
from parenv.options import RemotePlacement
from parenv.remote.net import host_keys as keys_module
from parenv.remote.net.host_keys import (
    AllowList,
    DriverKeys,
    HostKeys,
    add_host,
    create_keys,
    ephemeral_keys,
    is_key,
    listed_hosts,
    read_driver_keys,
    read_host_keys,
    remove_host,
)


def shows(text: str, *keys: bytes) -> bool:
    """Return whether a text contains eight consecutive characters of a key."""
    return any(key.decode()[start : start + 8] in text for key in keys for start in range(33))


def modes(directory: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def test_created_keys_fit_together(tmp_path: Path) -> None:
    made = create_keys(tmp_path / "new", ["alpha", "beta.example-1"])
    assert [path.name for path in made] == ["driver.key", "alpha.key", "beta.example-1.key", "hosts.pub"]
    driver, allowed = read_driver_keys(made[0]), AllowList(made[3])
    for path, name in zip(made[1:3], ("alpha", "beta.example-1"), strict=True):
        host = read_host_keys(path)
        assert host.driver_public == driver.public
        assert zmq.curve_public(host.secret) == host.public
        assert allowed.name_of(host.public) == name
    assert allowed.name_of(driver.public) is None
    assert not any(key.decode() in made[3].read_text() for key in (driver.secret, read_host_keys(made[1]).secret))


def test_every_file_is_created_readable_by_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[int, int, int]] = []
    really = os.open

    def noting(path: str, flags: int, mode: int = 0o777) -> int:
        descriptor = really(path, flags, mode)
        if flags & os.O_CREAT:
            status = os.fstat(descriptor)
            opened.append((flags & os.O_EXCL, stat.S_IMODE(status.st_mode), status.st_size))
        return descriptor

    monkeypatch.setattr(os, "open", noting)
    before = os.umask(0)
    try:
        create_keys(tmp_path / "keys", ["alpha"])
        add_host(tmp_path / "keys", "beta")
    finally:
        os.umask(before)
    assert opened == [(os.O_EXCL, 0o600, 0)] * 5
    assert modes(tmp_path / "keys") == {0o600}
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize("taken", ["driver.key", "beta.key", "hosts.pub"])
def test_no_file_is_overwritten_and_none_is_left_if_creation_fails(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(ConfigurationError, match=f"{taken} exists already, and keys are never overwritten"):
        create_keys(tmp_path, ["alpha", "beta"])
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


def test_a_dangling_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "driver.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="exists already"):
        create_keys(tmp_path, [])
    assert not (tmp_path / "elsewhere").exists()


def test_files_written_before_a_failure_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def failing(path: str, flags: int, mode: int = 0o777) -> int:
        if "beta" in str(path):
            raise OSError(28, "No space left on device")
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(ConfigurationError, match=r"keys cannot be written to .*: No space left on device"):
        create_keys(tmp_path, ["alpha", "beta"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "../alpha", "a/b", ".hidden", "a b", "driver", "Driver", "a\nb", "x" * 64, "-rf"])
def test_the_name_of_a_host_must_be_a_valid_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="a host cannot be named"):
        create_keys(tmp_path / "keys", ["alpha", name])
    assert not (tmp_path / "keys").exists()


def test_names_of_hosts_must_be_unique(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="names of hosts must be unique"):
        create_keys(tmp_path / "keys", ["alpha", "Alpha"])


def test_a_host_is_added_and_the_others_stay(tmp_path: Path) -> None:
    create_keys(tmp_path, ["alpha"])
    listed = tmp_path / "hosts.pub"
    listed.write_text(listed.read_text() + "# the new rack\n")
    before = listed.read_text()
    host = read_host_keys(add_host(tmp_path, "beta"))
    assert listed.read_text() == f"{before}beta {host.public.decode()}\n"
    assert host.driver_public == read_driver_keys(tmp_path / "driver.key").public
    assert AllowList(listed).name_of(host.public) == "beta"
    assert modes(tmp_path) == {0o600}
    with pytest.raises(ConfigurationError, match="has a host beta already"):
        add_host(tmp_path, "beta")


def test_a_host_that_cannot_be_listed_gets_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_keys(tmp_path, ["alpha"])
    names, before = set(os.listdir(tmp_path)), (tmp_path / "hosts.pub").read_text()

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(ConfigurationError, match=r"hosts.pub cannot be written: Input/output error"):
        add_host(tmp_path, "beta")
    assert set(os.listdir(tmp_path)) == names
    assert (tmp_path / "hosts.pub").read_text() == before


def test_a_reader_of_the_list_sees_all_of_it_during_changes(tmp_path: Path) -> None:
    create_keys(tmp_path, ["alpha"])
    allowed, alpha = AllowList(tmp_path / "hosts.pub"), read_host_keys(tmp_path / "alpha.key").public
    seen: set[str | None] = set()
    begun, done = threading.Event(), threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(allowed.name_of(alpha))
            begun.set()

    thread = threading.Thread(target=look)
    thread.start()
    assert begun.wait(60)
    for number in range(30):
        add_host(tmp_path, f"host-{number}")
    done.set()
    thread.join(60)
    assert seen == {"alpha"}


@pytest.mark.parametrize("first", ["add", "remove"])
def test_concurrent_changes_of_the_list_are_both_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    create_keys(tmp_path, ["stolen", "good"])
    changes = {"add": lambda: add_host(tmp_path, "new"), "remove": lambda: remove_host(tmp_path, "stolen")}
    (second,) = (threading.Thread(target=change) for name, change in changes.items() if name != first)
    really = keys_module.replace

    def replace(path: Path, text: str) -> None:
        monkeypatch.setattr(keys_module, "replace", really)
        second.start()
        second.join(0.5)  # Without a lock, the second change ends here and is then overwritten.
        really(path, text)

    monkeypatch.setattr(keys_module, "replace", replace)
    changes[first]()
    second.join(60)
    assert listed_hosts(tmp_path) == ["good", "new"]


def test_a_list_that_cannot_be_changed_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"hosts.pub cannot be changed: No such file or directory. Make"):
        remove_host(tmp_path, "alpha")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o777])
def test_a_key_that_others_can_reach_is_not_used(tmp_path: Path, mode: int) -> None:
    create_keys(tmp_path, ["alpha"])
    for name, read in (("driver.key", read_driver_keys), ("alpha.key", read_host_keys)):
        (tmp_path / name).chmod(mode)
        with pytest.raises(
            ConfigurationError, match=rf"other users may read or write it \(mode 0{mode:o}\).*chmod 600"
        ):
            read(tmp_path / name)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_list_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    create_keys(tmp_path, ["alpha"])
    listed = tmp_path / "hosts.pub"
    listed.chmod(0o644)
    AllowList(listed)
    listed.chmod(mode)
    with pytest.raises(ConfigurationError, match="other users may write it"):
        AllowList(listed)


def test_a_file_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_keys(tmp_path, ["alpha"])
    if os.geteuid() == 0:
        for path in tmp_path.iterdir():
            os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for name, read in (("driver.key", read_driver_keys), ("alpha.key", read_host_keys), ("hosts.pub", AllowList)):
        with pytest.raises(ConfigurationError, match="belongs to another user"):
            read(tmp_path / name)


def test_a_key_passed_instead_of_its_path_is_not_shown() -> None:
    driver, host = ephemeral_keys()
    for read, secret in ((read_driver_keys, driver.secret), (read_host_keys, host.secret)):
        with pytest.raises(ConfigurationError, match=r"path of the key file of a .*, got a key\. Pass") as caught:
            read(secret.decode())
        assert not shows("".join(traceback.format_exception(caught.value)), secret)
    placement = RemotePlacement("tcp://127.0.0.1:*", driver.secret.decode(), [host.public.decode()])
    assert not shows(repr(placement), driver.secret, host.public)


def test_an_invalid_key_file_is_refused_and_not_shown(tmp_path: Path) -> None:
    create_keys(tmp_path, ["alpha"])
    path, good = tmp_path / "alpha.key", (tmp_path / "alpha.key").read_text()
    host, driver = read_host_keys(path), read_driver_keys(tmp_path / "driver.key")
    secret = host.secret.decode()
    cases = {
        "empty": "",
        "a line less": "\n".join(good.splitlines()[:3]),
        "a line twice": good + good.splitlines()[2] + "\n",
        "another word": good.replace("secret ", "sacred "),
        "a short key": good.replace(secret, secret[:-1]),
        "a character that Z85 lacks": good.replace(secret, secret[:-1] + "~"),
        "more than four bytes hold": good.replace(secret, "#####" + secret[5:]),
        "no spaces": good.replace("secret ", "secret"),
        "the keys of two": good.replace(secret, driver.secret.decode()),
        "of the driver": (tmp_path / "driver.key").read_text(),
    }
    for case, text in cases.items():
        path.write_text(text)
        with pytest.raises(ConfigurationError) as caught:
            read_host_keys(path)
        told = "".join(traceback.format_exception(caught.value))
        assert str(path) in told, case
        assert not shows(told, host.public, host.secret, driver.public, driver.secret), case
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="must be a text file"):
        read_host_keys(path)
    path.write_text(good)
    with pytest.raises(ConfigurationError, match="must be the key file of a driver with the lines public, secret"):
        read_driver_keys(path)


def test_the_error_for_a_missing_key_file_names_the_command_that_creates_it(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot be read: No such file or directory. Make .* parenv keys create"
    ):
        read_host_keys(tmp_path / "missing.key")
    with pytest.raises(ConfigurationError, match="must be a regular file"):
        read_host_keys(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigurationError, match="must be a regular file"):
        read_driver_keys(tmp_path / "pipe")


def test_keys_are_never_shown() -> None:
    driver, host = ephemeral_keys()
    everything = (driver.public, driver.secret, host.public, host.secret)
    for kept in (driver, host, [driver, host], AllowList([host.public.decode()])):
        assert not shows(f"{kept} {kept!r} {kept!s}", *everything)
    assert (str(driver), repr(host)) == ("DriverKeys(not shown)", "HostKeys(not shown)")
    assert shows(str(driver.secret), *everything), "the search must be able to find a key"
    with pytest.raises(ConfigurationError, match="the public key must belong to the secret key") as caught:
        DriverKeys(host.public, driver.secret)
    assert not shows("".join(traceback.format_exception(caught.value)), *everything)
    with pytest.raises(ConfigurationError, match="driver's public key must be Z85 text") as caught:
        HostKeys(host.public, host.secret, driver.public[:-1])
    assert not shows("".join(traceback.format_exception(caught.value)), *everything)
    with pytest.raises(ConfigurationError, match="public and secret keys must be Z85 text"):
        DriverKeys(b"", b"")


def test_ephemeral_keys_are_new_each_time() -> None:
    made = {key for _ in range(3) for pair in ephemeral_keys() for key in (pair.public, pair.secret)}
    assert len(made) == 12
    assert all(is_key(key) for key in made)


def test_the_list_follows_its_file(tmp_path: Path) -> None:
    create_keys(tmp_path, ["alpha", "beta"])
    listed = tmp_path / "hosts.pub"
    allowed = AllowList(str(listed))
    alpha, beta = (read_host_keys(tmp_path / f"{name}.key").public for name in ("alpha", "beta"))
    assert (allowed.name_of(alpha), allowed.name_of(beta)) == ("alpha", "beta")
    kept = [line for line in listed.read_text().splitlines() if not line.startswith("alpha")]
    listed.write_text("\n".join(kept))
    assert (allowed.name_of(alpha), allowed.name_of(beta)) == (None, "beta")
    listed.write_text(f"gamma\t {alpha.decode()}\n\n   # nobody else\n")
    assert (allowed.name_of(alpha), allowed.name_of(beta)) == ("gamma", None)
    for broken in ("alpha", f"alpha {alpha.decode()[:-1]}", f"a/b {alpha.decode()}", f"a {alpha.decode()}\n" * 2):
        listed.write_text(broken)
        with pytest.raises(ConfigurationError, match=r"hosts.pub, line \d"):
            allowed.name_of(alpha)
    listed.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        allowed.name_of(alpha)


def test_a_connected_host_is_removed_with_its_line(tmp_path: Path) -> None:
    create_keys(tmp_path, ["alpha", "beta"])
    alpha, beta = (read_host_keys(tmp_path / f"{name}.key").public for name in ("alpha", "beta"))
    connected = {alpha, beta}
    listed, before = tmp_path / "hosts.pub", (tmp_path / "hosts.pub").read_text()
    allowed = AllowList(listed)
    assert allowed.removed(connected) == set()
    listed.write_text("half a li")
    assert allowed.removed(connected) == set()
    listed.write_text("".join(line for line in before.splitlines(True) if not line.startswith("beta")))
    assert [allowed.removed(connected) for _ in range(2)] == [set(), {beta}]
    other = ephemeral_keys()[1].public
    listed.write_text(before)
    assert [allowed.removed({alpha, beta, other}) for _ in range(2)] == [set(), {other}]


def test_a_list_that_is_empty_for_a_moment_removes_no_host_and_one_that_stays_empty_all(tmp_path: Path) -> None:
    create_keys(tmp_path, ["alpha"])
    alpha = read_host_keys(tmp_path / "alpha.key").public
    listed, before = tmp_path / "hosts.pub", (tmp_path / "hosts.pub").read_text()
    allowed = AllowList(listed)
    for _ in range(2):
        listed.write_text("")
        assert allowed.removed({alpha}) == set()
        listed.write_text(before)
        assert allowed.removed({alpha}) == set()
    listed.write_text("")
    assert [allowed.removed({alpha}) for _ in range(3)] == [set(), {alpha}, {alpha}]


def test_a_list_of_keys_needs_no_file() -> None:
    hosts = [ephemeral_keys()[1].public for _ in range(2)]
    allowed = AllowList([public.decode() for public in hosts])
    assert [allowed.name_of(public) for public in hosts] == ["host-0", "host-1"]
    assert allowed.name_of(ephemeral_keys()[1].public) is None


def test_a_bad_list_is_refused_and_not_shown(tmp_path: Path) -> None:
    public = ephemeral_keys()[1].public
    with pytest.raises(ConfigurationError, match="hosts must contain at least one public key"):
        AllowList([])
    with pytest.raises(ConfigurationError, match="entry 1 is not such a key") as caught:
        AllowList([public.decode(), public.decode()[1:]])
    assert not shows(str(caught.value), public)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        AllowList(tmp_path / "missing.pub")


def test_a_giant_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hosts.pub"
    with open(path, "w") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match="must have at most"):
        AllowList(path)


def test_the_command_makes_and_adds_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "keys"
    assert main(["keys", "create", str(directory), "alpha"]) == 0
    assert main(["keys", "add", str(directory), "beta"]) == 0
    said = capsys.readouterr().out
    allowed = AllowList(directory / "hosts.pub")
    for name in ("alpha", "beta"):
        host = read_host_keys(directory / f"{name}.key")
        assert allowed.name_of(host.public) == name
        assert str(directory / f"{name}.key") in said
        assert not shows(said, host.public, host.secret, host.driver_public)


def test_the_command_reports_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "add", str(tmp_path), "alpha"]) == 2
    assert "driver.key cannot be read" in capsys.readouterr().err
    assert main(["keys", "create", str(tmp_path), "a/b"]) == 2
    assert "parenv keys: a host cannot be named 'a/b'" in capsys.readouterr().err


def test_keys_have_the_documented_length() -> None:
    assert {len(key) for pair in ephemeral_keys() for key in (pair.public, pair.secret)} == {keys_module.KEY_LENGTH}
