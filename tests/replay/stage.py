"""A shop whose handlers a test can break and mend, and what it did outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import text

from consumer.broker import Broker
from consumer.ledger import Database
from consumer.plugin import Context, Event, declared, handles
from consumer.work.registry import Registry
from tests.support.handling.replaying import Replaying
from tests.support.ports import eventually
from tests.work.workshop import Workshop, order_paid

Function = Callable[..., Coroutine[Any, Any, None]]


@dataclass
class Shop:
    """`ship` ships what `book` requested; both fail while they are named in `broken`. `keys`: what went out."""

    database: Database
    broker: Broker
    broken: set[str] = field(default_factory=set)
    keys: list[tuple[str, str]] = field(default_factory=list)
    replayed: set[str] = field(default_factory=set)
    more: Sequence[Function] = ()

    def functions(self) -> list[Function]:
        """The handlers."""

        @handles("order.paid", transactional=True, attempts=1, name="shop:book")
        async def book(event: Event, ctx: Context) -> None:
            self._check("book")
            ctx.emit("parcel.requested", event.key, {"order": event.order_id}, once="order")

        @handles("parcel.requested", attempts=1, name="shop:ship")
        async def ship(event: Event, ctx: Context) -> None:
            self._check("ship")
            self.keys.append(("ship", ctx.idempotency_key))
            if ctx.is_replay:
                self.replayed.add(event.id)

        @handles("order.paid", attempts=1, name="shop:mail", pause_after=0)
        async def mail(event: Event, ctx: Context) -> None:
            self._check("mail")
            self.keys.append(("mail", ctx.idempotency_key))
            if ctx.is_replay:
                self.replayed.add(event.id)

        return [book, ship, mail, *self.more]

    def _check(self, name: str) -> None:
        if name in self.broken:
            raise ValueError(f"{name} is broken")

    def workshop(self) -> Workshop:
        """Its workers."""
        return Workshop(self.database, self.broker, self.functions())

    @asynccontextmanager
    async def with_dead_mail(self) -> AsyncIterator[Workshop]:
        """Its workers, after the mail of one order is dead; it is mended by then."""
        self.broken.add("mail")
        work = self.workshop()
        await work.publish(order_paid(1))
        async with work.working():
            await eventually(lambda: work.count("shop:mail", "dead", 1))
            self.broken.clear()
            yield work

    def replaying(self) -> Replaying:
        """Its operator."""
        shop = self.workshop()
        found = [declared(one) for one in shop.functions]
        return Replaying(shop, Registry([one for one in found if one is not None]))

    def sent(self) -> Counter[str]:
        """Handler to how often it acted."""
        return Counter(name for name, _ in self.keys)


async def all_relayed(database: Database) -> bool:
    """Whether every derived event is in the log, which is later than taken where it was emitted, and every dead letter
    in its own."""
    async with database.reading() as session:
        events = "SELECT count(*) FROM outbox WHERE published_at IS NULL OR on_way IS NOT NULL"
        letters = "SELECT count(*) FROM dead_letters WHERE published_at IS NULL"
        return not any([await session.scalar(text(waits)) for waits in (events, letters)])


async def tables(database: Database) -> dict[str, Any]:
    """The rows that a replay may change: everything but the plans themselves and who is alive."""
    found: dict[str, Any] = {}
    async with database.reading() as session:
        for name in ("events", "runs", "attempts", "outbox", "reads", "dead_letters"):
            found[name] = [tuple(row) for row in await session.execute(text(f"SELECT * FROM {name} ORDER BY 1, 2, 3"))]
    return found
