"""Words of the service, of strangers and of authors are stored on both databases alike: what a text column cannot hold
becomes U+FFFD, what is too long is cut, and nothing that lies beside it is lost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Table, insert, select

from consumer.columns import Words
from consumer.events import Delivery
from consumer.ledger import Database
from consumer.ledger.base_tables import LedgerRow
from consumer.ledger.plans.tables import PlanRow
from consumer.ledger.reading import quarantine, read_requests
from consumer.ledger.tables import EventRow
from consumer.plugin import ReadRequest
from consumer.reason import Reason

AT = datetime(2026, 1, 1, tzinfo=UTC)
ODD = "a\0b\ud800" + "x" * 1000
STORED = "a\ufffdb\ufffd" + "x" * 1000


async def test_a_delivery_of_any_name_is_kept(database: Database) -> None:
    # case: I10
    odd = Delivery(application=ODD, id=ODD, raw=b"\0", received_at=AT, event_id=ODD)
    plain = Delivery(application="shop", id="dlv_1", raw=b"{}", received_at=AT)
    async with database.transaction() as session:
        await quarantine.put(session, [(odd, Reason.NOT_A_DELIVERY), (plain, Reason.NO_EVENT_ID)], AT)
        await quarantine.put(session, [(odd, Reason.NOT_A_DELIVERY)], AT)
    async with database.reading() as session:
        rows = await quarantine.newest(session, reason=Reason.NOT_A_DELIVERY)
        assert [(row.application, row.delivery_id, row.event_id) for row in rows] == [
            (STORED[:64], STORED[:100], STORED[:255])
        ], "once, by what its names became"
        assert len(await quarantine.newest(session)) == 2


async def test_a_read_of_any_name_can_be_asked_for_and_found(database: Database) -> None:
    # case: I10
    async with database.transaction() as session:
        await read_requests.ask(session, "shop", [ReadRequest(kind="order", object_id="A\0", not_before=AT)], AT)
        [row] = await read_requests.due_of(session, "shop", "order", ["A\0"], AT)
        assert row.object_id == "A\ufffd"


@pytest.mark.parametrize("name", ["object_id", "order_id", "subscription_id", "customer"])
async def test_what_an_event_is_about_is_stored(database: Database, name: str) -> None:
    # case: I10
    row: dict[str, Any] = {
        "application": "shop", "id": "evt_1", "type": "order.paid", "key": "order:A", "trust": "signed",
        "source": "webhook", "raw": b"{}", "received_at": AT, "recorded_at": AT, "delivery_id": "", name: ODD,
    }  # fmt: skip
    events: Table = EventRow.__table__
    async with database.transaction() as session:
        await session.execute(insert(events).values(row))
    async with database.reading() as session:
        assert (await session.execute(select(events.c[name]))).scalar_one() == STORED[:255]


def test_every_reason_is_words() -> None:
    """A reason may hold what an author's exception said, and that what the service said."""
    rows = LedgerRow.__subclasses__()
    assert PlanRow in rows
    kinds = {row.__tablename__: row.__table__.c.reason.type for row in rows if "reason" in row.__table__.c}
    codes = {"quarantine"}
    assert {name for name, kind in kinds.items() if not isinstance(kind, Words)} == codes
