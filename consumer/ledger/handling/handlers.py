"""Handlers as the workers know them, and which are paused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final

from sqlalchemy import Select, Table, case, delete, func, literal, not_, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SET_BACK
from consumer.columns import among, insert_into
from consumer.ledger.engine.counting import changed
from consumer.ledger.tables import REASON_CHARS, HandlerPauseRow, HandlerRow

if TYPE_CHECKING:
    from consumer.plugin import Handler

_HANDLERS: Table = HandlerRow.__table__

_PAUSES: Table = HandlerPauseRow.__table__

ALL: Final = ""
"""Stands for the application of a pause that is for all of them."""

_PAUSED = (
    select(_HANDLERS.c.name, literal(ALL))
    .where(_HANDLERS.c.paused_at.is_not(None))
    .union_all(select(_PAUSES.c.handler, _PAUSES.c.application))
)

_ONLY = re.compile(r"only ([a-z0-9_-]+(?:, [a-z0-9_-]+)*): ")

LIVE_S = 120.0
"""A handler that no worker has registered for so long is one that no living worker has."""


@dataclass(frozen=True)
class Paused:
    """Which handlers must not run now: `of` are (handler, application), with ALL where it is paused for all."""

    of: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def names(self) -> frozenset[str]:
        """Those that are paused, be it for one application."""
        return frozenset(name for name, _ in self.of)

    @cached_property
    def wholly(self) -> frozenset[str]:
        """Those that are paused for all."""
        return frozenset(name for name, application in self.of if application == ALL)

    def holds(self, name: str, application: str) -> bool:
        """Whether nothing of this application may be begun."""
        return bool(self.of) and ((name, application) in self.of or (name, ALL) in self.of)

    def only(self, name: str) -> tuple[str, ...]:
        """The applications for which alone it is paused, in order; none where it is for all, or not at all."""
        if (name, ALL) in self.of:
            return ()
        return tuple(sorted(application for one, application in self.of if one == name))


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


async def after_set_back(session: AsyncSession, now: datetime) -> int:
    """Where the clock was ahead, and was set back, who was seen meanwhile was seen now, and not for as long as it was
    wrong; returns how many they are."""
    seen = (_HANDLERS.c.first_seen_at, _HANDLERS.c.last_seen_at)
    lowered = {column.name: case((column > now, now), else_=column) for column in seen}
    wrong = or_(*(column > now + SET_BACK for column in seen))
    return await changed(session, update(_HANDLERS).where(wrong).values(lowered))


async def paused(session: AsyncSession) -> Paused:
    """The handlers that must not run now."""
    return Paused(frozenset((name, application) for name, application in await session.execute(_PAUSED)))


async def pauses(session: AsyncSession) -> Sequence[HandlerPauseRow]:
    """Those that are for one application alone, by handler and application."""
    ordered = select(HandlerPauseRow).order_by(_PAUSES.c.handler, _PAUSES.c.application)
    return (await session.execute(ordered)).scalars().all()


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


async def any_living(session: AsyncSession, now: datetime) -> bool:
    """Whether any worker lives."""
    since = now - timedelta(seconds=LIVE_S)
    return await session.scalar(select(_HANDLERS.c.name).where(_HANDLERS.c.last_seen_at >= since).limit(1)) is not None


async def gone(session: AsyncSession, names: Collection[str], now: datetime) -> frozenset[str]:
    """Those of these handlers that no living worker has; none before the first worker."""
    there = await living(session, now)
    return frozenset(names) - there if there else frozenset()


async def take_turns(session: AsyncSession, name: str) -> bool:
    """Whoever pauses this handler, or lets it go on, waits for who does so now: what is read after this stands until
    the transaction ends. False when the ledger does not know it."""
    known = select(_HANDLERS.c.name).where(_HANDLERS.c.name == name).with_for_update()
    return await session.scalar(known) is not None


async def pause(
    session: AsyncSession, name: str, *, by: str, reason: str, now: datetime, application: str = ALL
) -> bool:
    """Stop a handler, for one application where one is given: its runs wait. False when the ledger does not know it."""
    why = {"paused_at": now, "paused_by": by, "paused_reason": reason[:REASON_CHARS]}
    if application == ALL:
        return await _set(session, name, **why)
    if not await take_turns(session, name):
        return False
    insert = insert_into(_PAUSES, session.get_bind().dialect.name)
    statement = insert.on_conflict_do_update(index_elements=["handler", "application"], set_=why)
    await session.execute(statement, [{"handler": name, "application": application, **why}])
    return True


async def resume(session: AsyncSession, name: str, application: str = ALL) -> bool:
    """Let a paused handler go on, oldest first: for one application that it was paused for alone, or for all, however
    it was paused. False when the ledger does not know it, or not as paused for that one."""
    if not await take_turns(session, name):
        return False
    lifted = delete(_PAUSES).where(_PAUSES.c.handler == name)
    if application != ALL:
        one = lifted.where(_PAUSES.c.application == application).returning(_PAUSES.c.handler)
        return (await session.execute(one)).first() is not None
    await session.execute(lifted)
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
