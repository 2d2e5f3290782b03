"""ServiceLists: the service's lists of orders, subscriptions and payments as observations, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from consumer.ledger.reading import read_requests
from consumer.payments import ApiError, Order, Page, Payment, Priority, Subscription
from consumer.sync.api import held_up_s
from consumer.sync.application import Application
from consumer.sync.observation import PAID, ObjectKind, Observation

PAGE: Final = 100


@dataclass(frozen=True)
class Unplaced:
    """A record without the id it is kept by (an order's is the merchant's), also when it is read singly. `id` is the
    service's own, if there is one."""

    kind: ObjectKind
    id: str | None
    is_paid: bool


Listed = Observation | Unplaced


class ServiceLists:
    """The three lists of one application, read with reconcile's priority."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._resources = app.client.with_priority(Priority.RECONCILE)

    async def pages(self, kind: ObjectKind) -> AsyncGenerator[list[Listed], None]:
        """A list from its beginning to its end (cases B14, B15). Raises PaymentsError, LedgerError."""
        match kind:
            case "order":
                async for versions, page in self._versioned(self._resources.orders.pages(limit=PAGE)):
                    yield [await self._order(one, versions + number) for number, one in enumerate(page.items)]
            case "subscription":
                async for versions, page in self._versioned(self._resources.subscriptions.pages(limit=PAGE)):
                    yield [await self._subscription(one, versions + number) for number, one in enumerate(page.items)]
            case "payment":
                async for versions, page in self._versioned(self._resources.payments.pages(limit=PAGE)):
                    yield [self._payment(one, versions + number) for number, one in enumerate(page.items)]

    async def _versioned(self, pages: Any) -> AsyncGenerator[tuple[int, Page[Any]], None]:
        """Each page with the first of its versions, taken before the page was asked for (case A40)."""
        steps = aiter(pages)
        while True:
            versions = await self._versions(PAGE)
            try:
                page = await anext(steps)
            except StopAsyncIteration:
                return
            yield versions, page

    async def _versions(self, count: int) -> int:
        async with self._app.database.transaction() as session:
            return await read_requests.next_version(session, count)

    async def _order(self, order: Order, version: int) -> Listed:
        """An order by the merchant's id; what the list does not show is read singly (case B22). A read that failed and
        may come through the next time says nothing of the order: it is raised."""
        is_paid = order.status == PAID
        if (order.order_id is None or order.status is None) and order.id is not None:
            version = await self._versions(1)
            try:
                order = await self._resources.orders.retrieve(order.id)
            except ApiError as error:
                if error.retryable or held_up_s(error) is not None:
                    raise
                return Unplaced("order", order.id, is_paid)
        if order.order_id is None:
            return Unplaced("order", order.id, is_paid or order.status == PAID)
        return self._observation("order", order.order_id, version, order.raw)

    async def _subscription(self, one: Subscription, version: int) -> Listed:
        if one.id is not None and one.status is None:
            version = await self._versions(1)
            try:
                one = await self._resources.subscriptions.retrieve(one.id)
            except ApiError as error:
                if error.retryable or held_up_s(error) is not None:
                    raise
                return Unplaced("subscription", one.id, is_paid=False)
        return self._placed("subscription", one.id, version, one.raw)

    def _payment(self, one: Payment, version: int) -> Listed:
        return self._placed("payment", one.id, version, one.raw)

    def _placed(self, kind: ObjectKind, object_id: str | None, version: int, record: dict[str, Any]) -> Listed:
        if object_id is None:
            return Unplaced(kind, None, is_paid=False)
        return self._observation(kind, object_id, version, record)

    def _observation(self, kind: ObjectKind, object_id: str, version: int, record: dict[str, Any]) -> Observation:
        return Observation(
            application=self._app.name,
            kind=kind,
            object_id=object_id,
            version=version,
            read_at=self._app.clock.now(),
            record=record,
        )
