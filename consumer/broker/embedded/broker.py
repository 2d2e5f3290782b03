"""EmbeddedBroker: the log in one SQLite file, for one machine. The same promises as Kafka, one contract suite.

Several processes may share the file (not over a network file system: SQLite's WAL needs shared memory). Timeouts and
heartbeats are told in machine time; what is written into a record, its age and its retention follow the clock.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from consumer.broker.base import AssignmentListener, Message, TopicConfig, TopicReport
from consumer.broker.embedded.file import LogFile, Row, identity_of
from consumer.broker.embedded.groups import inspect_groups
from consumer.broker.embedded.inspection import inspect
from consumer.broker.embedded.member import EmbeddedSubscription
from consumer.broker.embedded.schema import (
    TopicLayout,
    data_version,
    delete_old,
    ensure_topics,
    pack_headers,
    topic_layout,
    touch,
)
from consumer.broker.groups import GroupReport
from consumer.broker.membership import Membership
from consumer.broker.outcomes import Outcomes
from consumer.clock import Clock, SystemClock
from consumer.errors import BrokerError, BrokerUnavailable, RecordTooLarge, TopicUnknown
from consumer.telemetry.logs import Condition

RETENTION_EVERY_S = 60.0
RETENTION_STEP_RECORDS = 2_000
CHUNK_RECORDS = 500
CHUNK_BYTES = 4 * 1024 * 1024
READY_WITHIN_S = 1.5


class EmbeddedBroker:
    """See `consumer.broker.base.Broker`.

    `heartbeat_s` is how often a member says that it lives, `session_s` after how long without it the member is
    declared dead and its partitions go to others.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        heartbeat_s: float = 3.0,
        session_s: float = 12.0,
        max_pending: int = 20_000,
    ) -> None:
        self._path = path.absolute()  # wherever a handler makes the process go meanwhile
        self._clock: Clock = clock or SystemClock()
        self._heartbeat_s = heartbeat_s
        self._session_s = session_s
        self._max_pending = max_pending
        self._file: LogFile | None = None
        self._identity: str | None = None
        self._layouts: dict[str, TopicLayout] = {}
        self._subscriptions: list[EmbeddedSubscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._watches = False

    @property
    def identity(self) -> str | None:
        """See the Protocol."""
        return self._identity

    async def start(self) -> None:
        """Open or create the file. Raises BrokerUnavailable, LogCorrupt, LogIncompatible."""
        if self._file is not None:
            return
        file = LogFile(self._path, max_pending=self._max_pending)
        try:
            await file.open()
            self._identity = f"file {await file.read(identity_of)}"
        except BaseException:
            await file.close(0)
            raise
        self._file = file
        self._tasks = [asyncio.create_task(self._retain(file))]

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the subscriptions that still run, write what is pending, close; each bounded by `timeout_s`."""
        file, self._file = self._file, None
        if file is None:
            return
        self._identity = None
        deadline = time.monotonic() + timeout_s
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=timeout_s)
        running = [subscription for subscription in self._subscriptions if subscription.running]
        await asyncio.gather(*(member.stop(max(0.1, deadline - time.monotonic())) for member in running))
        self._subscriptions.clear()
        self._layouts.clear()
        self._watches = False
        await file.close(max(0.1, deadline - time.monotonic()))

    async def ensure_topics(self, topics: Iterable[TopicConfig]) -> None:
        """Create what is missing; existing topics take the new limits and keep their partitions."""
        wanted = list(topics)
        await self._open_file().write(partial(ensure_topics, topics=wanted), timeout_s=10.0)
        for topic in wanted:
            await self._layout(topic.name)

    async def look(self, topics: Iterable[TopicConfig]) -> Sequence[TopicReport]:
        """See the Protocol."""
        return await asyncio.to_thread(inspect, self._path, list(topics))

    async def look_at_groups(self, groups: Mapping[str, str]) -> Sequence[GroupReport]:
        """See the Protocol."""
        return await asyncio.to_thread(inspect_groups, self._path, groups)

    async def probe(self, topics: Iterable[str]) -> None:  # noqa: ARG002 - the Protocol's
        """See the Protocol: all topics are in one file."""
        await self._open_file().write(touch, READY_WITHIN_S)

    async def publish(self, topic: str, message: Message, timeout_s: float = 5.0) -> None:
        """See the Protocol (cases I1, I2, I22)."""
        file = self._open_file()
        layout = self._layouts.get(topic) or await self._layout(topic)
        row, size = self._row(layout, message)
        if size > layout.max_record_bytes:
            raise _too_large(layout, size)
        await file.append((row,), size, timeout_s)
        self._wake_records()

    async def publish_many(self, topic: str, messages: Sequence[Message], timeout_s: float = 30.0) -> None:
        """See the Protocol. All partitions are in one file: where that takes a portion not, nothing is tried behind."""
        file = self._open_file()
        layout = self._layouts.get(topic) or await self._layout(topic)
        deadline = time.monotonic() + timeout_s
        outcomes = Outcomes(messages)
        found = [self._row(layout, message) for message in messages]
        rows, sizes = [row for row, _ in found], [size for _, size in found]
        for place, size in enumerate(sizes):
            if size > layout.max_record_bytes:
                outcomes.settle(place, _too_large(layout, size))
        for places in outcomes.chunks(sizes, CHUNK_RECORDS, CHUNK_BYTES):
            failure = None
            try:
                left_s = max(0.0, deadline - time.monotonic())
                await file.append([rows[place] for place in places], sum(sizes[place] for place in places), left_s)
            except BrokerError as error:
                failure = error
            for place in places:
                outcomes.settle(place, failure)
            if failure is not None:
                break
            self._wake_records()
        outcomes.check()

    def subscribe(
        self,
        topics: Sequence[str],
        group: str,
        *,
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
        on_replaced: AssignmentListener | None = None,
        drain_s: float = 20.0,
    ) -> EmbeddedSubscription:
        """See the Protocol."""
        file = self._open_file()
        if not self._watches:
            self._watches = True
            self._tasks.append(asyncio.create_task(self._watch(file)))
        self._subscriptions = [member for member in self._subscriptions if not member.stopped]
        membership = Membership(
            topics=tuple(topics),
            group=group,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_replaced=on_replaced,
            drain_s=drain_s,
            heartbeat_s=self._heartbeat_s,
            session_s=self._session_s,
        )
        subscription = EmbeddedSubscription(
            file,
            membership,
            clock=self._clock,
        )
        self._subscriptions.append(subscription)
        return subscription

    async def check(self) -> bool:
        """Whether the file answers; after a failed write, whether it takes writes again; after one that the full disk
        refused, whether it takes as much. Who wants to know before he writes asks `probe` now and then."""
        file = self._file
        if file is None:
            return False
        if file.lacks_bytes:
            await file.prove_room(READY_WITHIN_S)
        elif file.write_failed:
            await self.probe(())
        await file.read(data_version, READY_WITHIN_S)
        return True

    # --- inside ----------------------------------------------------------------------------------------------

    def _open_file(self) -> LogFile:
        if self._file is None:
            raise BrokerUnavailable("the broker is not started")
        return self._file

    async def _layout(self, topic: str) -> TopicLayout:
        layout = await self._open_file().read(partial(topic_layout, name=topic))
        if layout is None:
            raise TopicUnknown(topic=topic)
        self._layouts[topic] = layout
        return layout

    def _row(self, layout: TopicLayout, message: Message) -> tuple[Row, int]:
        headers = pack_headers(message.headers)
        size = len(message.key) + len(message.value) + (len(headers) if headers else 0)
        ids = layout.partition_ids
        number = zlib.crc32(message.key) % len(ids)
        published_ms = int(self._clock.now().timestamp() * 1000)
        return Row(ids[number], message.key, message.value, headers, published_ms), size

    def _wake_records(self) -> None:
        for subscription in self._subscriptions:
            subscription.wake(changes=False)

    async def _watch(self, file: LogFile) -> None:
        """Notice what other processes (and other members here) wrote."""
        seen = -1
        blind = Condition("log_not_watched")
        while True:
            try:
                version = await file.changed(seen)
            except BrokerError as error:
                blind.lasts(error)
                await asyncio.sleep(1.0)
                continue
            blind.over()
            if version != seen:
                seen = version
                for subscription in self._subscriptions:
                    subscription.wake(changes=True)

    async def _retain(self, file: LogFile) -> None:
        """Delete old records in bounded steps, at once while there is more to delete, else once a minute."""
        kept = Condition("old_records_not_deleted")
        while True:
            deleted = 0
            with kept.tried(BrokerError):
                deleted = await self._delete_old(file)
            await asyncio.sleep(0.1 if deleted else RETENTION_EVERY_S)

    async def _delete_old(self, file: LogFile) -> int:
        step = partial(
            delete_old,
            now_ms=int(self._clock.now().timestamp() * 1000),
            max_records=RETENTION_STEP_RECORDS,
        )
        return await file.write(step, timeout_s=30.0)


def _too_large(layout: TopicLayout, size_bytes: int) -> RecordTooLarge:
    return RecordTooLarge(bytes=size_bytes, max_bytes=layout.max_record_bytes)
