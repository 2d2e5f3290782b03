"""Bodies: an event with its runs as a record of an archive; taken out of the ledger, and put back."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, RowMapping, Table, bindparam, func, select, text, true, update
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import insert_into
from consumer.errors import ArchiveForeign, ArchiveInvalid, ArchiveWaits
from consumer.events import Source
from consumer.ledger.archiving import derivation, quarantined
from consumer.ledger.archiving.documents import document, values
from consumer.ledger.archiving.settled import Aged, settled
from consumer.ledger.engine.chunks import matching
from consumer.ledger.handling.events import EventKey
from consumer.ledger.plans import plans
from consumer.ledger.reading import read_requests
from consumer.ledger.reading.sync_state import ANYBODY, FIRST_WALK, IDENTITY, LEFT, RECONCILE, SEEN_TO
from consumer.ledger.tables import (
    BookmarkRow,
    DeadLetterRow,
    EventRow,
    HandlerPauseRow,
    HandlerRow,
    ObservationRow,
    OutboxRow,
    QuarantineRow,
    ReadRow,
    RunRow,
)

_EVENTS: Table = EventRow.__table__
_RUNS: Table = RunRow.__table__
_LETTERS: Table = DeadLetterRow.__table__
_OUTBOX: Table = OutboxRow.__table__
_READS: Table = ReadRow.__table__
_HANDLERS: Table = HandlerRow.__table__
_PAUSES: Table = HandlerPauseRow.__table__
_OBSERVATIONS: Table = ObservationRow.__table__
_WALKS: Table = BookmarkRow.__table__
_QUARANTINE: Table = QuarantineRow.__table__
_AGED: Final = ("seq", "application", "id", "key", "type", "source", "received_at")
_CLAIM: Final = {"claimed_by": None, "claimed_until": None}
_TRIES: Final = {"waiting_since": None, "waiting_reason": None}
_BESIDE: Final = {
    "read": _READS, "handler": _HANDLERS, "pause": _PAUSES, "observation": _OBSERVATIONS, "quarantine": _QUARANTINE,
}  # fmt: skip
"""What comes along beside events, by its word in a record: what is here already stands."""
IS_HERE: Final = _EVENTS.c.archive.is_(None)
RUNS_MAX: Final = 10_000
NAMED: Final = 5
KEPT: Final = (FIRST_WALK, RECONCILE, IDENTITY, LEFT, SEEN_TO)
"""What walks of an application have noted that is true of another ledger of it, too."""
TAKEN: Final = b"{}"
"""What stands in the outbox for the data of a derived event whose body was taken out."""

Record = Mapping[str, Any]
"""`event` with its `runs`, the newest of each one's `letters` and, of a derived one, its `outbox` row; or an `outbox`
row alone, which is still to be sent; or a `read` that was asked for; or a `handler`, which may be paused; or a `pause`
of one for one application; or an `observation`, the last of its object; or a delivery in `quarantine`; or `first_walk`,
how an application's began, or what else is known of it since then (KEPT), in a ledger of so many `events`."""


FOREIGN: Final = (
    "its numbers are taken by others: it is an archive of another ledger, or was written after the backup from which "
    "this one was restored, which has worked since: what it forgot comes back from the log and the service, as far as "
    "these reach (deploy/backup.md)"
)


@dataclass(frozen=True, kw_only=True)
class Brought:
    """What of an archive came in: events that were not there, bodies that were not; what was there as it is; and what
    the ledger lacks, with the names of a few. `applications`: of which events came in. `first_walks`: what the archive
    says of them; see `take_first_walks`."""

    events: int = 0
    bodies: int = 0
    there: int = 0
    missing: int = 0
    named: tuple[EventKey, ...] = ()
    applications: frozenset[str] = frozenset()
    first_walks: tuple[Record, ...] = ()

    def __add__(self, other: Brought) -> Brought:
        return Brought(
            events=self.events + other.events,
            bodies=self.bodies + other.bodies,
            there=self.there + other.there,
            missing=self.missing + other.missing,
            named=(*self.named, *other.named)[:NAMED],
            applications=self.applications | other.applications,
            first_walks=(*self.first_walks, *other.first_walks),
        )


