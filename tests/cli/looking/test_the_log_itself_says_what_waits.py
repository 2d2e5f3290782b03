"""`status` asks the log, not the process that may be blind: who reads, what waits, whether it is the log it was."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from consumer.broker import GroupReport
from consumer.cli.looking.log import LogLook, judge_log
from consumer.cli.looking.status_finding import Grade
from consumer.errors import BrokerUnavailable, GroupForbidden, LogDiskFull
from consumer.ledger.log_memory import TopicMemory, after, is_another
from consumer.ledger.processes import LOG, Process
from consumer.sync.health.status import ApplicationStatus

NOW = datetime(2026, 5, 1, tzinfo=UTC)
READ = GroupReport(group="payments.work", topic="payments.events", topic_id="a", members=1, ends=(5, 7))
WORKER = Process(
    process="shop-1",
    role="work",
    host="shop",
    pid=7,
    version="0.1.0",
    started_at=NOW - timedelta(minutes=5),
    seen_at=NOW,
    ready=True,
    since=NOW,
)
MEMORY = TopicMemory(topic="payments.events", topic_id="a", ends=(5, 7))


@pytest.mark.parametrize(
    ("report", "code", "grade"),
    [
        (replace(READ, members=0, records=20), "group_without_members", Grade.STUCK),
        (replace(READ, records=20, oldest_at=NOW - timedelta(minutes=3)), "log_behind", Grade.DEGRADED),
        (replace(READ, records=20, oldest_at=NOW - timedelta(minutes=11)), "log_behind", Grade.STUCK),
        (replace(READ, members=2, clients=("kafka-console-consumer", "shop-1")), "group_shared", Grade.STUCK),
        (replace(READ, lost=3), "log_records_lost", Grade.STUCK),
        (replace(READ, beyond=True), "log_replaced", Grade.STUCK),
    ],
)
def test_what_a_group_lacks_is_found(report: GroupReport, code: str, grade: Grade) -> None:
    [finding] = judge_log(LogLook(groups=[report]), NOW, processes=[WORKER])
    assert (finding.code, finding.grade) == (code, grade)
    assert "payments." in finding.text


def test_a_group_without_members_is_told_beside_when_its_role_was_seen() -> None:
    """A role that hangs is none that runs: how long ago it was seen is what is known."""
    empty = replace(READ, members=0, records=20)
    for seen in (-3, 12):
        hung = replace(WORKER, seen_at=NOW - timedelta(seconds=seen))
        [finding] = judge_log(LogLook(groups=[empty]), NOW, processes=[hung])
        assert f"though `work` was seen {max(seen, 0)} s ago; 20 record(s) wait" in finding.text


def test_a_group_that_is_read_and_a_little_behind_is_well() -> None:
    busy = replace(READ, records=900, oldest_at=NOW - timedelta(seconds=20))
    assert judge_log(LogLook(groups=[busy]), NOW, memories=[MEMORY], processes=[WORKER]) == []
    ours = replace(READ, members=2, clients=("consumer", "shop-1"))
    assert judge_log(LogLook(groups=[ours]), NOW, processes=[WORKER]) == [], "an older version has no name of its own"
    dead = replace(WORKER, seen_at=NOW - timedelta(minutes=2))
    assert "group_shared" not in [one.code for one in judge_log(LogLook(groups=[ours]), NOW, processes=[dead])]
    starting = replace(WORKER, started_at=NOW - timedelta(seconds=5))
    assert judge_log(LogLook(groups=[replace(READ, members=0)]), NOW, processes=[starting]) == []
    assert judge_log(LogLook(groups=[replace(READ, members=0)]), NOW) == [], "no worker: that is told as no_work"


def test_who_reads_and_tells_this_ledger_nothing_may_write_another() -> None:
    """A primary of before that still runs: half of the orders went there, and all was healthy here."""
    both = replace(READ, members=2, clients=("shop-1", "shop-2"))
    quiet = replace(WORKER, process="shop-2", pid=7, seen_at=NOW - timedelta(minutes=3))
    [found] = judge_log(LogLook(groups=[both]), NOW, processes=[WORKER, quiet, replace(quiet, role="sync")])
    assert (found.code, found.grade, found.text.count("pid 7 on")) == ("group_shared", Grade.STUCK, 1)
    for other in (replace(quiet, stopped_at=quiet.seen_at), replace(quiet, seen_at=NOW - timedelta(minutes=1))):
        assert judge_log(LogLook(groups=[both]), NOW, processes=[WORKER, other]) == []
    gone = replace(READ, clients=("shop-1",))
    assert judge_log(LogLook(groups=[gone]), NOW, processes=[WORKER, quiet]) == [], "it reads no more"
    nobody_is_heard = [replace(one, seen_at=NOW - timedelta(minutes=3)) for one in (WORKER, quiet)]
    assert "group_shared" not in [one.code for one in judge_log(LogLook(groups=[both]), NOW, processes=nobody_is_heard)]


def test_nobody_is_a_stranger_while_the_ledger_does_not_say_who_we_are() -> None:
    # case: O6
    shared = replace(READ, members=2, clients=("kafka-console-consumer", "shop-1"))
    assert judge_log(LogLook(groups=[shared]), NOW) == []


def test_another_topic_of_the_same_name_is_noticed_until_state_was_reconciled() -> None:
    copy_of_before = replace(READ, ends=(5, 6))
    for anew in (replace(READ, topic_id="b"), replace(READ, topic_id=None, ends=(0, 7)), copy_of_before):
        [finding] = judge_log(LogLook(groups=[anew]), NOW, memories=[MEMORY])
        assert (finding.code, finding.grade) == ("log_replaced", Grade.STUCK)
    noticed = after(MEMORY, "b", (0, 0), NOW)
    assert (noticed.replaced_at, noticed.topic_id) == (NOW, "b")
    look = LogLook(groups=[replace(READ, topic_id="b", ends=(0, 0))])
    waits = ApplicationStatus(application="default", reconciled_at=NOW - timedelta(hours=1))
    healed = replace(waits, reconciled_at=NOW + timedelta(seconds=9))
    assert [one.code for one in judge_log(look, NOW, memories=[noticed], statuses=[waits])] == ["log_replaced"]
    assert judge_log(look, NOW, memories=[noticed], statuses=[healed]) == []


def test_a_topic_that_grew_or_got_partitions_is_the_same() -> None:
    assert not is_another(MEMORY, "a", (9, 9, 1))
    assert not is_another(TopicMemory(topic="t"), "a", (0, 0))
    assert not is_another(replace(MEMORY, topic_id=None), "a", (5, 8))


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (BrokerUnavailable(), "broker_away"),
        (GroupForbidden(group="payments.work"), "group_forbidden"),
        (LogDiskFull(), "log_disk_full"),
    ],
)
def test_what_the_log_refuses_is_told_by_its_own_name_and_cure(refused: BrokerUnavailable, code: str) -> None:
    [finding] = judge_log(LogLook(refused=refused), NOW)
    assert (finding.code, finding.grade) == (code, Grade.STUCK)
    assert refused.message in finding.text


# case: O6
def test_a_role_on_another_log_is_no_log_that_was_replaced() -> None:
    noticed = after(MEMORY, "b", (0, 0), NOW)
    here = replace(WORKER, said={LOG: "file a"})
    there = replace(WORKER, process="sync-1", role="sync", said={LOG: "file b"}, started_at=NOW)
    for memory in (MEMORY, noticed):
        look = LogLook(groups=[replace(READ, topic_id="c")])
        assert judge_log(look, NOW, memories=[memory], processes=[here, there]) == []
        [finding] = judge_log(look, NOW, memories=[memory], processes=[here, replace(there, said={LOG: "file a"})])
        assert finding.code == "log_replaced"
