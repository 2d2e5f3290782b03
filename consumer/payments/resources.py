"""Resources: the 20 endpoints, grouped by what they are about."""

from __future__ import annotations

from typing import ClassVar, Literal

from consumer.payments.budget import CallKind
from consumer.payments.caller import Caller
from consumer.payments.errors import AmbiguousWrite, SubscriptionAlreadyEnded
from consumer.payments.listings import Listing, Stop
from consumer.payments.models import (
    ENDED_MERCHANT_CANCELED,
    SUBSCRIPTION_ENDED,
    Acknowledgement,
    Application,
    EventRecord,
    Order,
    Payment,
    Price,
    Product,
    Subscription,
)
from consumer.payments.requests import cancel_body, order_id, path_id


class ApplicationResource:
    """The calling application."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def retrieve(self) -> Application:
        """The application these credentials belong to (endpoint 1); its fields are not documented."""
        answer = await self._caller.read("/v1/application", "/v1/application")
        return answer.read_as(Application)


class Orders(Listing[Order]):
    """Orders of this application (endpoints 6-8)."""

    collection: ClassVar[str] = "orders"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, Order)

    async def lookup(self, merchant_order_id: str) -> Order:
        """One order by the merchant's own id (endpoint 7; case F26). Raises ResourceNotFound when none is shown."""
        route = "/v1/orders/lookup"
        answer = await self._caller.read(route, route, (("order_id", order_id(merchant_order_id)),))
        return answer.read_as(Order, lambda one: one.is_order(merchant_order_id))


class Payments(Listing[Payment]):
    """Payments of this application (endpoints 9-10)."""

    collection: ClassVar[str] = "payments"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, Payment)


class Products(Listing[Product]):
    """Products of the merchant (endpoints 14-15)."""

    collection: ClassVar[str] = "products"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, Product)


class Prices(Listing[Price]):
    """Prices of the merchant (endpoints 16-17)."""

    collection: ClassVar[str] = "prices"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, Price)


class Events(Listing[EventRecord]):
    """Events of this application (endpoints 18-19); cursors are `evt_` ids, only null ends the list."""

    collection: ClassVar[str] = "events"
    stop: ClassVar[Stop] = Stop.NULL

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, EventRecord)


class Subscriptions(Listing[Subscription]):
    """Subscriptions of this application (endpoints 11-13)."""

    collection: ClassVar[str] = "subscriptions"

    def __init__(self, caller: Caller) -> None:
        super().__init__(caller, Subscription)

    async def cancel(
        self, subscription_id: str, *, at: Literal["now", "period_end"], idempotency_key: str | None = None
    ) -> Acknowledgement:
        """Stop charging a subscription, for good (endpoint 13).

        An unanswered cancel is repeated with its key and then decided by a read. Raises SubscriptionAlreadyEnded,
        ValidationError (`at`), AmbiguousWrite when the read does not show it either.
        """
        try:
            return await self._canceled(subscription_id, at, idempotency_key)
        finally:
            if self._caller.on_evidence is not None:
                await self._caller.on_evidence("subscription", subscription_id)

    async def _canceled(self, subscription_id: str, at: str, idempotency_key: str | None) -> Acknowledgement:
        route = "/v1/subscriptions/{id}/cancel"
        try:
            answer = await self._caller.write(
                route,
                f"/v1/subscriptions/{path_id(subscription_id)}/cancel",
                operation=f"subscriptions.cancel/{subscription_id}",
                body=cancel_body(at),
                key=idempotency_key,
                body_needed=False,
            )
        except SubscriptionAlreadyEnded as error:
            if error.after_ambiguous and await self._shows(subscription_id, at):
                return Acknowledgement()
            raise
        except AmbiguousWrite:
            if await self._shows(subscription_id, at):
                return Acknowledgement()
            raise
        return Acknowledgement.read(answer.document, answer.raw)

    async def _shows(self, subscription_id: str, at: str) -> bool:
        seen = await self.retrieve(subscription_id)
        if seen.status == SUBSCRIPTION_ENDED:
            return seen.end_reason == ENDED_MERCHANT_CANCELED
        return at == "period_end" and seen.merchant_cancel_requested is True


class Webhook:
    """The application's webhook endpoint."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def test_event(self, *, idempotency_key: str | None = None) -> Acknowledgement:
        """Have a test event sent to the webhook endpoint (endpoint 20): 10 an hour, shared with the dashboard.

        Raises RateLimitError or BudgetExhausted when they are used up; other calls are not held up by that.
        """
        route = "/v1/webhook/test-event"
        answer = await self._caller.write(
            route,
            route,
            operation="webhook.test_event",
            key=idempotency_key,
            kind=CallKind.TEST_EVENT,
            body_needed=False,
        )
        return Acknowledgement.read(answer.document, answer.raw)
