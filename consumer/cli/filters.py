"""Filters: the options that choose events (contract, Commands), and how a time is written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.errors import NotFound, UsageError
from consumer.settings import Settings
from consumer.settings.application import DEFAULT

if TYPE_CHECKING:
    from consumer.ledger.handling.dead import DeadFilter
    from consumer.ledger.handling.events import EventFilter

_AGO = re.compile(r"(\d{1,6})([smhdw])\Z")
T = TypeVar("T")
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
NEAR_FROM = 1000
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Since = Annotated[str | None, typer.Option(help="From this time on: ISO-8601 (UTC without a zone), or 2h, 3d ago.")]
Until = Annotated[str | None, typer.Option(help="Before this time: ISO-8601 (UTC without a zone), or 2h, 3d ago.")]
Type = Annotated[str | None, typer.Option("--type", help="Event type; `order.*` is allowed.")]
HandlerName = Annotated[str | None, typer.Option("--handler", help="Handler name.")]
Status = Annotated[str | None, typer.Option(help="Status of a run.")]
Order = Annotated[str | None, typer.Option(help="The merchant's order id.")]
SubscriptionId = Annotated[str | None, typer.Option("--subscription", help="Subscription id.")]
Customer = Annotated[str | None, typer.Option("--customer", help="The merchant's customer reference.")]
Fingerprint = Annotated[str | None, typer.Option(help="Failures of the same kind and place, as `dead list` shows it.")]
EventId = Annotated[str | None, typer.Option("--event", help="Event id.")]
Application = Annotated[str | None, typer.Option(help="Application; all when left out.")]
OneApplication = Annotated[
    str | None, typer.Option("--application", help="Application; `default`, or the only one, when left out.")
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")]


def page(rows: Sequence[T], limit: int) -> tuple[Sequence[T], bool]:
    """The rows to show, and whether there are more: one more than `limit` was asked for."""
    return rows[:limit], len(rows) > limit


def more_line(limit: int) -> str:
    """Said below a page that is not all."""
    return f"there is more: these are the newest {limit} (--limit)"


def moments(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Both as `parse_moment` says. How long ago, and what has not come yet, is reckoned by the ledger's clock, which is
    asked where that matters: this machine's may be wrong. Raises UsageError, LedgerError."""
    from consumer.cli.bootstrap import time_there  # nobody needs it who says no such thing

    now = datetime.now(UTC)
    begin, end = parse_moment(since, now), parse_moment(until, now)  # what is no time is said before it is asked
    if any(_AGO.match(text) for text in (since, until) if text is not None) or (begin is not None and begin > now):
        now = time_there()
        begin, end = parse_moment(since, now), parse_moment(until, now)
    require_window(begin, end, now)
    return begin, end


def require_window(begin: datetime | None, end: datetime | None, now: datetime) -> None:
    """Raises UsageError for a window in which nothing can lie: that nothing fits would be no answer."""
    if begin is not None and begin > now:
        raise UsageError("--since has not come yet; a time without a zone is UTC", now=f"{now:%Y-%m-%dT%H:%M:%SZ}")
    if begin is not None and end is not None and end <= begin:
        raise UsageError("--until must be later than --since")


def parse_moment(text: str | None, now: datetime) -> datetime | None:
    """ISO-8601, or `2h`, `3d` ago, in UTC. Raises UsageError, also for what lies before 1970 or after 9000."""
    if text is None:
        return None
    try:
        moment = _moment(text, now)
    except (ValueError, OverflowError) as error:
        raise UsageError("a time is ISO-8601, or like 2h or 3d ago", given=text[:40]) from error
    if not EARLIEST <= moment <= LATEST:  # what is reckoned with it must stay a time, too
        raise UsageError("a time is between 1970 and 9000", given=text[:40])
    return moment


