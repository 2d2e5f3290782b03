"""Own state: what reaches us of a life, and what has to stand in the ledger in the end: the service's own state."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from consumer.events import Event
from handlers.access.tables import ENTITLEMENTS, SUBSCRIPTIONS
from handlers.fulfilment.tables import FINDINGS, ORDERS
from tests.promises.lives import CUSTOMERS, Life
from tests.support.handling.projections import OUTBOX, Projections


def arriving(data: Any, life: Life, application: str) -> list[Event]:
    """What reaches us: any part of the webhooks, any number of times, some reads of the way, some answers that there is
    no such thing yet, in any order."""
    webhooks = life.webhooks(application)
    kept = data.draw(st.lists(st.sampled_from(webhooks), max_size=2 * len(webhooks)), label="kept") if webhooks else []
    readings = life.readings(application)
    reads = data.draw(st.lists(st.sampled_from(readings), max_size=6), label="reads") if readings else []
    denials = life.denials(application)
    denied = data.draw(st.lists(st.sampled_from(denials), max_size=3), label="denied") if denials else []
    return list(data.draw(st.permutations(kept + reads + denied), label="order"))


async def effects(shop: Projections, application: str) -> list[tuple[str, str]]:
    """(type, key) of every effect that went out, in order."""
    wanted = ("fulfilment.requested", "access.granted", "access.revoked")
    rows = await shop.rows(OUTBOX, application=application)
    return [(row["type"], row["key"]) for row in rows if row["type"] in wanted]


async def check_access_was_kept(life: Life, sent: list[tuple[str, str]]) -> None:
    """One whose subscriptions followed each other without a gap was never told otherwise (cases A25, A27)."""
    for customer in life.with_access:
        mine = sorted(
            (one for one in life.subscriptions.values() if one.customer_reference == customer), key=lambda one: one.seq
        )
        gapless = all(old.ended_at is None or old.ended_at >= new.started_at for old, new in pairwise(mine))
        if gapless and mine[-1].ended_at is None:
            assert [type_ for type_, key in sent if key == f"customer:{customer}"] == ["access.granted"]


async def check(shop: Projections, life: Life, application: str) -> None:
    rows = {row["order_id"]: row for row in await shop.rows(ORDERS, application=application)}
    assert set(rows) == life.every_order, "no order was missed, and none invented"
    assert {id_ for id_, row in rows.items() if row["paid_at"] is not None} == life.paid_orders
    sent = await effects(shop, application)
    assert sorted(key for type_, key in sent if type_ == "fulfilment.requested") == sorted(
        f"order:{id_}" for id_ in life.paid_orders
    )
    await check_money(shop, life, application)
    subs = {row["subscription_id"]: row for row in await shop.rows(SUBSCRIPTIONS, application=application)}
    assert set(subs) == set(life.subscriptions)
    for id_, truth in life.subscriptions.items():
        row = subs[id_]
        assert (row["status"], row["end_reason"]) == (truth.status.value, truth.end_reason)
        assert (row["customer"], row["price_id"]) == (truth.customer_reference, truth.price_id)
        assert row["merchant_cancel_requested"] == truth.merchant_cancel_requested
    allowed = await shop.rows(ENTITLEMENTS, application=application, allowed=True)
    assert {row["customer"] for row in allowed} == life.with_access
    for customer in CUSTOMERS:
        told = [type_ for type_, key in sent if key == f"customer:{customer}"]
        assert told == [("access.granted", "access.revoked")[n % 2] for n in range(len(told))]
        assert len(told) % 2 == (customer in life.with_access)


async def check_money(shop: Projections, life: Life, application: str) -> None:
    """Double and orphan money is shown, all of it and nothing else (cases F28, F29)."""
    open_ = {
        (row["kind"], row["subject"])
        for row in await shop.rows(FINDINGS, application=application)
        if row["closed_at"] is None and row["kind"] in ("orphan_payment", "duplicate_payment")
    }
    orphans = {("orphan_payment", id_) for id_ in life.succeeded if id_ not in life.paid_orders}
    doubles = {("duplicate_payment", id_) for id_, number in life.succeeded.items() if number > 1}
    assert open_ == orphans | doubles
