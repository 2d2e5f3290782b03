"""What the consumer's database holds of what an odd service told: what it lacks, what is wrong, what has no name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Table, select

from consumer.columns import unpacked
from consumer.document import parse
from consumer.errors import NotUnderstood
from consumer.events import identify
from consumer.ledger import Database
from consumer.ledger.reading.observation import STATUSES, status_of
from consumer.ledger.tables import (
    EventRow,
    HintRow,
    ObservationRow,
    OutboxRow,
    QuarantineRow,
    ReadRow,
    RunRow,
)
from consumer.payments import Order, Payment, Subscription
from consumer.payments import Record as PaymentsRecord
from consumer.payments.models import dumped
from consumer.receive.decide import REFUSAL_MAX_BYTES
from consumer.sync.backfill.page import LISTED
from handlers.access.tables import ENTITLEMENTS, SUBSCRIPTIONS
from handlers.access.tables import FINDINGS as ACCESS_FINDINGS
from handlers.fulfilment.tables import FINDINGS, ORDERS
from tests.hostile.corpus import Record
from tests.hostile.every_object.objects import OddService, Told
from tests.hostile.texts import written
from tests.sync.conftest import LOCATORS

LIVE: Final = ("ACTIVE", "PAST_DUE")
_MODELS: Final[dict[str, type[PaymentsRecord]]] = {"orders": Order, "payments": Payment, "subscriptions": Subscription}


def _listed(item: Record) -> Any:
    """An item as it is read on a page, where what nests deeply is cut a little sooner."""
    return parse(written({"items": [item]}), tolerant=True)["items"][0]


class Kept:
    """It, beside what the service told."""

    def __init__(self, database: Database, service: OddService) -> None:
        self._database, self._service = database, service

    async def lacking(self, told: Sequence[Told]) -> list[str]:
        """Those of which the consumer does not hold what the service's state says, by key."""
        requested = {row["order_id"] for row in await self.rows(ORDERS) if row["requested_at"]}
        subscriptions = {row["subscription_id"]: row for row in await self.rows(SUBSCRIPTIONS)}
        allowed = {row["customer"] for row in await self.rows(ENTITLEMENTS) if row["allowed"]}
        found = []
        for one in told:
            if one.subject == "order":
                found += [] if one.key in requested else [one.key]
                continue
            row = subscriptions.get(one.key, {"status": None, "customer": None})
            has = row["status"] == one.status and row["customer"] is not None
            found += [] if has and (one.status not in LIVE or row["customer"] in allowed) else [one.key]
        return found

    async def wrong(self) -> list[str]:
        """Customers who have access although none of their subscriptions is live, or have none although one is; orders
        that were requested more than once; runs that neither ended nor say why."""
        rows = await self.rows(SUBSCRIPTIONS)
        entitled = {row["customer"] for row in rows if row["status"] in LIVE}
        access = {row["customer"]: row["allowed"] for row in await self.rows(ENTITLEMENTS)}
        found = [f"access of {ascii(one)[:40]}" for one, has in access.items() if has is not (one in entitled)]
        asked = Counter(row["key"] for row in await self.rows(OutboxRow.__table__, type="fulfilment.requested"))
        found += [f"{key} requested {times} times" for key, times in asked.items() if times > 1]
        runs = await self.rows(RunRow.__table__)
        found += [
            f"{row['event_id']} {row['handler']} {row['status']}"
            for row in runs
            if row["status"] not in ("succeeded", "skipped") and (row["status"] != "dead" or not row["reason"])
        ]
        return found

    async def nameless(self, told: Sequence[Told]) -> list[int]:
        """Of which odd events nobody can say what became: they were neither taken in, nor wait to be confirmed, nor lie
        in quarantine with a reason. `told` were sent, or are listed."""
        taken = {row["id"] for row in await self.rows(EventRow.__table__)}
        taken |= {row["event_id"] for row in await self.rows(HintRow.__table__)}
        quarantined = [row for row in await self.rows(QuarantineRow.__table__) if row["reason"]]
        kept = {row["delivery_id"] for row in quarantined}
        bodies = {sha256(unpacked(row["raw"])).digest() for row in quarantined}
        found = []
        for one in told:
            body = written(event := self._service.event(one))
            try:
                is_named = identify(read := _listed(event), LOCATORS).id in taken
            except NotUnderstood:
                is_named = LISTED + sha256(dumped(read)).hexdigest()[:40] in kept
            if not is_named and not {sha256(body).digest(), sha256(body[:REFUSAL_MAX_BYTES]).digest()} & bodies:
                found.append(one.number)
        return found

    async def unplaced(self) -> int:
        """How many of the records in the service's lists are not remembered by an id, theirs or the one that a single
        read shows."""
        seen = {(row["kind"], row["object_id"]) for row in await self.rows(ObservationRow.__table__)}
        found = 0
        for kind, one, item in self._service.items():
            read = _MODELS[kind].read(_listed(item))
            names = {read.order_id if isinstance(read, Order) else read.id, one.key if kind != "payments" else None}
            found += not any((kind[:-1], name) in seen for name in names)
        return found

    async def unsaid(self, told: Sequence[Told]) -> list[str]:
        """Of which of them, that were read and are lacking, nothing says so: no finding, no read that is due again, no
        observation whose status nobody knows, which is counted (case F34)."""
        said = {row["subject"] for table in (FINDINGS, ACCESS_FINDINGS) for row in await self.rows(table)}
        said |= {row["object_id"] for row in await self.rows(ReadRow.__table__)}
        observed = await self.rows(ObservationRow.__table__)
        said |= {row["object_id"] for row in observed if status_of(row["state"]) not in STATUSES.get(row["kind"], ())}
        lacking = set(await self.lacking(told))
        ids = {"order": "ord", "subscription": "sub"}
        return [
            one.key
            for one in told
            if one.key in lacking and not {one.key, f"{ids[one.subject]}_{one.number}", f"cs_{one.number}"} & said
        ]

    async def rows(self, table: Table, **where: Any) -> list[dict[str, Any]]:
        wanted = select(table).where(*[table.c[name] == value for name, value in where.items()])
        async with self._database.reading() as session:
            return [dict(row) for row in (await session.execute(wanted)).mappings()]
