"""Log: whether the log can be used, is the one it was, and is read, as the log itself and the ledger's memory say. The
judging is pure; `ask` looks, and makes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from consumer.app import log_parts
from consumer.broker import GroupReport, TopicReport
from consumer.causes import cure_of
from consumer.cli.looking.status_finding import Finding, Grade
from consumer.console.alarms.lives import apart, is_of_now
from consumer.document import printable, shown
from consumer.errors import BrokerError, BrokerUnavailable
from consumer.ledger import log_memory
from consumer.ledger.log_memory import TopicMemory, is_another
from consumer.ledger.processes import LOG, Process
from consumer.settings import Settings
from consumer.sync.health.status import ApplicationStatus

WITHIN_S: Final = 12.0
BEHIND: Final = timedelta(minutes=2)
BEHIND_STUCK: Final = timedelta(minutes=5)
SETTLED_AFTER: Final = timedelta(seconds=45)
ELSEWHERE_AFTER: Final = timedelta(minutes=2)
"""Longer than the log keeps a member that hangs."""
REMEMBERED: Final = timedelta(days=1)
CLIENTS_MAX, CLIENT_CHARS = 3, 60
OLDER_VERSION: Final = "consumer"
"""What all processes were called on the log."""
ROLE_OF: Final = {"work": "work", "confirm": "sync"}


@dataclass(frozen=True, kw_only=True)
class LogLook:
    """What the log answered. `refused`: why it did not; `where`: the brokers that were asked."""

    topics: Sequence[TopicReport] = ()
    groups: Sequence[GroupReport] = ()
    refused: BrokerError | None = None
    where: Sequence[str] = ()


async def ask(settings: Settings) -> LogLook:
    """How topics and groups stand. Never raises."""
    try:
        broker = log_parts.open_log(settings)
    except BrokerError as error:
        return LogLook(refused=error)
    topics, where = list[TopicReport](), settings.kafka_servers
    try:
        async with asyncio.timeout(WITHIN_S):
            topics = list(await broker.look(log_parts.topics(settings)))
            return LogLook(topics=topics, groups=await broker.look_at_groups(log_parts.groups(settings)))
    except TimeoutError:
        refused = BrokerUnavailable(f"the broker did not answer within {WITHIN_S:g} s")
        return LogLook(topics=topics, refused=refused, where=where)
    except BrokerError as error:
        return LogLook(topics=topics, refused=error, where=where)
    finally:
        await broker.stop()


async def remembered(session: AsyncSession, settings: Settings) -> list[TopicMemory]:
    """What the ledger remembers of the topics that groups read."""
    return [await log_memory.load(session, topic) for topic in log_parts.groups(settings).values()]


def judge_log(
    look: LogLook,
    now: datetime,
    *,
    memories: Sequence[TopicMemory] = (),
    statuses: Sequence[ApplicationStatus] = (),
    processes: Sequence[Process] = (),
) -> list[Finding]:
    """What is wrong with the log, and with who reads it. Pure."""
    found = []
    if look.refused is not None:
        code = "broker_away" if type(look.refused) is BrokerUnavailable else look.refused.code
        cure = cure_of(look.refused.code)
        asked = f" (asked: {', '.join(look.where)})" if look.where else ""
        found.append(Finding(Grade.STUCK, code, look.refused.sentence() + asked + (f" ({cure})" if cure else "")))
    found += _topics(look.topics)
    for report in look.groups:
        found += _group(report, now, processes)
    # While some role has another log, that is why a topic is not the one it was. It is told in a moment.
    is_elsewhere = bool(apart(processes, now, LOG, timedelta(0)))
    return found if is_elsewhere else found + _replaced(look.groups, memories, statuses, now)


def _topics(topics: Sequence[TopicReport]) -> list[Finding]:
    found = [Finding(Grade.STUCK, "topic_misconfigured", f"{one.name}: {why}") for one in topics for why in one.wrong]
    thin: dict[str, list[str]] = {}
    for one in topics:
        for why in one.thin:
            thin.setdefault(why, []).append(one.name)
    found += [Finding(Grade.DEGRADED, "broker_away", f"{', '.join(names)}: {why}") for why, names in thin.items()]
    missing = [one.name for one in topics if one.partitions is None]
    if missing:
        text = f"not there: {', '.join(missing)}; the first of `serve`, `work`, `sync` to start makes what is missing"
        found.append(Finding(Grade.DEGRADED, "topics_missing", text))
    return found


def strangers(report: GroupReport, processes: Sequence[Process]) -> list[str]:
    """Who reads as this group and is none that the ledger knows; nobody is, where it knows nobody, or is away. Pure."""
    known = {OLDER_VERSION, *(one.process for one in processes)}
    return sorted({*report.clients} - known) if processes else []


def elsewhere(report: GroupReport, processes: Sequence[Process], now: datetime) -> list[Process]:
    """Who reads as this group, and tells this ledger nothing though others do: it may write another one, a primary of
    before that still runs. Pure."""
    if not any(is_of_now(one.seen_at, now, SETTLED_AFTER) for one in processes):
        return []
    quiet = (one for one in processes if one.stopped_at is None and now - one.seen_at > ELSEWHERE_AFTER)
    return list({one.process: one for one in quiet if one.process in report.clients}.values())


def _group(report: GroupReport, now: datetime, processes: Sequence[Process]) -> list[Finding]:
    found = []
    role = ROLE_OF.get(report.group.rpartition(".")[2], "")
    alive = [one for one in processes if one.role == role and one.stopped_at is None]
    settled = [
        one for one in alive if now - one.started_at > SETTLED_AFTER and is_of_now(one.seen_at, now, SETTLED_AFTER)
    ]
    if not report.members and settled:
        ago_s = max(0.0, (now - max(one.seen_at for one in settled)).total_seconds())
        text = f"nobody reads as group {report.group}, though `{role}` was seen {ago_s:.0f} s ago"
        text = f"{text}; {report.records} record(s) wait"
        found.append(Finding(Grade.STUCK, "group_without_members", text))
    if others := strangers(report, processes):
        names = ", ".join(printable(one)[:CLIENT_CHARS] for one in others[:CLIENTS_MAX])
        text = f"somebody else reads as group {report.group} ({names}): what it takes no `{role}` sees until it is gone"
        found.append(Finding(Grade.STUCK, "group_shared", text))
    if quiet := elsewhere(report, processes, now):
        names = ", ".join(f"pid {one.pid} on {one.host}" for one in quiet[:CLIENTS_MAX])
        since = min(one.seen_at for one in quiet)
        text = f"{names} reads as group {report.group}, and this ledger has heard nothing of it since {shown(since)}"
        text = f"{text}: does it write another database, an old primary? Stop it; what it took is read again"
        found.append(Finding(Grade.STUCK, "group_shared", text))
    behind = now - report.oldest_at if report.oldest_at is not None else timedelta(0)
    if behind > BEHIND:
        grade = Grade.STUCK if behind > BEHIND_STUCK else Grade.DEGRADED
        minutes = behind.total_seconds() / 60
        text = f"{report.records} record(s) of {report.topic} wait for group {report.group}"
        found.append(Finding(grade, "log_behind", f"{text}, the oldest for {minutes:.0f} min"))
    if report.lost:
        text = f"{report.lost} record(s) of {report.topic} were deleted before group {report.group} read them"
        found.append(Finding(Grade.STUCK, "log_records_lost", f"{text}: `consumer reconcile`"))
    if report.beyond:
        text = f"group {report.group} has read further than {report.topic} goes: the topic was made anew"
        found.append(Finding(Grade.STUCK, "log_replaced", text))
    return found


def _replaced(
    groups: Sequence[GroupReport], memories: Sequence[TopicMemory], statuses: Sequence[ApplicationStatus], now: datetime
) -> list[Finding]:
    """Topics that are not the ones they were, until state was reconciled since."""
    looks = {report.topic: report for report in groups}
    gone = [
        memory.topic
        for memory in memories
        if (memory.topic_id or memory.ends)
        and (
            (memory.topic in looks and is_another(memory, looks[memory.topic].topic_id, looks[memory.topic].ends))
            or _is_open(memory, statuses, now)
        )
    ]
    if not gone:
        return []
    text = f"{', '.join(gone)}: not the log it was; what lay there unread is gone. `consumer reconcile` sets right"
    return [Finding(Grade.STUCK, "log_replaced", text)]


def _is_open(memory: TopicMemory, statuses: Sequence[ApplicationStatus], now: datetime) -> bool:
    at = memory.replaced_at
    if at is None:
        return False
    read = [one for one in statuses if one.has_credentials]
    if not read:
        return now - at < REMEMBERED
    return any(one.reconciled_at is None or one.reconciled_at < at for one in read)
