"""What is not JSON is answered 400 once the raw bytes are in quarantine's way."""

from __future__ import annotations

import pytest

from consumer.reason import Reason
from consumer.wire import unpack_delivery
from tests.receive.rig import Rig


@pytest.mark.parametrize(
    "body",
    [b"{", b"hush", b"\xff\xfe\x00", b"[1]", b'"evt_1"', b"null", b"{}}", b"[" * 2000, b'{"id":NaN}', b"\x00" * 99],
)
@pytest.mark.parametrize("path", ["/webhooks/hints", "/webhooks/sandbox"])
async def test_invalid_json_is_400_and_kept_raw(rig: Rig, body: bytes, path: str) -> None:
    # case: I10
    reply = await rig.send(body, path=path)
    assert (reply.status, reply.code) == (400, "not_understood")
    assert await rig.records("events") == []
    [record] = await rig.records("deliveries")
    delivery = unpack_delivery(record.key, record.value, record.headers)
    assert (delivery.raw, delivery.event_id) == (body, None)
    assert delivery.problem in (Reason.NOT_JSON, Reason.NOT_AN_OBJECT)


async def test_signed_invalid_json_is_400_and_kept_raw(rig: Rig) -> None:
    # case: I10
    reply = await rig.signed(b"not json hush")
    assert (reply.status, reply.code) == (400, "not_understood")
    [record] = await rig.records("deliveries")
    assert record.value == b"not json hush"
    assert "webhook_refused" in rig.logs.getvalue()
