"""Refusal: what the kit says to a handler that would go wrong in production, with the author's file and line."""

from __future__ import annotations

from collections.abc import Iterable

from consumer.errors import HandlerMisuse
from consumer.payload import is_known
from consumer.plugin import Handler
from consumer.work.inspection import mistyped
from consumer.work.place import Place, home_of


class Refused(AssertionError):
    """The kit refuses a handler: a test that passed with it would promise too much."""


class NetworkRefused(HandlerMisuse):
    """The handler opened a connection of its own; the kit lets none out."""

    code = "network_refused"


def refuse(handler: str, what: str, place: Place) -> Refused:
    """`shop:ship: what it does (shop/handler.py:12 in ship)`."""
    return Refused(f"{handler}: {what} ({place})")


def refuse_mistyped(handlers: Iterable[Handler]) -> None:
    """Raise Refused for a handler of a type that nobody sends: it would never run, and say nothing."""
    for handler in handlers:
        for pattern in handler.types:
            if not is_known(pattern):
                raise refuse(handler.name, mistyped(pattern), home_of(handler.function).start)
