"""Doctor: checks of what sync needs of the world, each a finding; and a test event followed until it arrives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from consumer.broker import TopicReport
from consumer.checks.awaited_test_event import HOST_SKEW, AwaitedTestEvent
from consumer.checks.discovery import Proposal, listed_order, propose
from consumer.clock import Clock
from consumer.errors import ConsumerError, NotUnderstood
from consumer.events import first, locate, parse_json, parse_time
from consumer.ledger import Database
from consumer.ledger.engine.database_time import database_time
from consumer.ledger.reading import samples
from consumer.lists.bookmark import SERVICE_SKEW, ListOrder, order_of
from consumer.payments import AuthenticationError, BudgetExhausted, EventRecord, PaymentsError, RateLimitError
from consumer.settings.values import is_loopback
from consumer.sync.api import ApplicationApi, shown
from consumer.sync.application import Application
from consumer.sync.backfill.page import LISTED, is_thin
from consumer.sync.identity import Identity

FRESH: Final = timedelta(minutes=1)
HALF_A_SECOND: Final = timedelta(seconds=0.5)
SAMPLES: Final = 100
SINGLES: Final = 10
LOOK_EVERY_S: Final = 0.5

_TEST_HOST = re.compile(r"(^|[.-])(sandbox|test|testing|staging|stage|dev|devnet|localhost)([.-]|$)")


class Grade(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding: safe to print, one line."""

    name: str
    grade: Grade
    text: str


async def credentials(api: ApplicationApi) -> Check:
    """Whether the service takes the credentials (cases S1, S11)."""
    try:
        await api.client.application.retrieve()
    except AuthenticationError as error:
        return Check(name="credentials", grade=Grade.FAIL, text=error.message)
    except (BudgetExhausted, RateLimitError) as error:
        return Check(name="credentials", grade=Grade.WARN, text=f"could not be checked now: {error.line()}")
    except PaymentsError as error:  # refused a moment ago, or nobody answers there
        return Check(name="credentials", grade=Grade.FAIL, text=f"could not be checked: {error.line()}")
    return Check(name="credentials", grade=Grade.OK, text="accepted")


async def identity(api: ApplicationApi, database: Database, clock: Clock) -> Check:
    """Whether they are the credentials of the application whose data the ledger holds (case B32)."""
    try:
        await Identity(Application(api=api, database=database, clock=clock)).check(remember=False)
    except ConsumerError as error:
        grade = Grade.WARN if error.retryable else Grade.FAIL
        return Check(name="identity", grade=grade, text=error.line())
    return Check(name="identity", grade=Grade.OK, text="the ledger's application")


async def event_list(api: ApplicationApi) -> Check:
    """Whether `/v1/events` can be walked: its order, and whether today's locators find what they should."""
    try:
        page = await api.client.events.list(limit=100)
        documents, is_brief = await _as_walks_read(api, page.items)
    except PaymentsError as error:
        return Check(name="events", grade=Grade.FAIL, text=error.line())
    if not page.items:
        return Check(name="events", grade=Grade.OK, text="none listed yet")
    order = order_of([parse_time(first(item.raw, api.locators.time)) for item in page.items])
    fits = propose(documents, [], api.locators).fits
    poor = [fact for fact in ("id", "type", "order", "subscription") if fits[fact] < 1]
    told = "in no order that shows" if order is ListOrder.UNKNOWN else order.value.replace("_", " ")
    summary = f"{len(page.items)} on the first page, {told}"
    summary += "; listed in brief, so each is read by its id" if is_brief else ""
    if poor:
        return Check(name="events", grade=Grade.WARN, text=f"{summary}; not always found: {', '.join(poor)}")
    return Check(name="events", grade=Grade.OK, text=summary)


