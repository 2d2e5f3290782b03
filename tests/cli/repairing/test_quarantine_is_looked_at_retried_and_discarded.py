"""`consumer quarantine show|retry|discard`: a delivery is shown, taken in again as if it had just come, given up."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from consumer.broker import EmbeddedBroker
from consumer.broker.base import Partition, Record
from consumer.cli.repairing import quarantine as cli_quarantine
from consumer.clock import SystemClock
from consumer.events import Delivery, Locators, Source, Trust, build_event
from consumer.ledger import Database
from consumer.ledger.reading import quarantine
from consumer.ledger.reading.quarantine import Kept
from consumer.ledger.tables import HintRow
from consumer.reason import Reason
from consumer.settings import Settings
from consumer.sync.confirm.hints import HintConsumer
from consumer.wire import pack_event
from consumer.work.ingest.arrivals import understood
from tests.support.desk import Desk
from tests.support.ports import eventually

NOW = datetime(2026, 5, 1, tzinfo=UTC)


async def _put(environ: dict[str, str], *ids: str) -> None:
    database = Database(environ["CONSUMER_DATABASE_URL"])
    async with database.transaction() as session:
        rows = [
            Delivery(
                application="default", id=one, raw=b'{"id":"evt_1"}', received_at=NOW, headers={}, event_id="evt_1"
            )
            for one in ids
        ]
        await quarantine.put(session, [(one, Reason.NOT_CONFIRMED) for one in rows], NOW)
    await database.stop()


async def _waiting(path: Path) -> int:
    [report] = await EmbeddedBroker(path).look_at_groups({"payments.confirm": "payments.deliveries"})
    return report.records


# case: I15
@pytest.mark.usefixtures("upgraded")
def test_the_list_says_how_all_of_a_reason_are_retried_or_thrown_away(desk: Desk, environ: dict[str, str]) -> None:
    asyncio.run(_put(environ, "dlv_1", "dlv_2", "dlv_3"))
    for more in ((), ("--application", "default")):  # where one was named, the others' stay
        told = desk.call("quarantine", "list", "--limit", "1", *more).stdout
        printed = re.findall(r"consumer (quarantine (?:retry|discard) --because [^…]+ --reason …)", told)
        assert [" ".join(more) in one for one in printed] == [True, True]
    assert desk.ask(*printed[1].replace("…", "forged").split(), "--yes")["discarded"]
    assert desk.ask("quarantine", "list")["groups"] == {}


# case: I15
@pytest.mark.usefixtures("upgraded")
def test_show_retry_discard(desk: Desk, environ: dict[str, str], tmp_path: Path) -> None:
    asyncio.run(_put(environ, "dlv_1", "dlv_2", "dlv_3"))
    first, second, third = sorted(one["id"] for one in desk.ask("quarantine", "list")["quarantine"])
    for limit, is_more in (("1", True), ("3", False)):
        listed = desk.ask("quarantine", "list", "--limit", limit)
        assert (len(listed["quarantine"]), listed["more"]) == (int(limit), is_more)
        assert listed["groups"] == {"not_confirmed": 3}
        assert ("there is more" in desk.call("quarantine", "list", "--limit", limit).stdout) == is_more
    shown = desk.ask("quarantine", "show", str(first))
    assert (shown["reason"], shown["event_id"], "body" in shown) == ("not_confirmed", "evt_1", False)
    assert desk.ask("audit", "list")["entries"] == []
    assert desk.ask("quarantine", "show", str(first), "--raw")["body"] == '{"id":"evt_1"}'
    [seen] = desk.ask("audit", "list")["entries"]
    assert (seen["action"], seen["subject"]) == ("delivery.shown_raw", f"delivery:{shown['delivery_id']}")
    assert "say which" in desk.ask("quarantine", "discard", "--reason", "x", "--yes", code=2)
    assert "not_found" in desk.ask("quarantine", "show", "999", code=1)
    assert "not_found" in desk.ask("quarantine", "show", str(2**63 - 1), code=1)
    for words in (["show"], ["retry"], ["discard"]):  # more than any database counts to
        assert "error[usage]" in desk.ask("quarantine", *words, str(2**63), code=2)

    done = desk.ask("quarantine", "retry", str(first), "--reason", "it was real", "--yes")
    assert done == {"retried": [first], "again": [], "more": False, "without_proof": 0}
    assert asyncio.run(_waiting(tmp_path / "log.db")) == 1, "it will be asked about again"
    none = desk.ask("quarantine", "discard", "--because", "flooded", "--reason", "a runbook's line", "--yes")
    assert none == {"discarded": [], "again": [], "more": False}
    for verb in ("discard", "retry"):
        told = desk.call("quarantine", verb, "--because", "flooded", "--reason", "a runbook's line")
        assert (told.returncode, told.stdout) == (0, "no delivery in quarantine fits\n"), told.stderr
    gone = desk.ask("quarantine", "discard", "--because", "not_confirmed", "--reason", "forged", "--yes")
    assert sorted(gone["discarded"]) == [second, third]
    assert desk.ask("quarantine", "list")["quarantine"] == []


async def _take_in(environ: dict[str, str], path: Path) -> None:
    """What `sync` does with the log meanwhile."""
    broker, database = EmbeddedBroker(path), Database(environ["CONSUMER_DATABASE_URL"])
    await broker.start()
    intake = HintConsumer(
        broker, database, topic="payments.deliveries", group="payments.confirm", applications=["default"],
        clock=SystemClock(),
    )  # fmt: skip
    try:
        await eventually(intake.once, what="the delivery was taken in")  # it has joined the group by then
    finally:
        await intake.close()
        await broker.stop()
        await database.stop()


async def _put_odd(environ: dict[str, str], raw: bytes) -> None:
    database = Database(environ["CONSUMER_DATABASE_URL"])
    async with database.transaction() as session:
        odd = Delivery(application="default", id="dlv_odd", raw=raw, received_at=NOW, headers={})
        await quarantine.put(session, [(odd, Reason.NO_EVENT_ID)], NOW)
    await database.stop()


async def _hints(environ: dict[str, str]) -> list[str]:
    database = Database(environ["CONSUMER_DATABASE_URL"])
    async with database.reading() as session:
        found = list((await session.execute(select(HintRow.__table__.c.event_id))).scalars())
    await database.stop()
    return found


# case: I15
@pytest.mark.usefixtures("upgraded")
def test_a_delivery_put_back_before_the_retry_ends_stays(
    desk: Desk, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_put_odd(environ, b'{"no":"id"}'))
    publish = cli_quarantine._publish  # `sync` comes between its end and the deletion

    async def and_taken_in(settings: Settings, rows: Sequence[Kept]) -> None:
        await publish(settings, rows)
        await _take_in(environ, tmp_path / "log.db")

    monkeypatch.setattr(cli_quarantine, "_publish", and_taken_in)
    said = desk.call("quarantine", "retry", "--because", "no_event_id", "--reason", "x", "--yes").stdout
    assert said == "retried: 1 delivery(s)\n1 is in quarantine again, for: no_event_id\n"
    [kept] = desk.ask("quarantine", "list")["quarantine"]
    assert (kept["delivery_id"], kept["reason"]) == ("dlv_odd", "no_event_id")
    done = desk.ask("quarantine", "retry", str(kept["id"]), "--reason", "x", "--yes")
    assert done["again"] == [{"id": kept["id"], "reason": "no_event_id"}]


# case: I15, G12
@pytest.mark.usefixtures("upgraded")
def test_a_retry_is_noted_before_anything_is_published(
    desk: Desk, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind its publishing, or without its ledger by then, it was nobody's."""
    asyncio.run(_put(environ, "dlv_1"))
    publish = cli_quarantine._publish

    async def and_is_killed(settings: Settings, rows: Sequence[Kept]) -> None:
        await publish(settings, rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_quarantine, "_publish", and_is_killed)
    assert desk.call("quarantine", "retry", "1", "--reason", "it was real", "--yes").returncode == 130
    [entry] = desk.ask("audit", "list")["entries"]
    assert (entry["action"], entry["subject"], entry["reason"]) == (
        "quarantine.retried", "delivery:dlv_1", "it was real",
    )  # fmt: skip
    assert len(desk.ask("quarantine", "list")["quarantine"]) == 1, "it is done again"


