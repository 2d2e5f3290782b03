"""Timeline: what happened to one order, subscription or customer, in the order in which we learned it, each with what
brought it about; and what the runs that are not over wait for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, FromClause, Table, alias, and_, exists, not_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.columns import among
from consumer.console.alarms.queues import KINDS, TABLES
from consumer.console.cure import redrive
from consumer.ledger.audit import by_handler
from consumer.ledger.handling.handlers import bystanders, waits_for
from consumer.ledger.tables import (
    AuditRow,
    DeadLetterRow,
    EventRow,
    HandlerPauseRow,
    HandlerRow,
    OutboxRow,
    RunRow,
    RunStatus,
)
from handlers.findings import LEFT_OPEN

EVENTS: Table = EventRow.__table__
AUDIT: Table = AuditRow.__table__
DEAD: Table = DeadLetterRow.__table__
OUTBOX: Table = OutboxRow.__table__
RUNS: Table = RunRow.__table__
HANDLERS: Table = HandlerRow.__table__
PAUSES: Table = HandlerPauseRow.__table__
REQUESTED: Final = "fulfilment.requested"
ENTRIES_MAX: Final = 200
Entry = dict[str, Any]
_LATER: Final = alias(DEAD)


def _is_about(table: FromClause) -> ColumnElement[bool]:
    """The same run as the death is about."""
    return and_(*(table.c[name] == DEAD.c[name] for name in ("application", "event_id", "handler")))


_IS_DEAD: Final = and_(
    exists().where(_is_about(RUNS), RUNS.c.status == RunStatus.DEAD.value),
    not_(exists().where(_is_about(_LATER), _LATER.c.id > DEAD.c.id)),
)
"""The death that its run is still dead of: nobody has seen to it."""


async def timeline(
    session: AsyncSession,
    application: str,
    key: str,
    *,
    plugin: str | None = None,
    about: Sequence[str] = (),
    steps: Sequence[Mapping[str, Any]] = (),
) -> list[Entry]:
    """Events of the aggregate, the changes they made, the runs that did not simply succeed (also what was dead and was
    redriven), and those of handlers that fulfil, which shipped, or handed the order on by one of `steps`; what `plugin`
    found `about` these ids, open or closed.

    `at` is when we learned of it, `happened_at` when the service says that it happened, `cause` the event it was
    derived from. What came at one instant stands as it came about: what a person said, the event, what it changed, what
    was found, what was derived of it.
    """
    events = await newest(session, EVENTS, EVENTS.c.seq, and_(EVENTS.c.application == application, EVENTS.c.key == key))
    changes = await newest(session, AUDIT, AUDIT.c.id, and_(AUDIT.c.application == application, AUDIT.c.subject == key))
    if about:  # what an operator would have closed, had there not been more of it by then
        theirs = among(AUDIT.c.subject, [f"object:{one}" for one in about])
        left = and_(AUDIT.c.application == application, theirs, AUDIT.c.action == LEFT_OPEN)
        changes = [*changes, *await newest(session, AUDIT, AUDIT.c.id, left)]
    requested = [row["id"] for row in events if row["type"] == REQUESTED] + [one["event_id"] for one in steps]
    handed_on = {(one["cause"], one["by"]) for one in steps}
    delivered = (RUNS.c.event_id.in_(requested), RUNS.c.status == "succeeded", RUNS.c.handler.not_in(bystanders()))
    shown = or_(RUNS.c.code.is_not(None), and_(*delivered))
    with_runs = {*(row["id"] for row in events), *requested}
    ours = and_(RUNS.c.application == application, among(RUNS.c.event_id, sorted(with_runs)))
    runs = await newest(session, RUNS, RUNS.c.seq, and_(ours, shown)) if events else []
    died = and_(DEAD.c.application == application, among(DEAD.c.event_id, [row["id"] for row in events]))
    was_dead = await newest(session, DEAD, DEAD.c.id, and_(died, not_(_IS_DEAD))) if events else []
    causes = await _causes(session, application, [row["id"] for row in events])
    entries = [((row["received_at"], 4 * (row["id"] in causes), row["seq"]), _event(row, causes)) for row in events]
    entries += [((row["at"], 1 if by_handler(row["actor"]) else -1, row["id"]), _change(row)) for row in changes]
    entries += [((one["at"], 2, 0), one) for one in await _findings(session, application, plugin, about)]
    entries += [((row["died_at"], 5, row["id"]), _death(row)) for row in was_dead]
    seen_to = {(row["event_id"], row["handler"]) for row in was_dead}
    # What was not tried again since somebody saw to its death says what it died of, and nothing has happened.
    tried = [row for row in runs if row["attempts"] > 0 or (row["event_id"], row["handler"]) not in seen_to]
    entries += [((row["updated_at"], 5, row["seq"]), _run(row, requested, handed_on)) for row in tried]
    return [entry for _, entry in sorted(entries, key=lambda one: one[0])]


def _event(row: Mapping[str, Any], causes: Mapping[str, str]) -> Entry:
    found: Entry = {"at": row["received_at"], "code": row["type"], "event_id": row["id"]}
    found |= {"trust": row["trust"], "source": row["source"]}
    if row["occurred_at"] is not None and row["occurred_at"] != row["received_at"]:
        found["happened_at"] = row["occurred_at"]
    if row["id"] in causes:
        found["cause"] = causes[row["id"]]
    return found


def _change(row: Mapping[str, Any]) -> Entry:
    """What a handler changed says which event it was; what a person changed says the person's reason."""
    why = {"event_id" if by_handler(row["actor"]) else "reason": row["reason"]}
    change = {"before": _json(row["before"]), "after": _json(row["after"])}
    return {"at": row["at"], "code": row["action"], "by": row["actor"]} | why | change


