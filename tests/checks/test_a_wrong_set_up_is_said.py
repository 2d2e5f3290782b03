"""Doctor and learn: unknowns become facts, and a wrong set-up is said before it costs money."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from consumer.broker import TopicReport
from consumer.checks import doctor
from consumer.checks.discovery import propose
from consumer.checks.doctor import Grade
from consumer.clock import SystemClock
from consumer.events import Event, Locators, Source, Trust
from consumer.ledger import Database
from consumer.ledger.handling import events
from consumer.ledger.reading import heard, hints, quarantine
from consumer.lists.bookmark import ListOrder
from consumer.payments import Credentials, PaymentsClient
from consumer.reason import Reason
from consumer.sandbox import Sandbox, SandboxConfig
from consumer.sync.api import ApplicationApi
from consumer.sync.identity import Identity
from tests.support.ports import free_port
from tests.sync.conftest import SECRETS, Simulated, SteppedClock, World, delivery, simulated

SHAPES = {
    "type-object": {"event_type_field": "type", "event_container": "data.object", "event_payload": "snapshot"},
    "event-data": {"event_type_field": "event", "event_container": "data", "event_payload": "snapshot"},
    "event_type-flat-thin": {"event_type_field": "event_type", "event_container": "flat", "event_payload": "thin"},
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_locators_are_learned_from_what_the_service_lists(
    sqlite_ledger: Database, clock: SteppedClock, shape: str
) -> None:
    # case: U1, U2, I9, X59
    async with simulated(clock, **SHAPES[shape]) as service_side:
        await service_side.sandbox.play("happy")
        await service_side.sandbox.play("past-due-recovered")
        nowhere = Locators(**dict.fromkeys(("id", "type", "time", "object", "order", "subscription"), ("/nowhere",)))
        api = ApplicationApi(application="default", client=service_side.api.client, locators=nowhere)
        proposal = await doctor.learn(api, sqlite_ledger)
        assert proposal.fits["id"] == 0
        learned = {
            name.removeprefix("CONSUMER_LOCATE_").lower(): tuple(value.split(","))
            for name, value in proposal.settings.items()
        }
        assert {"id", "type", "object", "subscription"} <= set(learned)
        again = ApplicationApi(application="default", client=api.client, locators=Locators(**learned))
        found = await doctor.event_list(again)
        assert found.grade is Grade.OK or "order" in found.text, found.text
        after = (await doctor.learn(again, sqlite_ledger)).fits
        assert (after["id"], after["type"], after["subscription"]) == (1.0, 1.0, 1.0)
        assert proposal.list_order is ListOrder.NEWEST_FIRST, "by the proposed time: today's locators find none"
        assert proposal.deliveries == 0
    async with simulated(clock, events_order="oldest_first", **SHAPES[shape]) as service_side:
        service_side.emit(5)
        assert (await doctor.learn(service_side.api, sqlite_ledger)).list_order is ListOrder.OLDEST_FIRST


def test_the_signature_scheme_is_told_from_the_headers() -> None:
    # case: U3, X60
    body = {"id": "evt_1", "type": "order.paid"}
    standard = {"Webhook-Id": "a", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
    assert propose([body], [standard], Locators()).authenticity == "signature"
    other = propose([body], [{"x-signature": "t=1"}], Locators())
    assert (other.authenticity, other.signature_headers) == ("hmac", ("x-signature",))
    assert propose([body], [{"user-agent": "x"}], Locators()).authenticity == "api"


def test_a_proposal_holds_no_payload_and_survives_odd_bodies() -> None:
    # case: I25
    deep: dict[str, object] = {}
    at = deep
    for _ in range(50):
        at["x"] = {}
        at = at["x"]  # type: ignore[assignment]  # one level deeper
    bodies: list[dict[str, object]] = [
        {"id": "evt_1", "customer_email": "someone@shop.example"},
        deep,
        {},
        {"a/b~c": "evt_2"},
    ]
    proposal = propose(bodies, [], Locators())
    assert "someone@shop.example" not in repr(proposal)
    assert "/a~1b~0c" in {place.pointer for place in proposal.places["id"]}


async def test_refused_credentials_and_a_foreign_application_are_findings(world: World) -> None:
    # case: S1, B32
    assert (await doctor.credentials(world.api)).grade is Grade.OK
    assert (await doctor.identity(world.api, world.database, world.clock)).grade is Grade.OK
    await Identity(world.app).check()  # as the leader does
    world.service.records["/v1/application"] = {"id": "svc_app_other"}
    assert (await doctor.identity(world.api, world.database, world.clock)).grade is Grade.FAIL
    world.service.failing["*"] = 401
    found = await doctor.credentials(world.api)
    assert found.grade is Grade.FAIL
    for cause in ("header", "revoked or expired", "disabled", "approved and active"):
        assert cause in found.text
    again = await doctor.credentials(world.api)
    assert again.grade is Grade.FAIL, "the circuit is open now: that is no better"


async def test_a_service_that_does_not_answer_is_no_good_set_up() -> None:
    # case: S1
    credentials = Credentials("svc_app_test", ["svc_sk_live_test"])
    address = f"http://127.0.0.1:{free_port()}"
    async with PaymentsClient(address, credentials, clock=SteppedClock()) as client:  # it tries again after waits
        found = await doctor.credentials(ApplicationApi(application="default", client=client))
    assert (found.grade, "service_unreachable" in found.text) == (Grade.FAIL, True)


def test_a_test_service_with_production_topics_is_pointed_out() -> None:
    # case: S10
    assert doctor.environment("https://api.service.example", "payments").grade is Grade.OK
    assert doctor.environment("https://sandbox.service.example", "prod").grade is Grade.WARN
    assert doctor.environment("https://api.service.example", "payments-test").grade is Grade.WARN
    assert doctor.environment("http://127.0.0.1:4010", "payments").grade is Grade.OK


async def test_the_clock_is_compared_with_the_databases(database: Database) -> None:
    # case: O2
    assert (await doctor.clock_skew(database, SystemClock())).grade is Grade.OK
    if database.dialect == "postgresql":
        assert (await doctor.clock_skew(database, SteppedClock())).grade is Grade.FAIL


async def test_the_clock_is_compared_with_the_services(world: World) -> None:
    # case: O2
    assert "carry no date" in doctor.service_clock(world.api).text
    assert (await doctor.credentials(world.api)).grade is Grade.OK
    wrong = doctor.service_clock(world.api)  # the scripted service lives today, the stepped clock does not
    assert (wrong.grade, wrong.name) == (Grade.FAIL, "clock")
    credentials = Credentials("svc_app_test", ["svc_sk_live_test"])
    async with PaymentsClient(world.service.address, credentials) as client:
        today = ApplicationApi(application="default", client=client)
        world.service.failing["*"] = 401
        assert (await doctor.credentials(today)).grade is Grade.FAIL
        assert doctor.service_clock(today).grade is Grade.OK, "a refusal tells the time, too"


def test_the_clock_is_compared_with_the_brokers_as_far_as_looking_tells() -> None:
    # case: O2
    clock = SteppedClock()

    def told(ago_s: float | None) -> doctor.Check:
        at = None if ago_s is None else clock.now() - timedelta(seconds=ago_s)
        report = TopicReport(name="t", partitions=1, newest_at=at)
        return doctor.broker_clock([TopicReport(name="u", partitions=None), report], clock, own_machine=False)

    assert (told(-300).grade, "300.0 s ahead" in told(-300).text) == (Grade.FAIL, True)
    assert (told(2).grade, "at most 2.0 s behind" in told(2).text) == (Grade.OK, True)
    assert (told(7200).grade, "120 min old" in told(7200).text) == (Grade.OK, True)
    assert "not known" in told(None).text
    assert doctor.broker_clock([], clock, own_machine=True).text == "one machine, one clock"


def test_a_topics_grade_and_the_command_that_mends_it() -> None:
    # case: O7
    missing = doctor.topic(TopicReport(name="payments.events", partitions=None, remedies=("make it",)))
    assert (missing.grade, "make it" in missing.text) == (Grade.WARN, True)
    wrong = TopicReport(name="t", partitions=3, wrong=("retention.ms=1, needed -1",), remedies=("alter it",))
    assert (doctor.topic(wrong).grade, "alter it" in doctor.topic(wrong).text) == (Grade.FAIL, True)
    assert doctor.topic(TopicReport(name="t", partitions=3, odd=("CreateTime",))).grade is Grade.WARN
    assert doctor.topic(TopicReport(name="t", partitions=3)).grade is Grade.OK
    thin = doctor.topic(TopicReport(name="t", partitions=3, thin=("one more lost",)))
    assert (thin.grade, thin.text) == (Grade.WARN, "3 partitions; one more lost")


async def test_a_test_event_is_followed_until_it_arrives(sqlite_ledger: Database, tmp_path: Path) -> None:
    # case: U8, F24
    async def receive(request: web.Request) -> web.Response:
        raw = await request.read()
        async with sqlite_ledger.transaction() as session:
            found = propose([await request.json()], [dict(request.headers)], Locators())
            assert found.authenticity == "signature"
            event_id = (await request.json())["id"]
            await hints.keep(session, [delivery(raw, 1, event_id=event_id)], SystemClock().now())
        return web.Response()

    app = web.Application()
    app.router.add_post("/", receive)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        credentials = Credentials(SECRETS[0], [SECRETS[1]])
        async with (
            Sandbox(SandboxConfig(webhook_url=url)) as sandbox,
            PaymentsClient(sandbox.base_url, credentials) as client,
        ):
            api = ApplicationApi(application="default", client=client)
            found = await doctor.follow_test_event(api, sqlite_ledger, SystemClock(), within_s=20)
            assert found.grade is Grade.OK, found.text
            assert "waits to be confirmed" in found.text
            sandbox.set_webhook_url(None)
            lost = await doctor.follow_test_event(api, sqlite_ledger, SystemClock(), within_s=0.7)
            assert lost.grade is Grade.FAIL
    finally:
        await runner.cleanup()


@pytest.fixture
async def unnamed(clock: SteppedClock) -> AsyncIterator[Simulated]:
    """A service whose answer to a request for a test event names nothing."""
    async with simulated(clock, test_event_answer="empty") as found:
        yield found


async def came(database: Database, at: datetime, raw: bytes, where: str, event_id: str = "evt_x") -> None:
    """A record of this body that comes at this time, by a webhook or otherwise."""
    webhook = replace(delivery(raw, event_id=event_id), id=f"dlv_{event_id}", received_at=at)
    recorded = Event(
        application="default", id=event_id, type="order.paid", key="order:A-1", trust=Trust.READ,
        source=Source(where) if where in set(Source) else Source.WEBHOOK, raw=raw, received_at=at,
    )  # fmt: skip
    async with database.transaction() as session:
        if where == "hint":
            await hints.keep(session, [webhook], at)
        elif where == "quarantine":
            await quarantine.put(session, [(webhook, Reason.NOT_CONFIRMED)], at)
        elif where == "listed":
            strange = replace(webhook, id="listed:1")
            await quarantine.put(session, [(strange, Reason.NOT_UNDERSTOOD)], at)
        else:
            await events.record(session, [recorded], at)


TEST_BODIES = [b'{"id":"evt_x","type":"webhook.test"}', b'{"id":"evt_x","type":"order.paid","data":{"test":true}}']
REAL_BODY = b'{"id":"evt_x","type":"order.paid","data":{"object":{"id":"ord_1","livemode":true}}}'


@pytest.mark.parametrize("raw", TEST_BODIES)
@pytest.mark.parametrize("where", ["hint", "quarantine", "webhook"])
async def test_a_test_event_that_nothing_names_is_known_by_its_type_or_its_mark(
    sqlite_ledger: Database, unnamed: Simulated, where: str, raw: bytes
) -> None:
    # case: U8, U18
    await came(sqlite_ledger, unnamed.clock.now() + timedelta(seconds=1), raw, where)
    found = await doctor.follow_test_event(unnamed.api, sqlite_ledger, unnamed.clock, within_s=5)
    assert found.grade is Grade.OK, found.text


@pytest.mark.parametrize("where", ["backfill", "relay", "read", "listed"])
@pytest.mark.parametrize("raw", [*TEST_BODIES, REAL_BODY])
async def test_what_a_walk_or_a_read_found_is_no_test_event_that_arrived(
    sqlite_ledger: Database, unnamed: Simulated, where: str, raw: bytes
) -> None:
    # case: U8, U18
    await came(sqlite_ledger, unnamed.clock.now() + timedelta(seconds=1), raw, where)
    found = await doctor.follow_test_event(unnamed.api, sqlite_ledger, unnamed.clock, within_s=5)
    assert found.grade is Grade.FAIL, found.text


@pytest.mark.parametrize("where", ["hint", "quarantine", "webhook"])
async def test_any_other_delivery_is_no_proof_that_the_test_event_arrived(
    sqlite_ledger: Database, unnamed: Simulated, where: str
) -> None:
    # case: U8, U18
    await came(sqlite_ledger, unnamed.clock.now() - timedelta(seconds=10), TEST_BODIES[0], where, "evt_before")
    before = await doctor.follow_test_event(unnamed.api, sqlite_ledger, unnamed.clock, within_s=5)
    assert before.grade is Grade.FAIL, "it came before one was asked for"
    await came(sqlite_ledger, unnamed.clock.now() + timedelta(seconds=1), REAL_BODY, where)
    found = await doctor.follow_test_event(unnamed.api, sqlite_ledger, unnamed.clock, within_s=5)
    assert (found.grade, "cannot be told" in found.text) == (Grade.WARN, True)


async def test_a_test_event_with_a_name_that_only_a_walk_found_did_not_arrive(world: World) -> None:
    # case: U8, B28
    world.service.records["/v1/webhook/test-event"] = {"event_id": "evt_x"}
    at = world.clock.now() + timedelta(seconds=1)
    await came(world.database, at, TEST_BODIES[0], "backfill")
    await came(world.database, at, TEST_BODIES[0], "listed")
    found = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert (found.grade, "listed by the service" in found.text) == (Grade.FAIL, True)
    async with world.database.transaction() as session:
        await heard.note(session, {"default": world.clock.now() + timedelta(seconds=1)})
    late = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert late.grade is Grade.WARN, "a webhook came of something that a walk had found before"
    await came(world.database, at, REAL_BODY, "quarantine")
    there = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert (there.grade, "in quarantine" in there.text) == (Grade.OK, True)


@pytest.mark.parametrize("where", ["hint", "quarantine", "webhook"])
async def test_a_name_that_is_not_the_events_own_is_no_proof_that_it_did_not_arrive(world: World, where: str) -> None:
    # case: U8, U18
    world.service.records["/v1/webhook/test-event"] = {"id": "request_1"}
    at = world.clock.now() - timedelta(seconds=1)  # the clocks of two machines
    await came(world.database, at, REAL_BODY, where, "evt_real")
    real = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert real.grade is Grade.FAIL, "a delivery that says nothing of a test is another's"
    await came(world.database, world.clock.now(), TEST_BODIES[0], where)
    found = await doctor.follow_test_event(world.api, world.database, world.clock, within_s=5)
    assert (found.grade, "cannot be told" in found.text) == (Grade.WARN, True)


def test_what_is_learned_says_from_how_many_deliveries_and_that_the_test_event_is_not_among_them() -> None:
    # case: U3, U8
    standard = {"webhook-id": "a", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
    learned = propose([{"id": "evt_1"}], [standard] * 3, Locators())
    assert learned.authenticity_text == (
        "signature webhook-id webhook-signature webhook-timestamp (learned from 3 deliveries waiting or in quarantine)"
    )
    assert "the test event is not among them" in replace(learned, test_event="fail").authenticity_text
    assert "cannot be told" in replace(learned, test_event="warn").authenticity_text
    nothing = propose([{"id": "evt_1"}], [], Locators())
    assert "has one sent" in nothing.authenticity_text
    assert nothing.authenticity_text != replace(nothing, test_event="fail").authenticity_text
    assert "did not arrive" in replace(nothing, test_event="fail").authenticity_text


async def test_nothing_is_learned_of_webhooks_from_what_a_walk_kept(world: World) -> None:
    # case: U1, U3
    world.service.lists["/v1/events"] = lambda cursor, limit: {"items": [], "next_cursor": None}
    await came(world.database, world.clock.now(), b'{"odd":1}', "listed")
    learned = await doctor.learn(world.api, world.database, test_event=Grade.FAIL)
    assert (learned.bodies, learned.deliveries, learned.test_event) == (1, 0, "fail")