async def _as_walks_read(api: ApplicationApi, listed: Sequence[EventRecord]) -> tuple[list[dict[str, Any]], bool]:
    """The events as a walk has them, and whether any is listed in brief (case B22): of those the first few, as they are
    read by their ids. Where the first read shows no more than the list, that is all there is of them."""
    brief: dict[str, EventRecord] = {}
    for item in listed:
        with suppress(NotUnderstood):
            found = locate(item.raw, api.locators)
            if is_thin(found):
                brief[found.id] = item
    whole: list[dict[str, Any]] = []
    for event_id, item in list(brief.items())[:SINGLES]:
        one = await shown(api.client.events.retrieve(event_id))
        if one is not None and one.raw != item.raw:
            whole.append(one.raw)
        elif not whole:
            return [item.raw for item in listed], False
    thin = {id(item) for item in brief.values()}
    return [*whole, *(item.raw for item in listed if id(item) not in thin)], bool(whole)


def environment(base_url: str, topic_prefix: str) -> Check:
    """A test service with production topics, or the reverse (case S10): a secret's prefix tells nothing."""
    host = urlsplit(base_url).hostname or ""
    tests_service = _TEST_HOST.search(host) is not None or host.startswith("127.") or host == "::1"
    tests_topics = _TEST_HOST.search(topic_prefix.replace("_", "-")) is not None
    if tests_topics and not tests_service:
        return Check(name="environment", grade=Grade.WARN, text="test topics, but the service is no test service")
    if tests_service and "prod" in topic_prefix.lower():
        return Check(name="environment", grade=Grade.WARN, text="production topics, but a test service")
    return Check(name="environment", grade=Grade.OK, text=f"{host}, topics {topic_prefix}.…")


def topic(report: TopicReport) -> Check:
    """How a topic stands, as a look found it, and what mends it. Pure."""
    name = f"topic {report.name}"
    mend = f"; to mend: {' && '.join(report.remedies)}" if report.remedies else ""
    if report.partitions is None:
        return Check(name=name, grade=Grade.WARN, text=f"missing; each role makes it at its start{mend}")
    found = "; ".join([f"{report.partitions} partitions", *report.wrong, *report.thin, *report.odd])
    grade = Grade.FAIL if report.wrong else Grade.WARN if report.thin or report.odd else Grade.OK
    return Check(name=name, grade=grade, text=found + mend)


def broker_clock(reports: Sequence[TopicReport], clock: Clock, *, own_machine: bool) -> Check:
    """Our clock, which is the database's where there is one, against the broker's, as far as the newest record tells:
    nothing is written to ask."""
    name = "clock of the broker"
    if own_machine:
        return Check(name=name, grade=Grade.OK, text="one machine, one clock")
    times = [report.newest_at for report in reports if report.newest_at is not None]
    if not times:
        return Check(name=name, grade=Grade.OK, text="not known: no record tells it, and looking writes none")
    age = clock.now() - max(times)
    seconds = age.total_seconds()
    if age < -HOST_SKEW:
        return Check(name=name, grade=Grade.FAIL, text=f"at least {-seconds:.1f} s ahead of ours")
    if age <= FRESH:
        return Check(name=name, grade=Grade.OK, text=f"not ahead of ours, and at most {max(0.0, seconds):.1f} s behind")
    unknown = f"how far behind is not known: the newest record is {seconds / 60:.0f} min old, and looking writes none"
    return Check(name=name, grade=Grade.OK, text=f"not ahead of ours; {unknown}")


def service_clock(api: ApplicationApi) -> Check:
    """Our clock, which is the database's where there is one, against the service's, as its last answer told it: windows
    and history reckon with both."""
    told = api.client.service_clock
    if told is None:
        return Check(name="clock", grade=Grade.OK, text="not known: the service's answers carry no date")
    theirs, ours = told
    skew = abs(theirs + HALF_A_SECOND - ours)  # a header tells whole seconds
    grade = Grade.OK if skew <= HOST_SKEW else Grade.WARN if skew <= SERVICE_SKEW else Grade.FAIL
    return Check(name="clock", grade=grade, text=f"{skew.total_seconds():.1f} s from the service's")


def who_writes(servers: Sequence[str], protocol: str) -> Check | None:
    """A Kafka that asks nobody who he is, beyond this machine: what lies in it counts as proved. Pure; None if not."""
    if protocol != "PLAINTEXT" or all(is_loopback(one.rpartition(":")[0]) for one in servers):
        return None  # TLS may ask for a certificate, which is not seen from here
    text = (
        "whoever reaches it can write what counts as proved: let it ask for a login "
        "(CONSUMER_KAFKA_SECURITY_PROTOCOL=SASL_SSL), or see that nobody else does"
    )
    return Check(name="broker", grade=Grade.WARN, text=text)


