"""What a record or a payload says at one of several places: a text of a sane length, an amount as it was said."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.pointers import TEXT_MAX_CHARS, look, look_amount, look_text, marked_as_test
from tests.support.handling.projections import observed, said

LONGEST = "x" * TEXT_MAX_CHARS


@pytest.mark.parametrize(
    ("value", "text", "amount"),
    [
        ("A1", "A1", "A1"),
        ("", None, ""),
        (LONGEST, LONGEST, LONGEST),
        (LONGEST + "y", None, LONGEST),
        (7, "7", "(number) 7"),
        (12.5, "12.5", "(number) 12.5"),
        (True, None, "(bool)"),
        (None, None, None),
        ({"id": 1}, None, "(dict)"),
        (["A1"], None, "(list)"),
    ],
)
def test_numbers_are_texts_too_and_an_amount_that_is_none_is_told_apart(
    value: Any, text: str | None, amount: str | None
) -> None:
    # case: F21, U29
    event = said("order.paid", "evt_1", field=value)
    assert (look_text(event, ("/field",)), look_amount(event, ("/field",))) == (text, amount)


def test_the_first_place_that_says_it_counts() -> None:
    event = said("order.paid", "evt_1", first={"id": "1"}, second="2", empty="")
    assert look_text(event, ("/nothing", "/empty", "/first", "/second")) == "2"
    assert look(event, ("/nothing", "/first", "/second")) == {"id": "1"}
    assert look(event, ("/nothing",)) is None


def test_of_a_read_its_record_is_looked_at() -> None:
    read = observed("order:A1", 1, {"status": "PAID"})
    assert look_text(read, ("/status",)) == "PAID"


@pytest.mark.parametrize(
    ("value", "is_test"), [(False, True), (True, False), (None, False), ("false", False), (0, False)]
)
def test_only_the_very_value_marks_a_test(value: Any, is_test: bool) -> None:
    # case: F24, A47
    event = said("order.paid", "evt_1", livemode=value)
    assert marked_as_test(event, ("/data/object/livemode=false",)) is is_test
    assert marked_as_test(event, ("/data/object/livemode=true",)) is (value is True)
    assert not marked_as_test(event, ())
