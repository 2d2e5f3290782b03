"""A body that says it is no JSON is 400; its raw bytes are kept, because the service documents no content type."""

from __future__ import annotations

import pytest

from consumer.reason import Reason
from consumer.wire import unpack_delivery
from tests.receive.rig import BODY, Rig


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "image/png", "x"],
)
async def test_a_type_that_is_no_json_is_400_and_kept(rig: Rig, content_type: str) -> None:
    reply = await rig.signed(headers={"Content-Type": content_type})
    assert (reply.status, reply.code) == (400, "unsupported_content_type")
    assert await rig.records("events") == []
    [record] = await rig.records("deliveries")
    delivery = unpack_delivery(record.key, record.value, record.headers)
    assert (delivery.raw, delivery.problem) == (BODY, Reason.UNSUPPORTED_CONTENT_TYPE)
    assert delivery.headers["content-type"] == content_type


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "text/json",
        "application/cloudevents+json",
    ],
)
async def test_json_under_any_of_its_names_is_taken(rig: Rig, content_type: str) -> None:
    assert (await rig.signed(headers={"Content-Type": content_type})).status == 200


async def test_no_type_at_all_is_taken(rig: Rig) -> None:
    head = f"POST /webhooks/hints HTTP/1.1\r\nHost: x\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    assert (await rig.raw(head + BODY)).startswith(b"HTTP/1.1 200 ")