# case: I15, U1
@pytest.mark.usefixtures("upgraded")
def test_a_retried_delivery_is_located_by_todays_settings(desk: Desk, environ: dict[str, str], tmp_path: Path) -> None:
    asyncio.run(_put_odd(environ, b'{"odd":{"id":"evt_7"}}'))
    desk.call("quarantine", "retry", "--because", "no_event_id", "--reason", "x", "--yes", CONSUMER_LOCATE_ID="/odd/id")
    asyncio.run(_take_in(environ, tmp_path / "log.db"))
    assert asyncio.run(_hints(environ)) == ["evt_7"]
    assert desk.ask("quarantine", "list")["quarantine"] == []


@pytest.mark.usefixtures("upgraded")
def test_at_its_limit_it_says_that_more_is_left(desk: Desk, environ: dict[str, str]) -> None:
    asyncio.run(_put(environ, *(f"dlv_{number}" for number in range(5))))
    words = ("--because", "not_confirmed", "--limit", "2", "--reason", "x", "--yes")
    assert desk.ask("quarantine", "discard", *words)["more"]
    assert "more is left" in desk.call("quarantine", "retry", *words).stdout
    assert "more is left" not in desk.call("quarantine", "discard", *words).stdout


# case: I15
@pytest.mark.usefixtures("upgraded")
def test_one_that_somebody_else_took_out_meanwhile_is_told(
    desk: Desk, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_put(environ, "dlv_1"))

    async def and_thrown_away(settings: Settings, rows: Sequence[Kept]) -> None:
        database = Database(environ["CONSUMER_DATABASE_URL"])
        async with database.transaction() as session:
            await quarantine.drop(session, rows)
        await database.stop()

    monkeypatch.setattr(cli_quarantine, "_publish", and_thrown_away)
    said = desk.call("quarantine", "retry", "1", "--reason", "x", "--yes").stdout
    assert said == "retried: 1 delivery(s)\n1 went meanwhile: somebody else was quicker\n"


