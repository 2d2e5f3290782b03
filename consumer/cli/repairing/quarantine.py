"""`consumer quarantine …`: look at deliveries, have the service asked about one again, give it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import orjson
import typer

from consumer.app import log_parts
from consumer.broker import Broker, Message
from consumer.cli.bootstrap import ledger, run, settings_for, settings_looking
from consumer.cli.consent import Reason as Why
from consumer.cli.consent import Yes, actor, checked_reason, consent
from consumer.cli.filters import EARLIEST, Application, Limit, more_line, page, require_application, takes
from consumer.cli.output import Json, Output
from consumer.console.cure import of_application
from consumer.console.event_view import delivery_document
from consumer.console.operators.quarantined import RETRIED, Again, note, take_out, throw_away
from consumer.errors import NotFound, NotUnderstood, UsageError
from consumer.events import Delivery, Locators, identify, parse_json
from consumer.ledger import audit
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.reading import quarantine
from consumer.ledger.reading.quarantine import Kept
from consumer.ledger.tables import QuarantineRow
from consumer.reason import Reason, reason_of
from consumer.settings import Role, Settings
from consumer.wire import pack_delivery, record_again

ID_MAX = 2**63 - 1
NOTHING: Final[Mapping[str, int]] = {}

Number = Annotated[
    int | None, typer.Argument(metavar="[ID]", max=ID_MAX, help="One of them, by its number in `quarantine list`.")
]
Id = Annotated[int | None, typer.Option("--id", max=ID_MAX, help="The same.")]
Because = Annotated[Reason | None, typer.Option("--because", help="Those that lie there for this reason.")]
SHOWN_BYTES = 4_000

app = typer.Typer(help="Deliveries that could not be verified or understood.", no_args_is_help=True)


@app.command("list")
def list_quarantine(
    application: Application = None,
    reason: Annotated[Reason | None, typer.Option(help="Only this reason.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """The newest deliveries in quarantine, and how many there are of each reason; their bodies are not shown."""

    async def load() -> tuple[list[dict[str, Any]], Counter[str]]:
        settings = settings_looking()
        async with ledger(settings) as database, database.reading() as session:
            rows = await quarantine.newest(session, application=application, reason=reason, limit=limit + 1)
            counted = await quarantine.count_since(session, EARLIEST, application)
        if not rows:
            require_application(application, settings)
        return [delivery_document(row) for row in rows], counted

    found, counted = run(load())
    rows, is_more = page(found, limit)
    output = Output(as_json)
    output.document({"quarantine": rows, "groups": dict(counted.most_common()), "more": is_more})
    columns = ["id", "received_at", "application", "event_id", "reason", "detail", "bytes"]
    output.table(
        columns, [[row[name] for name in columns] for row in rows], empty=_none_fits(counted.total(), application)
    )
    if is_more:
        output.line(more_line(limit))
    if counted.total() > 1:
        output.line("in all: " + ", ".join(f"{word} {count}" for word, count in counted.most_common()))
        of_it = f"--because {reason.value if reason is not None else counted.most_common(1)[0][0]} --limit 1000"
        of_it += f" {of_application(application)}" if application is not None else ""
        output.line(f"all of one reason: consumer quarantine retry {of_it} --reason … has them taken in again,")
        output.line(f"  consumer quarantine discard {of_it} --reason … throws them away")


def _none_fits(in_all: int, application: str | None) -> str:
    """Said when none is listed: what the reason leaves out is there all the same."""
    if in_all:
        return f"no delivery in quarantine fits ({in_all} in all)"
    return "nothing in quarantine" if application is None else f"nothing in quarantine of {application}"


@app.command()
def show(
    number: Annotated[int, typer.Argument(metavar="ID", max=ID_MAX, help="Its number in `quarantine list`.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Its body, too, with personal data; written into the audit trail.")
    ] = False,
    as_json: Json = False,
) -> None:
    """One delivery: where it came from, why it lies there; its body only with --raw."""
    settings = settings_looking()
    row = run(_row(settings, number, raw=raw))
    body = row.raw
    found: dict[str, Any] = {
        "id": row.id,
        "application": row.application,
        "event_id": row.event_id,
        "delivery_id": row.delivery_id,
        "reason": reason_of(row.reason).value,
        "detail": reason_of(row.reason).detail,
        "received_at": row.received_at,
        "headers": orjson.loads(row.headers),
        "bytes": len(body),
    }
    if raw:
        found["body"] = body[:SHOWN_BYTES].decode("utf-8", "replace")
    output = Output(as_json)
    output.document(found)
    output.fields(found)


class Wanted(NamedTuple):
    """Those of one number, or of one reason."""

    number: int | None
    because: Reason | None
    application: str | None
    limit: int


def wanted(
    given: Number = None,
    number: Id = None,
    because: Because = None,
    application: Application = None,
    limit: Limit = 100,
) -> Wanted:
    """What these options choose. Raises UsageError for two numbers, or none and no reason."""
    if given is not None and number is not None and given != number:
        raise UsageError("say one number, or --because")
    if given is None and number is None and because is None:
        raise UsageError("say which: its number in `consumer quarantine list`, or --because")
    return Wanted(number if given is None else given, because, application, limit)


@app.command()
@takes(wanted)
def retry(chosen: Wanted, reason: Why, yes: Yes = False, as_json: Json = False) -> None:
    """Have these taken in again, as if they had just come: the service is asked about each that nobody has proved."""
    settings = settings_for(Role.OPERATE)
    rows, more = _found(settings, chosen)
    because_of = checked_reason(reason)
    if not rows:
        _say_none(as_json, "retried", {"without_proof": 0})
        return
    consent(f"take {len(rows)} delivery(s) in again?", yes=yes)
    run(_note(settings, rows, because_of))  # who asked for it is known, wherever it ends
    run(_publish(settings, rows))
    # One that lies here again by now stays, or is put here after this: no order of the two loses it.
    gone, again = run(_taken_out(settings, rows))
    bare = sum(_is_unknown(row) and not orjson.loads(row.headers) for row in rows if row.id in gone)
    went = len(rows) - len(gone) - len(again)
    _say(as_json, "retried", rows, more=more, again=again, went=went, counted={"without_proof": bare})
    if bare:
        Output(as_json).line(f"{bare} of them kept (before 2026-11-28) without what proved them: the service is asked")


@app.command()
@takes(wanted)
def discard(chosen: Wanted, reason: Why, yes: Yes = False, as_json: Json = False) -> None:
    """Throw these away; who did it and why stays in the audit trail."""
    settings = settings_for(Role.OPERATE)
    rows, more = _found(settings, chosen)
    because_of = checked_reason(reason)
    if not rows:
        _say_none(as_json, "discarded")
        return
    consent(f"discard {len(rows)} delivery(s)?", yes=yes)
    gone, again = run(_thrown_away(settings, rows, because_of))
    went = len(rows) - len(gone) - len(again)
    _say(as_json, "discarded", [row for row in rows if row.id in gone], more=more, again=again, went=went)


def _say(
    as_json: bool,
    done: str,
    rows: Sequence[Kept],
    *,
    more: bool,
    again: Again,
    went: int,
    counted: Mapping[str, int] = NOTHING,
) -> None:
    output = Output(as_json)
    came = [{"id": number, "reason": reason} for number, reason in again.items()]
    output.document({done: [row.id for row in rows], "again": came, "more": more, **counted})
    output.line(f"{done}: {len(rows)} delivery(s)")
    if more:
        output.line("more is left: this was as many as --limit says")
    for reason, count in Counter(again.values()).items():
        output.line(f"{count} {'is' if count == 1 else 'are'} in quarantine again, for: {reason}")
    if went:
        output.line(f"{went} went meanwhile: somebody else was quicker")


def _say_none(as_json: bool, done: str, counted: Mapping[str, int] = NOTHING) -> None:
    output = Output(as_json)
    output.document({done: [], "again": [], "more": False, **counted})
    output.line("no delivery in quarantine fits")


def _found(settings: Settings, chosen: Wanted) -> tuple[Sequence[Kept], bool]:
    """Those to do it to, and whether there are more than the limit. Raises UsageError, NotFound."""
    found = run(_rows(settings, chosen._replace(limit=chosen.limit + 1)))
    if not found:
        require_application(chosen.application, settings)
    return page(found, chosen.limit)


async def _rows(settings: Settings, chosen: Wanted) -> Sequence[Kept]:
    async with ledger(settings) as database, database.reading() as session:
        rows = await quarantine.newest(
            session, application=chosen.application, reason=chosen.because, number=chosen.number, limit=chosen.limit
        )
    if not rows and chosen.number is not None:  # for a reason none is an answer, too
        raise NotFound("nothing like that lies in quarantine")
    return rows


async def _row(settings: Settings, number: int, *, raw: bool) -> QuarantineRow:
    """The one of this number. Who looks at what somebody sent is noted: under `signature` it is the service, and tells
    of a payer. Raises NotFound."""
    async with ledger(settings) as database:
        async with database.reading() as session:
            row = await quarantine.get(session, number)
        if row is None:
            raise NotFound("nothing like that lies in quarantine")
        if raw:
            async with database.transaction() as session:
                audit.note(
                    session, at=await shared_time(session), application=row.application, actor=actor(),
                    action="delivery.shown_raw", subject=f"delivery:{row.delivery_id}",
                )  # fmt: skip
        return row


async def _publish(settings: Settings, chosen: Sequence[Kept]) -> None:
    """Put them on the log, one body after the other in memory. What went meanwhile is left out."""
    from consumer.app.commands.walking import connect  # every part of `sync`: not for who only looks

    broker = log_parts.open_log(settings)
    try:
        await connect(broker, settings)
        async with ledger(settings) as database:
            for one in chosen:
                async with database.reading() as session:
                    row, now = await quarantine.get(session, one.id), await shared_time(session)
                if row is not None:
                    await _publish_one(broker, settings, row, now)
    finally:
        await broker.stop()


async def _publish_one(broker: Broker, settings: Settings, row: QuarantineRow, now: datetime) -> None:
    # A record that `work` knew no application for was proved before: it goes back to where it came from.
    kept = record_again(row.raw, orjson.loads(row.headers)) if _is_unknown(row) else None
    known = settings.application(row.application)
    locators = known.locators if known is not None else Locators()
    packed = kept or pack_delivery(_delivery(row, now, locators), locators)
    message = Message(key=packed.key, value=packed.value, headers=packed.headers)
    await broker.publish(log_parts.topic(settings, "events" if kept else "deliveries"), message)


def _is_unknown(row: Kept | QuarantineRow) -> bool:
    return reason_of(row.reason) is Reason.UNKNOWN_APPLICATION


def _delivery(row: QuarantineRow, now: datetime, locators: Locators) -> Delivery:
    """As it would come in now: today's locators say which event it is about; failing them, those of then."""
    raw, event_id, problem = row.raw, row.event_id, None
    try:
        event_id = identify(parse_json(raw), locators).id
    except NotUnderstood as error:
        problem = error.reason if event_id is None else None
    return Delivery(
        application=row.application,
        id=row.delivery_id,
        raw=raw,
        received_at=now,
        headers=orjson.loads(row.headers),
        event_id=event_id,
        problem=problem,
    )


async def _note(settings: Settings, rows: Sequence[Kept], reason: str) -> None:
    async with ledger(settings) as database, database.transaction() as session:
        note(session, rows, action=RETRIED, by=actor(), reason=reason, now=await shared_time(session))


async def _taken_out(settings: Settings, rows: Sequence[Kept]) -> tuple[frozenset[int], Again]:
    async with ledger(settings) as database, database.transaction() as session:
        return await take_out(session, rows)


async def _thrown_away(settings: Settings, rows: Sequence[Kept], reason: str) -> tuple[frozenset[int], Again]:
    async with ledger(settings) as database, database.transaction() as session:
        return await throw_away(session, rows, by=actor(), reason=reason, now=await shared_time(session))
