"""The shop's side: create a checkout, register it with the consumer, and ask where an order stands.

For a web shop outside the worker: it imports the payments client and values, nothing of the worker's."""

from consumer.errors import TermsDiffer
from consumer.payments import (
    AmbiguousWrite,
    CheckoutSession,
    Credentials,
    LinkUnavailable,
    OrderAlreadyPaid,
    PaymentsError,
    SessionMismatch,
    ValidationError,
)
from consumer.shop.client import Shop
from consumer.shop.query import QueryApi
from consumer.shop.standing import AccessStanding, Checkout, NotRegistered, OrderStanding, QueryFailed

__all__ = [
    "AccessStanding",
    "AmbiguousWrite",
    "Checkout",
    "CheckoutSession",
    "Credentials",
    "LinkUnavailable",
    "NotRegistered",
    "OrderAlreadyPaid",
    "OrderStanding",
    "PaymentsError",
    "QueryApi",
    "QueryFailed",
    "SessionMismatch",
    "Shop",
    "TermsDiffer",
    "ValidationError",
]
