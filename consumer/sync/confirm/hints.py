"""Hints: topic `deliveries` into the ledger: hints to be confirmed, and what was not understood into quarantine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.broker import Broker, Record, Subscription
from consumer.broker.base import Partition, next_offsets
from consumer.clock import Clock, until_tick
from consumer.errors import BrokerError, NotUnderstood
from consumer.events import Delivery
from consumer.ledger import Database, log_memory
from consumer.ledger.reading import hints, quarantine, room
from consumer.reason import Reason
from consumer.runtime.loop import Stage
from consumer.sync.confirm.policy import FLOOD_QUIET_S, MAX_BYTES, MAX_HINTS, UNKNOWN
from consumer.sync.confirm.quarantine_pruning import QuarantinePruning
from consumer.sync.provenance import other_body
from consumer.telemetry import way
from consumer.telemetry.logs import Condition
from consumer.telemetry.metrics import Metrics
from consumer.wire import unpack_delivery

LOG = structlog.get_logger()

GROUP = "confirm"
BODIES_MAX_BYTES = 8 * 1024 * 1024
"""Bodies that are in memory at once, unpacked."""
COUNT_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Sorted:
    """A batch of deliveries, apart: `hints` name an event to be confirmed, `refused` carry a reason code each."""

    hints: tuple[Delivery, ...]
    refused: tuple[tuple[Delivery, Reason], ...]


def in_parts(records: Sequence[Record], applications: Collection[str]) -> Iterator[Sorted]:
    """Tell hints from what can only be kept, with bodies of about BODIES_MAX_BYTES at a time: megabytes of zeros
    are small in the log, not in memory. Pure (cases I10, I15, I22)."""
    hints: list[Delivery] = []
    refused: list[tuple[Delivery, Reason]] = []
    held = 0
    for record in records:
        if held > BODIES_MAX_BYTES:
            yield Sorted(hints=tuple(hints), refused=tuple(refused))
            hints, refused, held = [], [], 0
        try:
            delivery = unpack_delivery(record.key, record.value, record.headers)
        except Exception as error:  # noqa: BLE001 - anybody may have written the record; it keeps none waiting
            if not isinstance(error, NotUnderstood | orjson.JSONDecodeError):
                LOG.error("record_broke_its_reading", error=type(error).__name__)  # noqa: TRY400 - its text may hold the sender's words
            refused.append((_unreadable(record), Reason.NOT_A_DELIVERY))
            continue
        held += len(delivery.raw)
        if delivery.problem is not None:
            refused.append((delivery, delivery.problem))
        elif delivery.event_id is None:
            refused.append((delivery, Reason.NO_EVENT_ID))
        elif delivery.application not in applications:
            refused.append((delivery, Reason.UNKNOWN_APPLICATION))
        else:
            hints.append(delivery)
    if hints or refused:
        yield Sorted(hints=tuple(hints), refused=tuple(refused))


def _unreadable(record: Record) -> Delivery:
    where = f"{record.partition.topic}/{record.partition.number}/{record.offset}"
    application = record.key.decode("utf-8", "replace").partition("/")[0]
    return Delivery(application=application, id=where, raw=record.value, received_at=record.published_at)


class HintConsumer(Stage):
    """Reads topic `deliveries` in group `confirm`. Every process may run one; it needs no API.

    `wakes` are set, by application, when hints of it were stored. `max_hints` and `max_bytes` bound what waits of each
    application: what a flood brings beyond it goes to quarantine as `flooded`, and what was real among it is found by
    backfill. `QuarantinePruning` holds the quarantine to `max_bytes`, too.
    """

    def __init__(
        self,
        broker: Broker,
        database: Database,
        *,
        topic: str,
        applications: Collection[str],
        clock: Clock,
        metrics: Metrics | None = None,
        wakes: Mapping[str, asyncio.Event] | None = None,
        group: str = GROUP,
        batch: int = 500,
        max_hints: int = MAX_HINTS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__("intake of deliveries", clock)
        self._broker = broker
        self._database = database
        self._topic = topic
        self._group = group
        self._applications = frozenset(applications)
        self.metrics = metrics or Metrics()
        for application in self._applications:
            for reason in Reason:  # a counter that begins with its first count shows no increase
                self.metrics.quarantined.labels(application, reason).inc(0)
        self._wakes = wakes or {}
        self._batch = batch
        self._max_hints = max_hints
        self._max_bytes = max_bytes
        self._held: dict[str, tuple[int, int]] = {}
        self._counted_at = float("-inf")
        self._pruning = QuarantinePruning(
            database, self._applications, clock=clock, metrics=self.metrics, max_bytes=max_bytes
        )
        self._subscription: Subscription | None = None
        self._flooded = Condition("hints_flooded", level="error", monotonic=clock.monotonic, quiet_s=FLOOD_QUIET_S)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; leaves the group at the end."""
        try:
            await super().run(stop)
        finally:
            await self.close()

    async def close(self) -> None:
        """Leave the group."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.stop()

    async def once(self, timeout_s: float = 0.5) -> int:
        """Take in one batch; returns how many deliveries it held. Raises BrokerError, LedgerError.

        Offsets are committed after the transactions: after a crash in between the batch comes again and changes
        nothing but when its hints are looked at. After an error the group is joined anew, so that what was not
        committed is read again.
        """
        subscription = await self._joined()
        try:
            records = await subscription.poll(self._batch, until_tick(self._clock, timeout_s))
            if records:
                await self._store(records, self._clock.now())
                await subscription.commit(next_offsets(records))
            if records or self._pruning.is_overfull:
                await self._pruning.prune()
            self._flooded.lapse()
            self._pruning.lapse()
        except BaseException:
            await self.close()
            raise
        return len(records)

    async def _step(self) -> float:
        await self.once()
        return 0.0

    async def _joined(self) -> Subscription:
        if self._subscription is None:
            subscription = self._broker.subscribe((self._topic,), self._group, on_replaced=self._replaced)
            try:
                await subscription.start()
            except BrokerError:
                await subscription.stop()
                raise
            self._subscription = subscription
        return self._subscription

    async def _replaced(self, partitions: frozenset[Partition]) -> None:
        """The log has lost the end of these, which was read: they are read from their beginning (`log_replaced`).
        Raises LedgerError: it is told again."""
        async with self._database.transaction() as session:
            await log_memory.note_replaced(session, self._topic, self._clock.now())
        numbers = sorted(one.number for one in partitions)
        LOG.error("log_replaced", topic=self._topic, group=self._group, partitions=numbers)

    async def _store(self, records: Sequence[Record], now: datetime) -> None:
        for part in in_parts(records, self._applications):
            await self._store_part(part, now)

    async def _store_part(self, found: Sorted, now: datetime) -> None:
        async with self._database.transaction() as session:
            kept, flooded = self._admitted(found.hints, await self._waiting(session))
            others = [other_body(delivery) for delivery in await hints.differing(session, kept)]
            refused = [
                *found.refused,
                *((delivery, Reason.FLOODED) for delivery in flooded),
                *((other, Reason.OTHER_BODY) for other in others),
            ]
            await hints.keep(session, kept, now)
            await quarantine.put(session, refused, now)
        for delivery, reason in refused:
            self.metrics.quarantined.labels(self._known(delivery.application), reason).inc()
        for delivery in kept:
            self.metrics.hints_taken.labels(delivery.application).inc()
            way.tell("hint_kept", delivery)
        if flooded:
            self._flooded.lasts("hints_flooded", deliveries=len(flooded))
        for name in {delivery.application for delivery in kept} & self._wakes.keys():
            self._wakes[name].set()

    async def _waiting(self, session: AsyncSession) -> dict[str, tuple[int, int]]:
        """How many hints of each application wait, and their bytes; counted anew every second at most."""
        if self._clock.monotonic() - self._counted_at >= COUNT_EVERY_S:
            self._held, self._counted_at = await hints.held(session), self._clock.monotonic()
            for application in self._applications:
                self.metrics.unproved_bytes.labels(application, "hints").set(self._held.get(application, (0, 0))[1])
        return self._held

    def _admitted(
        self, arrived: Sequence[Delivery], waiting: dict[str, tuple[int, int]]
    ) -> tuple[list[Delivery], list[Delivery]]:
        """Those for which there is room, and the others. Each application has a room of its own."""
        kept, flooded = list[Delivery](), list[Delivery]()
        for one in arrived:
            count, size = waiting.get(one.application, (0, 0))
            together = size + room.size_of(one)
            fits = count < self._max_hints and together <= self._max_bytes
            (kept if fits else flooded).append(one)
            if fits:
                waiting[one.application] = (count + 1, together)
        return kept, flooded

    def _known(self, application: str) -> str:
        return application if application in self._applications else UNKNOWN