async def _findings(session: AsyncSession, application: str, plugin: str | None, about: Sequence[str]) -> list[Entry]:
    """What was found, and what settled it: that its cause was gone, or a person and why."""
    if plugin is None:
        return []
    table = TABLES[plugin]
    found = and_(table.c.application == application, among(table.c.kind, sorted(KINDS)), among(table.c.subject, about))
    entries: list[Entry] = []
    for row in await newest(session, table, table.c.opened_at, found):
        one = {"finding": row["kind"], "about": row["subject"]}
        entries.append({"at": row["opened_at"], "code": "finding.opened"} | one | {"detail": row["detail"]})
        if row["closed_at"] is not None:
            closed = {"at": row["closed_at"], "code": "finding.closed", "by": row["closed_by"]}
            entries.append(closed | one | {"reason": row["closed_reason"] or "its cause is gone"})
    return entries


def _run(row: Mapping[str, Any], requested: Sequence[str], handed_on: Collection[tuple[str, str]]) -> Entry:
    shipped = row["status"] == RunStatus.SUCCEEDED and row["event_id"] in requested
    word = "handed_on" if (row["event_id"], row["handler"]) in handed_on else "shipped"
    code = word if shipped else f"run.{row['status']}"
    found = {"at": row["updated_at"], "code": code, "by": row["handler"], "event_id": row["event_id"]}
    return found if shipped else found | {"attempts": row["attempts"], "error": row["code"], "reason": row["reason"]}


def _death(row: Mapping[str, Any]) -> Entry:
    """A run that was dead once, and that somebody has seen to: what it is now is told by itself."""
    found = {"at": row["died_at"], "code": "run.dead", "by": row["handler"], "event_id": row["event_id"]}
    return found | {"attempts": row["attempts"], "error": row["code"], "reason": row["reason"]}


async def waits_of(session: AsyncSession, runs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """By application and handler: why its runs stand still, where an operator or what it depends on keeps it."""
    wanted: dict[str, set[str]] = {}
    for run in runs:
        wanted.setdefault(run["handler"], set()).add(run["application"])
    if not wanted:
        return {}
    alone = (await session.execute(select(PAUSES).where(PAUSES.c.handler.in_(wanted)))).mappings()
    found = {
        (row["application"], row["handler"]): _paused(dict(row), row["handler"], row["application"]) for row in alone
    }
    for row in (await session.execute(select(HANDLERS).where(HANDLERS.c.name.in_(wanted)))).mappings():
        for application in wanted[row["name"]]:
            if told := _held_up(dict(row), application):
                found[application, row["name"]] = told
    return found


def _held_up(row: Mapping[str, Any], application: str) -> str | None:
    if row["paused_at"] is not None:
        return _paused(row, row["name"])
    if row["waiting_since"] is not None and waits_for(application, row["waiting_reason"]):
        since = f"{row['waiting_since']:%Y-%m-%d %H:%M:%S}"
        return f"handler {row['name']} waits since {since}: {row['waiting_reason']}"
    return None


def _paused(row: Mapping[str, Any], name: str, application: str | None = None) -> str:
    """By whom and why, and how it goes on; `application`: for which alone."""
    since = f"{row['paused_at']:%Y-%m-%d %H:%M:%S}"
    why = f": {row['paused_reason']}" if row["paused_reason"] else ""
    whose, only = (f" for {application}", f" --application {application}") if application else ("", "")
    told = f"handler {name} is paused{whose} since {since} by {row['paused_by']}{why}"
    return f"{told}; consumer handlers resume {name}{only} --reason …"


def wait_of(row: Mapping[str, Any], kept: Mapping[tuple[str, str], str]) -> Entry:
    """What a run that is not over waits for, as an entry's own words; nothing where its time is all it waits for."""
    if row["status"] == RunStatus.DEAD:
        return {"waits": f"an operator: {redrive(row['event_id'], row['handler'], row['application'])}"}
    if (told := kept.get((row["application"], row["handler"]))) is not None:
        return {"waits": told}
    if row["status"] == RunStatus.PARKED:
        return {"waits": "an earlier run of the same handler and key"}
    return {}


async def _causes(session: AsyncSession, application: str, ids: Sequence[str]) -> dict[str, str]:
    derived = [one for one in ids if one.startswith("drv_")]
    if not derived:
        return {}
    wanted = select(OUTBOX.c.event_id, OUTBOX.c.cause).where(
        OUTBOX.c.application == application, among(OUTBOX.c.event_id, derived)
    )
    return {event_id: cause for event_id, cause in await session.execute(wanted) if cause != event_id}


async def newest(session: AsyncSession, table: Table, order: Any, where: Any) -> list[Mapping[str, Any]]:
    """The newest rows that fit, by `order`, at most ENTRIES_MAX."""
    rows = await session.execute(select(table).where(where).order_by(order.desc()).limit(ENTRIES_MAX))
    return [dict(row) for row in rows.mappings()]


def _json(text: str | None) -> Any:
    return orjson.loads(text) if text else None


def words(entry: Mapping[str, Any], *but: str) -> list[tuple[str, Any]]:
    """What an entry says, without what is empty and what is shown elsewhere; of what was found, each word by itself."""
    found: list[tuple[str, Any]] = []
    for name, value in entry.items():
        if name == "detail" and isinstance(value, dict):
            found += words(value)
        elif name not in but and value not in (None, "", [], {}):
            found.append((name, value))
    return found


def changed(entry: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What a change made of what: name, before, after; of texts that are no documents, as they are."""
    before, after = entry.get("before"), entry.get("after")
    if not isinstance(after, dict):
        return [("is", before, after)] if after is not None else []
    known = before if isinstance(before, dict) else {}
    return [(name, known.get(name), now) for name, now in after.items() if known.get(name) != now]
