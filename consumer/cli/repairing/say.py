"""`consumer say`: what an operator says to the built-in handlers; audited, and handled like every other event."""

from __future__ import annotations

from typing import Annotated

import typer

from consumer.cli.bootstrap import ledger, run, settings_for
from consumer.cli.consent import Reason, Yes, actor, checked_reason, consent, stands_in
from consumer.cli.filters import OneApplication, one_application, require_application
from consumer.cli.output import Json, Output
from consumer.console.operators.subjects import MARKED_PAID, UNFULFILLABLE, fulfilled_by, require_known_order
from consumer.console.operators.vocabulary import WORDS
from consumer.console.operators.words import check
from consumer.console.operators.words import say as say_word
from consumer.errors import UsageError
from consumer.ledger.engine.database_time import shared_time
from consumer.settings import Role


def say(
    word: Annotated[str, typer.Argument(help=f"One of {', '.join(WORDS)}.")],
    subject: Annotated[str, typer.Argument(help="What it is about: an order id, subscription id, customer, …")],
    reason: Reason,
    data: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="What the word needs; repeatable.")
    ] = None,
    application: OneApplication = None,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="The order is paid although nobody here has heard of it.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Tell the built-in handlers something: an order paid by hand, a hold, a gift, a customer found."""
    given, why, who = _pairs(data or []), checked_reason(reason), actor()
    settings = settings_for(Role.OPERATE)
    require_application(application := one_application(application, settings), settings)

    async def look() -> str:
        """What who says it should know: that nobody has heard of the order, or who fulfilled it. Raises UsageError for
        an order that must be known."""
        async with ledger(settings) as database, database.reading() as session:
            now = await shared_time(session)
            await check(session, word, subject, application=application, by=who, reason=why, now=now, data=given)
            if word == UNFULFILLABLE and (by := await fulfilled_by(session, application, subject)):
                return f" ({', '.join(by)} succeeded on it: only where nothing went out, or it came back)"
            if word != MARKED_PAID:
                return ""
            try:
                await require_known_order(session, subject, application=application)
            except UsageError:
                if unknown:
                    return " (nobody here has heard of it: it will be shipped)"
                raise
            return ""

    async def write() -> str:
        async with ledger(settings) as database, database.transaction() as session:
            now = await shared_time(session)
            return await say_word(
                session, word, subject, application=application, by=who, reason=why, now=now, data=given
            )

    known = run(look())  # nobody is asked about what cannot be said anyway
    consent(f"{word} {subject}{known}?", yes=yes)
    event_id = run(write())
    output = Output(as_json)
    output.document({"event_id": event_id})
    output.line(f"said, as event {event_id}; it takes effect when `work` has handled it")


def _pairs(given: list[str]) -> dict[str, str]:
    """Names and values. Raises UsageError for what is no pair, and for a name with two values."""
    pairs = [pair.partition("=") for pair in given]
    if any(not name or not sign for name, sign, _ in pairs):
        raise UsageError("--set takes NAME=VALUE")
    found = {name: value for name, _, value in pairs}
    if len(found) < len(pairs):
        raise UsageError("--set takes each name once")
    for name, value in found.items():
        if stands_in(value):
            raise UsageError(f"--set {name}={value} is what stands in for the word itself")
    return found
