"""A shop with subscriptions, told in a few words: what the service says, what reads show, who has access."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from consumer.events import Event
from consumer.ledger import Database
from handlers.access.tables import ENTITLEMENTS, FINDINGS, SUBSCRIPTIONS
from tests.support.handling.projections import Projections, observed, own, said, unreadable

MODULE = "handlers.access.handler"
CUSTOMER = "cus_1"


class Shop(Projections):
    """The access projection and shorthands for its events; versions of reads count up by themselves."""

    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(database, MODULE, options=options)
        self._numbers = 0

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def event(self, what: str, sub: str = "S1", *, id_: str = "", at: datetime | None = None, **fields: Any) -> Event:
        """`subscription.<what>` with the customer in its payload, unless told otherwise."""
        identity = id_ or f"evt_{self._next()}_{what}_{sub}"
        body = {"customer_reference": CUSTOMER} | fields
        return said(f"subscription.{what}", identity, at=at or self.now, id=sub, **body)

    async def happens(self, what: str, sub: str = "S1", **fields: Any) -> Event:
        """The service says `subscription.<what>` now."""
        event = self.event(what, sub, **fields)
        await self.feed(event)
        return event

    def reading(self, status: str, sub: str = "S1", *, version: int = 0, **fields: Any) -> Event:
        """A read of the subscription."""
        record = {"id": sub, "status": status, "customer_reference": CUSTOMER, "price_id": "svc_price_monthly"} | fields
        return observed(f"subscription:{sub}", version or self._next(), record, at=self.now)

    async def reads(self, status: str, sub: str = "S1", *, version: int = 0, **fields: Any) -> Event:
        """An authenticated read of the subscription shows this now."""
        event = self.reading(status, sub, version=version, **fields)
        await self.feed(event)
        return event

    def session(self, session: str, **record: Any) -> Event:
        """A read of a checkout session."""
        return observed(f"session:{session}", self._next(), {"id": session, **record}, at=self.now)

    async def shows_session(self, session: str, **record: Any) -> Event:
        """An authenticated read of a checkout session shows this now."""
        event = self.session(session, **record)
        await self.feed(event)
        return event

    async def denies(self, sub: str = "S1", *, version: int = 0) -> Event:
        """The service answers a read now: it has no such subscription."""
        event = unreadable(f"subscription:{sub}", version or self._next(), at=self.now)
        await self.feed(event)
        return event

    async def word(self, type_: str, key: str, **data: Any) -> Event:
        """An operator (or another plugin) says something."""
        event = own(type_, key, data, at=self.now, id_=f"drv_{self._next()}_{type_}")
        await self.feed(event)
        return event

    async def registers(self, session: str, customer: str | None = CUSTOMER, order: str = "O1") -> None:
        """The merchant registers a checkout."""
        data = {"session_id": session, "order_id": order, "customer": customer, "mode": "subscription"}
        await self.word("checkout.registered", f"order:{order}", **data)

    async def allowed(self, entitlement: str = "default", customer: str = CUSTOMER) -> bool:
        """Whether the customer has it now."""
        found = await self.rows(ENTITLEMENTS, customer=customer, entitlement=entitlement)
        return bool(found and found[0]["allowed"])

    async def reasons(self, entitlement: str = "default", customer: str = CUSTOMER) -> list[str]:
        """Why."""
        row = await self.row(ENTITLEMENTS, customer=customer, entitlement=entitlement)
        return list(row["reasons"])

    async def subscription(self, sub: str = "S1") -> dict[str, Any]:
        """The subscription's row."""
        return await self.row(SUBSCRIPTIONS, subscription_id=sub)

    async def findings(self) -> set[tuple[str, str]]:
        """What is open for an operator."""
        return {(row["kind"], row["subject"]) for row in await self.rows(FINDINGS) if row["closed_at"] is None}

    @property
    def effects(self) -> list[str]:
        """What was announced, in order: `granted default`, `revoked pro`, ..."""
        announced = self.of_type("access.granted", "access.revoked")
        return [f"{one.type.removeprefix('access.')} {one.data['entitlement']}" for one in announced]
