"""What is accepted: durable first, raw, once per request, whatever the event is."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
from datetime import timedelta

import orjson
import pytest

from consumer.events import Locators, Source, Trust
from consumer.wire import unpack_delivery, unpack_event
from tests.receive.rig import BODY, NOW, RecordingBroker, Rig, running


async def test_a_signed_webhook_becomes_an_event_with_its_raw_bytes(rig: Rig) -> None:
    # case: I1, I6, I28
    reply = await rig.signed()
    assert (reply.status, reply.body) == (200, b'{"status":"accepted"}')
    assert reply.headers["Content-Type"] == "application/json"
    [record] = await rig.records("events")
    assert await rig.records("deliveries") == []
    event = unpack_event(record.key, record.value, record.headers, Locators())
    assert (event.raw, event.id, event.type, event.key) == (BODY, "evt_1", "order.paid", "order:A-1")
    assert (event.trust, event.source, event.application) == (Trust.SIGNED, Source.WEBHOOK, "default")
    assert event.received_at == NOW
    assert re.fullmatch(r"dlv_[0-9a-f]{32}", event.delivery_id)
    assert record.key == b"default/order:A-1"


async def test_200_comes_after_the_acknowledgement_and_not_before(
    recording: RecordingBroker, logs: io.StringIO
) -> None:
    # case: I1
    asked, acknowledged = recording.hold()
    async with running(recording, logs) as rig:
        request = asyncio.create_task(rig.signed())
        await asyncio.wait_for(asked.wait(), 5)
        done, _ = await asyncio.wait({request}, timeout=0.2)
        assert not done
        acknowledged.set()
        assert (await request).status == 200
        assert len(recording.published) == 1


async def test_without_a_scheme_the_webhook_is_a_hint(rig: Rig) -> None:
    # case: I15, I17, I19
    assert (await rig.send(path="/webhooks/hints")).status == 200
    assert await rig.records("events") == []
    [record] = await rig.records("deliveries")
    assert record.headers["trust"] == b"claimed"
    delivery = unpack_delivery(record.key, record.value, record.headers)
    assert (delivery.raw, delivery.event_id, delivery.problem) == (BODY, "evt_1", None)
    assert delivery.application == "hints"


async def test_the_sandbox_without_proof_makes_events(rig: Rig) -> None:
    # case: I19
    assert (await rig.send(path="/webhooks/sandbox")).status == 200
    [record] = await rig.records("events")
    assert record.key.startswith(b"sandbox/")


async def test_the_short_address_is_the_default_application(rig: Rig) -> None:
    # case: I26
    assert (await rig.signed(path="/webhooks")).status == 200
    assert (await rig.signed(path="/webhooks?x=1")).status == 200
    assert (await rig.send(path="/webhooks/hints")).status == 200
    assert [record.key for record in await rig.records("events")] == [b"default/order:A-1"] * 2
    assert [record.key for record in await rig.records("deliveries")] == [b"hints/order:A-1"]
    assert (rig.count("accepted"), rig.count("accepted", "hints")) == (2, 1)


@pytest.mark.parametrize("more", [{"type": "order.refunded"}, {"type": None}, {"type": "Not A Type"}, {"type": 7}, {}])
async def test_an_unknown_type_is_welcome(rig: Rig, more: dict[str, object]) -> None:
    # case: I7
    body = orjson.dumps({"id": "evt_1", **more})
    assert (await rig.signed(body)).status == 200
    [record] = await rig.records("events")
    assert record.headers["type"] in (b"order.refunded", b"unknown.type")
    assert record.key == b"default/event:evt_1"


async def test_unknown_fields_missing_ones_and_nulls_are_tolerated(rig: Rig) -> None:
    # case: I8
    body = orjson.dumps({"id": "evt_1", "type": "order.paid", "data": None, "new": {"a": [1]}, "order_id": None})
    assert (await rig.signed(body)).status == 200
    [record] = await rig.records("events")
    assert (record.value, record.key) == (body, b"default/event:evt_1")


async def test_another_envelope_needs_only_other_locators(rig: Rig) -> None:
    # case: I9
    body = orjson.dumps({"envelope": {"n": "evt_odd", "what": "order.paid"}, "order_id": "B-2"})
    assert (await rig.send(body, path="/webhooks/odd")).status == 200
    [record] = await rig.records("deliveries")
    assert (record.headers["event_id"], record.key) == (b"evt_odd", b"odd/order:B-2")


async def test_a_redelivery_is_accepted_again(rig: Rig) -> None:
    # case: I21
    replies = [await rig.signed() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 200]
    ids = {record.headers["delivery_id"] for record in await rig.records("events")}
    assert len(ids) == 3


async def test_delivery_ids_sort_by_time(rig: Rig) -> None:
    for _ in range(5):
        await rig.signed()
        rig.clock.advance(0.01)
    ids = [record.headers["delivery_id"] for record in await rig.records("events")]
    by_time = sorted((await rig.records("events")), key=lambda record: record.headers["received_at"])
    assert sorted(ids) == [record.headers["delivery_id"] for record in by_time]


async def test_a_foreign_traceparent_is_not_the_parent(rig: Rig) -> None:
    # case: I24
    foreign = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    await rig.signed(headers={"traceparent": foreign})
    [record] = await rig.records("events")
    assert b"a" * 32 not in record.headers["traceparent"]
    assert len(record.headers["traceparent"]) == len(foreign)


async def test_headers_are_kept_by_a_list_and_never_credentials(rig: Rig) -> None:
    # case: I6, I25
    sent = {
        "Authorization": "Basic hush",
        "Cookie": "hush=1",
        "X-Webhook-Token": "hush",
        "X-Event-Signature": "v1=abc",
        "User-Agent": "service/1",
        "X-Other": "1",
        "X-Request-Id": "r" * 2000,
    }
    await rig.send(path="/webhooks/hints", headers=sent)
    await rig.signed(headers=sent)
    for topic in ("deliveries", "events"):
        [record] = await rig.records(topic)
        kept = orjson.loads(record.headers["http"])
        assert kept["x-event-signature"] == "v1=abc"
        assert kept["user-agent"] == "service/1"
        assert len(kept["x-request-id"]) == 512
        assert b"hush" not in record.headers["http"]
        assert "x-other" not in kept


async def test_headers_of_any_bytes_are_kept_as_clean_text(rig: Rig) -> None:
    head = b"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nUser-Agent: caf\xe9\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    assert (await rig.raw(head + BODY)).startswith(b"HTTP/1.1 200 ")
    [record] = await rig.records("deliveries")
    assert unpack_delivery(record.key, record.value, record.headers).headers["user-agent"] == "caf\ufffd"


async def test_the_figures_say_what_happened(rig: Rig) -> None:
    rig.clock.advance(timedelta(hours=1).total_seconds())
    await rig.signed()
    text = rig.metrics.render().decode()
    assert f"consumer_receive_body_bytes_total {float(len(BODY))}" in text
    assert "consumer_receive_in_flight 0.0" in text
    last = rig.metrics.registry.get_sample_value(
        "consumer_receive_last_accepted_timestamp_seconds", {"application": "default"}
    )
    assert last == (NOW + timedelta(hours=1)).timestamp()


def test_the_receive_path_knows_no_database_no_api_and_no_plugin() -> None:
    # case: I5, I29
    code = (
        "import sys, consumer.receive.web; "
        "found = {n for n in sys.modules if n.startswith(('sqlalchemy', 'sqlmodel', 'consumer.plugin', "
        "'consumer.ledger', 'consumer.payments', 'handlers'))}; print(sorted(found)); sys.exit(bool(found))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
