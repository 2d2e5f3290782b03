"""A transactional handler that commits, rolls back or closes fails alone: no write is kept by half, none is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, Reject, handles
from consumer.work.execution.savepoint import in_savepoint
from consumer.work.outcome import Failed, Outcome, Succeeded, failed
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

EVENTS = 5


@handles("order.paid", transactional=True, name="test:emits")
async def emits(event: Event, ctx: Context) -> None:
    """What the built-in fulfilment does: a mark and a derived event that belong together."""
    ctx.emit("parcel.wanted", key=event.key, data={"order": event.order_id})


# case: G2, H4
@pytest.mark.parametrize("way", ["commit", "rollback", "close", "reset", "invalidate"])
async def test_whoever_shares_the_transaction_keeps_all_of_it(
    way: str, sqlite_ledger: Database, broker: Broker
) -> None:
    @handles("order.paid", transactional=True, attempts=1, name="test:ends")
    async def ends(event: Event, ctx: Context) -> None:
        await getattr(ctx.session, way)()

    @handles("parcel.wanted", name="test:packs")
    async def packs(event: Event, ctx: Context) -> None:
        packed.add(event.key)

    packed: set[str] = set()
    shop = Workshop(sqlite_ledger, broker, [ends, emits, packs])
    await shop.publish(*[order_paid(number) for number in range(EVENTS)])
    async with shop.working():
        await eventually(lambda: len(packed) == EVENTS, within_s=30)
        await eventually(lambda: shop.count("ends", "dead", EVENTS), within_s=30)
    assert await shop.statuses("emits") == ["succeeded"] * EVENTS


async def test_a_savepoint_of_its_own_is_the_handlers(sqlite_ledger: Database, broker: Broker) -> None:
    @handles("order.paid", transactional=True, name="test:nests")
    async def nests(event: Event, ctx: Context) -> None:
        async with ctx.session.begin_nested() as mine:
            await ctx.session.execute(text("UPDATE events SET type = 'lost'"))
            await mine.rollback()
        async with ctx.session.begin_nested():
            assert (await ctx.session.execute(text("SELECT count(*) FROM events"))).scalar_one() >= 1

    shop = Workshop(sqlite_ledger, broker, [nests])
    await shop.publish(order_paid(1))
    async with shop.working():
        await eventually(lambda: shop.all_succeeded(1), within_s=30)
    async with sqlite_ledger.reading() as session:
        assert (await session.execute(text("SELECT type FROM events"))).scalars().all() == ["order.paid"]


# --- what takes no more -----------------------------------------------------------------------------------------


class Broken:
    """A session whose transaction takes no statement any more; `did` is what was done with its savepoint."""

    def __init__(self, dialect: str) -> None:
        self.did: list[str] = []
        self._bind = SimpleNamespace(dialect=SimpleNamespace(name=dialect))

    def get_bind(self) -> Any:
        """As a session does."""
        return self._bind

    async def flush(self) -> None:
        """As a session does."""
        self.did.append("flush")

    async def begin_nested(self) -> Broken:
        """As a session does: here it is the savepoint as well."""
        self.did.append("savepoint")
        return self

    async def execute(self, _: object) -> None:
        """As a session does."""
        raise RuntimeError("current transaction is aborted")

    async def rollback(self) -> None:
        """As a savepoint does."""
        self.did.append("rollback")

    async def commit(self) -> None:
        """As a savepoint does."""
        self.did.append("commit")


@pytest.mark.parametrize(
    ("dialect", "outcome", "end"),
    [
        ("postgresql", Succeeded(), ["flush", "rollback"]),
        ("sqlite", Succeeded(), ["flush", "commit"]),
        ("postgresql", failed(Reject("no")), ["rollback"]),
        ("sqlite", failed(Reject("no")), ["rollback"]),
    ],
)
async def test_its_handler_has_failed_and_what_it_wrote_is_undone(
    dialect: str, outcome: Outcome, end: list[str]
) -> None:
    session: Any = Broken(dialect)

    async def transactional(*_: object, limit_s: float) -> Outcome:
        assert limit_s == 3.0
        return outcome

    executor: Any = SimpleNamespace(transactional=transactional)
    given: Any = None
    found = await in_savepoint(session, executor, given, given, given, limit_s=3.0)
    assert session.did == ["flush", "savepoint", *end]
    assert isinstance(found, Failed) is (end[-1] == "rollback")
