"""What `ctx.payments` offers to a handler, as types: the part of the API client that handlers have a use for.

The client itself is `consumer.payments.PaymentsClient`; a test holds it against these. Fields that the service does
not document are in `raw`. Its errors derive from `ConsumerError` and carry `code` and `retryable`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class RecordFace(Protocol):
    """One object of the service."""

    @property
    def id(self) -> str | None:
        """The service's id of it."""
        ...

    @property
    def raw(self) -> dict[str, Any]:
        """Everything the service said; read-only."""
        ...


class StatusFace(RecordFace, Protocol):
    """An object with a status; statuses are open, compare, never assume they are all."""

    @property
    def status(self) -> str | None:
        """The word as the service wrote it, None when it said none."""
        ...


class OrderFace(StatusFace, Protocol):
    """An order; `order_id` is the merchant's own id."""

    @property
    def order_id(self) -> str | None:
        """The merchant's own id."""
        ...

    @property
    def is_paid(self) -> bool:
        """Whether the status is `PAID`."""
        ...


class SessionFace(StatusFace, Protocol):
    """A checkout session; `url` is there only right after create and reissue."""

    @property
    def url(self) -> str | None:
        """Where the payer pays; None unless this answers a create or a reissue."""
        ...

    @property
    def expires_at(self) -> datetime | None:
        """When it can no longer be paid."""
        ...

    @property
    def order_id(self) -> str | None:
        """The merchant's own id of its order."""
        ...


class SubscriptionFace(StatusFace, Protocol):
    """A subscription."""

    @property
    def end_reason(self) -> str | None:
        """Why it ended; None while it goes on."""
        ...

    @property
    def cancel_at_period_end(self) -> bool | None:
        """Whether it ends with the paid period."""
        ...

    @property
    def will_end(self) -> bool:
        """Whether an end is scheduled, by the payer or by the merchant."""
        ...


class Readable(Protocol[T_co]):
    """Records that are read by id, or walked; a walk waits for its share of the request budget."""

    async def retrieve(self, record_id: str) -> T_co:
        """One record by the service's id."""
        ...

    def iterate(self) -> AsyncIterator[T_co]:
        """All records, page after page, each once."""
        ...


class OrdersFace(Readable[OrderFace], Protocol):
    """Orders of this application."""

    async def lookup(self, merchant_order_id: str) -> OrderFace:
        """One order by the merchant's own id."""
        ...


class SubscriptionsFace(Readable[SubscriptionFace], Protocol):
    """Subscriptions of this application."""

    async def cancel(
        self, subscription_id: str, *, at: Literal["now", "period_end"], idempotency_key: str | None = None
    ) -> RecordFace:
        """Stop charging, for good."""
        ...


class SessionsFace(Protocol):
    """Checkout sessions of this application."""

    async def retrieve(self, session_id: str) -> SessionFace:
        """One session by the service's id, without its `url`."""
        ...

    async def create(
        self,
        *,
        mode: Literal["payment", "subscription"],
        order_id: str,
        success_url: str,
        cancel_url: str,
        price_id: str | None = None,
        amount: str | Decimal | None = None,
        description: str | None = None,
        line_items: Sequence[Mapping[str, Any]] | None = None,
        customer_email: str | None = None,
        customer_reference: str | None = None,
        ui_mode: Literal["redirect", "popup"] | None = None,
        expires_at: datetime | str | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> SessionFace:
        """A session with its payment link in `url`; the same key never makes two."""
        ...

    async def create_from(self, fields: Mapping[str, Any], *, idempotency_key: str | None = None) -> SessionFace:
        """The same from a mapping of the API's fields."""
        ...

    async def cancel(self, session_id: str, *, idempotency_key: str | None = None) -> RecordFace:
        """Cancel an open session."""
        ...

    async def reissue_link(self, session_id: str, *, idempotency_key: str | None = None) -> SessionFace:
        """A new link for an open session; the old one ends."""
        ...


class PaymentsApi(Protocol):
    """`ctx.payments`: the API of the payments service, for the event's application, within the shared budget."""

    @property
    def orders(self) -> OrdersFace:
        """Orders."""
        ...

    @property
    def subscriptions(self) -> SubscriptionsFace:
        """Subscriptions."""
        ...

    @property
    def checkout_sessions(self) -> SessionsFace:
        """Checkout sessions."""
        ...

    @property
    def payments(self) -> Readable[StatusFace]:
        """Payments."""
        ...

    @property
    def products(self) -> Readable[RecordFace]:
        """Products of the merchant."""
        ...

    @property
    def prices(self) -> Readable[RecordFace]:
        """Prices of the merchant."""
        ...

    @property
    def events(self) -> Readable[RecordFace]:
        """Events, as far back as the service keeps them."""
        ...
