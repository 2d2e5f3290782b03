"""`consumer doctor`: is the set-up right? One line each: ok, warn, fail; exit 1 when one fails."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from consumer.app import App, log_parts
from consumer.app.commands.walking import opened_apis
from consumer.checks import doctor as sync_doctor
from consumer.checks.discovery import Proposal
from consumer.checks.doctor import Check, Grade
from consumer.checks.held_up import held_up
from consumer.cli.bootstrap import looking, run
from consumer.cli.filters import Application, require_application
from consumer.cli.output import Json, Output
from consumer.clock import Clock, SystemClock
from consumer.errors import BrokerError, ConsumerError, LedgerError, SettingsError
from consumer.events import Authenticity
from consumer.ledger import Database
from consumer.ledger.archiving import derivation
from consumer.ledger.engine.applied import look_at_collation, look_at_encoding, require_current
from consumer.ledger.engine.database_time import shared_clock
from consumer.settings import ApplicationSettings, Role, Settings, load_settings
from consumer.sync.api import ApplicationApi

ROLES = (Role.SERVE, Role.WORK, Role.SYNC, Role.CONSOLE)


def doctor(
    learn: Annotated[
        bool, typer.Option("--learn", help="Propose locators, list order and authenticity from what was captured.")
    ] = False,
    test_event: Annotated[
        bool, typer.Option("--test-event", help="Have a test event sent and follow it (ten an hour are allowed).")
    ] = False,
    application: Application = None,
    as_json: Json = False,
) -> None:
    """Check settings, database, broker, handlers, clocks and credentials; exit 1 when one fails."""
    settings, problems = looking()
    require_application(application, settings)
    output = Output(as_json)
    checks, proposals = run(_examine(settings, problems, application, learn=learn, test_event=test_event))
    output.document(
        {
            "checks": [asdict(check) for check in checks],
            "proposals": {name: _shown(proposal) for name, proposal in proposals.items()},
        }
    )
    for check in checks:
        output.line(f"{check.grade.value:<4}  {check.name}: {check.text}")
    for name, proposal in proposals.items():
        _say(name, proposal, output)
    if any(check.grade is Grade.FAIL for check in checks):
        raise typer.Exit(1)


async def _examine(
    settings: Settings, problems: Sequence[str], application: str | None, *, learn: bool, test_event: bool
) -> tuple[list[Check], dict[str, Proposal]]:
    """All checks that can be made: without a ledger those that need none, beside settings that are wrong (`problems`)
    those that need none of them."""
    checks = [*_settings(problems), await _handlers(settings)]
    proposals: dict[str, Proposal] = {}
    async with AsyncExitStack() as stack:
        clock: Clock = SystemClock()
        found, database = await _database(stack, settings)
        if database is not None:
            found += [await sync_doctor.clock_skew(database, clock), *await _derived(database)]
            clock = await _clock(database)
        checks += [*await _broker(settings, clock), *found]
        asked = [one for one in settings.applications if application in (None, one.name)]
        checks += [_without_credentials(one) for one in asked if not one.has_credentials]
        if not any(one.has_credentials for one in asked):
            return checks, proposals
        apis = await opened_apis(stack, settings, database, clock, application)
        for name, api in apis.items():
            theirs = [check async for check in _service(api, database, settings, clock)]
            followed = await _test_event(api, database, clock) if test_event else None
            if followed is not None:
                theirs.append(followed)
            if learn:
                learned = await _learn(api, database, followed)
                if isinstance(learned, Check):
                    theirs.append(learned)
                else:
                    proposals[name] = learned
            checks += [replace(check, name=f"{name}: {check.name}") for check in theirs]
    return checks, proposals


async def _database(stack: AsyncExitStack, settings: Settings) -> tuple[list[Check], Database | None]:
    """How the ledger stands, and the ledger if it can be used."""
    try:
        database = Database(settings.database_url.get_secret_value(), pool_size=3, create=False)
        stack.push_async_callback(database.stop)
        await require_current(database)
        await database.require_commits()
        await database.require_unlocked()
        await database.probe()
        await look_at_encoding(database)
        await look_at_collation(database)
    except ConsumerError as error:
        return [Check(name="database", grade=Grade.FAIL, text=error.line())], None
    text = f"{database.dialect} answers; the schema is up to date"
    return [Check(name="database", grade=Grade.OK, text=text)], database


async def _derived(database: Database) -> list[Check]:
    """Whether `work` waits for a rebuild, or went on without one; nothing where none is owed."""
    try:
        async with database.reading() as session:
            owed = await derivation.require_derived(session)
    except LedgerError as error:
        return [Check(name="rebuild", grade=Grade.FAIL, text=error.line())]
    text = (
        f"not_derived: events of {', '.join(sorted(owed))} came in from archives, and `work` went on without "
        "`consumer rebuild all`: orders, gifts and holds may be lacking (`consumer invariants`)"
    )
    return [Check(name="rebuild", grade=Grade.WARN, text=text)] if owed else []


async def _clock(database: Database) -> Clock:
    """The database's, as the roles have it; this machine's where it does not tell."""
    try:
        return await shared_clock(database)
    except LedgerError:
        return SystemClock()


async def _test_event(api: ApplicationApi, database: Database | None, clock: Clock) -> Check:
    if database is None:
        return Check(name="test event", grade=Grade.FAIL, text="not sent: without the ledger nobody sees it arrive")
    return await sync_doctor.follow_test_event(api, database, clock)


async def _learn(api: ApplicationApi, database: Database | None, followed: Check | None) -> Proposal | Check:
    if database is None:
        text = "nothing was learned: what was captured lies in the ledger"
        return Check(name="learn", grade=Grade.FAIL, text=text)
    try:
        return await sync_doctor.learn(api, database, test_event=followed.grade if followed else None)
    except ConsumerError as error:
        return Check(name="learn", grade=Grade.FAIL, text=error.line())


def _settings(problems: Sequence[str]) -> list[Check]:
    """What is wrong for whatever is started; and whether each role would start with this environment: a deployment may
    well run only some of them."""
    found = [Check(name="settings", grade=Grade.FAIL, text=one) for one in problems]
    for role in ROLES:
        try:
            load_settings(os.environ, role)
        except SettingsError as error:
            own = [one for one in error.problems if one not in problems]
            found += [Check(name=f"settings of {role.value}", grade=Grade.WARN, text=one) for one in own]
    return found or [Check(name="settings", grade=Grade.OK, text=f"{', '.join(ROLES)} can start")]


async def _handlers(settings: Settings) -> Check:
    async with App(settings) as app:
        registry = app.registry
    if registry.broken:
        broken = "; ".join(f"{one.plugin}: {one.reason}" for one in registry.broken)
        return Check(name="handlers", grade=Grade.FAIL, text=f"cannot be loaded: {broken}")
    return Check(name="handlers", grade=Grade.OK, text=f"{len(registry.handlers)} loaded")


async def _broker(settings: Settings, clock: Clock) -> list[Check]:
    """The broker, its topics and its clock; nothing is made and nothing is published."""
    try:
        broker = log_parts.open_log(settings)
        reports = await broker.look(log_parts.topics(settings))
    except BrokerError as error:
        return [Check(name="broker", grade=Grade.FAIL, text=error.line())]
    own_machine = settings.broker_url.startswith("embedded:")
    there = [report for report in reports if report.partitions is not None]
    text = "answers" if there or not own_machine else "no log yet: the first role to start makes it"
    return [
        Check(name="broker", grade=Grade.OK, text=text),
        *filter(None, [sync_doctor.who_writes(settings.kafka_servers, settings.kafka_security_protocol)]),
        *(sync_doctor.topic(report) for report in reports),
        sync_doctor.broker_clock(reports, clock, own_machine=own_machine),
    ]


def _without_credentials(one: ApplicationSettings) -> Check:
    return sync_doctor.without_credentials(one.name, waits=one.authenticity is not Authenticity.SIGNATURE)


async def _service(
    api: ApplicationApi, database: Database | None, settings: Settings, clock: Clock
) -> AsyncIterator[Check]:
    one = settings.application(api.application)
    yield sync_doctor.environment((one.base_url if one else None) or "", settings.topic_prefix)
    accepted = await sync_doctor.credentials(api)
    yield accepted
    if accepted.grade is Grade.OK or api.client.service_clock is not None:
        yield sync_doctor.service_clock(api)  # a refusal tells the time, too
    if accepted.grade is Grade.OK:
        if database is not None:
            yield await sync_doctor.identity(api, database, clock)
        yield await sync_doctor.event_list(api)
    if database is not None:
        theirs = await held_up(database, api.application, accepted=accepted.grade is Grade.OK)
        if theirs is not None:
            yield theirs


def _shown(proposal: Proposal) -> dict[str, Any]:
    return {**asdict(proposal), "settings": proposal.settings}


def _say(name: str, proposal: Proposal, output: Output) -> None:
    output.line(f"{name}: learned from {proposal.bodies} captured bodies")
    output.line(f"  list order: {proposal.list_order.value.replace('_', ' ')} (seen on every walk, nothing to set)")
    output.line(f"  authenticity: {proposal.authenticity_text}")
    for fact, places in proposal.places.items():
        best = ", ".join(f"{place.pointer} {place.share:.0%}" for place in places) or "not found"
        output.line(f"  {fact}: found in {proposal.fits[fact]:.0%} today; best: {best}")
    for setting, value in proposal.settings.items():
        output.line(f"  {setting}={value}")
