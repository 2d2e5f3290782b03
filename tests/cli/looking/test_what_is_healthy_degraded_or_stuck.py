"""What makes a deployment healthy, degraded or stuck."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consumer.broker import TopicReport
from consumer.cli.looking.find import explain_line
from consumer.cli.looking.log import LogLook, judge_log
from consumer.cli.looking.status_finding import Finding, Grade, worst
from consumer.cli.looking.verdict import judge
from consumer.console.alarms.late_decisions import LateDecision
from consumer.console.alarms.queues import Queue
from consumer.console.alarms.unfulfilled import Waiting
from consumer.console.find import Found
from consumer.document import shown
from consumer.errors import BrokerUnavailable
from consumer.ledger import Database
from consumer.ledger.engine.database import server_of
from consumer.ledger.health import Figures
from consumer.ledger.plans.plans import HalfApplied
from consumer.ledger.reading.read_requests import Unreadable
from consumer.sync.canary.sightings import LATE, Missed, Sightings
from consumer.sync.health.stalled import StalledStage
from consumer.sync.health.status import ApplicationStatus, refused_at
from tests.support.desk import Desk

NOW = datetime(2026, 5, 1, tzinfo=UTC)
SERVICE = {"SVC_BASE_URL": "http://127.0.0.1:1", "SVC_APP_ID": "svc_app_1", "SVC_APP_SECRET": "svc_sk_live_1"}
WELL = Figures(
    at=NOW,
    events=10,
    newest_event_at=NOW,
    retrying=0,
    parked=0,
    dead=0,
    oldest_due_at=None,
    outbox_waiting=0,
    outbox_oldest_at=None,
    hints=0,
    oldest_hint_at=None,
    reads=0,
    reads_due=0,
    unasked=0,
    denied=0,
    oldest_unasked_at=None,
    quarantined=0,
    quarantined_lately=0,
    refused_lately=0,
    paused_handlers=(),
    waiting_handlers=(),
    gone_handlers={},
    worker_seen_at=NOW,
)
UNREAD = Unreadable(application="shop", kind="subscription", object_id="S1", code="server_error")
LONG_AGO = NOW - timedelta(hours=1)
AWAY = LogLook(refused=BrokerUnavailable())


def test_all_is_well() -> None:
    assert judge(WELL) == []
    assert worst([]) is Grade.HEALTHY


# case: O2, O4
@pytest.mark.parametrize(
    ("changed", "code", "grade"),
    [
        (replace(WELL, oldest_due_at=LONG_AGO), "runs_overdue", Grade.STUCK),
        (replace(WELL, outbox_oldest_at=LONG_AGO), "outbox_stuck", Grade.STUCK),
        (replace(WELL, worker_seen_at=LONG_AGO), "no_work", Grade.STUCK),
        (replace(WELL, worker_seen_at=None), "no_work", Grade.STUCK),
        (replace(WELL, dead=1), "dead_runs", Grade.DEGRADED),
        (replace(WELL, paused_handlers=("shop:ship",)), "handlers_paused", Grade.DEGRADED),
        (replace(WELL, waiting_handlers=("shop:ship",)), "handlers_waiting", Grade.DEGRADED),
        (replace(WELL, gone_handlers={"shop:ship": 3}), "handlers_gone", Grade.DEGRADED),
        (replace(WELL, half_applied=HalfApplied("rpl_1", renews_keys=False)), "plan_half_applied", Grade.DEGRADED),
        (replace(WELL, unreadable=1, unreadable_first=(UNREAD,)), "objects_unreadable", Grade.DEGRADED),
        (replace(WELL, hints=3, unasked=3, oldest_unasked_at=NOW - timedelta(minutes=3)), "hints_late", Grade.DEGRADED),
        (replace(WELL, hints=3, unasked=3, oldest_unasked_at=LONG_AGO), "hints_late", Grade.STUCK),
        (replace(WELL, hints=5998, denied=5998), "hints_denied", Grade.DEGRADED),
        (replace(WELL, quarantined_lately=20), "quarantine_grows", Grade.DEGRADED),
        (replace(WELL, refused=1), "records_refused", Grade.DEGRADED),
        (replace(WELL, refused=3, refused_lately=3), "records_refused", Grade.STUCK),
    ],
)
def test_each_sign_has_its_grade(changed: Figures, code: str, grade: Grade) -> None:
    [finding] = judge(changed)
    assert (finding.code, finding.grade) == (code, grade)
    assert re.search(r"`consumer [a-z]|restart `", finding.text), "what to type, or to do, stands behind it"


# case: O2, R10
def test_what_is_typed_as_it_is_printed_does_what_was_said() -> None:
    """`replay plan` shows, and does nothing again by itself; `handlers resume` alone is refused."""
    [dead] = judge(replace(WELL, dead=1))
    assert "`consumer dead list`" in dead.text
    assert "`consumer replay plan` shows" in dead.text
    [paused] = judge(replace(WELL, paused_handlers=("shop:ship",)))
    assert "`consumer handlers resume shop:ship --reason …`" in paused.text
    [paused] = judge(replace(WELL, paused_handlers=("shop:mail", "shop:ship")))
    assert "shop:mail, shop:ship" in paused.text
    assert "`consumer handlers resume NAME --reason …`" in paused.text
    some = replace(WELL, paused_handlers=("shop:mail", "shop:ship"), paused_for={"shop:ship": ("far", "near")})
    assert "paused: shop:mail, shop:ship only for far and near (" in judge(some)[0].text


def test_what_stands_still_is_told_with_how_much_and_for_how_long() -> None:
    [overdue] = judge(replace(WELL, oldest_due_at=LONG_AGO))
    assert "the oldest for 60 min" in overdue.text
    [stuck] = judge(replace(WELL, outbox_waiting=7, outbox_oldest_at=LONG_AGO))
    assert "7 derived event(s) are not being published, the oldest for 60 min" in stuck.text


def test_who_did_not_answer_is_named_by_its_address() -> None:
    [away] = judge_log(LogLook(refused=BrokerUnavailable(), where=("kafka-1:9092", "kafka-2:9092")), NOW)
    assert "(asked: kafka-1:9092, kafka-2:9092)" in away.text
    assert server_of("postgresql+asyncpg://shop:hush@db.internal/consumer") == "db.internal:5432"
    assert server_of("postgresql+asyncpg://shop:hush@db.internal:6000/consumer") == "db.internal:6000"
    assert server_of("sqlite+aiosqlite:////data/consumer.db") is None


# case: H7
def test_a_handler_that_nobody_has_is_named_with_what_waits_for_it() -> None:
    [finding] = judge(replace(WELL, retrying=4, parked=1, gone_handlers={"shop:ship": 3, "shop:bill": 2}))
    assert finding.text.startswith("runs wait for a handler nobody has: shop:bill (2), shop:ship (3)")
    assert "consumer dead discard --handler NAME --reason …" in finding.text


# case: G7
def test_an_object_that_cannot_be_read_is_named_with_what_tells_of_it() -> None:
    [finding] = judge(replace(WELL, unreadable=7, unreadable_first=(UNREAD, replace(UNREAD, object_id="S2"))))
    assert (
        "7 read(s) failed 8 times in a row and more (subscription S1: server_error, subscription S2: server_error, …)"
        in finding.text
    )
    assert "`consumer explain subscription S1 --application shop` says what waits for it" in finding.text
    [one] = judge(replace(WELL, unreadable=1, unreadable_first=(replace(UNREAD, kind="session", object_id="cs_1"),)))
    assert "(session cs_1: server_error); `consumer find cs_1 --application shop`" in one.text


# case: F20, A32, A36
def test_what_waits_for_an_operator_is_told() -> None:
    queue = Queue(application="default", plugin="access", kind="unmapped_price", count=2, oldest_at=LONG_AGO)
    [finding] = judge(WELL, queues=[queue])
    assert (finding.code, finding.grade) == ("findings_open", Grade.DEGRADED)
    assert (
        "2 open finding(s) unmapped_price: `consumer findings list --kind unmapped_price --application default`"
        in finding.text
    )


def test_the_worst_counts() -> None:
    findings = judge(replace(WELL, dead=1), broken_plugins=["shop"], log=judge_log(AWAY, NOW))
    assert [finding.code for finding in findings] == ["broker_away", "dead_runs", "plugins_broken"]
    assert worst(findings) is Grade.STUCK


READING = ApplicationStatus(application="default", walked_at=NOW)


def stuck(since: datetime, *, stage: str = "backfill", code: str = "cursor_loop") -> StalledStage:
    return StalledStage(stage=stage, code=code, since=since)


# case: O1, O3, B7, B13, B29, B31
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (replace(READING, silent_since=LONG_AGO), "webhooks_silent"),
        (replace(READING, reconcile_braked=True), "reconcile_braked"),
        (replace(READING, unplaced_paid=2), "paid_unplaced"),
        (replace(READING, walked_at=LONG_AGO), "walk_late"),
        (replace(READING, walked_at=None), "never_walked"),
        (replace(READING, held_up=(stuck(LONG_AGO),)), "reading_held_up"),
        (replace(READING, held_up=(replace(stuck(NOW), code="wrong_application"),)), "reading_held_up"),
        (ApplicationStatus(application="club", has_credentials=False, hints=3), "no_credentials"),
    ],
)
def test_what_is_wrong_with_the_reading_degrades(changed: ApplicationStatus, code: str) -> None:
    assert judge(WELL, application_statuses=[READING]) == []
    [finding] = judge(WELL, application_statuses=[READING, changed])
    assert (finding.code, finding.grade) == (code, Grade.DEGRADED)


# case: O3, B13
@pytest.mark.parametrize(
    ("changed", "code"),
    [(replace(READING, gap_at=LONG_AGO), "retention_gap"), (replace(READING, refused_at=NOW), "credentials_refused")],
)
def test_orders_that_wait_for_the_reading_make_it_stuck(changed: ApplicationStatus, code: str) -> None:
    [finding] = judge(WELL, application_statuses=[changed])
    assert (finding.code, finding.grade) == (code, Grade.STUCK)


# case: B7, O3
def test_stages_that_are_held_up_for_long_are_told_together_and_refused_credentials_only_once() -> None:
    def told(*stages: StalledStage, refused_at: datetime | None = None) -> list[str]:
        application_status = replace(READING, held_up=stages, refused_at=refused_at)
        return [finding.text for finding in judge(WELL, application_statuses=[application_status])]

    assert told(stuck(NOW - timedelta(seconds=29))) == []
    [text] = told(stuck(LONG_AGO), stuck(LONG_AGO, stage="confirm"), stuck(LONG_AGO, stage="refresh", code="server"))
    loop = "held up by cursor_loop: backfill since 2026-04-30 23:00:00Z, confirm since 2026-04-30 23:00:00Z"
    server = "held up by server: refresh since 2026-04-30 23:00:00Z"
    assert text == f"default: {loop}; {server}; `consumer doctor` says why"
    refused = stuck(LONG_AGO, code="invalid_api_credentials")
    assert len(told(refused)) == 1
    # after the first 401 no call is made: that is what the stages fail with
    waiting = [stuck(LONG_AGO, stage=stage, code="circuit_open") for stage in ("confirm", "refresh", "reconcile")]
    [only] = told(refused, *waiting, refused_at=NOW)
    assert "refuses the credentials" in only


# case: O3, B26, C6
def test_who_leads_and_cannot_read_is_named() -> None:
    """Of two with different secrets the one that is refused may lead; who waits as it was asked to says until when."""
    leads = replace(READING, leader="pid 7 on b")
    refused = replace(leads, refused_at=NOW, held_up=(stuck(NOW, stage="identity", code="circuit_open"),))
    [finding] = judge(WELL, application_statuses=[refused])
    assert "refuses the credentials of the `sync` that leads (pid 7 on b): `consumer doctor`, there, " in finding.text
    [finding] = judge(WELL, application_statuses=[replace(leads, refused_at=NOW)])
    assert "pid 7" not in finding.text, "another was refused: a command, or a shop"
    paused = replace(leads, held_up=(stuck(LONG_AGO, code="rate_limited"),), paused_until=NOW)
    [finding] = judge(WELL, application_statuses=[paused])
    since = (
        "default: held up by rate_limited: backfill since 2026-04-30 23:00:00Z, in the `sync` that leads (pid 7 on b)"
    )
    assert finding.text.startswith(f"{since}; the service asked to wait until 2026-05-01 00:00:00Z, and is tried")


# case: O3
def test_credentials_are_refused_until_they_are_taken_or_nobody_tries() -> None:
    at = NOW.timestamp()
    assert refused_at(f"[{at}, -1.0]", NOW) == NOW
    assert refused_at(f"[{at - 1}, {at}]", NOW) is None
    assert refused_at(f"[{at - 3600}, -1.0]", NOW) is None
    assert refused_at(f"[{at + 3600}, -1.0]", NOW) is None, "a clock was ahead"
    assert refused_at(f"[{at}, -1.0]", NOW, walked_at=NOW - timedelta(seconds=1)) == NOW
    assert refused_at(f"[{at}, -1.0]", NOW, walked_at=NOW + timedelta(seconds=1)) is None, "the walk was let in"
    assert refused_at(None, NOW) is None
    assert refused_at("broken", NOW) is None


def test_a_log_that_could_lose_records_or_lacks_a_topic_is_told() -> None:
    """Whoever looks makes nothing, so what is missing stays missing until a role starts."""
    good = TopicReport(name="payments.events", partitions=12)
    wrong = TopicReport(name="payments.deliveries", partitions=12, wrong=("retention.ms is 60000", "one replica"))
    missing = TopicReport(name="payments.events.dead", partitions=None)
    assert judge_log(LogLook(topics=[good]), NOW) == []
    findings = judge_log(LogLook(topics=[good, wrong, missing]), NOW)
    assert [(finding.grade, finding.code) for finding in findings] == [
        (Grade.STUCK, "topic_misconfigured"),
        (Grade.STUCK, "topic_misconfigured"),
        (Grade.DEGRADED, "topics_missing"),
    ]
    assert "payments.deliveries: one replica" in findings[1].text
    assert "payments.events.dead" in findings[2].text


# case: O9
def test_one_of_several_brokers_that_is_away_is_told_once_before_another_stops_writing() -> None:
    why = "2 of 3 replicas in sync where min.insync.replicas=2: one more lost, and no record is taken; away: broker 3"
    topics = [TopicReport(name=name, partitions=6, thin=(why,)) for name in ("payments.events", "payments.deliveries")]
    [finding] = judge_log(LogLook(topics=topics), NOW)
    assert (finding.grade, finding.code) == (Grade.DEGRADED, "broker_away")
    assert finding.text == f"payments.events, payments.deliveries: {why}"


# case: O2
def test_a_ledger_that_takes_no_write_is_the_cause_and_no_role_is_missed_for_it() -> None:
    full = Finding(Grade.STUCK, "ledger_disk_full", "the ledger takes no write")
    assert judge(replace(WELL, worker_seen_at=LONG_AGO), unwritable=full) == [full]


# case: B27, O5
@pytest.mark.parametrize(
    ("age", "grade", "told"),
    [(timedelta(seconds=30), Grade.DEGRADED, "for 30 s"), (LATE, Grade.STUCK, "for 3 min")],
)
def test_money_that_is_there_and_not_here_is_degraded_then_stuck(age: timedelta, grade: Grade, told: str) -> None:
    missed = Missed(2, 1, age.total_seconds(), ("A-1", "A-2", "evt_1"))
    one = ApplicationStatus(application="shop", walked_at=NOW, missing=missed)
    [finding] = judge(WELL, application_statuses=[one])
    assert (finding.code, finding.grade) == ("paid_there_but_not_here", grade)
    assert f"2 paid order(s) and 1 event(s) that the ledger lacks, {told}:" in finding.text
    assert "A-1, A-2, evt_1" in finding.text


# case: B27, O5
@pytest.mark.usefixtures("upgraded")
def test_money_that_is_there_and_not_here_is_told_to_programs_as_it_is_to_people(
    desk: Desk, environ: dict[str, str]
) -> None:
    """`status --json` was `internal` as long as an order was missing, which is when somebody looks."""

    async def missed(age: timedelta) -> None:
        database, now = Database(environ["CONSUMER_DATABASE_URL"]), datetime.now(UTC)
        try:
            async with database.transaction() as session:
                await Sightings(looked_at=now, missing={"order:A-1": now - age}).keep(session, "default", now=now)
        finally:
            await database.stop()

    asyncio.run(missed(LATE + timedelta(seconds=20)))
    found = json.loads(desk.call("status", "--json", **SERVICE).stdout)
    assert "paid_there_but_not_here" in {one["code"] for one in found["findings"]}
    [reading] = found["reading"]
    assert reading["missing"] == {"orders": 1, "events": 0, "age_s": 200.0, "ids": ["A-1"]}


# case: O5
@pytest.mark.parametrize("reason", ["held", "unsent", "retrying", "parked", "dead", "no_handler"])
def test_paid_orders_that_wait_are_stuck_unless_they_wait_for_a_decision(reason: str) -> None:
    waiting = Waiting(application="default", reason=reason, count=2, oldest_at=NOW - timedelta(minutes=6))
    [finding] = judge(WELL, unfulfilled=[waiting])
    assert (finding.code, finding.grade) == (
        "paid_unfulfilled",
        Grade.DEGRADED if reason == "held" else Grade.STUCK,
    )
    assert judge(WELL, unfulfilled=[replace(waiting, oldest_at=NOW - timedelta(minutes=4))]) == []


# case: O5
def test_paid_orders_of_a_time_to_come_are_late_unless_clocks_differ_by_as_much() -> None:
    """They came while the ledger's clock was ahead: nobody knows for how long they wait."""
    waiting = Waiting(application="default", reason="retrying", count=4, oldest_at=NOW + timedelta(days=1))
    [finding] = judge(WELL, unfulfilled=[waiting])
    assert (finding.code, finding.grade) == ("paid_unfulfilled", Grade.STUCK)
    assert f"the oldest of {shown(waiting.oldest_at)}, which is to come" in finding.text
    assert judge(WELL, unfulfilled=[replace(waiting, oldest_at=NOW + timedelta(minutes=4))]) == []