def _moment(text: str, now: datetime) -> datetime:
    ago = _AGO.match(text)
    if ago is not None:
        return now - timedelta(**{_UNITS[ago.group(2)]: int(ago.group(1))})
    parsed = datetime.fromisoformat(text)
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def takes(make: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For several commands that choose alike: the options that `make` declares become the command's, and what `make`
    returns becomes its first argument. So a list of options stands in one place."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        chosen, *own = signature(command).parameters.values()
        shared = signature(make).parameters
        hints = get_type_hints(command, include_extras=True) | get_type_hints(make, include_extras=True)

        @wraps(command)
        def call(**given: Any) -> None:
            made = make(**{name: given.pop(name) for name in shared})
            command(**{chosen.name: made}, **given)

        listed = sorted([*shared.values(), *own], key=lambda one: one.default is not Parameter.empty)
        listed = [one.replace(annotation=hints[one.name], kind=Parameter.KEYWORD_ONLY) for one in listed]
        call.__signature__ = signature(command).replace(parameters=listed)  # type: ignore[attr-defined]  # what inspect reads
        call.__annotations__ = {one.name: one.annotation for one in listed}
        return call

    return decorate


def near(name: str, known: Iterable[str]) -> str | None:
    """The names that look like it, at most three, or None."""
    return ", ".join(difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.5)) or None


async def require_handler(session: AsyncSession, name: str) -> None:
    """Raise UsageError for a handler that nobody has ever had."""
    from consumer.ledger.handling import dead, handlers  # nobody needs it whose handler has something to show

    known = [row.name for row in await handlers.everyone(session)]
    if name not in known and not await dead.has_runs(session, name):
        raise UsageError("there is no such handler", handler=name[:100], near=near(name, known))


def require_application(name: str | None, settings: Settings) -> None:
    """Raise UsageError for an application that is not set up; None is all of them."""
    known = [one.name for one in settings.applications]
    if name is not None and name not in known:
        raise UsageError("there is no such application", application=name[:100], known=", ".join(known) or None)


def one_application(name: str | None, settings: Settings) -> str:
    """The application of what has one: as it is named; else `default`, or the only one that is set up. Raises
    UsageError where it might be another's."""
    known = [one.name for one in settings.applications]
    if name is not None:
        return name
    if not known or DEFAULT in known:
        return DEFAULT
    if len(known) > 1:
        raise UsageError("whose is it? name the application by --application", known=", ".join(known))
    return known[0]


async def require_named(session: AsyncSession, settings: Settings, wanted: EventFilter | DeadFilter) -> None:
    """Raise UsageError or NotFound for what a filter names and nobody has: an empty answer would hide the slip of a
    finger."""
    from consumer.console.belongings import require_known  # the built-in handlers' tables: only where nothing fits

    require_application(wanted.application, settings)
    if wanted.handler is not None:
        await require_handler(session, wanted.handler)
    if wanted.type is not None:
        await require_type(session, wanted.type)
    for kind, name in (
        ("order", wanted.order_id),
        ("subscription", wanted.subscription_id),
        ("event", wanted.event_id),
    ):
        if name is not None:
            await require_known(session, kind, name, wanted.application)


async def whose_keys(
    session: AsyncSession, settings: Settings, customer: str, application: str | None
) -> tuple[tuple[str, str], ...]:
    """(application, key) of what is the customer's. Raises UsageError, NotFound."""
    from consumer.console.belongings import require_known, whose  # the projections: only where it is asked

    require_application(application, settings)
    await require_known(session, "customer", customer, application)
    return await whose(session, customer, application)


async def require_fingerprint(session: AsyncSession, given: str, *, discarded: bool = False) -> None:
    """Raise UsageError for what nothing died of lately: one that was redriven since is none of a dead run; nothing ever
    died of a slip of a finger."""
    from consumer.ledger.handling import dead  # nobody needs it whose filter has something to show

    if not await dead.has_died_of(session, given):
        found = await dead.search(session, dead.DeadFilter(discarded=discarded, limit=NEAR_FROM))
        like = near(given, {one.fingerprint for one in found if one.fingerprint is not None})
        raise UsageError("no run died of this lately", fingerprint=given[:100], near=like)


async def require_type(session: AsyncSession, pattern: str) -> None:
    """Raise NotFound for a type that no catalogue shows, no handler wants and no event has."""
    import consumer.plugin  # noqa: F401 - brings the catalogue
    from consumer.ledger.engine.counting import each_of
    from consumer.ledger.handling import handlers
    from consumer.ledger.tables import EventRow
    from consumer.payload import known_types

    wanted = {one for row in await handlers.everyone(session) for one in row.types.split()}
    known = {*known_types(), *wanted, *await each_of(session, EventRow.__table__.c.type)}
    begins = pattern[:-1] if pattern.endswith(".*") else None
    if pattern not in known and not (begins and any(one.startswith(begins) for one in known)):
        raise NotFound("there is no such event type", type=pattern[:100], near=near(pattern, known))
