"""Checkouts: the merchant registers a checkout session it created, before any money moves: whose it is, for which
order, and what it should cost (cases F20, F21, A37)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from sqlalchemy.ext.asyncio import AsyncSession

from consumer.console.operators.vocabulary import amount_problem
from consumer.console.operators.words import say
from consumer.errors import TermsDiffer, UsageError
from handlers.access.links import link
from handlers.fulfilment.order import Registration
from handlers.fulfilment.registration import (
    contradicted,
    hold_session,
    known_terms,
    price_of,
    register,
    register_session,
)

REGISTERED = "checkout.registered"
ACTOR = "query_api"


class Body(BaseModel):
    """The body of `PUT /api/checkouts/{session_id}`. Unknown fields are refused, as the service does."""

    model_config = ConfigDict(extra="forbid", strict=True)

    order_id: str = Field(min_length=1, max_length=128)
    customer: str | None = Field(default=None, min_length=1, max_length=255)
    expected_amount: str | None = Field(default=None, max_length=20)
    mode: Literal["payment", "subscription"] = "payment"
    price_id: str | None = Field(default=None, min_length=1, max_length=255)

    @field_validator("expected_amount")
    @classmethod
    def _is_an_amount(cls, value: str | None) -> str | None:
        problem = None if value is None else amount_problem(value)
        if problem is not None:
            raise ValueError(problem)
        return value

    @field_validator("order_id", "customer", "price_id")
    @classmethod
    def _is_text(cls, value: str | None) -> str | None:
        if value is not None and "\x00" in value:
            raise ValueError("no NUL character")
        return value


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """What was registered."""

    application: str
    session_id: str
    order_id: str
    customer: str | None
    expected_amount: str | None
    mode: str
    price_id: str | None = None


def parse(raw: bytes) -> Body:
    """The body, or UsageError that names the first thing wrong with it and no value."""
    try:
        return Body.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise UsageError(f"{where}: {first['msg']}") from error


async def register_checkout(
    session: AsyncSession, application: str, session_id: str, body: Body, now: datetime
) -> Checkout:
    """Write it in this transaction and tell the handlers by `checkout.registered`; the same again is no news. Raises
    TermsDiffer, and has written nothing, when the session is registered with other terms: what was not said before may
    be added, and another session of the order may have others (cases C18, F21)."""
    await hold_session(session, application, session_id)
    known = await known_terms(session, application, session_id)
    if known is not None:
        body = body.model_copy(update={"price_id": price_of(known, body.model_dump())})
    checkout = Checkout(application=application, session_id=session_id, **body.model_dump())
    data = {name: value for name, value in asdict(checkout).items() if name != "application"}
    if known is not None:
        if differing := contradicted(known, data):
            raise TermsDiffer(differing)
        if not contradicted(data, known):
            return checkout
    await write_checkout(session, checkout, now)
    why = "registered by the merchant"
    about = checkout.order_id
    await say(session, REGISTERED, about, application=application, by=ACTOR, reason=why, now=now, data=data)
    return checkout


async def write_checkout(session: AsyncSession, checkout: Checkout, at: datetime) -> None:
    """What is written at once, so that a payment that follows is compared with it; a rebuild writes it again, then."""
    said = Registration(
        session_id=checkout.session_id, customer=checkout.customer, expected_amount=checkout.expected_amount,
        mode=checkout.mode, price_id=checkout.price_id,
    )  # fmt: skip
    if checkout.mode == "subscription":  # no order will come of it (case F22)
        await register_session(session, checkout.application, checkout.order_id, said, at)
    else:
        await register(session, checkout.application, checkout.order_id, said, at)
    if checkout.customer is not None:
        await link(session, checkout.application, checkout.session_id, checkout.order_id, checkout.customer, at)
