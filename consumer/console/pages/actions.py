"""Actions: the buttons. Each is one transaction of the ledger; each but `read` asks for a reason, and is audited with
who pressed it. What needs more than that (a replay, a retry out of quarantine) stays a command, and the pages show it
to be copied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from aiohttp import web
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.console.alarms.queues import findings
from consumer.console.mentions import SUBJECTS
from consumer.console.operators import pausing
from consumer.console.operators.quarantined import throw_away as dropped
from consumer.console.operators.vocabulary import REASON_MAX_CHARS
from consumer.console.operators.words import say
from consumer.console.pages.desk import DESK
from consumer.console.pages.door import USER
from consumer.console.pages.render import link, root
from consumer.console.views import order_view, subscription_view
from consumer.document import storable
from consumer.errors import NotFound, UsageError
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.handling import dead, handlers
from consumer.ledger.handling.dead import DeadFilter, DeadRun
from consumer.ledger.reading import quarantine, read_requests
from consumer.plugin import ReadRequest
from handlers.books import orders_of
from handlers.fulfilment.order import FINDING_OF_HOLD, Hold

RUNS_MAX: Final = 1000
INSTANT: Final = timedelta(microseconds=1)
ID_MAX_DIGITS: Final = 18
SAID: Final = (
    "fulfilment.released", "fulfilment.unfulfillable", "fulfilment.finding_closed", "access.finding_closed",
    "access.hold_lifted",
)  # fmt: skip
"""The words that a page says; all of them: `consumer say`."""
OF_A_HOLD: Final = ("fulfilment.released", "fulfilment.unfulfillable")
"""Those that end what holds an order."""
Form = Mapping[str, Any]


class Act:
    """What one press of a button works with."""

    def __init__(self, session: AsyncSession, form: Form, *, by: str, reason: str, now: datetime) -> None:
        self.session = session
        self.by = by
        self.reason = reason
        self.now = now
        self._form = form

    def word(self, name: str) -> str:
        """A field that must be there. Raises UsageError."""
        found = self.may(name)
        if found is None:
            raise UsageError(f"{name} is missing")
        return found

    def may(self, name: str) -> str | None:
        """A field that may be left out. Raises UsageError for a text that no database holds."""
        found = self._form.get(name)
        if isinstance(found, str) and storable(found) != found:
            raise UsageError(f"{name} has a character that no id holds")
        return found if isinstance(found, str) and found else None


Do = Callable[[web.Request, Act], Awaitable[tuple[str, str]]]
"""Does it; returns the word of what was done, and the page to go back to."""


def button(do: Do, *, needs_reason: bool = True) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of a form: one transaction, then back to a page. Raises UsageError without a reason."""

    async def press(request: web.Request) -> web.StreamResponse:
        try:
            form = await request.post()
        except (ValueError, LookupError, web.RequestPayloadError) as error:
            raise UsageError("what was sent is no form") from error
        reason = storable(str(form.get("reason", "")).strip())
        if needs_reason and not 0 < len(reason) <= REASON_MAX_CHARS:
            raise UsageError(f"say why, in at most {REASON_MAX_CHARS} characters")
        async with request.app[DESK].database.transaction() as session:
            now = await shared_time(session)
            done, way = await do(request, Act(session, form, by=request[USER].actor, reason=reason, now=now))
        raise web.HTTPSeeOther(f"{root(request)}{way}{'&' if '?' in way else '?'}done={done}")

    return press


async def pause(request: web.Request, act: Act) -> tuple[str, str]:
    """Stop a handler, for one application where one is named. Who paused it first, and why, stands."""
    if (application := act.may("application")) is not None:
        request.app[DESK].application(application)
    if await _paused_at(act):
        return "nothing", link("handlers")
    name = act.word("handler")
    await pausing.pause(act.session, name, by=act.by, reason=act.reason, now=act.now, application=application)
    return "paused", link("handlers")


async def resume(_: web.Request, act: Act) -> tuple[str, str]:
    """Let a handler go on, if it is paused as the page showed it: another may have paused it since, for a reason that
    nobody read here."""
    seen = act.word("seen")
    if (paused_at := await _paused_at(act)) is None or paused_at.isoformat() != seen:
        return "nothing", link("handlers")
    name, application = act.word("handler"), act.may("application")
    await pausing.resume(act.session, name, by=act.by, reason=act.reason, now=act.now, application=application)
    return "resumed", link("handlers")


async def _paused_at(act: Act) -> datetime | None:
    """Since when it is, for all or for the application that is named; nobody else changes that until the press is
    over. Raises NotFound for a handler that nobody knows."""
    name, application = act.word("handler"), act.may("application")
    if not await handlers.take_turns(act.session, name):
        raise NotFound("the ledger knows no such handler")
    if application is not None:
        alone = {(row.handler, row.application): row.paused_at for row in await handlers.pauses(act.session)}
        return alone.get((name, application))
    return next(row.paused_at for row in await handlers.everyone(act.session) if row.name == name)


async def redrive(_: web.Request, act: Act) -> tuple[str, str]:
    """Let a kind of dead runs, or one, try again."""
    found = await _dead(act)
    changed = await dead.redrive(act.session, found, by=act.by, reason=act.reason, now=act.now)
    return "redriven" if changed else "nothing", _back(act)


async def discard(_: web.Request, act: Act) -> tuple[str, str]:
    """Give a kind of dead runs, or one, up (case R12)."""
    found = await _dead(act)
    changed = await dead.discard(act.session, found, by=act.by, reason=act.reason, now=act.now)
    return "discarded" if changed else "nothing", _back(act)


