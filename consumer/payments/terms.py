"""Terms: what an open checkout session was created with, compared with what is asked for now (cases C18, U24).

A create with the order id of an open session answers that session, whatever was asked for. Its link may be handed out
only if it is the same sale: mode, order, price or amount, customer, and the line items' sum. What the answer does not
show is compared with what we remember of our own create; hashed, for a day, as no session lives longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import orjson

from consumer.payments.shared_budget import BudgetStore

TERMS: Final = ("mode", "order_id", "price_id", "amount", "customer_reference", "customer_email", "line_items")
KEPT_S: Final = 90_000.0
BUCKETS: Final = 4096
BUCKET_MAX: Final = 500
REGISTERED_AS: Final = {"customer": "customer_reference", "expected_amount": "amount"}
PRICE_AMOUNTS: Final = ("amount", "unit_amount")
"""Where a price may say what it asks for: its record is not documented."""


def differing(
    asked: Mapping[str, Any], shown: Mapping[str, Any], remembered: Mapping[str, str] | None
) -> tuple[str, ...]:
    """The names of the terms that are others than asked for. `remembered`: `fingerprints` of the session's own create,
    None where we know of none. A null is the word of the service unless we know better. A term that the answer leaves
    out, and of which we know nothing (its create was made elsewhere), cannot be compared; of a price, see
    `priced_elsewhere`."""
    return tuple(name for name in TERMS if _differs(name, _plain(name, asked.get(name)), shown, remembered))


def _differs(name: str, wanted: str | None, shown: Mapping[str, Any], remembered: Mapping[str, str] | None) -> bool:
    found = _plain(name, shown.get(name))
    if found is not None and not (name == "amount" and wanted is None):  # a price may well be shown with its amount
        return wanted != found
    if remembered is not None:
        return remembered.get(name) != (None if wanted is None else _fingerprint(name, wanted))
    return wanted is not None and name in shown and shown[name] is None


def priced_elsewhere(asked: Mapping[str, Any], shown: Mapping[str, Any], remembered: Mapping[str, str] | None) -> bool:
    """Whether only the price itself can tell if it is that sale: a price was asked for, the session shows its amount
    alone, and its create was made elsewhere."""
    if remembered is not None or _plain("price_id", shown.get("price_id")) is not None:
        return False
    return asked.get("price_id") is not None and _plain("amount", shown.get("amount")) is not None


def costs_otherwise(price: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
    """Whether this price, of which a session sells one, is another amount than the session shows. Of a price whose
    record says no amount that is not known; neither is which of two prices of one amount was sold."""
    amounts = (_plain("amount", price.get(name)) for name in PRICE_AMOUNTS)
    amount = next((one for one in amounts if one is not None), None)
    return amount is not None and amount != _plain("amount", shown.get("amount"))


def as_asked(registered: Sequence[str]) -> tuple[str, ...]:
    """The terms that a registration with the consumer names so."""
    return tuple(REGISTERED_AS.get(name, name) for name in registered)


def fingerprints(asked: Mapping[str, Any]) -> dict[str, str]:
    """What is remembered of a create: a hash of each term that was given."""
    plain = {name: _plain(name, asked.get(name)) for name in TERMS}
    return {name: _fingerprint(name, value) for name, value in plain.items() if value is not None}


def _plain(name: str, value: Any) -> str | None:
    """A term in one spelling: 10 and 10.000000 are the same. None where it is not given, or is nothing comparable."""
    if name == "line_items":
        return _sum(value) if isinstance(value, Sequence) and not isinstance(value, str) and value else None
    if not isinstance(value, str):
        return None
    if name == "amount":
        return _decimal(value)
    return value.casefold() if name == "customer_email" else value


def _sum(items: Sequence[Any]) -> str | None:
    try:
        return _decimal(str(sum(Decimal(item["amount"]) * item["quantity"] for item in items)))
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None


def _decimal(text: str) -> str | None:
    try:
        return format(Decimal(text).normalize(), "f")
    except (ArithmeticError, ValueError):
        return None


def _fingerprint(name: str, plain: str) -> str:
    return hashlib.sha256(f"{name}\0{plain}".encode()).hexdigest()[:16]


class SessionTerms:
    """The terms of the sessions this application created lately, in the store that also holds the budget. A fixed
    number of texts, each with a few sessions: what is a day old is forgotten whenever a text is written."""

    def __init__(self, store: BudgetStore, application: str) -> None:
        self._store = store
        self._application = application

    async def keep(self, session_id: str, asked: Mapping[str, Any]) -> None:
        """Remember what this session was created with."""
        bucket, name = self._place(session_id)

        def step(texts: Mapping[str, str], now: float) -> tuple[Mapping[str, str], None]:
            kept = {one: entry for one, entry in _entries(texts.get(bucket)).items() if abs(now - entry[1]) < KEPT_S}
            kept.pop(name, None)
            newest = list(kept.items())[-BUCKET_MAX + 1 :]
            return {bucket: orjson.dumps({**dict(newest), name: [fingerprints(asked), now]}).decode()}, None

        await self._store.update([bucket], step)

    async def of(self, session_id: str) -> Mapping[str, str] | None:
        """What is remembered of this session, or None."""
        bucket, name = self._place(session_id)

        def step(texts: Mapping[str, str], _now: float) -> tuple[Mapping[str, str], Mapping[str, str] | None]:
            found = _entries(texts.get(bucket)).get(name)
            return {}, None if found is None else found[0]

        return await self._store.update([bucket], step)

    def _place(self, session_id: str) -> tuple[str, str]:
        digest = hashlib.sha256(f"{self._application}\0{session_id}".encode()).hexdigest()
        return f"terms/{int(digest[:8], 16) % BUCKETS:03x}", digest[8:32]


def _entries(text: str | None) -> dict[str, tuple[dict[str, str], float]]:
    return orjson.loads(text) if text else {}
