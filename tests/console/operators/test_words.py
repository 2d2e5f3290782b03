"""An operator's words go through the outbox, are audited, and do what they say, or are refused before they are said."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Table, update

from consumer.console.alarms.queues import findings
from consumer.console.operators.subjects import fulfilled_by
from consumer.console.operators.vocabulary import RULES, WORDS, checked
from consumer.console.operators.words import say
from consumer.errors import NotFound, UsageError
from consumer.ledger import Database
from consumer.ledger.handling import dead, runs
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import AuditRow, RunRow, RunStatus
from handlers.access import tables as access
from handlers.access.tables import ENTITLEMENTS, SOURCES, SUBSCRIPTIONS
from handlers.fulfilment import tables as fulfilment
from handlers.fulfilment.tables import CHECKOUTS, ORDERS
from tests.support.handling.projections import OUTBOX, START, Projections, observed, own, said, unreadable

AUDIT: Table = AuditRow.__table__
RUNS: Table = RunRow.__table__


async def speak(database: Database, word: str, subject: str, application: str = "default", **data: Any) -> str:
    about: dict[str, Any] = {"application": application, "by": "op", "reason": "support", "now": START}
    async with database.transaction() as session:
        return await say(session, word, subject, **about, data=data)


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
    ("word", "subject", "data", "told"),
    [
        ("order.paid", "A1", {}, "there is no such word; the words are checkout.registered, fulfilment.marked_paid"),
        ("fulfilment.marked_paid", "", {}, "the subject is empty"),
        ("fulfilment.marked_paid", "A\udc801", {}, "the subject has a character that cannot be kept"),
        ("fulfilment.marked_paid", "A" * 256, {}, "the subject has more than 255 characters"),
        ("fulfilment.marked_paid", "A1", {"amount": "5"}, "knows no 'amount'; it takes no names at all"),
        ("access.customer_attached", "S1", {}, "access.customer_attached needs customer"),
        ("access.customer_attached", "S1", {"customer": "c", "source": "me"}, "source is none of operator, resolver"),
        ("access.hold_lifted", "c", {"id": ""}, "id is empty"),
        ("access.complimentary_granted", "c", {"entitlment": "pro"}, "no 'entitlment'; it takes entitlement, until"),
        ("access.complimentary_granted", "c", {"entitlement": ""}, "entitlement is empty"),
        ("access.complimentary_granted", "c", {"entitlement": "pro "}, "entitlement has a blank at its end"),
        ("access.complimentary_granted", "c", {"until": "tomorrow"}, "until is no time that is still to come"),
        ("access.complimentary_granted", "c", {"until": "2027"}, "until is no time that is still to come"),
        ("access.held", "c", {"until": "2025-12-31", "entitlement": "pro"}, "until is no time that is still to come"),
        ("access.held", "c", {"by": "somebody else"}, "knows no 'by'"),
        ("access.held", "c", {"a\nb": "1"}, r"knows no 'a\nb'"),
        ("access.recheck", "access", {"after": "c9"}, "knows no 'after'"),
        ("checkout.registered", "A1", {"session_id": "s1", "order_id": "A2"}, "order_id is not the order"),
        ("checkout.registered", "A1", {"session_id": "s", "order_id": "A1", "expected_amount": "1e3"}, "no decimal"),
        ("checkout.registered", "A1", {"session_id": "s", "order_id": "A1", "mode": "gift"}, "mode is none of payment"),
        ("fulfilment.released", "A1", {"hold": "paid_unmatched"}, "hold is none of asked, unmatched, "),
    ],
)
def test_what_is_no_word_is_refused(word: str, subject: str, data: dict[str, Any], told: str) -> None:
    # case: A42, F21
    with pytest.raises(UsageError) as refused:
        checked(word, subject, data, by="op", reason="support", now=START)
    assert told in refused.value.message
    assert len(refused.value.line().splitlines()) == 1


async def test_what_is_refused_leaves_nothing(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A42
    with pytest.raises(UsageError):
        await speak(sqlite_ledger, "access.complimentary_granted", "c", entitlment="pro")
    assert await projections.rows(OUTBOX) == []
    assert await projections.rows(AUDIT) == []


def test_every_name_has_a_rule() -> None:
    assert {name for word in WORDS.values() for name in word.needs + word.may} == set(RULES)


async def world(projections: Projections) -> None:
    """A paid order, one that is held, a payment and a subscription of nobody, a customer on hold with a gift."""
    await projections.feed(
        said("order.paid", "evt_1", order_id="paid"),
        own("checkout.registered", "order:held", {"session_id": "s1", "order_id": "held", "expected_amount": "10"}),
        said("order.paid", "evt_2", order_id="held", amount="9"),
        said("checkout.session.completed", "evt_3", id="s2", order_id="unpaid"),
        observed("order:unpaid", 1, {"status": "PENDING"}),
        observed("subscription:S1", 2, {"status": "ACTIVE"}),
        observed("subscription:S2", 3, {"status": "ACTIVE", "customer_reference": "c"}),
        unreadable("subscription:S2", 4),
        observed("payment:p1", 5, {"id": "p1", "status": "SUCCEEDED", "amount": "5"}),
        own("access.held", "customer:c", {"by": "op"}, id_="drv_hold"),
        own("access.complimentary_granted", "customer:c", {"by": "op"}, id_="drv_gift"),
    )


async def standing(projections: Projections) -> Any:
    """All that the built-in handlers know, and what they emitted."""
    tables = [ORDERS, CHECKOUTS, fulfilment.FINDINGS, access.FINDINGS, SOURCES, SUBSCRIPTIONS, ENTITLEMENTS]
    return [await projections.rows(table) for table in tables], [one.id for one in projections.emitted]


SAID: list[tuple[str, str, dict[str, Any]]] = [
    ("checkout.registered", "new", {"session_id": "s9", "order_id": "new", "expected_amount": "10.50"}),
    ("fulfilment.marked_paid", "new", {}),
    ("fulfilment.released", "held", {}),
    ("fulfilment.unfulfillable", "held", {}),
    ("fulfilment.released", "held", {"hold": "amount_mismatch"}),
    ("fulfilment.finding_closed", "p1", {"kind": "orphan_payment"}),
    ("access.finding_closed", "S2", {"kind": "unreadable_subscription"}),
    ("access.customer_attached", "S1", {"customer": "c", "source": "resolver"}),
    ("access.held", "nobody yet", {"entitlement": "pro", "until": "2026-02-01"}),
    ("access.complimentary_granted", "nobody yet", {"until": None}),
    ("access.hold_lifted", "c", {"id": "drv_hold"}),
    ("access.complimentary_ended", "c", {"id": "drv_gift"}),
    ("access.recheck", "access", {}),
]


@pytest.mark.parametrize(("word", "subject", "data"), SAID)
async def test_what_may_be_said_is_done(
    sqlite_ledger: Database, projections: Projections, word: str, subject: str, data: dict[str, Any]
) -> None:
    # case: F37, A36, A42
    await world(projections)
    before = await standing(projections)
    event_id = await speak(sqlite_ledger, word, subject, **data)
    told = await projections.relay()
    assert event_id in [event.id for event in told]
    assert await standing(projections) != before


NOBODY: list[tuple[str, str, dict[str, Any], str]] = [
    ("fulfilment.released", "nobody", {}, "the order is unknown"),
    ("fulfilment.unfulfillable", "nobody", {}, "the order is unknown"),
    ("fulfilment.finding_closed", "held", {"kind": "amount_mismatsch"}, "(open=amount_mismatch)"),
    ("fulfilment.finding_closed", "held2", {"kind": "amount_mismatch"}, "(open=none)"),
    ("access.finding_closed", "held", {"kind": "amount_mismatch"}, "(open=none)"),
    ("access.customer_attached", "S9", {"customer": "c"}, "the subscription is unknown"),
    ("access.hold_lifted", "c", {"id": "drv_gift"}, "the customer has no such hold (open=drv_hold)"),
    ("access.hold_lifted", "d", {"id": "drv_hold"}, "the customer has no such hold (open=none)"),
    ("access.complimentary_ended", "c", {"id": "drv_9"}, "no such complimentary (open=drv_gift)"),
    ("access.brake_released", "access", {}, "no revocation is stopped"),
]


async def test_a_word_about_what_is_not_there_is_refused(sqlite_ledger: Database, projections: Projections) -> None:
    # case: F37, A36, A42, B31
    await world(projections)
    for word, subject, data, told in NOBODY:
        with pytest.raises(NotFound) as refused:
            await speak(sqlite_ledger, word, subject, **data)
        assert told in refused.value.line()
    assert [row["action"] for row in await projections.rows(AUDIT) if row["actor"] == "op"] == []


async def test_what_is_there_in_one_application_is_not_in_another(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: G8
    await world(projections)
    for word, subject, data in SAID:
        if word in {one[0] for one in NOBODY}:
            with pytest.raises(NotFound):
                await speak(sqlite_ledger, word, subject, application="other", **data)


async def test_a_word_that_could_change_nothing_is_refused(sqlite_ledger: Database, projections: Projections) -> None:
    # case: F33, F37
    await world(projections)
    for word, order_id, told in [
        ("fulfilment.released", "unpaid", "not paid; fulfilment.marked_paid"),
        ("fulfilment.unfulfillable", "unpaid", "not paid"),
        ("fulfilment.released", "paid", "nothing holds the order"),
    ]:
        with pytest.raises(UsageError, match=told):
            await speak(sqlite_ledger, word, order_id)


async def test_what_was_paid_is_not_marked_as_paid(sqlite_ledger: Database, projections: Projections) -> None:
    # case: F21, F33, F37
    await world(projections)
    for order_id, told, cure in [
        ("paid", "its fulfilment was requested", "at="),
        ("held", "and held", "next=consumer say fulfilment.released held --set hold=amount_mismatch --application"),
    ]:
        with pytest.raises(UsageError, match=told) as refused:
            await speak(sqlite_ledger, "fulfilment.marked_paid", order_id)
        assert cure in refused.value.line()
        assert len(refused.value.line().splitlines()) == 1
    await speak(sqlite_ledger, "fulfilment.unfulfillable", "held")
    await projections.relay()
    with pytest.raises(UsageError, match="unfulfillable") as refused:
        await speak(sqlite_ledger, "fulfilment.marked_paid", "held")
    assert "next=consumer say fulfilment.released held --application default --reason …" in refused.value.line()
    await speak(sqlite_ledger, "fulfilment.marked_paid", "unpaid")
    await projections.relay()
    assert (await projections.row(ORDERS, order_id="unpaid"))["requested_at"] is not None


async def test_a_word_about_what_does_not_hold_the_order_is_refused(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: F21
    await world(projections)
    for word in ("fulfilment.released", "fulfilment.unfulfillable"):
        with pytest.raises(UsageError) as refused:
            await speak(sqlite_ledger, word, "held", hold="unmatched")
        assert "(seen=unmatched, hold=amount_mismatch)" in refused.value.line()


async def test_twice_unfulfillable_is_refused(sqlite_ledger: Database, projections: Projections) -> None:
    # case: F33
    await world(projections)
    await speak(sqlite_ledger, "fulfilment.unfulfillable", "held")
    await projections.relay()
    with pytest.raises(UsageError, match="already"):
        await speak(sqlite_ledger, "fulfilment.unfulfillable", "held")


async def test_what_may_still_be_delivered_is_not_unfulfillable(
    sqlite_ledger: Database, projections: Projections
) -> None:
    """Its money would be given back, and the next attempt, or who replays what is dead, would ship it all the same."""
    # case: F33
    await world(projections)
    with pytest.raises(UsageError, match="on its way to the handlers"):
        await speak(sqlite_ledger, "fulfilment.unfulfillable", "paid")
    [asked] = [one for one in await projections.relay() if one.type == "fulfilment.requested"]
    run = Run(application="default", event_id=asked.id, handler="shop:ship", seq=1, key=asked.key,
              status=RunStatus.RETRYING, blocking=True)  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        await runs.add(session, [run], START)
    for status in (RunStatus.RETRYING, RunStatus.PARKED, RunStatus.DEAD):
        await stands(sqlite_ledger, status)
        with pytest.raises(UsageError) as refused:
            await speak(sqlite_ledger, "fulfilment.unfulfillable", "paid")
        assert f"consumer dead discard --event {asked.id} --handler shop:ship" in refused.value.line()
    await stands(sqlite_ledger, RunStatus.SUCCEEDED)
    with pytest.raises(UsageError, match="was fulfilled"):
        await speak(sqlite_ledger, "fulfilment.unfulfillable", "paid")
    await stands(sqlite_ledger, RunStatus.SKIPPED)
    await speak(sqlite_ledger, "fulfilment.unfulfillable", "paid")
    await projections.relay()
    assert [row["unfulfillable_at"] for row in await projections.rows(ORDERS) if row["order_id"] == "paid"] == [START]


async def test_what_one_handler_did_and_another_was_to_do_no_more_can_be_unfulfillable(
    sqlite_ledger: Database, projections: Projections
) -> None:
    """The mail went out; the parcel was given up, and its money given back: nothing but this word says so."""
    # case: F33
    await world(projections)
    [asked] = [one for one in await projections.relay() if one.type == "fulfilment.requested"]
    made = [
        Run(application="default", event_id=asked.id, handler=name, seq=1, key=asked.key, status=RunStatus.SUCCEEDED,
            blocking=False) for name in ("shop:mail", "shop:ship")
    ]  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        await runs.add(session, made, START)
    with pytest.raises(UsageError, match="was fulfilled"):
        await speak(sqlite_ledger, "fulfilment.unfulfillable", "paid")
    await stands(sqlite_ledger, RunStatus.DEAD, "shop:ship")
    with pytest.raises(UsageError, match="it may still be delivered: give that up first"):
        await speak(sqlite_ledger, "fulfilment.unfulfillable", "paid")
    async with sqlite_ledger.transaction() as session:
        found = await dead.search(session, dead.DeadFilter(handler="shop:ship"))
        assert await dead.discard(session, found, by="op", reason="refunded", now=START) == 1
        assert await fulfilled_by(session, "default", "paid") == ["shop:mail"]  # who consents is told of it
        assert await fulfilled_by(session, "default", "held") == []
    await speak(sqlite_ledger, "fulfilment.unfulfillable", "paid")


async def stands(database: Database, status: RunStatus, handler: str = "shop:ship") -> None:
    """The handler's one run is in this state."""
    async with database.transaction() as session:
        await session.execute(update(RUNS).where(RUNS.c.handler == handler).values(status=status.value))


