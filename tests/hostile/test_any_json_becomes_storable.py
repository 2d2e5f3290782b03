"""What is read of any JSON can be written again, and stored; nothing of it is refused but what is no JSON."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from consumer.document import CONTAINERS_MAX, DEPTH_MAX, parse, storable
from consumer.errors import NotUnderstood
from consumer.events import parse_json, parse_time
from tests.hostile.texts import ODD_TEXTS, texts, values, written


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth(one) for one in value.values()), default=0)
    return 1 + max((depth(one) for one in value), default=0) if isinstance(value, list) else 0


@given(values)
@settings(max_examples=300, deadline=None)
def test_what_is_read_can_be_written_again(value: Any) -> None:
    # case: I10, U1
    read = parse(written({"field": value}), tolerant=True)
    assert orjson.loads(orjson.dumps({"data": {"record": read}}))["data"]["record"] == read
    assert depth(read) <= DEPTH_MAX
    assert b"\\u0000" not in orjson.dumps(read)


@given(texts)
def test_any_text_becomes_one_that_a_column_holds(text: str) -> None:
    found = storable(text, 255)
    assert len(found) <= 255
    assert "\0" not in found
    found.encode("utf-8")
    assert storable(found, 255) == found


def test_what_lies_deep_reads_as_null_and_its_neighbours_are_kept() -> None:
    for levels in (DEPTH_MAX - 1, 300, 1100, 5000):
        raw = b'{"id":"evt_1","deep":' + b'{"a":' * levels + b"1" + b"}" * levels + b',"order":"A"}'
        read = parse(raw, tolerant=True)
        assert (read["id"], read["order"]) == ("evt_1", "A"), levels
        assert depth(read) <= DEPTH_MAX


@pytest.mark.parametrize("raw", [b"[" * 5000, b'{"a":NaN}', b'"\xff"', b'"a\nb"', b'{"a":1', b'{"a":1}}'])
def test_a_stranger_is_not_given_more_than_json(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(raw)


def test_of_a_number_beyond_all_floats_the_word_stays() -> None:
    read = parse(b'{"amount":1e999,"id":' + b"7" * 400 + b',"n":123456789012345678901234567890,"small":12}')
    assert read["amount"] == "1e999"
    assert read["id"] == "7" * 64
    assert isinstance(read["n"], float)
    assert read["small"] == 12


def test_a_text_that_never_ends_costs_little() -> None:
    began = time.perf_counter()
    with pytest.raises(ValueError, match="Unterminated"):
        parse(b'{"description":"' + rb"\"" * 2**17, tolerant=True)
    assert time.perf_counter() - began < 1.0


def test_a_body_of_brackets_costs_little() -> None:
    for raw in (b"[" * 2**20, b"[]," * 2**18, b'"\\' * 2**19, b'[["' * 2**18):
        began = time.perf_counter()
        with pytest.raises(NotUnderstood):
            parse_json(raw)
        assert time.perf_counter() - began < 1.0
    with pytest.raises(ValueError, match="too many"):
        parse(b"[" * (CONTAINERS_MAX + 1), tolerant=True)


@pytest.mark.parametrize(
    "text", ["9999-12-31T23:59:59+00:00", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"]
)
def test_a_time_at_the_end_of_all_times_can_be_reckoned_with(text: str) -> None:
    from datetime import timedelta

    found = parse_time(text)
    assert found is not None
    assert found - timedelta(days=1) < found + timedelta(days=1)


def test_the_odd_texts_are_odd() -> None:
    assert len({storable(one) for one in ODD_TEXTS}) < len(ODD_TEXTS) + 1