def digest(raw: bytes) -> str:
    """The hash of a body."""
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Body:
    """What a record has of an event: its hash and its size; None and 0 where the body lies in an older archive."""

    name: EventKey
    sha256: str | None
    bytes: int


def checked(record: Record) -> Body | None:
    """A record that can come in as it is; None: one without an event. Raises ArchiveInvalid."""
    if "first_walk" in record:
        _row(_WALKS, record["first_walk"])
        if not isinstance(record.get("events"), int):
            raise ArchiveInvalid("a first walk in a ledger of nobody knows how many events")
        return None
    for word in _BESIDE.keys() & record.keys():
        _row(_BESIDE[word], record[word])
        return None
    for word, table in (("runs", _RUNS), ("letters", _LETTERS)):
        found = record.get(word) or []
        if not isinstance(found, list) or len(found) > RUNS_MAX:
            raise ArchiveInvalid(f"a record's {word} are no list of {word}")
        for one in found:
            _row(table, one)
    if record.get("outbox") is not None or "event" not in record:
        _row(_OUTBOX, record.get("outbox"))
    if "event" not in record:
        return None
    row = _row(_EVENTS, record["event"])
    is_here = row.get("archive") is None
    return Body(
        name=(row["application"], row["id"]), sha256=digest(row["raw"]) if is_here else None, bytes=len(row["raw"])
    )


async def records(session: AsyncSession, names: Sequence[EventKey], *, archived: bool) -> Sequence[Record]:
    """These events with all that an archive holds of them, in the order of arrival; `archived`: also those whose body
    lies in another archive."""
    runs: dict[EventKey, list[dict[str, Any]]] = defaultdict(list)
    for where in _these(_RUNS.c.event_id, _RUNS, names):
        for row in (await session.execute(select(_RUNS).where(where).order_by(_RUNS.c.handler))).mappings():
            runs[row["application"], row["event_id"]].append(document(_RUNS, {**row, **_CLAIM}))
    letters: dict[EventKey, dict[str, dict[str, Any]]] = defaultdict(dict)
    for where in _these(_LETTERS.c.event_id, _LETTERS, names):
        for row in (await session.execute(select(_LETTERS).where(where).order_by(_LETTERS.c.id))).mappings():
            letters[row["application"], row["event_id"]][row["handler"]] = document(_LETTERS, dict(row))
    sent = {}
    for where in _these(_OUTBOX.c.event_id, _OUTBOX, names):
        for row in (await session.execute(select(_OUTBOX).where(where))).mappings():
            sent[row["application"], row["event_id"]] = document(_OUTBOX, dict(row))
    found = []
    for where in _these(_EVENTS.c.id, _EVENTS, names):
        wanted = select(_EVENTS).where(where)
        for row in (await session.execute(wanted if archived else wanted.where(IS_HERE))).mappings():
            name = (row["application"], row["id"])
            found.append({"event": document(_EVENTS, dict(row)), "runs": runs[name],
                          "letters": list(letters[name].values()), "outbox": sent.get(name)})  # fmt: skip
    return sorted(found, key=lambda one: int(one["event"]["seq"]))


async def unsettled(session: AsyncSession) -> AsyncIterator[Record]:
    """What is still to be done, for an archive of everything: reads that were asked for; who is paused; and derived
    events that were not sent yet, or were and have not come. The log they lie in may not be there any more, so they
    are to be sent again, under the ids they had."""
    for word, wanted in (
        ("read", select(_READS).order_by(_READS.c.due_at)),
        ("handler", select(_HANDLERS)),
        ("pause", select(_PAUSES)),
    ):
        async for row in await session.stream(wanted):
            yield {word: document(_BESIDE[word], dict(row._mapping))}
    for waits in (text("published_at IS NULL"), (_OUTBOX.c.on_way == true()) & _OUTBOX.c.published_at.is_not(None)):
        waiting = select(_OUTBOX).where(waits).order_by(_OUTBOX.c.not_before, _OUTBOX.c.seq)
        async for row in await session.stream(waiting):
            yield {"outbox": document(_OUTBOX, dict(row._mapping) | {"published_at": None})}


