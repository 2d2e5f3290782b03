"""Lists: events, dead runs, findings, quarantine, handlers, plans, the audit trail; each bounded, the newest or the
oldest first, and it is said when there are more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

from aiohttp import web

from consumer.console.alarms.queues import findings, queues
from consumer.console.belongings import require_known, whose
from consumer.console.cure import of_application
from consumer.console.event_view import delivery_document, event_document, outcomes_of
from consumer.console.operators.deaths import death_groups, per_application
from consumer.console.operators.subjects import held_by
from consumer.console.pages.desk import DESK
from consumer.console.pages.render import link, page
from consumer.errors import UsageError
from consumer.ledger.engine.counting import COUNT_MAX
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.handling import dead, events, handlers, queue
from consumer.ledger.handling.dead import DeadFilter, DeadRun
from consumer.ledger.handling.events import SEARCHED_MAX, EventFilter
from consumer.ledger.plans import plans
from consumer.ledger.reading import quarantine
from consumer.ledger.tables import RunStatus
from consumer.ledger.trail import sealing
from consumer.reason import Reason

LISTED = 100
LISTED_MAX = 1000
LOOKED_AT = 1000
EACH_MAX = 20
TEXT_MAX_CHARS = 300
EVER = datetime(1970, 1, 1, tzinfo=UTC)


async def list_events(request: web.Request) -> web.Response:
    """The newest events that fit, newest first."""
    desk, limit = request.app[DESK], _limit(request)
    status = _given(request, "status")
    if status is not None and status not in set(RunStatus):
        raise UsageError(f"status is one of {', '.join(RunStatus)}")
    wanted = EventFilter(
        application=_application(request),
        type=_given(request, "type"),
        event_id=_given(request, "event"),
        order_id=_given(request, "order"),
        subscription_id=_given(request, "subscription"),
        handler=_given(request, "handler"),
        status=status,
        since=_moment(request, "since"),
        until=_moment(request, "until"),
        limit=limit + 1,
    )
    customer = _given(request, "customer")
    async with desk.database.reading() as session:
        if customer is not None:
            await require_known(session, "customer", customer, wanted.application)
            wanted = replace(wanted, keys=await whose(session, customer, wanted.application))
        found = await events.search(session, wanted)
        outcomes = await outcomes_of(session, found.rows)
        known = [row.name for row in await handlers.everyone(session)]
    return page(
        request,
        "lists/events.html",
        events=[
            event_document(row) | {"outcome": outcomes.get((row.application, row.id), "-")}
            for row in found.rows[:limit]
        ],
        more=len(found.rows) > limit,
        limit=limit,
        next_limit=LISTED_MAX,
        more_link=link("events", **{**request.query, "limit": LISTED_MAX}),
        searched=None if found.is_all else SEARCHED_MAX,
        asked=dict(request.query),
        statuses=list(RunStatus),
        handlers=known,
        applications=list(desk.applications),
    )


async def list_dead(request: web.Request) -> web.Response:
    """Dead runs by what they died of, or those that were given up (cases R10, R12). Kinds of failure that are not among
    those looked at are listed, the rarest first: a flood of one must not hide the only run of another."""
    desk, discarded = request.app[DESK], request.query.get("discarded") == "1"
    wanted = DeadFilter(discarded=discarded, limit=LOOKED_AT)
    async with desk.database.reading() as session:
        found = await dead.search(session, wanted)
        by_kind = (
            await dead.totals(session, wanted)
            if len(found) == LOOKED_AT
            else Counter((one.handler, one.fingerprint) for one in found)
        )
        runbooks = await handlers.runbooks(session, {one.handler for one in found})
    kinds: dict[tuple[str, str | None], list[DeadRun]] = {}
    for one in found:
        kinds.setdefault((one.handler, one.fingerprint), []).append(one)
    unseen = sorted(by_kind.keys() - kinds.keys(), key=lambda kind: (by_kind[kind], kind[0], kind[1] or ""))
    groups = [
        (group, kinds[group["handler"], group["fingerprint"]]) for group in death_groups(found, by_kind, runbooks)
    ]
    return page(
        request,
        "lists/dead.html",
        groups=groups,
        several=len({*desk.applications, *(one.application for one in found)}) > 1,
        per_application=per_application,
        each_max=EACH_MAX,
        total=by_kind.total(),
        counted_all=by_kind.total() < COUNT_MAX,
        kinds=len(by_kind),
        unseen=[(by_kind[kind], *kind) for kind in unseen[:LISTED]],
        unseen_in_all=len(unseen),
        looked_at=LOOKED_AT,
        discarded=discarded,
    )


async def list_findings(request: web.Request) -> web.Response:
    """What waits for a person's decision, oldest first."""
    desk, kind, given = request.app[DESK], _given(request, "kind"), request.query.get("application")
    async with desk.database.reading() as session:
        waiting = await queues(session)
        of_old = given in {one.application for one in waiting} - desk.applications.keys()
        application = given if given and of_old else desk.application(given)
        found = await findings(session, application, kind)
        held = await held_by(session, application, {one["subject"] for one in found})
    total = sum(one.count for one in waiting if one.application == application and kind in (None, one.kind))
    return page(
        request,
        "lists/findings.html",
        queues=waiting,
        findings=found,
        held=held,
        total=total,
        application=application,
        is_set_up=not of_old,
        kind=kind,
    )


