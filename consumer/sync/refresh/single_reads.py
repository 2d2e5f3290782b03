"""Single reads: a request for a read, answered by a read of that very object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import structlog

from consumer.ledger.reading.observation import ObjectKind, Observation, shape
from consumer.ledger.tables import ReadRow
from consumer.payments import PaymentsError, Resources, UnexpectedAnswer
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
            seen = await self._read(row, version)
        except PaymentsError as error:
            if not self._cooldown.take(error):
                await self._answers.failed(row, version, error)
            return
        self._answers.service_answered()
        whole = [one for one in seen if self.odd.is_whole(one)]
        if any(one.kind == "order" or not whole for one in seen if one not in whole):
            await self._answers.put_off(row, UnexpectedAnswer("the record cannot be kept"))
            return
        await self._answers.found([(row, whole)], version)
        answered.append(row)

    async def _read(self, row: ReadRow, version: int) -> tuple[Observation, ...]:
        """The answer of the service: of a session itself and its order, if it has one; nothing where it shows no object
        that somebody waits for."""
        match row.kind:
            case "subscription":
                subscription = await self._resources.subscriptions.retrieve(row.object_id)
                return self._seen(row, "subscription", row.object_id, version, subscription.raw)
            case "order":
                order = await self._resources.orders.lookup(row.object_id)
                self._note_shape(order.raw)
                return self._seen(row, "order", row.object_id, version, order.raw)
            case "service_order":
                order = await self._resources.orders.retrieve(row.object_id)
                return self._of_order(row, order.order_id, version, order.raw)
            case "session":
                found = await self._resources.checkout_sessions.retrieve(row.object_id)
                session = self._seen(row, "session", row.object_id, version, found.raw)
                if found.order is None:
                    return session  # a subscription session has no order (cases F22, F23)
                order_id = found.order.order_id or found.order_id
                return self._of_order(row, order_id, version, found.order.raw) + session
        LOG.error("read_of_unknown_kind", application=row.application, kind=row.kind)
        return ()

    def _of_order(
        self, row: ReadRow, order_id: str | None, version: int, record: dict[str, Any]
    ) -> tuple[Observation, ...]:
        """An order read otherwise than by the merchant's id; without that id nobody's order can be told from it."""
        if order_id is None:
            self._app.metrics.reads_without_order_id.labels(row.application).inc()
            LOG.warning("order_without_merchants_id", application=row.application)
            return ()
        return self._seen(row, "order", order_id, version, record)

    def _seen(
        self, row: ReadRow, kind: ObjectKind, object_id: str, version: int, record: dict[str, Any]
    ) -> tuple[Observation, ...]:
        return (self._app.observation(kind, object_id, version, record, row.traceparent),)

    def _note_shape(self, record: dict[str, Any]) -> None:
        self.order_shapes[shape(record)] = None
        if len(self.order_shapes) > SHAPES_MAX:
            self.order_shapes.pop(next(iter(self.order_shapes)))