async def first_walks(session: AsyncSession, events: int) -> Sequence[Record]:
    """How the first walk of each application began, for an archive of everything, which holds so many events; whose
    data it is, and what history was left alone. A ledger that does not know takes for history whatever is older than an
    hour; and every paid order that it has not heard of, unless it knows that a walk of the state has remembered what
    was there before. One that does not know whose data it holds would act on anybody's (case S7)."""
    known = select(_WALKS).where(_WALKS.c.walk.in_(KEPT))
    rows = await session.execute(known.order_by(_WALKS.c.application, _WALKS.c.walk))
    found = [_baseline(row) if row["walk"] == RECONCILE else dict(row) for row in rows.mappings()]
    return [{"first_walk": document(_WALKS, row), "events": events} for row in found if row is not None]


async def baselined(session: AsyncSession) -> Sequence[str]:
    """The applications of which a walk of the state has remembered what was there before, in order."""
    rows = await session.execute(select(_WALKS).where(_WALKS.c.walk == RECONCILE).order_by(_WALKS.c.application))
    return [row["application"] for row in rows.mappings() if _baseline(row) is not None]


def _baseline(row: RowMapping) -> dict[str, Any] | None:
    """What stays true of reconcile in another ledger; not when it walked last, so that the next walk is due. None
    where the next walk is still to remember. Pure."""
    state = orjson.loads(row["state"])
    if state.get("early") or not state.get("baselined", state.get("began")):
        return None
    kept = {"baselined": True, "payments_baselined": bool(state.get("payments_baselined"))}
    return {**row, "state": orjson.dumps(kept)}


async def take_first_walks(session: AsyncSession, found: Sequence[Record]) -> int:
    """Know how the first walks began, unless walks have begun here: once all events are there, since what the ledger
    lacks is acted on from then. Whose data it is, is known at once. How many events are lacking."""
    here = int(await session.scalar(select(func.count()).select_from(_EVENTS)) or 0) if found else 0
    whole = [one for one in found if one["events"] <= here]
    for one in [*whole, *(one for one in found if one["first_walk"]["walk"] == IDENTITY)]:
        row = _row(_WALKS, one["first_walk"]) | {"token": ANYBODY}
        await session.execute(insert_into(_WALKS, session.get_bind().dialect.name).on_conflict_do_nothing(), [row])
    return 0 if whole else max((one["events"] - here for one in found), default=0)


async def require_no_replay(session: AsyncSession) -> None:
    """None begins before the transaction is over, either. Raises ArchiveWaits."""
    await plans.take_turns(session)
    if (row := await plans.applying(session)) is not None:
        raise ArchiveWaits(plan=row.id)


async def take_out(session: AsyncSession, archive: str, digests: Mapping[EventKey, str]) -> int:
    """Empty the bodies that lie in the archive with these hashes, and are still settled; how many. Raises ArchiveWaits
    while a replay plan is being applied: it needs them."""
    await require_no_replay(session)
    taken = 0
    for where in _these(_EVENTS.c.id, _EVENTS, digests):
        whole = select(*(_EVENTS.c[name] for name in _AGED), _EVENTS.c.raw)
        locked = whole.where(where, IS_HERE).order_by(_EVENTS.c.seq).with_for_update()
        rows = (await session.execute(locked)).mappings().all()
        same = [row for row in rows if digest(row["raw"]) == digests[row["application"], row["id"]]]
        aged = [Aged(**{name: row[name] for name in _AGED}, bytes=len(row["raw"])) for row in same]
        gone = await settled(session, aged)
        await _empty(session, archive, gone, digests)
        taken += len(gone)
    return taken


async def _empty(session: AsyncSession, archive: str, gone: Sequence[Aged], digests: Mapping[EventKey, str]) -> None:
    if not gone:
        return
    connection = await session.connection()
    emptied = update(_EVENTS).where(_EVENTS.c.seq == bindparam("of")).values(
        raw=b"", archive=archive, sha256=bindparam("link")
    )  # fmt: skip
    await connection.execute(emptied, [{"of": one.seq, "link": digests[one.name]} for one in gone])
    derived = [one.name for one in gone if one.source == Source.RELAY.value]
    for where in _these(_OUTBOX.c.event_id, _OUTBOX, derived):
        await session.execute(update(_OUTBOX).where(where, _OUTBOX.c.published_at.is_not(None)).values(data=TAKEN))