async def list_quarantine(request: web.Request) -> web.Response:
    """The newest deliveries in quarantine, without their bodies (case F24)."""
    desk, application, word = request.app[DESK], _application(request), _given(request, "reason")
    if word is not None and word not in set(Reason):
        raise UsageError(f"reason is one of {', '.join(Reason)}")
    reason = None if word is None else Reason(word)
    async with desk.database.reading() as session:
        rows = await quarantine.newest(session, application=application, reason=reason, limit=LISTED + 1)
        counted = await quarantine.count_since(session, EVER, application)
    rows_, more = [delivery_document(row) for row in rows[:LISTED]], len(rows) > LISTED
    of_it = f"--because {word} --limit 1000" + (f" {of_application(application)}" if application else "")
    counted_ = counted.most_common()
    return page(request, "lists/quarantine.html", rows=rows_, more=more, counted=counted_, reason=word, of_it=of_it)


async def list_handlers(request: web.Request) -> web.Response:
    """Every handler that the ledger knows (case H9): first what does not run and why, then what runs."""
    async with request.app[DESK].database.reading() as session:
        now = await shared_time(session)
        rows = await handlers.everyone(session)
        alone = await handlers.pauses(session)
        living = await handlers.living(session, now)
        counted = await queue.count_by_status(session)
    died = {name: count for (name, status), count in counted.items() if status == RunStatus.DEAD and count}
    gets_on = living - died.keys() - {one.handler for one in alone}
    desk = request.app[DESK]
    running = [one for one in rows if one.name in gets_on and one.paused_at is None and one.waiting_since is None]
    standing = [one for one in rows if one not in running]
    return page(
        request,
        "lists/handlers.html",
        standing=standing,
        running=running,
        living=living,
        died=died,
        alone=alone,
        applications=list(desk.applications) if len(desk.applications) > 1 else [],
        count_max=COUNT_MAX,
    )


async def list_plans(request: web.Request) -> web.Response:
    """The newest replay plans."""
    async with request.app[DESK].database.reading() as session:
        rows = await plans.newest(session, LISTED + 1)
    return page(request, "lists/plans.html", rows=rows[:LISTED], more=len(rows) > LISTED)


async def list_audit(request: web.Request) -> web.Response:
    """Who did what and why, newest first."""
    subject = _given(request, "subject")
    async with request.app[DESK].database.reading() as session:
        rows = await sealing.newest(session, subject, LISTED)
    return page(request, "lists/audit.html", rows=rows, subject=subject)


def _application(request: web.Request) -> str | None:
    given = _given(request, "application")
    return None if given is None else request.app[DESK].application(given)


def _given(request: web.Request, name: str) -> str | None:
    """A word of the filter; None for an empty field. Raises UsageError."""
    found = request.query.get(name, "").strip()
    if len(found) > TEXT_MAX_CHARS or "\x00" in found:
        raise UsageError(f"{name} has at most {TEXT_MAX_CHARS} characters, none of them NUL")
    return found or None


def _moment(request: web.Request, name: str) -> datetime | None:
    """A time of the filter, in UTC where it does not say. Raises UsageError."""
    given = _given(request, name)
    if given is None:
        return None
    try:
        found = datetime.fromisoformat(given)
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{name} is a time like 2026-01-31T12:00") from error
    if not 1970 <= found.year < 9000:
        raise UsageError(f"{name} is between 1970 and 9000")
    return found


def _limit(request: web.Request) -> int:
    given = request.query.get("limit", "")
    return max(1, min(int(given), LISTED_MAX)) if given.isdecimal() and len(given) < 6 else LISTED
