"""Single reads: a request for a read, answered by a read of that very object.

What is shown is placed by the ids that it shows itself: an order is looked up by either of its ids, and the service may
take one for another. Who asked for what it does not show is told so (see `answers`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from consumer.ledger.reading.observation import ObjectKind, Observation, shape
from consumer.ledger.tables import TOLD, ReadRow
from consumer.payments import (
    CheckoutSession,
    NotShown,
    Order,
    PaymentsError,
    Record,
    Resources,
    Subscription,
    UnexpectedAnswer,
)
from consumer.sync.api import Cooldown
from consumer.sync.application import Application
from consumer.sync.refresh.answers import Answers
from consumer.sync.refresh.odd_records import OddRecords
from consumer.sync.refresh.schedule import ReadQuota
from consumer.telemetry import way

LOG = structlog.get_logger()

SHAPES_MAX: Final = 8


class SingleReads:
    """Reads the objects of one application one by one. `order_shapes`: which fields orders that were read so had."""

    def __init__(
        self, app: Application, resources: Resources, answers: Answers, quota: ReadQuota, cooldown: Cooldown
    ) -> None:
        self._app = app
        self._resources = resources
        self._answers = answers
        self._quota = quota
        self._cooldown = cooldown
        self.order_shapes: dict[str, None] = {}
        self.odd = OddRecords()

    async def work_off(self, waiting: Iterator[ReadRow], answered: list[ReadRow]) -> None:
        """Do the waiting reads, as far as the quota goes and until a failure holds all calls up."""
        for row in waiting:
            if self._cooldown.error is not None:
                return
            if await self._quota.allows(row.kind):
                await self.do(row, answered)

    async def do(self, row: ReadRow, answered: list[ReadRow]) -> None:
        """Do one, for which the quota has a request. Raises LedgerError, BrokerError."""
        with way.on_the_way_of_trace(row.traceparent):
            await self._do(row, answered)

    async def _do(self, row: ReadRow, answered: list[ReadRow]) -> None:
        version = await self._answers.version([row])
        try:
            record = await self._read(row)
        except PaymentsError as error:
            if not self._cooldown.take(error):
                if isinstance(error, NotShown) and row.code != TOLD:  # else it has come before
                    await self._tell_beside(row, version, error.record)
                await self._answers.failed(row, version, error)
            return
        self._answers.service_answered()
        seen = self._seen(row, version, record, called=row.object_id if row.kind == "order" else None)
        whole = [one for one in seen if self.odd.is_whole(one)]
        if any(one.kind == "order" or not whole for one in seen if one not in whole):
            await self._answers.put_off(row, UnexpectedAnswer("the record cannot be kept"))
            return
        await self._answers.found([(row, whole)], version)
        answered.append(row)

    async def _read(self, row: ReadRow) -> Record:
        """The answer of the service. Raises PaymentsError."""
        match row.kind:
            case "subscription":
                return await self._resources.subscriptions.retrieve(row.object_id)
            case "order":
                order = await self._resources.orders.lookup(row.object_id)
                self._note_shape(order.raw)
                return order
            case "service_order":
                return await self._resources.orders.retrieve(row.object_id)
            case "session":
                return await self._resources.checkout_sessions.retrieve(row.object_id)
        LOG.error("read_of_unknown_kind", application=row.application, kind=row.kind)
        return Record()

    async def _tell_beside(self, row: ReadRow, version: int, record: Record) -> None:
        """What came in place of what was asked for, if anything: it is another's."""
        if record.id is None and (not isinstance(record, Order) or record.order_id is None):
            return
        self._answers.service_answered()
        seen = self._seen(row, version, record)
        await self._answers.beside([one for one in seen if self.odd.is_whole(one)])

    def _seen(
        self, row: ReadRow, version: int, record: Record, *, called: str | None = None
    ) -> tuple[Observation, ...]:
        """What a record shows, by the ids in it: of a session itself and its order, if it has one. `called`: the
        merchant's id of an order that shows none."""
        match record:
            case Subscription(id=str() as id_):
                return (self._observation("subscription", id_, version, row, record),)
            case Order():
                return self._of_order(row, record.order_id or called, version, record)
            case CheckoutSession(id=str() as id_):
                session = self._observation("session", id_, version, row, record)
                if record.order is None or record.order.is_blank:
                    return (session,)  # a subscription session has no order (cases F22, F23)
                order_id = record.order.order_id or record.order_id
                return (*self._of_order(row, order_id, version, record.order), session)
        return ()

    def _of_order(self, row: ReadRow, order_id: str | None, version: int, order: Order) -> tuple[Observation, ...]:
        """Without the merchant's id nobody's order can be told from it."""
        if order_id is None:
            self._app.metrics.reads_without_order_id.labels(row.application).inc()
            LOG.warning("order_without_merchants_id", application=row.application)
            return ()
        return (self._observation("order", order_id, version, row, order),)

    def _observation(self, kind: ObjectKind, object_id: str, version: int, row: ReadRow, record: Record) -> Observation:
        return self._app.observation(kind, object_id, version, record.raw, row.traceparent)

    def _note_shape(self, record: Mapping[str, object]) -> None:
        self.order_shapes[shape(record)] = None
        if len(self.order_shapes) > SHAPES_MAX:
            self.order_shapes.pop(next(iter(self.order_shapes)))
