"""Own state: what reaches us of a life, and what has to stand in the ledger in the end: the service's own state."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from consumer.events import Event
from handlers.access.tables import ENTITLEMENTS, SUBSCRIPTIONS
from handlers.fulfilment.tables import FINDINGS, ORDERS
from tests.promises.lives import CUSTOMERS, Life
from tests.support.handling.projections import OUTBOX, Projections

DOUBLED_SHARE, READS_MAX, DENIALS_MAX = 0.3, 6, 2


def arriving(random: Random, life: Life, application: str, *, heard: float) -> list[Event]:
    """What reaches us: so large a share of the webhooks, some of them twice, some reads of the way, some answers that
    there is no such thing yet, in any order."""
    kept = [one for one in life.webhooks(application) if random.random() < heard]
    doubled = [one for one in kept if random.random() < DOUBLED_SHARE]
    reads, denials = life.readings(application), life.denials(application)
    read = random.sample(reads, random.randint(0, min(READS_MAX, len(reads))))
    denied = random.sample(denials, random.randint(0, min(DENIALS_MAX, len(denials))))
    found = [*kept, *doubled, *read, *denied]
    random.shuffle(found)
    return found


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
