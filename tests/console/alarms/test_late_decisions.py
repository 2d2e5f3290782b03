"""What was decided and a handler puts off, or was not given, is told; what is done, dead or new is not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from consumer.console.alarms.late_decisions import DECIDES, LATE, LOOKED_BACK, MISSED, late_decisions
from consumer.ledger import Database
from consumer.ledger.handling import events, handlers
from consumer.ledger.handling import runs as runs_
from consumer.ledger.handling.runs import Run
from consumer.ledger.tables import RunStatus
from consumer.plugin import Event, declared
from handlers.access.handler import subscription
from tests.console.alarms.test_an_order_is_fulfilled_by_those_who_fulfil import made
from tests.support.handling.projections import START, own, said

OPEN = made("access.granted", "access.revoked", name="door:open")
SHIP = made("fulfilment.requested", name="shop:ship")
LICENSE = made("fulfilment.*", name="shop:license")
EVERYTHING = made("*", name="shop:everything")
GRANTED = own("access.granted", "customer:c1", {}, id_="drv_granted", at=START)
REVOKED = own("access.revoked", "customer:c1", {}, id_="drv_revoked", at=START)
REQUESTED = own("fulfilment.requested", "order:A1", {}, id_="drv_requested", at=START)
NOW = START + timedelta(hours=1)


async def late(database: Database, at: timedelta = timedelta(hours=1)) -> set[tuple[str, str, int]]:
    """(handler, reason, count), so long after START; its workers live."""
    async with database.transaction() as session:
        known = [row.name for row in await handlers.everyone(session)]
        for row in await handlers.everyone(session):
            row.last_seen_at = START + at
        assert known
    async with database.reading() as session:
        found = await late_decisions(session, START + at)
    assert all(one.oldest_at == START for one in found)
    return {(one.handler, one.reason, one.count) for one in found}


async def given(database: Database, happened: Sequence[Event], **runs: str) -> None:
    """These were recorded at START, by workers that had known these handlers for a day; each has a run of them."""
    async with database.transaction() as session:
        await handlers.register(session, [OPEN, SHIP, LICENSE, EVERYTHING], START - timedelta(days=1))
        numbers = await events.record(session, list(happened), START)
        await runs_.add(
            session,
            [
                Run(application=one.application, event_id=one.id, handler=handler.replace("_", ":"),
                    seq=numbers[one.application, one.id], key=one.key, status=RunStatus(status), blocking=True,
                    next_at=START + timedelta(days=300))
                for one in happened
                for handler, status in runs.items()
            ],
            START,
        )  # fmt: skip


# case: A1, A13
@pytest.mark.parametrize("event", [GRANTED, REVOKED], ids=["granted", "revoked"])
@pytest.mark.parametrize("status", ["retrying", "parked"])
async def test_access_that_a_handler_puts_off_is_late(database: Database, event: Event, status: str) -> None:
    await given(database, [event], door_open=status, shop_everything=status)
    assert await late(database) == {("door:open", status, 1)}
    assert await late(database, LATE) == set(), "it is no longer than a handler takes that is tried again"


# case: A1
@pytest.mark.parametrize("status", ["succeeded", "dead", "skipped"])
async def test_what_is_done_or_told_as_dead_is_not_late(database: Database, status: str) -> None:
    await given(database, [GRANTED], door_open=status)
    assert await late(database) == set()


# case: A1
async def test_what_the_service_said_and_nobody_decided_is_late(database: Database) -> None:
    created = said("subscription.created", "evt_1", id="S1")
    await given(database, [created], access_subscription="retrying")
    assert await late(database) == {(DECIDES, "retrying", 1)}
    found = declared(subscription)
    assert found is not None
    assert found.name == DECIDES


# case: A1, O5, H7
async def test_what_a_handler_was_not_given_is_late(database: Database) -> None:
    """Its plugin was not installed then, and nobody makes its run when it comes back; another one took the order."""
    await given(database, [GRANTED])
    await given(database, [REQUESTED], shop_ship="succeeded")
    assert await late(database) == {("door:open", MISSED, 1), ("shop:license", MISSED, 1)}
    async with database.transaction() as session:
        done = [("drv_granted", "door:open"), ("drv_requested", "shop:license")]
        await runs_.add(
            session,
            [
                Run(application="default", event_id=event_id, handler=handler, seq=1, key="k",
                    status=RunStatus.SUCCEEDED, blocking=False)
                for event_id, handler in done
            ],
            NOW,
        )  # fmt: skip
    assert await late(database) == set()


# case: H6
async def test_what_came_before_a_handler_was_new_is_history(database: Database) -> None:
    async with database.transaction() as session:
        await events.record(session, [GRANTED], START)
        await handlers.register(session, [OPEN], START)
    assert await late(database) == set()
    assert await late(database, LOOKED_BACK * 2) == set()


# case: H7
async def test_who_has_no_handler_any_more_misses_nothing(database: Database) -> None:
    await given(database, [GRANTED])
    async with database.transaction() as session:
        await handlers.register(session, [SHIP], NOW)
    async with database.reading() as session:
        assert await late_decisions(session, NOW) == []


async def test_a_week_later_it_is_taken_for_meant(database: Database) -> None:
    await given(database, [GRANTED])
    assert await late(database) == {("door:open", MISSED, 1)}
    assert await late(database, LOOKED_BACK + timedelta(hours=1)) == set()