# case: O5
@pytest.mark.parametrize(
    ("application", "named"), [("default", " --application default"), ("shop", " --application shop")]
)
def test_of_what_is_tried_again_it_says_how_to_see_which_and_why(application: str, named: str) -> None:
    waiting = Waiting(application=application, reason="retrying", count=2, oldest_at=NOW - timedelta(minutes=6))
    [finding] = judge(WELL, unfulfilled=[waiting])
    listed, why = f"`consumer events list --status retrying{named}`", f"`consumer explain order ID{named}`"
    assert f"{listed} names them, {why} why" in finding.text


# case: O5, R2
def test_what_a_new_handler_missed_is_told_at_once_with_the_command() -> None:
    waiting = Waiting(application="default", reason="no_handler", count=2, oldest_at=NOW - timedelta(seconds=2))
    assert judge(WELL, unfulfilled=[waiting]) == [], "a plugin may be on its way"
    [finding] = judge(WELL, unfulfilled=[waiting], shippers=["shop:ship"])
    assert (finding.code, finding.grade) == ("paid_unfulfilled", Grade.STUCK)
    assert "`consumer replay plan --handler shop:ship --since " in finding.text


# case: O5, G8
def test_whose_orders_wait_is_told_and_the_command_is_about_those() -> None:
    waiting = Waiting(application="far", reason="no_handler", count=2, oldest_at=NOW - timedelta(seconds=2))
    [finding] = judge(WELL, unfulfilled=[waiting], shippers=["shop:ship"])
    assert finding.text.startswith("far: 2 paid order(s) not fulfilled")
    assert finding.text.endswith("Z --application far`")


