"""`consumer invariants`: every micro-USDC the service's payments show in one class, every access with its source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated

import typer

from consumer.app.options import require_options
from consumer.cli.bootstrap import ledger, run, settings_for, settings_looking
from consumer.cli.filters import Application, require_application
from consumer.cli.output import Json, Output
from consumer.cli.plugins import registry_of
from consumer.console.invariants.check import Check
from consumer.console.invariants.cures import cure_of_all
from consumer.console.invariants.report import Problem, Report, usdc
from consumer.console.invariants.service import LastObservations, Service
from consumer.ledger import Database
from consumer.ledger.engine.counting import each_of
from consumer.ledger.engine.database_time import shared_clock
from consumer.ledger.tables import EventRow
from consumer.settings import Role, Settings

SHOWN = 10
BROKEN = 3
"""The exit code when something is not as it should be."""
AGAIN_S = 10.0
"""What the service has just shown is here by then, mostly."""


def invariants(
    read: Annotated[
        bool, typer.Option("--read", help="Walk the service's payments, orders and subscriptions now; changes nothing.")
    ] = False,
    application: Application = None,
    as_json: Json = False,
) -> None:
    """Every payment in one class, every access with its source. Exit 3 when something is broken, with its cure.

    Compared with what was observed last; `--read` compares with the service as it is now, and looks a second time where
    something is broken: only what both looks name counts, the rest was on its way. An application that is set up no
    more, and of which the ledger has events, is accounted for by what was observed last.
    """
    settings = settings_for(Role.OPERATE) if read else settings_looking()
    registry = registry_of(settings)
    require_options(registry, settings.handler_options)
    shippers = registry.shippers
    found = run(_checked(settings, application, shippers, read=read))
    output = Output(as_json)
    holds = all(one.holds for one in found)
    against = "read" if read else "observations"
    output.document({"holds": holds, "against": against, "applications": [one.document() for one in found]})
    for one in found:
        _say(output, one, shippers)
        if read and one.is_set_up and not one.is_read:
            output.line("it has no API credentials here: compared with what was observed last")
    if not holds:
        raise typer.Exit(BROKEN)


async def _checked(settings: Settings, application: str | None, shippers: Sequence[str], *, read: bool) -> list[Report]:
    """Of the applications that are set up, and of those of which the ledger has events: the service can be asked about
    the former only."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(ledger(settings, whole=True))
        async with database.reading() as session:
            kept = await each_of(session, EventRow.__table__.c.application)
        set_up = [one.name for one in settings.applications]
        former = [name for name in kept if name not in set_up and application in (None, name)]
        if not former:
            require_application(application, settings)
        names = [name for name in set_up if application in (None, name)]
        observed = LastObservations(database)
        service: Service = observed
        asked: Sequence[str] = ()
        if read and names:
            service, asked = await _walked(stack, settings, database, application)
        clock = await shared_clock(database)

        async def account(name: str, service: Service, earlier: Report | None = None) -> Report:
            check = Check(database, service, settings.handler_options, clock.now(), handlers=shippers)
            return await check.run(name, earlier=earlier)

        found = []
        for name in names:
            if name not in asked:
                found.append(await account(name, observed))
                continue
            began_s, report = clock.monotonic(), await account(name, service)
            if not report.holds:
                await clock.sleep(max(0.0, AGAIN_S - (clock.monotonic() - began_s)))
                report = await account(name, service, report)
            found.append(replace(report, is_read=True))
        found += [replace(await account(name, observed), is_set_up=False) for name in former]
        return found


async def _walked(
    stack: AsyncExitStack, settings: Settings, database: Database, application: str | None
) -> tuple[Service, list[str]]:
    """A fresh walk of the service, and of which applications. Raises UsageError."""
    from consumer.app.commands.walking import opened_apis  # who does not ask the service needs none of its client
    from consumer.console.invariants.service import FreshWalk
    from consumer.sync.application import Application as SyncApplication
    from consumer.sync.reconcile.lists import ServiceLists

    clock = await shared_clock(database)
    apis = await opened_apis(stack, settings, database, clock, application)
    found = [SyncApplication(api=one, database=database, clock=clock) for one in apis.values()]
    return FreshWalk(database, {one.name: ServiceLists(one) for one in found}), list(apis)


def _say(output: Output, found: Report, shippers: Sequence[str]) -> None:
    total = sum(one.payments for one in found.sums.values())
    output.line(f"{found.application}: {total} payment(s), {found.orders} order(s)")
    if not found.is_set_up:
        output.line("it is set up no more: compared with what was observed last; set it up again for what cures it")
    rows = [[name.value, one.payments, usdc(one.micro)] for name, one in found.sums.items() if one.payments]
    output.table(["class", "payments", "USDC"], rows, empty="no payment was shown yet")
    output.line(f"residual: {usdc(found.residual)} USDC")
    if found.orders and not found.observed:
        output.line("nothing was observed yet, so nothing was compared: `consumer invariants --read` asks the service")
    if found.unread:
        output.line(
            f"{found.unread} payment(s) were there at the first walk, and only their status was kept: "
            "`consumer invariants --read` reads what they were for, and how much"
        )
    if found.without_amount > found.unread:
        output.line(f"{found.without_amount - found.unread} payment(s) show no amount")
    for title, words in (("live subscriptions", found.live), ("access given", found.grants)):
        if words:
            output.line(f"{title}: {', '.join(f'{count} {word}' for word, count in sorted(words.items()))}")
    for code, count in sorted(found.broken.items()):
        _say_broken(output, count, [one for one in found.problems if one.code == code], shippers)
    output.line("all of it is explained" if found.holds else f"broken: {found.broken.total()}")


def _say_broken(output: Output, count: int, problems: Sequence[Problem], shippers: Sequence[str]) -> None:
    """One kind of what is broken: how often, about whom, and the cure."""
    if not problems:
        return  # beyond those that are named
    first = problems[0]
    subjects = ", ".join(one.subject for one in problems[:SHOWN]) + (
        f" and {count - SHOWN} more" if count > SHOWN else ""
    )
    output.line(f"  {first.code}: {count} {first.kind}(s): {first.says}")
    output.line(f"    {subjects}")
    for cure in cure_of_all(problems, shippers)[:SHOWN]:
        output.line(f"    cure: {cure}")
