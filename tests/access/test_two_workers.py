"""Two workers on one customer, at the same moment: decisions take turns, and each change is announced once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from consumer.ledger import Database
from handlers.access.tables import ENTITLEMENTS, FINDINGS
from tests.access.history import CUSTOMER
from tests.support.handling.projections import OUTBOX, Projections, observed, said

MODULE = "handlers.access.handler"
ROUNDS = 8


def workers(database: Database, count: int = 2) -> list[Projections]:
    return [Projections(database, MODULE) for _ in range(count)]


def shown(sub: str, version: int, status: str, customer: str = CUSTOMER, **more: Any) -> Any:
    return observed(f"subscription:{sub}", version, {"status": status, "customer_reference": customer, **more})


async def announced(database: Database) -> list[tuple[str, str]]:
    """What went out, per customer, each once."""
    rows = await Projections(database).rows(OUTBOX)
    return sorted((row["key"], row["type"]) for row in rows if row["type"] in ("access.granted", "access.revoked"))


async def test_created_and_reads_that_race_grant_once(database: Database) -> None:
    # case: A2, G2
    four = workers(database, 4)
    for number in range(ROUNDS):
        customer, sub = f"c{number}", f"S{number}"
        created = said("subscription.created", f"evt_{number}", id=sub, customer_reference=customer)
        await asyncio.gather(
            four[0].feed(created),
            four[1].feed(created),
            four[2].feed(shown(sub, 10 * number + 1, "ACTIVE", customer)),
            four[3].feed(shown(sub, 10 * number + 2, "ACTIVE", customer)),
        )
    assert await announced(database) == [(f"customer:c{number}", "access.granted") for number in range(ROUNDS)]


async def test_a_resubscription_that_races_never_revokes(database: Database) -> None:
    # case: A25, A27
    two = workers(database)
    for number in range(ROUNDS):
        customer = f"c{number}"
        await two[0].feed(shown(f"old{number}", 10 * number + 1, "ACTIVE", customer))
        reason = "PAYER_CANCELED"
        await asyncio.gather(
            two[0].feed(said("subscription.ended", f"evt_{number}", id=f"old{number}", end_reason=reason)),
            two[1].feed(shown(f"new{number}", 10 * number + 2, "ACTIVE", customer)),
        )
    assert {type_ for _, type_ in await announced(database)} == {"access.granted"}
    assert len(await announced(database)) == ROUNDS


async def test_two_ends_that_race_revoke_once(database: Database) -> None:
    # case: A27, A13
    two = workers(database)
    for number in range(ROUNDS):
        customer = f"c{number}"
        for name in ("a", "b"):
            await two[0].feed(shown(f"{name}{number}", 10 * number + ord(name), "ACTIVE", customer))
        reason = "PAYMENT_FAILED"
        await asyncio.gather(
            two[0].feed(said("subscription.ended", f"evt_a{number}", id=f"a{number}", end_reason=reason)),
            two[1].feed(said("subscription.ended", f"evt_b{number}", id=f"b{number}", end_reason=reason)),
        )
    rows = await two[0].rows(ENTITLEMENTS)
    assert [(row["allowed"], row["version"]) for row in rows] == [(False, 2)] * ROUNDS
    assert len(await announced(database)) == 2 * ROUNDS


async def test_group_commits_over_the_same_customers_end_well(database: Database) -> None:
    # case: G2
    two = workers(database)
    first = [shown(f"a{number}", number + 1, "ACTIVE", f"c{number}") for number in range(ROUNDS)]
    second = [shown(f"b{number}", number + 101, "ACTIVE", f"c{number}") for number in range(ROUNDS)]
    await asyncio.gather(two[0].feed_together(first), two[1].feed_together(second))
    assert await announced(database) == [(f"customer:c{number}", "access.granted") for number in range(ROUNDS)]


async def test_the_brake_counts_across_workers(database: Database) -> None:
    # case: B31
    four = workers(database, 4)
    for number in range(12):
        await four[0].feed(shown(f"S{number}", number + 1, "ACTIVE", f"c{number}"))
    ends = [
        shown(f"S{number}", number + 101, "ENDED", f"c{number}", end_reason="PAYMENT_FAILED") for number in range(12)
    ]
    await asyncio.gather(*(worker.feed(*ends[at::4]) for at, worker in enumerate(four)))
    for worker in four:
        worker.now += timedelta(minutes=1)
    while due := await four[0].due():
        await asyncio.gather(*(worker.feed(*due[at::4]) for at, worker in enumerate(four)))
    revoked = [key for key, type_ in await announced(database) if type_ == "access.revoked"]
    assert len(revoked) == 5
    assert {row["kind"] for row in await four[0].rows(FINDINGS)} == {"brake"}
