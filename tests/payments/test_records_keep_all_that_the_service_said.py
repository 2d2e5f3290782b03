"""Records are read tolerantly and keep all the service said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer.payments import CheckoutSession, EventRecord, Order, Subscription
from tests.payments.support import Bench, Reply, ScriptedService

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["id", "status", "url", "expires_at", "order", "order_id", "end_reason", "cancel_at_period_end", "raw"]


@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON, max_size=8))
def test_any_object_can_be_read_and_is_kept_whole(document: dict[str, Any]) -> None:
    # case: C24, I8
    for kind in (CheckoutSession, Order, Subscription, EventRecord):
        record = kind.read(document)
        assert record.raw == document
        repr(record)


def test_unknown_fields_and_statuses_are_kept() -> None:
    # case: C24
    found = Subscription.read({"id": "sub_1", "status": "ON_HOLIDAY", "end_reason": "BORED", "extra": {"a": [1]}})
    assert (found.status, found.end_reason) == ("ON_HOLIDAY", "BORED")
    assert found.raw["extra"] == {"a": [1]}


@pytest.mark.parametrize(
    "value", ["2026-01-01T00:30:00Z", "2026-01-01T01:30:00+01:00", "2026-01-01T00:30:00", 1767227400, 1767227400000]
)
def test_times_of_every_usual_form_are_read(value: Any) -> None:
    # case: C25, U22
    assert CheckoutSession.read({"expires_at": value}).expires_at == datetime(2026, 1, 1, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize("value", ["soon", "", None, True, [], {}, 10**30])
def test_a_time_of_another_form_is_none(value: Any) -> None:
    # case: C25, U22
    assert CheckoutSession.read({"expires_at": value}).expires_at is None


def test_the_embedded_order_is_read_and_may_be_missing() -> None:
    # case: U21
    order = CheckoutSession.read({"order": {"status": "PAID", "x": 1}}).order
    assert order is not None
    assert order.is_paid
    assert order.raw == {"status": "PAID", "x": 1}
    assert CheckoutSession.read({"order": None}).order is None
    assert CheckoutSession.read({"order": "ord_1"}).order is None


@pytest.mark.parametrize(
    ("flags", "ends"),
    [({}, False), ({"cancel_at_period_end": True}, True), ({"merchant_cancel_requested": True}, True),
     ({"cancel_at_period_end": False, "merchant_cancel_requested": False}, False)],
)  # fmt: skip
def test_a_scheduled_end_stands_by_either_flag(flags: dict[str, bool], ends: bool) -> None:
    # case: U16
    assert Subscription.read({"id": "s"} | flags).will_end is ends


async def test_a_single_event_keeps_the_bytes_as_read(service: ScriptedService, b: Bench) -> None:
    # case: I6
    body = b'{ "id":"evt_1",  "amount": "1.50", "n": 1.10 }'
    service.will(Reply(200, body))
    event = await b.client.events.retrieve("evt_1")
    assert event.raw_bytes == body
    assert event.id == "evt_1"


async def test_a_listed_event_gives_the_same_bytes_every_time(service: ScriptedService, b: Bench) -> None:
    # case: B8
    body = b'{"items": [ {"type": "order.paid", "id" : "evt_1", "data": {"z": 1, "a": "\\u00e4"}} ]}'
    service.will(Reply(200, body), Reply(200, body))
    first, second = [(await b.client.events.list()).items[0].raw_bytes for _ in range(2)]
    assert first == second == '{"type":"order.paid","id":"evt_1","data":{"z":1,"a":"ä"}}'.encode()


async def test_one_damaged_text_does_not_make_a_page_unreadable(service: ScriptedService, b: Bench) -> None:
    # case: C13, I8
    service.will(Reply(200, b'{"items": [{"id": "evt_1", "note": "\\ud83d"}, {"id": "evt_2"}], "next_cursor": null}'))
    found = (await b.client.events.list()).items
    assert [event.id for event in found] == ["evt_1", "evt_2"]
    assert found[0].raw_bytes == '{"id":"evt_1","note":"\ufffd"}'.encode()


def test_a_record_prints_no_personal_data() -> None:
    # case: S9
    found = CheckoutSession.read({"id": "cs_1", "status": "OPEN", "url": "https://x", "customer_email": "a@b.example"})
    assert repr(found) == str(found) == "CheckoutSession(id='cs_1', status='OPEN')"


async def test_packed_answers_are_unpacked_within_the_bound(service: ScriptedService, b: Bench) -> None:
    # case: C13
    import gzip

    from consumer.payments import UnexpectedAnswer

    packed = {"Content-Encoding": "gzip"}
    service.will(Reply(200, gzip.compress(b'{"id": "ord_1"}'), packed))
    assert (await b.client.orders.retrieve("ord_1")).id == "ord_1"
    bomb = Reply(200, gzip.compress(b"0" * 50_000_000), packed)
    for refused in (bomb, Reply(200, b"{}", {"Content-Encoding": "br"})):
        service.will(refused)
        with pytest.raises(UnexpectedAnswer):
            await b.client.orders.retrieve("ord_1")


@pytest.mark.parametrize("body", [b"not packed", b'{"id": "ord_1"}'], ids=["damaged", "cut short"])
async def test_an_answer_that_came_to_harm_is_asked_for_again(service: ScriptedService, b: Bench, body: bytes) -> None:
    # case: C13
    import gzip

    packed = {"Content-Encoding": "gzip"}
    whole = gzip.compress(b'{"id": "ord_1"}')
    service.will(Reply(200, body if body == b"not packed" else whole[:-9], packed))
    service.will(Reply(200, whole, packed))
    assert (await b.client.orders.retrieve("ord_1")).id == "ord_1"
    assert len(service.seen) == 2


async def test_unpacking_stops_at_the_bound() -> None:
    # case: C13
    import gzip
    import tracemalloc

    from consumer.payments import AnswerTooLarge
    from consumer.payments.answers import bounded

    bomb = gzip.compress(b"0" * 100_000_000)

    async def chunks() -> AsyncIterator[bytes]:
        yield bomb

    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLarge):
            await bounded(chunks(), "gzip", 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
