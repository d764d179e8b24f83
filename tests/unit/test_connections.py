"""Check which connections are closed because there are too many or because too many of their bytes are unread."""

from __future__ import annotations

import pytest

from parenv.remote.net.connections import (
    MAX_STRANGERS,
    MOST_TO_STRANGERS,
    STRANGER_BYTES,
    Connection,
    Limits,
    TcpTraffic,
    objections,
    surplus_strangers,
)
from parenv.remote.net.host_keys import Known

LIMITS = Limits(connections=3, unread_bytes=1000, all_unread_bytes=2500)
ALPHA = Known("alpha", b"key")


def connection(let_in: bool = True, heard: bool = True, received: int = 0, read: int = 0) -> Connection:
    one = Connection(5555, "192.0.2.1", 0.0, 0, host=ALPHA if heard and let_in else None, read_bytes=read)
    one.note(TcpTraffic(0.0, received, MOST_TO_STRANGERS + let_in))
    return one


def test_a_connection_is_let_in_when_more_was_sent_to_it_than_to_any_stranger() -> None:
    one = Connection(5555, "192.0.2.1", 0.0, 0)
    one.note(TcpTraffic(0.0, 1000, MOST_TO_STRANGERS))
    assert not one.let_in
    one.note(TcpTraffic(0.0, 1000, MOST_TO_STRANGERS + 1))
    assert one.let_in


def test_the_oldest_surplus_strangers_are_closed_and_hosts_do_not_count() -> None:
    live = {fd: connection(let_in=fd % 2 == 0) for fd in range(2 * MAX_STRANGERS)}
    assert surplus_strangers(live) == []
    live |= {1000: connection(let_in=False), 1001: connection(let_in=False)}
    assert surplus_strangers(live) == [1, 3]
    live[1].turned_away = True
    assert surplus_strangers(live) == [3]
    assert not any(fd % 2 for fd in objections(live, LIMITS))


def test_of_too_many_hosts_the_oldest_unidentified_one_is_closed() -> None:
    live = {1: connection(), 2: connection(heard=False), 3: connection(heard=False), 4: connection()}
    assert objections(live, LIMITS) == {2: "too many connections"}
    live = {fd: connection() for fd in range(3)}
    assert objections(live, LIMITS) == {}
    assert objections({**live, 3: connection(heard=False)}, LIMITS) == {3: "too many connections"}


def test_unread_bytes_are_bounded_per_connection_and_in_total() -> None:
    assert objections({1: connection(received=1000), 2: connection(received=5000, read=4500)}, LIMITS) == {}
    assert objections({1: connection(received=1001), 2: connection()}, LIMITS) == {1: "unread"}
    live = {1: connection(received=900), 2: connection(received=800), 3: connection(received=801)}
    assert objections(live, LIMITS) == {1: "unread"}


@pytest.mark.parametrize("excess", [0, 1])
def test_a_stranger_may_send_only_enough_bytes_to_identify_itself(excess: int) -> None:
    live = {1: connection(let_in=False, received=STRANGER_BYTES + excess)}
    assert objections(live, LIMITS) == ({1: "stranger"} if excess else {})


def test_overestimated_read_bytes_do_not_permit_more_unread_bytes() -> None:
    one = connection(received=100_000, read=200_000)
    assert one.unread_bytes == 0
    one.note(TcpTraffic(0.0, 101_001, 0))
    assert objections({1: one}, LIMITS) == {1: "unread"}
