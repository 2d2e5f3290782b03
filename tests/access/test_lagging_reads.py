"""Reads that lag behind events: the read is the state, and is made again until it shows what the event announced."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from consumer.events import Source, Trust
from tests.access.shop import Shop
from tests.support.handling.projections import READS, START

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
