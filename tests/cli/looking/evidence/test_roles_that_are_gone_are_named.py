"""`status` proves green by who lives: a role that is expected, or was seen lately, and is not there is named."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from consumer.app.heartbeat import NOT_DURABLE
from consumer.cli.looking.evidence.alive import OR_SEE, alive
from consumer.cli.looking.status_finding import Grade
from consumer.console.alarms.lives import APART_FOR, UNHEARD_AFTER, apart
from consumer.errors import CollationChanged
from consumer.ledger import Database, processes
from consumer.ledger.engine.database_time import shared_time
from consumer.ledger.processes import LOG, PREFIX, Process, Proof, Pulse
from consumer.receive import answers
from tests.support.desk import Desk

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def living(role: str, **changes: Any) -> Process:
    one = Process(
        process=f"shop-1-{role}",
        role=role,
        host="shop-1",
        pid=7,
        version="0.1.0",
        started_at=NOW - timedelta(hours=2),
        seen_at=NOW - timedelta(seconds=3),
        ready=True,
        since=NOW - timedelta(hours=2),
    )
    return replace(one, **changes)


ALL = [living(role) for role in ("serve", "work", "sync", "console")]
SILENT = NOW - timedelta(seconds=31)
TO_COME = NOW + timedelta(days=1)
"""Seen while the database's clock was ahead: nobody knows when that was."""


def test_all_that_live_are_well() -> None:
    assert alive(ALL, NOW, expected=None) == []
    assert alive(ALL, NOW, expected=("serve", "work", "sync", "console")) == []


@pytest.mark.parametrize(
    ("role", "grade"),
    [("serve", Grade.DEGRADED), ("work", Grade.STUCK), ("sync", Grade.STUCK), ("console", Grade.DEGRADED)],
)
def test_a_role_that_fell_silent_or_was_stopped_is_named(role: str, grade: Grade) -> None:
    for change in ({"seen_at": SILENT}, {"stopped_at": SILENT}, {"seen_at": TO_COME}):
        processes = [living(role, **change) if one.role == role else one for one in ALL]
        [finding] = alive(processes, NOW, expected=None)
        assert (finding.code, finding.grade) == (f"no_{role}", grade)
        assert "pid 7 on shop-1" in finding.text
        assert (OR_SEE in finding.text) is ("seen_at" in change), "who was stopped does not run"


def test_one_of_two_that_is_gone_is_not_missed() -> None:
    assert alive([*ALL, living("work", process="old", seen_at=SILENT)], NOW, expected=None) == []


def test_what_is_expected_is_missed_although_it_was_never_seen() -> None:
    only_work = [living("work")]
    assert alive(only_work, NOW, expected=None) == []
    assert [one.code for one in alive(only_work, NOW, expected=("work", "sync"))] == ["no_sync"]
    long_gone = [living("work"), living("sync", seen_at=NOW - timedelta(days=8))]
    assert alive(long_gone, NOW, expected=None) == []


def test_a_death_is_told_over_a_weekend_and_who_was_stopped_is_not_missed_so_long() -> None:
    friday = NOW - timedelta(hours=60)
    dead = [living("work"), living("serve", seen_at=friday)]
    assert [one.code for one in alive(dead, NOW, expected=None)] == ["no_serve"]
    stopped = [living("work"), living("serve", seen_at=friday, stopped_at=friday)]
    assert alive(stopped, NOW, expected=None) == []


def test_how_long_a_role_is_missed_is_a_setting() -> None:
    seen = NOW - timedelta(hours=3)
    for change in ({}, {"stopped_at": seen}):
        processes = [living("work"), living("serve", seen_at=seen, **change)]
        assert [one.code for one in alive(processes, NOW, expected=None, within=timedelta(hours=4))] == ["no_serve"]
        assert alive(processes, NOW, expected=None, within=timedelta(hours=2)) == []
    gone = [living("work", seen_at=seen)]
    assert [one.code for one in alive(gone, NOW, expected=None, within=timedelta(hours=2))] == ["no_work"]


