"""Processes: every role tells the ledger now and then that it lives and what it last proved, so that `status` can name
the one that is not there. A process that plays several roles (`dev`) has a row for each."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, Exists, Table, delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.clock import SET_BACK
from consumer.columns import insert_into
from consumer.ledger.base_tables import ProcessRow

_PROCESSES: Table = ProcessRow.__table__
FORGOTTEN_AFTER: Final = timedelta(days=7)
REPLACED_AFTER: Final = timedelta(hours=1)
"""Where a role was started anew, nobody asks for the dead of its host that long ago: a crash loop leaves no heap."""
HEARD_WITHIN: Final = timedelta(seconds=30)
HOST_CHARS: Final = 100
DIED_CHARS: Final = 200
LISTED_MAX: Final = 200
"""Of each role: one that dies again and again hides no other."""
SAYS: Final = "says:"
"""Before what a process says of itself, where it is stored beside the checks: an older version takes it for one."""
HANDLERS: Final = "handlers"
INSTALLED: Final = "installed_handlers"
BROKEN: Final = "broken_plugins"
READS: Final = "applications"
GAVE_WAY: Final = "gave_way"
SIGNATURES: Final = "signatures"
UNPROVED: Final = "unproved"
MISADDRESSED: Final = "misaddressed"
UNACCOUNTED: Final = "unaccounted"
FLOODED: Final = "flooded"
DIED: Final = "died"
PREFIX: Final = "topic_prefix"
LOG: Final = "log"
USER: Final = "database_user"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a check of a process answered last. `code`: why it failed, None when it did not; `reason`: its sentence."""

    code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Pulse:
    """What a process says of itself. `ready` since `since`, or not; `checks` by name; `answered` and `refused`: the
    webhooks it answered in the last minutes, and how many of them with 503. `said`: the words above to what it says
    of itself: the handlers it runs, those that are installed, the plugins it cannot load, the applications it reads,
    of which it gave the lead back as it is refused (names, a space between two); webhooks it refused for their
    signature or their address, many unproved bytes that it stored, and how many of `refused` there was no room for,
    here or among its application's unproved ones (JSON, by application); why it cannot account for money and access;
    why it ended, where nobody told it to; its topics' prefix, and the log that they are on; the user it is to the
    database."""

    process: str
    role: str
    host: str
    pid: int
    version: str
    started_at: datetime
    ready: bool
    since: datetime
    checks: Mapping[str, Proof] = field(default_factory=dict)
    answered: int = 0
    refused: int = 0
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Process(Pulse):
    """The same as the ledger has it, by the database's clock. `stopped_at`: it ended cleanly then."""

    seen_at: datetime
    stopped_at: datetime | None = None


async def beat(session: AsyncSession, pulses: Sequence[Pulse], now: datetime) -> None:
    """Write what these say of themselves; `now` is the database's. Those not seen for a week are forgotten."""
    insert = insert_into(_PROCESSES, session.get_bind().dialect.name)
    kept = ("process", "role")
    changed = {column.name: insert.excluded[column.name] for column in _PROCESSES.c if column.name not in kept}
    statement = insert.on_conflict_do_update(index_elements=list(kept), set_=changed)
    await session.execute(statement, [_values(pulse, now) for pulse in pulses])
    await session.execute(delete(_PROCESSES).where(_PROCESSES.c.seen_at < now - FORGOTTEN_AFTER))


def _values(pulse: Pulse, now: datetime) -> dict[str, Any]:
    told = {f"{SAYS}{name}": Proof(reason=text) for name, text in pulse.said.items()}
    checks = {name: asdict(proof) for name, proof in {**pulse.checks, **told}.items()}
    values = asdict(pulse) | {"checks": orjson.dumps(checks).decode(), "seen_at": now, "stopped_at": None}
    del values["said"]
    return values | {"host": pulse.host[:HOST_CHARS], "version": pulse.version[:40]}


