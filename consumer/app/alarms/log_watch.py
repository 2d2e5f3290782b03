"""LogWatch: asks the log how far each group is, as nobody who may be blind can; remembers the topics. When one of them
was made anew, what lay in it unread is gone: our own events are published again, and state is reconciled. So are those
that a log lost which stayed the same: published long ago, not come, and nothing is unread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count

import structlog

from consumer.broker import Broker, GroupReport, TopicConfig
from consumer.clock import Clock, is_set_within
from consumer.errors import code_of
from consumer.ledger import Database, log_memory, log_positions
from consumer.ledger.handling import events, outbox
from consumer.ledger.log_memory import TopicMemory
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics

LOOK_EVERY_S = 20.0
LIMIT_S, LEDGER_S = 15.0, 5.0
TOPICS_EVERY = 3
"""Looks at groups for one at topics, which takes connections of its own on Kafka."""
PAGE = 2_000
MAX_SEQ = 2**62
LOST_AFTER = timedelta(minutes=10)
"""So long the log may take for a record that it has."""
SHOWN_FOR_S = 90.0
"""An age that nobody looked at again would grow for ever, and wake somebody for nothing."""

_log = structlog.get_logger(__name__)


class LogWatch:
    """`groups`: group to topic. `on_replaced` is told at each look when a topic was found to be another than it was.
    `size`: of the log's files, where they are ours. `topics`: those that have to be there."""

    def __init__(
        self,
        broker: Broker,
        database: Database,
        groups: Mapping[str, str],
        *,
        metrics: Metrics,
        clock: Clock,
        on_replaced: Callable[[datetime], Awaitable[None]],
        size: Callable[[], int | None] = lambda: None,
        topics: Sequence[TopicConfig] = (),
    ) -> None:
        self._broker = broker
        self._database = database
        self._groups = groups
        self._metrics = metrics
        self._clock = clock
        self._on_replaced = on_replaced
        self._size = size
        self._topics = topics
        self._unseen = Condition("log_not_looked_at")
        self._shown_s = clock.monotonic()
        self._unknown = Condition("topics_not_looked_at")

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        for look in count():
            if stop.is_set():
                return
            await self._try()
            if look % TOPICS_EVERY == 0:
                await self._try_topics()
            await is_set_within(stop, LOOK_EVERY_S)

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                before = await self._remembered()
                reports = await self._broker.look_at_groups(self._groups)
                self._show(reports)
                self._shown_s = self._clock.monotonic()
                if isinstance(before, Exception):
                    raise before
                memories = await self._remember(reports, before)
                if reports and not any(report.records for report in reports):
                    await self._publish_lost()
                replaced_at = max(filter(None, (one.replaced_at for one in memories)), default=None)
                if replaced_at is not None:
                    await self._on_replaced(replaced_at)
            owing = [one.topic for one in memories if one.owes]
            if owing:
                await self._publish_again(owing)
        except Exception as error:  # noqa: BLE001 - what only looks ends no role, whatever it meets
            code = "no_answer" if isinstance(error, TimeoutError) else code_of(error)
            self._unseen.lasts(code)
            if self._clock.monotonic() - self._shown_s > SHOWN_FOR_S:
                self._forget()
        else:
            self._unseen.over()

    async def _try_topics(self) -> None:
        """Who may not look at topics is blind for them alone."""
        with self._unknown.tried(Exception):  # what only looks ends no role, whatever it meets
            async with asyncio.timeout(LIMIT_S):
                found = await self._broker.look(self._topics)
            self._metrics.status_code.labels("topics_missing", "").set(any(one.partitions is None for one in found))
            self._metrics.status_code.labels("topic_misconfigured", "").set(any(one.wrong for one in found))

    def _forget(self) -> None:
        """Why the groups cannot be looked at is shown elsewhere: `consumer_check_failing`."""
        for figure in (self._metrics.group_lag_records, self._metrics.group_members, self._metrics.group_oldest):
            figure.clear()

    def _show(self, reports: Sequence[GroupReport]) -> None:
        size = self._size()
        if size is not None:
            self._metrics.log_bytes.set(size)
        self._forget()  # a group whose topic is gone is in no report
        for report in reports:
            self._metrics.group_lag_records.labels(report.group).set(report.records)
            self._metrics.group_members.labels(report.group).set(report.members)
            self._metrics.group_oldest.labels(report.group).set(report.oldest_at.timestamp() if report.oldest_at else 0)

    async def _remembered(self) -> Mapping[str, TopicMemory] | Exception:
        """Topic to what is remembered of it, or why that cannot be known: the log is looked at all the same. Asked
        before it is: another `sync` that looks later sees ends further on, behind which the topic never went back."""
        try:
            async with asyncio.timeout(LEDGER_S), self._database.reading() as session:
                return {topic: await log_memory.load(session, topic) for topic in self._groups.values()}
        except Exception as error:  # noqa: BLE001 - it is raised once what the log says is shown
            return error

    async def _publish_again(self, topics: Sequence[str]) -> None:
        """What we published into a topic that is gone, and nobody had read, in a topic that is there. What was read and
        comes twice has the id it had. It takes as long as it takes, and is owed until it is done."""
        below, again = MAX_SEQ, 0
        while below:
            async with self._database.reading() as session:
                page = await outbox.below(session, below, PAGE)
                known = await events.known(session, [key for _, key, _ in page])
            lost = [seq for seq, key, is_published in page if is_published and key not in known]
            if lost:
                async with self._database.transaction() as session:
                    await outbox.publish_again(session, lost)
                again += len(lost)
            below = page[-1][0] if len(page) == PAGE else 0
        async with self._database.transaction() as session:
            for topic in topics:
                await log_memory.keep(session, replace(await log_memory.load(session, topic), owes=False))
        if again:
            _log.warning("published_again", events=again)

    async def _publish_lost(self) -> None:
        """Nothing is unread: what was published long ago and has not come does not come. What has come to a worker of a
        version that knows no marks (before `ledger_0020`) loses its mark here: else it would be looked at for ever,
        before what is lost."""
        async with self._database.reading() as session:
            found = await outbox.astray(session, self._clock.now() - LOST_AFTER, PAGE)
            known = await events.known(session, [key for _, key in found])
        lost = [seq for seq, key in found if key not in known]
        if lost:
            async with self._database.transaction() as session:
                await outbox.publish_again(session, lost)
            _log.warning("published_again", events=len(lost))
        if known:
            async with self._database.transaction() as session:
                await outbox.arrived(session, sorted(known))

    async def _remember(
        self, reports: Sequence[GroupReport], before: Mapping[str, TopicMemory]
    ) -> Sequence[TopicMemory]:
        """What the ledger remembers of the topics from now on. Where another `sync` has looked meanwhile, its look
        counts, and the next of ours."""
        memories = []
        async with self._database.transaction() as session:
            for report in reports:
                found = memory = await log_memory.load(session, report.topic)
                if memory == before[report.topic]:
                    found = log_memory.after(memory, report.topic_id, report.ends, self._clock.now())
                if found != memory:
                    await log_memory.keep(session, found)
                if found.replaced_at != memory.replaced_at:
                    _log.error("log_replaced", topic=report.topic, group=report.group)
                    await log_positions.forget(session, report.topic)
                memories.append(found)
        return memories
