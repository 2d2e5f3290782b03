"""Doctor: where each check's grade changes, to the second, and what an operator reads."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import TopicReport
from consumer.checks import doctor
from consumer.checks.doctor import Grade
from consumer.errors import LedgerUnavailable
from consumer.events import Locators
from consumer.ledger import Database
from consumer.ledger.reading import hints, quarantine, sync_state
from consumer.ledger.reading.sync_state import IDENTITY
from consumer.lists.bookmark import ListOrder
from consumer.payments import Credentials, PaymentsClient
from consumer.reason import Reason
from consumer.sync.api import ApplicationApi
from tests.sync.conftest import SteppedClock, World, delivery
from tests.sync.service import Json

NOW = SteppedClock().now()
UNKNOWN = "how far behind is not known: the newest record is 1 min old, and looking writes none"
Said = tuple[Grade, str]


def said(check: doctor.Check) -> Said:
    return check.grade, check.text


@pytest.mark.parametrize(
    ("base_url", "topics", "wanted"),
    [
        ("https://api.service.example", "payments", (Grade.OK, "api.service.example, topics payments.…")),
        ("https://contest.example", "payments", (Grade.OK, "contest.example, topics payments.…")),
        ("https://api-test.example", "my_test", (Grade.OK, "api-test.example, topics my_test.…")),
        ("http://127.1.2.3:80", "test", (Grade.OK, "127.1.2.3, topics test.…")),
        ("http://[::1]:80", "test", (Grade.OK, "::1, topics test.…")),
        ("nowhere", "payments", (Grade.OK, ", topics payments.…")),
        ("https://api.service.example", "my_test", (Grade.WARN, "test topics, but the service is no test service")),
        ("http://127.1.2.3:80", "PRODUCTION", (Grade.WARN, "production topics, but a test service")),
        ("http://[::1]:80", "shop-prod", (Grade.WARN, "production topics, but a test service")),
        ("https://api.service.example", "shop-prod", (Grade.OK, "api.service.example, topics shop-prod.…")),
    ],
)
def test_tests_and_production_do_not_mix(base_url: str, topics: str, wanted: Said) -> None:
    # case: S10
    assert said(doctor.environment(base_url, topics)) == wanted


@pytest.mark.parametrize(
    ("servers", "protocol", "warns"),
    [
        (("kafka-1.shop.svc:9092", "kafka-2.shop.svc:9092"), "PLAINTEXT", True),
        (("127.0.0.1:9092", "kafka:9092"), "PLAINTEXT", True),
        (("127.0.0.1:9092", "[::1]:9092", "localhost:9092"), "PLAINTEXT", False),
        (("kafka:9092",), "SASL_SSL", False),
        (("kafka:9093",), "SSL", False),
        ((), "PLAINTEXT", False),
    ],
)
def test_a_kafka_that_lets_everybody_write_is_told(servers: tuple[str, ...], protocol: str, *, warns: bool) -> None:
    # case: S1
    found = doctor.who_writes(servers, protocol)
    assert (found is not None) is warns
    assert found is None or (found.grade, "SASL_SSL" in found.text) == (Grade.WARN, True)


def test_a_topic_is_told_with_all_that_is_wrong_and_what_mends_it() -> None:
    # case: O7
    missing = TopicReport(name="t", partitions=None, remedies=("one", "two"))
    assert doctor.topic(missing).name == "topic t"
    assert said(doctor.topic(missing)) == (
        Grade.WARN,
        "missing; each role makes it at its start; to mend: one && two",
    )
    both = TopicReport(name="t", partitions=3, wrong=("short",), odd=("late",), remedies=("alter",))
    assert said(doctor.topic(both)) == (Grade.FAIL, "3 partitions; short; late; to mend: alter")
    assert said(doctor.topic(TopicReport(name="t", partitions=3))) == (Grade.OK, "3 partitions")


@pytest.mark.parametrize(
    ("ages_s", "wanted"),
    [
        ((-5.1,), (Grade.FAIL, "at least 5.1 s ahead of ours")),
        ((-5,), (Grade.OK, "not ahead of ours, and at most 0.0 s behind")),
        ((60,), (Grade.OK, "not ahead of ours, and at most 60.0 s behind")),
        ((900, 2, 700), (Grade.OK, "not ahead of ours, and at most 2.0 s behind")),
        ((61, 7200), (Grade.OK, f"not ahead of ours; {UNKNOWN}")),
        ((), (Grade.OK, "not known: no record tells it, and looking writes none")),
    ],
)
def test_the_brokers_newest_record_tells_its_clock(ages_s: tuple[float, ...], wanted: Said) -> None:
    # case: O2
    reports = [TopicReport(name="t", partitions=1, newest_at=NOW - timedelta(seconds=age)) for age in ages_s]
    unwritten = TopicReport(name="t", partitions=1)
    assert said(doctor.broker_clock([unwritten, *reports], SteppedClock(), own_machine=False)) == wanted


class Told(PaymentsClient):
    """A client whose service told the time as `told` says."""

    told: tuple[datetime, datetime] | None = None

    @property
    def service_clock(self) -> tuple[datetime, datetime] | None:
        return self.told


@pytest.mark.parametrize(
    ("ahead_s", "wanted"),
    [
        (0, (Grade.OK, "0.5 s from the service's")),
        (4.5, (Grade.OK, "5.0 s from the service's")),
        (-5.5, (Grade.OK, "5.0 s from the service's")),
        (4.6, (Grade.WARN, "5.1 s from the service's")),
        (119.5, (Grade.WARN, "120.0 s from the service's")),
        (119.6, (Grade.FAIL, "120.1 s from the service's")),
        (-120.6, (Grade.FAIL, "120.1 s from the service's")),
    ],
)
async def test_a_service_whose_clock_is_off_breaks_windows_after_two_minutes(ahead_s: float, wanted: Said) -> None:
    # case: O2
    client = Told("http://127.0.0.1:1", Credentials("svc_app_test", ["svc_sk_live_test"]))
    api = ApplicationApi(application="default", client=client)
    assert said(doctor.service_clock(api)) == (Grade.OK, "not known: the service's answers carry no date")
    client.told = (NOW + timedelta(seconds=ahead_s), NOW)
    assert said(doctor.service_clock(api)) == wanted


@pytest.mark.parametrize(
    ("off_s", "wanted"),
    [
        (0, (Grade.OK, "0.0 s from the database's")),
        (9, (Grade.OK, "9.0 s from the database's")),
        (-9, (Grade.OK, "9.0 s from the database's")),
        (9.1, (Grade.FAIL, "9.1 s from the database's")),
    ],
)
async def test_a_slow_answer_leaves_open_when_the_database_looked_at_its_clock(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch, off_s: float, wanted: Said
) -> None:
    # case: O2
    clock = SteppedClock()

    async def answered(_: AsyncSession) -> datetime:
        clock.advance(4)
        return NOW + timedelta(seconds=2 + off_s)

    assert said(await doctor.clock_skew(sqlite_ledger, clock)) == (Grade.OK, "one machine, one clock")
    monkeypatch.setattr(doctor, "database_time", answered)
    assert said(await doctor.clock_skew(sqlite_ledger, clock)) == wanted


async def test_a_ledger_that_does_not_answer_is_no_good_clock(
    sqlite_ledger: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # case: O2
    async def away(_: AsyncSession) -> datetime:
        raise LedgerUnavailable(reason="scripted")

    monkeypatch.setattr(doctor, "database_time", away)
    found = await doctor.clock_skew(sqlite_ledger, SteppedClock())
    assert said(found) == (Grade.FAIL, LedgerUnavailable(reason="scripted").line())


@pytest.mark.parametrize(
    ("waits", "wanted"),
    [
        (True, (Grade.FAIL, "its deliveries wait to be confirmed")),
        (False, (Grade.WARN, "it lives on signed webhooks; what they lose stays lost")),
    ],
)
def test_without_credentials_it_matters_whether_deliveries_wait_for_a_read(waits: bool, wanted: Said) -> None:
    # case: I15
    found = doctor.without_credentials("shop", waits=waits)
    assert (found.name, found.grade) == ("shop: credentials", wanted[0])
    assert found.text == f"no API credentials: {wanted[1]}; set base_url, app_id and app_secret"


@pytest.mark.parametrize(
    ("status", "grade", "begins"),
    [
        (401, Grade.FAIL, "Every credential was refused"),
        (429, Grade.WARN, "could not be checked now: error[rate_limited]"),
        (403, Grade.FAIL, "could not be checked: error[api_error]"),
    ],
)
async def test_credentials_that_are_not_taken_now_are_told_from_wrong_ones(
    world: World, status: int, grade: Grade, begins: str
) -> None:
    # case: S1, S11
    assert said(await doctor.credentials(world.api)) == (Grade.OK, "accepted")
    world.service.failing["*"] = status
    found = await doctor.credentials(world.api)
    assert (found.name, found.grade) == ("credentials", grade)
    assert found.text.startswith(begins)


async def test_an_identity_that_cannot_be_read_now_is_no_wrong_one(world: World) -> None:
    # case: B32
    world.service.failing["*"] = 503
    found = await doctor.identity(world.api, world.database, world.clock)
    assert (found.name, found.grade, found.text[:20]) == ("identity", Grade.WARN, "error[server_error]:")
    world.service.failing.clear()
    assert said(await doctor.identity(world.api, world.database, world.clock)) == (Grade.OK, "the ledger's application")
    async with world.database.transaction() as session:
        assert await sync_state.load(session, "default", IDENTITY) is None, "whoever only looks remembers nothing"
        state = {"app_id": "svc_app_other", "service_id": None}
        await sync_state.keep(session, "default", IDENTITY, state, token=1, now=NOW)
    wrong = await doctor.identity(world.api, world.database, world.clock)
    assert (wrong.grade, wrong.text[:25]) == (Grade.FAIL, "error[wrong_application]:")


def listing(world: World, *items: Json) -> list[int]:
    """The service lists these; returns how many were asked for, each time."""
    asked = list[int]()

    def page(_: str | None, limit: int) -> Json:
        asked.append(limit)
        return {"items": list(items), "next_cursor": None}

    world.service.lists["/v1/events"] = page
    return asked


def listed(number: int, **more: Any) -> Json:
    at = {"created_at": f"2026-01-01T00:00:{number:02}Z"}
    return {"id": f"evt_{number}", "type": "order.paid", "data": {"order_id": f"A-{number}"}, **at, **more}


async def test_what_todays_locators_miss_on_the_first_page_is_named(world: World) -> None:
    # case: U1, U6
    asked = listing(world)
    assert said(await doctor.event_list(world.api)) == (Grade.OK, "none listed yet")
    assert asked == [100], "as many as a page takes"
    listing(world, *map(listed, range(3)))
    assert said(await doctor.event_list(world.api)) == (Grade.OK, "3 on the first page, oldest first")
    ended = {**listed(0), "id": None, "type": "subscription.ended", "data": {}}
    listing(world, {**listed(4), "data": {}}, listed(3), listed(2), ended)
    assert said(await doctor.event_list(world.api)) == (
        Grade.WARN,
        "4 on the first page, newest first; not always found: id, order, subscription",
    )
    world.service.lists["/v1/events"] = lambda _cursor, _limit: 403
    found = await doctor.event_list(world.api)
    assert (found.name, found.grade, found.text[:17]) == ("events", Grade.FAIL, "error[api_error]:")


async def test_a_list_in_brief_is_judged_by_what_its_events_say_when_read(world: World) -> None:
    # case: B22, U1
    whole = [world.service.event(number, order_id=f"A-{number}") for number in range(20)]
    listing(world, *({"id": one["id"]} for one in whole))
    assert said(await doctor.event_list(world.api)) == (
        Grade.OK,
        "20 on the first page, in no order that shows; listed in brief, so each is read by its id",
    )
    assert sum(calls for path, calls in world.service.calls.items() if path.startswith("/v1/events/")) == doctor.SINGLES
    learned = await doctor.learn(world.api, world.database)
    assert (learned.bodies, learned.fits["type"], learned.fits["order"]) == (doctor.SINGLES, 1.0, 1.0)


async def test_a_list_in_brief_is_told_as_the_walks_tell_it(world: World) -> None:
    # case: B22, U1
    whole = world.service.event(1, order_id="A-1")
    brief = {**whole, "data": {"object": {}}}
    listing(world, listed(0), brief)
    assert said(await doctor.event_list(world.api)) == (
        Grade.OK,
        "2 on the first page, in no order that shows; listed in brief, so each is read by its id",
    )
    listing(world, listed(0))
    asked = world.service.calls.total()
    assert said(await doctor.event_list(world.api)) == (Grade.OK, "1 on the first page, in no order that shows")
    assert world.service.calls.total() == asked + 1, "what is listed whole is not read by its id"


async def test_what_is_learned_is_learned_from_all_that_was_captured(world: World) -> None:
    # case: U1, U3
    asked = listing(world, *map(listed, range(3)))
    async with world.database.transaction() as session:
        await quarantine.put(session, [(delivery(b"not JSON", 1), Reason.NOT_JSON)], NOW)
        await quarantine.put(session, [(delivery(b'{"number":"evt_9"}', 2), Reason.NO_EVENT_ID)], NOW)
        await hints.keep(session, [delivery(b'{"number":"evt_8"}', 3, event_id="evt_8")], NOW)
    found = await doctor.learn(world.api, world.database)
    assert asked == [100]
    assert (found.bodies, found.deliveries) == (5, 3)
    assert [place.pointer for place in found.places["id"]] == ["/id", "/number"]
    assert (found.list_order, found.test_event) == (ListOrder.OLDEST_FIRST, None)
    nowhere = ApplicationApi(application="other", client=world.api.client, locators=Locators())
    assert (await doctor.learn(nowhere, world.database)).deliveries == 0, "another application's are not taken"