# case: A1, A13
@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("retrying", "3 decision(s) wait for door:open (retrying), the oldest for 60 min; `consumer handlers list`"),
        ("missed", "3 decision(s) passed door:open by, the oldest for 60 min; it was not there: `consumer replay plan"),
    ],
)
def test_decisions_that_are_not_handed_on_degrade_with_the_command(reason: str, told: str) -> None:
    late = LateDecision(application="shop", handler="door:open", reason=reason, count=3, oldest_at=LONG_AGO)
    [finding] = judge(WELL, late=[late])
    assert (finding.code, finding.grade) == ("decisions_late", Grade.DEGRADED)
    assert finding.text.startswith(f"shop: {told}")
    replayed = "--handler door:open --since 2026-04-30T23:00:00Z --application shop`"
    assert (replayed in finding.text) is (reason == "missed")


@pytest.mark.parametrize("id_", ["order 2/ä", "it's;ls", "plain-1"])
def test_the_command_that_tells_the_rest_can_be_pasted(id_: str) -> None:
    found = Found(application="default", kind="order", id=id_, subject=("order", id_))
    assert shlex.split(explain_line(found)) == ["consumer", "explain", "order", id_, "--application", "default"]


@pytest.mark.parametrize(
    ("kind", "seconds", "codes"),
    [
        ("orphan_payment", 59, []),
        ("orphan_payment", 60, ["findings_open"]),
        ("duplicate_payment", 0, ["findings_open"]),
    ],
)
def test_a_payment_that_is_read_before_its_order_is_no_alarm(kind: str, seconds: int, codes: list[str]) -> None:
    at = NOW - timedelta(seconds=seconds)
    found = judge(WELL, queues=[Queue(application="shop", plugin="fulfilment", kind=kind, count=1, oldest_at=at)])
    assert [one.code for one in found] == codes
    assert all(f"`consumer findings list --kind {kind} --application shop`" in one.text for one in found)
