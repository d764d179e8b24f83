"""Check which values are set again in a new process."""

from __future__ import annotations

import threading

from parenv.crew.set_values import SetValues


def test_the_last_value_of_each_column_is_set_again_in_the_order_of_the_calls() -> None:
    values = SetValues()
    values.note("set_attr", ([0, 1, 2], [1, 2, 3], "level"), failed=[])
    values.note("set_attr", ([0, 1, 2], ["a"] * 3, "name"), failed=[])
    values.note("set_attr", ([1], [7], "level"), failed=[])
    assert values.calls() == [
        ("name", "set_attr", ([0, 1, 2], ["a"] * 3, "name")),
        ("level", "set_attr", ([0, 1, 2], [1, 7, 3], "level")),
    ]


def test_calls_that_set_an_attribute_count_and_other_calls_do_not() -> None:
    values = SetValues()
    values.note("call", ([0, 1], "__setattr__", ("level", 3), {}), failed=[])
    values.note("call", ([1], "set_wrapper_attr", ("name", "b"), {"force": True}), failed=[])
    values.note("call", ([0, 1], "__setattr__", ("level",), {}), failed=[])
    values.note("call", ([0, 1], "level", (), {}), failed=[])
    values.note("reset", ([0], [None], None), failed=[])
    values.note("get_state", (), failed=[])
    assert values.calls() == [
        ("level", "call", ([0, 1], "__setattr__", ("level", 3), {})),
        ("name", "call", ([1], "set_wrapper_attr", ("name", "b"), {"force": True})),
    ]


def test_a_column_whose_environment_refused_the_value_keeps_its_earlier_one() -> None:
    values = SetValues()
    values.note("set_attr", ([0, 1], [1, 2], "level"), failed=[])
    values.note("set_attr", ([0, 1], [3, 4], "level"), failed=[1])
    assert values.calls() == [("level", "set_attr", ([0, 1], [3, 2], "level"))]


def test_values_are_copies_if_they_can_be_copied() -> None:
    values, given, lock = SetValues(), [1], threading.Lock()
    values.note("set_attr", ([0, 1], [given, lock], "level"), failed=[])
    given.append(2)
    ((_, _, (_, kept, _)),) = values.calls()
    assert kept == [[1], lock]