async def digests(session: AsyncSession, names: Sequence[EventKey]) -> Mapping[EventKey, str]:
    """The hashes of these bodies, wherever they lie."""
    found: dict[EventKey, str] = {}
    wanted = select(_EVENTS.c.application, _EVENTS.c.id, _EVENTS.c.raw, _EVENTS.c.sha256)
    for where in _these(_EVENTS.c.id, _EVENTS, names):
        for row in await session.execute(wanted.where(where)):
            found[row.application, row.id] = row.sha256 or digest(row.raw)
    return found


async def put_back(session: AsyncSession, found: Sequence[Record], *, brings_missing: bool) -> Brought:
    """Give events of the ledger their bodies back; `brings_missing`: also take in those that it lacks, as they were.
    Raises ArchiveInvalid; ArchiveForeign for an event that cannot be of this ledger."""
    events = {}
    for record in found:
        if "event" in record:
            row = _row(_EVENTS, record["event"])
            events[row["application"], row["id"]] = (row, record)
    known = await _known(session, list(events))
    missing = [] if brings_missing else [name for name in events if name not in known]
    brought = Brought(missing=len(missing), named=tuple(missing[:NAMED]))
    back = [name for name, row in known.items() if row["archive"] and events[name][0].get("archive") is None]
    await _restore(session, {name: events[name] for name in back}, known)
    brought += Brought(bodies=len(back), there=len(known) - len(back))
    if brings_missing:
        news = [pair for name, pair in events.items() if name not in known]
        await _take_in(session, news)
        applications = frozenset(row["application"] for row, _ in news)
        await derivation.owe(session, applications)
        await _take_unsent(session, [_row(_OUTBOX, one["outbox"]) for one in found if one.keys() == {"outbox"}])
        reads = [_row(_READS, one["read"]) for one in found if "read" in one]
        await _take_beside(session, _READS, reads)
        observed = [_row(_OBSERVATIONS, one["observation"]) for one in found if "observation" in one]
        await _take_beside(session, _OBSERVATIONS, observed)
        if versions := [*(row.get("asked_after", 0) for row in reads), *(row["version"] for row in observed)]:
            await read_requests.count_from(session, max(versions))
        known_there = [_row(_HANDLERS, one["handler"]) | _TRIES for one in found if "handler" in one]
        await _take_beside(session, _HANDLERS, known_there)
        await _take_beside(session, _PAUSES, [_row(_PAUSES, one["pause"]) for one in found if "pause" in one])
        await quarantined.take_in(
            session, [_row(_QUARANTINE, one["quarantine"]) for one in found if "quarantine" in one]
        )
        walks = tuple(one for one in found if "first_walk" in one)
        brought += Brought(events=len(news), applications=applications, first_walks=walks)
        await _go_on_counting(session)
    return brought


async def _known(session: AsyncSession, names: Sequence[EventKey]) -> Mapping[EventKey, RowMapping]:
    found = {}
    columns = (_EVENTS.c.application, _EVENTS.c.id, _EVENTS.c.seq, _EVENTS.c.archive, _EVENTS.c.sha256)
    for where in _these(_EVENTS.c.id, _EVENTS, names):
        for row in (await session.execute(select(*columns).where(where))).mappings():
            found[row["application"], row["id"]] = row
    return found


async def _restore(
    session: AsyncSession,
    found: Mapping[EventKey, tuple[dict[str, Any], Record]],
    known: Mapping[EventKey, RowMapping],
) -> None:
    if not found:
        return
    for name, (row, _) in found.items():
        if digest(row["raw"]) != known[name]["sha256"]:
            raise ArchiveForeign("an event's body is not the one that was taken out", event_id=name[1][:100])
    connection = await session.connection()
    filled = update(_EVENTS).where(_EVENTS.c.seq == bindparam("of")).values(
        raw=bindparam("body"), archive=None, sha256=None
    )  # fmt: skip
    await connection.execute(
        filled, [{"of": known[name]["seq"], "body": row["raw"]} for name, (row, _) in found.items()]
    )
    sent = [_row(_OUTBOX, record["outbox"]) for _, record in found.values() if record.get("outbox")]
    if sent:
        mine = (_OUTBOX.c.application == bindparam("mine"), _OUTBOX.c.event_id == bindparam("of"))
        data = [{"mine": row["application"], "of": row["event_id"], "body": row["data"]} for row in sent]
        await connection.execute(update(_OUTBOX).where(*mine).values(data=bindparam("body")), data)