async def test_a_gift_on_its_way_can_be_ended_and_one_that_is_over_cannot(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A42
    until = (START + timedelta(days=9)).isoformat()
    gift = await speak(sqlite_ledger, "access.complimentary_granted", "c", entitlement="pro", until=until)
    with pytest.raises(NotFound):
        await speak(sqlite_ledger, "access.complimentary_ended", "d", id=gift)
    await speak(sqlite_ledger, "access.complimentary_ended", "c", id=gift)
    await projections.relay()
    source = await projections.row(SOURCES)
    assert (source["entitlement"], source["until"], source["ended_at"]) == ("pro", START + timedelta(days=9), START)
    with pytest.raises(NotFound):
        await speak(sqlite_ledger, "access.complimentary_ended", "c", id=gift)


async def test_a_stopped_revocation_can_be_released(sqlite_ledger: Database, projections: Projections) -> None:
    # case: B31
    projections.options = {"handlers.access.handler": {"brake": {"minimum": 0, "share": 0}, "past_due": "revoke"},
                           "handlers.fulfilment.handler": {}}  # fmt: skip
    record = {"customer_reference": "c"}
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE", **record}))
    await projections.feed(observed("subscription:S1", 2, {"status": "PAST_DUE", **record}))
    assert (await projections.row(ENTITLEMENTS))["braked"]
    with pytest.raises(UsageError, match="revocations are stopped") as refused:  # who has ended would keep access
        await speak(sqlite_ledger, "access.finding_closed", "default", kind="brake")
    assert "consumer say access.brake_released default --application default --reason" in refused.value.line()
    await speak(sqlite_ledger, "access.brake_released", "access")
    await projections.relay()
    assert not (await projections.row(ENTITLEMENTS))["allowed"]


def test_no_word_takes_a_cancel_or_a_payment_back() -> None:
    # case: A52, F31
    assert [word for word in WORDS if "cancel" in word or "unpaid" in word or "reopen" in word] == []


async def test_a_hold_is_not_closed_away(sqlite_ledger: Database, projections: Projections) -> None:
    # case: F37, F20
    await world(projections)
    with pytest.raises(UsageError, match="the order is held") as refused:
        await speak(sqlite_ledger, "fulfilment.finding_closed", "held", kind="amount_mismatch")
    assert "consumer say fulfilment.released held --application default --reason" in refused.value.line()
    await projections.feed(
        own("checkout.registered", "order:paid", {"session_id": "s3", "order_id": "paid", "expected_amount": "7"}),
        observed("order:paid", 6, {"status": "PAID", "amount": "8"}),
    )
    await speak(sqlite_ledger, "fulfilment.finding_closed", "paid", kind="amount_mismatch")


async def test_what_grew_since_it_was_seen_is_not_closed(sqlite_ledger: Database, projections: Projections) -> None:
    # case: F29
    pays = [observed(f"payment:p{n}", n, {"id": f"p{n}", "status": "SUCCEEDED", "order_id": "A1"}) for n in (1, 2, 3)]
    await projections.feed(*pays[:2])

    async def shown() -> str:
        async with sqlite_ledger.reading() as session:
            (one,) = await findings(session, "default", "orphan_payment")
            return str(one["seen"])

    seen = await shown()
    await projections.feed(pays[2])
    word = {"kind": "orphan_payment"}
    with pytest.raises(UsageError, match="not as it was seen any more") as refused:
        await speak(sqlite_ledger, "fulfilment.finding_closed", "A1", **word, seen=seen)
    assert "consumer findings show A1 --application default" in refused.value.line()
    await speak(sqlite_ledger, "fulfilment.finding_closed", "A1", **word, seen=await shown())


async def test_a_price_that_gives_nothing_is_not_closed_away(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A32
    unmapped = {"handlers.access.handler": {"entitlements": {"other": ["pro"]}}, "handlers.fulfilment.handler": {}}
    projections.options = unmapped
    record = {"status": "ACTIVE", "customer_reference": "c", "price_id": "gold"}
    await projections.feed(observed("subscription:S1", 1, record))
    with pytest.raises(UsageError, match="its price gives nothing") as refused:  # who pays would have no access
        await speak(sqlite_ledger, "access.finding_closed", "S1", kind="unmapped_price")
    assert (
        "to [] where it gives nothing; then: consumer say access.recheck default --application default --reason …"
        in refused.value.line()
    )
    unmapped["handlers.access.handler"]["entitlements"]["gold"] = []
    await speak(sqlite_ledger, "access.recheck", "default")
    await projections.relay()
    assert (await projections.row(access.FINDINGS))["closed_by"] == "system"


async def test_an_unmapped_price_of_one_that_ended_may_be_closed(
    sqlite_ledger: Database, projections: Projections
) -> None:
    # case: A32
    projections.options = {"handlers.access.handler": {"entitlements": {}}, "handlers.fulfilment.handler": {}}
    record = {"customer_reference": "c", "price_id": "gold"}
    await projections.feed(observed("subscription:S1", 1, {"status": "ACTIVE", **record}))
    await projections.feed(
        observed("subscription:S1", 2, {"status": "ENDED", "end_reason": "PAYER_CANCELED", **record})
    )
    await speak(sqlite_ledger, "access.finding_closed", "S1", kind="unmapped_price")


async def test_a_subscription_of_nobody_is_not_closed_away(sqlite_ledger: Database, projections: Projections) -> None:
    # case: A36
    await world(projections)
    with pytest.raises(UsageError, match="nobody has its access") as refused:
        await speak(sqlite_ledger, "access.finding_closed", "S1", kind="unresolved_subscriber")
    assert (
        "consumer say access.customer_attached S1 --set customer=… --application default --reason …"
        in refused.value.line()
    )
    await projections.feed(observed("subscription:S1", 6, {"status": "ENDED", "end_reason": "PAYER_CANCELED"}))
    await speak(sqlite_ledger, "access.finding_closed", "S1", kind="unresolved_subscriber")
    await projections.relay()
    [found] = [row for row in await projections.rows(access.FINDINGS) if row["subject"] == "S1"]
    assert found["closed_by"] == "op", "nothing more is to be had of it"
