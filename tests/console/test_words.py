"""An operator's words go through the outbox, are audited, and do what they say."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Table

from consumer.console.words import WORDS, say
from consumer.errors import UsageError
from consumer.ledger import Database
from consumer.ledger.tables import AuditRow
from tests.support.projections import OUTBOX, START, Projections, observed, said

AUDIT: Table = AuditRow.__table__


async def speak(database: Database, word: str, subject: str, **data: Any) -> str:
    async with database.transaction() as session:
        return await say(session, word, subject, application="default", by="op", reason="support", now=START, data=data)


async def test_marked_paid_by_hand_is_one_effect_in_total(sqlite_ledger: Database, projections: Projections) -> None:
    # case: F37, G12
    await speak(sqlite_ledger, "fulfilment.marked_paid", "A/1")
    await projections.relay()
    await projections.feed(said("order.paid", "evt_1", order_id="A/1"))
    assert len(projections.of_type("fulfilment.requested")) == 1
    [audited] = [row for row in await projections.rows(AUDIT) if row["actor"] == "op"]
    assert (audited["action"], audited["subject"]) == ("fulfilment.marked_paid", "order:A/1")
    assert audited["reason"] == "support"


async def test_a_hold_is_ended_by_its_id(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A42
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE", "customer_reference": "c"}))
    hold = await speak(sqlite_ledger, "access.held", "c")
    await projections.relay()
    await speak(sqlite_ledger, "access.hold_lifted", "c", id=hold)
    await projections.relay()
    told = [one.type for one in projections.of_type("access.granted", "access.revoked")]
    assert told == ["access.granted", "access.revoked", "access.granted"]


@pytest.mark.parametrize("word", sorted(WORDS))
async def test_every_word_is_heard_by_a_handler(projections: Projections, word: str) -> None:
    assert any(handler.wants(word) for handler in projections.handlers)


@pytest.mark.parametrize(
    ("word", "subject", "data"),
    [
        ("order.paid", "A1", {}),
        ("fulfilment.marked_paid", "", {}),
        ("access.customer_attached", "S1", {}),
        ("access.hold_lifted", "c", {"id": ""}),
    ],
)
async def test_what_is_no_word_is_refused(
    sqlite_ledger: Database, projections: Projections, word: str, subject: str, data: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        await speak(sqlite_ledger, word, subject, **data)
    assert await projections.rows(OUTBOX) == []


def test_no_word_takes_a_cancel_or_a_payment_back() -> None:
    # case: A52, F31
    assert [word for word in WORDS if "cancel" in word or "unpaid" in word or "reopen" in word] == []
