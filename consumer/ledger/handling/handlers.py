"""Handlers as the workers know them, and which are paused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Select, Table, func, not_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among, insert_into
from consumer.ledger.tables import REASON_CHARS, HandlerRow

if TYPE_CHECKING:
    from consumer.plugin import Handler

_HANDLERS: Table = HandlerRow.__table__

_PAUSED = select(_HANDLERS.c.name).where(_HANDLERS.c.paused_at.is_not(None))

_ONLY = re.compile(r"only ([a-z0-9_-]+(?:, [a-z0-9_-]+)*): ")

LIVE_S = 120.0
"""A handler that no worker has registered for so long is one that no living worker has."""


async def register(session: AsyncSession, handlers: Sequence[Handler], now: datetime) -> None:
    """Note that a worker runs these handlers, in this code version; a pause stays."""
    if handlers:
        insert = insert_into(_HANDLERS, session.get_bind().dialect.name)
        statement = insert.on_conflict_do_update(
            index_elements=["name"],
            set_={
                name: insert.excluded[name]
                for name in ("plugin", "types", "transactional", "fulfils", "runbook", "code_version", "last_seen_at")
            },
        )
        rows = [
            {
                "name": handler.name,
                "plugin": handler.plugin,
                "types": " ".join(handler.types),
                "transactional": handler.transactional,
                "fulfils": handler.fulfils,
                "runbook": handler.runbook,
                "code_version": handler.version,
                "first_seen_at": now,
                "last_seen_at": now,
            }
            for handler in sorted(handlers, key=lambda one: one.name)
        ]
        await session.execute(statement, rows)


async def paused(session: AsyncSession) -> frozenset[str]:
    """The handlers that must not run now."""
    return frozenset(await session.scalars(_PAUSED))


async def waiting(session: AsyncSession) -> frozenset[str]:
    """The handlers that wait for what they depend on."""
    return frozenset(await session.scalars(select(_HANDLERS.c.name).where(_HANDLERS.c.waiting_since.is_not(None))))


async def everyone(session: AsyncSession) -> Sequence[HandlerRow]:
    """All handlers the ledger has seen, by name."""
    return (await session.execute(select(HandlerRow).order_by(_HANDLERS.c.name))).scalars().all()


async def runbooks(session: AsyncSession, names: Collection[str]) -> dict[str, str]:
    """What the authors of these handlers tell the operator, as far as they say something."""
    told = select(_HANDLERS.c.name, _HANDLERS.c.runbook).where(
        among(_HANDLERS.c.name, sorted(set(names))), _HANDLERS.c.runbook.is_not(None)
    )
    return dict((await session.execute(told.order_by(_HANDLERS.c.name))).all()) if names else {}


def bystanders() -> Select[tuple[str]]:
    """The names of handlers by whose success no order is fulfilled. One that the ledger does not know is none."""
    return select(_HANDLERS.c.name).where(not_(func.coalesce(_HANDLERS.c.fulfils, not_(_HANDLERS.c.transactional))))


def handing_on() -> Select[tuple[str]]:
    """The names of projections that fulfil: what they emit for an order hands it on."""
    return select(_HANDLERS.c.name).where(_HANDLERS.c.fulfils, _HANDLERS.c.transactional)


async def living(session: AsyncSession, now: datetime) -> frozenset[str]:
    """The handlers that some living worker has, or, when no worker lives, those of the last ones: that nobody works
    at all is another matter. Empty before the first worker."""
    seen = dict((await session.execute(select(_HANDLERS.c.name, _HANDLERS.c.last_seen_at))).all())
    # A worker whose clock is ahead must not make everybody else's handlers look gone.
    since = min(now, max(seen.values(), default=now)) - timedelta(seconds=LIVE_S)
    return frozenset(name for name, at in seen.items() if at >= since)


async def gone(session: AsyncSession, names: Collection[str], now: datetime) -> frozenset[str]:
    """Those of these handlers that no living worker has; none before the first worker."""
    there = await living(session, now)
    return frozenset(names) - there if there else frozenset()


async def pause(session: AsyncSession, name: str, *, by: str, reason: str, now: datetime) -> bool:
    """Stop a handler: its runs wait. False when the ledger does not know it."""
    return await _set(session, name, paused_at=now, paused_by=by, paused_reason=reason[:REASON_CHARS])


async def resume(session: AsyncSession, name: str) -> bool:
    """Let a paused handler go on, oldest first. False when the ledger does not know it."""
    return await _set(session, name, paused_at=None, paused_by=None, paused_reason=None)


async def set_waiting(session: AsyncSession, name: str, *, since: datetime | None, reason: str | None) -> bool:
    """Note that the handler waits for what it depends on, or (None) that it does no more."""
    return await _set(session, name, waiting_since=since, waiting_reason=(reason or "")[:REASON_CHARS] or None)


def only(applications: Collection[str], reason: str) -> str:
    """Why a handler waits, where it does for these applications alone."""
    return f"only {', '.join(sorted(applications))}: {reason}"


def waits_for(application: str, reason: str | None) -> bool:
    """Whether a handler that waits for this `reason` does so for the application: it names those for which it does,
    where it goes on for others."""
    named = _ONLY.match(reason or "")
    return named is None or application in named[1].split(", ")


async def waiting_is_over(session: AsyncSession, answered: Mapping[str, datetime]) -> None:
    """Take back that handlers wait, where something of theirs got through since, when: who noted it may be gone."""
    noted = select(_HANDLERS.c.name, _HANDLERS.c.waiting_since).where(_HANDLERS.c.waiting_since.is_not(None))
    for name, since in (await session.execute(noted)).all() if answered else ():
        if name in answered and since < answered[name]:
            await set_waiting(session, name, since=None, reason=None)


async def _set(session: AsyncSession, name: str, **values: object) -> bool:
    statement = update(_HANDLERS).where(_HANDLERS.c.name == name).values(**values).returning(_HANDLERS.c.name)
    return (await session.execute(statement)).first() is not None