@pytest.mark.usefixtures("upgraded")
def test_what_a_filter_leaves_out_is_there_all_the_same(desk: Desk, environ: dict[str, str]) -> None:
    assert desk.call("quarantine", "list", "--reason", "other_body").stdout == "nothing in quarantine\n"
    asyncio.run(_put(environ, "dlv_1"))
    told = desk.call("quarantine", "list", "--reason", "other_body").stdout
    assert told == "no delivery in quarantine fits (1 in all)\n"
    both = '[{"name": "default"}, {"name": "shop"}]'
    told = desk.call("quarantine", "list", "--application", "shop", CONSUMER_APPLICATIONS=both).stdout
    assert told == "nothing in quarantine of shop\n"
    told = desk.call("quarantine", "list", "--application", "shop", "--json", CONSUMER_APPLICATIONS=both).stdout
    assert json.loads(told)["groups"] == {}


async def _unknown_at_work(environ: dict[str, str], record: Record) -> None:
    """A `work` that was not told of the application yet takes the record in."""
    database = Database(environ["CONSUMER_DATABASE_URL"])
    taken = understood(record, {"default": Locators()})
    assert isinstance(taken, tuple)
    assert taken[1] is Reason.UNKNOWN_APPLICATION
    async with database.transaction() as session:
        await quarantine.put(session, [taken], NOW)
    await database.stop()


