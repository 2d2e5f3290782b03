"""JSON in which no event id can be found is answered 400 once its raw bytes are kept."""

from __future__ import annotations

import orjson
import pytest

from consumer.reason import Reason
from consumer.wire import unpack_delivery
from tests.receive.rig import Rig


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"type": "order.paid"},
        {"id": "ord_1"},
        {"id": "evt_"},
        {"id": "evt_ 1"},
        {"id": "evt_1\x00"},
        {"id": "evt_" + "x" * 300},
        {"id": None},
        {"id": ["evt_1"]},
    ],
)
async def test_json_without_an_event_id_is_400_and_kept_raw(rig: Rig, document: object) -> None:
    # case: I10
    body = orjson.dumps(document)
    reply = await rig.signed(body)
    assert (reply.status, reply.code) == (400, "not_understood")
    assert await rig.records("events") == []
    [record] = await rig.records("deliveries")
    delivery = unpack_delivery(record.key, record.value, record.headers)
    assert (delivery.raw, delivery.problem) == (body, Reason.NO_EVENT_ID)
