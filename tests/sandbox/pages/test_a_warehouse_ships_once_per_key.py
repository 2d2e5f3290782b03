"""The sandbox's warehouse, for who tries a handler: one parcel per key, and no key, no parcel."""

from __future__ import annotations

from consumer.sandbox.control import warehouse
from tests.sandbox.support import Api


async def test_a_warehouse_ships_once_per_key(api: Api) -> None:
    for key in ("one", "one", "two"):
        answer = await api.post("/_sandbox/parcels", {"order_id": "A-1"}, Idempotency_Key=key)
        assert answer.status == 200
    shipped = (await api.get("/_sandbox/parcels")).json
    assert [(one["idempotency_key"], one["asked"]) for one in shipped["items"]] == [("one", 2), ("two", 1)]
    assert shipped["count"] == 2
    assert shipped["items"][0]["content"] == {"order_id": "A-1"}


async def test_without_a_key_nothing_is_shipped_and_it_says_what_to_send(api: Api) -> None:
    for key in (None, "k" * 300):
        answer = await api.post("/_sandbox/parcels", {"order_id": "A-1"}, Idempotency_Key=key)
        assert (answer.status, answer.code) == (400, "validation_failed")
        assert "ctx.idempotency_key" in answer.json["message"]
    assert (await api.get("/_sandbox/parcels")).json["count"] == 0


async def test_only_the_newest_are_kept_and_a_reset_forgets_them(api: Api) -> None:
    for number in range(warehouse.PARCELS_MAX + 1):
        await api.post("/_sandbox/parcels", {}, Idempotency_Key=str(number))
    items = (await api.get("/_sandbox/parcels")).json["items"]
    assert (len(items), items[0]["idempotency_key"]) == (warehouse.PARCELS_MAX, "1")
    await api.control("/reset")
    assert (await api.get("/_sandbox/parcels")).json["count"] == 0