async def _on_topic_events(path: Path) -> list[Record]:
    broker, found = EmbeddedBroker(path), list[Record]()
    await broker.start()
    subscription = broker.subscribe(("payments.events",), "reader")
    await subscription.start()

    async def is_there() -> bool:
        found.extend(await subscription.poll(10, 0.1))
        return bool(found)

    await eventually(is_there, within_s=20, what="a record is there")
    await subscription.stop()
    await broker.stop()
    return found


# case: G13, G8
@pytest.mark.usefixtures("upgraded")
def test_what_work_knew_no_application_for_is_told_and_goes_back_as_it_was(
    desk: Desk, environ: dict[str, str], tmp_path: Path
) -> None:
    """It was answered with 200, and where nobody has API credentials it comes by no other way."""
    body = b'{"id":"evt_1","type":"order.paid","data":{"object":{"order_id":"A-1"}}}'
    event = build_event(
        body, Locators(), application="club", trust=Trust.SIGNED, source=Source.WEBHOOK, received_at=NOW,
        delivery_id="dlv_1",
    )  # fmt: skip
    sent = pack_event(event)
    asyncio.run(
        _unknown_at_work(
            environ,
            Record(partition=Partition("payments.events", 0), offset=7, key=sent.key, value=sent.value,
                   headers=sent.headers, published_at=NOW),
        )
    )  # fmt: skip
    assert "records_refused" in desk.call("status", "--json").stdout
    done = desk.ask("quarantine", "retry", "--because", "unknown_application", "--reason", "it is known now", "--yes")
    assert (len(done["retried"]), done["again"]) == (1, [])
    [came] = asyncio.run(_on_topic_events(tmp_path / "log.db"))
    assert (came.key, came.value, dict(came.headers)) == (sent.key, sent.value, dict(sent.headers))
    assert "records_refused" not in desk.call("status", "--json").stdout
    assert asyncio.run(_hints(environ)) == []


# case: G13, G8
@pytest.mark.usefixtures("upgraded")
def test_a_record_that_lost_what_proved_it_is_asked_about_and_that_is_said(desk: Desk, environ: dict[str, str]) -> None:
    async def put() -> None:
        """As an older `work` kept it."""
        database = Database(environ["CONSUMER_DATABASE_URL"])
        async with database.transaction() as session:
            bare = Delivery(application="club", id="payments.events/0/7", raw=b"{}", received_at=NOW, headers={})
            sent = replace(bare, id="dlv_1", headers={"user-agent": "service/1"})
            await quarantine.put(session, [(one, Reason.UNKNOWN_APPLICATION) for one in (bare, sent)], NOW)
        await database.stop()

    asyncio.run(put())
    words = ("--because", "unknown_application", "--reason", "it is known now", "--yes")
    told = desk.call("quarantine", "retry", *words).stdout
    assert told.startswith("retried: 2 delivery(s)\n1 of them "), told
    assert "the service is asked" in told


# case: G13, G8
@pytest.mark.usefixtures("upgraded")
def test_of_those_that_lost_their_proof_one_that_lies_here_again_is_not_counted(
    desk: Desk, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = [Delivery(application="club", id=f"payments.events/0/{number}", raw=b"{}", received_at=NOW, headers={})
            for number in (7, 8)]  # fmt: skip

    async def put(deliveries: Sequence[Delivery], now: datetime) -> None:
        database = Database(environ["CONSUMER_DATABASE_URL"])
        async with database.transaction() as session:
            await quarantine.put(session, [(one, Reason.UNKNOWN_APPLICATION) for one in deliveries], now)
        await database.stop()

    async def and_one_comes(settings: Settings, rows: Sequence[Kept]) -> None:
        await publish(settings, rows)
        await put(bare[:1], NOW + timedelta(hours=1))

    publish = cli_quarantine._publish
    asyncio.run(put(bare, NOW))
    monkeypatch.setattr(cli_quarantine, "_publish", and_one_comes)
    done = desk.ask("quarantine", "retry", "--because", "unknown_application", "--reason", "it is known now", "--yes")
    assert (len(done["retried"]), len(done["again"]), done["without_proof"]) == (2, 1, 1)