async def _take_in(session: AsyncSession, news: Sequence[tuple[dict[str, Any], Record]]) -> None:
    await _insert(session, _EVENTS, [row for row, _ in news])
    await _insert(session, _RUNS, [_row(_RUNS, one) | _CLAIM for _, record in news for one in record.get("runs") or ()])
    letters = [_row(_LETTERS, one) for _, record in news for one in record.get("letters") or ()]
    await _insert(session, _LETTERS, [{name: one[name] for name in one if name != "id"} for one in letters])
    await _take_sent(session, [_row(_OUTBOX, record["outbox"]) for _, record in news if record.get("outbox")])


async def _take_sent(session: AsyncSession, sent: Sequence[dict[str, Any]]) -> None:
    """An older archive may have said of one that it was still to be sent: it was. One from before `ledger_0020` says
    nothing of marks: these have come."""
    there = await _there(session, sent)
    await _insert(session, _OUTBOX, [{"on_way": None} | row for row in sent if _named(row) not in there])
    news = [{"mine": row["application"], "of": row["event_id"], "at": row.get("published_at")} for row in sent
            if _named(row) in there and row.get("published_at") is not None]  # fmt: skip
    if news:
        connection = await session.connection()
        mine = (_OUTBOX.c.application == bindparam("mine"), _OUTBOX.c.event_id == bindparam("of"))
        await connection.execute(update(_OUTBOX).where(*mine).values(published_at=bindparam("at"), on_way=None), news)


async def _take_unsent(session: AsyncSession, waiting: Sequence[dict[str, Any]]) -> None:
    there = await _there(session, waiting)
    await _insert(session, _OUTBOX, [row for row in waiting if _named(row) not in there])


async def _take_beside(session: AsyncSession, table: Table, found: Sequence[dict[str, Any]]) -> None:
    """A read from an older archive may have been answered: it is made again."""
    if found:
        await session.execute(insert_into(table, session.get_bind().dialect.name).on_conflict_do_nothing(), found)


async def _there(session: AsyncSession, rows: Sequence[dict[str, Any]]) -> set[EventKey]:
    """Which of these derived events the outbox has."""
    found: set[EventKey] = set()
    for where in _these(_OUTBOX.c.event_id, _OUTBOX, map(_named, rows)):
        known = await session.execute(select(_OUTBOX.c.application, _OUTBOX.c.event_id).where(where))
        found |= {(application, event_id) for application, event_id in known}
    return found


def _named(row: Mapping[str, Any]) -> EventKey:
    return (row["application"], row["event_id"])


async def _insert(session: AsyncSession, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    """Raises ArchiveForeign when one of them meets another row."""
    if not rows:
        return
    key = list(table.primary_key.columns)
    statement = insert_into(table, session.get_bind().dialect.name).on_conflict_do_nothing().returning(*key)
    done = (await session.execute(statement, rows)).all()
    if len(done) != len(rows):
        raise ArchiveForeign(FOREIGN, table=table.name)


async def _go_on_counting(session: AsyncSession) -> None:
    """After rows came in with their numbers: the next ones get higher ones (PostgreSQL counts beside the table). With
    every portion, so that an import that ends half way leaves a ledger that can go on."""
    if session.get_bind().dialect.name != "postgresql":
        return
    for table, column in ((_EVENTS, _EVENTS.c.seq), (_OUTBOX, _OUTBOX.c.seq)):
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        newest = select(func.coalesce(func.max(column), 1)).scalar_subquery()
        await session.execute(select(func.setval(sequence, func.greatest(newest, func.nextval(sequence)))))


def _row(table: Table, found: Any) -> dict[str, Any]:
    try:
        return values(table, found)
    except ValueError as error:
        raise ArchiveInvalid(reason=str(error)) from error


def _these(column: Any, table: Table, names: Any) -> Iterator[ColumnElement[bool]]:
    return matching(column, (table.c.application,), ((event_id, application) for application, event_id in names))