@pytest.mark.usefixtures("upgraded")
def test_status_goes_by_the_setting(desk: Desk, environ: dict[str, str]) -> None:
    async def seen() -> None:
        database = Database(environ["CONSUMER_DATABASE_URL"])
        async with database.transaction() as session:
            at = await shared_time(session) - timedelta(hours=3)
            one = living("serve")
            said = Pulse(process=one.process, role=one.role, host=one.host, pid=one.pid, version=one.version,
                         started_at=at, ready=True, since=at)  # fmt: skip
            await processes.beat(session, [said], at)
        await database.stop()

    asyncio.run(seen())

    def codes(**more: str) -> set[str]:
        return {one["code"] for one in json.loads(desk.call("status", "--json", **more).stdout)["findings"]}

    assert "no_serve" in codes()
    assert "no_serve" in codes(CONSUMER_EXPECT_DAYS="0.2")
    assert "no_serve" not in codes(CONSUMER_EXPECT_DAYS="0.1")
    assert "settings_invalid" in codes(CONSUMER_EXPECT_DAYS="8"), "nobody remembers for so long"


def test_every_503_but_that_of_a_process_that_ends_counts_as_not_stored() -> None:
    refusals = {one.outcome for one in answers.ALL if one.status == 503}
    assert refusals - {answers.STOPPING.outcome} == NOT_DURABLE


def test_a_worker_of_an_older_version_counts_by_its_handlers() -> None:
    assert alive([], NOW, expected=None, worker_seen_at=NOW) == []
    for seen_at in (SILENT, TO_COME):
        assert [one.code for one in alive([], NOW, expected=None, worker_seen_at=seen_at)] == ["no_work"]


def test_a_worker_that_was_stopped_is_missed_at_once_although_its_handlers_were_seen_a_moment_ago() -> None:
    stopped = living("work", seen_at=NOW, stopped_at=NOW)
    [missed] = alive([stopped], NOW, expected=None, worker_seen_at=NOW)
    assert (missed.code, missed.grade) == ("no_work", Grade.STUCK)
    assert missed.text.endswith("start `consumer work`")
    rolled_back = replace(stopped, stopped_at=NOW - timedelta(seconds=9))
    assert alive([rolled_back], NOW, expected=None, worker_seen_at=NOW) == [], "an older version went on"


def test_who_lives_and_cannot_work_says_why() -> None:
    broken = {
        "broker": Proof(code="group_forbidden", reason="group payments.work may not be read"),
        "database": Proof(),
    }
    blind = living("work", ready=False, since=NOW - timedelta(minutes=1), checks=broken)
    [finding] = alive([blind], NOW, expected=None)
    assert (finding.code, finding.grade) == ("group_forbidden", Grade.STUCK)
    assert "group payments.work may not be read" in finding.text
    [other] = alive([blind, living("work", process="other")], NOW, expected=None)
    assert (other.code, other.grade) == ("group_forbidden", Grade.DEGRADED)
    assert alive([replace(blind, since=NOW - timedelta(seconds=5))], NOW, expected=None) == [], "it has just begun"
    [starting] = alive([replace(blind, checks={})], NOW, expected=None)
    assert starting.code == "work_not_ready"


def test_webhooks_that_are_answered_503_are_told() -> None:
    few = living("serve", answered=100, refused=10)
    assert [(one.code, one.grade) for one in alive([few, living("work")], NOW, expected=None)] == [
        ("webhooks_refused", Grade.DEGRADED)
    ]
    most = living("serve", answered=100, refused=90)
    [finding] = alive([most, living("work")], NOW, expected=None)
    assert finding.grade is Grade.STUCK
    assert "90 of 100" in finding.text
    assert alive([living("serve", answered=100, refused=1), living("work")], NOW, expected=None) == []


def test_one_that_is_slow_degrades_whatever_it_does() -> None:
    told = {"loop": Proof(code="role_slow", reason="its loop comes 2.9 s late each time")}
    [finding] = alive([*(one for one in ALL if one.role != "work"), living("work", checks=told)], NOW, expected=None)
    assert (finding.code, finding.grade) == ("role_slow", Grade.DEGRADED)
    assert "1 of 1 `work` cannot keep up: its loop comes 2.9 s late" in finding.text


