"""An event that cannot be stored is kept raw in quarantine, where the same name is kept once: no two events may share
one, however long their ids are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consumer.ledger import Database
from consumer.ledger.reading import quarantine
from consumer.reason import Reason
from consumer.work.ingest.arrivals import NAME_CHARS, event_delivery
from tests.work.workshop import AT, order_paid

LONG = "e" * 240


# case: R10
@pytest.mark.parametrize(
    ("one", "other"),
    [(f"{LONG}1", f"{LONG}2"), (f"1{LONG}", f"2{LONG}"), ("evt\0_1", "evt_1"), ("e" * 94, "e" * 95)],
)
async def test_two_events_are_two_rows(database: Database, one: str, other: str) -> None:
    deliveries = [event_delivery(replace(order_paid(1), id=name)) for name in (one, other, one)]
    assert all(len(delivery.id) <= NAME_CHARS for delivery in deliveries)
    async with database.transaction() as session:
        await quarantine.put(session, [(delivery, Reason.NOT_STORABLE) for delivery in deliveries], AT)
    async with database.reading() as session:
        assert len(await quarantine.newest(session)) == 2


def test_a_short_name_is_the_id_itself() -> None:
    assert event_delivery(order_paid(7)).id == "event/evt_7"
    assert event_delivery(replace(order_paid(7), delivery_id="msg_1")).id == "msg_1"
