"""What sync asks the ledger means the same on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from consumer.broker.embedded.broker import EmbeddedBroker
from consumer.clock import DrivenClock
from consumer.events import Event, Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import events, outbox, runs
from consumer.ledger.handling.outcomes import derived_open, outcomes
from consumer.ledger.reading import hints, observations, quarantine, samples
from consumer.ledger.reading.observations import Observed
from consumer.ledger.tables import RunStatus
from consumer.payments import Credentials, PaymentsClient
from consumer.plugin import Emission
from consumer.sync.api import ApplicationApi
from consumer.sync.application import Application
from consumer.sync.backfill import silence
from consumer.sync.confirm.denials import Denials
from consumer.sync.publisher import EventPublisher
from consumer.sync.settlement import Settlement
from tests.support.ports import eventually
from tests.sync.conftest import EVENTS, delivery

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(event_id: str, source: Source, at: datetime = NOW, application: str = "default") -> Event:
    return Event(
        application=application, id=event_id, type="order.paid", key=f"order:{event_id}", trust=Trust.READ,
        source=source, raw=b"{}", received_at=at,
    )  # fmt: skip


async def test_hints_by_id_and_by_age(database: Database, broker: EmbeddedBroker) -> None:
    # case: G8, I15
    clock = DrivenClock(NOW)
    async with database.transaction() as session:
        await hints.keep(session, [delivery(b"{}", n, event_id=f"evt_{n}") for n in range(30)], NOW)
        assert len(await hints.due_ids(session, "default", NOW, 20)) == 20
        assert await hints.due_ids(session, "other", NOW, 20) == []
        assert {row.event_id for row in await hints.of_events(session, "default", ["evt_1", "evt_x"])} == {"evt_1"}
        assert await hints.ids_of(session, "default", ["evt_2", "evt_x"]) == ["evt_2"]
        newest = await samples.waiting(session, "default", 2)
        assert [(one.delivery_id, one.body) for one in newest] == [("dlv_29", b"{}"), ("dlv_28", b"{}")]
    client = PaymentsClient("http://127.0.0.1:9", Credentials("svc_app_test", ["svc_sk_live_test"]), clock=clock)
    api = ApplicationApi(application="default", client=client)
    app = Application(api=api, database=database, clock=clock)
    denials = Denials(app, Settlement(app, EventPublisher(broker, EVENTS)), patience_s=5)
    left = {f"evt_{n}": 0 for n in range(30)}
    for attempts in range(1, 10):
        if await denials.store(left):
            break
        left = dict.fromkeys(left, attempts)
        clock.advance(130)
    async with database.reading() as session:
        assert await hints.count(session) == 0
        assert await quarantine.count(session) == 30


async def test_observations_seen_and_unseen(database: Database) -> None:
    # case: B21, A40
    def observed(name: str, version: int, state: str) -> Observed:
        return Observed(
            application="default", kind="subscription", object_id=name, version=version, digest="d" * 64,
            read_at=NOW, state=state, shape="s",
        )  # fmt: skip

    later = NOW + timedelta(hours=1)
    async with database.transaction() as session:
        await observations.keep(
            session, [observed("a", 1, "ACTIVE|"), observed("b", 2, "ENDED|"), observed("c", 3, "ACTIVE|")]
        )
        await observations.keep(session, [observed("a", 0, "ENDED|")])
        found = await observations.last(session, "default", "subscription", ["a", "b", "x"])
        assert {name: one.state for name, one in found.items()} == {"a": "ACTIVE|", "b": "ENDED|"}
        assert found["a"].read_at == NOW
        await observations.seen(session, "default", "subscription", ["c"], later)
        unseen = await observations.unseen(session, "default", "subscription", later, unless="ENDED", limit=10)
        assert unseen == ["a"]
        assert await observations.last(session, "other", "subscription", ["a"]) == {}


async def test_outcomes_sources_and_keys(database: Database) -> None:
    # case: O7, O1
    async with database.transaction() as session:
        await events.record(
            session,
            [
                event("evt_1", Source.WEBHOOK),
                event("evt_2", Source.BACKFILL, NOW + timedelta(hours=1)),
                event("evt_1", Source.BACKFILL, application="other"),
            ],
            NOW,
        )
        for number, status in enumerate((RunStatus.SUCCEEDED, RunStatus.DEAD)):
            run = runs.Run(
                application="default", event_id="evt_1", handler=f"h{number}", seq=1, key="k", status=status,
                blocking=False,
            )  # fmt: skip
            await runs.add(session, [run], NOW)
        found = await outcomes(session, "default", ["evt_1", "evt_2", "evt_3"])
        assert {name: (one.source, one.word) for name, one in found.items()} == {
            "evt_1": (Source.WEBHOOK, "dead"),
            "evt_2": (Source.BACKFILL, "no_handler"),
        }
        told = await events.told(session, "default", ["order:evt_1", "order:evt_2", "order:x"])
        assert {key: list(types.values()) for key, types in told.items()} == {
            "order:evt_1": [NOW],
            "order:evt_2": [NOW + timedelta(hours=1)],
        }
        before = NOW - timedelta(seconds=1)
        assert await events.last_received(session, "default", Source.WEBHOOK, before) == NOW
        assert await events.last_received(session, "default", Source.WEBHOOK, NOW) is None


async def test_a_gap_is_open_until_a_reconcile_walk_that_began_after_it(database: Database) -> None:
    # case: B13
    async with database.transaction() as session:
        await silence.note_walk(session, "default", recovered=(), gap=True, token=1, now=NOW)
        await silence.note_reconciled(session, "default", began=NOW - timedelta(seconds=1), token=1)
        assert (await silence.DeliveryHealth.of(session, "default")).gap_at == NOW
        await silence.note_reconciled(session, "default", began=NOW + timedelta(seconds=1), token=1)
        assert (await silence.DeliveryHealth.of(session, "default")).gap_at is None


async def somebody_waits(database: Database) -> bool:
    """For a row that another transaction has locked; on SQLite nobody else writes anyway. Each look is a transaction of
    its own: one sees the same for as long as it lasts."""
    if database.engine.dialect.name == "sqlite":
        return True
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with database.reading() as session:
        return bool(await session.scalar(text(waiting)))


async def test_a_gap_and_its_end_that_are_noted_at_one_moment_both_count(database: Database) -> None:
    # case: B13
    async def health() -> silence.DeliveryHealth:
        async with database.reading() as session:
            return await silence.DeliveryHealth.of(session, "default")

    async def walk() -> None:
        async with database.transaction() as session:
            await silence.note_walk(session, "default", recovered=["evt_1"], gap=False, token=1, now=NOW)

    async def reconcile() -> None:
        async with database.transaction() as session:
            await silence.note_reconciled(session, "default", began=NOW, token=1)

    async with database.transaction() as session:
        await silence.note_gap(session, "default", at=NOW, token=1)
    async with asyncio.TaskGroup() as group, database.transaction() as session:
        await silence.note_reconciled(session, "default", began=NOW, token=1)
        group.create_task(walk())
        await eventually(lambda: somebody_waits(database), what="the walk waits")
    assert ((await health()).gap_at, (await health()).pending) == (None, ("evt_1",)), "the walk put nothing back"

    later = NOW + timedelta(minutes=1)
    async with database.transaction() as session:
        await silence.note_gap(session, "default", at=NOW, token=1)
    async with asyncio.TaskGroup() as group, database.transaction() as session:
        await silence.note_gap(session, "default", at=later, token=1)
        group.create_task(reconcile())
        await eventually(lambda: somebody_waits(database), what="the walk of state waits")
    assert (await health()).gap_at == later, "the walk of state that began before it does not close it"


async def test_what_an_event_derived_is_open_while_it_waits_or_its_runs_are_not_done(database: Database) -> None:
    # case: O7, G8
    states = [RunStatus.SUCCEEDED, RunStatus.SKIPPED, RunStatus.DEAD, RunStatus.PARKED, RunStatus.RETRYING]
    emitted = [
        outbox.Emitted(
            emission=Emission(
                id=f"drv_{number}", type="fulfilment.requested", key=f"order:{number}", data={},
                not_before=NOW + timedelta(days=30) if number == 6 else None,
            ),
            cause=event(f"evt_{number}", Source.WEBHOOK), handler="h",
        )
        for number in range(7)
    ]  # fmt: skip
    second = Emission(id="drv_more", type="fulfilment.requested", key="order:4", data={})
    emitted.insert(0, outbox.Emitted(emission=second, cause=event("evt_4", Source.WEBHOOK), handler="h"))
    async with database.transaction() as session:
        await outbox.put(session, emitted, NOW)
        await outbox.mark_published(session, (await outbox.due(session, NOW, 100))[:6], NOW)
        works = [*enumerate(states), ("more", RunStatus.DEAD)]
        new = [
            runs.Run(
                application="default", event_id=f"drv_{number}", handler="h", seq=seq, key=f"order:{number}",
                status=status, blocking=False,
            )
            for seq, (number, status) in enumerate(works)
        ]  # fmt: skip
        await runs.add(session, new, NOW)
    wanted = {"evt_2": "dead", "evt_3": "parked", "evt_4": "dead", "evt_5": "retrying"}
    async with database.reading() as session:
        everything = [f"evt_{number}" for number in range(7)]
        assert await derived_open(session, "default", everything, NOW) == wanted, (
            "one that is not due yet waits rightly"
        )
        assert await derived_open(session, "default", ["evt_3"], NOW) == {"evt_3": "parked"}
        assert await derived_open(session, "other", everything, NOW) == {}