async def after_set_back(session: AsyncSession, now: datetime) -> int:
    """Where the clock was ahead, and was set back, who was seen meanwhile was seen now, and has lived for as long: else
    one that died would look alive for as long as the clock was wrong. Returns how many they are."""
    times = ("started_at", "since", "seen_at", "stopped_at")
    key = (_PROCESSES.c.process, _PROCESSES.c.role)
    wrong = select(*key, *(_PROCESSES.c[name] for name in times)).where(_PROCESSES.c.seen_at > now + SET_BACK)
    rows = (await session.execute(wrong.order_by(*key).with_for_update(skip_locked=True))).mappings().all()
    for row in rows:
        ahead = row["seen_at"] - now
        right = {name: row[name] - ahead for name in times if row[name] is not None}
        one = (_PROCESSES.c.process == row["process"], _PROCESSES.c.role == row["role"])
        await session.execute(update(_PROCESSES).where(*one).values(right))
    return len(rows)


async def forget_replaced(session: AsyncSession, roles: Sequence[str], host: str, now: datetime) -> None:
    """A process of these roles began on this host: those that ended there long ago are nobody's."""
    where = (_PROCESSES.c.role.in_(roles), _PROCESSES.c.host == host[:HOST_CHARS])
    await session.execute(delete(_PROCESSES).where(_PROCESSES.c.seen_at < now - REPLACED_AFTER, *where))


async def ended(session: AsyncSession, process: str, now: datetime) -> None:
    """This process ends because it was told to."""
    await session.execute(update(_PROCESSES).where(_PROCESSES.c.process == process).values(stopped_at=now))


def lived_on(process: ColumnElement[str | None], after: ColumnElement[datetime]) -> Exists:
    """Whether this process, of whatever row a statement reads, told that it lives `after` then, or was stopped. No two
    have a name, and all times are the database's. One that tells no more may have died, or stand still and tell later.
    """
    said = or_(_PROCESSES.c.seen_at > after, _PROCESSES.c.stopped_at.is_not(None))
    return exists().where(_PROCESSES.c.process == process, said)


async def living(session: AsyncSession, role: str, now: datetime) -> list[Process]:
    """Those of this role that were heard lately, and neither stopped nor died; `now` is the database's."""
    here = (_PROCESSES.c.role == role, _PROCESSES.c.seen_at >= now - HEARD_WITHIN, _PROCESSES.c.stopped_at.is_(None))
    rows = (await session.execute(select(_PROCESSES).where(*here).limit(LISTED_MAX))).mappings()
    return [one for row in rows if DIED not in (one := _process(dict(row))).said]


async def listed(session: AsyncSession) -> list[Process]:
    """Every process of the last week, the one seen last first; bounded."""
    turn = func.row_number().over(partition_by=_PROCESSES.c.role, order_by=_PROCESSES.c.seen_at.desc())
    ranked = select(_PROCESSES, turn.label("turn")).subquery()
    newest = select(*(ranked.c[column.name] for column in _PROCESSES.c)).where(ranked.c.turn <= LISTED_MAX)
    statement = newest.order_by(ranked.c.seen_at.desc(), ranked.c.role)
    return [_process(dict(row)) for row in (await session.execute(statement)).mappings()]


def _process(row: dict[str, Any]) -> Process:
    told = {name: Proof(**proof) for name, proof in orjson.loads(row.pop("checks")).items()}
    said = {name.removeprefix(SAYS): proof.reason or "" for name, proof in told.items() if name.startswith(SAYS)}
    return Process(checks={name: one for name, one in told.items() if not name.startswith(SAYS)}, said=said, **row)


def place_of(holder: str) -> str:
    """Where the process is that this name is of, for an operator. Pure."""
    parts = holder.rsplit("-", 2)
    return f"pid {parts[1]} on {parts[0]}" if len(parts) == 3 and parts[1].isdigit() else holder


def worker_id() -> str:
    """A name for this process that no other has, at most 64 characters."""
    return f"{socket.gethostname()[:30]}-{os.getpid()}-{secrets.token_hex(4)}"
