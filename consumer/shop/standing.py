"""Standing: what a shop may say of an order or of a customer's access, as the query API tells it; its errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from consumer.errors import ConsumerError

Fulfilment = Literal["none", "requested", "fulfilled", "failed"]


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def more(self) -> Mapping[str, Any]:
        """What the query API says beside the fields."""
        return self.model_extra or {}


class OrderStanding(_Told):
    """Where an order stands. `fulfilment`: `none` (not yet), `requested` (paid, on its way; also where an
    operator gave it up), `fulfilled` (every
    handler that fulfils is done), `failed` (one is dead, or it cannot be delivered). `status` is the service's word."""

    order_id: str
    status: str | None = None
    fulfilment: Fulfilment = "none"
    paid_at: datetime | None = None
    is_known: bool = True

    @property
    def is_paid(self) -> bool:
        """Whether it is proven; reaching `success_url` proves nothing (case F16)."""
        return self.paid_at is not None


class Entitlement(_Told):
    """One thing that a customer may use, or may not."""

    entitlement: str
    allowed: bool
    until: datetime | None = None
    reasons: tuple[str, ...] = ()


class AccessStanding(_Told):
    """What a customer may use now."""

    customer: str
    allowed: bool
    entitlements: tuple[Entitlement, ...] = ()

    def may(self, entitlement: str) -> bool:
        """Whether this one is allowed."""
        return any(one.allowed for one in self.entitlements if one.entitlement == entitlement)


class Checkout(BaseModel):
    """A checkout that was created: send the payer to `url`, and keep it: no later read shows it again."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    order_id: str
    url: str = Field(repr=False)
    expires_at: datetime | None = None


class QueryFailed(ConsumerError):
    """The consumer's query API did not answer as it should; ask again."""

    code = "query_failed"
    retryable = True


class NotRegistered(ConsumerError):
    """The session was created, and could not be registered with the consumer.

    `checkout` holds it. It may be paid all the same, and is then fulfilled after a read; `Shop.register` again has its
    amount compared and its customer known.
    """

    code = "not_registered"
    retryable = True

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        super().__init__(order_id=checkout.order_id, session_id=checkout.session_id)
