"""Which applications are judged by how they are read: those that a `sync` reads, and no other for ever."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select

from consumer.cli.looking.evidence.readers import kept_now, to_judge
from consumer.cli.looking.status import _reading as reading
from consumer.cli.looking.status_finding import Grade
from consumer.cli.looking.verdict import judge
from consumer.clock import SystemClock
from consumer.console.alarms.unread import Overdue, overdue
from consumer.events import Authenticity, Trust
from consumer.ledger import Database, health, leases
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import GAVE_WAY, READS, Process
from consumer.ledger.reading import heard, hints, read_requests, sync_state
from consumer.ledger.tables import ALARM_AFTER_ATTEMPTS, TOLD, ReadRow
from consumer.plugin import ReadRequest
from consumer.settings import ApplicationSettings, Role, load_settings
from consumer.sync.health.status import ApplicationStatus
from tests.cli.looking.evidence.test_roles_that_are_gone_are_named import living
from tests.cli.looking.test_what_is_healthy_degraded_or_stuck import LONG_AGO, NOW, WELL
from tests.support.handling.projections import START, Projections, said
from tests.sync.conftest import delivery

BOTH = ("club", "shop")
DAYS_AGO = NOW - timedelta(days=2)


def kept(*processes: Process, lately: Collection[str] = BOTH) -> set[str]:
    return set(kept_now(processes, NOW, ever=BOTH, lately=lately))


def test_who_is_read_says_the_sync_that_lives() -> None:
    assert kept(living("sync", said={READS: "shop"})) == {"shop"}
    assert kept(living("sync", said={READS: "shop"}), living("sync", process="b", said={READS: "club"})) == set(BOTH)
    assert kept(living("sync")) == set(BOTH), "of an older version"


def test_a_sync_that_is_missed_leaves_what_it_kept_and_one_that_was_given_up_does_not() -> None:
    assert kept() == set(BOTH)
    assert kept(living("sync", said={READS: "shop"}, seen_at=LONG_AGO)) == set(BOTH)
    assert kept(living("sync", seen_at=DAYS_AGO, stopped_at=DAYS_AGO)) == set()
    seen = living("sync", said={READS: "shop"}, seen_at=DAYS_AGO)
    assert kept_now([seen], NOW, ever=BOTH, lately=BOTH, within=timedelta(days=1)) == set(), "it is not missed"
    assert kept(lately=()) == set(), "its process is forgotten, and nothing was kept for a week"


def application(name: str, authenticity: Authenticity, *, secret: bool = False) -> ApplicationSettings:
    more: dict[str, Any] = {"app_id": f"id-{name}", "base_url": "http://x"} if secret else {}
    found = ApplicationSettings(name=name, authenticity=authenticity, **more)
    return replace(found, app_secrets=(SecretStr("s"),)) if secret else found


def test_what_is_read_and_not_named_here_is_judged() -> None:
    shop = application("shop", Authenticity.API)
    assert to_judge([shop], ever=BOTH, kept=BOTH) == [("shop", None), ("club", None)]
    assert to_judge([shop], ever=BOTH, kept=("club",)) == [("club", None)]


def test_one_that_lives_on_signatures_and_is_read_no_more_is_not_judged() -> None:
    shop = application("shop", Authenticity.SIGNATURE, secret=True)
    assert to_judge([shop], ever=("shop",), kept=("shop",)) == [("shop", "id-shop")]
    assert to_judge([shop], ever=("shop",), kept=()) == []
    club = application("club", Authenticity.API, secret=True)
    unread = application("shop", Authenticity.SIGNATURE)
    assert to_judge([club, unread], ever=BOTH, kept=("club",)) == [("club", "id-club")]
    both = [("club", "id-club"), ("shop", "id-shop")]
    assert to_judge([club, shop], ever=BOTH, kept=("club",)) == both, "`sync` lacks the credentials that are here"
    hinted = application("shop", Authenticity.API, secret=True)
    assert to_judge([hinted], ever=("shop",), kept=()) == [("shop", "id-shop")], "nothing is confirmed without it"


async def test_one_that_left_all_settings_is_missed_while_its_deliveries_wait(database: Database) -> None:
    """They were taken with a 200, and nobody asks about them any more."""
    now = SystemClock().now()
    settings = load_settings(
        {
            "CONSUMER_APPLICATIONS": '{"club":{"base_url":"https://x.example","app_id":"svc_app_1","app_secret":"svc_sk_live_1"}}',
        },
        Role.OPERATE,
    )
    reader = living("sync", said={READS: "club"}, seen_at=now, started_at=now)
    async with database.transaction() as session:
        for name in BOTH:
            await sync_state.keep(session, name, "events", {}, token=1, now=now)
    async with database.reading() as session:
        assert [one.application for one in await reading(session, settings, [reader], now)] == ["club"]
    async with database.transaction() as session:
        await hints.keep(session, [replace(delivery(b"{}", 1, event_id="evt_1"), application="shop")], now)
    async with database.reading() as session:
        [_, left] = await reading(session, settings, [reader], now)
    [finding] = judge(WELL, application_statuses=[left])
    assert (finding.code, finding.text.partition(", and")[0]) == (
        "no_credentials",
        "shop: no API credentials: 1 delivery(s) wait to be confirmed",
    )


async def test_what_a_worker_noted_is_no_reading(database: Database) -> None:
    now = SystemClock().now()
    async with database.transaction() as session:
        await heard.note(session, {"shop": now})
        await sync_state.keep(session, "club", "events", {}, token=1, now=now - timedelta(days=8))
    async with database.reading() as session:
        assert await sync_state.applications(session) == {"club"}
        assert await sync_state.applications(session, now - timedelta(days=7)) == frozenset()


@pytest.mark.parametrize(
    ("looked", "walked", "codes"),
    [
        (NOW - timedelta(minutes=16), NOW, ["comparison_late"]),
        (NOW - timedelta(minutes=14), NOW, []),
        (None, NOW, []),
        (LONG_AGO, LONG_AGO, ["walk_late"]),
    ],
)
def test_a_comparison_that_stands_still_is_told(looked: Any, walked: Any, codes: list[str]) -> None:
    one = ApplicationStatus(application="shop", walked_at=walked, looked_at=looked)
    assert [finding.code for finding in judge(WELL, application_statuses=[one])] == codes


def test_one_that_stands_by_and_is_refused_is_told() -> None:
    # case: O3, B26
    leads = living("sync", said={READS: "shop"}, process="a")
    aside = living("sync", said={READS: "shop", GAVE_WAY: "shop"}, process="b", host="shop-2", pid=9)
    [finding] = judge(WELL, processes=[leads, aside])
    assert (finding.code, finding.grade) == ("credentials_refused", Grade.DEGRADED)
    assert "shop: a `sync` that stands by (pid 9 on shop-2) is refused" in finding.text
    assert judge(WELL, processes=[leads, replace(aside, stopped_at=NOW)]) == []


@pytest.mark.parametrize(("lives_for", "codes"), [(16, ["comparison_late"]), (14, [])])
def test_a_comparison_that_never_was_is_told(lives_for: int, codes: list[str]) -> None:
    one = ApplicationStatus(application="shop", walked_at=NOW)
    reader = living("sync", said={READS: "club shop"}, started_at=NOW - timedelta(minutes=lives_for))
    found = judge(WELL, application_statuses=[one], processes=[reader])
    assert [finding.code for finding in found] == codes
    other = living("sync", said={READS: "club"}, started_at=LONG_AGO)
    assert judge(WELL, application_statuses=[one], processes=[other]) == [], "who reads it says nothing of it"


@pytest.mark.parametrize(("minutes", "codes"), [(16, ["reading_held_up"]), (14, [])])
def test_reads_that_come_late_are_told(minutes: int, codes: list[str]) -> None:
    wait = Overdue(application="shop", since=NOW - timedelta(minutes=minutes))
    assert [finding.code for finding in judge(WELL, late_reads=[wait])] == codes


async def test_the_read_that_waits_for_longest_is_of_who_is_read(database: Database) -> None:
    async with database.transaction() as session:
        now = await shared_time(session)
        for name, ago in (("shop", 20), ("club", 30), ("shop", 10)):
            asked = ReadRequest(kind="order", object_id=f"o{ago}", not_before=now - timedelta(minutes=ago))
            await read_requests.ask(session, name, [asked], now)
        await leases.acquire(session, "sync/shop", "one", now, 30.0)
        assert await overdue(session, now) == [Overdue(application="shop", since=now - timedelta(minutes=20))]
        assert await overdue(session, now - timedelta(minutes=25)) == []


async def fails(database: Database, object_id: str, times: int, *, code: str = "server_error") -> None:
    """The read of it failed so often, and is due again in hours."""
    async with database.transaction() as session:
        wanted = select(ReadRow).where(ReadRow.__table__.c.object_id == object_id)
        row = (await session.execute(wanted)).scalar_one()
        for _ in range(times):
            later = START + timedelta(days=3, hours=6)
            await read_requests.put_off(session, row, due_at=later, code=code)


async def ask(database: Database, application: str, *object_ids: str) -> None:
    async with database.transaction() as session:
        for number, object_id in enumerate(object_ids):
            asked = ReadRequest(kind="order", object_id=object_id)
            await read_requests.ask(session, application, [asked], START + timedelta(minutes=number))


async def said_of(database: Database, *led: str) -> list[str]:
    """What is told three days later, while these applications are read."""
    now = START + timedelta(days=3)
    async with database.transaction() as session:
        for name in led:
            await leases.acquire(session, f"{leases.READER}{name}", "one", now, leases.LEASE_S)
    async with database.reading() as session:
        figures, late = await health.figures(session, now), await overdue(session, now)
    return [finding.text for finding in judge(replace(figures, worker_seen_at=now), late_reads=late)]


# case: G7, O2
async def test_a_subscription_whose_read_always_fails_is_told(database: Database) -> None:
    """It gives no access, and its read is never late: it is put off each time."""
    access = Projections(database, "handlers.access.handler")
    await access.feed(said("subscription.created", "evt_1", trust=Trust.READ, subscription_id="sub_1"))
    await fails(database, "sub_1", ALARM_AFTER_ATTEMPTS - 1)
    assert await said_of(database, "default") == []
    await fails(database, "sub_1", 1)
    [told] = await said_of(database, "default")
    assert told.startswith("1 read(s) failed 8 times in a row and more (subscription sub_1: server_error); ")
    await access.feed(said("subscription.renewed", "evt_2", trust=Trust.READ, subscription_id="sub_1"))
    async with database.reading() as session:
        assert (await health.figures(session, START)).unreadable == 0, "it is asked for anew"


# case: G7
async def test_that_there_is_no_such_object_was_told_already(database: Database) -> None:
    await ask(database, "shop", "A1")
    await fails(database, "A1", ALARM_AFTER_ATTEMPTS, code=TOLD)
    assert await said_of(database, "shop") == []


# case: G7
async def test_the_first_of_the_reads_that_fail_are_named_and_only_of_who_is_read(database: Database) -> None:
    asked = [f"A{number}" for number in range(9, 1, -1)]
    await ask(database, "shop", *asked)
    await ask(database, "gone", "B1")
    for object_id in (*asked, "B1"):
        await fails(database, object_id, ALARM_AFTER_ATTEMPTS)
    [told] = await said_of(database, "shop")
    names = ", ".join(f"order A{number}: server_error" for number in (9, 8, 7, 6, 5))
    assert told.startswith(f"8 read(s) failed 8 times in a row and more ({names}, …); ")
    assert "`consumer explain order A9 --application shop` says what waits for it" in told
    assert "B1" not in told