def without_credentials(application: str, *, waits: bool) -> Check:
    """An application that cannot be read; `waits`: a read is the only proof of its webhooks."""
    lives = "its deliveries wait to be confirmed" if waits else "it lives on signed webhooks; what they lose stays lost"
    text = f"no API credentials: {lives}; set base_url, app_id and app_secret"
    return Check(name=f"{application}: credentials", grade=Grade.FAIL if waits else Grade.WARN, text=text)


async def clock_skew(database: Database, clock: Clock) -> Check:
    """This machine's clock against the database's: leases and due times reckon with both."""
    try:
        before = clock.now()
        async with database.reading() as session:
            theirs = await database_time(session)
        after = clock.now()
    except ConsumerError as error:
        return Check(name="clock", grade=Grade.FAIL, text=error.line())
    if theirs is None:
        return Check(name="clock", grade=Grade.OK, text="one machine, one clock")
    skew = abs(theirs - (before + (after - before) / 2))
    grade = Grade.OK if skew <= HOST_SKEW + (after - before) else Grade.FAIL
    return Check(name="clock", grade=grade, text=f"{skew.total_seconds():.1f} s from the database's")


async def learn(api: ApplicationApi, database: Database, *, test_event: Grade | None = None) -> Proposal:
    """Locators, list order and authenticity as the captured deliveries and the listed events suggest
    (`doctor --learn`). `test_event`: how following one came out, if one was sent: what is learned may be of others."""
    async with database.reading() as session:
        kept = await samples.quarantined(session, api.application, SAMPLES)
        waiting = await samples.waiting(session, api.application, SAMPLES)
    delivered = [*(one for one in kept if not one.delivery_id.startswith(LISTED)), *waiting]
    headers = [orjson.loads(one.headers) for one in delivered]
    items = (await api.client.events.list(limit=100)).items
    documents, _ = await _as_walks_read(api, items)
    bodies = [one.body for one in (*kept, *waiting)]
    found = propose([*_documents(bodies), *documents], headers, api.locators)
    order = listed_order([item.raw for item in items], found, api.locators)
    return replace(found, list_order=order, test_event=test_event.value if test_event else None)


def _documents(raws: Sequence[bytes]) -> list[dict[str, object]]:
    found = []
    for raw in raws:
        try:
            found.append(parse_json(raw))
        except ConsumerError:
            continue
    return found


async def follow_test_event(api: ApplicationApi, database: Database, clock: Clock, *, within_s: float = 30.0) -> Check:
    """Have a test event sent, and wait until its delivery shows in the ledger, wherever it ends up (case U8).

    It uses up one of ten an hour. A test event that ends in quarantine has arrived: that is what is asked here. Where
    the service's answer does not name it (case U18), it is known by a type of its own or a mark; else a delivery that
    came meanwhile is a warning, for nobody can tell whether it is the one.
    """
    began = clock.now()
    try:
        answer = await api.client.webhook.test_event()
    except PaymentsError as error:
        return Check(name="test event", grade=Grade.FAIL, text=error.line())
    event_id = first(answer.raw, api.locators.id)
    arrival = AwaitedTestEvent(api, database, event_id if isinstance(event_id, str) else None, began)
    deadline = clock.monotonic() + within_s
    while clock.monotonic() < deadline:
        place = await arrival.look()
        if place is not None:
            seconds = (clock.now() - began).total_seconds()
            return Check(name="test event", grade=Grade.OK, text=f"arrived after {seconds:.1f} s: {place}")
        await clock.sleep(LOOK_EVERY_S)
    if arrival.other is not None:
        text = f"sent; a delivery arrived ({arrival.other}), but whether it is the test event cannot be told"
        return Check(name="test event", grade=Grade.WARN, text=text)
    sent = "sent, and listed by the service, but" if arrival.is_listed else "sent, but"
    return Check(
        name="test event",
        grade=Grade.FAIL,
        text=f"{sent} nothing arrived within {within_s:.0f} s: is the endpoint's address right, is `serve` up?",
    )
