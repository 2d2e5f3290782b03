"""Status and the leader's gauges: what the ledger says of an application, each fact in its own place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from consumer.clock import Clock
from consumer.ledger import Database, leases, processes
from consumer.ledger.processes import Pulse
from consumer.ledger.reading import hints, sync_state
from consumer.ledger.reading.budgets import LedgerBudgetStore
from consumer.lists import bookmark as events_bookmark
from consumer.lists.bookmark import Bookmark
from consumer.payments import Budget, CallKind, Scope
from consumer.sync.backfill import silence
from consumer.sync.backfill.cutover import FirstWalk
from consumer.sync.backfill.silence import DeliveryHealth
from consumer.sync.backfill.unread import Unread, Waiting
from consumer.sync.canary import sightings
from consumer.sync.canary.sightings import Sightings
from consumer.sync.health import stalled
from consumer.sync.health.gauges import FLAGS, TIMES, LeaderGauges
from consumer.sync.health.stalled import FRESH_FOR, StalledStage, stalled_stages
from consumer.sync.health.status import (
    REFUSAL_COUNTS,
    ApplicationStatus,
    application_status,
    application_statuses,
    refused_at,
)
from consumer.sync.reconcile import state as reconcile
from tests.sync.conftest import SteppedClock, World, counted_by, delivery

NOW = SteppedClock().now()
APP_ID = "svc_app_test"


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


STATE: Mapping[str, Mapping[str, Any]] = {
    events_bookmark.WALK: Bookmark(walked_at=ago(100)).dump(),
    silence.WALK: DeliveryHealth(silent_since=ago(200), gap_at=ago(300)).dump(),
    reconcile.WALK: {"began": ago(400).isoformat(), "ended": ago(390).isoformat(), "braked": True, "unplaced_paid": 3},
    sightings.WALK: Sightings(missing={"order:A-1": ago(500)}, looked_at=ago(5)).dump(),
    sync_state.LEFT: {"events": 7},
    Unread.walk: Unread(events={"evt_1": Waiting(listed="{}", since=ago(600))}).dump(),
}
STALLED = [
    StalledStage(stage="confirm", code="circuit_open", since=ago(30)),
    StalledStage(stage="refresh", code="invalid_api_credentials", since=ago(40)),
    StalledStage(stage="backfill", code="cursor_loop", since=ago(50)),
]
HELD_UP = {one.stage: {"code": one.code, "since": one.since.isoformat(), "said": ago(1).isoformat()} for one in STALLED}
STANDS = ApplicationStatus(
    application="default",
    hints=2,
    walked_at=ago(100),
    silent_since=ago(200),
    gap_at=ago(300),
    reconciled_at=ago(400),
    reconcile_braked=True,
    unplaced_paid=3,
    missing=Sightings(missing={"order:A-1": ago(500)}, looked_at=ago(5)).missed(),
    looked_at=ago(5),
    unread=1,
    held_up=(StalledStage(stage="backfill", code="unexpected_answer", since=ago(600)),),
)


async def left(database: Database, state: Mapping[str, Mapping[str, Any]]) -> None:
    """What a leader left behind, and two deliveries that wait."""
    async with database.transaction() as session:
        await hints.keep(session, [delivery(b"{}", one, event_id=f"evt_{one}") for one in (1, 2)], NOW)
        for walk, kept in state.items():
            await sync_state.keep(session, "default", walk, kept, token=0, now=NOW)


async def refused(database: Database, clock: Clock, at: datetime) -> None:
    """The service refused the credentials then."""
    text = f"[{at.timestamp()}, -1.0]"
    await LedgerBudgetStore(database, clock).update([name := f"circuit/{APP_ID}"], lambda *_: ({name: text}, None))


async def standing(database: Database, app_id: str | None = APP_ID, *, is_kept: bool = False) -> ApplicationStatus:
    async with database.reading() as session:
        return await application_status(session, "default", app_id, NOW, is_kept=is_kept)


async def test_every_fact_is_told(sqlite_ledger: Database) -> None:
    # case: O1, O3, B13
    await left(sqlite_ledger, STATE)
    assert await standing(sqlite_ledger) == STANDS
    await refused(sqlite_ledger, SteppedClock(), ago(20))
    assert await standing(sqlite_ledger) == replace(STANDS, refused_at=ago(20))
    await left(sqlite_ledger, {stalled.WALK: HELD_UP})
    assert await standing(sqlite_ledger) == replace(STANDS, refused_at=ago(20), held_up=tuple(STALLED))


async def test_a_refusal_of_who_gave_the_lead_back_is_not_the_leaders(
    sqlite_ledger: Database,
) -> None:
    """It asks once a minute whether it is accepted: for as long as a walk lasted, or an interval, all was `stuck`."""
    # case: S3, B26
    await refused(sqlite_ledger, SteppedClock(), ago(20))
    pulse = Pulse(process="host-1-aa", role="sync", host="host", pid=1, version="1", started_at=ago(900), ready=True,
                  since=ago(900))  # fmt: skip
    async with sqlite_ledger.transaction() as session:
        await leases.acquire(session, "sync/default", "host-2-bb", NOW, 15)
        await processes.beat(session, [pulse], ago(1))
    assert (await standing(sqlite_ledger)).refused_at == ago(20), "nobody gave way"
    async with sqlite_ledger.transaction() as session:
        await processes.beat(session, [replace(pulse, said={processes.GAVE_WAY: "other default"})], ago(1))
    assert (await standing(sqlite_ledger)).refused_at is None
    await left(sqlite_ledger, {stalled.WALK: HELD_UP})
    assert (await standing(sqlite_ledger)).refused_at == ago(20), "the one that leads is refused, too"


async def test_who_leads_and_until_when_it_was_asked_to_wait_is_told(sqlite_ledger: Database) -> None:
    # case: B26, C6
    clock = SteppedClock()
    budget = Budget(LedgerBudgetStore(sqlite_ledger, clock), Scope(ip="one", application=APP_ID), clock)
    await budget.pause(CallKind.READ, 900)
    async with sqlite_ledger.transaction() as session:
        await leases.acquire(session, "sync/default", "shop-host-2-4711-0a1b2c3d", NOW, 15)
        await leases.acquire(session, "sync/other", "shop-host-2-4711-0a1b2c3d/backfill", NOW, 15)
    stands = await standing(sqlite_ledger)
    assert (stands.leader, stands.paused_until) == ("pid 4711 on shop-host-2", ago(-900))
    async with sqlite_ledger.reading() as session:
        assert await leases.leader(session, "other", NOW) is None, "a command"
        assert await leases.leader(session, "default", ago(-600)) is None, "it ended long ago"


async def test_where_nothing_is_known_nothing_is_told(sqlite_ledger: Database) -> None:
    # case: O1, O3, B13
    assert await standing(sqlite_ledger) == ApplicationStatus(application="default")


async def test_without_credentials_only_what_waits_is_told(sqlite_ledger: Database) -> None:
    # case: I15
    await left(sqlite_ledger, STATE)
    blind = ApplicationStatus(application="default", has_credentials=False, hints=2)
    assert await standing(sqlite_ledger, None) == blind


async def test_who_lacks_the_credentials_goes_by_what_the_reader_keeps(sqlite_ledger: Database) -> None:
    # case: O3
    await left(sqlite_ledger, STATE)
    await refused(sqlite_ledger, SteppedClock(), ago(20))
    assert await standing(sqlite_ledger, None, is_kept=True) == STANDS, "nobody knows which circuit is its"
    await left(sqlite_ledger, {stalled.WALK: HELD_UP})
    found = await standing(sqlite_ledger, None, is_kept=True)
    assert (found.has_credentials, found.refused_at, found.held_up) == (True, ago(40), tuple(STALLED))


async def test_an_application_that_somebody_keeps_is_read(sqlite_ledger: Database) -> None:
    # case: O3
    await left(sqlite_ledger, STATE)
    async with sqlite_ledger.reading() as session:
        asked = [("default", None), ("other", None)]
        by_ledger = await application_statuses(session, asked, NOW)
        nobody = await application_statuses(session, asked, NOW, kept=())
    assert [(one.application, one.has_credentials) for one in by_ledger] == [("default", True), ("other", False)]
    assert [one.has_credentials for one in nobody] == [False, False]


LIMIT_S = REFUSAL_COUNTS.total_seconds()


@pytest.mark.parametrize(
    ("probed_ago", "accepted_ago", "walked_ago", "told"),
    [
        (LIMIT_S, None, None, True),
        (LIMIT_S + 1, None, None, False),
        (10, 11, None, True),
        (10, 10, None, False),
        (10, 9, None, False),
        (10, None, 10, True),
        (10, None, 9, False),
    ],
)
def test_a_refusal_counts_until_the_credentials_are_taken_or_nobody_tries_any_more(
    probed_ago: float, accepted_ago: float | None, walked_ago: float | None, told: bool
) -> None:
    # case: O3
    accepted = -1.0 if accepted_ago is None else ago(accepted_ago).timestamp()
    circuit = f"[{ago(probed_ago).timestamp()}, {accepted}]"
    found = refused_at(circuit, NOW, walked_at=None if walked_ago is None else ago(walked_ago))
    assert found == (ago(probed_ago) if told else None)


@pytest.mark.parametrize("circuit", [None, "", "{", "5", "[1]", '["x", 0]', "[1e300, 0]"])
def test_a_circuit_that_cannot_be_read_refuses_nothing(circuit: str | None) -> None:
    assert refused_at(circuit, NOW) is None


async def test_a_trouble_that_was_said_a_minute_ago_is_the_last_that_counts(sqlite_ledger: Database) -> None:
    # case: B7, O3
    limit = FRESH_FOR.total_seconds()
    well = {"code": "a", "since": ago(90).isoformat(), "said": ago(limit).isoformat()}
    await left(
        sqlite_ledger,
        {
            stalled.WALK: {
                "confirm": well,
                "refresh": well | {"said": ago(limit + 0.1).isoformat()},
                "backfill": well | {"since": "long ago"},
                "reconcile": {"code": "a", "since": ago(90).isoformat()},
            }
        },
    )
    async with sqlite_ledger.reading() as session:
        found = await stalled_stages(session, "default", NOW)
    assert found == (StalledStage(stage="confirm", code="a", since=ago(90)),)


def shown(world: World) -> dict[str, float]:
    """The gauges of the leader that are on the metrics page, by their attribute and labels."""
    found = {}
    for name, *labels in (*FLAGS, *TIMES):
        gauge = getattr(world.metrics, name)
        if ("default", *labels) in gauge._metrics:
            value = gauge.labels("default", *labels)
            found["/".join((name, *labels))] = next(iter(value.collect())).samples[0].value
    return found


async def test_who_takes_the_lead_shows_every_alarm_that_stands(world: World) -> None:
    # case: O1, O3, B13, B31
    await left(world.database, STATE)
    gauges = LeaderGauges(world.app, FirstWalk(world.app))
    await world.api.client.circuit.refused(world.api.client.credentials.generation)
    await gauges.take_up()
    assert shown(world) == {
        "webhooks_silent": 1,
        "gap_open": 1,
        "reconcile_braked": 1,
        "circuit_open": 1,
        "hints_waiting": 2,
        "missing_here_seconds": 495,  # as of the last look
        "bookmark_seconds": 100,
        "last_reconcile": ago(390).timestamp(),
        "events_history": 7,
    }
    gauges.drop()
    assert shown(world) == {"/".join(one): 0 for one in FLAGS}


async def test_who_takes_the_lead_of_what_is_well_shows_no_alarm(world: World) -> None:
    # case: O1, O3, B13, B31
    gauges = LeaderGauges(world.app, FirstWalk(world.app))
    for name, *labels in FLAGS:
        getattr(world.metrics, name).labels("default", *labels).set(5)  # of a lead before
    await gauges.take_up()
    told = ("webhooks_silent", "gap_open", "reconcile_braked", "circuit_open", "hints_waiting", "missing_here_seconds")
    assert [counted_by(world.metrics, name, "default") for name in told] == [0] * len(told)
    found = shown(world)
    assert (found["bookmark_seconds"], found["events_history"]) == (0, 0)
    assert "last_reconcile" not in found, "none has ended"


async def test_a_walk_that_never_came_through_is_as_old_as_its_beginning(world: World) -> None:
    # case: O1, B30
    await FirstWalk(world.app).begin(ago(60))
    gauges = LeaderGauges(world.app, FirstWalk(world.app))
    await gauges.take_up()
    assert shown(world)["bookmark_seconds"] == 60
