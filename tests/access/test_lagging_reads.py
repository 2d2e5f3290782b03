"""Reads that lag behind events: the read is the state, and is made again until it shows what the event announced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Table

from consumer.events import Event, Source, Trust
from consumer.ledger.tables import OutboxRow
from handlers.access.decisions import CUSTOMER_DUE
from tests.access.shop import Shop
from tests.support.handling.projections import READS, START

OUTBOX: Table = OutboxRow.__table__
SCHEDULED: dict[str, Any] = {"cancel_at_period_end": True, "cancel_reason": "PAYER_CANCELED"}
GOES_ON: dict[str, Any] = {"cancel_at_period_end": False, "cancel_reason": None}
PERIOD: dict[str, Any] = {"current_period_end": START.isoformat()}
NEXT_PERIOD: dict[str, Any] = {"current_period_end": (START + timedelta(days=30)).isoformat()}


async def due(shop: Shop) -> datetime | None:
    """When the subscription is read next, if anybody asked."""
    rows = await shop.rows(READS)
    return rows[0]["due_at"] if rows else None


async def answered(shop: Shop, status: str, **fields: Any) -> datetime | None:
    """The read that was asked for is made now and shows this; when is the next one?"""
    await shop.forget_reads()
    await shop.reads(status, **fields)
    return await due(shop)


@pytest.mark.parametrize(
    ("event", "old", "new"),
    [
        ("past_due", ("ACTIVE", GOES_ON), ("PAST_DUE", GOES_ON)),
        ("payment_failed", ("ACTIVE", GOES_ON), ("PAST_DUE", GOES_ON)),
        ("renewed", ("PAST_DUE", GOES_ON), ("ACTIVE", GOES_ON)),
        ("renewed", ("ACTIVE", PERIOD), ("ACTIVE", NEXT_PERIOD)),
        ("cancel_scheduled", ("ACTIVE", GOES_ON), ("ACTIVE", SCHEDULED)),
        ("cancel_withdrawn", ("ACTIVE", SCHEDULED), ("ACTIVE", GOES_ON)),
    ],
)
async def test_a_read_that_contradicts_the_event_is_made_again_until_it_agrees(
    shop: Shop, event: str, old: tuple[str, dict[str, Any]], new: tuple[str, dict[str, Any]]
) -> None:
    # case: A5, A7, A10, A15, A17, A34
    await shop.reads(old[0], **old[1])
    shop.now += timedelta(minutes=1)
    await shop.happens(event)
    waits = []
    for _ in range(4):
        again = await answered(shop, old[0], **old[1])
        assert again is not None
        waits.append((again - shop.now).total_seconds())
        assert (await shop.subscription())["status"] == old[0], "the read is the state"
        shop.now = again
    assert waits == [10, 10, 20, 40]
    assert await answered(shop, new[0], **new[1]) is None
    assert (await shop.subscription())["status"] == new[0]
    assert (await shop.subscription())["awaits"] is None


async def test_after_an_hour_the_read_is_believed(shop: Shop) -> None:
    # case: A7, B23
    await shop.reads("ACTIVE")
    await shop.happens("past_due")
    count = 0
    while (again := await answered(shop, "ACTIVE")) is not None:
        shop.now, count = again, count + 1
        assert count < 15
    assert shop.now - START < timedelta(hours=2, minutes=1)
    assert await shop.allowed()


async def test_the_end_ends_the_waiting(shop: Shop) -> None:
    # case: A13
    await shop.reads("ACTIVE")
    await shop.happens("payment_failed")
    assert await answered(shop, "ENDED", end_reason="PAYMENT_FAILED") is None


async def test_a_newer_event_replaces_what_an_older_one_announced_in_either_order(shop: Shop) -> None:
    # case: A10, G1
    await shop.reads("ACTIVE")
    failed, charged = START + timedelta(minutes=1), START + timedelta(minutes=2)
    shop.now = START + timedelta(minutes=3)
    for sub, told in (("S1", ["past_due", "renewed"]), ("S2", ["renewed", "past_due"])):
        await shop.reads("ACTIVE", sub)
        for what in told:
            at = failed if what == "past_due" else charged
            await shop.feed(replace(shop.event(what, sub, at=at), received_at=shop.now))
        assert await answered(shop, "ACTIVE", sub=sub) is None, "it failed, and was paid then"


@pytest.mark.parametrize(
    ("age", "source"), [(timedelta(hours=2), Source.WEBHOOK), (timedelta(days=90), Source.BACKFILL)]
)
async def test_old_news_lets_nothing_be_expected(shop: Shop, age: timedelta, source: Source) -> None:
    # case: B30, B34
    await shop.reads("ACTIVE")
    old = shop.event("past_due", at=START - age)
    await shop.feed(replace(old, received_at=START, source=source, trust=Trust.READ))
    assert await answered(shop, "ACTIVE") is None


async def test_a_listed_event_without_a_time_lets_nothing_be_expected(shop: Shop) -> None:
    # case: U9
    await shop.reads("ACTIVE")
    event = replace(shop.event("past_due"), occurred_at=None, source=Source.BACKFILL, trust=Trust.READ)
    await shop.feed(event)
    assert await answered(shop, "ACTIVE") is None


async def test_a_record_without_the_field_denies_nothing(shop: Shop) -> None:
    # case: B22
    await shop.reads("ACTIVE")
    await shop.happens("cancel_scheduled")
    assert await answered(shop, "ACTIVE") is None


END: dict[str, Any] = {"current_period_end": (START + timedelta(days=30)).isoformat()}
THIN: dict[str, Any] = {"customer_reference": None}


async def subscribed_anew(shop: Shop, *, first: str, **fields: Any) -> list[Event]:
    """S1 was live for ten days; S2 takes over, and S1's end and S2's start are told in this order."""
    await shop.reads("ACTIVE", "S1", **END)
    await shop.pass_time(days=10)
    told = [shop.event("created", "S2", **fields), shop.event("ended", "S1", **fields)]
    return [replace(one, trust=Trust.READ) for one in (told if first == "created" else told[::-1])]


@pytest.mark.parametrize("reason", ["MERCHANT_CANCELED", "PAYMENT_FAILED", "PAYER_CANCELED"])
@pytest.mark.parametrize("first", ["created", "ended"])
async def test_whom_no_event_names_keeps_access_until_the_successor_is_read(
    shop: Shop, first: str, reason: str
) -> None:
    # case: A25, U29
    await shop.feed(*await subscribed_anew(shop, first=first, **THIN))
    await shop.reads("ENDED", "S1", end_reason=reason, ended_at=shop.now.isoformat(), **END)
    await shop.pass_time(minutes=3)
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(hours=1)
    assert shop.effects == ["granted default"]


@pytest.mark.parametrize("trust", [Trust.SIGNED, Trust.READ])
@pytest.mark.parametrize("first", ["created", "ended"])
async def test_whom_no_event_names_keeps_access_while_nothing_is_read(shop: Shop, first: str, trust: Trust) -> None:
    # case: A25, G7
    await shop.feed(*(replace(one, trust=trust) for one in await subscribed_anew(shop, first=first, **THIN)))
    await shop.pass_time(minutes=3)
    assert await shop.reasons() == ["settling:successor", "settling:S1"]
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(hours=1)
    assert shop.effects == ["granted default"]


@pytest.mark.parametrize("reason", ["MERCHANT_CANCELED", None])
async def test_a_stranger_prolongs_nothing_once_he_is_read(shop: Shop, reason: str | None) -> None:
    # case: A21, A45
    await shop.feed(*await subscribed_anew(shop, first="created", **THIN))
    await shop.reads("ENDED", "S1", end_reason=reason, **END)
    await shop.pass_time(seconds=20)
    await shop.reads("ACTIVE", "S2", customer_reference="cus_2")
    await shop.happens("created", "S3", **THIN)
    await shop.pass_time(seconds=6)
    assert not await shop.allowed(), "who comes later prolongs nothing either"
    assert await shop.allowed(customer="cus_2")


async def test_what_goes_on_for_one_whom_nobody_reads_ends(shop: Shop) -> None:
    # case: A21, A45
    await shop.feed(*await subscribed_anew(shop, first="created", **THIN))
    await shop.pass_time(minutes=9)
    assert await shop.allowed()
    await shop.pass_time(minutes=2)
    assert shop.effects == ["granted default", "revoked default"]


@pytest.mark.parametrize("settle", ["0s", "5s"])
async def test_what_goes_on_for_one_whom_nobody_reads_is_looked_at_ever_later(
    shop_with: Callable[..., Shop], settle: str
) -> None:
    # case: A21, A45
    shop = shop_with(settle=settle)
    await shop.feed(*await subscribed_anew(shop, first="created", **THIN))
    await shop.pass_time(minutes=11)
    assert shop.effects == ["granted default", "revoked default"]
    looks = [row for row in await shop.rows(OUTBOX) if row["type"] == CUSTOMER_DUE]
    assert len(looks) <= 30


async def test_what_the_service_does_not_have_prolongs_nothing(shop: Shop) -> None:
    # case: A47
    await shop.feed(*await subscribed_anew(shop, first="created", **THIN))
    await shop.denies("S2")
    await shop.pass_time(seconds=6)
    assert shop.effects == ["granted default", "revoked default"]


async def test_an_end_whose_reason_the_event_says_waits_for_no_stranger(shop: Shop) -> None:
    # case: A21
    await shop.reads("ACTIVE", "S1", **END)
    await shop.happens("created", "S2", **THIN)
    await shop.happens("ended", "S1", end_reason="MERCHANT_CANCELED")
    assert shop.effects == ["granted default", "revoked default"]


async def test_a_stranger_who_pays_for_something_else_prolongs_nothing(shop_with: Callable[..., Shop]) -> None:
    # case: A27
    shop = shop_with(entitlements={"svc_price_monthly": ["films"], "svc_price_books": ["books"]})
    await shop.feed(*await subscribed_anew(shop, first="ended", price_id="svc_price_books", **THIN))
    await shop.pass_time(seconds=6)
    assert shop.effects == ["granted films", "revoked films"]


@pytest.mark.parametrize("waits_s", [1, 120])
@pytest.mark.parametrize("late", [timedelta(minutes=20), timedelta(hours=2)])
@pytest.mark.parametrize("fields", [{"end_reason": "PAYER_CANCELED"}, THIN], ids=["full", "thin"])
@pytest.mark.parametrize("first", ["created", "ended"])
async def test_who_subscribed_anew_while_nobody_worked_keeps_access(
    shop: Shop, first: str, fields: dict[str, Any], late: timedelta, waits_s: int
) -> None:
    # case: A25, G5
    told = await subscribed_anew(shop, first=first, **fields)
    shop.now += late
    await shop.feed(*told)
    await shop.pass_time(seconds=waits_s)  # the time for a successor began as they were handled
    await shop.reads("ACTIVE", "S2")
    await shop.pass_time(hours=1)
    assert shop.effects == ["granted default"]


async def test_an_end_that_nobody_handled_for_long_is_decided_within_seconds(shop: Shop) -> None:
    # case: A15, A45
    _, ended = await subscribed_anew(shop, first="created", end_reason="PAYER_CANCELED")
    shop.now += timedelta(hours=2)
    await shop.feed(ended)
    await shop.pass_time(seconds=5)
    assert shop.effects == ["granted default", "revoked default"]


async def test_reads_that_lay_in_the_log_drop_nothing(shop: Shop) -> None:
    # case: A25, A26
    await shop.reads("ACTIVE", "S1", **END)
    walked = [shop.reading("ENDED", "S1", end_reason="MERCHANT_CANCELED"), shop.reading("ACTIVE", "S2")]
    shop.now += timedelta(minutes=1)
    for one in walked:  # from two partitions: what is due is looked at in between
        await shop.feed(one)
        await shop.relay()
    await shop.pass_time(minutes=1)
    assert shop.effects == ["granted default"]
