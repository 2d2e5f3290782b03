"""ServiceLists: the service's lists of orders, subscriptions and payments as observations, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from consumer.ledger.reading import read_requests
from consumer.payments import ApiError, Order, Page, Priority, Subscription
from consumer.sync.api import held_up_s
from consumer.sync.application import Application
from consumer.sync.observation import PAID, ObjectKind, Observation

PAGE: Final = 100
T = TypeVar("T")


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
        lists: dict[ObjectKind, Any] = {
            "order": self._resources.orders,
            "subscription": self._resources.subscriptions,
            "payment": self._resources.payments,
        }
        async for versions, page in self._versioned(lists[kind].pages(limit=PAGE)):
            yield [await self._listed(kind, one, versions + number) for number, one in enumerate(page.items)]

    async def _listed(self, kind: ObjectKind, one: Any, version: int) -> Listed:
        if isinstance(one, Order):
            return await self._order(one, version)
        if isinstance(one, Subscription) and one.id is not None and one.status is None:
            version, found = await self._singly(self._resources.subscriptions.retrieve, one.id)
            if found is None:
                return Unplaced(kind, one.id, is_paid=False)
            one = found
        return (
            Unplaced(kind, None, is_paid=False)
            if one.id is None
            else self._app.observation(kind, one.id, version, one.raw)
        )

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
        """An order by the merchant's id; what the list does not show is read singly (case B22)."""
        is_paid = order.status == PAID
        if (order.order_id is None or order.status is None) and order.id is not None:
            version, found = await self._singly(self._resources.orders.retrieve, order.id)
            if found is None:
                return Unplaced("order", order.id, is_paid)
            order = found
        if order.order_id is None:
            return Unplaced("order", order.id, is_paid or order.status == PAID)
        return self._app.observation("order", order.order_id, version, order.raw)

    async def _singly(self, retrieve: Callable[[str], Awaitable[T]], object_id: str) -> tuple[int, T | None]:
        """What a single read shows, with its version; None where it is refused. A read that failed and may come through
        the next time says nothing: it is raised."""
        version = await self._versions(1)
        try:
            return version, await retrieve(object_id)
        except ApiError as error:
            if error.retryable or held_up_s(error) is not None:
                raise
            return version, None
