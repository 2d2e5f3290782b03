"""EmbeddedSubscription: one member of a group of the embedded log."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import structlog

from consumer.broker.base import STANDS_WITHIN_S, Lag, Partition, Record
from consumer.broker.embedded import claims
from consumer.broker.embedded.file import LogFile
from consumer.broker.embedded.schema import OFFSET_BITS, StoredRecord, read_records, topic_layout, unpack_headers
from consumer.broker.membership import Membership
from consumer.clock import Clock
from consumer.errors import BrokerError, BrokerUnavailable, TopicUnknown
from consumer.telemetry.logs import Condition

LOG = structlog.get_logger(__name__)

FOLLOW_AT_LEAST_EVERY_S = 1.0
JOIN_TIMEOUT_S = 10.0
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class _Cursor:
    """Where this member reads on. A new object at every assignment, so that a late read cannot pass for a new one."""

    __slots__ = ("offset", "partition", "partition_id")

    def __init__(self, partition_id: int, partition: Partition, offset: int) -> None:
        self.partition_id = partition_id
        self.partition = partition
        self.offset = offset


class EmbeddedSubscription:
    """See `consumer.broker.base.Subscription`. Made by `EmbeddedBroker.subscribe`."""

    def __init__(
        self,
        file: LogFile,
        membership: Membership,
        *,
        clock: Clock,
    ) -> None:
        self._file = file
        self._membership = membership
        self._group = membership.group
        self._clock = clock
        self._member = ""
        self._owned: dict[int, Partition] = {}
        self._cursors: dict[int, _Cursor] = {}
        self._unsure: frozenset[int] = frozenset()
        """Of which it is not known whether the group was set back: this member reads on from where it was."""
        self._first = 0
        self._records_wake = asyncio.Event()
        self._change_wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False
        self._stopped = False

    async def start(self) -> None:
        """Join the group and start to follow it. Raises BrokerUnavailable, or TopicUnknown."""
        if self._running or self._stopped:
            return
        for topic in self._membership.topics:
            if await self._file.read(partial(topic_layout, name=topic)) is None:
                raise TopicUnknown(topic=topic)
        await self._join()
        self._running = True
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._beat())]
        self._change_wake.set()

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Leave the group, bounded. Does not commit and does not call `on_revoked`."""
        was_running, self._running, self._stopped = self._running, False, True
        self._records_wake.set()
        if not was_running:
            return
        deadline = time.monotonic() + timeout_s
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=timeout_s)
        self._owned.clear()
        self._cursors.clear()
        left_s = max(0.1, deadline - time.monotonic())
        leave = partial(claims.leave, group=self._group, member=self._member)
        # When the file does not answer, the session's end says the same as this call.
        with suppress(BrokerError):
            await self._file.write(leave, left_s)

    @property
    def running(self) -> bool:
        """Whether it is started and not stopped."""
        return self._running

    @property
    def stopped(self) -> bool:
        """Whether it is stopped for good."""
        return self._stopped

    def wake(self, *, changes: bool) -> None:
        """Look again now: something was published, or another process changed the file (`changes`)."""
        self._records_wake.set()
        if changes:
            self._change_wake.set()

    # --- reading ---------------------------------------------------------------------------------------------

    async def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """See the Protocol. Raises BrokerUnavailable when not started, BrokerError when the file cannot be read."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        if not self._running:
            raise BrokerUnavailable("the subscription is not running", group=self._group)
        while True:
            self._records_wake.clear()
            records = await self._fetch(max_records)
            if records or loop.time() >= deadline or not self._running:
                return records
            try:
                async with asyncio.timeout_at(deadline):
                    await self._records_wake.wait()
            except TimeoutError:
                return ()
            if not self._running:
                return ()

    async def _fetch(self, max_records: int) -> list[Record]:
        cursors = list(self._cursors.values())
        if not cursors:
            return []
        # Begin with another partition each time: a full one must not starve the rest.
        self._first = (self._first + 1) % len(cursors)
        cursors = cursors[self._first :] + cursors[: self._first]
        wanted = [(cursor.partition_id, cursor.offset) for cursor in cursors]
        found = await self._file.read(partial(read_records, cursors=wanted, max_records=max_records))
        if found:
            self._file.stir()
        asked = {cursor.partition_id: cursor for cursor in cursors}
        records: list[Record] = []
        for partition_id, rows in found:
            cursor = asked[partition_id]
            if self._cursors.get(partition_id) is not cursor:
                continue  # taken away, or given anew, while the file was read
            records.extend(_record(cursor.partition, row) for row in rows)
            cursor.offset = (rows[-1].position & _OFFSET_MASK) + 1
        return records

    async def commit(self, offsets: Mapping[Partition, int], timeout_s: float = 10.0) -> frozenset[Partition]:
        """See the Protocol."""
        ids = {partition: partition_id for partition_id, partition in self._owned.items()}
        mine = {ids[partition]: offset for partition, offset in offsets.items() if partition in ids}
        if not mine:
            return frozenset()
        partitions = {ids[partition]: partition for partition in offsets if partition in ids}
        store = partial(claims.commit, group=self._group, member=self._member, offsets=mine, now_s=time.time())
        return frozenset(partitions[number] for number in await self._file.write(store, timeout_s))

    async def stands(self) -> Mapping[Partition, int]:
        """See the Protocol."""
        owned = dict(self._owned)
        found = await self._file.read(partial(claims.stands, group=self._group, partition_ids=list(owned)))
        return {owned[number]: offset for number, offset in found.items()}

    async def rewind(
        self, offsets: Mapping[Partition, int], *, anyway: Collection[Partition] = ()
    ) -> frozenset[Partition]:
        """See the Protocol."""
        mine = {number: offsets[one] for number, one in self._owned.items() if one in offsets}
        if not mine:
            return frozenset()
        step = partial(claims.rewind, group=self._group, member=self._member, offsets=mine)
        unsure, self._unsure = self._unsure, self._unsure | mine.keys()
        moved = await self._file.write(step, STANDS_WITHIN_S)
        self._unsure = frozenset()
        must = moved | unsure | {number for number in mine if self._owned.get(number) in anyway}
        back = [number for number in mine if number in self._cursors and number in must]
        for number in back:
            self._cursors[number] = _Cursor(number, self._owned[number], mine[number])
        self._records_wake.set()
        return frozenset(self._owned[number] for number in back)

    def assignment(self) -> frozenset[Partition]:
        """The partitions this member reads now; those it is letting go are not among them."""
        return frozenset(cursor.partition for cursor in self._cursors.values())

    async def lag(self) -> Mapping[Partition, Lag]:
        """See the Protocol."""
        owned = dict(self._owned)
        found = await self._file.read(partial(claims.lag, group=self._group, partition_ids=list(owned)))
        now_ms = self._clock.now().timestamp() * 1000
        return {
            owned[number]: Lag(records, None if oldest is None else max(0.0, (now_ms - oldest) / 1000))
            for number, (records, oldest) in found.items()
        }

    # --- membership ------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        member = uuid.uuid4().hex
        enter = partial(
            claims.join,
            group=self._group,
            member=member,
            topics=self._membership.topics,
            now_s=time.time(),
            session_s=self._membership.session_s,
        )
        self._member = member
        await self._file.write(enter, JOIN_TIMEOUT_S)

    async def _beat(self) -> None:
        """Heartbeats are told in machine time, not by the clock: a driven clock would declare the living dead."""
        unheard = Condition("member_not_heard", group=self._group)
        while True:
            await asyncio.sleep(self._membership.heartbeat_s)
            live = partial(
                claims.beat,
                group=self._group,
                member=self._member,
                now_s=time.time(),
                session_s=self._membership.session_s,
            )
            with unheard.tried(BrokerError):
                if not await self._file.write(live, self._membership.session_s):
                    self._change_wake.set()

    async def _follow(self) -> None:
        """Drain and let go what belongs to another member; take what is free and ours."""
        loop = asyncio.get_running_loop()
        generation = -1
        lost = Condition("group_not_followed", group=self._group)
        while True:
            timer = loop.call_later(FOLLOW_AT_LEAST_EVERY_S, self._change_wake.set)
            try:
                await self._change_wake.wait()
            finally:
                timer.cancel()
            self._change_wake.clear()
            try:
                found = await self._file.read(partial(claims.generation, group=self._group))
                if found != generation:
                    await self._settle()
                    generation = found
                lost.over()
            except BrokerError as error:
                lost.lasts(error)
                await asyncio.sleep(FOLLOW_AT_LEAST_EVERY_S)

    async def _settle(self) -> None:
        look = partial(claims.view, group=self._group, member=self._member, reading=tuple(self._cursors))
        seen = await self._file.read(look)
        if not seen.known:
            LOG.warning("member_declared_dead", group=self._group)
            await self._let_go(list(self._owned))
            self._owned.clear()
            await self._join()
            self._change_wake.set()
            return
        if seen.leaving:
            await self._let_go(seen.leaving)
            for number in seen.leaving:
                self._owned.pop(number, None)
            drop = partial(claims.release, group=self._group, member=self._member, partition_ids=seen.leaving)
            await self._file.write(drop, JOIN_TIMEOUT_S)
        if seen.free:
            take = partial(claims.take, group=self._group, member=self._member)
            taken = await self._file.write(take, JOIN_TIMEOUT_S)
            await self._begin([one for one in taken if one.partition_id not in self._cursors])

    async def _let_go(self, partition_ids: Collection[int]) -> None:
        gone = [self._cursors.pop(number).partition for number in partition_ids if number in self._cursors]
        if gone:
            await self._membership.revoked(gone)

    async def _begin(self, taken: Sequence[claims.Taken]) -> None:
        if not taken:
            return
        self._owned.update({item.partition_id: item.partition for item in taken})
        self._unsure -= {item.partition_id for item in taken}
        await self._membership.assigned([item.partition for item in taken])
        for item in taken:
            self._cursors[item.partition_id] = _Cursor(item.partition_id, item.partition, item.next_offset)
        self._records_wake.set()


def _record(partition: Partition, row: StoredRecord) -> Record:
    return Record(
        partition=partition,
        offset=row.position & _OFFSET_MASK,
        key=row.key,
        value=row.value,
        headers=unpack_headers(row.headers),
        published_at=datetime.fromtimestamp(row.published_ms / 1000, UTC),
    )
