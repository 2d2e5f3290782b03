"""Mentions: ids that no table is kept by, found in what the events say: a payment a minute after it was made, the
session and the order id of a subscription, a transaction.

By key for as long as the event is there; by the text of a body among the newest only, deliveries that wait included.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Table, case, func, literal, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, unindexed, unpacked_within
from consumer.ledger.engine.chunks import portions
from consumer.ledger.handling.events import to_event
from consumer.ledger.tables import EventRow, HintRow, QuarantineRow
from handlers.fulfilment.options import Options
from handlers.pointers import look_text

EVENTS: Table = EventRow.__table__
HINTS: Table = HintRow.__table__
QUARANTINE: Table = QuarantineRow.__table__
BY_KEY_MAX: Final = 20
PAGE: Final = 200
PAGES: Final = 10
BODY_MAX: Final = 16_384
NAME_MIN: Final = 6
"""Shorter words stand in every text: of what is no JSON they prove nothing."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.:@#-]*")
"""Letters that every writer of JSON writes as they are."""
SUBJECTS: Final = ("order", "subscription", "customer")
LATEST: Final = 2**62
_PLACES: Final = Options()
_RAW: Final = case((func.length(EVENTS.c.raw) <= BODY_MAX, EVENTS.c.raw), else_=literal(b"")).label("raw")
_WITHOUT_LARGE: Final = [_RAW if column.name == "raw" else column for column in EVENTS.c]


async def by_key(session: AsyncSession, name: str, application: str | None) -> Sequence[Row[Any]]:
    """The newest events of an order or a payment of this name."""
    ours = true() if application is None else unindexed(EVENTS.c.application) == application
    named = among(EVENTS.c.key, [f"order:{name}", f"payment:{name}"])
    newest = select(EVENTS).where(named, ours).order_by(unindexed(EVENTS.c.seq).desc()).limit(BY_KEY_MAX)
    return (await session.execute(newest)).all()


async def by_body(session: AsyncSession, name: str, application: str | None) -> Sequence[Row[Any]]:
    """Those of the newest events that say this name; of each aggregate the newest. Bounded by their number and size:
    so the application is asked for here, and not there, where a quiet one would have the whole table read."""
    before = LATEST
    for _ in range(PAGES):
        page = select(*_WITHOUT_LARGE).where(EVENTS.c.seq < before).order_by(EVENTS.c.seq.desc()).limit(PAGE)
        rows = (await session.execute(page)).all()
        ours = [row for row in reversed(rows) if application in (None, row.application)]
        found = {(row.application, row.key): row for row in ours if says(row.raw, name)}
        if found or len(rows) < PAGE:
            return list(found.values())
        before = rows[-1].seq
    return []


async def by_waiting(session: AsyncSession, name: str, application: str | None) -> Sequence[Row[Any]]:
    """Deliveries that are no events yet and say this name: those that wait to be confirmed, and those in quarantine.
    Bounded by number and size, packed and unpacked: a stranger's may be a megabyte of zeros."""
    found = list[Row[Any]]()
    for table, place in ((HINTS, "waits to be confirmed"), (QUARANTINE, "in quarantine")):
        known = [column for column in table.c if column.name not in ("raw", "headers")]
        columns = (*known, literal(place).label("place"), table.c.raw)
        ours = true() if application is None else unindexed(table.c.application) == application
        short = func.length(table.c.raw) <= BODY_MAX
        newest = select(*columns).where(short, ours).order_by(*_order(table)).limit(PAGE * PAGES)
        for some in portions((await session.execute(newest)).all(), PAGE):
            found += [row for row in some if says(unpacked_within(row.raw, BODY_MAX) or b"", name)]
            await asyncio.sleep(0)  # who else asks this process is answered in between
    return found


def says(body: bytes, name: str) -> bool:
    """Whether a body has this name as a whole value, a text or a number, however its writer spelled it. Of one that is
    no JSON, or too large to be parsed, a longer name in quotes will do. Pure."""
    if not _may_say(body, name):
        return False
    if len(body) <= BODY_MAX:
        try:
            return name in _values(json.loads(body, parse_int=str, parse_float=str))
        except (ValueError, RecursionError):
            pass  # no JSON
    quoted = [json.dumps(name, ensure_ascii=is_ascii).encode("utf-8", "replace") for is_ascii in (True, False)]
    return len(name) >= NAME_MIN and any(one in body for one in quoted)


def _may_say(body: bytes, name: str) -> bool:
    """Whether it is worth parsing: most bodies do not even hold the letters."""
    return name.encode("utf-8", "replace") in body or (b"\\" in body and _PLAIN.fullmatch(name) is None)


def _values(document: Any) -> Iterator[str]:
    rest = [document]
    while rest:
        match rest.pop():
            case dict() as fields:
                rest.extend(fields.values())
            case list() as items:
                rest.extend(items)
            case str() as value:
                yield value


def _order(table: Table) -> Sequence[ColumnElement[Any]]:
    """The newest in quarantine; of hints, which have no number, any."""
    return (table.c.id.desc(),) if table is QUARANTINE else ()


def subject_in(row: Row[Any]) -> tuple[str, str] | None:
    """What an event is about, as people ask for it: the subscription that a session or a payment belongs to, the order
    of a payment; else what its key names. A body in an archive tells nothing more."""
    kind, _, id_ = str(row.key).partition(":")
    subject = (kind, id_) if kind in SUBJECTS and id_ else None
    if kind in ("subscription", "customer") or row.archive is not None:
        return subject
    event = to_event(row)
    if (subscription := event.subscription_id or look_text(event, _PLACES.payment_subscription)) is not None:
        return ("subscription", subscription)
    order_id = look_text(event, _PLACES.payment_order) if subject is None else None
    return subject if order_id is None else ("order", order_id)
