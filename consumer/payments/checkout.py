"""CheckoutSessions: create, read, cancel and reissue (endpoints 2-5; cases C18-C20, C26, U24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import orjson

from consumer.payments.caller import Caller
from consumer.payments.errors import (
    AmbiguousWrite,
    ApiError,
    LinkUnavailable,
    OrderAlreadyPaid,
    PaymentsError,
    ResourceNotFound,
    SessionMismatch,
    SessionNotCancelable,
    UnexpectedAnswer,
)
from consumer.payments.models import SESSION_CANCELED, SESSION_OPEN, Acknowledgement, CheckoutSession, Order
from consumer.payments.requests import path_id, session_body
from consumer.payments.resources import Orders, Prices
from consumer.payments.terms import costs_otherwise, differing, priced_elsewhere

ROUTE = "/v1/checkout-sessions"


class CheckoutSessions:
    """Checkout sessions of this application."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

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
    ) -> CheckoutSession:
        """A session with its payment link in `url` (endpoint 2); keep that link, no read shows it again.

        When a session of this order_id is already open, that session is returned with a reissued link; if a link
        cannot be had, LinkUnavailable tells why, and SessionMismatch that the open session has other terms. An
        unanswered create is repeated with its key and body, then the order is looked up. Raises ValidationError
        before sending, or the documented errors; AmbiguousWrite when nobody knows.
        """
        fields = {name: value for name, value in locals().items() if name not in ("self", "idempotency_key")}
        return await self.create_from(fields, idempotency_key=idempotency_key)

    async def create_from(self, fields: Mapping[str, Any], *, idempotency_key: str | None = None) -> CheckoutSession:
        """The same from a mapping of the spec's request fields; unknown fields are refused (case C22)."""
        try:
            session = await self._created(fields, idempotency_key)
        except OrderAlreadyPaid:
            if self._caller.on_evidence is not None:
                await self._caller.on_evidence("order", fields["order_id"])
            raise
        if self._caller.on_session is not None:
            await self._caller.on_session(fields, session)
        return session

    async def _created(self, fields: Mapping[str, Any], idempotency_key: str | None) -> CheckoutSession:
        body = session_body(fields, self._caller.clock.now())
        try:
            session = await self._post(body, fields["order_id"], idempotency_key)
        except AmbiguousWrite as error:
            session = await self._after_ambiguous(error, body, fields, idempotency_key)
        if self._is_lapsed(session):
            # The answer to an old, unfinished try was played back: what it opened is over, so this is a new create.
            if idempotency_key is not None:
                reason = UnexpectedAnswer("the idempotency key plays back a session that is over: use a new key")
                raise LinkUnavailable(session=session, reason=reason)
            session = await self._post(body, fields["order_id"], None)
        if session.url is None:
            return await self._with_link(session, orjson.loads(body))
        if session.id is not None:
            await self._caller.terms.keep(session.id, orjson.loads(body))
        return session

    async def retrieve(self, session_id: str) -> CheckoutSession:
        """One session with its embedded order (endpoint 3); its `url` is always None."""
        answer = await self._caller.read(f"{ROUTE}/{{id}}", f"{ROUTE}/{path_id(session_id)}")
        return answer.read_as(CheckoutSession, lambda one: one.is_called(session_id))

    async def cancel(self, session_id: str, *, idempotency_key: str | None = None) -> Acknowledgement:
        """Cancel an open session (endpoint 4). The order stays PENDING; a late payment can still make it PAID.

        An unanswered cancel is repeated with its key and then decided by a read. Raises SessionNotCancelable,
        PaymentInProgress, AmbiguousWrite.
        """
        try:
            answer = await self._caller.write(
                f"{ROUTE}/{{id}}/cancel",
                f"{ROUTE}/{path_id(session_id)}/cancel",
                operation=f"checkout_sessions.cancel/{session_id}",
                key=idempotency_key,
                body_needed=False,
            )
        except SessionNotCancelable as error:
            if error.after_ambiguous and await self._is_canceled(session_id):
                return Acknowledgement()
            raise
        except AmbiguousWrite:
            if await self._is_canceled(session_id):
                return Acknowledgement()
            raise
        return Acknowledgement.read(answer.document, answer.raw)

    async def reissue_link(self, session_id: str, *, idempotency_key: str | None = None) -> CheckoutSession:
        """The session with a new link in `url`; the old link stops working (endpoint 5).

        Raises SessionNotReissuable (not open, or under 120 seconds left: wait for its expiry and create anew),
        PaymentInProgress, CheckoutUnavailable.
        """
        answer = await self._caller.write(
            f"{ROUTE}/{{id}}/link",
            f"{ROUTE}/{path_id(session_id)}/link",
            operation=f"checkout_sessions.link/{session_id}",
            key=idempotency_key,
        )
        return CheckoutSession.read(answer.document, answer.raw)

    async def _post(self, body: bytes, order_id: str, key: str | None, *, kept: str | None = None) -> CheckoutSession:
        answer = await self._caller.write(ROUTE, ROUTE, operation=_operation(order_id), body=body, key=key, kept=kept)
        return CheckoutSession.read(answer.document, answer.raw)

    async def _after_ambiguous(
        self, error: AmbiguousWrite, body: bytes, fields: Mapping[str, Any], key: str | None
    ) -> CheckoutSession:
        """No try was answered: look the order up; if it is there unpaid, the same key once more (case C26)."""
        if fields["mode"] == "subscription":
            raise error  # creates no order that could be looked up (spec, Subscription session rules)
        order = await self._looked_up(fields["order_id"], error)
        if order is None:
            raise error
        if order.is_paid:
            if key is None:
                await self._caller.keys.settle(
                    self._caller.application, _operation(fields["order_id"]), error.idempotency_key
                )
            raise OrderAlreadyPaid("the order is already paid, a read shows") from error
        try:
            return await self._post(body, fields["order_id"], key, kept=error.idempotency_key)
        except AmbiguousWrite as again:
            raise AmbiguousWrite(
                "the order is there, but the session could not be had: repeat with the same idempotency key",
                idempotency_key=error.idempotency_key,
                order=order,
                route=ROUTE,
            ) from again

    async def _looked_up(self, order_id: str, ambiguous: AmbiguousWrite) -> Order | None:
        try:
            return await Orders(self._caller).lookup(order_id)
        except ResourceNotFound:
            return None
        except PaymentsError:
            raise ambiguous from None

    async def _with_link(self, session: CheckoutSession, asked: Mapping[str, Any]) -> CheckoutSession:
        """An open session of the same order_id came back without its link: check its terms, reissue (case C18)."""
        remembered = None if session.id is None else await self._caller.terms.of(session.id)
        if others := differing(asked, session.raw, remembered):
            raise SessionMismatch(session=session, differing=others)
        if priced_elsewhere(asked, session.raw, remembered):
            await self._check_price(asked["price_id"], session)
        if session.id is None or session.status not in (SESSION_OPEN, None):
            raise LinkUnavailable(session=session, reason=UnexpectedAnswer("the session returned is not open"))
        try:
            linked = await self.reissue_link(session.id)
        except (ApiError, AmbiguousWrite) as error:
            raise LinkUnavailable(session=session, reason=error) from error
        if linked.url is None:
            raise LinkUnavailable(session=session, reason=UnexpectedAnswer("the reissue brought no link"))
        return linked

    async def _check_price(self, price_id: str, session: CheckoutSession) -> None:
        """Nothing else tells whether this session sells that price. One that cannot be read leaves it open, and nobody
        is sent to pay."""
        try:
            price = await Prices(self._caller).retrieve(price_id)
        except PaymentsError as error:
            raise LinkUnavailable(session=session, reason=error) from error
        if costs_otherwise(price.raw, session.raw):
            raise SessionMismatch(session=session, differing=("price_id",))

    def _is_lapsed(self, session: CheckoutSession) -> bool:
        return session.expires_at is not None and session.expires_at <= self._caller.clock.now()

    async def _is_canceled(self, session_id: str) -> bool:
        return (await self.retrieve(session_id)).status == SESSION_CANCELED


def _operation(order_id: str) -> str:
    """What the key of a create is stored by."""
    return f"checkout_sessions.create/{order_id}"
