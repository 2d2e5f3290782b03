"""What is read of any JSON can be written again, and stored; nothing of it is refused but what is no JSON."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from consumer.document import DEPTH_MAX, ODD_MAX, TEXTS_MAX, VALUES_MAX, VOUCHED_MAX, parse, storable
from consumer.errors import NotUnderstood
from consumer.events import Locators, parse_json, parse_time
from consumer.ledger.reading.observation import Observation
from consumer.plugin.snapshot import snapshot_in
from consumer.wire import pack_event, unpack_event
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


MEGABYTE = 2**20
MANY = 20_000
ITSELF = 60
"""Calls that reading makes whatever it reads."""


def calls(raw: bytes, tolerant: bool) -> int:
    """How many calls it takes to read this, of Python's functions and of the libraries': its work, on any machine."""
    found = 0

    def count(_: object, what: str, __: object) -> None:
        nonlocal found
        found += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        parse(raw, tolerant=tolerant)
    except ValueError:
        pass
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize(
    "part",
    [b"[]", b"{}", b'""', b"1", b"1e9", b'{"":[]}', b"[" * 60 + b"]" * 60, rb'"\u0000"', rb'"\ud800"', rb'"\\u0000["'],
    ids=ascii,
)
def test_a_megabyte_of_anything_is_not_read_value_by_value(part: bytes, tolerant: bool) -> None:
    # case: I10
    raw = b"[" + b",".join([part] * (MEGABYTE // (len(part) + 1))) + b"]"
    assert calls(raw, tolerant) < ITSELF + DEPTH_MAX


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize(
    "raw",
    [
        b"[" * MEGABYTE,
        b"[" * 200_000 + b"]" * 200_000,
        b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
        b'["' * (MEGABYTE // 2),
        b'"\\' * (MEGABYTE // 3),
        b'{"description":"' + rb"\"" * 2**17,
        b"[1e999" + b",1" * (MEGABYTE // 2) + b"]",
        b"[" * 70 + b"]" * 70 + b",1" * (MEGABYTE // 2),
        b'["\xff"' + b',""' * (MEGABYTE // 3) + b"]",
    ],
    ids=lambda raw: ascii(raw[:9]),
)
def test_a_megabyte_that_is_odd_is_refused_at_once(raw: bytes, tolerant: bool) -> None:
    # case: I10
    assert calls(raw, tolerant) < ITSELF + DEPTH_MAX
    with pytest.raises(ValueError, match=r".*"):
        parse(raw, tolerant=tolerant)
    with pytest.raises(NotUnderstood):
        parse_json(raw, tolerant=tolerant)


REFERENCE = b"[%b]" % b",".join(b'{"k%d":1,"j%d":[]}' % (number, number) for number in range(10_000))
"""Twenty thousand containers, read by the library alone: some 3 ms."""
WITHIN = 6
"""So many times as long as that the worst megabyte may take (seen: 3; before the bounds 10)."""
SIZES = (70, 700, ODD_MAX // 3, VALUES_MAX - 2, TEXTS_MAX - 2, MEGABYTE)
"""Parts of a megabyte: also as many as are just let in."""


def cpu_s(work: Callable[[], object]) -> float:
    """The thread's own seconds, of the quickest of three."""
    took = []
    gc.disable()
    try:
        for _ in range(3):
            began = time.thread_time()
            with suppress(ValueError):
                work()
            took.append(time.thread_time() - began)
    finally:
        gc.enable()
    return min(took)