async def restore(_: web.Request, act: Act) -> tuple[str, str]:
    """Take a discard back: they are dead again (case R12)."""
    found = await _dead(act, discarded=True)
    changed = await dead.restore(act.session, found, by=act.by, reason=act.reason, now=act.now)
    return "restored" if changed else "nothing", link("dead", discarded=1)


async def _dead(act: Act, *, discarded: bool = False) -> Sequence[DeadRun]:
    """Those that the page showed: one event's, or those of one kind; none that died since. What never failed has no
    fingerprint, and is a kind of its own."""
    event, fingerprint = act.may("event"), act.may("fingerprint")
    wanted = DeadFilter(
        handler=act.word("handler"),
        fingerprint=fingerprint,
        event_id=event,
        application=act.may("application"),
        until=_seen(act) + INSTANT,
        discarded=discarded,
        limit=RUNS_MAX,
    )
    found = await dead.search(act.session, wanted)
    return [one for one in found if event is not None or one.fingerprint == fingerprint]


def _seen(act: Act) -> datetime:
    """When the last died that the page showed."""
    try:
        found = datetime.fromisoformat(act.word("seen"))
    except ValueError as error:
        raise UsageError("seen is when the last of them died, as the page says") from error
    if found.tzinfo is None or not 1970 <= found.year < 9000:
        raise UsageError("seen is when the last of them died, as the page says")
    return found


def _back(act: Act) -> str:
    """To the page where the button is: a subject's, an event's, or the list."""
    event, kind, id_ = act.may("event"), act.may("kind"), act.may("id")
    if kind in SUBJECTS and id_ is not None:
        return link(kind, id=id_, application=act.may("application"))
    return link("dead") if event is None else link("event", id=event, application=act.may("application"))


async def throw_away(_request: web.Request, act: Act) -> tuple[str, str]:
    """Throw a quarantined delivery away, if it is the one that the page showed: SQLite gives the number of the newest
    that went to the next that comes, and what is thrown away is gone."""
    number = act.word("number")
    if not number.isdecimal() or len(number) > ID_MAX_DIGITS:
        raise UsageError("number is that of a delivery")
    seen = act.word("seen")
    rows = [one for one in await quarantine.newest(act.session, number=int(number)) if one.delivery_id == seen]
    gone, _again = await dropped(act.session, rows, by=act.by, reason=act.reason, now=act.now)
    return "thrown" if gone else "nothing", link("quarantine")


async def tell(request: web.Request, act: Act) -> tuple[str, str]:
    """Say one of a few words to the built-in handlers."""
    word, subject = act.word("word"), act.word("subject")
    if word not in SAID:
        raise UsageError(f"a page says {', '.join(SAID)}; `consumer say` says the others")
    application = request.app[DESK].application(act.may("application"))
    data = {name: value for name in ("kind", "id") if (value := act.may(name)) is not None}
    if word in OF_A_HOLD:
        if (hold := await _hold_seen(act, application, subject)) is None:
            return "nothing", link("order", id=subject, application=application)
        data["hold"] = hold
    if word.endswith("finding_closed") and (now_seen := await _as_seen_now(act, application, word, subject)):
        if act.word("seen") != now_seen:
            return "nothing", link("findings", application=application)
        data["seen"] = now_seen
    await say(act.session, word, subject, application=application, by=act.by, reason=act.reason, now=act.now, data=data)
    if word.endswith("finding_closed"):
        return "said", link("findings", application=application)
    kind = "customer" if word.startswith("access.") else "order"
    return "said", link(kind, id=subject, application=application)


async def _hold_seen(act: Act, application: str, order_id: str) -> str | None:
    """What holds the order, if the page showed that, by its word or the finding of it; None when something else does by
    now, or nothing: an order that nobody had registered may be found to be paid too little once somebody does. The
    word takes it along: until `work` handles it, that may change again. Raises NotFound."""
    seen, order = act.word("seen"), (await orders_of(act.session, application, [order_id])).get(order_id)
    if order is None:
        raise NotFound("the order is unknown in this application")
    hold: str | None = order["hold"]
    return hold if hold is not None and seen in (hold, FINDING_OF_HOLD.get(Hold(hold))) else None


async def _as_seen_now(act: Act, application: str, word: str, subject: str) -> str | None:
    """What stands for what a page shows by now of the finding that the word closes, where that may grow: another
    payment of the order, say. The word takes it along, as that of a hold does."""
    found = await findings(act.session, application, act.word("kind"), subject)
    return next((one["seen"] for one in found if word == f"{one['plugin']}.finding_closed"), None)


async def read_again(request: web.Request, act: Act) -> tuple[str, str]:
    """Have an order or a subscription read from the service. Raises NotFound for one that nobody knows."""
    desk, kind, id_ = request.app[DESK], act.word("kind"), act.word("id")
    application = desk.application(act.may("application"))
    match kind:
        case "order":
            await order_view(act.session, application, id_)
            asked = ReadRequest(kind="order", object_id=id_)
        case "subscription":
            await subscription_view(act.session, application, id_, desk.policy, act.now)
            asked = ReadRequest(kind="subscription", object_id=id_)
        case _:
            raise UsageError("an order or a subscription is read")
    await read_requests.ask(act.session, application, [asked], act.now)
    return "asked", link(kind, id=id_, application=application)
