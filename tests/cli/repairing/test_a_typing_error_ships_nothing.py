"""What is typed wrong is told to who typed it: a handler, an order, an id that nobody knows."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import handlers
from consumer.cli.repairing import say
from consumer.console.alarms.queues import KINDS
from consumer.ledger import Database
from consumer.ledger.handling import events, runs
from consumer.ledger.handling.dead import DISCARDED_WAITING
from consumer.ledger.tables import RunStatus
from consumer.plugin import derived_id
from handlers.fulfilment.order import FINDING_OF_HOLD
from tests.contract.ledger import facts
from tests.support.desk import Desk


@pytest.mark.usefixtures("upgraded")
def test_a_handler_that_does_not_exist_is_refused(desk: Desk) -> None:
    for verb in ("redrive", "discard"):
        said = desk.ask("dead", verb, "--handler", "shop:shpi", "--reason", "x", "--yes", code=2)
        assert "there is no such handler" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dead", "list", "--handler", "shop:shpi"), "there is no such handler"),
        (("events", "list", "--handler", "shop:shpi"), "there is no such handler"),
        (("dead", "list", "--application", "nope"), "there is no such application"),
        (("dead", "redrive", "--fingerprint", "TYPO", "--reason", "x", "--yes"), "no run died of this"),
        (("dead", "redrive", "--fingerprint", "0" * 16, "--reason", "x", "--yes"), "no run died of this"),
        (("dead", "list", "--fingerprint", "0" * 16), "no run died of this"),
        (("events", "list", "--application", "nope"), "there is no such application"),
        (("quarantine", "list", "--application", "nope"), "there is no such application"),
        (
            ("quarantine", "discard", "--because", "not_json", "--application", "nope", "--reason", "x", "--yes"),
            "there is no such application",
        ),
        (("findings", "list", "--kind", "orphan_paymnt"), "near=orphan_payment"),
        (("findings", "list", "--application", "nope"), "there is no such application"),
    ],
)
@pytest.mark.usefixtures("upgraded")
def test_what_nobody_has_is_no_empty_answer(desk: Desk, words: tuple[str, ...], said: str) -> None:
    told = desk.ask(*words, code=2)
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.usefixtures("upgraded")
def test_a_folder_without_a_name_is_not_the_current_one(desk: Desk, tmp_path: Path) -> None:
    """`--archive "$CONSUMER_ARCHIVE_DIR"`, typed where only the roles have that."""
    for words in (("prune", "--older-than", "90d", "--yes"), ("events", "export")):
        told = desk.call(*words, "--archive", "", CONSUMER_ARCHIVE_DIR=str(tmp_path / "kept"))
        assert (told.returncode, told.stdout) == (2, ""), words
        assert "where to? --archive DIR" in told.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("handlers", "pause", "fulfilment:order_paid"),
        ("handlers", "resume", "fulfilment:order_paid"),
        ("dead", "redrive", "--all"),
        ("quarantine", "discard", "--because", "flooded"),
        ("replay", "cancel", "rpl_1"),
        ("say", "fulfilment.released", "A-1"),
        ("rebuild", "all"),
        ("prune", "--older-than", "90d", "--archive", "."),
    ],
)
@pytest.mark.usefixtures("upgraded")
def test_a_reason_says_something(desk: Desk, words: tuple[str, ...]) -> None:
    told = desk.call(*words, "--reason", "  ")
    assert told.returncode == 2, told
    assert "--reason must say why" in told.stderr
    for printed in ("…", "...", "'…'", "TEXT"):
        told = desk.call(*words, "--reason", printed)
        assert told.returncode == 2, told
        [line] = told.stderr.splitlines()
        assert line.startswith(f"error[usage]: --reason {printed} is what stands in for your own words: say why"), line
    assert desk.ask("audit", "list")["entries"] == []


@pytest.mark.usefixtures("upgraded")
def test_a_placeholder_is_no_reason_of_a_plan_and_no_customer(desk: Desk) -> None:
    forced = desk.call("replay", "plan", "--force", "--handler", "shop:ship", "--reason", "…")
    assert "error[usage]: --reason … is what stands in for your own words" in forced.stderr
    words = ("say", "access.customer_attached", "S1", "--set", "customer=…", "--reason", "seen at the service", "--yes")
    attached = desk.call(*words)
    assert "error[usage]: --set customer=… is what stands in for the word itself" in attached.stderr


@pytest.mark.parametrize("words", [("events", "list"), ("dead", "list"), ("replay", "plan")])
@pytest.mark.parametrize(
    ("window", "said"),
    [
        (("--since", "2999-01-01T03:00"), "--since has not come yet; a time without a zone is UTC (now=20"),
        (("--since", "2h", "--until", "3h"), "--until must be later than --since"),
    ],
)
@pytest.mark.usefixtures("upgraded")
def test_a_window_in_which_nothing_lies_is_no_empty_answer(
    desk: Desk, words: tuple[str, str], window: tuple[str, ...], said: str
) -> None:
    """A local time that was typed as it stands on the wall, east of Greenwich; two times the wrong way round."""
    assert said in desk.ask(*words, *window, code=2)


@pytest.fixture
def sold(desk: Desk, environ: dict[str, str], upgraded: None) -> Desk:
    """An order `order-1` was paid."""
    asyncio.run(_paid(environ["CONSUMER_DATABASE_URL"]))
    return desk


async def _paid(url: str) -> None:
    database = Database(url)
    async with database.transaction() as session:
        await events.record(session, [replace(facts.event(1), order_id="order-1", subscription_id="sub-1")], facts.NOW)
    await database.stop()


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (("--order", "ordr-1"), "nothing is known of this order (name=ordr-1, near=order-1"),
        (("--subscription", "sub-11"), "nothing is known of this subscription (name=sub-11, near=sub-1"),
        (("--event", "evt_nobody"), "no event has this id"),
        (("--type", "order.piad"), "there is no such event type (type=order.piad, near=order.paid"),
        (("--type", "ordr.*"), "there is no such event type (type=ordr.*"),
    ],
)
@pytest.mark.parametrize("words", [("events", "list"), ("dead", "list"), ("dead", "redrive", "--reason", "x", "--yes")])
def test_a_filter_that_names_nothing_is_no_empty_answer(
    sold: Desk, words: tuple[str, ...], named: tuple[str, str], said: str
) -> None:
    told = sold.ask(*words, *named, code=1)
    assert told.startswith(f"error[not_found]: {said}")


@pytest.mark.parametrize(
    "named", [("--type", "subscription.ended"), ("--type", "access.*"), ("--order", "order-1", "--since", "1s")]
)
def test_a_filter_that_names_what_there_may_be_is_answered(sold: Desk, named: tuple[str, ...]) -> None:
    assert sold.ask("events", "list", *named)["events"] == []
    assert sold.ask("dead", "list", *named)["dead"] == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("redrive", "--handler", "x"), "'consumer dead redrive'?"),
        (("redriv",), "'consumer dead redrive'?"),
        (("order", "A-1"), "'consumer explain order'?"),
        (("statu",), "'consumer status'?"),
    ],
)
def test_a_command_that_stands_below_another_is_named(desk: Desk, words: tuple[str, ...], meant: str) -> None:
    done = desk.call(*words)
    assert (done.returncode, done.stderr) == (
        2,
        f"error[usage]: No such command {words[0]!r}. Did you mean {meant}\n",
    )
    assert desk.call("zzzzz").stderr == "error[usage]: No such command 'zzzzz'.\n"


@pytest.mark.usefixtures("upgraded")
def test_every_kind_of_finding_may_be_asked_for(desk: Desk) -> None:
    sources = [path.read_text() for path in Path(handlers.__path__[0]).rglob("*.py")]
    opened = {
        kind
        for text in sources
        for kind in re.findall(r'(?:open_finding\(ctx, FINDINGS|_finding\(ctx|_show\(ctx, event), "(\w+)"', text)
    }
    assert len(opened) > 10
    assert opened | set(FINDING_OF_HOLD.values()) == KINDS
    assert desk.ask("findings", "list", "--kind", "orphan_payment")["total"] == 0


@pytest.mark.usefixtures("upgraded")
def test_what_waits_behind_two_hundred_others_can_be_closed_too(desk: Desk, environ: dict[str, str]) -> None:
    with sqlite3.connect(environ["CONSUMER_DATABASE_URL"].split("///", 1)[1]) as database:
        columns = "application, kind, subject, detail, opened_at"
        given = [("default", "orphan_payment", f"p{n}", "{}", f"2026-01-01 00:00:00.{n:06}") for n in range(205)]
        database.executemany(f"INSERT INTO fulfilment_finding ({columns}) VALUES (?, ?, ?, ?, ?)", given)
    database.close()
    assert desk.ask("findings", "list", "--limit", "3")["total"] == 205
    assert "202 more: these are the oldest 3" in desk.call("findings", "list", "--limit", "3").stdout
    (shown,) = desk.ask("findings", "show", "p204")["findings"]
    assert shown["kind"] == "orphan_payment"
    assert f"--seen {shown['seen']} --application default" in desk.call("findings", "show", "p204").stdout
    close = ("findings", "close", "p204", "orphan_payment", "--reason", "refunded", "--yes")
    assert "not as it was seen any more" in desk.call(*close, "--seen", "another").stderr
    assert desk.call(*close, "--seen", shown["seen"]).returncode == 0
    done = desk.call(*close)
    assert done.returncode == 0, done.stderr


# case: F8
@pytest.mark.usefixtures("upgraded")
def test_an_order_that_nobody_knows_is_marked_paid_only_when_that_is_said(desk: Desk) -> None:
    words = ("say", "fulfilment.marked_paid", "ordr-1", "--reason", "paid by wire", "--yes")
    refused = desk.ask(*words, code=2)
    assert "--unknown" in refused
    assert desk.ask(*words, "--unknown")["event_id"].startswith("drv_")


# case: F33
@pytest.mark.usefixtures("upgraded")
def test_who_gives_up_an_order_is_told_who_fulfilled_it(
    desk: Desk, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`old:ship` was renamed, and its run given up; `new:ship` had the order by a replay, and shipped it."""
    asked: list[str] = []
    monkeypatch.setattr(say, "consent", lambda question, yes: asked.append(question))
    url = environ["CONSUMER_DATABASE_URL"]
    id_ = derived_id("default", "fulfilment.requested", "order:A-1", "order")
    given = replace(facts.event(1), id=id_, type="fulfilment.requested", key="order:A-1", order_id="A-1")
    made = [
        replace(facts.run(1, handler="old:ship", status=RunStatus.SKIPPED), event_id=id_, code=DISCARDED_WAITING),
        replace(facts.run(1, handler="new:ship", status=RunStatus.SUCCEEDED, blocking=False), event_id=id_),
    ]

    async def fill() -> None:
        database = Database(url)
        async with database.transaction() as session:
            await events.record(session, [given], facts.NOW)
            await runs.add(session, made, facts.NOW)
        await database.stop()

    asyncio.run(fill())
    with sqlite3.connect(url.split("///", 1)[1]) as database:
        order = "INSERT INTO fulfilment_order (application, order_id, observed_version, paid_at, requested_at)"
        at = "2026-01-01 00:00:00.000000"
        database.execute(f"{order} VALUES ('default', 'A-1', 0, ?, ?)", [at, at])
    database.close()
    desk.ask("say", "fulfilment.unfulfillable", "A-1", "--reason", "refunded")
    assert asked == [
        "fulfilment.unfulfillable A-1 (new:ship succeeded on it: only where nothing went out, or it came back)?"
    ]


@pytest.mark.usefixtures("upgraded")
def test_an_id_that_nobody_has_is_not_found(desk: Desk) -> None:
    for words in (("find", "evt_nobody"), ("explain", "evt_nobody"), ("findings", "show", "order-1")):
        said = desk.ask(*words, code=1)
        assert said.startswith("error[not_found]")
    assert desk.ask("findings", "list") == {"findings": [], "total": 0}
