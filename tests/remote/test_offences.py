"""Check how the main process reacts to each message in ``offences.py``, which hosts must not send."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from offences import BAD, COMMIT, ESCAPE, FAILURE, GOOD, JOINS, OFFENCES, READY, WORKER, Run, frames, whole_rollout

from parenv.placement.base import Ended, Received
from parenv.protocol.frames import Sender
from parenv.remote import exchange, placement
from parenv.remote.host_messages import Heartbeat, Refuse, Stack, Start, Welcome


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="parenv")
    return caplog


@pytest.mark.parametrize("what", OFFENCES)
def test_an_offence_is_counted_and_logged_and_changes_nothing(what: str, log: pytest.LogCaptureFixture) -> None:
    offence = OFFENCES[what]
    with Run(steps=offence.stage == "asked").reach(offence.stage) as run:
        run.events.clear()
        said, before = offence.says(run), run.written
        for message, about in said:
            run.hear(message, about)
        assert run.refused == {offence.reason: offence.count}
        (logged,) = (text for text in log.messages if "Further ones like it are only counted" in text)
        assert re.fullmatch(rf"host host5 .*{offence.logged}.*\. Further ones like it are only counted\.", logged)
        assert run.listener.ended == [BAD] * offence.ends
        joined = offence.stage != ""
        assert len(run.placement._hosts) == 1 + (joined and not offence.ends)
        if not offence.ends:
            assert (run.events, run.written, run.told(Refuse)) == ([], before, [])
            return
        (refusal,) = run.told(Refuse)
        assert re.search(offence.logged, refusal.reason)
        if joined:
            *others, ended = run.events
            assert isinstance(ended, Ended)
            assert (ended.sender, ended.signal) == (WORKER, None)
            assert re.fullmatch(
                r"host 'host5' \(.*, pid 1\) is gone: it sent a message that is not allowed",
                ended.lost_host,
            )
            assert len(others) == (what == "rollout: twice")
        if not what.startswith("rollout"):
            assert run.written == before
        run.hear(Heartbeat([], b""), host=GOOD)
        assert run.refused == {offence.reason: 1}


def test_every_message_that_is_not_refused_is_passed_on() -> None:
    with Run().reach("credits") as run:
        run.events.clear()
        run.hear(whole_rollout(0), WORKER)
        run.hear(COMMIT, WORKER)
        assert run.events == [Received(WORKER, COMMIT)]
    with Run(steps=True).reach("asked") as run:
        run.hear(run.answers(), WORKER)
        assert run.step_buffer.rewards.tolist() == [0.0, 0.0, 666.0, 666.0]
        assert run.refused == {}


@pytest.mark.parametrize("what", JOINS)
def test_an_incompatible_host_is_refused_with_a_reason(what: str, log: pytest.LogCaptureFixture) -> None:
    changed, why = JOINS[what]
    with Run() as run:
        run.join(**changed)
        (refusal,) = run.told(Refuse)
        assert refusal.reason.startswith(why)
        assert f"host host5 cannot join: {why}" in log.text
        assert not run.told(Welcome)
        assert (run.refused, len(run.placement._hosts)) == ({"version": 1}, 0)


def test_a_heartbeat_is_about_workers_of_its_own_host_only() -> None:
    with Run().reach("credits") as run:
        before = run.written
        run.hear(Heartbeat([0, 7, -1], b"\xff" * 96))
        assert run.written == before
        run.hear(Heartbeat([0, 1], b"\xff" * 64))
        # The status slot of worker 1, and the two flags that make the main process read the status slots.
        assert sum(one != other for one, other in zip(run.written, before, strict=True)) == 32 + 2


@pytest.mark.parametrize("error", [ZeroDivisionError, RecursionError, MemoryError])
def test_any_exception_while_a_message_is_checked_is_the_offence_of_its_host(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*message: Any) -> None:
        raise error

    with Run().reach("started") as run:
        monkeypatch.setattr(exchange, "check_ready", check)
        run.hear(READY, WORKER)
        (refusal,) = run.told(Refuse)
        assert error.__name__ in refusal.reason
        assert (run.refused, run.listener.ended) == ({"malformed message": 1}, [BAD])


def test_a_key_is_barred_after_three_offences_even_if_its_host_has_joined(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Any] = []
    with Run() as run:
        run.join()
        for number in range(1, 4):
            offender = b"offender%d" % number
            run.keys[offender] = "host5"
            run.hear(frames("garbage"), host=offender)
            assert run.refused == {"malformed message": number}
        monkeypatch.setattr(placement, "decode", lambda *frames: decoded.append(frames))
        for host in (BAD, b"late"):
            run.keys[host] = "host5"
            run.hear(frames("garbage"), host=host)
            (refusal,) = run.told(Refuse, host)
            assert refusal.reason == "hosts with this key have sent 3 messages that are not allowed"
        assert run.refused == {"malformed message": 3, "barred": 2}
        assert run.listener.ended[-2:] == [BAD, b"late"]
        assert not decoded
        assert len(run.placement._hosts) == 0
        assert log.text.count("host host5 has sent a message that is not allowed") == 1
        assert log.text.count("host host5 cannot join") == 1
        monkeypatch.undo()
        run.join(GOOD)
        assert len(run.placement._hosts) == 1


def test_control_characters_from_a_host_are_escaped(log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.INFO, logger="parenv")
    with Run() as run:
        run.join(name=ESCAPE)
        run.join(GOOD)
        (worker,) = (about for host, about, message in run.listener.told if host == BAD and isinstance(message, Start))
        run.hear(Stack(ESCAPE), worker)
        shown = run.placement._stacks.pop(worker)
        about = Sender(*worker)
        texts = {"doing": ESCAPE, "kind": ["builtins", ESCAPE], "message": ESCAPE, "traceback": ESCAPE}
        run.hear(FAILURE.__class__(-1, 0, 0, **texts, attributes={"a": [ESCAPE], "b": {"c": (ESCAPE,)}}), about)  # type: ignore[arg-type]
        run.hear([ESCAPE.encode() * 3], about)
        shown += repr([vars(event.message) for event in run.events if isinstance(event, Received)])
    shown += log.text
    assert shown.count("x1b]0;pwned") >= 8
    assert "\x1b" not in shown
