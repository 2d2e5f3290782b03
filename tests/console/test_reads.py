"""A shop asks for a read: what it saw at the service is evidence, and the read decides."""

from __future__ import annotations

from yarl import URL

from tests.console.conftest import Client
from tests.support.handling.projections import READS, START, Projections, observed


async def test_a_409_order_already_paid_recovers_a_missed_event(api: Client, projections: Projections) -> None:
    # case: F27
    async with api.post(URL("/api/orders/A%2F1/read", encoded=True)) as response:
        assert response.status == 202
        assert (await response.json())["id"] == "A/1"
    assert await projections.asked() == {("order", "A/1")}
    await projections.feed(observed("order:A/1", 1, {"status": "PAID"}))
    assert len(projections.of_type("fulfilment.requested")) == 1


async def test_a_cancel_of_any_answer_is_followed_by_a_read(api: Client, projections: Projections) -> None:
    # case: A38, A39
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE", "customer_reference": "c"}))
    await projections.forget_reads()
    async with api.post("/api/subscriptions/S1/read") as response:
        assert response.status == 202
    assert await projections.asked() == {("subscription", "S1")}
    assert (await projections.row(READS))["due_at"] == START, "at once"
    ended = {"status": "ENDED", "customer_reference": "c", "end_reason": "MERCHANT_CANCELED"}
    await projections.feed(observed("subscription:S1", 2, ended))
    async with api.get("/api/subscriptions/S1") as response:
        assert (await response.json())["status"] == "ENDED"


async def test_asking_twice_is_one_read(api: Client, projections: Projections) -> None:
    for _ in range(2):
        async with api.post("/api/orders/A1/read?application=other") as response:
            assert response.status == 202
    row = await projections.row(READS)
    assert (row["application"], row["asked"]) == ("other", 2)
