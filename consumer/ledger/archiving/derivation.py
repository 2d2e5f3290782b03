"""Derivation: whether events came in from archives of which the tables of the plugins do not tell yet. Their runs are
done, so no worker will make up for it: only a rebuild of all plugins does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import uuid4

import orjson
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotDerived
from consumer.ledger import audit, leases
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.leases import ARCHIVES, FAR, IMPORT, LEASE_S, REBUILD
from consumer.ledger.reading import key_values

BEGINS: Final = "archive/not_derived/"
OWED: Final = "owed"
COMING: Final = "archive/coming"
COMING_FOR: Final = timedelta(hours=1)
"""Longer than a trail takes; then events come in. One that was killed before that keeps nobody for ever."""
FILES: Final = "archive/coming_files"
HALF: Final = "archive/half"
"""Of these files events came in, and it is not known that all did: that does not end by itself."""
UNKNOWN: Final = "?"
"""Stands for files of which an older build did not note the names: any import that ends well takes it for in."""
NAMED_MOST: Final = 3
CUT: Final = "`events import --missing` is under way, or was cut: type it again, then `consumer rebuild all`"
UNDER_WAY: Final = "`consumer rebuild`, or `events import --missing`, is under way: start again when it is over"


@dataclass(frozen=True)
class Mark:
    """What an application owes: the text as it is stored, and the newest entry of the trail when it began to owe. None:
    nobody knows, or nothing waits."""

    text: str
    entry: int | None


async def begin(session: AsyncSession, files: Sequence[str]) -> str:
    """Events of these files are about to come in: no worker starts until `end`, which takes what this returns. Before
    the first of them is in, none waits longer than COMING_FOR."""
    began = (await shared_time(session)).isoformat()
    await key_values.keep(session, COMING, began)
    await key_values.keep(session, FILES, _listed(files))
    return began


async def end(session: AsyncSession, began: str, *, whole: Collection[str] = ()) -> None:
    """What was about to come in is in, as far as it is `whole`: the names of its files. The rest does not come now."""
    await key_values.swap(session, COMING, began, "")
    if whole and (cut := await lacking(session)):
        await key_values.keep(session, HALF, _listed(name for name in cut if name not in {*whole, UNKNOWN}))


async def owe(session: AsyncSession, applications: Iterable[str]) -> None:
    """Events of these came in when the audit trail had its newest entry. One that waits already waits from then on; its
    mark is a new one all the same, which a rebuild that began before does not settle."""
    known, names = await marks(session), sorted(set(applications))
    if names and await key_values.load(session, COMING):
        coming = orjson.loads(await key_values.load(session, FILES) or "[]")
        await key_values.keep(session, HALF, _listed({*await lacking(session), *coming}))
    for application in names:
        entry = known[application].entry if application in known else None
        entry = await audit.newest_id(session) if entry is None else entry
        await key_values.keep(session, f"{BEGINS}{application}", f"{OWED} {entry} {uuid4().hex}")


async def owed(session: AsyncSession) -> frozenset[str]:
    """The applications of which the tables lack what events tell that came in."""
    return frozenset(await marks(session))


async def lacking(session: AsyncSession) -> Sequence[str]:
    """The files that were to come in when only a part of them did, so far; by name. UNKNOWN where none was noted."""
    text = await key_values.load(session, HALF) or "[]"
    names: list[str] = orjson.loads(text) if text.startswith("[") else [UNKNOWN]
    return names


async def require_derived(session: AsyncSession) -> frozenset[str]:
    """Whether work waits for a rebuild: who works before ships what is held and forgets gifts, and then no rebuild
    agrees with what was told. So where a handler has changed something since, it is too late to wait for one: what is
    owed is returned. So it is where no entry is known: an operator gave up, or a version before 2026-11-30 took it in.
    Raises NotDerived."""
    await _require_nobody_derives(session)
    await require_all_in(session)
    known = await marks(session)
    for entry in {mark.entry for mark in known.values() if mark.entry is not None}:
        if not await audit.handled_after(session, entry):
            raise NotDerived(applications=", ".join(sorted(known)))
    return frozenset(known)


async def _require_nobody_derives(session: AsyncSession) -> None:
    """What a worker writes beside a rebuild is lost, or counted twice."""
    lease = await leases.current(session, ARCHIVES)
    if lease is None or not lease.holder.endswith((f"/{IMPORT}", f"/{REBUILD}")):
        return
    if 0 < (lease.until - await shared_time(session)).total_seconds() <= FAR * LEASE_S:
        raise NotDerived(UNDER_WAY)


async def require_all_in(session: AsyncSession) -> None:
    """Raises NotDerived while events come in, and where an import was cut when some were in, or lately: half of a past
    is no ground to derive from, nor to work on."""
    coming = await key_values.load(session, COMING)
    is_coming = coming and await shared_time(session) - datetime.fromisoformat(coming) < COMING_FOR
    if (cut := await lacking(session)) or is_coming:
        named = ", ".join(cut[:NAMED_MOST]) + (f" and {len(cut) - NAMED_MOST} more" if len(cut) > NAMED_MOST else "")
        raise NotDerived(CUT, files=named) if cut else NotDerived(CUT)


async def give_up(session: AsyncSession) -> Sequence[str]:
    """Nothing waits any more for a rebuild that cannot agree, nor for an import that was cut; it stays owed. The
    applications, in order."""
    names = sorted(await marks(session))
    for application in names:
        await key_values.keep(session, f"{BEGINS}{application}", OWED)
    for name in (COMING, FILES, HALF):
        await key_values.keep(session, name, "")
    return names


async def settle(session: AsyncSession, known: Mapping[str, Mark]) -> None:
    """The tables of all plugins were derived again, of every application. `known`: the marks when that began."""
    for application, mark in known.items():
        await key_values.swap(session, f"{BEGINS}{application}", mark.text, "")


async def marks(session: AsyncSession) -> Mapping[str, Mark]:
    """What is owed, by application."""
    found = await key_values.beginning(session, BEGINS)
    return {name.removeprefix(BEGINS): Mark(text, _entry(text)) for name, text in found.items() if text}


def _entry(text: str) -> int | None:
    words = text.split()
    return int(words[1]) if len(words) > 1 else None


def _listed(names: Iterable[str]) -> str:
    """As it is stored; none is nothing."""
    found = sorted(names)
    return orjson.dumps(found).decode() if found else ""