def test_a_database_that_sorts_otherwise_degrades_and_the_cure_is_said() -> None:
    """Nothing stands still by it: what is unique may come to be there twice."""
    told = {"collation": Proof(code="collation_changed", reason=CollationChanged().sentence())}
    [finding] = alive([*(one for one in ALL if one.role != "work"), living("work", checks=told)], NOW, expected=None)
    assert (finding.code, finding.grade) == ("collation_changed", Grade.DEGRADED)
    assert "cannot trust the ledger's indexes: The database sorts text otherwise" in finding.text
    assert "REINDEX DATABASE" in finding.text


# case: I3
def test_one_that_is_ready_and_cannot_write_says_what_it_was_told() -> None:
    told = {"log_write": Proof(code="topic_forbidden", reason="The broker does not allow this user to use the topic.")}
    [finding] = alive([*(one for one in ALL if one.role != "serve"), living("serve", checks=told)], NOW, expected=None)
    assert (finding.code, finding.grade) == ("topic_forbidden", Grade.DEGRADED)
    assert "does not allow" in finding.text


def test_roles_that_do_not_hear_each_other_are_named() -> None:
    # case: O6
    said = {PREFIX: "payments"}
    same = [living(role, said=said) for role in ("serve", "work", "sync")] + [living("console")]
    assert alive(same, NOW, expected=None) == []
    elsewhere = living("sync", said={PREFIX: "elsewhere"}, pid=9)
    [finding] = alive([*same[:2], elsewhere, same[3]], NOW, expected=None)
    assert (finding.code, finding.grade) == ("prefixes_differ", Grade.STUCK)
    assert "payments: `serve` (pid 7 on shop-1), `work` (pid 7 on shop-1); " in finding.text
    assert "; elsewhere: `sync` (pid 9 on shop-1)." in finding.text
    begun = replace(elsewhere, started_at=NOW - APART_FOR / 2)
    assert alive([*same, begun], NOW, expected=None) == [], "it may be told to end in a moment"
    ended = replace(elsewhere, stopped_at=NOW)
    assert alive([*same, ended], NOW, expected=None) == []


# case: O6
def test_roles_that_use_different_logs_are_named() -> None:
    ours = {PREFIX: "payments", LOG: "Kafka 5L6g3nShT-eMCtK--X86sw"}
    same = [living(role, said=ours) for role in ("serve", "work", "console")]
    sync = living("sync", said={PREFIX: "payments", LOG: "file 0af7651916cd43dd8448eb211c80319c"}, pid=9)
    [finding] = alive([*same, sync], NOW, expected=None)
    assert (finding.code, finding.grade) == ("logs_differ", Grade.STUCK)
    assert "CONSUMER_BROKER_URL differs" in finding.text
    assert "Kafka …K--X86sw: `serve` (pid 7 on shop-1), `work` (pid 7 on shop-1), `console`" in finding.text
    assert "; file …1c80319c: `sync` (pid 9 on shop-1)." in finding.text
    assert alive([*same, replace(sync, said={PREFIX: "payments"})], NOW, expected=None) == [], "one that cannot tell"
    [many] = alive([*same, *(living("work", said=ours) for _ in range(17)), sync], NOW, expected=None)
    assert "and 15 more;" in many.text


@pytest.mark.parametrize(
    "before",
    [
        {"stopped_at": NOW},
        {"seen_at": NOW - UNHEARD_AFTER - timedelta(seconds=1)},
        {"checks": {"broker": Proof(code="log_replaced", reason="the log file was replaced: restart this role")}},
    ],
    ids=["stopped", "killed", "its file is gone"],
)
def test_logs_differ_no_longer_than_roles_use_them(before: dict[str, Any]) -> None:
    """A rolling restart after the file was replaced, or from one cluster to another: the last of before is gone."""
    # case: O6
    anew = [living(role, said={LOG: "file b"}, started_at=NOW - APART_FOR) for role in ("serve", "work", "sync")]
    old = living("work", process="old", said={LOG: "file a"})
    assert set(apart([*anew, old], NOW, LOG)) == {"file a", "file b"}
    assert not apart([*anew, replace(old, **before)], NOW, LOG)
