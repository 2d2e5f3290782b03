"""Leases: one leader per role, with a fencing token that only goes up (case B26)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Table, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.ledger.tables import LeaseRow

_LEASES: Table = LeaseRow.__table__
FAR = 10
READER: Final = "sync/"
"""How the role of who reads an application begins; its name follows."""
ARCHIVES: Final = "archive"
"""The role of who writes archives, brings in what the ledger lacks, or derives tables again."""
IMPORT: Final = "import"
REBUILD: Final = "rebuild"
"""How the holder's name ends where `events import --missing`, or `rebuild`, has that role: behind a `/`."""
LEASE_S: Final = 15.0
"""So long a dead process keeps a role: the lead of an application, the replay."""
RELAY_LEASE_S: Final = 10.0
"""So long it keeps the relay."""
CLAIM_LEASE_S: Final = 15.0
"""So long a dead worker keeps a run that it claimed (`handling/runs.py`)."""
LED_LATELY: Final = timedelta(minutes=1)
"""A lease is renewed every few seconds, by the database's clock and not by who looks."""


@dataclass(frozen=True)
class Lease:
    """A role held until a time. A later holder has a higher token."""

    role: str
    holder: str
    token: int
    until: datetime


async def acquire(session: AsyncSession, role: str, holder: str, now: datetime, lease_s: float) -> Lease | None:
    """Take the role, or keep it; None when another holds it. One statement decides, so two never both win.

    A lease that ends more than FAR times `lease_s` from now was reckoned by a clock that was wrong, or has been set
    back since: it holds nobody off. Its holder, if it lives, learns of it when it renews.
    """
    until = now + timedelta(seconds=lease_s)
    far = now + timedelta(seconds=FAR * lease_s)
    insert = insert_into(_LEASES, session.get_bind().dialect.name)
    mine = _LEASES.c.holder == holder
    statement = (
        insert.values(role=role, holder=holder, token=1, until=until)
        .on_conflict_do_update(
            index_elements=["role"],
            set_={"holder": holder, "token": _LEASES.c.token + 1, "until": until},
            where=or_(_LEASES.c.until < now, _LEASES.c.until > far, mine),
        )
        .returning(_LEASES.c.token)
    )
    token = (await session.execute(statement)).scalar()
    return None if token is None else Lease(role, holder, int(token), until)


async def current(session: AsyncSession, role: str) -> Lease | None:
    """The lease of the role as it stands; None when it was never taken. It may be over, or given back."""
    columns = (_LEASES.c.holder, _LEASES.c.token, _LEASES.c.until)
    row = (await session.execute(select(*columns).where(_LEASES.c.role == role))).one_or_none()
    return None if row is None else Lease(role, row.holder, int(row.token), row.until)


async def leader(session: AsyncSession, application: str, now: datetime) -> str | None:
    """The `sync` that reads this application now, as its process is named; None where none does, or a command."""
    lease = await current(session, f"{READER}{application}")
    return lease.holder if lease and lease.until > now - LED_LATELY and "/" not in lease.holder else None


async def led(session: AsyncSession, now: datetime) -> list[str]:
    """The applications that some process reads now, by name."""
    roles = select(_LEASES.c.role, _LEASES.c.until).where(_LEASES.c.role.startswith(READER))
    held = [role for role, until in await session.execute(roles) if is_held(until, now, lately=LED_LATELY)]
    return sorted(role.removeprefix(READER) for role in held)


def is_held(until: datetime, now: datetime, *, lately: timedelta = timedelta(0)) -> bool:
    """Whether somebody has the lead or the replay now, or had it `lately`, by when the lease ends. One that ends too
    far from now holds nobody off (`acquire`)."""
    return now - lately <= until <= now + timedelta(seconds=FAR * LEASE_S)


async def release(session: AsyncSession, lease: Lease) -> None:
    """Give the role back at once, so that another need not wait for its end."""
    await session.execute(
        update(_LEASES)
        .where(_LEASES.c.role == lease.role, _LEASES.c.holder == lease.holder)
        .values(until=datetime.fromtimestamp(0, lease.until.tzinfo))
    )
