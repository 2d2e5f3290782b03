"""Derivation: whether events came in from archives of which the tables of the plugins do not tell yet. Their runs are
done, so no worker will make up for it: only a rebuild of all plugins does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotDerived
from consumer.ledger import audit
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import key_values

BEGINS: Final = "archive/not_derived/"
OWED: Final = "owed"
COMING: Final = "archive/coming"
COMING_FOR: Final = timedelta(hours=1)
"""Longer than a trail takes; what follows it owes. One that was killed before events came in keeps nobody for ever."""
CUT: Final = "`events import --missing` is under way, or was cut: type it again, then `consumer rebuild all`"


async def begin(session: AsyncSession) -> None:
    """Events are about to come in: no worker starts until `end`, or COMING_FOR is over."""
    await key_values.keep(session, COMING, (await shared_time(session)).isoformat())


async def end(session: AsyncSession) -> None:
    """What was about to come in is in, or does not come."""
    await key_values.keep(session, COMING, "")


async def owe(session: AsyncSession, applications: Iterable[str]) -> None:
    """Events of these came in when the audit trail had its newest entry. One that waits already waits from then on."""
    waiting = {application for application, entry in (await _marks(session)).items() if entry is not None}
    for application in sorted(set(applications) - waiting):
        await key_values.keep(session, f"{BEGINS}{application}", f"{OWED} {await audit.newest_id(session)}")


async def owed(session: AsyncSession) -> frozenset[str]:
    """The applications of which the tables lack what events tell that came in."""
    return frozenset(await _marks(session))


async def require_derived(session: AsyncSession) -> frozenset[str]:
    """Whether work waits for a rebuild: who works before ships what is held and forgets gifts, and then no rebuild
    agrees with what was told. So where a handler has changed something since, it is too late to wait for one: what is
    owed is returned. So it is where no entry is known: an operator gave up, or a version before 2026-11-30 took it in.
    Raises NotDerived."""
    await require_all_in(session)
    marks = await _marks(session)
    for entry in {entry for entry in marks.values() if entry is not None}:
        if not await audit.handled_after(session, entry):
            raise NotDerived(applications=", ".join(sorted(marks)))
    return frozenset(marks)


async def require_all_in(session: AsyncSession) -> None:
    """Raises NotDerived while events come in, or an import was cut lately: half of a past is no ground to derive from,
    nor to work on."""
    coming = await key_values.load(session, COMING)
    if coming and await shared_time(session) - datetime.fromisoformat(coming) < COMING_FOR:
        raise NotDerived(CUT)


async def give_up(session: AsyncSession) -> Sequence[str]:
    """Nothing waits any more for a rebuild that cannot agree, nor for an import that was cut; it stays owed. The
    applications, in order."""
    names = sorted(await _marks(session))
    for application in names:
        await key_values.keep(session, f"{BEGINS}{application}", OWED)
    await end(session)
    return names


async def settle(session: AsyncSession) -> None:
    """The tables of all plugins were derived again, of every application."""
    for application in await _marks(session):
        await key_values.keep(session, f"{BEGINS}{application}", "")
    await end(session)


async def _marks(session: AsyncSession) -> Mapping[str, int | None]:
    """Application to the newest entry of the trail when it began to owe; None: nobody knows, or nothing waits."""
    found = await key_values.beginning(session, BEGINS)
    entries = {name.removeprefix(BEGINS): value.removeprefix(OWED).strip() for name, value in found.items() if value}
    return {application: int(entry) if entry else None for application, entry in entries.items()}