@pytest.mark.parametrize(
    "part",
    [
        b"[]", b"{}", b'""', b"1e9", b'{"":[]}', '"\u00e9"'.encode(), b"[" * 60 + b"]" * 60, b"[" * 70 + b"]" * 70,
        rb'"\u0000"', rb'"\ud800"', rb'"\ude00"', rb'"\\u0000["', rb'"\""', rb'"\\"', b'{"a":{"b":1}}', b"1e999",
        b"NaN",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_or_refused_in_a_few_milliseconds(part: bytes) -> None:
    # case: I10
    """Whatever a stranger sends holds up the others of the event loop for no longer; also what is just let in."""
    most = WITHIN * cpu_s(lambda: orjson.loads(REFERENCE))
    for size in SIZES:
        raw = b"[%b]" % b",".join([part] * min(size, MEGABYTE // (len(part) + 1)))
        raw += b" " * (MEGABYTE - len(raw))
        assert cpu_s(partial(parse, raw)) < most, size


def test_so_many_values_and_texts_are_read_and_no_more() -> None:
    for part, most in ((b"[]", VALUES_MAX - 1), (b'""', TEXTS_MAX), (rb'"a\"b"', TEXTS_MAX)):
        assert len(parse(b"[%b]" % b",".join([part] * most))) == most
        with pytest.raises(ValueError, match=r"too many"):
            parse(b"[%b]" % b",".join([part] * (most + 1)))
    for part in (rb'"\ud800"', b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, b"1e999"):
        assert parse(b"[%b]" % b",".join([part] * 30))
        with pytest.raises(ValueError, match=r"too"):
            parse(b"[%b]" % b",".join([part] * (ODD_MAX + 1)))


def test_what_we_wrote_ourselves_is_bounded_as_what_the_service_vouches_for() -> None:
    # case: U1
    """An order whose record has more values than a stranger may send is paid all the same."""
    record = {"order_id": "A-1", "status": "PAID", "lines": [[]] * (VALUES_MAX + 1)}
    at = datetime.now(UTC)
    seen = Observation(application="default", kind="order", object_id="A-1", version=7, record=record, read_at=at)
    packed = pack_event(seen.event())
    event = unpack_event(packed.key, packed.value, packed.headers, Locators())
    assert event.order_id == "A-1"
    found = snapshot_in(event.raw, application="default", kind="order", object_id="A-1", at=at)
    assert found is not None
    assert found.status == "PAID"


def test_what_is_odd_and_short_costs_no_more_than_its_values() -> None:
    deep = b"[" * MANY + b"]" * MANY
    many = b"[1e999" + b",1" * MANY + b"]"
    for raw in (deep, many):
        assert parse(raw, tolerant=True)
        assert calls(raw, tolerant=True) < 10 * MANY


def test_a_page_of_a_hundred_records_as_odd_as_can_be_is_read() -> None:
    # case: F18, U1
    odd = [{"id": f"ord_{n}", "deep": _tower(900), "note": "\ud800", "amount": 10**400} for n in range(60)]
    page = json.dumps({"items": [*odd, *({"id": f"ord_{n}", "lines": [{"n": 1}] * 20} for n in range(40))]}).encode()
    assert page.count(b"[") + page.count(b"{") > VALUES_MAX
    assert len(parse(page, tolerant=True)["items"]) == 100


def _tower(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb"\u0000", "\ufffd"),
        (rb"\\u0000", r"\u0000"),
        (rb"\\\u0000", "\\\ufffd"),
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\uD83D\uDE00\uDE00", "\U0001f600\ufffd"),
        (rb"\ud800\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\ud800", "\ufffd"),
        (rb"\udfff\ud800", "\ufffd\ufffd"),
        (rb"\\ud800", r"\ud800"),
        (rb"\ud800\\ude00", "\ufffd\\ude00"),
    ],
)
def test_an_escape_that_is_no_character_is_replaced_alone(written: bytes, read: str) -> None:
    assert parse(b'{"a":"' + written + b'"}') == {"a": read}
    assert parse(b'{"' + written + b'":1e999}') == {read: "1e999"}


def test_brackets_in_a_text_hide_no_depth_and_are_none() -> None:
    deep = b'{"a":"]","b":' * 300 + b"1" + b"}" * 300
    assert depth(parse(deep)) <= DEPTH_MAX
    text = "[{" * VOUCHED_MAX
    assert parse(orjson.dumps({"a": text, "b": [[]] * DEPTH_MAX})) == {"a": text, "b": [[]] * DEPTH_MAX}


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
