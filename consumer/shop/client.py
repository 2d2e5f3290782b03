"""Shop: a checkout from the shop's side: created at the service, registered with the consumer, followed to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from decimal import Decimal
from types import TracebackType
from typing import Any, Final, Literal, Self

from consumer.errors import TermsDiffer
from consumer.payments import (
    CheckoutSession,
    Credentials,
    OrderAlreadyPaid,
    PaymentsClient,
    SessionMismatch,
    UnexpectedAnswer,
)
from consumer.payments.requests import amount_text
from consumer.payments.terms import as_asked
from consumer.shop.query import QueryApi
from consumer.shop.standing import AccessStanding, Checkout, NotRegistered, OrderStanding, QueryFailed

REGISTER_TRIES: Final = 3
REGISTER_AGAIN_S: Final = 0.3


class Shop:
    """Use as `async with`, one for the whole life of the web shop: it shares the connections and the request budget.

    `payments`: the service's client; `query_api`: the consumer's. `Shop.at` makes both from addresses and secrets.
    """

    def __init__(self, payments: PaymentsClient, query_api: QueryApi) -> None:
        self.payments = payments
        self.query_api = query_api
        self._stack = AsyncExitStack()

    @classmethod
    def at(
        cls,
        base_url: str,
        app_id: str,
        app_secret: str,
        *,
        query_api: str,
        token: str | None = None,
        application: str | None = None,
    ) -> Shop:
        """`base_url`, `app_id`, `app_secret`: as SVC_BASE_URL, SVC_APP_ID, SVC_APP_SECRET. `query_api`: where the role
        `console` listens, `token` its CONSUMER_API_TOKEN, `application` what the consumer calls this one; None: its
        only one, or its `default`. Raises SettingsError."""
        secrets = [one.strip() for one in app_secret.split(",") if one.strip()]
        return cls(
            PaymentsClient(base_url, Credentials(app_id, secrets)), QueryApi(query_api, token, application=application)
        )

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.payments)
        await self._stack.enter_async_context(self.query_api)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def checkout(
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
        customer: str | None = None,
        customer_email: str | None = None,
        ui_mode: Literal["redirect", "popup"] | None = None,
        expires_at: datetime | str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Checkout:
        """Create a checkout session and register it; send the payer to its `url`. The same again, while it is open,
        gives a new link to the same sale. `customer` is your own reference of the payer.

        Raises OrderAlreadyPaid (the order is read then, so that it is fulfilled if it was not), SessionMismatch (an
        open session of this order has other terms, as the service shows, this process remembers, or any other
        registered), NotRegistered (it is created all the same), or another PaymentsError.
        """
        try:
            session = await self.payments.checkout_sessions.create(
                mode=mode, order_id=order_id, success_url=success_url, cancel_url=cancel_url, price_id=price_id,
                amount=amount, description=description, line_items=line_items, customer_email=customer_email,
                customer_reference=customer, ui_mode=ui_mode, expires_at=expires_at, metadata=metadata,
            )  # fmt: skip
        except OrderAlreadyPaid:
            await self._have_it_read(order_id)
            raise
        made = _checkout(session, order_id)
        await self.register(
            made, customer=customer, expected_amount=None if amount is None else amount_text(amount), mode=mode,
            price_id=price_id,
        )  # fmt: skip
        return made

    async def register(
        self, made: Checkout, *, customer: str | None = None, expected_amount: str | None = None, mode: str = "payment",
        price_id: str | None = None,
    ) -> None:  # fmt: skip
        """Tell the consumer of a checkout; `checkout` does it by itself. Raises NotRegistered, and SessionMismatch when
        the session is registered with other terms: send nobody to its link."""
        for tried in range(REGISTER_TRIES):
            try:
                await self.query_api.register(
                    made.session_id,
                    order_id=made.order_id,
                    customer=customer,
                    expected_amount=expected_amount,
                    mode=mode,
                    price_id=price_id,
                )
                return
            except TermsDiffer as error:
                raise SessionMismatch(session=_unlinked(made), differing=as_asked(error.differing)) from error
            except QueryFailed as error:
                if tried == REGISTER_TRIES - 1:
                    raise NotRegistered(made) from error
                await asyncio.sleep(REGISTER_AGAIN_S)

    async def order(self, order_id: str) -> OrderStanding:
        """Where an order stands: for the page that says "processing". Raises QueryFailed."""
        return await self.query_api.order(order_id)

    async def access(self, customer: str) -> AccessStanding:
        """What a customer may use. Raises QueryFailed."""
        return await self.query_api.access(customer)

    async def _have_it_read(self, order_id: str) -> None:
        """A hint, not a need: a walk finds it sooner or later (case F27)."""
        try:
            await self.query_api.read_order(order_id)
        except QueryFailed:
            return


def _checkout(session: CheckoutSession, order_id: str) -> Checkout:
    if session.id is None or session.url is None:
        raise UnexpectedAnswer("the service's answer names no session, or has no link")
    return Checkout(session_id=session.id, order_id=order_id, url=session.url, expires_at=session.expires_at)


def _unlinked(made: Checkout) -> CheckoutSession:
    return CheckoutSession.read({"id": made.session_id, "order_id": made.order_id})
