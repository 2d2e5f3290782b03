"""ServiceLists: the service's lists of orders, subscriptions and payments as observations, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

from consumer.ledger.reading.observation import PAID, ObjectKind, Observation
from consumer.payments import ApiError, Priority
from consumer.sync.api import shown
from consumer.sync.application import Application

PAGE: Final = 100


@dataclass(frozen=True)
class Unplaced:
    """A record without the id it is kept by (an order's is the merchant's), also when it is read singly. `id` is the
    service's own, if there is one."""

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
        listing: Any = {
            "order": self._resources.orders,
            "subscription": self._resources.subscriptions,
            "payment": self._resources.payments,
        }[kind]
        steps = aiter(listing.pages(limit=PAGE))
        versions, page = await self._app.versions(PAGE), await anext(steps, None)
        while page is not None:
            yield [await self._listed(kind, one, versions + number, listing) for number, one in enumerate(page.items)]
            versions, page = await self._app.versions(PAGE), await anext(steps, None)

    async def _listed(self, kind: ObjectKind, one: Any, version: int, listing: Any) -> Listed:
        """A record by the id it is kept by. What the list does not show of an order or a subscription is read singly
        (case B22)."""
        is_paid = kind == "order" and one.status == PAID
        is_thin = kind != "payment" and (one.status is None or _name(kind, one) is None)
        if is_thin and one.id is not None:
            version = await self._app.versions()
            found = await _single(listing, one.id)
            if found is None:
                return Unplaced(one.id, is_paid)
            one = found
        name = _name(kind, one)
        if name is None:
            return Unplaced(one.id, is_paid or (kind == "order" and one.status == PAID))
        return self._app.observation(kind, name, version, one.raw)


async def _single(listing: Any, object_id: str) -> Any:
    """The record; None for one that cannot be had: that keeps back it alone, not the rest of the list."""
    try:
        return await shown(listing.retrieve(object_id))
    except ApiError as error:
        if error.retryable:
            raise
        return None


def _name(kind: ObjectKind, one: Any) -> str | None:
    """The id it is kept by: an order's is the merchant's."""
    found: str | None = one.order_id if kind == "order" else one.id
    return found
