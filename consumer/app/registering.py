"""Registering: a checkout session that a plugin creates through `ctx.payments` is registered like one that the merchant
registers by the query API: whose it is, for which order, and what it should cost (cases F20, F21, A37)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import structlog

from consumer.clock import Clock
from consumer.errors import ConsumerError, TermsDiffer
from consumer.ledger import Database
from consumer.payments import CheckoutSession, OnSession, SessionMismatch
from consumer.payments.requests import amount_text
from consumer.payments.terms import as_asked

_log = structlog.get_logger(__name__)


def registering(database: Database, application: str, clock: Clock) -> OnSession:
    """What the client calls with each session it created."""

    async def register(fields: Mapping[str, Any], session: CheckoutSession) -> None:
        """Write it. The session exists at the service, so a failure is told and not passed on; only a session that is
        registered with other terms is handed to nobody. Raises SessionMismatch."""
        from consumer.console.checkouts import parse, register_checkout  # for those that create sessions

        if session.id is None:
            return
        amount = fields.get("amount")
        said = {
            "order_id": fields["order_id"],
            "customer": fields.get("customer_reference"),
            "expected_amount": None if amount is None else amount_text(amount),
            "mode": fields["mode"],
            "price_id": fields.get("price_id"),
        }
        try:
            body = parse(orjson.dumps(said))
            async with database.transaction() as transaction:
                await register_checkout(transaction, application, session.id, body, clock.now())
        except TermsDiffer as error:
            raise SessionMismatch(session=session.without_link(), differing=as_asked(error.differing)) from error
        except ConsumerError as error:
            _log.error("checkout_not_registered", application=application, session=session.id, code=error.code)

    return register
